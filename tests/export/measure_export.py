"""Export time and peak memory, `trtopt export` against a plain `torch.onnx.export` call, a process each.

Run `python tests/export/measure_export.py [MODEL ...]`: prints a Markdown table. Seconds include making the
model but not importing torch; memory is the process's largest
resident set. trtopt also compares the file with PyTorch, which the plain call does not; that is shown apart.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEFAULT = ["resnet50", "bert-base", "bert-large", "maskrcnn", "unet3d", "diffusion-unet"]


def plain(name: str, out: Path) -> dict[str, float]:
    """The call that PyTorch's documentation shows, with the dynamic axes declared."""
    import torch

    from trtopt.export.source_module import from_spec
    from trtopt.export.spec import find
    from trtopt.export.verify import trace_sizes

    start = time.perf_counter()
    subject = from_spec(find(name), "full")
    inputs = tuple(torch.from_numpy(array) for array in subject.example(trace_sizes(subject.axes)).values())
    axes = {name: torch.export.Dim(name, min=axis.min, max=axis.max) for name, axis in subject.axes.items()}
    if "time" in axes:
        axes["time"] = torch.export.Dim.AUTO
    shapes = tuple(
        {index: axes[axis] for index, axis in enumerate(entry.shape) if axis in axes}
        for entry in subject.inputs
    )
    torch.onnx.export(subject.module, inputs, str(out), dynamo=True, dynamic_shapes=shapes, verbose=False)
    return {"export": time.perf_counter() - start}


def ours(name: str, out: Path) -> dict[str, float]:
    """What the command does."""
    from trtopt.device.ort.reference import open_reference
    from trtopt.export import export as run
    from trtopt.export.source_module import from_spec
    from trtopt.export.spec import find

    opened: list[tuple[float, float]] = []

    def opening(path: Path) -> Callable[..., Any]:
        opened.append((time.perf_counter(), _peak_mb()))
        return open_reference(path)

    start = time.perf_counter()
    run.export(from_spec(find(name), "full"), out, opening)
    (before, peak_mb), end = opened[0], time.perf_counter()
    return {"export": before - start, "compare": end - before, "export_mb": peak_mb}


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _child(way: str, name: str) -> None:
    import torch  # noqa: F401  so that its import is not timed

    ways: dict[str, Callable[[str, Path], dict[str, float]]] = {"plain": plain, "ours": ours}
    with tempfile.TemporaryDirectory() as folder:
        found = ways[way](name, Path(folder) / "model.onnx")
    print("RESULT" + json.dumps({**found, "peak_mb": _peak_mb()}))


def _measured(way: str, name: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", way, name]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(next(line for line in text.splitlines() if line.startswith("RESULT"))[6:])


def main(names: list[str]) -> None:
    """Print the table, a row as soon as it is measured."""
    print("| model | torch.onnx.export: s | MB | trtopt: s | of it comparing | MB before that | MB in all |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for name in names:
        a, b = _measured("plain", name), _measured("ours", name)
        print(
            f"| {name} | {a['export']:.1f} | {a['peak_mb']:.0f} | {b['export'] + b['compare']:.1f} "
            f"| {b['compare']:.1f} | {b['export_mb']:.0f} | {b['peak_mb']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _child(*sys.argv[2:])
    else:
        main(sys.argv[1:] or DEFAULT)
