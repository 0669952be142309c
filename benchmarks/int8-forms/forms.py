"""Placements of Q and DQ, each built and measured next to plain FP16 and Model Optimizer's graph.

    python forms.py prepare MODEL WORK --light FOLDER --peers FOLDER     # graphs with weights, and samples
    python forms.py form MODEL FORMS WORK                                # WORK/MODEL.FORMS.onnx
    python forms.py build MODEL SIDE BATCH WORK [--int8]                 # WORK/MODEL-BATCH-SIDE.plan, .json
    python forms.py select MODEL BATCH WORK                              # what `trtopt build` selects
    python forms.py measure MODEL BATCH WORK OUT SIDE …                  # OUT/MODEL-BATCH.json
    python forms.py table OUT [--svg FILE]                               # Markdown, and an image, of it

SIDE is `plain` (the float graph), `mo` (Model Optimizer's), `sel` (what was selected) or FORMS, `default` for
none. The light graphs are those of models.py, `bert` and `r50` those of ../int8-vs-modelopt. All engines of a
model and batch size are loaded in one process and take turns in random order: a CUDA graph, one replay at a
time between two events, nothing copied. Outputs are compared with the float graph's on ONNX Runtime, on
samples that were not calibrated on.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "plain"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import replay
from peer_graphs import recalibrated, refilled
from turns import SOURCES

from models import OPSET, fill, samples

SIDES = {
    "plain": ("plain TensorRT, FP16", "#9aa4ae"),
    "mo": ("Model Optimizer 0.47, INT8", "#f0a050"),
    "sel": ("trtopt build --precision int8", "#64a0d8"),
}
NAMES = {
    "bert": "BERT-base",
    "convnextv2-t": "ConvNeXtV2-T",
    "distilbert": "DistilBERT",
    "mobilenetv3-l": "MobileNetV3-L",
    "r50": "ResNet-50",
    "regnety-040": "RegNetY-040",
}
PEERS = {"bert": "bert_mo_int8_32", "r50": "r50_mo_int8_32"}
ROUNDS, TURN_S = 12, 0.25


def prepare(model: str, work: Path, light: Path, peers: Path) -> None:
    """Write the float graph, the peer's, and the samples to calibrate on."""
    work.mkdir(parents=True, exist_ok=True)
    if model not in PEERS:
        fill(light, model, work)
        return
    np.savez(work / f"{model}.npz", **samples(model))
    onnx.save(refilled(peers, model), work / f"{model}.onnx")
    peer = recalibrated(refilled(peers, PEERS[model]), samples(model, 8))
    peer.opset_import[0].version = min(peer.opset_import[0].version, OPSET)
    onnx.save(peer, work / f"{model}.mo.onnx")


def graph_of(model: str, side: str, work: Path) -> Path:
    """The side's graph."""
    return work / (f"{model}.onnx" if side == "plain" else f"{model}.{side}.onnx")


def shapes_of(model: str, batch: int) -> dict[str, list[int]]:
    """The engine's only shapes."""
    return {name: [batch, *array.shape[1:]] for name, array in samples(model, 1).items()}


def build(model: str, side: str, batch: int, work: Path, flags: list[str]) -> None:
    """Write the plan, and beside it the seconds that it took."""
    began = time.monotonic()
    plan = work / f"{model}-{batch}-{side}.plan"
    cache = work / f"cache-{os.environ.get('CUDA_VISIBLE_DEVICES', '0')}-{model}-{batch}"
    replay.build(graph_of(model, side, work), plan, shapes_of(model, batch), cache, flags)
    told = {"seconds": round(time.monotonic() - began, 1), "bytes": plan.stat().st_size}
    plan.with_suffix(".json").write_text(json.dumps(told))
    print(plan.name, told, flush=True)


def select(model: str, batch: int, work: Path) -> None:
    """Let `trtopt build --precision int8` select, with an empty store of timings, and keep its engine."""
    began = time.monotonic()
    folder = work / f"{model}-{batch}.trtopt"
    shapes = [
        word
        for name, (_, *axes) in shapes_of(model, batch).items()
        for word in ("--shape", f"{name}:N{''.join(f'x{axis}' for axis in axes)}")
    ]
    command = [
        sys.executable, "-m", "trtopt", "build", work / f"{model}.onnx", "-o", folder, "--precision", "int8",
        "--batch", batch, "--data", work / f"{model}.npz", *shapes, "--tactic-sources", ",".join(SOURCES),
        "--cache-dir", work / f"store-{model}-{batch}", "-v",
    ]  # fmt: skip
    subprocess.run([*map(str, command)], check=True)
    seconds = round(time.monotonic() - began, 1)
    judged = json.loads((folder / "manifest.json").read_text())["verdict"]["batches"][0]
    plan = work / f"{model}-{batch}-sel.plan"
    shutil.copyfile(folder / f"batch{batch}.engine", plan)
    candidates = {
        one["candidate"]: {key: round(one[key], 4) for key in ("latency_ms", "build_seconds")}
        for one in judged["times"]
    }
    about = {"seconds": seconds, "bytes": plan.stat().st_size, "selected": judged["chosen"]}
    plan.with_suffix(".json").write_text(json.dumps({**about, "candidates": candidates}))


