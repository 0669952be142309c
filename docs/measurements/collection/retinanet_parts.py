"""Which part of RetinaNet TensorRT 8.6 builds at which batch size, and in which form.

    python docs/measurements/collection/retinanet_parts.py jobs WORK OUT > JOBS.json
    python docs/measurements/on_every_gpu.py JOBS.json DONE SECONDS --gpus 0,0,0
    python docs/measurements/collection/retinanet_parts.py table OUT

Whole, its builder stops at batch 8 and 32: "Could not find any implementation for node
{ForeignNode[anchors...Sub_2]}". `head` is the network up to logits and deltas of all anchors, `tail` what
finds boxes in them; `boxes` is of that only TopK and what gathers and decodes, which that node is about. The
other forms compute the same: `gather-nd` gathers deltas by GatherND with a batch axis, `flat` by Gather from
the rows of all images, `decoded-first` decodes all anchors and gathers boxes. `build FORM:BATCH WORK OUT
--backend tensorrt-rtx` tries one without a GPU.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from turns import SOURCES
from weights import fill

LIGHT = Path(__file__).parent / "retinanet-gathered-first.onnx.gz"
LOGITS, DELTAS, ANCHORS, BOXES = "Concat", "Concat_1", "Cast_1", "Concat_2"
FORMS = ("tail", "boxes", "gather-nd", "flat", "decoded-first", "head")
BATCHES = (8, 32, 1)


def main() -> None:
    """Print the jobs, build one, or show what there is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=["jobs", "build", "table"])
    parser.add_argument("places", nargs="+")
    parser.add_argument("--backend", default="tensorrt")
    asked = parser.parse_args()
    if asked.step == "table":
        _table(Path(asked.places[0]))
    elif asked.step == "jobs":
        command = [sys.executable, str(Path(__file__).absolute()), "build"]
        cases = [f"{form}:{batch}" for batch in BATCHES for form in FORMS]
        jobs = [
            {
                "name": f"retinanet-{case.replace(':', '-')}",
                "run": shlex.join([*command, case, *asked.places]),
            }
            for case in cases
        ]
        json.dump(jobs, sys.stdout, indent=1)
    else:
        case, work, out = asked.places
        form, batch = case.split(":")
        _build(form, int(batch), Path(work), Path(out), asked.backend)


def _build(form: str, batch: int, work: Path, out: Path, backend: str) -> None:
    import trtopt
    from trtopt.errors import TrtoptError

    work.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    model, told = work / f"{form}-{batch}.onnx", {"form": form, "batch": batch, "failure": None}
    write(form, model)
    began = time.monotonic()
    try:
        trtopt.build(
            model, model.with_suffix(""), batch=(batch,), rewrite=False, force=True,
            backend=backend, tactic_sources=SOURCES if backend == "tensorrt" else None,
        )  # fmt: skip
    except TrtoptError as error:
        told["failure"] = error.problem[:500]
    told["seconds"] = round(time.monotonic() - began, 1)
    (out / f"{form}-{batch}.json").write_text(json.dumps(told, indent=1) + "\n")


def write(form: str, path: Path) -> None:
    """One form of one part, with weights."""
    whole = path.with_suffix(".whole.onnx")
    fill(LIGHT, whole)
    ends = [item.name for item in onnx.load(whole, load_external_data=False).graph.output]
    if form == "head":
        onnx.utils.extract_model(whole, path, ["image"], [LOGITS, DELTAS], check_model=False)
    else:
        ends = [BOXES] if form == "boxes" else ends
        onnx.utils.extract_model(whole, path, [LOGITS, DELTAS], ends, check_model=False)
    whole.unlink()
    change = {"gather-nd": _by_gather_nd, "flat": _by_row, "decoded-first": _decoded_first}.get(form)
    if change is not None:
        graph = gs.import_onnx(onnx.load(path))
        change(graph)
        for tensor in graph.tensors().values():
            if isinstance(tensor, gs.Variable) and tensor not in (*graph.inputs, *graph.outputs):
                tensor.shape = None
        onnx.save(gs.export_onnx(graph.cleanup().toposort()), path)


