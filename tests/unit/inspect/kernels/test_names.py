"""What names of TensorRT's, cuBLAS's and cuDNN's kernels say."""

import pytest

from trtopt.inspect.kernels.names import (
    KernelTraits,
    common_names,
    in_any_block,
    kernel_of_any_number,
    read_name,
)

XMMA = "sm80_xmma_gemm_f16f16_f16f16_f16_tn_n_tilesize128x64x32_stage5_warpsize2x2x1_tensor16x8x16_kernel"
INT8_CONV = (
    "sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_nchw_vect_c_32kcrs_vect_c_32_nchw_vect_c_32_"
    "tilesize96x64x64_stage3_warpsize2x2x1_g1_tensor16x8x32_t1r3s3_kernel"
)


@pytest.mark.parametrize(
    ("name", "traits"),
    [
        (XMMA, KernelTraits("product", "float16", (128, 64, 32), tensor_cores=True)),
        (INT8_CONV, KernelTraits("product", "int8", (96, 64, 64), tensor_cores=True)),
        (
            "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_64x3_tn",
            KernelTraits("product", "float16", (128, 128), tensor_cores=True),
        ),
        ("volta_sgemm_128x64_nn", KernelTraits("product", "float32", (128, 64), tensor_cores=False)),
        (
            "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x64x16_stage3_warpsize2x2x1_tensor16x8x8_kernel",
            KernelTraits("product", "float32", (64, 64, 16), tensor_cores=True),
        ),
        (
            "cutlass_80_tensorop_i16832gemm_s8_128x64_64x4_tn_align16",
            KernelTraits("product", "int8", (128, 64), tensor_cores=True),
        ),
        ("fmha_v2_flash_attention_fp16_64_32_S_64_sm80_kernel", KernelTraits("attention", "float16")),
        (
            "void cublasLt::splitKreduce_kernel<32, 16, int, float, __half>(cublasLt::cublasSplitKParams)",
            KernelTraits("split-k", "float16"),
        ),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_"
            "execute_split_k_kernel_trt",
            KernelTraits("split-k", "float32"),
        ),
        (
            "sm90_xmma_gemm_i8f32_i8i32_f32_tn_n_tilesize128x128x128_cgasize1x2x1_warpgroupsize1x1x1_beta0_"
            "execute_segment_k_off_kernel_trt",
            KernelTraits("product", "int8", (128, 128, 128)),
        ),
        ("void cuInt8::nchwToNcqhw4<float>()", KernelTraits("reformat", "float32")),
        ("generatedNativePointwise", KernelTraits("pointwise")),
        ("cuSoftmaxKernel", KernelTraits("softmax")),
        ("_layernorm_fp16_", KernelTraits("normalisation", "float16")),
        ("some_kernel_3", KernelTraits("other")),
    ],
)
def test_a_name_says_the_family_the_type_the_tile_and_tensor_cores(name: str, traits: KernelTraits) -> None:
    found = read_name(name)
    assert (found.family, found.dtype) == (traits.family, traits.dtype)
    if traits.family == "product":
        assert found == traits


def test_what_a_name_does_not_say_is_unknown() -> None:
    assert read_name("my_gemm") == KernelTraits("product", "", (), None)


# Names in repeated blocks.


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
