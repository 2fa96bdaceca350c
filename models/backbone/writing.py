"""Writing text: a trained language model continues a prompt, one token after another.

Up to the length of its training windows, the model uses its state, if it has one. Beyond it, the
model goes on with a state of fixed size (sums, hidden vectors, windows) or with one that the task
carries from batch to batch. If a state would have to grow, or positions end, or there is no state,
the model reads the last tokens that fill a window again for each new token.
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
"""Multiples of the window for which a state must have the same size to count as fixed. The first
one finds states that grow with the text, the second one also those that grow with its logarithm."""


class TextMemory(NamedTuple):
    """How many tokens a model remembers while it writes, and whether it can go beyond them."""

    tokens: int | None
    """Number of tokens for which its state has room; None: it has no state."""
    endless: bool
    """Whether the state continues beyond the window."""


def memory_of(model: Backbone, length: int) -> TextMemory:
    """Return how many tokens of a text of `length` tokens the model remembers while it writes.

    Beyond the window, a state that the task carries continues, and so does one whose size does not
    grow, unless positions or a mixer limit the length.
    """
    window, facts, config = model.facts.max_length, model.facts, model.config
    # Tokens of the state that the task carries from batch to batch; 0: it carries none.
    carried = config.evaluation_memory or config.memory or facts.memory if facts.memory else 0
    tokens = carried or min(length, window)

    try:
        state_bytes = size_bytes(model.initial_state(1, tokens))
    except Unsupported:
        return TextMemory(None, False)
    limited = model.positions is not None or any(
        traits.max_length is not None for traits in model.traits
    )
    if carried or limited:
        return TextMemory(tokens, not limited)
    try:
        fixed = all(
            size_bytes(model.initial_state(1, factor * window)) == state_bytes for factor in FURTHER
        )
    except (Unsupported, ValueError):  # the model cannot make a state beyond the window
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
    condition: int | None = None

    def tokens(
        self, sampling: TokenSampling, steps: int, generator: torch.Generator
    ) -> Iterator[int]:
        """Yield `steps` tokens that continue the text, each as soon as it is chosen.

        Draws are made on the CPU in float64, so equal logits give equal tokens everywhere.

        Args:
            sampling: How a token is chosen from its logits.
            steps: Number of tokens.
            generator: A generator on the CPU.
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
            use_state = state is not None and (self.memory.endless or len(text) <= window)
            unread = text[-1:] if use_state else text[-window:]
            used = state if use_state else None
            logits, state = _read_tokens(self.model, unread, used, self.condition)


def open_text(
    model: Backbone, prompt: Int[Tensor, " l"], steps: int, condition: int | None = None
) -> Opening:
    """Read a prompt; return the opening from which up to `steps` tokens can be written.

    Args:
        model: A causal language model in eval mode.
        prompt: Token ids, at least one.
        steps: Number of tokens that will be written, for which the state gets room.
        condition: The id of the condition, for models that read one.

    Raises:
        Unsupported: The model is no causal language model.
        ValueError: The prompt is empty, or longer than the model can read.
    """
    begin(model, prompt[None], memory=None)  # only for its checks of model and prompt
    text, window = tuple(prompt.tolist()), model.facts.max_length
    memory = memory_of(model, len(text) + steps)
    if len(text) > window and not memory.endless:
        reason = "the length of its training windows"
        if model.positions is not None:
            reason = "the number of its learned positions"
        raise ValueError(
            f"the prompt has {len(text):,} tokens, but this model can read {window:,} tokens, "
            f"{reason}: shorten the prompt to its last {window:,} tokens, or fewer"
        )
    state = None if memory.tokens is None else model.initial_state(1, memory.tokens)
    for first in range(0, len(text), window):
        logits, state = _read_tokens(model, text[first : first + window], state, condition)
    return Opening(model, text, memory, logits, state, condition)


def _read_tokens(
    model: Backbone, unread: list[int] | tuple[int, ...], state: State, condition: int | None
) -> tuple[Float[Tensor, "1 c"], State]:
    """Read tokens after `state`; return the logits of the next token and the next state."""
    device = next(model.parameters()).device
    row = None if condition is None else torch.tensor([condition], device=device)
    with torch.no_grad():
        return next_logits(model, Point(torch.tensor([[*unread]], device=device), state, row))
