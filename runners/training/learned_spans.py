"""The spans that heads have learned, and how many operations they save.

    operations per token   sum over layers of 2 (4 d D + 2 d f + 2 s D)

This is the formula of papers (Sukhbaatar et al. 2019, arXiv:1905.07799), which print half of it if
they count a multiply-add once. d is the width of the model, D the width of all heads, f the width
of the feed-forward network, and s the mean span of the heads of a layer. Positions and the head of
the model are excluded. The operations of a real pass are counted, too: it computes all keys up to
the longest span of a layer and its ramp.
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
    """A mixer in which each head learns its span: how many tokens back it attends."""

    def learned_spans(self) -> Float[Tensor, " h"]:
        """Return the span of each head in tokens."""
        ...

    def widest(self) -> AbstractContextManager[None]:
        """Return a context in which every head has the largest span that it can learn."""
        ...


LEARNED, FULL = "learned", "full"
"""Values of the label `spans`."""


def learned_span_rows(model: Backbone, task: Task) -> Iterator[Measurement]:
    """Yield the span of each head, the mean span, and the operations with learned and full spans.

    Nothing is yielded if no mixer learns spans. The model does not change.
    """
    blocks = list(model.stack.blocks) if isinstance(model.stack, Stack) else []
    all_mixers = {layer: cast(Any, block).mixer for layer, block in enumerate(blocks)}
    mixers = {layer: mixer for layer, mixer in all_mixers.items() if isinstance(mixer, LearnsSpans)}
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
    for kind in (LEARNED, FULL):
        with ExitStack() as contexts:
            for mixer in mixers.values() if kind == FULL else ():
                contexts.enter_context(mixer.widest())
            labels = {"spans": kind}
            counted = count_operations(lambda: _read_window(model, task))
            yield Measurement(metric="span_flops", value=float(counted), labels=labels)
            if len(mixers) == len(blocks):  # the formula needs a span in every layer
                per_token = flops_per_token(model, list(mixers.values()))
                yield Measurement(metric="span_flops_per_token", value=per_token, labels=labels)


def flops_per_token(model: Backbone, mixers: list[LearnsSpans]) -> float:
    """Return the operations per token by the formula of the module, with the present spans."""
    config = model.config
    inner = config.heads * (config.head_width or config.width // config.heads)
    blocks = cast(Stack, model.stack).blocks
    network_weights = sum(_count_network_weights(block) for block in blocks)
    spans = sum(float(mixer.learned_spans().mean()) for mixer in mixers)
    return 2.0 * (len(mixers) * 4 * config.width * inner + network_weights + 2 * spans * inner)


def _count_network_weights(block: nn.Module) -> int:
    """Return how many weights the matrices of a feed-forward network have; 0 without a network."""
    network = getattr(block, "network", None)
    return sum(p.numel() for p in network.parameters() if p.ndim == 2) if network else 0


def _read_window(model: Backbone, task: Task) -> None:
    """Run the model on one evaluation window, with a memory if the task has one."""
    length = task.window("test") if isinstance(task, WindowedTask) else task.spec.max_length
    device = next(model.parameters()).device
    tokens = torch.zeros(1, 1, length, dtype=torch.long, device=device)
    with torch.no_grad():
        memory = remembered_tokens(model.config, task, training=False) if task.spec.memory else None
        state = None if memory is None else model.initial_state(1, memory)
        model.run(tokens, None, state, filled=True)
