"""Linear attention without a denominator: x_t (sum over i <= t of y_i^T z_i), in chunks.

Cost per token and head: 2 C (m + w) + 4 m w operations forward, with chunks of C tokens.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def running_product(
    x: Float[Tensor, "b h l m"],
    y: Float[Tensor, "b h l m"],
    z: Float[Tensor, "b h l w"],
    chunk: int,
    sums: Float[Tensor, "b h m w"],
) -> tuple[Float[Tensor, "b h l w"], Float[Tensor, "b h m w"]]:
    """Return x_t (sums + sum over i <= t of y_i^T z_i) for each t, and that sum at the end.

    Within a chunk of tokens, the weights x_t y_i are computed; the products of earlier chunks are
    summed.
    """
    batch, heads, length, width = z.shape
    chunk = min(chunk, length)
    missing = -length % chunk
    rows = [F.pad(part, (0, 0, 0, missing)) if missing else part for part in (x, y, z)]
    queries, keys, values = (part.reshape(-1, chunk, part.shape[-1]) for part in rows)
    gained = torch.bmm(keys.mT, values).view(batch, heads, -1, *sums.shape[2:])
    # Not the inclusive sum minus its last term, because its rounding would depend on later tokens.
    before = torch.cat((sums[:, :, None], gained[:, :, :-1]), dim=2).cumsum(2)
    past = torch.bmm(queries, before.flatten(0, 2))
    total = torch.baddbmm(past, torch.bmm(queries, keys.mT).tril(), values)
    out = total.view(batch, heads, -1, width)[:, :, :length]
    return out, before[:, :, -1] + gained[:, :, -1]