def reference(model: str, batch: int, work: Path) -> None:
    """Keep inputs and the float graph's outputs, from ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(work / f"{model}.onnx"), options, providers=["CPUExecutionProvider"]
    )
    feed = samples(model, batch, seed=7)
    names = [value.name for value in session.get_outputs()]
    outputs = dict(zip(names, session.run(None, feed), strict=True))
    np.savez(
        work / f"{model}-{batch}.ref.npz",
        **{f"in:{k}": v for k, v in feed.items()},
        **{f"out:{k}": v for k, v in outputs.items()},
    )


def measure(model: str, batch: int, work: Path, out: Path, names: list[str]) -> None:
    """Take turns, and write what every side's turns and outputs were."""
    kept = np.load(work / f"{model}-{batch}.ref.npz")
    feed = {key[3:]: kept[key] for key in kept.files if key.startswith("in:")}
    wanted = [kept[key] for key in kept.files if key.startswith("out:")]
    shapes = {key: list(value.shape) for key, value in feed.items()}
    found: dict[str, dict[str, object]] = {}
    sides: dict[str, replay.Plan] = {}
    for name in names:
        plan = work / f"{model}-{batch}-{name}.plan"
        try:
            sides[name] = replay.Plan(plan, shapes, feed)
        except Exception as error:  # noqa: BLE001 - a side that cannot be loaded is a result
            found[name] = {"failed": str(error)[:300]}
            continue
        sides[name].query()
        about = json.loads(plan.with_suffix(".json").read_text())
        pairs = zip(sides[name].outputs(), wanted, strict=False)
        found[name] = {
            **about,
            "accuracy": [accuracy(got, want) for got, want in pairs if want.dtype.kind == "f"],
        }
    turns: dict[str, list[float]] = {name: [] for name in sides}
    random = np.random.default_rng(0)
    for number in range(ROUNDS + 1):
        for name in random.permutation(list(sides)):
            turn = replay.turn(sides[name], TURN_S)
            if number:
                turns[name].append(round(turn["device_ms"], 5))
    first = np.asarray(turns.get("plain") or turns[next(iter(turns))])
    for name, values in turns.items():
        ratios = np.asarray(values) / first
        found[name] |= {
            "ms": round(float(np.median(values)), 4),
            "ratio": round(float(np.median(ratios)), 4),
            "ratio_iqr": [round(float(x), 4) for x in np.quantile(ratios, [0.25, 0.75])],
            "turns_ms": values,
        }
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{model}-{batch}.json").write_text(json.dumps(found, indent=1) + "\n")
    for name, one in found.items():
        shown = {key: value for key, value in one.items() if key != "turns_ms"}
        print(f"{model} {batch} {name}: {json.dumps(shown)}", flush=True)


def table(out: Path) -> str:
    """Each side's time, its change against plain FP16 and its SQNR."""
    rows = ["| ms | batch | plain FP16 | Model Optimizer | trtopt | selected, seconds |"]
    rows.append("|---|--:|--:|--:|--:|---|")
    for (model, batch), found in measured(out).items():
        cells = [cell(found.get(side)) for side in SIDES]
        chosen = found.get("sel", {})
        about = f"{chosen.get('selected', '–')}, {chosen.get('seconds', '–')} s"
        rows.append(f"| {model} | {batch} | {' | '.join(cells)} | {about} |")
    return "\n".join(rows)


