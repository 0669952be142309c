"""What each rewrite rule is worth on real engines: its small graphs built before and after, layer by layer.

    python benchmarks/fusion-audit/fusion_audit.py pairs FOLDER [--target 8.6]
    python benchmarks/fusion-audit/fusion_audit.py build FOLDER [--module tensorrt] [--half]

`pairs` writes `RULE-N-before.onnx` and `RULE-N-after.onnx` for every graph on which a rule fires, and
`pairs.json` that names the fusion each rule claims. Graphs whose opset the target does not read are left
out. `build` needs Python and TensorRT alone: it builds every pair, one process a rule, several at once,
spread over the GPUs in CUDA_VISIBLE_DEVICES, and writes `layers.json` (what the engine inspector lists) and
`layers.md`. Pairs that are built are kept in `built/` and not built again; when --limit seconds are over it
writes what it has. Fewer layers is the proof of a fusion, no difference means that TensorRT did it already;
the first part of the table says so rule by rule. Without a GPU, `--module tensorrt_rtx` builds on the CPU,
where the inspector does not run: network layers are counted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PAIRS, LAYERS, TABLE, BUILT = "pairs.json", "layers.json", "layers.md", "built"
_SIZE, _SPATIAL_SIZE = 2, 16
"""What a dynamic axis is built for: the first two of a tensor, and those behind them."""


def write_pairs(folder: Path, target: str) -> None:
    """The graphs before and after, and `pairs.json`."""
    import onnx

    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.rewrite_graphs import FIRES, model
    from trtopt.rewrite.rewrite import rewrite_model
    from trtopt.rewrite.rules import RULES
    from trtopt.targets import target_named

    folder.mkdir(parents=True, exist_ok=True)
    rules = {rule.name: rule for rule in RULES}
    pairs = []
    for number, case in enumerate(FIRES):
        graph, rule = model(case.text, case.opset), rules[case.rule]
        if case.opset > target_named(target).operator_opset:
            continue
        before, after = (folder / f"{case.rule}-{number}-{side}.onnx" for side in ("before", "after"))
        onnx.save(graph, before)
        provable = rule.exactness != "A"
        trace = rewrite_model(before, after, target=target, rules=[case.rule], check=provable)
        if not trace.applied:
            before.unlink()
            after.unlink()
            continue
        pairs.append(
            {
                "rule": case.rule,
                "case": case.name,
                "claims": rule.enables or "cleaning only",
                "files": [before.name, after.name],
                "flags": _precision_flags(graph),
            }
        )
    (folder / PAIRS).write_text(json.dumps({"target": target, "pairs": pairs}, indent=2) + "\n")
    print(f"{len(pairs)} pairs in {folder}")


def _precision_flags(model: Any) -> list[str]:
    """The builder flags that a weakly typed TensorRT needs for the types in the graph."""
    declared = {item.type.tensor_type.elem_type for item in (*model.graph.input, *model.graph.output)}
    half = 10 in declared | {item.data_type for item in model.graph.initializer}  # FLOAT16
    quantised = any(node.op_type == "QuantizeLinear" for node in model.graph.node)
    return [*(["FP16"] if half else []), *(["INT8"] if quantised else [])]


class _Side:
    """Builds engines in this process, with one timing cache: equal layers get equal tactics."""

    def __init__(self, module: str, half: bool, sources: str) -> None:
        self._trt = importlib.import_module(module)
        self._logger = self._trt.Logger(self._trt.Logger.ERROR)
        self._builder = self._trt.Builder(self._logger)
        self._runtime: Any = None
        self._weak = self._trt.__version__.startswith("8.")
        self._half = half
        self._sources = [getattr(self._trt.TacticSource, name) for name in sources.split(",") if name]
        self._cache = b""

    def _network(self) -> Any:
        flags = self._trt.NetworkDefinitionCreationFlag.__members__
        if self._weak:
            return self._builder.create_network(1 << int(flags["EXPLICIT_BATCH"]))
        wanted = self._trt.__version__.startswith("10.") and "STRONGLY_TYPED" in flags
        return self._builder.create_network(1 << int(flags["STRONGLY_TYPED"]) if wanted else 0)

    def build(self, path: Path, flags: list[str]) -> dict[str, Any]:
        """The layers of the network and of the engine, or what went wrong."""
        trt, network, began = self._trt, self._network(), time.monotonic()
        parser = trt.OnnxParser(network, self._logger)
        if not parser.parse(path.read_bytes()):
            return {"error": "; ".join(parser.get_error(i).desc() for i in range(parser.num_errors))}
        config, profile = self._builder.create_builder_config(), self._builder.create_optimization_profile()
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        for flag in sorted({*flags, *(["FP16"] if self._half else [])}) if self._weak else ():
            config.set_flag(getattr(trt.BuilderFlag, flag))
        if self._sources:
            config.set_tactic_sources(sum(1 << int(source) for source in self._sources))
        for index in range(network.num_inputs):
            item = network.get_input(index)
            shape = [
                axis if axis > 0 else _SPATIAL_SIZE if place >= 2 else _SIZE
                for place, axis in enumerate(item.shape)
            ]
            profile.set_shape(item.name, shape, shape, shape)
        config.add_optimization_profile(profile)
        cache = config.create_timing_cache(self._cache)
        config.set_timing_cache(cache, ignore_mismatch=False)
        blob = self._builder.build_serialized_network(network, config)
        if blob is None:
            return {"error": "TensorRT could not build it"}
        self._cache = bytes(cache.serialize())
        seconds = round(time.monotonic() - began, 1)
        return {
            "network_layers": network.num_layers,
            "engine_layers": self._inspect(blob),
            "seconds": seconds,
        }

    def _inspect(self, blob: Any) -> list[dict[str, str]] | None:
        """The engine's layers: name, type and tactic; None where no GPU can load it."""
        trt = self._trt
        try:
            self._runtime = self._runtime or trt.Runtime(self._logger)
            engine = self._runtime.deserialize_cuda_engine(blob)
        except (RuntimeError, TypeError):
            return None
        if engine is None:
            return None
        inspector = engine.create_engine_inspector()
        # 8.6 puts control characters into names as they are
        report = json.loads(inspector.get_engine_information(trt.LayerInformationFormat.JSON), strict=False)
        keys = {"Name": "name", "LayerType": "type", "TacticName": "tactic"}
        return [
            {short: str(layer[key]) for key, short in keys.items() if layer.get(key)}
            if isinstance(layer, dict)
            else {"name": str(layer)}
            for layer in report.get("Layers", [])
        ]


