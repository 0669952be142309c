"""What lines look like where they are too long for the screen."""

from trtopt.cli.console import wrapped


def test_a_long_line_breaks_between_words_and_keeps_its_columns() -> None:
    assert wrapped("a    b", 6) == ["a    b"]
    assert wrapped("note: no GPU found", 12) == ["note: no GPU", "  found"]
    assert wrapped("  indented", 40) == ["  indented"]
    assert wrapped("pip install onnxruntime-gpu-and-more", 12) == [
        "pip install",
        "  onnxruntime-gpu-and-more",
    ]
    assert wrapped("", 12) == [""]
    assert wrapped("line\nFORGED", 40) == ["line\\nFORGED"]
