"""Record the attention weights and kernels of a trained model while it reads examples."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lra.models.backbone.attention_weights import recorded_calls, weights
from lra.models.backbone.model import Backbone
from lra.models.mixer import Flow, Layout
from lra.models.multi_head import Core
from lra.models.ops.convolution.layer import TapSoftmax
from lra.runners.records import Measurement
from lra.tasks.task import Batch


class KeptTokens(NamedTuple):
    """Positions of the tokens in a batch; p sequences of an example are p rows."""

    real: Bool[Tensor, "b l"]
    """False at padding."""
    tokens: Int[Tensor, "b l"] | None
    """Their ids, -1 for a CLS vector; None where they are numbers."""


class WeightReading(Protocol):
    """A measure of attention weights, updated by every batch."""

    def add(self, layer: int, weights: Float[Tensor, "b h l s"], rows: KeptTokens) -> None:
        """Take the weights of one layer."""
        ...

    def measurements(self) -> Iterator[Measurement]:
        """Yield the results."""
        ...


class PassedBatch(NamedTuple):
    """The records of one batch, by layer."""

    weights: dict[int, Float[Tensor, "b h l s"]]
    kernels: dict[int, tuple[int, Tensor]]
    """Taps before that of the token itself, and kernels, [h t] or [b h l t]."""
    rows: KeptTokens


def pass_batch(model: Backbone, cores: dict[int, nn.Module], batch: Batch) -> PassedBatch:
    """Run one batch, and return its records.

    Args:
        model: In evaluation mode; the batch is on its device.
        cores: Whose weights are read, by layer. A core that is handed more than queries, keys and
            values is left out.
        batch: Examples.
    """
    with recorded_calls(cores) as calls, _recorded(model) as (layouts, kernels):
        model.run(batch.tokens, batch.keep, None)
    matrices = {
        layer: torch.cat([part for _, part in weights(cast(Core, cores[layer]), call)], -1).double()
        for layer, call in calls.items()
    }
    tokens = None if model.facts.scalars else batch.tokens.flatten(0, 1)
    length, keep = batch.tokens.shape[-1] + model.has_cls, layouts[0].keep
    if tokens is not None and model.has_cls:
        tokens = torch.cat((tokens.new_full((len(tokens), 1), -1), tokens), dim=1)
    count = batch.tokens.flatten(0, 1).shape[0]
    real = torch.ones(count, length, dtype=torch.bool, device=batch.tokens.device)
    return PassedBatch(matrices, kernels, KeptTokens(real if keep is None else keep, tokens))


@contextmanager
def _recorded(model: Backbone) -> Iterator[tuple[list[Layout], dict[int, tuple[int, Tensor]]]]:
    """Record the layout that the stack receives, and the kernels of each layer's convolution."""
    layouts: list[Layout] = []
    kernels: dict[int, tuple[int, Tensor]] = {}

    def before(_: nn.Module, inputs: tuple[Flow, Layout]) -> None:
        layouts.append(inputs[1])

    def recorder(layer: int, left: int) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(_: nn.Module, __: Any, taps: Tensor) -> None:
            kernels[layer] = left, taps.detach()

        return hook

    handles = [model.stack.register_forward_pre_hook(before)]
    for layer, block in enumerate(cast(Any, model.stack).blocks):
        for part in block.modules():
            if isinstance(part, TapSoftmax):
                handles.append(part.register_forward_hook(recorder(layer, part.left)))
    try:
        yield layouts, kernels
    finally:
        for handle in handles:
            handle.remove()
