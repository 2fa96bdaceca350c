"""Kernels of flash-linear-attention for softmax attention with gates, choices or reflections.

Ours have rows (b, h, l, ·), theirs (b, l, h, ·). Scores are divided by sqrt(k) in both. They sum
logarithms of gates from the first token, in float32, where ours sum outwards from each query.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lra.models.kernels.fla_layout import by_token, common_limits, fla_kernel
from lra.models.ops.sparse.block_table import BlockTable

PATH_WIDTHS = (16, 32, 64, 128)
"""Widths of heads of `parallel_path_attn`."""
LEAST = 16
"""Fewest rows and columns of a product of tensor cores, which are a power of two in number."""


def _masks(visible: Tensor | None, dropout: float) -> str:
    """Return why masks or dropout are refused; "" if there is neither."""
    if visible is not None:
        return "it hides later keys only: no padding, documents, prefix or memory of a stream"
    return "it has no dropout" if dropout else ""


def _takes_gates(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    visible: Tensor | None,
    dropout: float,
    **_: Any,
) -> str:
    if not causal:
        return "it is causal"
    if q.shape[2] != k.shape[2]:
        return f"it has as many queries as keys: got {q.shape[2]} and {k.shape[2]}"
    return _masks(visible, dropout) or common_limits(q, v)


def _call_gates(
    function: Callable[..., Tensor], *, q: Tensor, k: Tensor, v: Tensor, g: Tensor, **_: Any
) -> Tensor:
    rows = (by_token(x).to(v.dtype) for x in (q, k, v))
    return by_token(function(*rows, by_token(g).float(), scale=q.shape[-1] ** -0.5))


def _takes_path(q: Tensor, v: Tensor, visible: Tensor | None, dropout: float, **_: Any) -> str:
    for width in (q.shape[-1], v.shape[-1]):
        if width not in PATH_WIDTHS:
            return f"it has heads of width {', '.join(map(str, PATH_WIDTHS))}: got {width}"
    return _masks(visible, dropout) or common_limits(q, v)


def _call_path(
    function: Callable[..., tuple[Tensor, Tensor]],
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    g: Tensor | None,
    **_: Any,
) -> Tensor:
    scale = q.shape[-1] ** -0.5
    rows = (by_token(x).to(v.dtype) for x in (q, k, v))
    # Theirs multiplies gates by the scale, too.
    gates = None if g is None else by_token(g).float() / scale
    o, _keys = function(*rows, by_token(w).float(), by_token(beta).float(), gates, scale=scale)
    return by_token(o)


def _takes_choice(
    *,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    table: BlockTable,
    causal: bool,
    reach: int | None,
    dropout: float,
    **_: Any,
) -> str:
    shared, block = q.shape[1] // keys.shape[1], table.block
    if not causal:
        return "it is causal"
    if reach is not None:
        return "it has no window inside of blocks"
    if not table.in_order or table.filled is not None:
        return "its blocks cannot skip padding, begin with documents, or continue a stream"
    if shared < LEAST or shared & (shared - 1):
        return f"{LEAST}, 32, 64, ... heads of queries share a head of keys in it: got {shared}"
    if block < LEAST or block & (block - 1):
        return f"its blocks have {LEAST}, 32, 64, ... tokens: got {block}"
    return _masks(None, dropout) or common_limits(q, values)


def _call_choice(
    function: Callable[..., Tensor],
    *,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    chosen: Tensor,
    table: BlockTable,
    **_: Any,
) -> Tensor:
    length = q.shape[2]  # the slots after the last token are empty
    rows = (by_token(x[:, :, :length]).to(values.dtype) for x in (q, keys, values))
    o = function(
        *rows,
        block_indices=by_token(chosen),
        block_counts=chosen.shape[3],
        block_size=table.block,
        scale=q.shape[-1] ** -0.5,
    )
    return by_token(o)


KERNELS = (
    fla_kernel(
        "fading_attention", "forgetting_attn:parallel_forgetting_attn", _takes_gates, _call_gates
    ),
    fla_kernel("reflected_attention", "path_attn:parallel_path_attn", _takes_path, _call_path),
    fla_kernel("chosen_attention", "nsa:parallel_nsa", _takes_choice, _call_choice),
)
