"""How often MiniLM finds the same nearest sentence as in FP32: FP16, INT8 by every method, smoothed or not.

    trtopt export minilm -o minilm.onnx
    python benchmarks/minilm/agreement.py minilm.onnx WORK_FOLDER RESULTS.json [CORPUS…]

Everything is calibrated, and searched by `trtopt bisect`, on 128 sentences and tried on 472 others, on ONNX
Runtime with 16-bit arithmetic emulated.
"""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import corpora
import numpy as np
import onnxruntime
from numpy.typing import NDArray

import trtopt
from trtopt.export.source_module import sibling_function
from trtopt.export.spec import files
from trtopt.onnxio.model_file import load
from trtopt.precision.compare import Deviation, decibels, open_model
from trtopt.requests.models import BisectRequest, QuantizeOptions
from trtopt.version import __version__
from trtopt.workflows.precision.bisect import bisect
from trtopt.workflows.precision.quantize import quantize, table_beside

tokenize = sibling_function(files()["minilm"], "minilm.py:tokenize")
agreement = sibling_function(files()["minilm"], "minilm.py:retrieval_agreement")
METHODS = ("max", "percentile-99.99", "percentile-99.999", "mse", "entropy")
AT_ONCE = 32
WANTED_DB = 26.0
KINDS = {
    "query": "*.query/MatMul",
    "key": "*.key/MatMul",
    "value": "*.value/MatMul",
    "attention output": "*.attention.output.dense/MatMul",
    "feed-forward, first": "*.intermediate.dense/MatMul",
    "feed-forward, second": "encoder.layer.?.output.dense/MatMul",
}
EVALUATIONS = 60


def main(model: str, work: str, out: str, *names: str) -> None:
    """Every variant of every corpus; results are kept after each."""
    folder = Path(work)
    folder.mkdir(parents=True, exist_ok=True)
    summary = {
        "date": date.today().isoformat(),
        "trtopt": __version__,
        "onnxruntime": onnxruntime.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "command": "python benchmarks/minilm/agreement.py minilm.onnx WORK_FOLDER RESULTS.json "
        + " ".join(names),
    }
    for name in names or ("docstrings", "topics"):
        summary[name] = _Corpus(name, Path(model), folder).rows
        Path(out).write_text(json.dumps(summary, indent=1) + "\n")


class _Corpus:
    """One corpus, its FP32 embeddings, and a row for each variant."""

    def __init__(self, name: str, model: Path, folder: Path) -> None:
        calibration, self._test = corpora.halves(name)
        self._folder, self._model = folder, model
        self._calib = str(folder / f"{name}.npz")
        np.savez(self._calib, **tokenize(calibration))
        self.rows: list[dict[str, object]] = []
        self._wanted = self._embeddings(model)
        self._half()
        self._bisected()
        for target, smoothing in (("8.6", "off"), ("8.6", "auto"), ("rtx", "auto")):
            self._methods(target, smoothing)
        self._kinds()

    def _kinds(self) -> None:
        """Which layers it is: one kind alone in INT8; and all but the worst, smoothed."""
        plain = QuantizeOptions(
            precision="int8", target="8.6", data=self._calib, method="max", forms="smoothing=off"
        )
        for kind, pattern in KINDS.items():
            others = tuple(other for other in KINDS.values() if other != pattern)
            self._quantised(f"8.6, max, smoothing off, {kind} alone", replace(plain, exclude=others))
        last = KINDS["feed-forward, second"]
        request = QuantizeOptions(
            precision="int8", target="8.6", data=self._calib, method="max", exclude=(last,)
        )
        self._quantised("8.6, max, smoothing auto, without feed-forward, second", request)

    def _half(self) -> None:
        trtopt.cast(self._model, self._out, precision="fp16", data=self._calib, compare=False)
        self._row("FP16", self._out)

    def _methods(self, target: str, smoothing: str) -> None:
        forms = "smoothing=off" if smoothing == "off" else None
        first = QuantizeOptions(precision="int8", target=target, data=self._calib, forms=forms)
        report = self._quantised(f"{target}, auto, smoothing {smoothing}", first)
        table = self._folder / "ranges.json"
        table_beside(self._out).rename(table)
        self.rows[-1]["chosen"] = report
        for method in METHODS if target == "8.6" else ():
            request = QuantizeOptions(precision="int8", target=target, table=table, method=method)
            self._quantised(f"{target}, {method}, smoothing {smoothing}", request)

    def _quantised(self, title: str, request: QuantizeOptions) -> str | None:
        report = quantize(self._model, self._out, request)
        self._row(f"INT8 for {title}", self._out)
        return report.method

    def _bisected(self) -> None:
        request = BisectRequest(
            self._model,
            precision="int8",
            min_sqnr=WANTED_DB,
            calib=self._calib,
            method="max",
            target="8.6",
            backend="onnxruntime",
            max_evaluations=EVALUATIONS,
        )
        found = bisect(request)
        patterns = found.patterns
        again = QuantizeOptions(
            precision="int8", target="8.6", data=self._calib, method="max", exclude=patterns
        )
        self._quantised(f"8.6, max, smoothing auto, without what bisect found for {WANTED_DB:g} dB", again)
        self.rows[-1] |= {
            "excluded": list(patterns),
            "share_of_operations": round(found.best.cost, 3),
            "evaluations": found.evaluations,
        }

    @property
    def _out(self) -> Path:
        return self._folder / "made.onnx"

    def _row(self, title: str, file: Path) -> None:
        found = self._embeddings(file)
        deviation = Deviation("embeddings")
        deviation.add(self._wanted, found)
        row = {
            "variant": title,
            "agreement": round(float(agreement(self._wanted, found, k=1)), 4),
            "sqnr_db": round(decibels(deviation.result()), 2),
        }
        self.rows.append(row)
        print(row, flush=True)

    def _embeddings(self, file: Path) -> NDArray[np.float32]:
        """[472, 384]; sentences of like length run together, so that little is padding."""
        session = open_model(load(file))
        order = sorted(range(len(self._test)), key=lambda index: len(self._test[index]))
        found: dict[int, NDArray[np.float32]] = {}
        for start in range(0, len(order), AT_ONCE):
            part = order[start : start + AT_ONCE]
            vectors = session.run(tokenize([self._test[index] for index in part]))["embedding"]
            found |= dict(zip(part, vectors.astype(np.float32), strict=True))
        return np.stack([found[index] for index in range(len(order))])


if __name__ == "__main__":
    main(*sys.argv[1:])
