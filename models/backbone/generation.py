"""Generation: a language model continues prompts, one token after another.

There are two ways, which give the same result. With a state (`lra.models.state`), the model reads a
prompt once, and then each new token alone. Without a state, it reads all tokens again for each new
one: this is slower, but every causal model can do it, and tests compare the first way with it.

    model.eval()
    generator = torch.Generator().manual_seed(0)
    sampling = TokenSampling(temperature=0.8, top_k=20)
    (added,) = generate(model, [prompt], steps=100, sampling=sampling, generator=generator)

The head computes logits for the last position of a prompt only, because logits for all positions
would take length x vocabulary numbers that are never used.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lra.models.backbone.model import Backbone
from lra.models.mixer import Layout, State, Unsupported


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
        """Raise ValueError for values that define no distribution."""
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(
                "temperature must be 0 (always take the likeliest token) or a positive number: got "
                f"{self.temperature}"
            )
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(
                f"top_k (tokens to draw from) must be at least 1, or null for all: got {self.top_k}"
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(
                f"top_p must be a probability above 0, or null for all tokens: got {self.top_p}"
            )

    def draw(
        self, logits: Float[Tensor, "b c"], generator: torch.Generator | None
    ) -> Int[Tensor, " b"]:
        """Return a token for each of b rows, drawn from the `logits` of c tokens.

        `generator` must be on the device of the logits; None is allowed if nothing is random.

        Raises:
            ValueError: A draw has no generator, or `top_k` is above the vocabulary size.
        """
        if self.top_k is not None and self.top_k > logits.shape[-1]:
            raise ValueError(
                f"top_k={self.top_k} is more than the {logits.shape[-1]} tokens of the "
                "vocabulary: choose a smaller number, or null for all tokens"
            )
        if self.temperature == 0 or self.top_k == 1:
            return logits.argmax(-1)
        if generator is None:
            raise ValueError(
                f"temperature={self.temperature} draws tokens at random: pass a generator, or "
                "temperature=0 to take the likeliest token"
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
        """Return the probabilities from which a token is drawn, [b c], in float64.

        If two ids have equal logits at a limit (`top_k`, `top_p`), the lower id is included first.
        """
        order = logits.argsort(dim=-1, descending=True, stable=True)
        ranked = logits.double().gather(1, order)
        if self.temperature == 0:
            # Greedy: only the likeliest token has a probability above 0.
            ranked = torch.full_like(ranked, -torch.inf).index_fill(1, order.new_zeros(1), 0.0)
        else:
            ranked = ranked / self.temperature
        if self.top_k is not None:
            ranked[:, self.top_k :] = -torch.inf
        ranked_probabilities = ranked.softmax(-1)
        if self.top_p is not None:
            # For each token, the probability of all likelier ones together.
            likelier = ranked_probabilities.cumsum(-1) - ranked_probabilities
            likelier[:, 0] = 0.0  # the likeliest token always stays, whatever rounding does
            ranked_probabilities = ranked_probabilities.masked_fill(likelier >= self.top_p, 0.0)
            ranked_probabilities /= ranked_probabilities.sum(-1, keepdim=True)
        return torch.zeros_like(ranked_probabilities).scatter(1, order, ranked_probabilities)

    def choose(
        self, logits: Float[Tensor, "b c"], uniform: Float[Tensor, " b"]
    ) -> Int[Tensor, " b"]:
        """Return, for each row, the first id at which the cumulated probabilities exceed `uniform`.

        `uniform` holds random numbers in [0, 1), so the ids follow `distribution(logits)`.

        Raises:
            ValueError: The logits are not finite.
        """
        if not bool(logits.isfinite().all()):
            raise ValueError(
                "the model's logits are not finite numbers, because its training has diverged: "
                "use other weights"
            )
        probabilities = self.distribution(logits)
        total = probabilities.cumsum(-1)
        chosen = torch.searchsorted(total, uniform[:, None] * total[:, -1:], right=True)[:, 0]
        ids = torch.arange(probabilities.shape[1], device=probabilities.device)
        # Rounding may lead beyond the last id whose probability is above 0.
        last = ids.mul(probabilities > 0).amax(-1)
        return torch.minimum(chosen, last)


GREEDY = TokenSampling(temperature=0.0)


class Point(NamedTuple):
    """A position in a continuation: the tokens not read yet, and the state before them."""

    unread: Int[Tensor, "b l"]
    """What the model reads next: the new tokens with a state, all tokens without one."""
    state: State
    """The state after earlier tokens; None: there is no state, so all tokens are read again."""
    condition: Int[Tensor, " b"] | None = None
    """The id of the condition of each row; None: the model reads none."""


def begin(
    model: Backbone,
    prompts: Int[Tensor, "b l"],
    *,
    memory: int | None,
    condition: Int[Tensor, " b"] | None = None,
) -> Point:
    """Return the starting point of a continuation; the model has not read the prompts yet.

    Args:
        model: A language model in eval mode.
        prompts: Token ids, b prompts of l >= 1 tokens.
        memory: Number of tokens, prompt included, that the state must store; None: no state.
        condition: The id of the condition of each prompt; None: the model reads none.

    Raises:
        Unsupported: The model is no causal language model, or has no state.
        ValueError: A prompt is empty, or the model is in training mode.
    """
    if not model.causal:
        raise Unsupported(
            "only a causal language model can continue a text: got a model with "
            f"head={model.facts.head.value}"
        )
    if model.training:
        raise ValueError("a model in training mode applies dropout: call model.eval() first")
    if not prompts.shape[1]:
        raise ValueError(
            "a prompt must have at least one token: got none; begin with a token that starts a text"
        )
    if memory is None:
        return Point(prompts, None, condition)
    return Point(prompts, model.initial_state(prompts.shape[0], memory), condition)


def next_logits(model: Backbone, point: Point) -> tuple[Float[Tensor, "b c"], State]:
    """Read the unread tokens of `point`; return logits of the next token, and the next state."""
    layout = Layout(condition=point.condition)
    flow = model.run(point.unread[:, None], None, point.state, layout)
    return cast(Any, model.head)(flow.x[:, -1:])[:, 0], flow.state


def advance(
    model: Backbone, point: Point, sampling: TokenSampling, generator: torch.Generator | None
) -> tuple[Int[Tensor, " b"], Point]:
    """Choose one token for each row; return these tokens and the point after them.

    It changes nothing in place, so you can advance the same point again.
    """
    logits, state = next_logits(model, point)
    token = sampling.draw(logits, generator)
    new = token[:, None]
    unread = new if state is not None else torch.cat((point.unread, new), 1)
    return token, Point(unread, state, point.condition)


def generate(
    model: Backbone,
    prompts: Sequence[Int[Tensor, " _"]],
    *,
    steps: int,
    sampling: TokenSampling = GREEDY,
    generator: torch.Generator | None = None,
    recompute: bool = False,
    conditions: Int[Tensor, " rows"] | None = None,
) -> list[Int[Tensor, " n"]]:
    """Continue each prompt by `steps` tokens; return the new tokens of each prompt.

    Prompts of equal length form one batch, so the model needs no padding. Batches are processed,
    and tokens drawn, from the shortest prompts to the longest.

    Args:
        model: A language model in eval mode.
        prompts: Token ids on the model's device, at least one per prompt.
        steps: Number of tokens to add to each prompt.
        sampling: How a token is chosen from its logits.
        generator: Generator for random draws, on the model's device.
        recompute: Whether to read all tokens again for each new token, without a state.
        conditions: The id of the condition of each prompt, for models that read one.

    Raises:
        Unsupported: The model is no causal language model, or has no state without `recompute`.
        ValueError: A prompt is empty, `steps` is below 1, the model is in training mode, a draw
            has no generator, or the text is longer than the model's learned positions.
    """
    if steps < 1:
        raise ValueError(f"steps, the number of tokens to add, must be at least 1: got {steps}")
    groups: dict[int, list[int]] = {}
    for row, prompt in enumerate(prompts):
        groups.setdefault(len(prompt), []).append(row)
    continuations: dict[int, Tensor] = {}
    with torch.no_grad():
        for length in sorted(groups):
            rows = groups[length]
            memory = None if recompute else length + steps
            stacked = torch.stack([prompts[row] for row in rows])
            condition = None if conditions is None else conditions[rows]
            point = begin(model, stacked, memory=memory, condition=condition)
            added = []
            for _ in range(steps):
                token, point = advance(model, point, sampling, generator)
                added.append(token)
            continuations |= zip(rows, torch.stack(added, dim=1), strict=True)
    return [continuations[row] for row in range(len(prompts))]
