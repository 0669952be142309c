"""What `make house` counts."""

from pathlib import Path

import pytest

from tests.support.house import PAGE, Touched, last_row, mirrored_pairs, seconds_of, touched

NAMES = {"the_probe": "made_up", "the-probe": "made-up", "the probe": "made up"}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "the_probe.py").write_text('"""The probe."""\n')
    (tmp_path / "other.py").write_text(
        "from p import the_probe\n"
        'X = the_probe.max_the_probe("--the-probe", "the probe")\nY = "see the_probe here"\n'
        "the_probes = 1\n"
    )
    return tmp_path


def test_names_options_labels_and_files_are_places_and_prose_is_none(package: Path) -> None:
    assert touched(package, NAMES) == Touched(lines=2, files=2)
    assert (package / "made_up.py").is_file()
    assert (package / "other.py").read_text() == (
        "from p import made_up\n"
        'X = made_up.max_made_up("--made-up", "made up")\nY = "see the_probe here"\n'
        "the_probes = 1\n"
    )


def test_declarations_that_share_six_names_are_a_pair(tmp_path: Path) -> None:
    fields = "abcdef"
    record = "class R:\n" + "".join(f"    {name}: int\n" for name in fields)
    functions = f"def f(self, {', '.join(fields)}): ...\ndef g(*, {', '.join(fields[:5])}): ...\n"
    (tmp_path / "m.py").write_text(record + functions)
    assert mirrored_pairs(tmp_path) == 1


def test_seconds_are_added_up_by_folder(tmp_path: Path) -> None:
    cases = [("tests.unit.serving.test_a", 1.5), ("tests.unit.serving.test_b", 1), ("tests.cpu.test_c", 4)]
    rows = "".join(f'<testcase classname="{name}" time="{time}"/>' for name, time in cases)
    (tmp_path / "durations.xml").write_text(f"<testsuites><testsuite>{rows}</testsuite></testsuites>")
    assert seconds_of(tmp_path / "durations.xml") == {"tests/unit/serving": 2.5, "tests/cpu": 4}
    assert not seconds_of(tmp_path / "none.xml")


def test_the_pages_last_row_has_a_figure_under_each_heading() -> None:
    row = last_row(PAGE.read_text("utf-8"))
    assert row["date"] > "2026"
    assert int(row["lines"].replace(",", "")) > 0
