"""How often `trtopt compare` gives which verdict when the truth is known.

    python benchmarks/verdict-rates/simulate.py        # writes README.md and rates.json beside itself

Latencies are simulated: log-normal with autocorrelation (AR(1) on the logarithm), occasional spikes, a slow
wander that both sides share, a disturbance that comes back every few blocks, and an offset a run that they
do not share. Every pair goes through the same functions as real measurements. Needs no GPU; takes some
minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from trtopt.measure.statistics.builds import compare_builds
from trtopt.measure.statistics.comparison import (
    RUN_BLOCKS,
    Noise,
    Ratio,
    Verdict,
    blocks_of,
    compare,
    decide,
    in_turns,
)

EFFECTS = (0.0, 0.01, 0.02, 0.05)
BLOCKS, BLOCK_LENGTH = RUN_BLOCKS, 100
PERIODS = (2, 3, 4, 5, 8)
UNALLOWED = "separate runs, each its own luck, none allowed for"
COLUMNS = (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME, Verdict.UNDECIDED)


@dataclass(frozen=True)
class Machine:
    """`sigma`: standard deviation of the log latency; `phi`: correlation of neighbours; `wander`: standard
    deviation of a random walk over the whole session, felt by both sides; `run_offset`: of what differs
    between separate runs of the same engine; `place`: of what a load keeps; `second`: by how much what is
    loaded second is slower. `drift`: by how much all gets slower over the session. A `beat`
    of 10 % comes back every so many blocks, beginning anywhere: as a sine, or, `switched`, in one half of
    the period."""

    name: str
    sigma: float
    phi: float
    spikes: float = 0.0
    wander: float = 0.0
    run_offset: float = 0.0
    drift: float = 0.0
    place: float = 0.0
    second: float = 0.0
    beat: int = 0
    switched: bool = False


MACHINES = (
    Machine("quiet", sigma=0.01, phi=0.3, spikes=0.001),
    Machine("usual", sigma=0.03, phi=0.8, spikes=0.005),
    Machine("sticky", sigma=0.03, phi=0.98, spikes=0.005),
    Machine("noisy", sigma=0.10, phi=0.9, spikes=0.02),
    Machine("wandering", sigma=0.03, phi=0.8, spikes=0.005, wander=0.05),
)
MOVING = (
    Machine("drifting", sigma=0.01, phi=0.3, spikes=0.001, drift=0.2),
    *(
        Machine(
            f"quiet, {'switched' if switched else 'beating'} every {period} blocks",
            sigma=0.01,
            phi=0.3,
            spikes=0.001,
            beat=period,
            switched=switched,
        )
        for switched in (False, True)
        for period in PERIODS
    ),
)
SEPARATE = (
    Machine("usual, separate runs", sigma=0.03, phi=0.8, spikes=0.005),
    Machine("separate runs, each its own luck", sigma=0.03, phi=0.8, spikes=0.005, run_offset=0.01),
)


def latencies(machine: Machine, count: int, pairs: int, random: np.random.RandomState) -> np.ndarray:
    """`count` successive latencies of about 1 ms, a column for each of `pairs` sessions."""
    noise = random.standard_normal((count, pairs)) * np.sqrt(1 - machine.phi**2)
    logs = np.empty((count, pairs))
    logs[0] = random.standard_normal(pairs)
    for index in range(1, count):
        logs[index] = machine.phi * logs[index - 1] + noise[index]
    logs *= machine.sigma
    if machine.wander:
        logs += np.cumsum(random.standard_normal((count, pairs)), axis=0) * machine.wander / np.sqrt(count)
    spiked = random.random_sample((count, pairs)) < machine.spikes
    return np.exp(logs) * np.where(spiked, 1.5 + random.standard_exponential((count, pairs)), 1.0)


PLACED = (
    Machine("quiet, loads differ by 1%", sigma=0.01, phi=0.3, spikes=0.001, place=0.01),
    Machine("quiet, loads differ by 2%", sigma=0.01, phi=0.3, spikes=0.001, place=0.02),
    Machine("usual, loads differ by 1%", sigma=0.03, phi=0.8, spikes=0.005, place=0.01),
    Machine("quiet, the second is 1.6% slower", 0.01, 0.3, 0.001, place=0.002, second=0.016),
)
LOADS = (20, 8, 4)
UNCOUNTED = "loaded once, and blocks taken for independent"


def interleaved_rates(
    machine: Machine, effect: float, pairs: int, seed: int, loads: int | None = None
) -> Counter[Verdict]:
    """Verdicts over `pairs` sessions of blocks in turns, in which B's latency is (1 + effect) times A's.

    Each session has an order of its own, as each run has. With `loads` the blocks are of so many loads; of
    one all blocks are taken for independent, as they were before.
    """
    random = np.random.RandomState(seed)
    session = latencies(machine, 2 * BLOCKS * BLOCK_LENGTH, pairs, random)
    blocks = session.reshape(2 * BLOCKS, BLOCK_LENGTH, pairs) * common(machine, pairs, random)
    counts: Counter[Verdict] = Counter()
    for index in range(pairs):
        is_b = np.array(in_turns(2, BLOCKS, seed * pairs + index)) == 1
        one = blocks[:, :, index]
        a, b = one[~is_b], one[is_b] * (1 + effect)
        of_load = None
        if loads is not None:
            numbers = [block * loads // BLOCKS for block in range(BLOCKS)]
            places = _places(machine, loads, random)
            a, b = a * places[0][numbers], b * places[1][numbers]
            of_load = numbers if loads > 1 else None
        counts[compare(a.tolist(), b.tolist(), loads=of_load).verdict] += 1
    return counts


def _places(machine: Machine, loads: int, random: np.random.RandomState) -> np.ndarray:
    """The factor that each load keeps: [side, load, 1]. Every second load is in the reverse order."""
    logs = machine.place * random.standard_normal((2, loads))
    drawn = random.randint(2, size=(loads + 1) // 2)
    for load in range(loads):
        logs[drawn[load // 2] ^ (load % 2), load] += machine.second
    return np.exp(logs)[:, :, None]


def common(machine: Machine, pairs: int, random: np.random.RandomState) -> np.ndarray:
    """By how much each block is slower whoever runs in it: [block, 1, pair]."""
    block = np.arange(2 * BLOCKS)[:, None, None]
    factor = 1 + machine.drift * block / (2 * BLOCKS) * np.ones((1, 1, pairs))
    if machine.beat:
        phase = (block + random.randint(machine.beat, size=pairs)) % machine.beat / machine.beat
        factor *= 1 + 0.1 * ((phase < 0.5) if machine.switched else np.sin(2 * np.pi * phase + 0.3))
    return factor


def separate_rates(
    machine: Machine, effect: float, pairs: int, seed: int, noise: Noise | None = None
) -> Counter[Verdict]:
    """Verdicts on two runs taken one after the other and read from files."""
    random = np.random.RandomState(seed)
    a, b = (latencies(machine, BLOCKS * BLOCK_LENGTH, pairs, random) for _ in range(2))
    a = a * np.exp(machine.run_offset * random.standard_normal(pairs))
    b = b * np.exp(machine.run_offset * random.standard_normal(pairs)) * (1 + effect)
    return Counter(
        compare(
            blocks_of(a[:, i].tolist()), blocks_of(b[:, i].tolist()), interleaved=False, noise=noise
        ).verdict
        for i in range(pairs)
    )


def build_rates(
    builds: int, runs: int, between: float, effect: float, pairs: int, seed: int
) -> Counter[Verdict]:
    """Verdicts on recipes: log medians with a build's luck (`between`) and a run's noise of 0.3 %."""
    random = np.random.RandomState(seed)
    luck = between * random.standard_normal((pairs, 2, builds, 1))
    medians = np.exp(luck + 0.003 * random.standard_normal((pairs, 2, builds, runs)))
    medians[:, 1] *= 1 + effect
    return Counter(compare_builds(a.tolist(), b.tolist()).comparison.verdict for a, b in medians)


def all_rates(pairs: int) -> list[dict[str, object]]:
    """Every row of the table; the seed is the row's number."""
    rows: list[dict[str, object]] = []

    def add(name: str, effect: float, counts: Counter[Verdict]) -> None:
        rows.append({"case": name, "effect": effect, **{v.value: counts[v] for v in COLUMNS}})

    for machine in MACHINES:
        for effect in EFFECTS:
            add(machine.name, effect, interleaved_rates(machine, effect, pairs, len(rows)))
    for machine in SEPARATE:
        for effect in EFFECTS:
            add(machine.name, effect, separate_rates(machine, effect, pairs, len(rows)))
    for builds, runs, between in ((2, 5, 0.01), (4, 5, 0.01), (8, 5, 0.01), (4, 5, 0.003)):
        for effect in EFFECTS:
            name = f"{builds} builds × {runs} runs, {between:.1%} between builds"
            add(name, effect, build_rates(builds, runs, between, effect, pairs, len(rows)))
    silent = Noise(0.0, decide(Ratio.of_log(0.0, 0.0, 0.0), 0.01))
    add(UNALLOWED, 0.0, separate_rates(SEPARATE[1], 0.0, pairs, len(rows), silent))
    for machine in PLACED:
        add(f"{machine.name}, {UNCOUNTED}", 0.0, interleaved_rates(machine, 0.0, pairs, len(rows), 1))
        for loads in LOADS:
            for effect in EFFECTS:
                counts = interleaved_rates(machine, effect, pairs, len(rows), loads)
                add(f"{machine.name}, {loads} loads", effect, counts)
    for machine in MOVING:
        add(machine.name, 0.0, interleaved_rates(machine, 0.0, pairs, len(rows)))
    return rows


