"""What heads have learned of how far back they look, and the operations that this spares.

    per token   sum over layers of 2 (4 d D + 2 d f + 2 s D)

is what papers print, half of it where they count a multiply-add once: s is the mean span of the
layer's heads, D the width of all heads, f that of the network; positions and the head of the model
are left out (Sukhbaatar et al. 2019, arXiv:1905.07799). What is really computed is counted besides:
keys as far as the longest span of a layer and its ramp.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.backbone.model import Backbone
from lra.models.backbone.stack import Stack
from lra.models.contract.counting import count_operations
from lra.runners.records import Measurement
from lra.runners.training.recurrent_state import remembered_tokens
from lra.tasks.task import Task, WindowedTask


@runtime_checkable
class LearnsSpans(Protocol):
    """A mixer whose heads learn how far back they look."""

    def learned_spans(self) -> Float[Tensor, " h"]:
        """Return the span of each head in tokens."""
        ...

    def widest(self) -> AbstractContextManager[None]:
        """Return a context in which every head looks as far as it ever may."""
        ...


LEARNED, FULL = "learned", "full"


def learned_span_rows(model: Backbone, task: Task) -> Iterator[Measurement]:
    """Yield the span of each head, their mean, and operations next to those of full spans.

    Nothing where no mixer learns a span. The model is as it was afterwards.
    """
    blocks = list(model.stack.blocks) if isinstance(model.stack, Stack) else []
    every = {layer: cast(Any, block).mixer for layer, block in enumerate(blocks)}
    mixers = {layer: mixer for layer, mixer in every.items() if isinstance(mixer, LearnsSpans)}
    if not mixers:
        return
    learned = {layer: mixer.learned_spans().tolist() for layer, mixer in mixers.items()}
    for layer, spans in learned.items():
        for head, value in enumerate(spans):
            labels = {"layer": str(layer), "head": str(head)}
            yield Measurement(metric="learned_span", value=value, labels=labels)
    values = [value for spans in learned.values() for value in spans]
    labels = {"layer": "all", "head": "all"}
    yield Measurement(metric="learned_span", value=sum(values) / len(values), labels=labels)
    for words in (LEARNED, FULL):
        with ExitStack() as opened:
            for mixer in mixers.values() if words == FULL else ():
                opened.enter_context(mixer.widest())
            labels = {"spans": words}
            counted = count_operations(lambda: _window(model, task))
            yield Measurement(metric="span_flops", value=float(counted), labels=labels)
            if len(mixers) == len(blocks):
                implied = flops_per_token(model, list(mixers.values()))
                yield Measurement(metric="span_flops_per_token", value=implied, labels=labels)


def flops_per_token(model: Backbone, mixers: list[LearnsSpans]) -> float:
    """Return the operations of a token at the spans as they are, a multiply-add as two."""
    config = model.config
    inner = config.heads * (config.head_width or config.width // config.heads)
    blocks = cast(Stack, model.stack).blocks
    network = sum(_weights(block) for block in blocks)
    spans = sum(float(mixer.learned_spans().mean()) for mixer in mixers)
    return 2.0 * (len(mixers) * 4 * config.width * inner + network + 2 * spans * inner)


def _weights(block: nn.Module) -> int:
    """Return the numbers of the matrices of a layer's network; 0 where it has none."""
    network = getattr(block, "network", None)
    return sum(p.numel() for p in network.parameters() if p.ndim == 2) if network else 0


def _window(model: Backbone, task: Task) -> None:
    """Read one window of evaluation, after a memory where there is one."""
    length = task.window("test") if isinstance(task, WindowedTask) else task.spec.max_length
    device = next(model.parameters()).device
    tokens = torch.zeros(1, 1, length, dtype=torch.long, device=device)
    with torch.no_grad():
        memory = remembered_tokens(model.config, task, training=False) if task.spec.memory else None
        state = None if memory is None else model.initial_state(1, memory)
        model.run(tokens, None, state)
