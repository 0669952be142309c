"""torch.compile on ResNet-50 and BERT-base in FP16, for the table of figures in README.md.

    python torch_compile.py --out OUT --budget 300 [--mode max-autotune] [--warm] [--dry-run]

Needs torch and transformers and neither trtopt nor TensorRT. Weights are seeded noise; the output is held
against the same model's in FP32. Latency is the host's, from the call to the synchronised result, inputs on
the GPU already. Cells that are there are kept. `--warm` compiles alone, into Inductor's cache, so that what
is measured later starts in seconds. `--dry-run` takes a tiny network on the CPU.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

ORDER = (
    ("resnet50", 1), ("resnet50", 32), ("bert-base", 1), ("bert-base", 32),
    ("resnet50", 8), ("resnet50", 128), ("bert-base", 8), ("bert-base", 128),
)  # fmt: skip
DRY_ORDER = (("digits", 1), ("digits", 32))
SIDE = "torch-compile"
LEAST_S = 45.0
"""With less left no cell is begun."""
WARM_UP, MOST_SAMPLES, SAMPLING_S = 30, 5000, 3.0
TOKENS = 128


def main() -> None:
    """Measure what there is time for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=300.0, help="seconds")
    parser.add_argument("--mode", default="reduce-overhead", help="of torch.compile")
    parser.add_argument("--warm", action="store_true", help="compile and measure nothing")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.backends.cudnn.allow_tf32 = False  # the FP32 outputs are what the others are held against
    args.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + args.budget
    for name, batch in DRY_ORDER if args.dry_run else ORDER:
        place = args.out / f"{name}-{batch}-{SIDE}.json"
        if is_measured(place) or end - time.monotonic() < (0 if args.dry_run else LEAST_S):
            continue
        began = time.monotonic()
        try:
            found = cell(name, batch, args.mode, is_warming=args.warm, is_dry=args.dry_run)
        except RuntimeError as error:  # the other cells may do
            found = {"model": name, "batch": batch, "side": SIDE, "failed": str(error)[-2000:]}
        print(f"{place.stem}: {found.get('ms')} ms, {time.monotonic() - began:.1f} s", flush=True)
        if not args.warm:
            scratch = place.with_suffix(".part")
            scratch.write_text(json.dumps(found, indent=1) + "\n")
            scratch.replace(place)


def is_measured(place: Path) -> bool:
    """Whether there is a cell that did not fail."""
    return place.is_file() and "ms" in json.loads(place.read_text())


def cell(name: str, batch: int, mode: str, *, is_warming: bool, is_dry: bool) -> dict[str, Any]:
    """Compile and measure one model at one batch size."""
    device, dtype = ("cpu", torch.float32) if is_dry else ("cuda", torch.float16)
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, inputs = network(name, batch)
    model = model.eval().to(device)
    inputs = tuple(one.to(device) for one in inputs)
    with torch.no_grad():
        wanted = model(*inputs).double()
        half = tuple(one.to(dtype) if one.is_floating_point() else one for one in inputs)
        model = model.to(dtype)
        if name == "resnet50":
            model = model.to(memory_format=torch.channels_last)
            half = tuple(one.contiguous(memory_format=torch.channels_last) for one in half)
        compiled = torch.compile(model, backend="eager") if is_dry else torch.compile(model, mode=mode)
        began = time.monotonic()
        for _ in range(3):
            got = compiled(*half).double()
        compile_s = time.monotonic() - began
        told: dict[str, Any] = {} if is_warming else {"ms": latency_ms(lambda: compiled(*half), device)}
    error = (got - wanted).square().sum()
    return {
        "model": name,
        "batch": batch,
        "side": SIDE,
        **told,
        "cosine": float(torch.nn.functional.cosine_similarity(got.flatten(), wanted.flatten(), dim=0)),
        "sqnr_db": float(10 * torch.log10(wanted.square().sum() / error.clamp(min=1e-300))),
        "compile_s": round(compile_s, 1),
        "mode": mode,
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "backend": f"torch {torch.__version__}",
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
    }


def latency_ms(run: Callable[[], object], device: str) -> float:
    """The median by the host's clock, one query in flight."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    for _ in range(WARM_UP):
        run()
    wait()
    times: list[float] = []
    end = time.perf_counter() + (SAMPLING_S if device == "cuda" else 0.1)
    while len(times) < MOST_SAMPLES and time.perf_counter() < end:
        began = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - began)
    return round(1e3 * sorted(times)[len(times) // 2], 4)


def network(name: str, batch: int) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The model with seeded weights, and seeded inputs."""
    if name == "digits":
        layers = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.ReLU(), torch.nn.Flatten())
        return layers, (torch.randn(batch, 1, 8, 8),)
    import transformers

    if name == "resnet50":
        config = transformers.ResNetConfig(num_labels=1000)
        model = transformers.ResNetForImageClassification(config)
        return Only(model, "logits"), (torch.randn(batch, 3, 224, 224),)
    model = transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False)
    ids, mask = torch.randint(0, 30_000, (batch, TOKENS)), torch.ones(batch, TOKENS, dtype=torch.int64)
    return Only(model, "last_hidden_state"), (ids, mask)


class Only(torch.nn.Module):
    """A model with one tensor as its output."""

    def __init__(self, model: torch.nn.Module, output: str) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Give the one output."""
        result: torch.Tensor = getattr(self.model(*inputs), self.output)
        return result


if __name__ == "__main__":
    main()
