"""How good the predictor of `trtopt tune` is: ledgers on ONNX Runtime, replayed without each model.

    python predictor.py run --models FOLDER --work WORK --budget 1500
    python predictor.py replay

`run` tunes every model of `CELLS` that FOLDER holds, each learning from those before, and keeps what is done:
run it again and it goes on. `replay` predicts every outcome of the ledgers in `ledgers/` again, from those of
all other models and from what its own ledger lists before it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import correlation, fmean
from typing import Any

import msgspec
import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "shared"))
from cells import ROOT, FailedError, OutOfTimeError, run_python

sys.path.insert(0, str(ROOT))
from trtopt.records import LedgerEntry
from trtopt.workflows.tune.kinds import KINDS, Prediction
from trtopt.workflows.tune.tune import predict
from trtopt.workflows.tune.tuned_folder import LEDGER, read_ledger

LEDGERS = Path(__file__).resolve().parent / "ledgers"
BUDGET_S = 240
"""What a cell may spend."""
NO_LONGER_TRIED = Prediction(0.05, 0.4)
"""A first guess for regions, which the ledgers hold."""


class StoredEntry(LedgerEntry, frozen=True, kw_only=True):
    """A candidate, also of a kind that is no longer tried."""

    kind: str


class StoredLedger(msgspec.Struct, frozen=True):
    """What is replayed of a ledger, of whatever version."""

    model: str
    entries: tuple[StoredEntry, ...]


@dataclass(frozen=True)
class Cell:
    """A model's file without `.onnx`, batch sizes (the baseline's first), and shapes that it leaves open."""

    model: str
    batches: str = "1"
    objective: str = "latency"
    shapes: tuple[tuple[str, str], ...] = ()
    samples: int = 32

    @property
    def name(self) -> str:
        """Of its folder and its ledger."""
        return self.model if self.objective == "latency" else f"{self.model}-{self.objective}"


CELLS = (
    Cell("digits", "8"),
    Cell("digits_transformer", "8"),
    Cell("rnnt-joint", "8"),
    Cell("digits", "1,8,32", "throughput"),
    Cell("rnnt-prediction", "8"),
    Cell(
        "silero-silero_vad_16k_op15", shapes=(("input", "Nx512"), ("state", "2xNx128")), samples=1
    ),  # its batch is not everywhere the first axis
    Cell("efficientnet-b0"),
    Cell("rapidocr-ch_ppocr_mobile_v2.0_cls_infer", shapes=(("x", "Nx3x48x192"),)),
    Cell("livekit-embedding_model", "8"),
    Cell("opennsfw-open-nsfw"),
)


def main() -> None:
    """Tune for as long as the budget lasts, or replay what there is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=["run", "replay"])
    parser.add_argument("--models", type=Path, help="the ONNX files, by the names in CELLS")
    parser.add_argument("--work", type=Path, help="samples, build folders and ledgers: keep it to go on")
    parser.add_argument("--budget", type=float, default=1500.0, help="seconds of this call")
    parser.add_argument("--ledgers", type=Path, default=LEDGERS, help="what to replay [default: ledgers/]")
    args = parser.parse_args()
    if args.step == "replay":
        replay(sorted(args.ledgers.glob("*.json")))
        return
    if args.models is None or args.work is None:
        parser.error("run: --models and --work are needed")
    args.work.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + args.budget
    for cell in CELLS:
        print(f"{cell.name}: {tuned(cell, args.models, args.work, end)}", flush=True)


