"""Nodes left, time, peak memory and equality of `trtopt rewrite`, onnxslim and onnxsim on the same files.

    python benchmarks/rewrite-vs-peers/rewrite_vs_peers.py OUT.json MODEL.onnx… [--peers PYTHON]

PYTHON is an interpreter that has onnxslim and onnxsim [this one]. Each tool runs in a process of its own; its
peak memory is the highest resident set of that process (Linux's VmHWM, mapped weights included). Wall and
processor time are of reading, rewriting and writing, without the interpreter's start; late imports are in.
Nodes are counted with those of subgraphs, without Constant nodes, which hold weights. Equality is judged
afterwards, for all alike: both files on ONNX Runtime, its optimisations off, on the inputs of trtopt's own
check. `trtopt` runs with its check, `trtopt --no-check` without; the peers do not check. OUT.json and OUT.md
are written after each model.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from trtopt.data import feeds
from trtopt.errors import ModelError
from trtopt.onnxio import model_file
from trtopt.onnxio.graph_walk import graphs_of
from trtopt.rewrite import equivalence

LIMIT_S = 600
TRTOPT = {
    "trtopt": (
        "from trtopt.rewrite.rewrite import rewrite_model\n"
        "def go(): rewrite_model(source, out, target='10', clean=True)"
    ),
    "trtopt --no-check": (
        "from trtopt.rewrite.rewrite import rewrite_model\n"
        "def go(): rewrite_model(source, out, target='10', clean=True, check=False)"
    ),
}
PEERS = {
    "onnxslim": "import onnx, onnxslim\ndef go(): onnx.save(onnxslim.slim(onnx.load(source)), out)",
    "onnxsim": "import onnx, onnxsim\ndef go(): onnx.save(onnxsim.simplify(onnx.load(source))[0], out)",
}
AROUND = """
import json, re, sys, time
from pathlib import Path
source, out = Path(sys.argv[1]), Path(sys.argv[2])
{body}
wall, processor = time.perf_counter(), time.process_time()
go()
wall, processor = time.perf_counter() - wall, time.process_time() - processor
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(json.dumps([wall, processor, int(peak.group(1)) * 1024]))
"""
VERSIONS = (
    "from importlib.metadata import version; import json, sys; "
    "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
)


def measure(tool: str, python: str, code: str, source: Path, out: Path) -> dict[str, Any]:
    """One tool on one file."""
    command = [python, "-c", AROUND.format(body=code), str(source), str(out)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"tool": tool, "failed": f"not done in {LIMIT_S} s"}
    if ran.returncode:
        summary = ran.stderr.strip().splitlines()
        return {"tool": tool, "failed": summary[-1] if summary else f"ended with status {ran.returncode}"}
    wall, processor, peak = json.loads(ran.stdout.strip().splitlines()[-1])
    figures = {"seconds": round(wall, 3), "cpu_seconds": round(processor, 3), "peak_bytes": peak}
    return {"tool": tool, **figures, **evaluator(source, out)}


def count_nodes(model: onnx.ModelProto) -> int:
    """All but Constant nodes, subgraphs included."""
    return sum(node.op_type != "Constant" for graph in graphs_of(model.graph) for node in graph.node)


def evaluator(source: Path, out: Path) -> dict[str, Any]:
    """How many nodes are left, and how far outputs moved."""
    before, after = model_file.load(source), model_file.load(out)

    def moved(inputs: Sequence[feeds.Feed]) -> dict[str, Any]:
        found = equivalence.compare(equivalence.run(before, inputs), after, inputs, "N")
        return {"error": max(item.error for item in found), "equal": all(item.ok for item in found)}

    try:
        result = feeds.on_seeded(before.proto, moved)
    except ModelError as error:
        result = {"error": None, "equal": None, "not_judged": error.problem}
    return {"nodes": count_nodes(after.proto), **result}


def measure_model(source: Path, peers: str, place: Path) -> dict[str, Any]:
    """Every tool on one file."""
    tools = [(tool, sys.executable, code) for tool, code in TRTOPT.items()]
    tools += [(tool, peers, code) for tool, code in PEERS.items()]
    return {
        "model": source.stem,
        "bytes": source.stat().st_size,
        "nodes": count_nodes(onnx.load(source, load_external_data=False)),
        "results": [measure(*tool, source, place / "out.onnx") for tool in tools],
    }


def table(models: Sequence[dict[str, Any]]) -> str:
    """The results in Markdown."""
    lines = [
        "| model | MB | nodes | tool | left | wall s | CPU s | peak MB | x size | error |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for model in models:
        for item in model["results"]:
            if "failed" in item:
                summary = f"failed: {item['failed'].replace('|', '/')[:90]} | | | | |"
            else:
                error = "not judged" if item["error"] is None else f"{item['error']:.1e}"
                broken = " BROKEN" if item["equal"] is False else ""
                summary = (
                    f"{item['nodes']} | {item['seconds']:.2f} | {item['cpu_seconds']:.2f} | "
                    f"{item['peak_bytes'] / 1e6:.0f} | {item['peak_bytes'] / model['bytes']:.1f} | "
                    f"{error}{broken} |"
                )
            size = f"{model['bytes'] / 1e6:.1f}"
            lines.append(f"| {model['model']} | {size} | {model['nodes']} | {item['tool']} | {summary}")
    return "\n".join(lines) + "\n"


def versions(python: str, *names: str) -> dict[str, str]:
    """What is installed beside an interpreter."""
    summary = subprocess.run([python, "-c", VERSIONS, *names], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(summary.stdout)
    return found


def main() -> None:
    """Measure every tool on every file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON")
    options = parser.parse_args()
    models: list[dict[str, Any]] = []
    report = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "trtopt": versions(sys.executable, "onnx", "onnxruntime"),
        "peers": versions(options.peers, "onnxslim", "onnxsim", "onnx"),
        "models": models,
    }
    for source in options.models:
        with tempfile.TemporaryDirectory() as place:
            models.append(measure_model(source, options.peers, Path(place)))
        options.out.write_text(json.dumps(report, indent=1) + "\n")
        options.out.with_suffix(".md").write_text(table(models))
        print(table(models[-1:]).split("\n", 2)[2], end="", flush=True)


if __name__ == "__main__":
    main()