def measured(out: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The sides by model and batch size."""
    names = [place.stem.rpartition("-") for place in out.glob("*-*.json")]
    cases = sorted((model, int(batch)) for model, _, batch in names)
    return {(model, batch): json.loads((out / f"{model}-{batch}.json").read_text()) for model, batch in cases}


def image(out: Path) -> str:
    """Each side's time at each batch size, as a share of plain FP16's, with its milliseconds."""
    from trtopt.report.charts import Channel, chart, svg_of

    rows = [
        {"case": f"{NAMES.get(model, model)}, {batch}", "side": SIDES[side][0], "share": found[side]["ratio"]}
        | {"ms": f"{found[side]['ms']:#.3g}"}
        for (model, batch), found in measured(out).items()
        for side in SIDES
        if "ms" in found.get(side, {})
    ]
    labels, colours = zip(*SIDES.values(), strict=True)
    plain = {"title": None, "sort": None}
    in_two_lines = {"labelExpr": "split(datum.label, ', ')", "labelFontSize": 8, "labelOverlap": False}
    case = Channel("case", "", None, more={**plain, "axis": {"labelAngle": 0, **in_two_lines}})
    share = Channel(
        "share",
        "",
        ".0%",
        "time, plain FP16 = 100 %",
        more={"axis": {"format": ".0%"}, "scale": {"domainMax": 1.3}},
    )
    side = Channel(
        "side", more={**plain, "scale": {"domain": labels, "range": colours}, "legend": {"orient": "top"}}
    )
    within = {"field": "side", "sort": list(labels)}
    places = {"x": case, "y": share, "xOffset": within}
    bars = {"mark": "bar", "encoding": {**places, "color": side}}
    text = {
        "mark": {"type": "text", "angle": 270, "align": "left", "dx": 3, "fontSize": 8},
        "encoding": {**places, "text": {"field": "ms"}},
    }
    title = "Time by model and batch size; above each bar its milliseconds"
    return svg_of([chart(title, rows, [], bars, text, height=230)])


def cell(side: Mapping[str, Any] | None) -> str:
    """One of the table."""
    if side is None or "ms" not in side:
        return "–"
    accuracies = ", ".join(f"{one['sqnr_db']:.1f} dB" for one in side["accuracy"])
    return f"{side['ms']:.4f} ({side['ratio'] - 1:+.1%}), {accuracies}"


def accuracy(got: np.ndarray, want: np.ndarray) -> dict[str, float]:
    """Cosine and SQNR over all samples."""
    result, expected = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
    error = result - expected
    cosine = result @ expected / (np.linalg.norm(result) * np.linalg.norm(expected) or np.inf)
    return {
        "cosine": round(float(cosine), 6),
        "sqnr_db": round(float(10 * np.log10((expected @ expected) / max(error @ error, 1e-300))), 2),
    }


def place_forms(model: str, forms: str, work: Path) -> None:
    """Write the float graph with Q and DQ where the forms say; `default` stands for none."""
    words = [] if forms == "default" else ["--forms", forms]
    command = [
        sys.executable, "-m", "trtopt", "quantize", work / f"{model}.onnx", "-o",
        graph_of(model, forms, work), "--precision", "int8", "--target", "8.6",
        "--data", work / f"{model}.npz", *words,
    ]  # fmt: skip
    subprocess.run([*map(str, command)], check=True)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    one = steps.add_parser("prepare")
    one.add_argument("model")
    one.add_argument("work", type=Path)
    one.add_argument("--light", type=Path)
    one.add_argument("--peers", type=Path)
    one.add_argument("--batch", type=int, nargs="*", default=[])
    two = steps.add_parser("form")
    two.add_argument("model")
    two.add_argument("forms")
    two.add_argument("work", type=Path)
    three = steps.add_parser("build")
    three.add_argument("model")
    three.add_argument("side")
    three.add_argument("batch", type=int)
    three.add_argument("work", type=Path)
    three.add_argument("--int8", action="store_true")
    four = steps.add_parser("measure")
    four.add_argument("model")
    four.add_argument("batch", type=int)
    four.add_argument("work", type=Path)
    four.add_argument("out", type=Path)
    four.add_argument("sides", nargs="+")
    five = steps.add_parser("select")
    five.add_argument("model")
    five.add_argument("batch", type=int)
    five.add_argument("work", type=Path)
    six = steps.add_parser("table")
    six.add_argument("out", type=Path)
    six.add_argument("--svg", type=Path)
    args = parser.parse_args()
    if args.step == "prepare":
        prepare(args.model, args.work, args.light, args.peers)
        for batch in args.batch:
            reference(args.model, batch, args.work)
    elif args.step == "form":
        place_forms(args.model, args.forms, args.work)
    elif args.step == "select":
        select(args.model, args.batch, args.work)
    elif args.step == "table":
        print(table(args.out))
        if args.svg is not None:
            args.svg.write_text(image(args.out))
    elif args.step == "build":
        build(args.model, args.side, args.batch, args.work, ["FP16", "INT8"] if args.int8 else ["FP16"])
    else:
        measure(args.model, args.batch, args.work, args.out, args.sides)


if __name__ == "__main__":
    main()
