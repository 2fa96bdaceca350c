"""The near and the far set of keys in the two patterns of the Sparse Transformer.

With stride l and c summary columns, token i attends to j <= i if

    strided    near: i - j <= l                far: (i - j) mod l = 0
    fixed      near: floor(j/l) = floor(i/l)    far: j mod l in {l-c, ..., l-1} or j mod l = 0

Source: Child et al. 2019, arXiv:1904.10509, section 4.
"""

from dataclasses import dataclass
from enum import StrEnum, auto

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lra.models.ops.sparse.key_sets import FINEST, Blocks, KeySet, Rectangles


class SparsePattern(StrEnum):
    """Pair of sparse patterns."""

    fixed = auto()
    strided = auto()


@dataclass(frozen=True, kw_only=True)
class Sparsity:
    """The two patterns over positions, as sets of keys and as a rule."""

    pattern: SparsePattern
    stride: int
    summary: int
    causal: bool

    def remainders(self, part: int) -> list[int]:
        """Return the remainders j mod l of the summary columns of `part`, in rising order."""
        end = self.stride - part * self.summary
        return sorted({0, *range(end - self.summary, end)})

    def near(self, rows: int, length: int, *, first: int = 0) -> Blocks:
        """Return the near set; the `first` keys come before the pattern and are not in it."""
        fixed = self.pattern == SparsePattern.fixed
        # Strided: blocks of half a stride, from 32 to 64 tokens.
        block = self.stride if fixed else min(max(FINEST, -(-self.stride // 2)), 64)
        block = min(block, length)
        look = 0 if fixed else min(-(-self.stride // block), -(-length // block) - 1)
        return Blocks(
            rows=rows,
            length=length,
            causal=self.causal,
            most=None if fixed else self.stride,
            first=first,
            block=block,
            look_back=look,
            look_forward=0 if self.causal else look,
        )

    def far(
        self, rows: int, length: int, *, alone: bool, part: int = 0, first: int = 0
    ) -> Rectangles:
        """Return the far set; unless `alone`, without the keys of the near set.

        All queries attend to the `first` keys, which come before the pattern.
        """
        # `least`: keys less than 2 strides (strided) or 1 block (fixed) away are in the near set.
        stride, classes, unit, least = self.stride, 1, 1, 0
        columns: tuple[int, ...] | None = None
        if self.pattern == SparsePattern.strided:
            classes, least = min(stride, length), 0 if alone else 2
        else:
            column_keys = (j + r for j in range(0, length, stride) for r in self.remainders(part))
            columns = (*range(first), *(j + first for j in column_keys if j < length))
            unit, least = (1, 0) if alone else (stride, 1)
        return Rectangles(
            rows=rows,
            length=length,
            causal=self.causal,
            least=least,
            first=first,
            columns=columns,
            classes=classes,
            unit=unit,
        )

    def union(self, rows: int, length: int, *, first: int = 0) -> tuple[KeySet, ...]:
        """Return the near and the far set, without a common key."""
        near = self.near(rows, length, first=first)
        if length <= self.stride and not first:
            return (near,)
        return near, self.far(rows, length, alone=False, first=first)

    def sees_near(self, i: Int[Tensor, "*q"], j: Int[Tensor, "*k"]) -> Bool[Tensor, "*a"]:
        """Return whether key j is in the near set of query i; causality is not checked."""
        if self.pattern == SparsePattern.fixed:
            return i // self.stride == j // self.stride
        return (i - j).abs() <= self.stride

    def sees_far(self, i: Int[Tensor, "*q"], j: Int[Tensor, "*k"], part: int) -> Bool[Tensor, "*a"]:
        """Return whether key j is in the far set of query i; causality is not checked."""
        if self.pattern == SparsePattern.strided:
            return (i - j) % self.stride == 0
        columns = torch.tensor(self.remainders(part), device=j.device)
        return torch.isin(j % self.stride, columns).expand_as(i - j)
