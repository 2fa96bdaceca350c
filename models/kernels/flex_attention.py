"""FlexAttention of PyTorch for softmax attention in bands, blocks, sets and lists of keys.

A row of queries and keys is what one head reads. With dilation D, and for keys at equal remainders,
a head is cut into rows of every D-th token, as our own forms do: then visible pairs lie in few
blocks. Several sets of keys are one call each, joined by the logarithms of their sums of weights. A
query without a visible key gives 0 there, too, with gradients of 0.
"""

from collections.abc import Callable, Sequence
from copy import copy
from functools import lru_cache
from importlib import import_module
from types import FunctionType
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn import functional as F

from lra.models.kernels.flex_masks import (
    BLOCK,
    MODULE,
    GlobalPlace,
    RowSight,
    block_mask_of,
    list_sight,
    mask_of,
    set_sight,
    slope_of,
    window_sight,
)
from lra.models.kernels.kernel import PublicKernel
from lra.models.ops.banded.scores import GlobalKeys
from lra.models.ops.numerics import NEVER, full_precision
from lra.models.ops.sparse.block_attention import is_short
from lra.models.ops.sparse.block_lists import Lists
from lra.models.ops.sparse.key_sets import Blocks, KeySet, Rectangles

PACKAGE, VERSIONS = "torch", ("2.9", "2.10", "2.11", "2.12", "2.13")
"""`return_aux` came with 2.9."""
NARROWEST, WIDEST = 16, 256
"""Widths of heads: products on a GPU need 16 channels; wider ones than 256 were not tuned."""
COMPILED = 256
"""Kinds of calls whose compiled kernel is remembered."""


