"""Which tokens attend to each other in a mixer, found by running it, without its mask's formula.

Where weights can be read, by head: the keys of a query with a weight, and for each how many keys of
that query have exactly its weight. That is 1 where keys are distinguished, and more where a method
sees them as a group, as H-Transformer's levels and pools do. Elsewhere, for a mixer as a whole:
the tokens whose change moves the output, by the gradient of a direction of it; a token itself is
then always among them, being the query.

Inputs are random, so that equal weights mean one group; hashes, sorts and random blocks are those
of one example.
"""

from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lra.models.backbone.attention_weights import recorded_calls, weights
from lra.models.mixer import Layout
from lra.models.multi_head import Core

EQUAL = 1e-9
"""Two weights count as equal in float64 below this relative difference."""
NOTHING = 1e-13
"""Fraction of the largest weight in a row; rounding leaves less where no attention goes."""


def patterns(mixer: nn.Module, x: Float[Tensor, "1 l d"]) -> dict[str, Int[Tensor, "l s"]]:
    """Return the pattern of each head, or of the mixer (`all`): 0 where a query attends to nothing.

    Args:
        mixer: In evaluation mode and float64.
        x: A random input.
    """
    module: Any = mixer
    core = getattr(mixer, "core", None)
    if module.traits.row_stochastic and isinstance(core, nn.Module):
        with torch.no_grad(), recorded_calls({0: core}) as calls:
            module(x, Layout())
        if calls:
            with torch.no_grad():
                pieces = [part for _, part in weights(cast(Core, core), calls[0])]
            (every,) = torch.cat(pieces, dim=-1)
            return {str(head): groups(matrix) for head, matrix in enumerate(every)}
    return {"all": gradient_support(mixer, x)}


def groups(matrix: Float[Tensor, "l s"]) -> Int[Tensor, "l s"]:
    """Return how many keys of a row share the weight of each; 0 for a hidden key."""
    size = matrix.abs()
    seen = size > NOTHING * size.amax(-1, keepdim=True)
    near = (matrix[:, :, None] - matrix[:, None]).abs() <= EQUAL * size[:, :, None]
    return (near & seen[:, None]).sum(-1) * seen


def gradient_support(mixer: nn.Module, x: Float[Tensor, "1 l d"]) -> Int[Tensor, "l s"]:
    """Return 1 where an output depends on an input."""
    x = x.detach().requires_grad_()
    y = cast(Any, mixer)(x, Layout())
    direction = torch.linspace(0.5, 1.5, y.shape[-1], dtype=y.dtype, device=y.device)
    rows = []
    for answer in (y[0] * direction).sum(-1):
        (slope,) = torch.autograd.grad(answer, x, retain_graph=True, allow_unused=True)
        moved = torch.zeros_like(x[0]) if slope is None else slope[0]
        norms = moved.norm(dim=-1)
        rows.append(norms > NOTHING * norms.amax().clamp(min=NOTHING))
    return torch.stack(rows).long()
