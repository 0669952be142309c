from dataclasses import dataclass, field

import pytest
from hypothesis import given, strategies as st

from trtopt.device.tensorrt.progress import PhaseTree, progress_from_log


@dataclass
class Heard:
    """What a progress sink was told."""

    told: list[tuple[str, float | None]] = field(default_factory=list)

    def __call__(self, phase: str, fraction: float | None) -> None:
        self.told.append((phase, fraction))

    @property
    def fractions(self) -> list[float]:
        return [fraction for _, fraction in self.told if fraction is not None]


@dataclass(frozen=True)
class Phase:
    """A phase of so many steps; children begin during the step of their index, before it is done."""

    name: str
    steps: int
    children: tuple[tuple[int, "Phase"], ...] = ()


def play(tree: PhaseTree, phase: Phase, parent: str | None = None) -> None:
    """Tell the tree what TensorRT would tell of a phase."""
    tree.start(phase.name, parent, phase.steps)
    for step in range(phase.steps + 1):
        for during, child in phase.children:
            if min(during, phase.steps) == step:
                play(tree, child, phase.name)
        if step < phase.steps:
            tree.step(phase.name, step)
    tree.finish(phase.name)


def phases(depth: int, path: str) -> st.SearchStrategy[Phase]:
    """Random trees; siblings may share a name, as repeated phases do."""
    names = st.sampled_from([f"{path}a", f"{path}b"])
    if depth == 0:
        return st.builds(Phase, names, st.integers(0, 4))
    children = st.lists(
        st.tuples(st.integers(0, 4), st.deferred(lambda: phases(depth - 1, f"{path}."))), max_size=3
    )
    return st.builds(Phase, names, st.integers(0, 4), children.map(tuple))


# ── a tree of phases ────────────────────────────────────────────────────────────────────────────────────


@given(phases(3, ""))
def test_progress_never_goes_back_and_ends_at_the_whole(root: Phase) -> None:
    heard = Heard()
    play(PhaseTree(heard), root)
    assert heard.fractions == sorted(heard.fractions)
    assert heard.fractions[0] == 0.0
    assert heard.told[-1] == (root.name, 1.0)
    assert len(heard.fractions) == len(heard.told)


@given(st.lists(phases(2, ""), min_size=1, max_size=3))
def test_progress_never_goes_back_however_many_roots_there_are(roots: list[Phase]) -> None:
    heard = Heard()
    tree = PhaseTree(heard)
    for root in roots:
        play(tree, root)
    assert heard.fractions == sorted(heard.fractions)
    assert heard.fractions[-1] == 1.0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["start", "step", "finish"]),
            st.sampled_from("abc"),
            st.sampled_from(["a", "b", "c", None]),
            st.integers(-1, 5),
        ),
        max_size=20,
    )
)
def test_progress_stays_between_nothing_and_the_whole_whatever_is_reported(
    calls: list[tuple[str, str, str | None, int]],
) -> None:
    heard = Heard()
    tree = PhaseTree(heard)
    for what, phase, parent, number in calls:
        if what == "start":
            tree.start(phase, parent, number)
        elif what == "step":
            tree.step(phase, max(0, number))
        else:
            tree.finish(phase)
    assert heard.fractions == sorted(heard.fractions)
    assert all(0.0 <= fraction <= 1.0 for fraction in heard.fractions)


def test_the_steps_of_a_phase_are_equal_parts_of_it() -> None:
    heard = Heard()
    play(PhaseTree(heard), Phase("build", 4))
    assert heard.told == [("build", n / 4) for n in (0, 1, 2, 3, 4, 4)]


def test_a_phase_spans_the_step_of_its_parent_in_which_it_began() -> None:
    heard = Heard()
    inner = Phase("tactics", 4)
    play(PhaseTree(heard), Phase("build", 2, ((0, Phase("parse", 1)), (1, inner))))
    assert heard.told == [
        ("build", 0.0),
        ("parse", 0.0),
        ("parse", 0.5),
        ("parse", 0.5),
        ("build", 0.5),
        ("tactics", 0.5),
        ("tactics", 0.625),
        ("tactics", 0.75),
        ("tactics", 0.875),
        ("tactics", 1.0),
        ("tactics", 1.0),
        ("build", 1.0),
        ("build", 1.0),
    ]


def test_steps_and_ends_of_phases_that_never_began_are_passed_over() -> None:
    heard = Heard()
    tree = PhaseTree(heard)
    tree.step("unknown", 0)
    tree.finish("unknown")
    assert heard.told == []


# ── the log of TensorRT 8.6, which has no progress monitor ──────────────────────────────────────────────


def autotuning(formats: str) -> tuple[str, str]:
    stars = "*" * 15
    return "verbose", f"{stars} Autotuning format combination: {formats} -> {formats} {stars}"


LOG = [
    ("info", "[MemUsageChange] Init CUDA: CPU +13, GPU +0, now: CPU 19, GPU 553 (MiB)"),
    ("verbose", "Original: 76 layers"),
    ("verbose", "After dead-layer removal: 76 layers"),
    ("verbose", "Applying generic optimizations to the graph for inference."),
    ("verbose", "Graph construction and optimization completed in 0.0218 seconds."),
    ("verbose", "=============== Computing reformatting costs"),
    ("verbose", "=============== Computing reformatting costs: "),
    ("verbose", "=============== Computing costs for "),
    autotuning("Float(784,784,28,1)"),
    ("verbose", "--------------- Timing Runner: Conv_0 (CaskConvolution[0x80000009])"),
    ("verbose", "Tactic: 0x0000000000000000 Time: 0.352631"),
    autotuning("Half(784,784,28,1)"),
    ("verbose", "=============== Computing costs for /conv1/Conv"),
    autotuning("Float(12544,1,448,16)"),
    ("verbose", "Formats and tactics selection completed in 2.0371 seconds."),
    ("verbose", "After reformat layers: 2 layers"),
    ("verbose", "Total Activation Memory: 10469376000"),
    ("info", "Engine generation completed in 3.1234 seconds."),
]


def test_the_log_passes_through_unchanged() -> None:
    passed: list[tuple[str, str]] = []
    listen = progress_from_log(lambda severity, text: passed.append((severity, text)), Heard())
    for severity, text in LOG:
        listen(severity, text)
    assert passed == LOG


def test_the_phases_of_a_build_are_told_from_its_log() -> None:
    heard = Heard()
    listen = progress_from_log(lambda severity, text: None, heard)
    for severity, text in LOG:
        listen(severity, text)
    order = list(dict.fromkeys(phase.partition(" (")[0] for phase, _ in heard.told))
    assert order == [
        "Optimizing graph",
        "Timing reformats",
        "Timing tactics",
        "Generating engine",
        "Engine generated",
    ]
    assert {fraction for _, fraction in heard.told} == {None}


def test_as_many_combinations_are_reported_as_were_timed() -> None:
    heard = Heard()
    listen = progress_from_log(lambda severity, text: None, heard)
    for severity, text in LOG:
        listen(severity, text)
    combinations = sum("Autotuning format combination" in text for _, text in LOG)
    assert heard.told[-1] == (f"Engine generated ({combinations} combinations timed)", None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Tactic: 0x0000000000000000 Time: 0.352631",
        "Deleting timing cache: 128 entries, served 0 hits since creation.",
        "CaskConvolution has no valid tactics for this config, skipping",
    ],
)
def test_other_messages_tell_no_progress(text: str) -> None:
    heard = Heard()
    progress_from_log(lambda severity, message: None, heard)("verbose", text)
    assert heard.told == []
