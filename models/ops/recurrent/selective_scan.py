"""Mamba's recurrence of each channel and state, whose steps, inputs and outputs depend on tokens.

    h_t = exp(dt_t A) h_(t-1) + (dt_t u_t) B_t^T,   y_t = h_t C_t        h: channels by states

Each channel has decays of its own for every state, so that no product of matrices stands for it:
`linear_recurrence` in blocks of channels, whose states are computed again in backward.

Cost       per token about 20 e N operations elementwise, no products; autograd keeps u, dt, B, C
           and the first state of each block. State: e N numbers.
"""

from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lra.models.kernels.door import door
from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.recurrent.linear_recurrence import linear_recurrence

BLOCK = 1024
"""Channels times states that are scanned at once."""


@door
def selective_scan(
    u: Float[Tensor, "b l e"],
    dt: Float[Tensor, "b l e"],
    rates: Float[Tensor, "e n"],
    write: Float[Tensor, "b l n"],
    read: Float[Tensor, "b l n"],
    *,
    state: Float[Tensor, "b e n"] | None = None,
    begins: Bool[Tensor, "b l"] | None = None,
) -> tuple[Float[Tensor, "b l e"], Float[Tensor, "b e n"]]:
    """Return y_t = h_t C_t with h_t = exp(dt_t A) h_(t-1) + (dt_t u_t) B_t^T, and the last state.

    Args:
        u: Inputs of e channels; y has their dtype.
        dt: Steps, 0 or more; 0 leaves the state unchanged.
        rates: A of each channel and state, below 0: the rate of decay.
        write: B of each token and state, by which inputs enter.
        read: C of each token and state, by which states are read.
        state: The state after earlier tokens, float32 at least; None: there are none.
        begins: True for tokens that begin a new document, from an empty state.
    """
    dtype = sum_dtype(u)
    if state is None:
        state = u.new_zeros(len(u), *rates.shape, dtype=dtype)
    step = max(1, BLOCK // rates.shape[1])  # channels of a block
    outputs, ends = [], []
    with full_precision(u):
        u_, dt, rates, state, write, read = (
            x.to(dtype) for x in (u, dt, rates, state, write, read)
        )
        for first in range(0, u.shape[2], step):
            channels = slice(first, first + step)
            block = u_[..., channels], dt[..., channels], rates[channels], state[:, channels]
            y, end = checkpoint(
                partial(_scan_channels, begins=begins), *block, write, read, use_reentrant=False
            )
            outputs.append(y)
            ends.append(end)
    return torch.cat(outputs, 2).to(u.dtype), torch.cat(ends, 1)  # `u` was not cast


def _scan_channels(  # noqa: PLR0917 (a checkpoint hands positions on)
    u: Float[Tensor, "b l c"],
    dt: Float[Tensor, "b l c"],
    rates: Float[Tensor, "c n"],
    state: Float[Tensor, "b c n"],
    write: Float[Tensor, "b l n"],
    read: Float[Tensor, "b l n"],
    *,
    begins: Bool[Tensor, "b l"] | None,
) -> tuple[Float[Tensor, "b l c"], Float[Tensor, "b c n"]]:
    """Return y and the last state of some channels; arguments as in `selective_scan`."""
    factors = (dt[..., None] * rates).exp()
    if begins is not None:
        factors = factors.masked_fill(begins[..., None, None], 0)
    inputs = (dt * u)[..., None] * write[:, :, None]
    states = linear_recurrence(factors.flatten(2), inputs.flatten(2), state.flatten(1))
    states = states.view(inputs.shape)
    return torch.einsum("blcn,bln->blc", states, read), states[:, -1].clone()