def work(options: argparse.Namespace) -> None:
    """Build the pairs of one rule that are not built yet; a file for each, as soon as it is known."""
    side = _Side(options.module, options.half, options.tactic_sources)
    (options.folder / BUILT).mkdir(exist_ok=True)
    for pair in json.loads((options.folder / PAIRS).read_text())["pairs"]:
        file = _built_file(options.folder, pair)
        if pair["rule"] == options.rule and not file.is_file():
            before, after = (side.build(options.folder / name, pair["flags"]) for name in pair["files"])
            partial = file.with_suffix(".partial")
            partial.write_text(json.dumps({**pair, "before": before, "after": after}))
            partial.replace(file)


def _built_file(folder: Path, pair: dict[str, Any]) -> Path:
    return folder / BUILT / f"{pair['files'][0].removesuffix('-before.onnx')}.json"


def evaluator(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What the rule did to the engine, in words."""
    failed = ["error" in before, "error" in after]
    if any(failed):
        return {(True, False): "builds only after", (False, True): "BUILDS NO MORE"}.get(
            (failed[0], failed[1]), "builds neither way"
        )
    first, second = before["engine_layers"], after["engine_layers"]
    if first is None or second is None:
        return f"network layers {before['network_layers']} → {after['network_layers']}"
    kinds = [Counter(layer.get("type", layer["name"]) for layer in layers) for layers in (first, second)]
    tactics = [Counter(layer.get("tactic", "") for layer in layers) for layers in (first, second)]
    if len(first) != len(second):
        return "fewer layers" if len(second) < len(first) else "more layers"
    if kinds[0] != kinds[1]:
        return "other layers"
    return "no difference" if tactics[0] == tactics[1] else "same layers, other tactics"


def fused(verdicts: Sequence[str]) -> str:
    """What became of a rule's claim, from the verdicts on its pairs."""
    if any(verdict in ("fewer layers", "builds only after") for verdict in verdicts):
        return "yes"
    if any(verdict in ("more layers", "BUILDS NO MORE") for verdict in verdicts):
        return "no: the engine got worse"
    if all(verdict == "no difference" for verdict in verdicts):
        return "TensorRT did it already"
    return "not by the number of layers"


def _run(command: list[str], gpu: str | None, deadline: float) -> str:
    """What stopped a worker, if anything did."""
    here = dict(os.environ, **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}))
    left = deadline - time.monotonic()
    if left <= 0:
        return "not begun: the time was over"
    try:
        done = subprocess.run(command, env=here, capture_output=True, text=True, timeout=left, check=False)
    except subprocess.TimeoutExpired:
        return "stopped: the time was over"
    return "" if not done.returncode else done.stderr.strip()[-300:] or "crashed"


