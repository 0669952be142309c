"""Ways of writing BERT-base in INT8 that compute the same, for TensorRT 8.6.

    python benchmarks/kernels/int8_forms.py make FOLDER
    python benchmarks/kernels/int8_forms.py run --graphs FOLDER --work WORK --out OUT --budget 500 JOB …

`make` writes FOLDER/FORM.onnx.gz for each form, without weights (extra `export`, no GPU):

    plain         Q and DQ where Model Optimizer puts them
    attention     Q and DQ where `trtopt build` puts them: attention's products too, but no residual's sum
    attention-merged  the same of the rewritten graph: merge-matmuls
    merged        Q, K and V as one product and a Split, then their biases: the rule merge-matmuls
    merged-bias   the same with one bias, in front of the Split
    apart         the three products read a Q each, of scales that differ in the last digit: none to merge
    gelu          FP16 from the product in front of GELU to the Q behind it
    rest          and in LayerNormalization and the residuals' sums
    merged-gelu   both

`run` builds each JOB, a form and a batch size as in `gelu-8`, with a timing cache of its own, profiles its
kernels, and measures it in turns with the first one of that batch size (../plain/replay.py). `float-8` is
FP16, of FOLDER/bert_fp16.onnx.gz (graphs.py). A job is left out if fewer than 80 seconds are left.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))

from cells import FailedError, OutOfTimeError, run_python
from graphs import ATTENTION, INCLUDED, exported, trtopt
from kernels import SOURCES
from weights import empty, fill

HERE = Path(__file__).resolve().parent
LEAST_S = 80.0
TOKENS = 128
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


# ── the forms ───────────────────────────────────────────────────────────────────────────────────────────


def make(folder: Path) -> None:
    """Write all forms; what is there already is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        tokens = np.random.default_rng(0).integers(1000, 30000, (32, TOKENS))
        values = (tokens, np.ones_like(tokens), np.zeros_like(tokens))
        np.savez(place / "samples.npz", **dict(zip(INPUTS, values, strict=True)))
        source = exported("bert-base", place)
        merged = place / "merged.onnx"
        trtopt("rewrite", source, "-o", merged, "--target", "8.6", "--rules", "merge-matmuls")
        onnx.save(one_bias(onnx.load(merged)), place / "merged-bias.onnx")
        bases: dict[str, tuple[Path, Sequence[str]]] = {
            "plain": (source, ATTENTION),
            "merged": (merged, ATTENTION),
            "merged-bias": (place / "merged-bias.onnx", ATTENTION),
            "attention": (source, INCLUDED),
            "attention-merged": (merged, INCLUDED),
        }
        for name, (model, options) in bases.items():
            trtopt(
                "quantize", model, "-o", place / f"{name}.int8.onnx", "--precision", "int8", "--target",
                "8.6", "--data", place / "samples.npz", *options,
            )  # fmt: skip
        forms: dict[str, tuple[str, Callable[[onnx.ModelProto], onnx.ModelProto]]] = {
            **{name: (name, lambda model: model) for name in bases},
            "apart": ("plain", apart),
            "gelu": ("plain", lambda model: in_half(model, is_gelu)),
            "rest": ("plain", lambda model: in_half(model, is_rest)),
            "merged-gelu": ("merged", lambda model: in_half(model, is_gelu)),
        }
        for name, (base, change) in forms.items():
            made = place / "made.onnx"
            onnx.save(change(onnx.load(place / f"{base}.int8.onnx")), made)
            empty(made, folder / f"{name}.onnx.gz")
            print(folder / f"{name}.onnx.gz", flush=True)


