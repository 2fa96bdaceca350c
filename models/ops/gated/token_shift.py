"""The base class of RWKV's layers, which read each token mixed with the token before it.

The state of a row has the states of its heads and its last token. The outputs of heads are
normalised, with a weight and a bias for every channel.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.mixer import Site, Tuning
from lra.models.ops.gated.head_norm import normed_heads
from lra.models.ops.gated.layer import Borders, Parts, Recurrence, ShortConvolutions
from lra.models.ops.numerics import sum_dtype


class LowRankMap(nn.Module):
    """A low-rank map base + W_up inner(W_down x), whose W_down starts at 0.

    Args:
        width: Number of input channels.
        rank: Number of channels between the two maps.
        width_out: Number of output channels.
        base: Initial value of a parameter that is added in float32 or float64; None: no addition.
    """

    def __init__(
        self, width: int, rank: int, width_out: int, base: Float[Tensor, " e"] | None = None
    ) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width_out, bias=False)
        nn.init.zeros_(self.down.weight)
        nn.init.orthogonal_(self.up.weight, gain=0.1 * max(1.0, rank / width_out) ** 0.5)
        self.base = None if base is None else nn.Parameter(base)

    def forward(
        self, x: Float[Tensor, "b l d"], inner: nn.Module | None = None
    ) -> Float[Tensor, "b l e"]:
        """Return base + W_up inner(W_down x); an `inner` of None is the identity."""
        low = self.down(x)
        y: Tensor = self.up(low if inner is None else inner(low))
        return y if self.base is None else y.to(sum_dtype(x)) + self.base.to(sum_dtype(x))


class ShiftedMixer(Recurrence):
    """A layer whose `read` begins with `previous_tokens`; `decay` makes logits of its decays."""

    decay: LowRankMap

    def build(self, site: Site) -> None:
        """Add the weights of the norm."""
        self.width = site.width
        share = (1 + site.layer) / site.depth  # in RWKV, weights start larger in later layers
        self.norm_weight = nn.Parameter(torch.full((site.inner_width,), share**0.7))
        self.norm_bias = nn.Parameter(torch.zeros(site.inner_width))
        self.convolutions = ShortConvolutions((), None)

    def normed(self, o: Float[Tensor, "b h l k"], epsilon: float) -> Float[Tensor, "b l e"]:
        """Return the normalised outputs of all heads, joined to the width e of a token."""
        y = normed_heads(o, epsilon).transpose(1, 2).flatten(2)
        return y * self.norm_weight.to(y.dtype) + self.norm_bias.to(y.dtype)

    def merged(
        self, o: Float[Tensor, "b l e"], x: Float[Tensor, "b l m"]
    ) -> Float[Tensor, "b l d"]:
        """Return W_O o, for outputs `o` that are already normalised and gated."""
        del x
        y: Tensor = self.out_proj(o)
        return y

    def empty(self, batch_size: int) -> Parts:
        """Return zeros for the states, and for the token before the first."""
        token = self.out_proj.weight.new_zeros(batch_size, 1, self.width)
        return (*super().empty(batch_size), token)

    def tuning(self) -> Mapping[str, Tuning]:
        """Return training options: only projections decay; the base of w learns twice as fast."""
        names = [name for name, _ in self.named_parameters() if "proj" not in name]
        special = {
            name: Tuning(weight_decay=0.0, matrix=name.endswith(".weight")) for name in names
        }
        special["decay.base"] = special["decay.base"]._replace(learning_rate_scale=2.0)
        return special


def of_own_token(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    factors: Float[Tensor, " e"],
) -> Float[Tensor, "b h l v"]:
    """Return (sum_c q_c factors_c k_c) v for each token: what it reads of its own key and value."""
    by_channel = factors.to(q.dtype).view(q.shape[1], 1, -1)
    return (q * k * by_channel).sum(-1, keepdim=True) * v


def previous_tokens(
    x: Float[Tensor, "b l d"], token: Float[Tensor, "b 1 d"], borders: Borders
) -> tuple[Float[Tensor, "b l d"], Float[Tensor, "b 1 d"]]:
    """Return the token before each one (`token` first, 0 at later documents), and the last one."""
    tokens = torch.cat((token.to(x.dtype), x), 1)
    begins, previous = borders.begins(), tokens[:, :-1]
    if begins is not None:
        previous = previous.masked_fill(begins[..., None], 0)
    return previous, tokens[:, -1:].clone().to(token.dtype)
