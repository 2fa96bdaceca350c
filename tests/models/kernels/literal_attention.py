"""Slow forms of public kernels of attention, convolution and scans, with the packages' arguments.

Rows are (b, l, h, k) where a package has them so; q, k, v, ... are the packages' letters.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def parallel_forgetting_attn(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float | None = None
) -> Tensor:
    """Return o, (b, l, h, v), for gates g, (b, l, h)."""
    assert g.dtype == torch.float32
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    level = g.cumsum(1).transpose(1, 2)
    scores = torch.einsum("bihk,bjhk->bhij", q, k) * scale + level[..., None] - level[..., None, :]
    later = torch.ones(2 * q.shape[1:2], dtype=torch.bool).triu(1)
    return torch.einsum("bhij,bjhv->bihv", scores.masked_fill(later, -torch.inf).softmax(-1), v)


def parallel_path_attn(  # noqa: PLR0917 (as in the package)
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, None]:
    """Return o and no cache: each token reflects all earlier keys along its w."""
    assert w.dtype == beta.dtype == torch.float32
    assert g is None or g.dtype == torch.float32
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    level = torch.zeros_like(beta) if g is None else g.cumsum(1)
    keys, outputs = k[:, :0], []
    for t in range(q.shape[1]):
        along = (keys * w[:, t : t + 1]).sum(-1, keepdim=True)
        keys = keys - beta[:, t, None, :, None] * along * w[:, t : t + 1]
        keys = torch.cat((keys, k[:, t : t + 1]), 1)
        scores = (q[:, t : t + 1] * keys).sum(-1) + level[:, t : t + 1] - level[:, : t + 1]
        weights = (scores * scale).softmax(1)
        outputs.append((weights[..., None] * v[:, : t + 1]).sum(1))
    return torch.stack(outputs, 1), None


def parallel_nsa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    block_indices: Tensor,
    block_counts: int,
    block_size: int,
    scale: float | None = None,
) -> Tensor:
    """Return o of its selected blocks; block_indices are (b, l, h, s), and -1 is no block."""
    assert len({x.shape[1] for x in (q, k, v, block_indices)}) == 1
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    shared, place = q.shape[2] // k.shape[2], torch.arange(q.shape[1])
    block = block_indices[..., :block_counts, None]
    seen = (block == place // block_size).any(3) & (place <= place[:, None])[:, None]
    seen, k, v = (x.repeat_interleave(shared, 2) for x in (seen, k, v))
    scores = torch.einsum("bihk,bjhk->bihj", q, k) * scale
    return torch.einsum("bihj,bjhv->bihv", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)


def causal_conv1d(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, initial_state: Tensor | None = None
) -> tuple[Tensor, None]:
    """Return y, (b, l, d), in the dtype of x; a state is (b, d, taps)."""
    taps = weight.shape[1]
    if initial_state is None:
        inputs = F.pad(x, (0, 0, taps - 1, 0))
    else:
        assert initial_state.shape[2] == taps
        inputs = torch.cat((initial_state[..., 1:].mT.to(x.dtype), x), 1)
    y = F.conv1d(inputs.mT.float(), weight.float()[:, None], bias, groups=len(weight))
    return y.mT.to(x.dtype), None


def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
) -> Tensor:
    """Return y, (b, d, l); seq_idx are documents, and a state is (b, d, taps - 1)."""
    assert x.stride(1) == 1
    reach = weight.shape[1] - 1
    if initial_states is None:
        initial_states = x.new_zeros(*x.shape[:2], reach)
    else:
        assert initial_states.stride(1) == 1
        assert seq_idx is None
    inputs = torch.cat((initial_states.float(), x.float()), 2)
    y = torch.zeros_like(x, dtype=torch.float32) if bias is None else bias[:, None].expand_as(x)
    for tap, column in enumerate(weight.unbind(1)):
        read = inputs[..., tap : tap + x.shape[2]]
        if seq_idx is not None:
            assert seq_idx.dtype == torch.int32
            earlier = F.pad(seq_idx, (reach, 0), value=-1)[:, tap : tap + x.shape[2]]
            read = read * (earlier == seq_idx)[:, None]
        y = y + column[:, None] * read
    return y.to(x.dtype)


def selective_scan_fn(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """Return y, (b, d, l), of u and delta, (b, d, l), and B and C, (b, n, l)."""
    assert u.dtype == delta.dtype == B.dtype == C.dtype
    assert A.dtype == torch.float32
    state, outputs = u.new_zeros(len(u), *A.shape), []
    for t in range(u.shape[2]):
        step = delta[..., t, None]
        state = (step * A).exp() * state + step * u[..., t, None] * B[:, None, :, t]
        outputs.append((state * C[:, None, :, t]).sum(-1))
    return torch.stack(outputs, 2)
