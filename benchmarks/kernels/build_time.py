"""Where TensorRT 8.6 spends the seconds of a build: by layer, from the times of its verbose messages.

    python benchmarks/kernels/build_time.py GRAPH RESULT.json --batch 8 [--avg-timing 8]

GRAPH is a BERT whose inputs have the axes batch and tokens: one of int8_forms.py (`.onnx.gz`, without
weights) or a build's own (`.onnx`). It is built for 128 tokens with FP16 and INT8 allowed, without a timing
cache. RESULT lists what took a second or more.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import resource
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plain"))

from replay import SOURCES
from weights import fill

TOKENS = 128
LEAST_S = 1.0
_RUNNER = re.compile(r"Timing Runner: (.*?) \((\w+)")
_WORDS = 160


def main() -> None:
    """Build, and write what took how long."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("graph", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--avg-timing", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = args.graph
        if model.suffix == ".gz":
            model = Path(scratch) / "model.onnx"
            fill(args.graph, model)
        began = time.monotonic()
        messages = built(model, args.batch, args.avg_timing)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    told = {
        "graph": args.graph.name,
        "batch": args.batch,
        "avg_timing": args.avg_timing,
        "seconds": round(time.monotonic() - began, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "messages": len(messages),
        **spent(messages),
    }
    args.result.write_text(json.dumps(told, indent=1) + "\n")
    print(f"{told['graph']}: {told['seconds']} s, {told['cpu_s']} s of the CPU")


def built(model: Path, batch: int, avg_timing: int) -> list[tuple[float, str]]:
    """All messages of a build, each with its time."""
    import tensorrt as trt

    messages: list[tuple[float, str]] = []

    class Timed(trt.ILogger):  # type: ignore[misc]
        def log(self, severity: Any, text: str) -> None:
            messages.append((time.monotonic(), text[:_WORDS]))

    logger = Timed()
    trt.init_libnvinfer_plugins(logger, "")
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(model)):
        raise SystemExit(parser.get_error(0).desc())
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    config.set_flag(trt.BuilderFlag.FP16)
    config.set_flag(trt.BuilderFlag.INT8)
    config.avg_timing_iterations = avg_timing
    config.set_tactic_sources(sum(1 << int(getattr(trt.TacticSource, name)) for name in SOURCES))
    for index in range(network.num_inputs):
        shape = (batch, TOKENS)
        profile.set_shape(network.get_input(index).name, shape, shape, shape)
    config.add_optimization_profile(profile)
    messages.append((time.monotonic(), "parsed"))
    if builder.build_serialized_network(network, config) is None:
        raise SystemExit("TensorRT could not build the engine")
    messages.append((time.monotonic(), "built"))
    return messages


def spent(messages: list[tuple[float, str]]) -> dict[str, Any]:
    """Seconds from each message to the next: by the layer and runner being timed, and the longest pauses."""
    runners: dict[str, float] = defaultdict(float)
    timed: dict[str, int] = defaultdict(int)
    pauses = []
    current = "before any runner"
    for (start, text), (end, _) in itertools.pairwise(messages):
        if found := _RUNNER.search(text):
            current = f"{found[2]}: {found[1]}"
            timed[current] += 1
        elif "Computing costs for" in text or "Engine generation completed" in text:
            current = "between runners"
        runners[current] += end - start
        if end - start >= LEAST_S:
            pauses.append({"s": round(end - start, 2), "behind": text})
    order = sorted(runners, key=lambda name: -runners[name])
    return {
        "by_runner": [
            {"runner": name, "s": round(runners[name], 2), "timed": timed[name]}
            for name in order
            if runners[name] >= LEAST_S
        ],
        "pauses": sorted(pauses, key=lambda pause: -float(str(pause["s"]))),
    }


if __name__ == "__main__":
    main()
