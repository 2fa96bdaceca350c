"""A gated convolution as a mixer, the layer that LightConv and DynamicConv share.

    z = GLU(x W_1 + b_1),  W_1: d -> 2 d          (without a gate: d -> d)
    y = conv(z) W_2 + b_2                          z = 0 at padding

The families differ in how they compute the taps. A softmax over all taps of a kernel normalises
them; taps outside the sequence and at padding read zeros, so that their weight is lost.
"""

from abc import abstractmethod
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import Family, Flow, Layout, Share, Site, State, Traits, blanked
from lra.models.ops.convolution.dynamic import dynamic_convolution
from lra.models.ops.convolution.shared_kernel import shared_convolution
from lra.models.ops.numerics import sum_dtype

KERNEL = [31]
"""Taps by default, for inputs of any length."""


class GatedConvolution(Family):
    """Projection and gate, a convolution of every head's channels, a projection back.

    Args:
        site: Where it is built; `attention_dropout` sets taps of each token and head to 0.
        kernel: Kernel size, one number or one per layer. An odd kernel is centred, and an even one
            reads one more token after the current one than before it. In a causal layer, kernels
            read the last tokens.
        glu: Whether a gated linear unit precedes the convolution.
        input_dropout: Dropout rate of the entries of the mixer's input.
        inner_width: Number of channels of the convolution; None: the width of the model.

    Raises:
        ValueError: Heads do not divide these channels, or a value is out of range.
    """

    def __init__(
        self,
        site: Site,
        *,
        kernel: list[int] = KERNEL,
        glu: bool = True,
        input_dropout: Share = 0.0,
        inner_width: int | None = None,
    ) -> None:
        super().__init__()
        inner = site.width if inner_width is None else inner_width
        if inner < 1 or inner % site.heads:
            name, option = ("width", "model.backbone.width")
            if inner_width is not None:
                name, option = "inner_width", "model.mixer.inner_width"
            raise ValueError(
                f"heads must divide {name}, because they share the channels evenly: got "
                f"heads={site.heads}, {name}={inner}; set {option} to a multiple of {site.heads}"
            )
        taps = site.at(kernel)
        # Taps beyond the farthest token have no effect; only the default may have some.
        reach = site.max_length if site.causal else 2 * site.max_length - 1
        if taps < 1 or (taps > reach and kernel != KERNEL):
            raise ValueError(
                "kernel is the number of positions that a convolution reads, and with up to "
                f"{site.max_length} tokens at most {reach} have an effect: got {taps}; use 1 to "
                f"{reach}"
            )
        self.heads, self.taps, self.glu = site.heads, taps, glu
        self.left = taps - 1 if site.causal else (taps - 1) // 2
        self.normalise = TapSoftmax(self.left)
        self.input_dropout, self.tap_dropout = input_dropout, site.attention_dropout
        self.in_proj = projection(site.width, (2 if glu else 1) * inner, bias=True)
        self.out_proj = projection(inner, site.width, bias=True)
        self.add_taps(inner)
        self.traits = Traits(
            causal=site.causal,
            reach=max(self.left, taps - 1 - self.left),
            weight_dropout=True,
            training_noise=input_dropout > 0,
            sees_order=taps > 1,
        )

    @abstractmethod
    def add_taps(self, width: int) -> None:
        """Add the parameters from which the taps are computed, for `width` channels."""

    @abstractmethod
    def convolve(self, z: Float[Tensor, "b h l v"], past: int) -> Float[Tensor, "b h l v"]:
        """Return the convolution of `z`, which begins with `past` tokens of earlier segments.

        The caller ignores the outputs of these first tokens.
        """

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Return the outputs for `flow.x`, and the last `kernel - 1` tokens as the new state.

        Kernels also read the `kernel - 1` earlier tokens in `flow.state`, or zeros if it is None.
        """
        x = blanked(flow.x, layout, self.traits)
        x = F.dropout(x, self.input_dropout, self.training)
        z = self.in_proj(x)
        z = F.glu(z, dim=-1) if self.glu else z
        z = blanked(z, layout, self.traits)
        state, past = flow.state, 0
        if state is not None:
            before = cast(Tensor, state)
            z, past = torch.cat((before.to(z.dtype), z), dim=1), before.shape[1]
            # A copy, because a view would keep the whole segment in memory.
            state = z[:, z.shape[1] - past :].to(before.dtype).clone()
        heads = torch.unflatten(z, -1, (self.heads, -1)).transpose(1, 2)
        y = self.convolve(heads, past)[:, :, past:]
        y = y.transpose(1, 2).flatten(2).to(z.dtype)
        return flow._replace(x=self.out_proj(y), state=state)

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return zeros for the `kernel - 1` tokens before the first; `memory` has no effect."""
        del memory
        like = self.out_proj.weight
        return like.new_zeros(batch_size, self.taps - 1, like.shape[1])

    def dropped(self, taps: Float[Tensor, "*n t"]) -> Float[Tensor, "*n t"]:
        """Return `taps` after dropout in training; the others are divided by 1 - dropout."""
        return F.dropout(taps, self.tap_dropout, self.training)

    def dropping(self) -> bool:
        """Whether this pass drops taps."""
        return self.training and self.tap_dropout > 0


class LightConvolution(GatedConvolution):
    """A gated convolution with one kernel per head."""

    def add_taps(self, width: int) -> None:
        """Add one kernel of `self.taps` taps per head."""
        del width
        # Drawn as for a convolution of one channel per head.
        self.weight = nn.Parameter(torch.empty(self.heads, 1, self.taps))
        nn.init.xavier_uniform_(self.weight)

    def convolve(self, z: Float[Tensor, "b h l v"], past: int) -> Float[Tensor, "b h l v"]:
        """Convolve every head's channels with its kernel."""
        del past
        taps = self.normalise(self.weight[:, 0])
        if not self.dropping():
            return shared_convolution(z, taps, self.left)
        # Dropout differs from token to token, so every token needs a copy of the taps.
        taps_of_tokens = taps[None, :, None].expand(*z.shape[:3], self.taps)
        return dynamic_convolution(z, self.dropped(taps_of_tokens), self.left)


class DynamicConvolution(GatedConvolution):
    """A gated convolution with one kernel per token and head."""

    def add_taps(self, width: int) -> None:
        """Add the linear map from a token to its kernels, one per head."""
        self.kernel_proj = nn.Linear(width, self.heads * self.taps, bias=False)

    def convolve(self, z: Float[Tensor, "b h l v"], past: int) -> Float[Tensor, "b h l v"]:
        """Convolve every head's channels with the kernels of its tokens."""
        tokens = z[:, :, past:].transpose(1, 2).flatten(2)
        logits = torch.unflatten(self.kernel_proj(tokens), -1, (self.heads, self.taps))
        taps = self.dropped(self.normalise(logits.transpose(1, 2)))
        # Earlier tokens get kernels of 0, because their outputs are ignored.
        return dynamic_convolution(z, F.pad(taps, (0, 0, past, 0)), self.left)


class TapSoftmax(nn.Module):
    """The softmax over the taps of a kernel, at least in float32.

    It is a module so that a forward hook can read all kernels of a layer.

    Args:
        left: Number of taps that read earlier tokens.
    """

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def forward(self, logits: Float[Tensor, "*n t"]) -> Float[Tensor, "*n t"]:
        """Return kernels, [h t] or [b h l t]."""
        return logits.softmax(-1, dtype=sum_dtype(logits))
