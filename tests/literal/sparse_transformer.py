"""Sparse Transformer: Child et al. 2019, arXiv:1904.10509, section 4; the pairs of its patterns."""

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from tests.literal.heads import attended

USUAL = {
    "width": [16],
    "heads": [4],
    "causal": [False, True],
    "positions": ["none", "rotary", "alibi"],
    "masks": ["", "keep"],
    "length": [37, 1, 61],
    "small": [False, True],
}
GRIDS = [
    {**USUAL, "pattern": ["fixed"], "summary": [2, 3], "stride": [6, 7, 61],
     "head_use": ["merged", "heads"]},
    {**USUAL, "pattern": ["strided"], "stride": [6, 7, 50], "head_use": ["merged", "heads"]},
    {**USUAL, "pattern": ["fixed"], "summary": [2], "stride": [6], "head_use": ["interleave"],
     "layer": [0, 3], "depth": [4]},
    {**USUAL, "pattern": ["strided"], "stride": [6], "head_use": ["interleave"], "layer": [0, 3],
     "depth": [4]},
    {"width": [16], "heads": [4], "variant": ["lra"], "cls": [True, False], "stride": [6],
     "summary": [2], "masks": ["", "keep"], "positions": ["none", "alibi"], "length": [1, 2, 40]},
]  # fmt: skip


def near_pairs(length: int, pattern: str, stride: int, *, causal: bool) -> Bool[Tensor, "l l"]:
    """Return A^(1) of the Sparse Transformer, `pattern` being strided or fixed.

    strided: the `stride` tokens before (and behind) the query; fixed: its block of `stride` tokens.
    """
    i, j = torch.arange(length)[:, None], torch.arange(length)
    inside = (i - j).abs() <= stride
    if pattern == "fixed":
        inside = i // stride == j // stride
    return inside & (j <= i) if causal else inside


def far_pairs(
    length: int, pattern: str, stride: int, summary: int, *, causal: bool, part: int = 0
) -> Bool[Tensor, "l l"]:
    """Return A^(2) of the Sparse Transformer, `pattern` being strided or fixed.

    strided: every `stride`-th token, counted from the query; fixed: the last `summary` columns of
    each block, and column 0, since the paper's remainders run up to l, which is 0. `part` takes the
    so manieth `summary` columns from the end instead.
    """
    i, j = torch.arange(length)[:, None], torch.arange(length)
    inside = (i - j) % stride == 0
    if pattern == "fixed":
        end = stride - part * summary
        column = (j % stride == 0) | ((j % stride >= end - summary) & (j % stride < end))
        inside = column.expand(length, length)
    return inside & (j <= i) if causal else inside


def support(case: Any, length: int) -> Bool[Tensor, "#h l l"]:
    """Return who sees whom, in each of the heads where they differ."""
    pattern, stride, summary = case.pattern, case.stride, case.summary or 0
    if case.variant == "lra":
        sees = torch.ones(length, length, dtype=torch.bool)
        rest = slice(1, None) if case.cls else slice(None)
        count = length - case.cls
        sees[rest, rest] = near_pairs(count, "fixed", stride, causal=True)
        sees[rest, rest] |= far_pairs(count, "fixed", stride, summary, causal=True)
        return sees[None]
    near = near_pairs(length, pattern, stride, causal=case.causal)
    far = [
        far_pairs(length, pattern, stride, summary, causal=case.causal, part=part)
        for part in range(2)
    ]
    if case.head_use == "merged":
        return (near | far[0])[None]
    if case.head_use == "interleave":
        return (far[0] if case.layer % 2 else near)[None]
    return torch.stack((near, near, far[0], far[1]))


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Attend to the pairs of the pattern."""
    return attended(mixer, x, case, support(case, x.shape[1]))
