"""Magnitude pruning: the weights with the smallest absolute values become zeros.

    s_t = s_f + (s_i - s_f) (1 - (t - t_0) / (t_1 - t_0))^3        t_0 <= t <= t_1

is the fraction of zeros at step t of gradual pruning, which rises fast at the start and slowly at
the end. Every few steps, the weights to prune are chosen again; pruned weights stay zero, because
no weight is smaller. Dense products with zeros take as long as with other numbers: pruning makes
the file smaller, but not the model faster.

Sources: Han et al. 2015, arXiv:1506.02626; Zhu and Gupta 2017, arXiv:1710.01878, equation 1, where
s_i = 0.
"""

from collections.abc import Mapping
from enum import StrEnum, auto

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from lra.models.backbone.model import Backbone
from lra.models.compression.linear_maps import linear_maps


class Scope(StrEnum):
    """The weights among which the smallest are pruned."""

    overall = auto()
    """All weights of the model: with one threshold, layers with small weights lose more."""
    layer = auto()
    """The weights of each linear map: all maps lose the same fraction."""


def kept_weights(
    weights: Mapping[str, Tensor], sparsity: float, scope: Scope
) -> dict[str, Bool[Tensor, "*w"]]:
    """Return masks that are False for the round(sparsity * number) smallest weights.

    Among weights of equal magnitude, the first are removed.

    Args:
        weights: Matrices by name.
        sparsity: Fraction of zeros, at least 0 and below 1.
        scope: Whether the smallest weights are those of all matrices or of each matrix.

    Raises:
        ValueError: `sparsity` is out of range.
    """
    if scope == Scope.layer:
        return {name: mask_largest(weight, sparsity) for name, weight in weights.items()}
    flat = torch.cat([weight.detach().flatten() for weight in weights.values()])
    sizes = [weight.numel() for weight in weights.values()]
    parts = torch.split(mask_largest(flat, sparsity), sizes)
    return {
        name: part.view(weight.shape)
        for part, (name, weight) in zip(parts, weights.items(), strict=True)
    }


def mask_largest(weight: Tensor, sparsity: float) -> Bool[Tensor, "*w"]:
    """Return a mask that is False for the round(sparsity * number) smallest magnitudes.

    Raises:
        ValueError: `sparsity` is out of range.
    """
    check_sparsity(sparsity)
    flat = weight.detach().abs().flatten()
    mask = torch.ones_like(flat, dtype=torch.bool)
    mask[flat.argsort(stable=True)[: round(sparsity * len(flat))]] = False
    return mask.view(weight.shape)


def check_sparsity(sparsity: float) -> None:
    """Raise ValueError unless `sparsity` is at least 0 and below 1."""
    if not 0.0 <= sparsity < 1.0:
        raise ValueError(
            f"sparsity is the fraction of zeros, at least 0 and below 1: got {sparsity}; choose "
            "a smaller fraction, such as 0.9"
        )


def cubic(step: int, *, final: float, begin: int, end: int) -> float:
    """Return the fraction of zeros at `step`: final - final ((end - step) / (end - begin))^3.

    It is 0 until step `begin`, and `final` from step `end` on.
    """
    if step >= end:
        return final
    remaining = 1.0 if step <= begin else 1.0 - (step - begin) / (end - begin)
    return final - final * remaining**3


class MagnitudePruning(nn.Module):
    """A module of a model in training, which sets pruned weights to zero after each step.

    Args:
        model: The model to prune, which does not contain this module yet.
        sparsity: Final fraction of zeros.
        scope: Whether the smallest weights are those of all maps or of each map.
        steps: Number of steps in which the fraction rises; 0: it is final from the start.
        every: Number of steps after which the weights to prune are chosen again.
    """

    def __init__(
        self, model: Backbone, sparsity: float, scope: Scope, *, steps: int = 0, every: int = 1
    ) -> None:
        super().__init__()
        check_sparsity(sparsity)
        if every < 1 or steps < 0:
            raise ValueError(
                f"steps must be at least 0 and every at least 1: got steps={steps}, every={every}"
            )
        self.sparsity, self.scope, self.steps, self.every = sparsity, scope, steps, every
        # In a tuple, so that PyTorch does not register the maps as parts of this module.
        self._maps = (linear_maps(model),)
        for number, layer in enumerate(self._maps[0].values()):
            self.register_buffer(f"kept_{number}", torch.ones_like(layer.weight, dtype=torch.bool))
        if not steps:
            self._choose_zeros(sparsity)

    def after_step(self, step: int, generator: torch.Generator) -> None:
        """Set pruned weights to zero; every `every` steps, raise the fraction and choose again."""
        del generator
        if self.steps and step <= self.steps and (step % self.every == 0 or step == self.steps):
            self._choose_zeros(cubic(step, final=self.sparsity, begin=0, end=self.steps))
        self.apply_zeros()

    @torch.no_grad()
    def apply_zeros(self) -> None:
        """Set the pruned weights to zero."""
        for number, layer in enumerate(self._maps[0].values()):
            layer.weight.masked_fill_(~self.get_buffer(f"kept_{number}"), 0.0)

    def _choose_zeros(self, sparsity: float) -> None:
        """Choose the weights to prune for this fraction of zeros, and set them to zero."""
        self.apply_zeros()  # so that pruned weights are the smallest
        weights = {name: layer.weight for name, layer in self._maps[0].items()}
        for number, kept in enumerate(kept_weights(weights, sparsity, self.scope).values()):
            self.get_buffer(f"kept_{number}").copy_(kept)
        self.apply_zeros()


def prune_weights(model: Backbone, sparsity: float, scope: Scope = Scope.overall) -> None:
    """Set the fraction `sparsity` of the model's weights, those of smallest magnitude, to zero."""
    MagnitudePruning(model, sparsity, scope)


def share_of_zeros(model: Backbone) -> float:
    """Return the fraction of zeros in the linear maps that pruning changes."""
    weights = [layer.weight for layer in linear_maps(model).values()]
    zeros = sum(int((weight == 0).sum()) for weight in weights)
    return zeros / sum(weight.numel() for weight in weights)
