"""Generation: a language model continues prompts, one token after another.

Two ways with one result. With a state (`lra.models.state`), a prompt is read once, and each new
token alone after that. Without one, everything so far is read again for each token: slower, but any
causal model can do it, and it is what the other way must agree with.

    model.eval()
    generator = torch.Generator().manual_seed(0)
    sampling = TokenSampling(temperature=0.8, top_k=20)
    (added,) = generate(model, [prompt], steps=100, sampling=sampling, generator=generator)

Of a prompt only the last position goes through the head: logits of all of them would hold length x
vocabulary numbers that nobody reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lra.models.backbone.model import Backbone
from lra.models.mixer import State, Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSampling:
    """How a token is chosen from its logits."""

    temperature: float = 1.0
    """Logits are divided by it; 0 is greedy: the likeliest token, without a draw."""
    top_k: int | None = None
    """Number of most likely tokens to draw from; None: all."""
    top_p: float | None = None
    """Draw among the most likely tokens whose probabilities add up to this, after `top_k` (nucleus
    sampling, arXiv:1904.09751); None: all."""

    def __post_init__(self) -> None:
        """Raise for values that define no distribution."""
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(
                f"temperature must be 0 (greedy) or positive and finite: got {self.temperature}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, or null for all: got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], or be null for all: got {self.top_p}")

    def draw(
        self, logits: Float[Tensor, "b c"], generator: torch.Generator | None
    ) -> Int[Tensor, " b"]:
        """Choose a token for each row. A draw needs a generator of the logits' device.

        Raises:
            ValueError: No generator for a draw, or `top_k` beyond the vocabulary.
        """
        if self.top_k is not None and self.top_k > logits.shape[-1]:
            raise ValueError(
                f"top_k={self.top_k} is more than the vocabulary of {logits.shape[-1]}: choose "
                "a smaller one, or null for all"
            )
        if self.temperature == 0 or self.top_k == 1:
            return logits.argmax(-1)
        if generator is None:
            raise ValueError(
                f"temperature={self.temperature} draws at random: pass a generator, or "
                "temperature=0 for the likeliest token"
            )
        if self.top_p is not None:
            return torch.multinomial(self.distribution(logits), 1, generator=generator)[:, 0]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.temperature
        if self.top_k is None:
            return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
        best, token = logits.topk(self.top_k, dim=-1)
        choice = torch.multinomial(best.softmax(-1), 1, generator=generator)
        return token.gather(1, choice)[:, 0]

    def distribution(self, logits: Float[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        """Return the distribution that a token is drawn from, in float64.

        Of two ids with equal logits, the lower id is preferred.
        """
        order = logits.argsort(dim=-1, descending=True, stable=True)
        ranked = logits.double().gather(1, order)
        if self.temperature == 0:
            ranked = torch.full_like(ranked, -torch.inf).index_fill(1, order.new_zeros(1), 0.0)
        else:
            ranked = ranked / self.temperature
        if self.top_k is not None:
            ranked[:, self.top_k :] = -torch.inf
        shares = ranked.softmax(-1)
        if self.top_p is not None:
            before = shares.cumsum(-1) - shares
            before[:, 0] = 0.0  # rounding must not take the likeliest token away
            shares = shares.masked_fill(before >= self.top_p, 0.0)
            shares = shares / shares.sum(-1, keepdim=True)
        return torch.zeros_like(shares).scatter(1, order, shares)

    def choose(
        self, logits: Float[Tensor, "b c"], uniform: Float[Tensor, " b"]
    ) -> Int[Tensor, " b"]:
        """Choose the first id at which the cumulated probabilities exceed `uniform`, in [0, 1).

        Raises:
            ValueError: The logits are not finite.
        """
        if not bool(logits.isfinite().all()):
            raise ValueError(
                "the model's logits are not finite: its training has diverged; use other weights"
            )
        shares = self.distribution(logits)
        total = shares.cumsum(-1)
        chosen = torch.searchsorted(total, uniform[:, None] * total[:, -1:], right=True)[:, 0]
        ids = torch.arange(shares.shape[1], device=shares.device)
        last = ids.mul(shares > 0).amax(-1)  # where rounding ends behind it
        return torch.minimum(chosen, last)


GREEDY = TokenSampling(temperature=0.0)


class Point(NamedTuple):
    """A position in a continuation: the tokens not read yet, and the state before them."""

    unread: Int[Tensor, "b l"]
    """What the model reads next: the new tokens with a state, all tokens without one."""
    state: State
    """The state of earlier tokens; None: there is none, so that everything is read again."""


def begin(model: Backbone, prompts: Int[Tensor, "b l"], *, memory: int | None) -> Point:
    """Return the starting point of a continuation, with room for `memory` tokens.

    Args:
        model: A language model in eval mode.
        prompts: At least one token each.
        memory: Tokens of prompt and continuation together; None: without a state.

    Raises:
        Unsupported: The model is no causal language model, or has no state.
        ValueError: A prompt is empty, or dropout would act.
    """
    if not model.causal:
        raise Unsupported(
            f"only a causal language model continues a text: got head={model.facts.head.value}"
        )
    if model.training:
        raise ValueError("a model in training mode applies dropout: call model.eval() first")
    if not prompts.shape[1]:
        raise ValueError(
            "a prompt has at least one token: got none; begin with a token that starts a text"
        )
    if memory is None:
        return Point(prompts, None)
    return Point(prompts, model.initial_state(prompts.shape[0], memory))


def next_logits(model: Backbone, point: Point) -> tuple[Float[Tensor, "b c"], State]:
    """Return the logits of the next token, and the next state if there is one."""
    flow = model.run(point.unread[:, None], None, point.state)
    return cast(Any, model.head)(flow.x[:, -1:])[:, 0], flow.state


def advance(
    model: Backbone, point: Point, sampling: TokenSampling, generator: torch.Generator | None
) -> tuple[Int[Tensor, " b"], Point]:
    """Choose one token for each row; return them and the point after them.

    Nothing is changed in place: the same point can be advanced again.
    """
    logits, state = next_logits(model, point)
    token = sampling.draw(logits, generator)
    new = token[:, None]
    return token, Point(new if state is not None else torch.cat((point.unread, new), 1), state)


def generate(
    model: Backbone,
    prompts: Sequence[Int[Tensor, " _"]],
    *,
    steps: int,
    sampling: TokenSampling = GREEDY,
    generator: torch.Generator | None = None,
    recompute: bool = False,
) -> list[Int[Tensor, " n"]]:
    """Continue each prompt by `steps` tokens; return the new ones.

    Prompts may differ in length: those of equal length go together, the shortest first, so no
    padding reaches the model. Draws are made in that order.

    Args:
        model: A language model in eval mode.
        prompts: Token ids on the model's device, at least one each.
        steps: Tokens to add.
        sampling: How each is chosen.
        generator: For draws; of the model's device.
        recompute: Read everything again for each token, without a state.

    Raises:
        Unsupported: The model is no causal language model; or it has no state, and `recompute` is
            off.
        ValueError: An empty prompt, no positive `steps`, a model in training mode, a draw without
            generator, or a text beyond the model's learned positions.
    """
    if steps < 1:
        raise ValueError(f"steps counts the tokens to add, at least 1: got {steps}")
    groups: dict[int, list[int]] = {}
    for row, prompt in enumerate(prompts):
        groups.setdefault(len(prompt), []).append(row)
    continuations: dict[int, Tensor] = {}
    with torch.no_grad():
        for length in sorted(groups):
            rows = groups[length]
            memory = None if recompute else length + steps
            point = begin(model, torch.stack([prompts[row] for row in rows]), memory=memory)
            added = []
            for _ in range(steps):
                token, point = advance(model, point, sampling, generator)
                added.append(token)
            continuations |= zip(rows, torch.stack(added, dim=1), strict=True)
    return [continuations[row] for row in range(len(prompts))]
