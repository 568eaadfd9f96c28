"""Tells reads of routed experts from reads of weights that every step needs: no window knows what a router chooses."""

from __future__ import annotations

import re

import torch

# Operators that take a stack of experts and read those that the router chose.
_GROUPED = re.compile(r"grouped_mm|grouped_gemm|fused_moe|fused_experts|moe_forward|moe_gemm")

# `experts` as a part of its own: layers.0.mlp.experts.gate_up_proj, mlp.experts.3.up_proj, but not shared_experts.
_EXPERTS = re.compile(r"(^|\.)experts\.")


def is_grouped(op_name: str) -> bool:
    """Whether the operator of this name reads the chosen ones of a stack of experts."""
    return _GROUPED.search(op_name) is not None


def is_expert(weight_name: str) -> bool:
    """Whether the weight of this name is one of several experts, or a stack of them."""
    return _EXPERTS.search(weight_name) is not None


def is_routed(weight_name: str, read: torch.Tensor, weight_shape: torch.Size, by_row: bool = False) -> bool:
    """Whether what an operator reads of a weight is up to a router: some experts of many, each a weight or a slice.

    by_row: it looks rows of `read` up. Rows of a matrix are those of an embedding, slices of a stack are experts. A
    stack that is read whole, as a batched matmul over all experts does, is not routed: every step needs all of it.
    """
    if by_row:
        return read.dim() > 2 or is_expert(weight_name)
    is_whole_stack = len(weight_shape) > 2 and read.numel() == weight_shape.numel()
    return is_expert(weight_name) and not is_whole_stack
