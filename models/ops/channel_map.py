"""The output map over channels of a mixer without a feed-forward network: gated or linear.

GLU(W y + b),  W: e -> 2 d          (linear: W y + b, W: e -> d)
"""

from enum import StrEnum, auto

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection


class ChannelMixing(StrEnum):
    """Whether the output map is a gated linear unit or a linear map."""

    glu = auto()
    linear = auto()


def channel_projection(width_in: int, width: int, mixing: ChannelMixing) -> nn.Linear:
    """Return the layer W y + b from `width_in` channels, with Xavier-uniform W and b = 0.

    It has `width` outputs, or twice as many for `mixing=glu`, half of which are gates.
    """
    gates = 2 if mixing == ChannelMixing.glu else 1
    return projection(width_in, gates * width, bias=True)


def apply_channel_gate(y: Float[Tensor, "*b e"], mixing: ChannelMixing) -> Float[Tensor, "*b d"]:
    """Return GLU(y) for `mixing=glu`: half of the channels times the sigmoid of the others.

    Otherwise return `y` unchanged.
    """
    return F.glu(y, dim=-1) if mixing == ChannelMixing.glu else y
