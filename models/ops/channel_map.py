"""The map over channels behind a mixer that has no network behind it: gated, or plain.

GLU(W y + b),  W: e -> 2 d          (linear: W y + b, W: e -> d)
"""

from enum import StrEnum, auto

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.multi_head import projection


class ChannelMixing(StrEnum):
    """The map: gated, or plain."""

    glu = auto()
    linear = auto()


def channel_projection(width_in: int, width: int, mixing: ChannelMixing) -> nn.Linear:
    """Return W and b: Xavier-uniform, and zeros."""
    gates = 2 if mixing == ChannelMixing.glu else 1
    return projection(width_in, gates * width, bias=True)


def apply_channel_gate(y: Float[Tensor, "*b e"], mixing: ChannelMixing) -> Float[Tensor, "*b d"]:
    """Return the gated linear unit of `y`; return `y` itself without a gate."""
    return F.glu(y, dim=-1) if mixing == ChannelMixing.glu else y