@lru_cache(maxsize=COMPILED)
def _compiled(function: Callable[..., Any], kind: object) -> Callable[..., Any]:
    """Return `function` compiled for calls of one `kind`.

    torch.compile gives a function up after 8 kinds of calls, so each kind gets a copy of it.
    """
    del kind

    def attend(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    alone = FunctionType(attend.__code__.replace(), globals(), closure=attend.__closure__)
    compiled: Callable[..., Any] = torch.compile(alone, fullgraph=True, dynamic=False)
    return compiled


def _run(
    function: Callable[..., Any],
    rows: Sequence[Tensor],
    block_mask: Any,
    score: Callable[..., Tensor] | None,
    sight: object,
    *,
    sums: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the outputs for `rows` = (q, k, v), and with `sums` the logarithms of weights' sums.

    `sight` tells masks apart that need other code.
    """
    flex: Any = import_module(MODULE)
    q, device = rows[0], rows[0].device
    if device.type != "cpu":
        shapes = [x.shape for x in rows]
        function = _compiled(function, (sight, *shapes, q.dtype, device, score is None, sums))
    with full_precision(q):
        o, aux = function(*rows, score, block_mask, return_aux=flex.AuxRequest(lse=sums))
    return o, aux.lse


def cut_classes(x: Shaped[Tensor, "b h s k"], classes: int) -> Shaped[Tensor, "b r t k"]:
    """Return a row of every `classes`-th token for each remainder, filled up with zeros."""
    if classes == 1:
        return x
    x = F.pad(x, (0, 0, 0, -x.shape[2] % classes))
    return torch.unflatten(x, 2, (-1, classes)).transpose(2, 3).flatten(1, 2)


def join_classes(
    x: Float[Tensor, "b r t k"], classes: int, length: int
) -> Float[Tensor, "b h l k"]:
    """Return the first `length` tokens in their order: the inverse of `cut_classes`."""
    if classes == 1:
        return x
    return torch.unflatten(x, 1, (-1, classes)).transpose(2, 3).flatten(2, 3)[:, :, :length]


def _hidden_keys(
    keep: Bool[Tensor, "b s"] | None, like: Tensor, classes: int, beyond: GlobalKeys | None
) -> Bool[Tensor, "b c w"] | None:
    """Return False for hidden keys of each class of rows, global keys last; None: all are visible.

    `like` has the keys before they are cut into classes.
    """
    far_keep = None if beyond is None else beyond.keep
    if keep is None and far_keep is None and not like.shape[2] % classes:
        return None
    if keep is None:
        keep = torch.ones(len(like), like.shape[2], dtype=torch.bool, device=like.device)
    real = cut_classes(keep[:, None, :, None], classes)[..., 0]
    if beyond is None:
        return real
    far = torch.ones_like(beyond.positions, dtype=torch.bool) if far_keep is None else far_keep
    return torch.cat((real, far[:, None].expand(-1, classes, -1)), 2)


def _attend(
    function: Callable[..., Any],
    rows: Sequence[Tensor],
    sight: RowSight,
    *,
    classes: int,
    keep: Bool[Tensor, "b s"] | None,
    slopes: Float[Tensor, " h"] | None,
    beyond: GlobalKeys | None = None,
    causal: bool = False,
    sums: bool = False,
) -> tuple[Float[Tensor, "b h l v"], Float[Tensor, "b h l 1"] | None]:
    """Return the attention of `rows` = (q, k, v) by one call, and with `sums` logarithms of sums.

    Args:
        function: FlexAttention.
        rows: Queries, keys and values, one row for each head.
        sight: What queries see of the keys of their class.
        classes: Number of rows into which the row of a head is cut.
        keep: False for hidden keys; None: none.
        slopes: ALiBi's factor of each head; None: no ALiBi.
        beyond: Global keys that all queries attend to; None: there are none.
        causal: Whether queries attend to earlier global keys only.
        sums: Whether logarithms of sums of weights are wanted.
    """
    length, real = rows[0].shape[2], _hidden_keys(keep, rows[1], classes, beyond)
    q, k, v = (cut_classes(x.to(rows[2].dtype), classes) for x in rows)
    keys, place = k.shape[2], None
    if beyond is not None:
        place = GlobalPlace(beyond.positions, causal)
        k, v = (
            torch.cat((near, far.to(near.dtype).repeat_interleave(classes, 1)), 2)
            for near, far in ((k, beyond.keys), (v, beyond.values))
        )
    far_count, exact = k.shape[2] - keys, real is None
    block_mask = copy(
        block_mask_of(sight, q.shape[2], keys, beyond=far_count, exact=exact, device=q.device)
    )
    block_mask.mask_mod = mask_of(sight, keys, classes, real, place)
    score = slope_of(sight, keys, classes, slopes, place)
    kind = sight, far_count, exact, causal
    o, logs = _run(function, (q, k, v), block_mask, score, kind, sums=sums)
    o = join_classes(o, classes, length)
    return o, join_classes(logs[..., None], classes, length) if sums else None


def _takes(q: Tensor, v: Tensor, dropout: float, *, row: int) -> str:
    """Return why a call with `row` queries in a row is refused; "" if it is not."""
    widths = q.shape[-1], v.shape[-1]
    if dropout:
        return "it has no dropout"
    if q.dtype == torch.float64:
        return "it has no float64"
    if min(widths) < NARROWEST or max(widths) > WIDEST:
        return f"heads must be {NARROWEST} to {WIDEST} wide: got {' and '.join(map(str, widths))}"
    if row < BLOCK:
        return f"it computes {BLOCK} queries of a row at once: got {row}"
    return ""


def _takes_window(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int,
    behind: int | None,
    dropout: float,
    dilation: int,
    **_: Any,
) -> str:
    reach = window if behind is None else behind
    if reach >= k.shape[2] - 1 and dilation == 1:
        return "the window covers all keys, for which scaled_dot_product_attention is used"
    return _takes(q, v, dropout, row=-(-q.shape[2] // dilation))


def _call_window(
    function: Callable[..., Any],
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int,
    causal: bool,
    keep: Tensor | None,
    dilation: int,
    behind: int | None,
    slopes: Tensor | None,
    beyond: GlobalKeys | None,
    **_: Any,
) -> Tensor:
    past = (k.shape[2] - q.shape[2]) // dilation
    sight = window_sight(
        past, window if behind is None else behind, 0 if causal else window, dilation
    )
    return _attend(
        function, (q, k, v), sight, classes=dilation, keep=keep, slopes=slopes, beyond=beyond,
        causal=causal,
    )[0]  # fmt: skip


@lru_cache(maxsize=COMPILED)
def _column_index(columns: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the columns of a set on a device: a copy of them would wait for the device."""
    with torch.inference_mode(False):
        return torch.tensor(columns, device=device)


def _picked(keyset: KeySet, x: Tensor) -> Tensor:
    """Return the keys that are in the set, as `keyset.pick` does."""
    if keyset.columns is None:
        return x[:, :, keyset.first :]
    return x.index_select(2, _column_index(keyset.columns, x.device))


def _classes(keyset: KeySet) -> int:
    return keyset.classes if isinstance(keyset, Rectangles) else 1


def _takes_sets(q: Tensor, v: Tensor, sets: tuple[KeySet, ...], dropout: float, **_: Any) -> str:
    row = min(-(-q.shape[2] // _classes(keyset)) for keyset in sets)
    return _takes(q, v, dropout, row=row)


def _call_sets(
    function: Callable[..., Any],
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sets: tuple[KeySet, ...],
    keep: Tensor | None,
    slopes: Tensor | None,
    **_: Any,
) -> Tensor:
    parts = []
    for keyset in sets:
        rows = q, _picked(keyset, k), _picked(keyset, v)
        real = None if keep is None else _picked(keyset, keep[:, None, :, None])[:, 0, :, 0]
        sight = set_sight(keyset, q.device)
        parts.append(
            _attend(
                function, rows, sight, classes=_classes(keyset), keep=real, slopes=slopes,
                sums=len(sets) > 1,
            )
        )  # fmt: skip
    return _join(parts).to(v.dtype) if len(sets) > 1 else parts[0][0]


def _join(parts: Sequence[tuple[Tensor, Any]]) -> Float[Tensor, "b h l v"]:
    """Return attention to all sets together, from that to each and the logarithms of its sums.

    The logarithm is -inf without a visible key; a finite number in its place has gradients of 0.
    """
    logs = torch.stack([log_sum.float().clamp(min=NEVER) for _, log_sum in parts])
    shares = (logs - logs.logsumexp(0)).exp()
    terms = [o * share for (o, _), share in zip(parts, shares, strict=True)]
    return torch.stack(terms).sum(0)


def _takes_block(q: Tensor, v: Tensor, blocks: Blocks, dropout: float, **call: Any) -> str:
    if call["slopes"] is None and not dropout and is_short(blocks, q.device):
        return "the sequence is short, for which scaled_dot_product_attention is used"
    return _takes(q, v, dropout, row=q.shape[2])


def _call_block(function: Callable[..., Any], *, blocks: Blocks, **call: Any) -> Tensor:
    return _call_sets(function, sets=(blocks,), **call)


def _takes_list(q: Tensor, v: Tensor, lists: Lists, dropout: float, **_: Any) -> str:
    if lists.block % BLOCK and BLOCK % lists.block:
        return f"blocks must divide {BLOCK} tokens, or be a multiple: got {lists.block}"
    return _takes(q, v, dropout, row=q.shape[2])


def _call_list(
    function: Callable[..., Any],
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lists: Lists,
    keep: Tensor | None,
    slopes: Tensor | None,
    **_: Any,
) -> Tensor:
    block_mask, score = list_sight(lists, q.shape[2], k.shape[2], keep, slopes)
    facts = lists.block, lists.diagonal is None, len(lists.blocks), keep is None
    return _run(function, [x.to(v.dtype) for x in (q, k, v)], block_mask, score, facts)[0]


KERNELS = tuple(
    PublicKernel(operation, PACKAGE, VERSIONS, f"{MODULE}:flex_attention", takes=takes, call=call)
    for operation, takes, call in (
        ("window_attention", _takes_window, _call_window),
        ("union_attention", _takes_sets, _call_sets),
        ("block_attention", _takes_block, _call_block),
        ("list_attention", _takes_list, _call_list),
    )
)
