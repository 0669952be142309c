"""What the name of a kernel says: its family, its type, the tile of a product, and tensor cores.

Nothing else is known of NVIDIA's kernels. What the name does not say stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from trtopt.records import KernelFamily


@dataclass(frozen=True)
class KernelTraits:
    """`dtype` is a NumPy name, of the operands; `tile` has two or three sizes, or none.

    `steps` are the operators that TensorRT's graph compiler fused, by the three letters that it writes.
    """

    family: KernelFamily
    dtype: str = ""
    tile: tuple[int, ...] = ()
    tensor_cores: bool | None = None
    steps: frozenset[str] = frozenset()


_SIGNS: dict[KernelFamily, str] = {
    "split-k": r"split_?k_?reduce|splitreduce|_split_k_kernel",
    "attention": r"mha|multihead|flash_?att|attention",
    "product": r"gemm|gemv|xmma_(?:fprop|dgrad)|fprop|conv(?!ert)|scudnn|cudnn_.*mma|winograd|wgmma|_fc_",
    "softmax": r"softmax|__myl_\w*Sof",
    "normalisation": r"(?:layer|batch|instance|group|rms)_?norm|__myl_\w*MeaSub",
    "pooling": r"pool",
    "reformat": r"reformat|permut|transpose|shuffle|copyPacked|copyVectorized|nchwTo|nhwcTo"
    r"|nchw.*nhwc_kernel",
    "reduction": r"reduc",
    "pointwise": r"pointwise|elementwise|generatedNative|__myl|activation|scale_?kernel",
}
"""Of several the first row counts."""
_FAMILIES = {family: re.compile(sign, re.IGNORECASE) for family, sign in _SIGNS.items()}
_START, _END = r"(?:^|[_<, ])", r"(?=$|[_<>, \d])"
_TYPES = {
    "float8_e4m3fn": re.compile(r"e4m3|fp8"),
    "int8": re.compile(rf"{_START}(?:i8(?:i8|f16|f32)?|int8|imma\w*|s8|i16832\w*|i8816\w*){_END}"),
    "bfloat16": re.compile(r"bf16|nv_bfloat16"),
    "float16": re.compile(
        rf"{_START}(?:f16f16|f16|fp16|hmma)|h(?:884|1688|16816)(?:gemm|cudnn)|__half|_f2f_"
    ),
    "float32": re.compile(rf"{_START}(?:f32f32|f32|fp32|sgemm|scudnn)|tf32|\bfloat\b"),
}
"""Of several types in a name the first row counts: products in narrow types add up in wider ones."""
_TENSOR = re.compile(
    r"tensor\d+x\d+x\d+|tensorop|hmma|imma|qmma|wgmma|[hsi](?:884|1688|16816|16832|8816)\w*(?:gemm|cudnn)|gmma",
    re.IGNORECASE,
)
_NO_TENSOR = re.compile(r"simt|sgemm|scudnn|ffma|gemv|gemvx", re.IGNORECASE)
_TILE = re.compile(r"tilesize(\d+)x(\d+)x(\d+)|(?<![\dx])(\d{2,3})x(\d{2,3})(?:x(\d{1,3}))?(?![\dx])")
_STEPS = re.compile(r"^__myl_bb\d+_\d+_((?:[A-Z][a-z]{1,2})+)$")


def type_in(name: str) -> str:
    """The type of the operands that a kernel or a tactic is named after; empty where none is."""
    return next((dtype for dtype, sign in _TYPES.items() if sign.search(name)), "")


def read_name(name: str) -> KernelTraits:
    """The traits of a kernel by its name, mangled or not."""
    family: KernelFamily = next((family for family, sign in _FAMILIES.items() if sign.search(name)), "other")
    dtype = type_in(name)
    if family not in ("product", "attention"):
        match = _STEPS.match(name)
        steps = frozenset(re.findall(r"[A-Z][a-z]{1,2}", match[1])) if match else frozenset()
        return KernelTraits(family, dtype, steps=steps)
    match = _TILE.search(name)
    tile = tuple(int(size) for size in match.groups() if size is not None) if match else ()
    tensor: bool | None = True if _TENSOR.search(name) else False if _NO_TENSOR.search(name) else None
    return KernelTraits(family, dtype, tile, tensor)


# Names in repeated blocks, as those of a transformer: `/layer.0/MatMul` and `/layer.1/MatMul`.


_NUMBER = re.compile(r"(?<=[./_])\d+(?=[./]|$)")
_GENERATED = re.compile(r"^(mha|__myl_bb)\d+(?:_\d+)?")
ANY = "*"


def in_any_block(names: Sequence[str]) -> tuple[str, ...]:
    """The names without the numbers of blocks: the same for the same node of each block."""
    return tuple(_NUMBER.sub(ANY, name) for name in names)


def common_names(members: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Names that are the same `in_any_block`, with the numbers in which they differ left out."""
    return tuple(_common(names) for names in zip(*members, strict=True))


def _common(names: Sequence[str]) -> str:
    numbers = zip(*(_NUMBER.findall(name) for name in names), strict=True)
    kept = iter([own[0] if len(set(own)) == 1 else ANY for own in numbers])
    return _NUMBER.sub(lambda _: next(kept), names[0])


def kernel_of_any_number(name: str) -> str:
    """The name of a kernel without the number that TensorRT's graph compiler gives to each it generates."""
    return _GENERATED.sub(rf"\1{ANY}", name)
