"""How often `trtopt compare` gives which verdict and which exit code when the truth is known.

    python benchmarks/verdict-rates/simulate.py                     # writes the tables into README.md
    python benchmarks/verdict-rates/simulate.py --pairs 10 --no-write

Latencies of about 1 ms are simulated on machines with known noise. Two files: both are written as `trtopt
bench` writes them, and the command itself compares them. In turns: the turns go into the record that the
command makes, and through its evaluation. Needs no GPU.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

os.environ["TRTOPT_CACHE_DIR"] = tempfile.gettempdir() + "/verdict-rates"  # no figure of this machine's own

import coverage
import numpy as np
import peers
import planning
from click.testing import CliRunner
from coverage import states
from numpy.random import RandomState

from trtopt.cli.main import cli
from trtopt.cli.outputs import NOT_MET, NOT_SHOWN
from trtopt.measure.analysis.outcomes import Comparisons
from trtopt.measure.contracts import THRESHOLD, contract_named
from trtopt.measure.statistics.builds import compare_builds
from trtopt.measure.statistics.comparison import Verdict, in_turns
from trtopt.records import (
    Backend,
    BenchPoint,
    BenchReport,
    ClockReading,
    ClockReference,
    DeviceInfo,
    EngineRef,
    Environment,
    InterleavedRun,
    Loading,
    Measurement,
    Samples,
    TurnSamples,
    to_json,
)
from trtopt.workflows.compare.engines import TURNS_LIMIT, evaluate_turns
from trtopt.workflows.race import short_turns

HERE = Path(__file__).resolve().parent
EFFECTS = (0.0, 0.02, 0.05, 0.1, 1.0)
SECONDS = 3.0
SWITCH_QUERIES, LOAD_QUERIES = 20, 100
"""What a switch and a load take, in queries of 1 ms: they pass, and do not count."""

ROUNDS_PER_LOAD = 5
LUCK = 0.003
"""What a run keeps, and each load: the standard deviation of its logarithm, unless a kind says otherwise."""

_RECIPES = 1000

Noise = Callable[[RandomState, int], np.ndarray]


def _bursts(random: RandomState, count: int) -> np.ndarray:
    return coverage.quiet(random, count) * np.where(states(random, count, 4.0, 2.0), 1.4, 1.0)


def _wander(random: RandomState, count: int) -> np.ndarray:
    steps = random.standard_normal(count) * 0.05 / np.sqrt(3000)
    return coverage.quiet(random, count) * np.exp(np.cumsum(steps))


def _pareto(random: RandomState, count: int) -> np.ndarray:
    return coverage.quiet(random, count) * (1 + 0.02 * random.pareto(1.5, count))


def _settling(random: RandomState, count: int) -> np.ndarray:
    return coverage.quiet(random, count) * (1 + 0.05 * np.exp(-np.arange(count) / 1000))


def _slices(random: RandomState, count: int) -> np.ndarray:
    slow = np.where(states(random, count, 0.04, 0.06), 1.6, 1.0)
    return np.exp(0.03 * random.standard_normal(count)) * slow


KINDS: dict[str, tuple[Noise, float]] = {
    **{name: (noise, LUCK) for name, noise in coverage.KINDS.items()},
    "runs and loads differ by 1 %": (coverage.quiet, 0.01),
    "bursts of 2 s, a third of the time, 1.4 times": (_bursts, LUCK),
    "a walk of 5 % in 3 s": (_wander, LUCK),
    "a heavy tail": (_pareto, LUCK),
    "settling by 5 % over a second": (_settling, LUCK),
    "another process, slices of 50 ms, 1.6 times": (_slices, LUCK),
}


@dataclass(frozen=True)
class Outcome:
    """Of one pair: exit codes (`tighter`: of files with 4 %), the verdict in turns, and what peers say."""

    files: int
    tighter: int
    turns: int
    verdict: Verdict
    peers: dict[str, int]

    @property
    def recipe(self) -> int:
        """Files first; where they do not pass, turns decide."""
        return self.turns if self.files else 0

    @property
    def tighter_recipe(self) -> int:
        """The same, with the tighter limit for files."""
        return self.turns if self.tighter else 0


# ── the records ─────────────────────────────────────────────────────────────────────────────────────────

_ENVIRONMENT = Environment(
    device=DeviceInfo(kind="cpu", name="simulated"),
    backend=Backend(name="onnxruntime", version="1"),
    trtopt="0",
    python="3",
    platform="simulated",
    cpu="simulated",
)
_ENGINE = EngineRef(path="batch1.onnx", sha256="0" * 64, label="batch1")
_CONTRACT = contract_named("trtexec-11")


def samples_of(latencies: np.ndarray) -> Samples:
    """Queries one after the other."""
    ends = np.cumsum(latencies)
    starts = np.concatenate([[0.0], ends[:-1]])
    none = [0.0] * len(ends)
    return Samples(
        start_ms=starts.tolist(),
        end_ms=ends.tolist(),
        enqueue_ms=none,
        gpu_compute_ms=[],
        h2d_ms=[],
        d2h_ms=[],
        inference_stream=[0] * len(ends),
    )


def report_of(latencies: np.ndarray) -> BenchReport:
    """A result file of one batch size."""
    pass_ = Measurement(
        mode="latency",
        contract=_CONTRACT,
        engine=_ENGINE,
        batch=1,
        shapes={"x": (1, 4)},
        samples=samples_of(latencies),
        staged=samples_of(latencies),
        warmups=samples_of(latencies[:0]),
        stop_reason="time limit",
    )
    return BenchReport(
        created="2026-01-01T00:00:00+00:00",
        environment=_ENVIRONMENT,
        model_sha256="1" * 64,
        source_sha256="1" * 64,
        points=(BenchPoint(batch=1, latency=pass_),),
    )


def run_of(noise: Noise, luck: float, effect: float, random: RandomState) -> InterleavedRun:
    """A run in turns as the command takes it, every five rounds in a load of their own."""
    rounds = short_turns(SECONDS)
    block = round(SECONDS * 1000 / rounds)
    loads = rounds // ROUNDS_PER_LOAD
    queries = noise(random, 2 * rounds * (block + SWITCH_QUERIES) + loads * LOAD_QUERIES)
    keeps = np.exp(luck * random.standard_normal((loads, 2))) * (1, 1 + effect)
    order = in_turns(2, rounds, random.randint(2**31))
    blocks: tuple[list[Samples], list[Samples]] = ([], [])
    loadings: list[Loading] = []
    at = 0
    for turn, side in enumerate(order):
        number, place = divmod(turn, 2)
        load = number // ROUNDS_PER_LOAD
        if not place and number % ROUNDS_PER_LOAD == 0:
            at += LOAD_QUERIES
            first = int(random.randint(2)) if load % 2 == 0 else 1 - loadings[-1].order[0]
            clock = ClockReading(at_ms=float(at))
            loadings.append(Loading(round=number, order=(first, 1 - first), took_s=0.1, clock=clock))
        at += SWITCH_QUERIES
        blocks[side].append(samples_of(queries[at : at + block] * keeps[load, side]))
        at += block
    turns = tuple(
        TurnSamples(
            name=name, engine=_ENGINE, contract=_CONTRACT, mode="latency", blocks=tuple(own), warmups=()
        )
        for name, own in zip("AB", blocks, strict=True)
    )
    return InterleavedRun(
        purpose="comparison",
        batch=1,
        environment=_ENVIRONMENT,
        turns=turns,
        clocks=(ClockReading(at_ms=0.0),) * (2 * rounds + 1),
        clock_reference=ClockReference(problem="simulated"),
        order=order,
        loadings=tuple(loadings),
    )


# ── one pair ────────────────────────────────────────────────────────────────────────────────────────────


def taken(noise: Noise, luck: float, random: RandomState) -> np.ndarray:
    """The latencies of one run of three seconds."""
    queries = noise(random, round(SECONDS * 1000)) * np.exp(luck * random.standard_normal())
    return queries[: int(np.searchsorted(np.cumsum(queries), SECONDS * 1000)) + 1]


def outcome_of(name: str, effect: float, seed: int, folder: Path) -> Outcome:
    """One pair of engines of which B takes 1 + effect times as long as A."""
    noise, luck = KINDS[name]
    random = RandomState(seed)
    a, b = taken(noise, luck, random), taken(noise, luck, random) * (1 + effect)
    paths = folder / "a.json", folder / "b.json"
    for path, latencies in zip(paths, (a, b), strict=True):
        path.write_bytes(to_json(report_of(latencies), indent=None))

    def code_of(limit: str) -> int:
        command = ["compare", *map(str, paths), "--fail-on", limit]
        return CliRunner().invoke(cli, command, catch_exceptions=False).exit_code

    files = code_of("5%")
    rows, _ = evaluate_turns([run_of(noise, luck, effect, random)], THRESHOLD)
    outcome = Comparisons("A", "B", "simulated", THRESHOLD, TURNS_LIMIT, tuple(rows))
    verdict = rows[0].comparison.verdict
    history = np.array([taken(noise, luck, random).mean() for _ in range(peers.RUNS)])
    return Outcome(
        files=files,
        tighter=files or code_of("4%"),  # what does not rule out 5 % does not rule out 4 %
        turns=NOT_MET if verdict is Verdict.SLOWER else NOT_SHOWN if outcome.not_shown else 0,
        verdict=verdict,
        peers={
            "hyperfine's welch_ttest.py": peers.hyperfine(a, b),
            "criterion": peers.criterion(a, b),
            "benchstat": peers.benchstat(a, b),
            "nvbench robust": peers.nvbench_robust(a, b),
            "bencher": peers.bencher(history, b),
        },
    )


def cell(name: str, effect: float, pairs: int) -> list[Outcome]:
    """Independent pairs of one kind of noise and one effect, seeded by the place in the table."""
    place = list(KINDS).index(name) * len(EFFECTS) + EFFECTS.index(effect)
    with tempfile.TemporaryDirectory() as folder:
        return [outcome_of(name, effect, 10_000 * (place + 1) + pair, Path(folder)) for pair in range(pairs)]


# ── the tables ──────────────────────────────────────────────────────────────────────────────────────────

Cells = dict[tuple[str, float], list[Outcome]]


def _codes(codes: Sequence[int]) -> str:
    counts = Counter(codes)
    assert set(counts) <= {0, 3, 5}, counts
    return " / ".join(f"{100 * counts[code] / len(codes):.3g}" for code in (3, 5, 0))


def _over_kinds(cells: Cells, effect: float, pick: Callable[[Outcome], int]) -> list[int]:
    return [pick(one) for name in KINDS for one in cells[name, effect]]


def gate_table(cells: Cells) -> str:
    """Exit codes 3 / 5 / 0 of the recipe in percent; below, those of all kinds by what is compared."""
    header = " | ".join("no change" if not effect else f"+{effect:.0%}" for effect in EFFECTS)
    lines = [f"| noise | {header} |", "|---|" + "---:|" * len(EFFECTS)]
    for name in KINDS:
        found = " | ".join(_codes([one.recipe for one in cells[name, effect]]) for effect in EFFECTS)
        lines.append(f"| {name} | {found} |")
    picks: tuple[tuple[str, Callable[[Outcome], int]], ...] = (
        ("two files, `--fail-on 5%`", lambda one: one.files),
        ("in turns, `--fail-on 2%`", lambda one: one.turns),
        ("the recipe: files, then turns", lambda one: one.recipe),
        ("the recipe with 4 % for files", lambda one: one.tighter_recipe),
    )
    for title, pick in picks:
        found = " | ".join(_codes(_over_kinds(cells, effect, pick)) for effect in EFFECTS)
        lines.append(f"| **all kinds: {title}** | {found} |")
    return "\n".join(lines)


def winners_table(cells: Cells) -> str:
    """The shares of pairs that get a winner: wrong ones of equal pairs, right ones of regressions."""

    def share(found: Sequence[bool]) -> str:
        return f"{100 * sum(found) / len(found):.3g}"

    def row(title: str, is_winner: Callable[[Outcome], bool], is_slower: Callable[[Outcome], bool]) -> str:
        def over(effect: float, test: Callable[[Outcome], bool]) -> str:
            return share([test(one) for name in KINDS for one in cells[name, effect]])

        found = [over(effect, is_slower) for effect in EFFECTS[1:]]
        return f"| {title} | {over(0.0, is_winner)} | {' | '.join(found)} |"

    header = " | ".join(f"+{effect:.0%} found" for effect in EFFECTS[1:])
    lines = [f"| tool | equal, called different | {header} |", "|---|" + "---:|" * len(EFFECTS)]
    for tool in cells[next(iter(KINDS)), 0.0][0].peers:
        lines.append(
            row(
                tool,
                lambda one, tool=tool: one.peers[tool] != 0,  # type: ignore[misc]
                lambda one, tool=tool: one.peers[tool] > 0,  # type: ignore[misc]
            )
        )
    lines.append(row("trtopt, two files: exit 3", lambda one: one.files == 3, lambda one: one.files == 3))
    decided = (Verdict.FASTER, Verdict.SLOWER)
    lines.append(
        row(
            "trtopt, in turns: FASTER or SLOWER",
            lambda one: one.verdict in decided,
            lambda one: one.verdict is Verdict.SLOWER,
        )
    )
    return "\n".join(lines)


def builds_table() -> str:
    """Verdicts on recipes, as `compare --builds` gives them: each build has a luck, each run σ 0.3 %."""
    effects = EFFECTS[:3]
    header = " | ".join("no change" if not effect else f"+{effect:.0%}" for effect in effects)
    lines = [f"| builds a side | {header} |", "|---|" + "---:|" * len(effects)]
    for place, (builds, between) in enumerate(((2, 0.01), (4, 0.01), (8, 0.01), (4, 0.003))):
        cells = []
        for effect in effects:
            random = RandomState(place)
            luck = between * random.standard_normal((_RECIPES, 2, builds, 1))
            medians = np.exp(luck + 0.003 * random.standard_normal((_RECIPES, 2, builds, 5)))
            medians[:, 1] *= 1 + effect
            found = Counter(compare_builds(a.tolist(), b.tolist()).verdict for a, b in medians)
            cells.append(" / ".join(f"{100 * found[verdict] / _RECIPES:.3g}" for verdict in Verdict))
        lines.append(f"| {builds}, {between:.1%} between builds | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Simulate, print the tables, and write them between README.md's marks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=8, help="of each noise and effect")
    parser.add_argument("--runs", type=int, default=60, help="of the table of coverage")
    parser.add_argument("--plans", type=int, default=4, help="of the table of planning")
    parser.add_argument("--no-write", action="store_true", help="only print")
    arguments = parser.parse_args()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        others = {
            "builds": pool.submit(builds_table),
            "coverage": pool.submit(coverage.table, arguments.runs),
            "planning": pool.submit(planning.table, arguments.plans),
        }
        waiting = {
            (name, effect): pool.submit(cell, name, effect, arguments.pairs)
            for name in KINDS
            for effect in EFFECTS
        }
        cells = {place: one.result() for place, one in waiting.items()}
        tables = {"gate": gate_table(cells), "winners": winners_table(cells)}
        tables |= {name: one.result() for name, one in others.items()}
    print("\n\n".join(tables.values()))
    print(f"{sum(os.times()[:4]):.0f} s of processor time")
    if not arguments.no_write:
        readme = HERE / "README.md"
        readme.write_text(with_tables(readme.read_text("utf-8"), tables), "utf-8")


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """The page with each table between its marks."""
    for name, table in tables.items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        assert mark, f"README.md has no place for the table of {name}"
        text = f"{before}{mark}{table}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return text


if __name__ == "__main__":
    main()
