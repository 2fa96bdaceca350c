"""Which tokens attend to each other in a mixer; this is found by running it on random inputs.

If attention weights can be read, there is one pattern for each head. It says which keys of a query
have a weight above 0, and for each of them how many keys of the query have exactly the same weight.
This number is 1 if a method distinguishes keys. It is larger if a method averages a group of keys,
as the levels of H-Transformer do. Otherwise there is one pattern for the whole mixer. It says on
which tokens an output depends, by the gradient; this always includes the token of the query.

The pattern of a method with hashes, sorting or random blocks is that of one example.
"""

from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lra.models.backbone.attention_weights import recorded_calls, weights
from lra.models.mixer import Layout
from lra.models.multi_head import Core

EQUAL = 1e-9
"""Two weights count as equal if their relative difference is smaller (in float64)."""
NOTHING = 1e-13
"""A weight counts as 0 if it is smaller than this fraction of the largest one in its row; rounding
errors are smaller."""


def patterns(mixer: nn.Module, x: Float[Tensor, "1 l d"]) -> dict[str, Int[Tensor, "l s"]]:
    """Return the pattern of each head by its number, or of the whole mixer under the name `all`.

    Row q of a pattern has an entry for each key: 0 if query q does not attend to the key, otherwise
    how many keys share its weight (1 in the pattern of a whole mixer).

    Args:
        mixer: A mixer in evaluation mode, in float64.
        x: A random input.
    """
    module: Any = mixer
    core = getattr(mixer, "core", None)
    # If the weights of each query sum to 1, they can be read from the core.
    if module.traits.row_stochastic and isinstance(core, nn.Module):
        with torch.no_grad(), recorded_calls({0: core}) as calls:
            module(x, Layout())
        if calls:
            with torch.no_grad():
                pieces = [part for _, part in weights(cast(Core, core), calls[0])]
            (matrices,) = torch.cat(pieces, dim=-1)  # the batch has one example
            return {str(head): groups(matrix) for head, matrix in enumerate(matrices)}
    return {"all": gradient_support(mixer, x)}


def groups(matrix: Float[Tensor, "l s"]) -> Int[Tensor, "l s"]:
    """Return how many keys of a row have the same weight as each key; 0 for a key with weight 0."""
    size = matrix.abs()
    attended = size > NOTHING * size.amax(-1, keepdim=True)
    # [l, s, s]: whether two keys of a row have the same weight.
    equal = (matrix[:, :, None] - matrix[:, None]).abs() <= EQUAL * size[:, :, None]
    return (equal & attended[:, None]).sum(-1) * attended


def gradient_support(mixer: nn.Module, x: Float[Tensor, "1 l d"]) -> Int[Tensor, "l s"]:
    """Return a matrix with 1 where output q depends on input j, and 0 elsewhere.

    Output q is projected to one number, and the gradient of this number is taken.
    """
    x = x.detach().requires_grad_()
    y = cast(Any, mixer)(x, Layout())
    # Different weights, because the plain sum is constant after a norm, and its gradient then 0.
    direction = torch.linspace(0.5, 1.5, y.shape[-1], dtype=y.dtype, device=y.device)
    rows = []
    for answer in (y[0] * direction).sum(-1):
        (slope,) = torch.autograd.grad(answer, x, retain_graph=True, allow_unused=True)
        gradient = torch.zeros_like(x[0]) if slope is None else slope[0]
        norms = gradient.norm(dim=-1)
        rows.append(norms > NOTHING * norms.amax().clamp(min=NOTHING))
    return torch.stack(rows).long()
