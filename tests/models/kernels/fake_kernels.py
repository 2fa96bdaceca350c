"""A package of kernels for these tests: the recurrences as loops, right or wrong on purpose."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lra.models.kernels.kernel import PublicKernel
from lra.models.ops.numerics import without_padding

PACKAGE, VERSION = "numpy", "2"
"""An installed distribution stands for the package of the kernels."""
WRONG = ("sign", "sign of decays", "scale", "layout", "order", "state", "gradient", "nan", "shape")
"""What a wrong kernel does: see `recurrence`."""


def recurrence(
    *, q: Tensor, k: Tensor, w: Tensor, v: Tensor, g: Tensor, state: Tensor | None,
    corrects: bool, wrong: str = "",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return outputs and the last state of S = D S + w (v - k^T D S)^T, or of S = D S + w v^T.

    Args:
        q: Queries [b, h, l, k]; `k`, `w` and `v` are keys and values likewise.
        k: Keys that read.
        w: Keys that write.
        v: Values [b, h, l, v].
        g: Logarithms of decays, [b, h, l] or [b, h, l, k].
        state: The first state [b, h, k, v]; None: zeros.
        corrects: Whether a token writes the error of the state, or its whole value.
        wrong: One of `WRONG`; "": nothing.
    """
    dtype = v.dtype
    q, k, w, v, g = (x.float() for x in (q, k, w, v, g))
    if wrong == "sign":
        q = -q
    if wrong == "scale":
        q = q * q.shape[-1] ** -0.5
    if wrong == "sign of decays":
        g = -0.01 * g
    if wrong == "layout":
        k, w = (x.transpose(1, 2).reshape(x.shape) for x in (k, w))
    if wrong == "gradient":
        g = g.detach()
    now = torch.zeros(*k.shape[:2], k.shape[3], v.shape[3]) if state is None else state
    outputs = []
    for t in range(q.shape[2]):
        decay = g[:, :, t].exp()
        decay = decay[..., None, None] if g.ndim == 3 else decay[..., None]
        now = now if wrong == "order" else decay * now
        value = v[:, :, t] - (k[:, :, t, None] @ now)[:, :, 0] if corrects else v[:, :, t]
        now = now + w[:, :, t, :, None] * value[:, :, None]
        now = decay * now if wrong == "order" else now
        outputs.append((q[:, :, t, None] @ now)[:, :, 0])
    o = torch.stack(outputs, 2)
    if wrong == "nan":
        o = o * torch.where(torch.arange(o.shape[2]) == 5, torch.nan, 1.0)[:, None]
    if wrong == "shape":
        o = o.transpose(1, 2)
    return o.to(dtype), now.mT if wrong == "state" else now


def _run(function: Any, wrong: str = "", **call: Any) -> tuple[Tensor, Tensor]:
    """Return the result of a call of `decayed_product`, or of `delta_product`, which has w."""
    keep, corrects = call["keep"], "w" in call
    k, w, v = (without_padding(call.get(name, call["k"]), keep) for name in "kwv")
    g = call["g"] if call["g"].ndim > 1 else call["g"][:, None].expand(v.shape[:3])
    if keep is not None:
        g = g.masked_fill(~keep.view(len(g), 1, -1, *(1,) * (g.ndim - 3)), 0)
    outputs: tuple[Tensor, Tensor] = function(
        q=call["q"], k=k, w=w, v=v, g=g, state=call["state"], corrects=corrects, wrong=wrong
    )
    return outputs


DECAYED = PublicKernel(
    "decayed_product", PACKAGE, (VERSION,), f"{__name__}:recurrence",
    takes=lambda **_: "",
    call=_run, devices=("cpu",),
)  # fmt: skip
DELTA = replace(DECAYED, operation="delta_product")


def planted(kernel: PublicKernel, wrong: str) -> PublicKernel:
    """Return a kernel that computes something else."""
    return replace(kernel, call=partial(kernel.call, wrong=wrong))


def table(*kernels: PublicKernel) -> Mapping[str, Sequence[PublicKernel]]:
    """Return kernels by operation."""
    return {
        name: [each for each in kernels if each.operation == name]
        for name in {each.operation for each in kernels}
    }
