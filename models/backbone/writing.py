"""Writing for a reader: a trained language model continues a prompt, one token after another.

As far as the window that it was trained on, through a state where the family has one. Beyond it, a
state whose size is fixed goes on (sums, hidden vectors, windows), and so does one that the task
carries from batch to batch. Where a state would have to grow, or positions end, and where there is
none, the last tokens that fill the window are read again for each new one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lra.models.backbone.generation import Point, TokenSampling, begin, next_logits
from lra.models.backbone.model import Backbone
from lra.models.mixer import State, Unsupported
from lra.models.state import size_bytes

FURTHER = (2, 64)
"""Windows for which a state of fixed size is as large: the first finds what grows as the text, the
second, which would be large for that, what has a level more for each doubling."""


class TextMemory(NamedTuple):
    """How many tokens a model remembers while it writes, and whether it can go beyond them."""

    tokens: int | None
    """Tokens for which its state has room; None: it has no state."""
    endless: bool
    """Whether the state continues beyond the window."""


def memory_of(model: Backbone, length: int) -> TextMemory:
    """Return how much of a text of `length` tokens the model remembers."""
    window, facts, config = model.facts.max_length, model.facts, model.config
    carried = config.evaluation_memory or config.memory or facts.memory if facts.memory else 0
    tokens = carried or min(length, window)

    try:
        held = size_bytes(model.initial_state(1, tokens))
    except Unsupported:
        return TextMemory(None, False)
    ends = model.positions is not None or any(
        traits.max_length is not None for traits in model.traits
    )
    if carried or ends:
        return TextMemory(tokens, not ends)
    try:
        fixed = all(
            size_bytes(model.initial_state(1, factor * window)) == held for factor in FURTHER
        )
    except (Unsupported, ValueError):  # no room beyond the window
        return TextMemory(tokens, False)
    return TextMemory(tokens, fixed)


@dataclass(frozen=True, slots=True)
class Opening:
    """A prompt that has been read; several continuations can start from it."""

    model: Backbone
    text: tuple[int, ...]
    memory: TextMemory
    logits: Float[Tensor, "1 c"]
    """Logits of the next token."""
    state: State

    def tokens(
        self, sampling: TokenSampling, steps: int, generator: torch.Generator
    ) -> Iterator[int]:
        """Yield `steps` tokens, each as soon as it is chosen.

        Draws are made on the CPU, from logits in float64: equal logits give equal tokens on every
        machine.

        Args:
            sampling: How each is chosen.
            steps: How many.
            generator: Of the CPU.
        """
        logits, state, text = self.logits, self.state, list(self.text)
        window = self.model.facts.max_length
        for step in range(steps):
            uniform = torch.rand(1, generator=generator, dtype=torch.float64)
            token = int(sampling.choose(logits.cpu(), uniform))
            yield token
            if step == steps - 1:
                return
            text.append(token)
            going_on = state is not None and (self.memory.endless or len(text) <= window)
            unread = text[-1:] if going_on else text[-window:]
            logits, state = _next_logits(self.model, unread, state if going_on else None)


def open_text(model: Backbone, prompt: Int[Tensor, " l"], steps: int) -> Opening:
    """Read a prompt, with room for `steps` more tokens.

    Args:
        model: A causal language model in eval mode.
        prompt: At least one token.
        steps: Tokens that will be written, for which the state has room.

    Raises:
        Unsupported: The model is no causal language model.
        ValueError: The prompt is empty, or longer than the model can read.
    """
    begin(model, prompt[None], memory=None)  # refuses what cannot be continued
    text, window = tuple(prompt.tolist()), model.facts.max_length
    memory = memory_of(model, len(text) + steps)
    if len(text) > window and not memory.endless:
        ends = ", where its positions end" if model.positions is not None else ""
        raise ValueError(
            f"the prompt has {len(text):,} tokens, but this model reads {window:,}, the length of "
            f"its training windows{ends}: shorten the prompt to its last {window:,} tokens, or "
            "fewer"
        )
    state = None if memory.tokens is None else model.initial_state(1, memory.tokens)
    for first in range(0, len(text), window):
        logits, state = _next_logits(model, text[first : first + window], state)
    return Opening(model, text, memory, logits, state)


def _next_logits(
    model: Backbone, unread: list[int] | tuple[int, ...], state: State
) -> tuple[Float[Tensor, "1 c"], State]:
    device = next(model.parameters()).device
    with torch.no_grad():
        return next_logits(model, Point(torch.tensor([[*unread]], device=device), state))
