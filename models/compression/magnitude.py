"""Magnitude pruning: the weights of least absolute value become zeros.

    s_t = s_f + (s_i - s_f) (1 - (t - t_0) / (t_1 - t_0))^3        t_0 <= t <= t_1

is the share of zeros at step t of a gradual pruning, which rises fast while there is much to spare
and slowly towards the end. Which weights go is decided again every few steps; one that has gone
stays zero, for nothing is smaller. A dense product with zeros takes as long as with any numbers:
what gets smaller is the file.

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
    """Among which weights the smallest are sought."""

    overall = auto()
    """All of the model: one threshold, and layers of small weights lose more."""
    layer = auto()
    """Each map by itself: all lose the same share."""


def kept_weights(
    weights: Mapping[str, Tensor], sparsity: float, scope: Scope
) -> dict[str, Bool[Tensor, "*w"]]:
    """Return masks of the weights to keep: all but round(sparsity * number) of least magnitude.

    Of equal ones, the first are removed.

    Args:
        weights: Matrices by name.
        sparsity: Share of zeros, from 0 to below 1.
        scope: Among which weights the smallest are sought.

    Raises:
        ValueError: The share is none.
    """
    check_sparsity(sparsity)
    if scope == Scope.layer:
        return {name: _mask_largest(weight, sparsity) for name, weight in weights.items()}
    flat = torch.cat([weight.detach().flatten() for weight in weights.values()])
    sizes = [weight.numel() for weight in weights.values()]
    parts = torch.split(_mask_largest(flat, sparsity), sizes)
    return {
        name: part.view(weight.shape)
        for part, (name, weight) in zip(parts, weights.items(), strict=True)
    }


def _mask_largest(weight: Tensor, sparsity: float) -> Bool[Tensor, "*w"]:
    flat = weight.detach().abs().flatten()
    kept = torch.ones_like(flat, dtype=torch.bool)
    kept[flat.argsort(stable=True)[: round(sparsity * len(flat))]] = False
    return kept.view(weight.shape)


def check_sparsity(sparsity: float) -> None:
    """Raise ValueError unless `sparsity` is a share from 0 to below 1."""
    if not 0.0 <= sparsity < 1.0:
        raise ValueError(
            f"sparsity is the fraction of zeros, at least 0 and below 1: got {sparsity}; a "
            "model of zeros cannot answer"
        )


def cubic(step: int, *, final: float, begin: int, end: int) -> float:
    """Return s_t: 0 until step `begin`, `final` from step `end` on."""
    if step >= end:
        return final
    left = 1.0 if step <= begin else 1.0 - (step - begin) / (end - begin)
    return final - final * left**3


class MagnitudePruning(nn.Module):
    """Keeps weights of a model at zero while it trains: a part of it that acts after each step.

    Args:
        model: Whose linear maps are pruned; this module is not one of its parts yet.
        sparsity: At the end.
        scope: Among which weights the smallest are sought.
        steps: Over which the share rises; 0: it is there from the beginning.
        every: Steps after which it is decided again which weights go.
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
        # In a tuple they are no parts of this module, which is to be one of theirs.
        self._maps = (linear_maps(model),)
        for number, layer in enumerate(self._maps[0].values()):
            self.register_buffer(f"kept_{number}", torch.ones_like(layer.weight, dtype=torch.bool))
        if not steps:
            self._choose_zeros(sparsity)

    def after_step(self, step: int, generator: torch.Generator) -> None:
        """Raise the share of zeros when it is due; set the pruned weights to zero."""
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
        self.apply_zeros()  # what has gone is smallest again
        weights = {name: layer.weight for name, layer in self._maps[0].items()}
        for number, kept in enumerate(kept_weights(weights, sparsity, self.scope).values()):
            self.get_buffer(f"kept_{number}").copy_(kept)
        self.apply_zeros()


def prune_weights(model: Backbone, sparsity: float, scope: Scope = Scope.overall) -> None:
    """Set the weights of least magnitude to zero, once."""
    MagnitudePruning(model, sparsity, scope)


def share_of_zeros(model: Backbone) -> float:
    """Return the share of zeros in the linear maps that pruning acts on."""
    weights = [layer.weight for layer in linear_maps(model).values()]
    zeros = sum(int((weight == 0).sum()) for weight in weights)
    return zeros / sum(weight.numel() for weight in weights)
