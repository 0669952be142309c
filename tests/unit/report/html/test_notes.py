"""Findings of several batch sizes as few lines."""

from __future__ import annotations

from trtopt.report.html.notes import grouped


def test_texts_that_differ_only_in_figures_are_one_line_with_their_ranges() -> None:
    found = [
        (1, "unstable: 812.8%, over 2.5%"),
        (8, "unstable: 571.4%, over 2.5%"),
        (32, "unstable: 1,235.5%, over 2.5%"),
    ]
    assert grouped(found) == ["batches 1, 8, 32: unstable: 571.4 to 1,235.5%, over 2.5%"]


def test_other_texts_keep_lines_of_their_own_in_the_order_in_which_they_came() -> None:
    assert grouped([(8, "too hot"), (8, "drifted by +1.5%"), (32, "too hot"), (8, "too hot")]) == [
        "batches 8, 32: too hot",
        "batch 8: drifted by +1.5%",
    ]


def test_digits_within_words_are_no_figures() -> None:
    """Layers and types differ by their digits: they must not be merged."""
    assert grouped([(1, "conv1 in float16"), (8, "conv2 in float16")]) == [
        "batch 1: conv1 in float16",
        "batch 8: conv2 in float16",
    ]


def test_figures_are_ordered_by_value_and_keep_their_signs() -> None:
    assert grouped([(1, "by +10.0 ms"), (2, "by -9.0 ms")]) == ["batches 1, 2: by -9.0 to +10.0 ms"]