def one_bias(model: onnx.ModelProto) -> onnx.ModelProto:
    """The three biases behind each Split as one in front of it."""
    graph = model.graph
    constants = {item.name: item for item in graph.initializer}
    for split in [node for node in graph.node if node.op_type == "Split" and len(node.output) == 3]:
        sums = [next(node for node in graph.node if name in node.input) for name in split.output]
        biases = [next(name for name in node.input if name in constants) for node in sums]
        whole = np.concatenate([numpy_helper.to_array(constants[name]) for name in biases])
        graph.initializer.append(numpy_helper.from_array(whole, f"{split.name}/bias"))
        biased = f"{split.name}/biased"
        added = helper.make_node("Add", [split.input[0], f"{split.name}/bias"], [biased], f"{split.name}/Add")
        outputs = [node.output[0] for node in sums]
        behind = helper.make_node("Split", [biased, split.input[1]], outputs, split.name, axis=-1)
        place = list(graph.node).index(split)
        for node in (split, *sums):
            graph.node.remove(node)
        graph.node.insert(place, behind)
        graph.node.insert(place, added)
    return model


def apart(model: onnx.ModelProto) -> onnx.ModelProto:
    """A Q and a DQ of their own for K and V, whose scales are the next larger floats."""
    graph = model.graph
    makers = {name: node for node in graph.node for name in node.output}
    constants = {item.name: item for item in graph.initializer}
    for dequantise in [node for node in graph.node if node.op_type == "DequantizeLinear"]:
        readers = [
            node for node in graph.node if node.op_type == "MatMul" and node.input[0] == dequantise.output[0]
        ]
        if len(readers) != 3:
            continue
        quantize = makers[dequantise.input[0]]
        scale = numpy_helper.to_array(constants[quantize.input[1]])
        place = list(graph.node).index(dequantise) + 1
        for reader in readers[1:]:
            scale = np.nextafter(scale, np.float32(np.inf), dtype=np.float32)
            stem = f"{reader.name}/own"
            graph.initializer.append(numpy_helper.from_array(scale, f"{stem}_scale"))
            q_inputs = [quantize.input[0], f"{stem}_scale", quantize.input[2]]
            dq_inputs = [f"{stem}_q", f"{stem}_scale", quantize.input[2]]
            graph.node.insert(
                place, helper.make_node("DequantizeLinear", dq_inputs, [f"{stem}_dq"], f"{stem}/DQ")
            )
            graph.node.insert(place, helper.make_node("QuantizeLinear", q_inputs, [f"{stem}_q"], f"{stem}/Q"))
            reader.input[0] = f"{stem}_dq"
    return model


def is_gelu(node: NodeProto) -> bool:
    """Of the pointwise nodes between the first product of a feed-forward part and the second one's Q."""
    own = node.name.split("/")[0].removeprefix("bert.encoder.layer.")
    is_pointwise = node.op_type in ("Add", "Div", "Erf", "Mul")
    return is_pointwise and (own.isdigit() or node.name.endswith("intermediate.dense/Add"))


def is_rest(node: NodeProto) -> bool:
    """Of GELU, LayerNormalization, and the sums in front of it."""
    is_sum = node.op_type in ("Add", "Mul") and any(
        word in node.name for word in ("output", "LayerNorm", "embeddings")
    )
    return is_gelu(node) or node.op_type == "LayerNormalization" or is_sum


def in_half(model: onnx.ModelProto, is_meant: Callable[[NodeProto], bool]) -> onnx.ModelProto:
    """The nodes that are meant in FP16, with casts where they meet FP32."""
    model = onnx.shape_inference.infer_shapes(model)
    graph = model.graph
    types = {item.name: item.data_type for item in graph.initializer}
    for item in (*graph.value_info, *graph.input, *graph.output):
        types[item.name] = item.type.tensor_type.elem_type
    constants = {item.name: item for item in graph.initializer}
    halves: set[str] = set()
    nodes: list[NodeProto] = []
    cast: set[str] = set()

    def converted(name: str, to: int) -> str:
        made = f"{name}_as_{to}"
        if made not in cast:
            cast.add(made)
            nodes.append(helper.make_node("Cast", [name], [made], made, to=to))
        return made

    for node in graph.node:
        chosen = is_meant(node) and types.get(node.output[0]) == TensorProto.FLOAT
        for index, name in enumerate(node.input):
            if not chosen and name in halves:
                node.input[index] = converted(name, TensorProto.FLOAT)
            elif chosen and types.get(name) == TensorProto.FLOAT and name not in halves:
                if name in constants:
                    values = numpy_helper.to_array(constants[name]).astype(np.float16)
                    if f"{name}_half" not in constants:
                        constants[f"{name}_half"] = numpy_helper.from_array(values, f"{name}_half")
                        graph.initializer.append(constants[f"{name}_half"])
                    node.input[index] = f"{name}_half"
                else:
                    node.input[index] = converted(name, TensorProto.FLOAT16)
        nodes.append(node)
        halves |= set(node.output) if chosen else set()
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input}
    for item in [item for item in graph.initializer if item.name not in read]:
        graph.initializer.remove(item)
    onnx.checker.check_model(model)
    return model