def table(rows: list[dict[str, object]]) -> str:
    """Markdown."""
    lines = ["| case | true effect | FASTER | SLOWER | SAME | UNDECIDED |", "|---|---:|---:|---:|---:|---:|"]
    for row in rows:
        counts = " | ".join(str(row[verdict.value]) for verdict in COLUMNS)
        lines.append(f"| {row['case']} | {row['effect']:.0%} | {counts} |")
    return "\n".join(lines)


def main() -> None:
    """Simulate, print the table, and write it between README.md's marks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--no-write", action="store_true", help="only print")
    arguments = parser.parse_args()
    rows = all_rates(arguments.pairs)
    print(table(rows))
    if arguments.no_write:
        return
    here = Path(__file__).resolve().parent
    result = {
        "pairs": arguments.pairs,
        "blocks_a_side": BLOCKS,
        "block_length": BLOCK_LENGTH,
        "machines": [asdict(machine) for machine in (*MACHINES, *SEPARATE, *PLACED, *MOVING)],
        "numpy": np.__version__,
        "python": platform.python_version(),
        "rows": rows,
    }
    (here / "rates.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    readme = here / "README.md"
    before, _, rest = readme.read_text("utf-8").partition("<!-- table -->\n")
    _, _, after = rest.partition("<!-- end of table -->")
    readme.write_text(f"{before}<!-- table -->\n{table(rows)}\n<!-- end of table -->{after}", "utf-8")


if __name__ == "__main__":
    main()