def tuned(cell: Cell, models: Path, work: Path, end: float) -> str:
    """Begin or continue a cell; what came of it."""
    done, model = work / f"{cell.name}.json", models / f"{cell.model}.onnx"
    if done.is_file():
        return "done before"
    if not model.is_file():
        return f"no {model}"
    samples = models / f"{cell.model}.npz"
    if not samples.is_file():
        samples = work / f"{cell.name}.npz"
        np.savez(samples, **random_samples(model, cell))
    recipe = work / f"{cell.name}.toml"
    recipe.write_text("[shapes]\n" + "".join(f'"{name}" = "{shape}"\n' for name, shape in cell.shapes))
    words: list[object] = ["-m", "trtopt", "tune", model, "-o", work / cell.name, "--resume"]
    words += ["--backend", "onnxruntime", "--recipe", recipe, "--data", samples, "--min-cosine", "0.99"]
    words += ["--batch", cell.batches, "--objective", cell.objective, "--duration", "0.5"]
    words += ["--budget", f"{BUDGET_S}s", "--cache-dir", work / "cache", "--json", done]
    try:
        run_python(cell.name, words, max(1.0, end - time.monotonic()))
    except (OutOfTimeError, FailedError) as error:
        return str(error) or "the budget is over"
    return f"{len(read_ledger(work / cell.name / LEDGER).entries)} candidates"


def random_samples(model: Path, cell: Cell) -> dict[str, Any]:
    """Seeded; integers below 16, which every vocabulary here admits."""
    rng, found, shapes = np.random.default_rng(0), {}, dict(cell.shapes)
    for one in onnx.load(model).graph.input:
        tensor = one.type.tensor_type
        given = [axis.dim_value or cell.samples for axis in tensor.shape.dim]
        if one.name in shapes:
            given = [cell.samples if axis == "N" else int(axis) for axis in shapes[one.name].split("x")]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if not given:
            found[one.name] = np.asarray(16000, dtype)  # the sampling rate
        elif dtype.kind == "f":
            found[one.name] = rng.random(given).astype(dtype)
        else:
            found[one.name] = rng.integers(0, 16, given).astype(dtype)
    return found


def replay(files: list[Path]) -> None:
    """Print the score of predictions that know nothing of the model."""
    ledgers = [msgspec.json.decode(file.read_bytes(), type=StoredLedger) for file in files]
    again = [
        msgspec.structs.replace(
            one, entries=predicted(one, [other for other in ledgers if other.model != one.model])
        )
        for one in ledgers
    ]
    entries = [entry for ledger in again for entry in ledger.entries]
    print("| kind | measured | accepted | mean absolute error | rank correlation |\n|---|--:|--:|--:|--:|")
    for name in (*(kind.name for kind in KINDS), "all"):
        own = [one for one in entries if name in (one.kind, "all")]
        if measured := [one for one in own if one.measured_gain is not None]:
            print(score(name, measured))


def score(name: str, measured: Sequence[LedgerEntry]) -> str:
    """A row of the table: how good the predictions of measured candidates were."""
    expected = [entry.expected_gain for entry in measured]
    gains = [entry.measured_gain or 0.0 for entry in measured]
    brought = [entry.measured_gain or 0.0 if entry.verdict == "accepted" else 0.0 for entry in measured]
    accepted = sum(entry.verdict == "accepted" for entry in measured)
    error = fmean(abs(a - b) for a, b in zip(expected, brought, strict=True))
    rank = rank_correlation(expected, gains)
    told = "–" if rank is None else f"{rank:+.2f}"
    return f"| {name} | {len(measured)} | {accepted} | {error:.2%} | {told} |".replace("%", " %")


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's; None of fewer than three, or where all are equal."""
    if len(a) < 3 or len({*a}) == 1 or len({*b}) == 1:
        return None
    return correlation(ranks(a), ranks(b))


def ranks(values: Sequence[float]) -> list[float]:
    """Equal ones share their mean."""
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2
        for value in values
    ]


def predicted(ledger: StoredLedger, others: list[StoredLedger]) -> tuple[StoredEntry, ...]:
    """A ledger's entries with predictions from the other ledgers and the entries before each."""
    guesses = {kind.name: kind.guess for kind in KINDS} | {"region": NO_LONGER_TRIED}
    known, found = [entry for other in others for entry in other.entries], []
    for entry in ledger.entries:
        past = [one for one in known if one.kind == entry.kind]
        made = predict(entry.candidate, guesses[entry.kind], past)
        found.append(msgspec.structs.replace(entry, predicted_gain=made.gain, probability=made.probability))
        known.append(entry)
    return tuple(found)


if __name__ == "__main__":
    main()