# ── measuring ───────────────────────────────────────────────────────────────────────────────────────────


def run(request: argparse.Namespace) -> None:
    """Build, profile and measure in turns what there is time for; say how it went."""
    end = time.monotonic() + request.budget
    first: dict[int, Path] = {}
    request.out.mkdir(parents=True, exist_ok=True)
    request.work.mkdir(parents=True, exist_ok=True)
    for name in request.jobs:
        form, batch = name.rsplit("-", 1)
        if end - time.monotonic() < LEAST_S:
            print(f"{name}: no time left", flush=True)
            continue
        try:
            engine = build(request, form, int(batch), end)
            if int(batch) in first:
                in_turns(first[int(batch)], engine, int(batch), request.out / f"{name}.turns.json", end)
        except (FailedError, OutOfTimeError) as error:
            print(f"{name}: {error}", flush=True)
            continue
        first.setdefault(int(batch), engine)
        print(f"{name}: {end - time.monotonic():.0f} s are left", flush=True)


def build(request: argparse.Namespace, form: str, batch: int, end: float) -> Path:
    """A job's engine, with the profile of its kernels in OUT."""
    work, name = request.work, f"{form}-{batch}"
    model = work / f"{name}.onnx"
    fill(request.graphs / f"{'bert_fp16' if form == 'float' else form}.onnx.gz", model)
    words: Iterable[object] = (
        "-m", "trtopt", "build", model, "-o", work / name, "--batch", batch, "--axis", f"sequence={TOKENS}",
        "--backend", "tensorrt", "--allow-fallback", "--tactic-sources", SOURCES, "--timing-cache", "none",
        "--avg-timing", request.avg_timing,
    )  # fmt: skip
    run_python(f"build {name}", words, end - time.monotonic())
    model.unlink()
    words = ("-m", "trtopt", "profile", work / name, "--kernels", "--duration", 1)
    printed = run_python(f"profile {name}", words, end - time.monotonic())
    (request.out / f"{name}.profile.txt").write_text(printed)
    engine: Path = work / name / f"batch{batch}.engine"
    return engine


def in_turns(first: Path, second: Path, batch: int, result: Path, end: float) -> None:
    """Both engines in one process; `first` is what the result calls plain."""
    shapes = json.dumps({name: [batch, TOKENS] for name in INPUTS})
    types = json.dumps(dict.fromkeys(INPUTS, "int64"))
    script = HERE.parent / "plain" / "replay.py"
    words = (script, "measure", first, second, shapes, types, result, "--rounds", 12, "--seconds", 0.2)
    run_python(f"turns {result.name}", words, end - time.monotonic())


def main() -> None:
    """Make or run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    steps.add_parser("make").add_argument("folder", type=Path)
    runs = steps.add_parser("run")
    runs.add_argument("--graphs", type=Path, required=True)
    runs.add_argument("--work", type=Path, required=True)
    runs.add_argument("--out", type=Path, required=True)
    runs.add_argument("--budget", type=float, default=500.0)
    runs.add_argument("--avg-timing", type=int, default=1, help="of a tactic; `trtopt build` has 8")
    runs.add_argument("jobs", nargs="+", metavar="JOB")
    request = parser.parse_args()
    if request.step == "make":
        make(request.folder)
    else:
        run(request)


if __name__ == "__main__":
    main()
