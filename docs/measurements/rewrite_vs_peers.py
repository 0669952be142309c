"""Nodes left, time, peak memory and equality of `trtopt rewrite`, onnxslim and onnxsim on the same files.

    python docs/measurements/rewrite_vs_peers.py OUT.json MODEL.onnx…

Each tool runs in a process of its own; its peak memory is the highest resident set of that process (Linux's
VmHWM, mapped weights included). Times are of reading, rewriting and writing, without the interpreter's start;
late imports are in. Equality is judged afterwards, for all alike: both files on ONNX Runtime, its
optimisations off, on the inputs of trtopt's own check. `trtopt` runs with its check, `trtopt --no-check`
without; the peers do not check.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

RUN = {
    "trtopt": (
        "from trtopt.rewrite.api import rewrite_model\ndef go(): rewrite_model(source, out, target='10')"
    ),
    "trtopt --no-check": (
        "from trtopt.rewrite.api import rewrite_model\n"
        "def go(): rewrite_model(source, out, target='10', check=False)"
    ),
    "onnxslim": "import onnx, onnxslim\ndef go(): onnx.save(onnxslim.slim(onnx.load(source)), out)",
    "onnxsim": "import onnx, onnxsim\ndef go(): onnx.save(onnxsim.simplify(onnx.load(source))[0], out)",
}
AROUND = """
import json, re, sys, time
from pathlib import Path
source, out = Path(sys.argv[1]), Path(sys.argv[2])
{body}
before = time.perf_counter()
go()
seconds = time.perf_counter() - before
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(json.dumps([seconds, int(peak.group(1)) * 1024]))
"""


def measure(tool: str, source: Path, out: Path) -> dict[str, Any]:
    """One tool on one file."""
    code = AROUND.format(body=RUN[tool])
    ran = subprocess.run(
        [sys.executable, "-c", code, source, out], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        return {"tool": tool, "failed": ran.stderr.strip().splitlines()[-1]}
    seconds, peak = json.loads(ran.stdout.strip().splitlines()[-1])
    return {"tool": tool, "seconds": round(seconds, 3), "peak_bytes": peak, **judge(source, out)}


def judge(source: Path, out: Path) -> dict[str, Any]:
    """How many nodes are left (Constant nodes hold weights: apart), and how far outputs moved."""
    from trtopt.onnxmodel import feeds, model_file
    from trtopt.rewrite import equivalence

    before, after = model_file.load(source), model_file.load(out)
    ops = [node.op_type for node in after.proto.graph.node]
    inputs = feeds.seeded(before.proto)
    found = equivalence.compare(equivalence.run(before, inputs), after, inputs, "N")
    return {
        "nodes": len(ops) - ops.count("Constant"),
        "constant_nodes": ops.count("Constant"),
        "error": max(item.error for item in found),
        "equal": all(item.ok for item in found),
    }


def main() -> None:
    """Measure every tool on every file and write one JSON file and a table beside it."""
    target, sources = Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
    tools = {name: version(name) for name in ("onnxslim", "onnxsim", "onnx", "onnxruntime")}
    report: dict[str, Any] = {"machine": f"{platform.machine()}, 2 cores", "versions": tools, "models": []}
    lines = [
        "| model | MB | nodes | tool | left | s | peak MB | x size | error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as place:
        for source in sources:
            import onnx

            ops = [node.op_type for node in onnx.load(source, load_external_data=False).graph.node]
            size, nodes = source.stat().st_size, len(ops) - ops.count("Constant")
            results = [measure(tool, source, Path(place) / "out.onnx") for tool in RUN]
            report["models"].append({"model": source.stem, "bytes": size, "nodes": nodes, "results": results})
            for item in results:
                told = (
                    f"failed: {item['failed']} | | | |"
                    if "failed" in item
                    else f"{item['nodes']} | {item['seconds']:.2f} | {item['peak_bytes'] / 1e6:.0f} | "
                    f"{item['peak_bytes'] / size:.1f} | {item['error']:.1e}"
                    f"{'' if item['equal'] else ' BROKEN'} |"
                )
                lines.append(f"| {source.stem} | {size / 1e6:.1f} | {nodes} | {item['tool']} | {told}")
    target.write_text(json.dumps(report, indent=2) + "\n")
    target.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
