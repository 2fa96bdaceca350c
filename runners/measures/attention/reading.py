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
    """The tokens of a batch, one row for each sequence; an example may have several sequences."""

    real: Bool[Tensor, "b l"]
    """False at padding."""
    tokens: Int[Tensor, "b l"] | None
    """Ids of the tokens, -1 for a CLS vector; None if the model reads real numbers."""


class WeightReading(Protocol):
    """A measure of attention weights that is updated by every batch."""

    def add(self, layer: int, weights: Float[Tensor, "b h l s"], rows: KeptTokens) -> None:
        """Add the weights of one layer for one batch; `rows` says which positions are padding."""
        ...

    def measurements(self) -> Iterator[Measurement]:
        """Yield the results."""
        ...


class PassedBatch(NamedTuple):
    """What was recorded while a model read one batch, by layer."""

    weights: dict[int, Float[Tensor, "b h l s"]]
    """Attention weights of l queries on s keys."""
    kernels: dict[int, tuple[int, Tensor]]
    """For each convolution: how many taps precede the tap of the current token, and its kernels:
    [h t] for learned kernels, [b h l t] for kernels that are predicted from the tokens."""
    rows: KeptTokens


def pass_batch(model: Backbone, cores: dict[int, nn.Module], batch: Batch) -> PassedBatch:
    """Run a model on one batch, and return its attention weights and kernels.

    Args:
        model: A model in evaluation mode.
        cores: The attention functions to read, by layer. A function that has more inputs than
            queries, keys and values is skipped.
        batch: Examples, on the device of the model.
    """
    with recorded_calls(cores) as calls, _record_kernels(model) as (layouts, kernels):
        model.run(batch.tokens, batch.keep, None)
    matrices = {
        layer: torch.cat([part for _, part in weights(cast(Core, cores[layer]), call)], -1).double()
        for layer, call in calls.items()
    }
    tokens = None if model.facts.scalars else batch.tokens.flatten(0, 1)
    length, keep = batch.tokens.shape[2] + model.has_cls, layouts[0].keep
    if tokens is not None and model.has_cls:
        tokens = torch.cat((tokens.new_full((len(tokens), 1), -1), tokens), dim=1)
    count = batch.tokens.flatten(0, 1).shape[0]
    real = torch.ones(count, length, dtype=torch.bool, device=batch.tokens.device)
    return PassedBatch(matrices, kernels, KeptTokens(real if keep is None else keep, tokens))


@contextmanager
def _record_kernels(
    model: Backbone,
) -> Iterator[tuple[list[Layout], dict[int, tuple[int, Tensor]]]]:
    """Record the layout that the stack receives, and the kernels of each layer's convolution.

    Both are filled when the model runs inside the `with` block. See `PassedBatch.kernels`.
    """
    layouts: list[Layout] = []
    kernels: dict[int, tuple[int, Tensor]] = {}

    def record_layout(_: nn.Module, inputs: tuple[Flow, Layout]) -> None:
        _flow, layout = inputs
        layouts.append(layout)

    def kernel_recorder(layer: int, left: int) -> Callable[[nn.Module, Any, Tensor], None]:
        def record_kernel(_: nn.Module, __: Any, taps: Tensor) -> None:
            kernels[layer] = left, taps.detach()

        return record_kernel

    handles = [model.stack.register_forward_pre_hook(record_layout)]
    for layer, block in enumerate(cast(Any, model.stack).blocks):
        for part in block.modules():
            if isinstance(part, TapSoftmax):
                handles.append(part.register_forward_hook(kernel_recorder(layer, part.left)))
    try:
        yield layouts, kernels
    finally:
        for handle in handles:
            handle.remove()
