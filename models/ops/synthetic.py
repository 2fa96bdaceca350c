"""The attention of the Synthesizer: a softmax over synthetic logits, block by block.

Axis letters: g groups of examples with separate logits (1 if all examples share them), z examples
of a group, r rows and s columns of a block, f features, n the longest input.

Logits are computed for a block of rows at a time, and again in backward. No length x length matrix
is stored except the table of a random component, which is a parameter. If all examples share the
logits, they are computed once for the batch, and the values of each example are columns of one
matrix. Padding is then removed by a second product with the same weights: o = P V / (P real), with
P the softmax over all tokens, and V = 0 where real = 0.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.device_kind import device_kind
from lra.models.mixer import Layout
from lra.models.ops.exact import visibility
from lra.models.ops.numerics import NEVER, full_precision, reciprocal, row_slices, sum_dtype

LATER = 2 * NEVER
"""Logit of later tokens, below that of padding, so that rows with earlier padding only give 0."""
ROWS = 128
"""Rows of a block: exactly if causal, else at least."""
BLOCK_ELEMENTS = {"cpu": 1 << 21}
"""Logits worked on at once, by kind of device: 8 MB, so that they stay in the cache."""
BLOCK_ELEMENTS_ELSEWHERE = 1 << 26


class LogitBlock(NamedTuple):
    """A rectangle of the logits: slices of groups, heads, rows and columns."""

    groups: slice
    heads: slice
    rows: slice
    columns: slice

    @property
    def by_row(self) -> tuple[slice, slice, slice]:
        """Index into tensors with one entry per row."""
        return self.groups, self.heads, self.rows

    @property
    def by_column(self) -> tuple[slice, slice, slice]:
        """Index into tensors with one entry per column."""
        return self.groups, self.heads, self.columns

    def distance(self, like: Tensor) -> Float[Tensor, "r s"]:
        """Return the distance of each pair, column minus row."""
        position = torch.arange(max(self.rows.stop, self.columns.stop), device=like.device)
        return (position[self.columns] - position[self.rows, None]).to(like.dtype)


class Logits(NamedTuple):
    """The parts of the logits, which are added; parts that are None are absent."""

    queries: Float[Tensor, "g h l f"] | None = None
    keys: Float[Tensor, "g h s f"] | None = None
    """Inner products with the queries."""
    table: Float[Tensor, "h n n"] | None = None
    weight: Float[Tensor, "h 1 1"] | None = None
    """Of the table."""
    first: Float[Tensor, "g h l a"] | None = None
    second: Float[Tensor, "g h l c"] | None = None
    """Column j is entry j mod a of the first, times entry j div a of the second."""
    slopes: Float[Tensor, " h"] | None = None
    """By which logits fall with the distance."""

    def view_block(self, block: LogitBlock) -> "Logits":
        """Return these logits restricted to the groups, heads, rows and columns of `block`."""
        _, heads, rows, columns = block
        cuts: list[Any] = [block.by_row, block.by_column, (heads, rows, columns), heads]
        cuts += [block.by_row, block.by_row, heads]
        return Logits(*(x if x is None else x[cut] for x, cut in zip(self, cuts, strict=True)))

    @property
    def borrowed(self) -> bool:
        """Whether `compute_block` returns a view of the table, which must not be overwritten."""
        return all(x is None for x in self._replace(table=None))

    def compute_block(self, block: LogitBlock) -> Float[Tensor, "#g h r s"]:
        """Return the sum of all parts for `block`; `self` must come from `view_block`."""
        parts = []
        if self.queries is not None and self.keys is not None:
            parts.append(self.queries @ self.keys.mT)
        if self.first is not None and self.second is not None:
            needed = -(-block.columns.stop // self.first.shape[-1])  # entries up to the last column
            pairs = self.second[..., :needed, None] * self.first[..., None, :]
            parts.append(pairs.flatten(-2)[..., block.columns])
        if self.table is not None:
            weighted = self.table if self.weight is None else self.table * self.weight
            parts.append(weighted[None])
        total = functools.reduce(torch.add, parts)
        if self.slopes is not None:
            total = total - self.slopes[:, None, None] * block.distance(total).abs()
        return total


class SoftmaxPass(NamedTuple):
    """The options and masks of one pass."""

    causal: bool
    dropout: float
    keep: Bool[Tensor, "g s"] | None = None
    """False for padding, if each example has separate logits; None: no mask."""
    real: Float[Tensor, "g 1 s z"] | None = None
    """1 for real tokens and 0 for padding; None: all tokens are real."""

    def blocks(self, values: Float[Tensor, "g h s w"]) -> Iterator[LogitBlock]:
        """Yield blocks of logits with a bounded size, which together cover all logits."""
        groups, heads, length = values.shape[:3]
        size = BLOCK_ELEMENTS.get(device_kind(values.device), BLOCK_ELEMENTS_ELSEWHERE)
        groups_and_heads = max(1, size // (ROWS * length))  # in a block of ROWS rows
        by_head = min(heads, groups_and_heads)
        by_group = min(groups, max(1, groups_and_heads // heads))
        rows = ROWS if self.causal else max(ROWS, size // (length * by_head * by_group))
        for group in row_slices(groups, by_group):
            for head in row_slices(heads, by_head):
                for row in row_slices(length, rows):
                    columns = slice(0, row.stop if self.causal else length)
                    yield LogitBlock(group, head, row, columns)

    def softmax(
        self, logits: Float[Tensor, "#g h r s"], block: LogitBlock, *, borrowed: bool
    ) -> Float[Tensor, "#g h r s"]:
        """Return the softmax over the visible columns; overwrite `logits` unless `borrowed`."""
        if borrowed and (self.causal or self.keep is not None):  # the table must not change
            logits = logits.clone()
        if self.keep is not None:
            logits.masked_fill_(~self.keep[block.groups, None, None, block.columns], NEVER)
        if self.causal:
            corner = logits[..., block.rows.start :]  # before it, all columns are visible
            later = torch.ones(corner.shape[-2:], dtype=torch.bool, device=corner.device).triu_(1)
            corner.masked_fill_(later, LATER)
        return logits.softmax(-1)


def _scale(
    x: Float[Tensor, "g h r w"], factor: Float[Tensor, "g h r z"] | None
) -> Float[Tensor, "g h r w"]:
    """Return `x` with the columns of each of z examples multiplied by its factor; None: by 1."""
    if factor is None:
        return x
    parts = x.reshape(*x.shape[:-1], factor.shape[-1], -1)
    return (parts * factor[..., None]).view(x.shape)


class _Mean(torch.autograd.Function):
    """`apply(values, facts, *logits)`: the weighted means; weights are recomputed in backward."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, facts: SoftmaxPass, *given: Tensor | None) -> Tensor:
        """Return P V / (P real) for each block of rows; without `real`, return P V."""
        logits, real, out = Logits(*given), facts.real, torch.empty_like(values)
        inverse, dropout_masks = None, list[Tensor]()
        if real is not None:
            inverse = values.new_empty((*values.shape[:3], real.shape[-1]))
        for block in facts.blocks(values):
            scores = logits.view_block(block).compute_block(block)
            weights = facts.softmax(scores, block, borrowed=logits.borrowed)
            factor = None
            if real is not None and inverse is not None:
                factor = reciprocal(weights @ real[block.groups, :, block.columns])
                inverse[block.by_row] = factor
            if facts.dropout:
                mask = torch.empty_like(weights, dtype=torch.bool).bernoulli_(1 - facts.dropout)
                weights = weights * mask * (1 / (1 - facts.dropout))
                dropout_masks.append(mask)
            out[block.by_row] = _scale(weights @ values[block.by_column], factor)
        ctx.facts, ctx.masks = facts, len(dropout_masks)
        ctx.save_for_backward(
            values, out if real is not None else None, inverse, *dropout_masks, *given
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        """Return the gradients of the values and of each part of the logits."""
        facts: SoftmaxPass = ctx.facts
        values, out, inverse, *saved = ctx.saved_tensors
        dropout_masks, logits = iter(saved[: ctx.masks]), Logits(*saved[ctx.masks :])
        wanted = ctx.needs_input_grad[2:]  # for each part of the logits
        sums = Logits(
            *(
                torch.zeros_like(x) if x is not None and want else None
                for x, want in zip(logits, wanted, strict=True)
            )
        )
        dvalues = torch.zeros_like(values)
        with full_precision(values):
            for block in facts.blocks(values):
                rows, columns = block.by_row, block.by_column
                # Autograd differentiates the parts' sum, and the lines below the softmax.
                leaves = [
                    x if x is None else x.detach().requires_grad_(want)
                    for x, want in zip(logits.view_block(block), wanted, strict=True)
                ]
                with torch.enable_grad():
                    scores = Logits(*leaves).compute_block(block)
                dropped_weights = weights = facts.softmax(
                    scores.detach(), block, borrowed=logits.borrowed
                )
                g = gradient[rows]
                if inverse is not None:
                    g = _scale(g, inverse[rows])
                dweights = g @ values[columns].mT
                if facts.dropout:
                    factor = next(dropout_masks) * (1 / (1 - facts.dropout))
                    dropped_weights = weights * factor
                    dweights *= factor
                dvalues[columns] += dropped_weights.mT @ g
                if facts.real is not None:  # the gradient through the divisor P real
                    shares = (g * out[rows]).view(*g.shape[:-1], facts.real.shape[-1], -1).sum(-1)
                    dweights -= shares @ facts.real[block.groups, :, block.columns].mT
                if any(wanted):
                    dtype = weights.dtype
                    dscores = torch.ops.aten._softmax_backward_data(dweights, weights, -1, dtype)
                    trained = [x for x in leaves if x is not None and x.requires_grad]
                    gradients = torch.autograd.grad(scores, trained, dscores)
                    totals = [x for x in sums.view_block(block) if x is not None]
                    for total, part in zip(totals, gradients, strict=True):
                        total.add_(part)
        return dvalues, None, *sums


def synthetic_attention(
    logits: Logits,
    v: Float[Tensor, "b h l v"],
    *,
    keep: Bool[Tensor, "b l"] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Float[Tensor, "b h l v"]:
    """Return softmax(logits) v over real tokens; a row without a visible token returns 0.

    Sums are float32, or float64 for float64 inputs; the result has the dtype of v.
    """
    dtype = sum_dtype(v)
    logits = Logits(*(None if x is None else x.to(dtype) for x in logits))
    common = logits.first is None and (logits.queries is None or logits.queries.shape[0] == 1)
    with full_precision(v):
        values, real = v.to(dtype), None
        if keep is not None:
            real = keep[:, None, :, None].to(dtype)
            values = values * real
        if common:  # every example becomes some columns of one matrix of values
            values = values.permute(1, 2, 0, 3).flatten(-2)[None]
            real = None if real is None else real.permute(3, 1, 2, 0)
        facts = SoftmaxPass(causal, dropout, None if common else keep, real)
        o: Tensor = _Mean.apply(values, facts, *logits)  # type: ignore[no-untyped-call]
        if common:
            o = o[0].view(*o.shape[1:3], v.shape[0], -1).permute(2, 0, 1, 3)
    return o.to(v.dtype)


def fused_attention(
    logits: Logits,
    v: Float[Tensor, "b h l v"],
    *,
    keep: Bool[Tensor, "b l"] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Float[Tensor, "b h l v"]:
    """Return `synthetic_attention` by PyTorch's kernel, if logits are products of queries and keys.

    Raises:
        ValueError: The logits have no queries and keys, or further parts.
    """
    q, k, *others = logits
    if q is None or k is None or any(x is not None for x in others):
        raise ValueError(
            "fused_attention needs logits that are products of queries and keys: got other parts; "
            "call synthetic_attention"
        )
    visible = visibility(Layout(keep=keep), v.shape[2], causal=causal, device=v.device)
    missing = q.shape[-1] - v.shape[-1]  # fast kernels need keys and values of equal width
    o = F.scaled_dot_product_attention(
        q,
        k,
        F.pad(v, (0, missing)) if missing else v,
        attn_mask=visible,
        dropout_p=dropout,
        is_causal=causal and visible is None,
        scale=1.0,
    )
    return o[..., : v.shape[-1]]
