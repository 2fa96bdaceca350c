"""Recurrent layers as their papers write them: token by token, every gate by itself."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Inexact
from torch import Tensor


def linear_recurrence(
    a: Inexact[Tensor, "b l d"], b: Inexact[Tensor, "b l d"], start: Inexact[Tensor, "b d"]
) -> Inexact[Tensor, "b l d"]:
    """c_t = a_t c_{t-1} + b_t."""
    c, outputs = start, []
    for t in range(a.shape[1]):
        c = a[:, t] * c + b[:, t]
        outputs.append(c)
    return torch.stack(outputs, dim=1)


def lstm(
    x: Float[Tensor, "b l d"],
    weights: Sequence[Tensor],
    keep: Bool[Tensor, "b l"] | None = None,
    *,
    backwards: bool = False,
) -> Float[Tensor, "b l h"]:
    """Give h of every real token; padding gives 0, and leaves h and c as they were.

    Args:
        x: Tokens.
        weights: W of the four gates i, f, g, o below each other, U likewise, and two biases.
        keep: True for real tokens.
        backwards: From the last token to the first.
    """
    (w_i, w_f, w_g, w_o), (u_i, u_f, u_g, u_o) = (each.chunk(4) for each in weights[:2])
    b_i, b_f, b_g, b_o = (weights[2] + weights[3]).chunk(4)
    batch, length, _ = x.shape
    h = c = x.new_zeros(batch, u_i.shape[1])
    outputs: list[Tensor] = [h] * length
    for t in reversed(range(length)) if backwards else range(length):
        token = x[:, t]
        i = torch.sigmoid(token @ w_i.mT + h @ u_i.mT + b_i)
        f = torch.sigmoid(token @ w_f.mT + h @ u_f.mT + b_f)
        g = torch.tanh(token @ w_g.mT + h @ u_g.mT + b_g)
        o = torch.sigmoid(token @ w_o.mT + h @ u_o.mT + b_o)
        new = f * c + i * g
        real = torch.ones_like(c[:, :1], dtype=torch.bool) if keep is None else keep[:, t, None]
        h, c = (o * torch.tanh(new)).where(real, h), new.where(real, c)
        outputs[t] = h.where(real, 0)
    return torch.stack(outputs, dim=1)


def qrnn(
    x: Float[Tensor, "b l d"],
    weight: Float[Tensor, "maps h k d"],
    bias: Float[Tensor, "maps h"],
    *,
    zoned_out: Bool[Tensor, "b l h"] | None = None,
    taken: float = 1.0,
) -> Float[Tensor, "b l h"]:
    """Equations 3 to 6 of arXiv:1611.01576: f-, fo- or ifo-pooling for 2, 3 or 4 maps.

    Args:
        x: Tokens, all real.
        weight: Of z, f, o and i, for each token that they look at, the farthest first.
        bias: Of the same.
        zoned_out: Cells that stay as they were.
        taken: What 1 - f is multiplied by, but under ifo.
    """
    maps, _, kernel, _ = weight.shape
    batch, length, _ = x.shape
    c, outputs = x.new_zeros(batch, weight.shape[1]), []
    for t in range(length):
        gates = [bias[each].expand(batch, -1) for each in range(maps)]
        for distance in range(min(kernel, t + 1)):
            for each in range(maps):
                gates[each] = gates[each] + x[:, t - distance] @ weight[each, :, -1 - distance].mT
        z, f = torch.tanh(gates[0]), torch.sigmoid(gates[1])
        if maps == 4:
            c = f * c + torch.sigmoid(gates[3]) * z
        else:
            f = 1 - taken * (1 - f)
            if zoned_out is not None:
                f = f.where(~zoned_out[:, t], 1)
            c = f * c + (1 - f) * z
        outputs.append(c if maps == 2 else torch.sigmoid(gates[2]) * c)
    return torch.stack(outputs, dim=1)


def exponential_lstm(
    gates: Float[Tensor, "b l 4 h k"],
    recurrent: Float[Tensor, "h k 4 k2"],
    *,
    keep: Bool[Tensor, "b l"] | None = None,
    begins: Bool[Tensor, "b l"] | None = None,
) -> Float[Tensor, "b l h k"]:
    """Gates + R h; c = sigma(f) c + e^i tanh(z), n = sigma(f) n + e^i, h = sigma(o) c / n.

    In plain exponentials, which float64 holds for gates of ordinary size; from nothing. Padding
    gives 0, and leaves h, c and n as they were.
    """
    rows = []
    for b in range(len(gates)):
        h = c = n = torch.zeros_like(gates[0, 0, 0])
        outputs = []
        for t in range(gates.shape[1]):
            if keep is not None and not keep[b, t]:
                outputs.append(torch.zeros_like(h))
                continue
            if begins is not None and begins[b, t]:
                h = c = n = torch.zeros_like(h)
            i, f, z, o = gates[b, t] + torch.einsum("hk,hkgj->ghj", h, recurrent)
            c = f.sigmoid() * c + i.exp() * z.tanh()
            n = f.sigmoid() * n + i.exp()
            h = o.sigmoid() * c / n
            outputs.append(h)
        rows.append(torch.stack(outputs))
    return torch.stack(rows)
