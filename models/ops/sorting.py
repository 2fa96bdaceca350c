"""Functions of Sinkhorn attention: blocks, their scores, sorting, and the final attention.

Axis letters besides the project's: n blocks, c tokens of a block, i query blocks, j source blocks
(causal: one more, the null block, first), t blocks taken, s sorted tokens, w any width. Scores and
sort matrices are float32, or float64 where the input is, whatever autocast says.

Sinkhorn's iterations subtract the logarithm of the sum over a column, then over a row. In the
causal form a block may not know what later blocks will need, so a column's sum runs over the
rows up to the present one: row i depends on rows before it alone. The column of the null block is
never divided: every block may choose it.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.ops.numerics import NEVER, full_precision, sum_dtype

Sorted = tuple[Tensor, Tensor, Tensor | None]
"""Keys and values, "b h i s w" each, and which of them are real, "b h i s"; None: all."""


def split_blocks(x: Float[Tensor, "*r l w"], block: int) -> Float[Tensor, "*r n c w"]:
    """Return `x` cut into n blocks of c = `block` tokens; the last is padded with zeros."""
    missing = -x.shape[-2] % block
    if missing:
        x = F.pad(x, (0, 0, 0, missing))
    return x.view(*x.shape[:-2], -1, block, x.shape[-1])


def real_tokens(
    keep: Bool[Tensor, "b l"] | None, length: int, block: int, device: torch.device
) -> Bool[Tensor, "#b n c"] | None:
    """Return True where a slot of the n blocks has a real token; None if all have one."""
    missing = -length % block
    if keep is None:
        if not missing:
            return None
        keep = torch.ones(1, length, dtype=torch.bool, device=device)
    return F.pad(keep, (0, missing)).view(keep.shape[0], -1, block)


def pool(x: Float[Tensor, "*r n c w"], *, causal: bool) -> Float[Tensor, "*r n w"]:
    """Return the sum of the tokens of each block; if causal, of all up to its first token."""
    sums = x.sum(-2, dtype=sum_dtype(x))
    if not causal:
        return sums
    before = F.pad(sums.cumsum(-2)[..., :-1, :], (0, 0, 1, 0))
    return before + x[..., 0, :]


def mean_scores(
    q: Float[Tensor, "b h n c k"],
    k: Float[Tensor, "b h n c k"],
    real: Bool[Tensor, "#b n c"] | None,
    *,
    causal: bool,
) -> Float[Tensor, "b h n j"]:
    """Return products of the blocks' mean queries and mean keys over sqrt(k).

    If causal, the scores begin with a column of 0 for the null block.
    """
    with full_precision(q):
        counted = q.new_ones(1, *q.shape[2:4]) if real is None else real.to(q.dtype)
        counted = counted[:, None, ..., None]
        queries = pool(q * counted, causal=causal) / pool(counted, causal=causal).clamp(min=1)
        keys = pool(k * counted, causal=False) / pool(counted, causal=False).clamp(min=1)
        scores = queries * q.shape[-1] ** -0.5 @ keys.mT
    return F.pad(scores, (1, 0)) if causal else scores


def choices(
    real: Bool[Tensor, "#b n c"] | None, count: int, *, causal: bool, device: torch.device
) -> Bool[Tensor, "#b 1 n j"] | None:
    """Return True where a query block may choose a source block; None if all are allowed.

    Blocks without real tokens are excluded; if causal, so are the block itself and later ones.
    """
    used = None if real is None else real.any(-1)
    free = None if used is None else used[:, None, None, :] & used[:, None, :, None]
    if causal:
        earlier = torch.ones(1, 1, count, count, dtype=torch.bool, device=device).tril(-1)
        free = F.pad(earlier if free is None else earlier & free, (1, 0), value=True)
    return free


def first_places(
    real: Bool[Tensor, "#b n c"] | None, count: int | None
) -> slice | Int[Tensor, "b t"]:
    """Return the first `count` query blocks that have real tokens; None: all blocks.

    Padding in front of a row fills whole blocks, to which nothing is sorted.
    """
    if count is None or real is None:
        return slice(count)
    return real.any(-1).sort(stable=True, dim=-1, descending=True).indices[:, :count]


def take(
    x: Shaped[Tensor, "#b #h n j"], places: slice | Int[Tensor, "#b t"]
) -> Shaped[Tensor, "..."]:
    """Return the rows of query blocks at these places."""
    if isinstance(places, slice):
        return x[:, :, places]
    return x.take_along_dim(places[:, None, :, None], 2)


def gumbel_like(scores: Float[Tensor, "*r"]) -> Float[Tensor, "*r"]:
    """Return random Gumbel noise with the shape of `scores`, from the global random state."""
    return -torch.empty_like(scores).exponential_().log()


def _balance(
    scores: Float[Tensor, "b h n j"],
    free: Bool[Tensor, "#b 1 n j"] | None,
    iterations: int,
    causal: bool,
) -> Float[Tensor, "b h n j"]:
    """Return exp(scores) after normalising columns and rows; if causal, columns up to each row."""

    def mask(scores: Tensor) -> Tensor:
        return scores if free is None else scores.masked_fill(~free, NEVER)

    scores = mask(scores)
    for _ in range(iterations):
        if causal:
            column_sums = F.pad(scores[..., 1:].logcumsumexp(-2), (1, 0))  # 0 for the null block
        else:
            column_sums = scores.logsumexp(-2, keepdim=True)
        scores = mask(scores - column_sums)
        scores = mask(scores - scores.logsumexp(-1, keepdim=True))
    return scores.exp()


class _Sinkhorn(torch.autograd.Function):
    """`_balance`, saving only the scores: backward repeats the iterations."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, free: Tensor | None, iterations: int, causal: bool
    ) -> Tensor:
        """Return `_balance` of the same arguments."""
        ctx.save_for_backward(scores, free)
        ctx.iterations, ctx.causal = iterations, causal
        return _balance(scores, free, iterations, causal)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the scores, by repeating the iterations with autograd."""
        scores, free = ctx.saved_tensors
        with torch.enable_grad(), full_precision(scores):
            leaf = scores.detach().requires_grad_()
            weights = _balance(leaf, free, ctx.iterations, ctx.causal)
        return *torch.autograd.grad(weights, leaf, gradient), None, None, None


def sinkhorn(
    scores: Float[Tensor, "b h n j"],
    free: Bool[Tensor, "#b 1 n j"] | None = None,
    *,
    iterations: int,
    causal: bool = False,
) -> Float[Tensor, "b h n j"]:
    """Return exp(scores) with columns and rows normalised in turn, rows last; 0 if not `free`."""
    with full_precision(scores):
        weights: Tensor = _Sinkhorn.apply(  # type: ignore[no-untyped-call]
            scores, free, iterations, causal
        )
    return weights


def softmax(
    scores: Float[Tensor, "b h n j"], free: Bool[Tensor, "#b 1 n j"] | None = None
) -> Float[Tensor, "b h n j"]:
    """Return the softmax over each row of `scores`, with 0 where `free` is False."""
    if free is None:
        return scores.softmax(-1)
    return scores.masked_fill(~free, NEVER).softmax(-1).masked_fill(~free, 0.0)


def reorder(
    weights: Float[Tensor, "b h i j"], blocks: Float[Tensor, "b h j c w"]
) -> Float[Tensor, "b h i c w"]:
    """Return weighted sums of blocks; every token keeps its position within the block."""
    mixed = weights.to(blocks.dtype) @ blocks.flatten(-2)
    return mixed.view(*mixed.shape[:-1], *blocks.shape[-2:])


def mix(
    weights: Float[Tensor, "b h i j"],
    k: Float[Tensor, "b h j c k"],
    v: Float[Tensor, "b h j c v"],
    real: Bool[Tensor, "#b j c"] | None,
) -> Sorted:
    """Return weighted means of key and value blocks, position by position over real tokens."""
    if real is None:
        return reorder(weights, k), reorder(weights, v), None
    with full_precision(weights):
        total = (weights @ real[:, None].to(weights.dtype))[..., None]
        # A total near 0 counts as 0: quotients of tiny numbers, and their gradients, may overflow.
        has_token = total > torch.finfo(total.dtype).tiny * 1e6
        divisor = torch.where(has_token, total, 1)
        keys, values = (
            (reorder(weights, x.to(weights.dtype)) / divisor).masked_fill(~has_token, 0).to(x.dtype)
            for x in (k, v)
        )
    return keys, values, has_token[..., 0]


def best(
    scores: Float[Tensor, "b h n j"], free: Bool[Tensor, "#b 1 n j"] | None, count: int
) -> tuple[Int[Tensor, "b h n t"], Float[Tensor, "b h n t"]]:
    """Return the `count` blocks with the highest scores, and the probability of each.

    The probability is the softmax over the blocks that were not chosen before. Blocks that are
    False in `free` have probability 0.
    """
    if free is not None:
        scores = scores.masked_fill(~free, NEVER)
    chosen, shares = [], []
    for _ in range(min(count, scores.shape[-1])):
        top, choice = scores.max(-1, keepdim=True)
        share = (top - scores.logsumexp(-1, keepdim=True)).exp()
        chosen.append(choice)
        shares.append(share.masked_fill(top <= NEVER / 2, 0.0))  # the best block may be hidden
        scores = scores.scatter(-1, choice, NEVER)
    return torch.cat(chosen, -1), torch.cat(shares, -1)


def pick(
    blocks: Float[Tensor, "b h j c w"] | Bool[Tensor, "b h j c w"], chosen: Int[Tensor, "b h n t"]
) -> Float[Tensor, "b h n t c w"] | Bool[Tensor, "b h n t c w"]:
    """Return, for each query block, the t source blocks with the numbers in `chosen`."""
    b, h, j = blocks.shape[:3]
    row_start = torch.arange(0, b * h * j, j, device=chosen.device).view(b, h, 1, 1)
    rows = blocks.reshape(b * h * j, -1).index_select(0, (row_start + chosen).flatten())
    return rows.view(*chosen.shape, *blocks.shape[-2:])


def take_best(
    k: Float[Tensor, "b h j c k"],
    v: Float[Tensor, "b h j c v"],
    real: Bool[Tensor, "#b j c"] | None,
    *,
    scores: Float[Tensor, "b h n j"],
    free: Bool[Tensor, "#b 1 n j"] | None,
    count: int,
    causal: bool,
) -> Sorted:
    """Return, for each query block, its `count` best blocks times their probabilities.

    If causal and fewer blocks are allowed, the null block, which comes first, replaces the others.
    """
    chosen, shares = best(scores, free, count)
    if causal:  # block 0 is the null block
        chosen, shares = chosen.masked_fill(shares == 0, 0), shares.masked_fill(shares == 0, 1.0)
    keys, values = (
        (pick(x, chosen) * shares[..., None, None].to(x.dtype)).flatten(3, 4) for x in (k, v)
    )
    if real is None:
        return keys, values, None
    expanded_real = real[:, None, ..., None].expand(*k.shape[:4], 1)
    visible = (shares > 0)[..., None] & pick(expanded_real, chosen)[..., 0]
    return keys, values, visible.flatten(3, 4)


def attend_to_both(
    q: Float[Tensor, "b h n c k"],
    k: Float[Tensor, "b h n c k"],
    v: Float[Tensor, "b h n c v"],
    arranged: Sorted,
    *,
    real: Bool[Tensor, "#b n c"] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Float[Tensor, "b h l v"]:
    """Return the attention of each block to its own and its sorted tokens, in one softmax."""
    # Axes (b, n, h), so that no copy of the projections is needed.
    q, k, v, keys, values = (x.transpose(1, 2) for x in (q, k, v, *arranged[:2]))
    o = F.scaled_dot_product_attention(
        q.flatten(0, 1),
        torch.cat((k, keys), -2).flatten(0, 1),
        torch.cat((v, values), -2).flatten(0, 1),
        attn_mask=_combine_masks(real, arranged[2], q.shape[3], keys.shape[3], causal, q.device),
        dropout_p=dropout,
    )
    return o.view(*q.shape[:2], *o.shape[1:]).transpose(1, 2).flatten(2, 3)


def _combine_masks(  # noqa: PLR0917  six plain facts
    real: Bool[Tensor, "#b n c"] | None,
    seen: Bool[Tensor, "b h n s"] | None,
    size: int,
    sorted_size: int,
    causal: bool,
    device: torch.device,
) -> Bool[Tensor, "#m #h #c t"] | None:
    """Return True where a query may attend to a key of its block or to a sorted key; None: all."""
    if real is None and seen is None and not causal:
        return None
    in_block = torch.ones(1, 1, 1, size if causal else 1, size, dtype=torch.bool, device=device)
    if causal:
        in_block = in_block.tril()
    if real is not None:
        in_block = in_block & real[:, :, None, None]
    others = in_block.new_ones(1, 1, 1, 1, sorted_size)
    if seen is not None:
        others = seen.transpose(1, 2)[:, :, :, None]
    sizes = [max(pair) for pair in zip(in_block.shape[:-1], others.shape[:-1], strict=True)]
    return torch.cat((in_block.expand(*sizes, -1), others.expand(*sizes, -1)), -1).flatten(0, 1)


def strided_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    block: int,
    *,
    keep: Bool[Tensor, "b l"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h l v"]:
    """Return attention to strided blocks plus attention to sums of blocks, as in the LRA code.

    Block n has the tokens n, n + count, ... For padding, `keep` hides the same tokens as in that
    code, which are not those of the strided blocks.
    """
    length, count = q.shape[2], -(-q.shape[2] // block)
    real = torch.arange(block * count, device=q.device).view(block, count) < length
    block_mask = real.T[None, :, None] if real.numel() > length else None
    sum_mask = real[None, None, :, 0] if real.numel() > length else None
    if keep is not None:
        bits = F.pad(keep, (0, real.numel() - length)).view(-1, count, block)
        block_mask = bits[..., None] & bits[:, :, None]
        sum_mask = block_mask.any(1).repeat_interleave(count, 1)
    # Viewed as a matrix (c, n), the sequence has one strided block in each column.
    padded = (F.pad(x, (0, 0, 0, real.numel() - length)) for x in (q, k, v))
    q, k, v = (x.view(*x.shape[:2], block, count, -1) for x in padded)
    block_q, block_k, block_v = (x.permute(0, 3, 1, 2, 4).flatten(0, 1) for x in (q, k, v))
    in_block = _attend_or_mean(
        block_q,
        block_k,
        block_v,
        None if block_mask is None else block_mask.expand(len(q), -1, -1, -1).flatten(0, 1),
        dropout,
    )
    summed = _attend_or_mean(q.flatten(2, 3), k.sum(3), v.sum(3), sum_mask, dropout)
    in_block = in_block.view(-1, count, *in_block.shape[1:]).permute(0, 2, 3, 1, 4).flatten(2, 3)
    return (in_block + summed)[:, :, :length]


def _attend_or_mean(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    visible: Bool[Tensor, "#b #l s"] | None,
    dropout: float,
) -> Float[Tensor, "b h l v"]:
    """Return softmax attention; a query without a visible key returns the mean of all values.

    A mask that all queries share leaves at least one key visible.
    """
    if visible is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    has_key = visible.any(-1, keepdim=True)
    mask = (visible | ~has_key)[:, None]
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    return o if visible.shape[1] == 1 else o.where(has_key[:, None], v.mean(2, keepdim=True))
