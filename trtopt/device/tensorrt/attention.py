"""Attention that the parser keeps whole: ONNX's Attention becomes an IAttention, from TensorRT 10.14 on."""

from __future__ import annotations

from typing import Any


def allow_decomposing(trt: Any, network: Any) -> int:
    """Let attention without a fused kernel run as several; returns how many the network has.

    Unless this is set TensorRT refuses to build an IAttention that no fused kernel fits ("Attention operation
    was not supported by a dedicated kernel": FP32, and heads of 4, 8 or 512, seen on TensorRT-RTX 1.7). Where
    one fits it is still taken (the documentation of `IAttention`).
    """
    whole = getattr(trt, "IAttentionInputLayer", None)
    found = 0
    for layer in map(network.get_layer, range(network.num_layers)) if whole is not None else ():
        if layer.type.name == "ATTENTION_INPUT":
            layer.__class__ = whole  # `get_layer` gives the base class
            layer.attention.decomposable = True
            found += 1
    return found
