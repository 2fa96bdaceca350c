"""A recurrent layer as a mixer: one cell, or two that read from both ends, with dropout.

    y = cell(x)                              causal, or bidirectional=False
    y = [cell(x), cell'(x from the end)]     else

Dropout is locked (variational, arXiv:1512.05287): one mask for all tokens of a row. The penalties
are those of Merity et al. 2017 (arXiv:1708.01009): alpha mean(m y)^2 over what the last layer
hands on, dropped by m, and beta mean(y_t - y_{t-1})^2 over what its cells give.

A recurrent layer reads the real tokens of a row first, and padding after them, in both directions.
So padding never changes the state that a real token reads.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lra.models.linear_map import projection
from lra.models.mixer import (
    Count,
    Family,
    Flow,
    Layout,
    Need,
    NonNegative,
    Share,
    Site,
    State,
    Traits,
    blanked,
    options,
)
from lra.models.reading import (
    Reading as Reading,  # noqa: PLC0414  # handed on
    reading_order as reading_order,  # noqa: PLC0414  # handed on
)

BOTH_WAYS = Need("bidirectional", causal=False)
"""The option `bidirectional` needs a model that is not causal."""


def directions(site: Site, *, bidirectional: bool) -> int:
    """Return the number of directions in which a row is read, 1 or 2."""
    return 2 if bidirectional and not site.causal else 1


def locked_dropout(
    x: Float[Tensor, "b l d"], share: float, *, training: bool
) -> Float[Tensor, "b l d"]:
    """Return `x` after dropout at rate `share` of whole channels: equal at all tokens of a row."""
    if not (share and training):
        return x
    return x * nn.functional.dropout(torch.ones_like(x[:, :1]), share)


@options
class RecurrentMixer(Family):
    """One cell, or two that read from both ends, with dropout, penalties and an output map."""

    hidden_width: Count | None = None
    """Width of each direction, after which a linear map returns to the model's width. None: the
    width of the model, or half of it for each of two directions, without a map."""
    bidirectional: bool = True
    """Whether a second layer reads from the end, in models that may attend to later tokens."""
    input_dropout: list[Share] = [0.0]  # noqa: RUF012  read, never written
    """Dropout rate of input channels; a channel is dropped at all tokens of a sequence. Set
    one number for all layers, or one per layer."""
    output_dropout: list[Share] = [0.0]  # noqa: RUF012
    """Dropout rate of output channels; a channel is dropped at all tokens of a sequence. Set
    one number for all layers, or one per layer."""
    activation_penalty: NonNegative = 0.0
    """Weight in the loss of activation regularisation (AR), the mean square of the last layer's
    output."""
    change_penalty: NonNegative = 0.0
    """Weight in the loss of temporal activation regularisation (TAR), the mean square of the change
    of the last layer's output from token to token."""
    needs: ClassVar[Sequence[Need]] = (BOTH_WAYS,)
    noise: ClassVar[str]
    """The option by which cells draw in training."""

    def cell(self, site: Site, hidden: int) -> nn.Module:
        """Make a cell with `hidden` channels."""
        raise NotImplementedError

    def build(self, site: Site) -> None:
        """Make the cells and the output map. ValueError for a width that cannot be halved."""
        sides, hidden = directions(site, bidirectional=self.bidirectional), self.hidden_width
        if hidden is None and site.width % sides:
            raise ValueError(
                "a bidirectional layer uses half of the width for each direction: got "
                f"model.backbone.width={site.width}; make it even, or set hidden_width"
            )
        hidden = site.width // sides if hidden is None else hidden
        self.dropped = site.at([*self.input_dropout]), site.at([*self.output_dropout])
        # Only the last layer has penalties.
        costs = self.activation_penalty > 0 or self.change_penalty > 0
        self.penalised = site.layer == site.depth - 1 and costs
        self.cells = nn.ModuleList(self.cell(site, hidden) for _ in range(sides))
        self.out_proj: nn.Linear | None = None
        if self.hidden_width is not None:
            self.out_proj = projection(sides * hidden, site.width, bias=True)
        noisy = max(getattr(self, self.noise), *self.dropped) > 0
        self.traits = Traits(causal=sides == 1, training_noise=noisy, reversible=not self.penalised)

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Return the outputs for `flow.x`, and the state after it, if `flow.state` is given."""
        input_rate, output_rate = self.dropped
        x = blanked(flow.x, layout, self.traits)
        x = locked_dropout(x, input_rate, training=self.training)
        outputs, state = [], flow.state
        for number, cell in enumerate(self.cells):
            order: Reading = reading_order(layout.keep, backwards=number == 1)
            y, after = cell(order.reorder(x), flow.state)
            outputs.append(order.back(y))
            state = state if flow.state is None else after
        y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
        y = blanked(y, layout, self.traits)
        dropped_y = locked_dropout(y, output_rate, training=self.training)
        flow = flow._replace(
            x=dropped_y if self.out_proj is None else self.out_proj(dropped_y), state=state
        )
        return self._with_penalties(flow, y, dropped_y, layout.keep)

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return the cell's empty state, whose size is the same for any memory."""
        del memory
        (cell,) = self.cells
        state: State = cell.empty(batch_size)  # type: ignore[operator]
        return state

    def _with_penalties(
        self,
        flow: Flow,
        y: Float[Tensor, "b l h"],
        handed_on: Float[Tensor, "b l h"],
        keep: Bool[Tensor, "b l"] | None,
    ) -> Flow:
        """Add the penalties of the last layer's activations in training."""
        if not (self.penalised and self.training):
            return flow
        if self.activation_penalty:
            cost = self.activation_penalty * _mean(handed_on.square(), keep)
            flow = flow.add_penalty("activation", cost)
        if self.change_penalty:
            both_real = None if keep is None else keep[:, 1:] & keep[:, :-1]
            cost = self.change_penalty * _mean((y[:, 1:] - y[:, :-1]).square(), both_real)
            flow = flow.add_penalty("change", cost)
        return flow


def _mean(values: Float[Tensor, "b l h"], keep: Bool[Tensor, "b l"] | None) -> Float[Tensor, ""]:
    """Return the mean over real tokens, at least in float32; 0 without real tokens."""
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    if keep is None:
        return values.sum() / max(1, values.numel())
    total = values.masked_fill(~keep[..., None], 0).sum()
    return total / (keep.sum() * values.shape[-1]).clamp(min=1)