def _gathered(graph: gs.Graph) -> tuple[gs.Node, gs.Variable]:
    """The GatherElements of deltas, and TopK's indices [N, K]."""
    (node,) = (one for one in graph.nodes if one.op == "GatherElements" and one.inputs[0].name == DELTAS)
    (top,) = (one for one in graph.nodes if one.name == "TopK")
    return node, top.outputs[1]


def _by_gather_nd(graph: gs.Graph) -> None:
    node, index = _gathered(graph)
    rows = graph.layer(op="Unsqueeze", inputs=[index, np.array([-1])], outputs=["rows"])[0]
    rows.dtype, y = np.int64, node.outputs[0]
    node.outputs.clear()
    graph.layer(op="GatherND", inputs=[node.inputs[0], rows], outputs=[y], attrs={"batch_dims": 1})


def _by_row(graph: gs.Graph) -> None:
    """Row k of image n is row n·A + k of all."""
    node, index = _gathered(graph)
    table, y = node.inputs[0], node.outputs[0]
    node.outputs.clear()
    anchors = np.array(table.shape[1])
    flat = graph.layer(op="Reshape", inputs=[table, np.array([-1, 4])], outputs=["flat"])[0]
    shape = graph.layer(op="Shape", inputs=[index], outputs=["index_shape"])[0]
    images = graph.layer(op="Gather", inputs=[shape, np.array(0)], outputs=["images"])[0]
    numbers = graph.layer(op="Range", inputs=[np.array(0), images, np.array(1)], outputs=["numbers"])[0]
    column = graph.layer(op="Unsqueeze", inputs=[numbers, np.array([1])], outputs=["column"])[0]
    first = graph.layer(op="Mul", inputs=[column, anchors], outputs=["first"])[0]
    rows = graph.layer(op="Add", inputs=[index, first], outputs=["rows"])[0]
    graph.layer(op="Gather", inputs=[flat, rows], outputs=[y], attrs={"axis": 0})


def _decoded_first(graph: gs.Graph) -> None:
    """Anchors as [1, A, 4] where gathered ones were, deltas of all; boxes are gathered at the end."""
    node, index = _gathered(graph)
    (anchors,) = (one for one in graph.nodes if one.op == "GatherND" and one.inputs[0].name == ANCHORS)
    (boxes,) = (one for one in graph.nodes if BOXES in [out.name for out in one.outputs])
    axes = np.array([0])
    graph.layer(op="Unsqueeze", inputs=[anchors.inputs[0], axes], outputs=[anchors.outputs[0]])
    graph.layer(op="Identity", inputs=[node.inputs[0]], outputs=[node.outputs[0]])
    for old in (anchors, node):
        old.outputs.clear()
    chosen = gs.Variable("chosen", np.float32)
    for reader in [one for one in graph.nodes if boxes.outputs[0] in one.inputs]:
        reader.inputs = [chosen if item is boxes.outputs[0] else item for item in reader.inputs]
    wide = graph.layer(op="Unsqueeze", inputs=[index, np.array([-1])], outputs=["wide"])[0]
    rows = graph.layer(op="Expand", inputs=[wide, np.array([1, 1, 4])], outputs=["rows"])[0]
    graph.layer(op="GatherElements", inputs=[boxes.outputs[0], rows], outputs=[chosen], attrs={"axis": 1})


def _table(out: Path) -> None:
    print("| part | batch | s | |\n|---|--:|--:|---|")
    for path in sorted(out.glob("*.json")):
        told = json.loads(path.read_text())
        print(f"| {told['form']} | {told['batch']} | {told['seconds']} | {told['failure'] or 'built'} |")


if __name__ == "__main__":
    main()
