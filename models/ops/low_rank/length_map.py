"""Linear and pooling maps along the length: from n tokens to a fixed number of slots.

A map has weights for positions up to `max_length`, of which shorter inputs use the first ones.
Padding does not change the slots.
"""

import math
from enum import StrEnum, auto
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lra.models.mixer import Site


class Sharing(StrEnum):
    """Which heads and layers share a projection along the length."""

    none = auto()
    headwise = auto()
    kv = auto()
    layerwise = auto()
    kv_by_head = auto()
    """One map per head, shared by its keys and values."""
    layerwise_by_head = auto()
    """One map per head, shared by all layers."""

    @property
    def by_head(self) -> bool:
        """Whether every head has separate maps."""
        return self in {Sharing.none, Sharing.kv_by_head, Sharing.layerwise_by_head}

    @property
    def by_model(self) -> bool:
        """Whether all layers share the same maps."""
        return self in {Sharing.layerwise, Sharing.layerwise_by_head}


class Projection(StrEnum):
    """How tokens are projected to slots."""

    learned = auto()
    frozen_jl = auto()
    mean_pool = auto()
    max_pool = auto()
    conv = auto()


MATRIX = frozenset({Projection.learned, Projection.frozen_jl})
POOL = frozenset({Projection.mean_pool, Projection.max_pool})


class LengthMap(nn.Module):
    """Maps from tokens to slots: number 0 for keys, and number 1 for values if not shared.

    Learned weights start with the standard deviation `deviation`; None: Xavier-uniform, and
    1 / sqrt(slots) for frozen weights, which are drawn again every `redraw_every` steps (0: never).
    """

    keys: Float[Tensor, "h i j"] | None
    values: Float[Tensor, "h i j"] | None

    def __init__(
        self,
        site: Site,
        projection: Projection,
        slots: int,
        sharing: Sharing,
        *,
        row_normalise: bool,
        redraw_every: int,
        deviation: float | None = None,
    ) -> None:
        """Make the matrices or convolutions of keys and values; pooling has no parameters."""
        super().__init__()
        self.projection, self.slots, self.max_length = projection, slots, site.max_length
        self.row_normalise, self.redraw_every = row_normalise, redraw_every
        self.window = -(-site.max_length // slots)  # tokens that are pooled to one slot
        self.shrink = math.sqrt(slots) if deviation is None else 1 / deviation  # frozen weights
        by_head = sharing.by_head and projection not in POOL
        self.joined = not by_head and projection != Projection.conv
        """Whether all heads share the matrix, so that their channels can be multiplied together."""
        separate = sharing in {Sharing.none, Sharing.headwise} and projection not in POOL
        self.maps = 2 if separate else 1
        shape = (slots, site.max_length)
        if projection == Projection.conv:
            shape = (self.window * site.head_width, site.head_width)
        for name in ("keys", "values"):
            if projection in POOL or (name == "values" and self.maps == 1):
                self.register_parameter(name, None)
                continue
            weight = torch.empty(site.heads if by_head else 1, *shape)
            if projection == Projection.frozen_jl:
                self.register_buffer(name, self.draw_into(weight, site.generator))
            elif deviation is not None:
                self.register_parameter(name, nn.Parameter(weight.normal_(std=deviation)))
            else:
                bound = math.sqrt(6 / sum(shape))  # Xavier-uniform
                self.register_parameter(name, nn.Parameter(weight.uniform_(-bound, bound)))

    def draw_into(self, weight: Float[Tensor, "h i j"], generator: torch.Generator) -> Tensor:
        """Fill `weight` from N(0, 1 / shrink^2), drawn on the CPU, so that machines agree."""
        normal = torch.randn(weight.shape, generator=generator, dtype=torch.float32, device="cpu")
        return weight.copy_(normal / self.shrink)

    def after_step(self, step: int, generator: torch.Generator) -> None:
        """Draw new weights every `redraw_every` steps."""
        if self.redraw_every and step % self.redraw_every == 0:
            for weight in self.buffers():
                self.draw_into(weight, generator)

    def forward(
        self, x: Float[Tensor, "b h n c"], number: int, keep: Bool[Tensor, "b n"] | None
    ) -> Float[Tensor, "b h s c"]:
        """Return s slots for the n tokens of every head of `x`.

        Args:
            x: Keys or values.
            number: 0 for keys, 1 for values; ignored if they share a map.
            keep: False for padding; None: all tokens are real.
        """
        fill = -torch.inf if self.projection == Projection.max_pool else 0.0
        if keep is not None:
            x = x.masked_fill(~keep[:, None, :, None], fill)
        if self.projection in MATRIX:
            matrix = self.weights_of(number)
            # Slice only if needed, because the gradient of a slice copies the whole matrix.
            if x.shape[2] < self.max_length:
                matrix = matrix.narrow(-1, 0, x.shape[2])
            return self.multiplied(x, matrix, keep)
        windows = self.windows(x, fill)
        if self.projection == Projection.conv:
            return windows.flatten(-2) @ self.weights_of(number)
        if self.projection == Projection.max_pool:
            largest = windows.amax(-2)
            return largest.masked_fill(largest == fill, 0.0)
        real = torch.ones_like(x[:1, 0, :, 0]).float() if keep is None else keep.float()
        return windows.sum(-2) / self.tokens_held(real).clamp(min=1)[:, None, :, None].to(x.dtype)

    def weights_of(self, number: int) -> Float[Tensor, "h i j"]:
        """Return the weights of map `number`, or of the shared map."""
        return cast(Tensor, self.values if number and self.maps == 2 else self.keys)

    def multiplied(
        self,
        x: Float[Tensor, "b h n c"],
        matrix: Float[Tensor, "#h s n"],
        keep: Bool[Tensor, "b n"] | None,
    ) -> Float[Tensor, "b h s c"]:
        """Return E x for E = `matrix`; `row_normalise` divides by row norms over real tokens."""
        # The whole batch is one product for each matrix. A product for each example would copy the
        # matrix for each, and add up as many gradients.
        columns = x.permute(1, 2, 0, 3)
        slots = matrix @ columns.flatten(-2)
        slots = slots.view(*slots.shape[:-1], *columns.shape[2:]).permute(2, 0, 1, 3)
        if not self.row_normalise:
            return slots
        squares = matrix.square()
        if keep is None:
            total = squares.sum(-1)[None]
        else:
            total = torch.einsum("hsn,bn->bhs", squares, keep.to(squares.dtype))
        return slots / total.clamp(min=torch.finfo(total.dtype).tiny).sqrt()[..., None]

    def windows(self, x: Float[Tensor, "b h n c"], nothing: float) -> Float[Tensor, "b h s w c"]:
        """Cut the length into pooling windows; pad the last one with `nothing`."""
        missing = -x.shape[2] % self.window
        if missing:
            x = F.pad(x, (0, 0, 0, missing), value=nothing)
        return x.reshape(*x.shape[:2], -1, self.window, x.shape[-1])

    def tokens_held(self, real: Float[Tensor, "b n"]) -> Float[Tensor, "b s"]:
        """Return how many real tokens each pooling window has."""
        return self.windows(real[:, None, :, None], 0.0).sum((-2, -1))[:, 0]
