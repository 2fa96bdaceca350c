"""Attention through few slots or landmarks as the papers write it, one head after another.

What tests compare the fast forms of this folder with: matrices of one head at a time, padding
taken out before anything is computed, and nothing of ours imported.

Axis letters besides the project's: r slots or landmarks of a head, w tokens of a window.

Sources: Linformer, Wang et al. 2020, arXiv:2006.04768; Nystromformer, Xiong et al. 2021,
arXiv:2102.03902; Skyformer, Chen et al. 2021, arXiv:2111.00035.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def linear_slots(
    x: Float[Tensor, "b h l c"], E: Float[Tensor, "m r n"]
) -> Float[Tensor, "b h r c"]:
    """Return E x head by head: slot r is sum_t E_rt x_t over the l first columns of E.

    Wang et al. 2020, section 4. `E` has one map for each head (m = h), or one for all (m = 1).
    """
    slots = []
    for head in range(x.shape[1]):
        one = E[head if E.shape[0] == x.shape[1] else 0]
        slots.append(torch.einsum("kn,bnc->bkc", one[:, : x.shape[2]], x[:, head]))
    return torch.stack(slots, dim=1)


def pooled_slots(
    x: Float[Tensor, "b h l c"], window: int, *, largest: bool = False
) -> Float[Tensor, "b h r c"]:
    """Return the mean, or the largest entry of every channel, of each window of tokens.

    The last window may be shorter. Wang et al. 2020, section 4, "general projections".
    """
    parts = [x[:, :, i : i + window] for i in range(0, x.shape[2], window)]
    return torch.stack([p.amax(2) if largest else p.mean(2) for p in parts], dim=2)


def convolved_slots(
    x: Float[Tensor, "b h l c"], kernels: Float[Tensor, "m p c"], window: int
) -> Float[Tensor, "b h r c"]:
    """Return a convolution over the channels of each head, kernel and stride `window`.

    Args:
        x: keys or values; zeros fill the last window.
        kernels: for each head, or one for all, the taps of a window one after another, each a
            matrix from channels to channels: p = window * c.
        window: tokens of a slot.
    """
    slots = []
    for head in range(x.shape[1]):
        one = kernels[head if kernels.shape[0] == x.shape[1] else 0]
        taps = one.reshape(window, x.shape[3], x.shape[3]).permute(2, 1, 0)  # out, in, tap
        filled = F.pad(x[:, head].mT, (0, -x.shape[2] % window))
        slots.append(F.conv1d(filled, taps, stride=window).mT)
    return torch.stack(slots, dim=1)


def attention_to_slots(
    q: Float[Tensor, "b h l k"], keys: Float[Tensor, "b h r k"], values: Float[Tensor, "b h r v"]
) -> Float[Tensor, "b h l v"]:
    """Return softmax(q K'^T / sqrt(d)) V' over the slots K', V'. Wang et al. 2020, section 4."""
    return (q @ keys.mT / math.sqrt(q.shape[-1])).softmax(-1) @ values


def six_step_inverse(a: Float[Tensor, "r r"], iterations: int = 6) -> Float[Tensor, "r r"]:
    """Return the iteration towards the Moore-Penrose inverse, for one matrix.

        Z_0 = A^T / (|A|_1 |A|_inf),   Z <- 1/4 Z (13 I - A Z (15 I - A Z (7 I - A Z)))

    Xiong et al. 2021.
    """
    norm = a.abs().sum(0).amax() * a.abs().sum(1).amax()
    z, one = a.T / norm, torch.eye(len(a), dtype=a.dtype)
    for _ in range(iterations):
        z = 0.25 * z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z)))
    return z


def ridge_inverse(a: Float[Tensor, "r r"], ridge: float) -> Float[Tensor, "r r"]:
    """Return (A^T A + ridge I)^-1 A^T, for one matrix."""
    square: Tensor = a.T @ a + ridge * torch.eye(len(a)).to(a)
    return square.inverse() @ a.T


def nystrom_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    landmarks: int,
    *,
    inverse: Callable[[Tensor], Tensor] = six_step_inverse,
    keep: Bool[Tensor, "b l"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """Return softmax(q K~^T) A^+ softmax(Q~ k^T) v, A = softmax(Q~ K~^T), all over sqrt(d).

    Q~ and K~ are the means of as many stretches of the real tokens as there are landmarks; padding
    gets 0. Xiong et al. 2021.
    """
    out = torch.zeros_like(v)
    for row in range(q.shape[0]):
        real = torch.arange(q.shape[2]) if keep is None else keep[row].nonzero()[:, 0]
        if not len(real):
            continue
        for head in range(q.shape[1]):
            x, y, z = (part[row, head, real] for part in (q, k, v))
            cuts = [c for c in torch.arange(len(real)).tensor_split(landmarks) if len(c)]
            means = [torch.stack([part[c].mean(0) for c in cuts]) for part in (x, y)]
            scale = q.shape[-1] ** -0.5
            first = (scale * x @ means[1].T).softmax(-1)
            small = (scale * means[0] @ means[1].T).softmax(-1)
            last = (scale * means[0] @ y.T).softmax(-1)
            out[row, head, real] = first @ inverse(small) @ last @ z
    return out


def skyformer_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    draws: Float[Tensor, "2 m"],
    *,
    kernel: Callable[[Tensor, Tensor], Tensor],
    keep: Bool[Tensor, "b l"] | None = None,
    gamma: float = 0.1,
) -> Float[Tensor, "b h l v"]:
    """Return kernel(q, Z) M^-1 kernel(Z, k) v with M = kernel(Z, Z) + gamma I.

    Landmarks Z are real queries and keys, drawn independently. M^-1 is S (S M S)^-1 S, where S has
    the inverse roots of M's row sums, and six steps invert. Padding gets 0. Chen et al. 2021.

    Args:
        q: queries.
        k: keys.
        v: values.
        draws: numbers from [0, 1): a row for the landmarks among the queries, and one for the keys;
            u takes token floor(u n) of n real ones.
        kernel: weights of (n, d) and (m, d) vectors, (n, m); the paper's is the Gaussian.
        keep: what is no padding.
        gamma: the regulariser.
    """
    out = torch.zeros_like(v)
    for row in range(q.shape[0]):
        real = torch.arange(q.shape[2]) if keep is None else keep[row].nonzero()[:, 0]
        if not len(real):
            continue
        for head in range(q.shape[1]):
            x, y, z = (part[row, head, real] for part in (q, k, v))
            indices = (draws * len(real)).long()
            landmarks = torch.cat((x[indices[0]], y[indices[1]]))
            small = kernel(landmarks, landmarks) + gamma * torch.eye(len(landmarks)).to(x)
            root = small.sum(1) ** -0.5
            inverse = six_step_inverse(root[:, None] * small * root)
            middle = root[:, None] * inverse * root
            out[row, head, real] = kernel(x, landmarks) @ middle @ kernel(landmarks, y) @ z
    return out