def build_pairs(options: argparse.Namespace) -> None:
    """Build all pairs, several rules at once, and write `layers.json` and `layers.md`."""
    folder, deadline = options.folder, time.monotonic() + options.limit
    listed = json.loads((folder / PAIRS).read_text())
    wanted = [
        pair for pair in listed["pairs"] if not options.rules or pair["rule"] in options.rules.split(",")
    ]
    left = [pair for pair in wanted if not _built_file(folder, pair).is_file()]
    rules = list(dict.fromkeys(pair["rule"] for pair in left))
    gpus: list[str | None] = [*filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))] or [None]

    same = ["--module", options.module, "--tactic-sources", options.tactic_sources]
    same += ["--half"] if options.half else []

    def one(numbered: tuple[int, str]) -> str:
        command = [sys.executable, __file__, "work", str(folder), numbered[1], *same]
        return _run(command, gpus[numbered[0] % len(gpus)], deadline)

    with ThreadPoolExecutor(options.workers or 4 * len(gpus)) as pool:
        stopped = dict(zip(rules, pool.map(one, enumerate(rules)), strict=True))
    files = [file for pair in wanted if (file := _built_file(folder, pair)).is_file()]
    built = [json.loads(file.read_text()) for file in files]
    report = {
        "module": options.module,
        "version": _version(options.module),
        "gpu": _gpu(),
        "half": options.half,
        "target": listed["target"],
        "problems": {rule: problem for rule, problem in stopped.items() if problem},
        "pairs": [{**pair, "verdict": evaluator(pair["before"], pair["after"])} for pair in built],
    }
    (folder / LAYERS).write_text(json.dumps(report, indent=1) + "\n")
    (folder / TABLE).write_text(_table(report))
    print((folder / TABLE).read_text())


def _version(module: str) -> str:
    command = [sys.executable, "-c", f"import {module}; print({module}.__version__)"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _gpu() -> str:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "no GPU"
    return (done.stdout.strip() or "no GPU").splitlines()[0]


def _table(report: dict[str, Any]) -> str:
    half = ", FP16 allowed" if report["half"] else ""
    lines = [
        f"{report['module']} {report['version']}, {report['gpu']}{half}", "",
        *_summary(report["pairs"]), "",
        "| rule | graph | claims | layers before | after | verdict |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for pair in report["pairs"]:
        sides = [_shown(pair[side]) for side in ("before", "after")]
        lines.append(
            " | ".join(["", pair["rule"], pair["case"], pair["claims"], *sides, pair["verdict"], ""]).strip()
        )
    lines += ["", *(f"- {rule}: {problem}" for rule, problem in report["problems"].items())]
    return "\n".join(lines).rstrip() + "\n"


def _summary(pairs: Sequence[dict[str, Any]]) -> list[str]:
    """A row a rule: layers of all its graphs together, and whether it fuses what it claims."""
    lines = ["| rule | graphs | layers before | after | fused as claimed |", "|---|---|---|---|---|"]
    for rule in dict.fromkeys(pair["rule"] for pair in pairs):
        own = [pair for pair in pairs if pair["rule"] == rule]
        sides = [sum(_count(pair[side]) for pair in own) for side in ("before", "after")]
        claim = fused([pair["verdict"] for pair in own])
        claim = "claims none" if own[0]["claims"] == "cleaning only" else claim
        lines.append(f"| {rule} | {len(own)} | {sides[0]} | {sides[1]} | {claim} |")
    return lines


def _count(side: dict[str, Any]) -> int:
    if "error" in side:
        return 0
    layers = side["engine_layers"]
    return side["network_layers"] if layers is None else len(layers)


def _shown(side: dict[str, Any]) -> str:
    if "error" in side:
        return side["error"].replace("|", "/").splitlines()[0][:80]
    layers = side["engine_layers"]
    if layers is None:
        return f"{side['network_layers']} in the network"
    kinds = Counter(layer.get("type", "layer") for layer in layers)
    return f"{len(layers)}: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=["pairs", "build", "work"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("rule", nargs="?", help="for `work`: the rule")
    parser.add_argument("--target", default="8.6")
    parser.add_argument("--module", default="tensorrt")
    parser.add_argument("--half", action="store_true", help="allow FP16 (weakly typed TensorRT alone)")
    parser.add_argument("--tactic-sources", default="", metavar="NAME,NAME", help="[TensorRT's own]")
    parser.add_argument("--rules", default="", metavar="NAME,NAME")
    parser.add_argument("--workers", type=int, default=0, help="processes at once [4 a GPU]")
    parser.add_argument("--limit", type=float, default=540, help="seconds for all of it")
    options = parser.parse_args()
    if options.step == "pairs":
        write_pairs(options.folder, options.target)
    elif options.step == "work":
        work(options)
    else:
        build_pairs(options)


if __name__ == "__main__":
    main()
