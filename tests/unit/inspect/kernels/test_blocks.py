"""Names in repeated blocks."""

import pytest

from trtopt.inspect.kernels.blocks import common_names, in_any_block, kernel_of_any_number


@pytest.mark.parametrize(
    ("first", "second", "common"),
    [
        ("/encoder/layer.0/MatMul", "/encoder/layer.11/MatMul", "/encoder/layer.*/MatMul"),
        ("stages.3/layers.1/conv/Conv", "stages.3/layers.2/conv/Conv", "stages.3/layers.*/conv/Conv"),
        ("/blocks/0/Add_1", "/blocks/5/Add_16", "/blocks/*/Add_*"),
        ("same.1/Conv", "same.1/Conv", "same.1/Conv"),
    ],
)
def test_only_numbers_that_differ_are_left_out(first: str, second: str, common: str) -> None:
    assert in_any_block([first]) == in_any_block([second])
    assert common_names([(first, "x"), (second, "x")]) == (common, "x")


def test_numbers_inside_words_are_part_of_the_name() -> None:
    assert in_any_block(["conv2d/MatMul"]) != in_any_block(["conv3d/MatMul"])


def test_generated_kernels_lose_their_number_and_others_keep_theirs() -> None:
    assert kernel_of_any_number("mha11") == "mha*"
    assert kernel_of_any_number("__myl_bb0_36_DivCasErf") == "__myl_bb*_DivCasErf"
    assert kernel_of_any_number("sm80_xmma_gemm_tilesize64x64x32") == "sm80_xmma_gemm_tilesize64x64x32"
