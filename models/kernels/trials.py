"""How inputs for the comparison of a kernel are drawn, for every operation with a door."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lra.models.mixer import Layout
from lra.models.ops.sparse.block_table import laid_out

Draw = Callable[[Tensor, torch.Generator], Tensor]
"""Returns drawn numbers with the shape and dtype of a tensor."""


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers from a normal distribution."""
    drawn = torch.randn(like.shape, generator=generator, dtype=torch.float32)
    return drawn.to(like.device, like.dtype)


def decays(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return logarithms of decays, below 0."""
    return -F.softplus(normal(like, generator) - 1)


def slow_decays(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return logarithms of decays that leave a half after some twenty tokens, below 0."""
    return -F.softplus(normal(like, generator) - 4)


def steps(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers above 0, most of them below 1."""
    return F.softplus(normal(like, generator) - 1)


def negative_steps(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers below 0, most of them above -1."""
    return -steps(like, generator)


def positive(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers from 0.25 on."""
    return F.softplus(normal(like, generator)) + 0.25


def rates(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers between 0 and 1."""
    return normal(like, generator).sigmoid()


def up_to_two(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers between 0 and 2."""
    return 2 * rates(like, generator)


def gentle_slopes(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return small numbers above 0, as ALiBi's slopes are."""
    return normal(like, generator).abs() / 8


def unit(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return rows of length 1."""
    return F.normalize(normal(like, generator), dim=-1)


def gram(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return symmetric matrices without negative eigenvalues."""
    x = normal(like, generator)
    return x @ x.mT / x.shape[-1]


def blocks_of_first_tokens(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return a call of `chosen_attention` whose blocks are those of its queries' tokens."""
    q, keys, values = (inputs[name] for name in ("q", "keys", "values"))
    table = laid_out(Layout(), q.shape[2], inputs["table"].block, causal=True, like=q)
    contents = {"keys": table.contents(keys), "values": table.contents(values)}
    return {**inputs, "table": table, **contents}


@dataclass(frozen=True)
class DrawnCall:
    """How inputs for a comparison are made from the arguments of a call."""

    tokens: Mapping[str, int] = field(default_factory=dict)
    """The dimension of tokens of each argument that is cut; without any, rows stay whole."""
    draws: Mapping[str, Draw] = field(default_factory=dict)
    """How an argument is drawn; other floating tensors are drawn from a normal distribution."""
    one_row: bool = True
    """Whether the first sequence is enough; else an argument holds something of each."""
    weights: Collection[str] = ()
    """Arguments without rows, which stay whole."""
    fit: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """Makes arguments that describe others, such as tables, fit the cut ones."""


ROWS = dict.fromkeys(("q", "k", "v", "g", "w", "beta"), 2)
MASKED = ROWS | {"keep": 1}
WHOLE = DrawnCall(draws={"slopes": gentle_slopes})
"""Sets and lists of keys describe whole batches, so that nothing is cut."""
TRIALS = {
    "decayed_product": DrawnCall(MASKED, {"g": decays}),
    "delta_product": DrawnCall(
        MASKED | {"u": 2}, {"g": decays, "k": unit, "w": unit, "u": unit, "beta": rates}
    ),
    "causal_product": DrawnCall(MASKED, {"memory": positive}, one_row=False),
    "log_linear_product": DrawnCall(MASKED | {"weights": 2}, {"g": decays}),
    "slot_attention": DrawnCall(MASKED | {"s": 2}, {"g": decays, "s": rates}),
    "least_squares": DrawnCall(
        MASKED,
        {"g": decays, "q": unit, "k": unit, "beta": rates, "ridge": positive, "before": gram},
        one_row=False,
    ),
    "fading_attention": DrawnCall(ROWS, {"g": slow_decays}),
    "reflected_attention": DrawnCall(ROWS, {"g": slow_decays, "w": unit, "beta": up_to_two}),
    "chosen_attention": DrawnCall(
        dict.fromkeys(("q", "keys", "values", "chosen"), 2), fit=blocks_of_first_tokens
    ),
    "short_convolution": DrawnCall({"x": 1, "document": 1}, weights=("weight", "bias")),
    "selective_scan": DrawnCall(
        dict.fromkeys(("u", "dt", "write", "read", "begins"), 1),
        {"dt": steps, "rates": negative_steps},
        weights=("rates",),
    ),
    "window_attention": WHOLE,
    "union_attention": WHOLE,
    "block_attention": WHOLE,
    "list_attention": WHOLE,
}
"""By operation."""
