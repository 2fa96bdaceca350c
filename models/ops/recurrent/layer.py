"""A recurrent layer as a mixer: one cell, or one from each end, and what is dropped around it.

    y = cell(x)                              causal, or bidirectional=False
    y = [cell(x), cell'(x from the end)]     else

Dropout is locked (variational, arXiv:1512.05287): one mask for all tokens of a row. The penalties
are those of Merity et al. 2017 (arXiv:1708.01009): alpha mean(m y)^2 over what the last layer
hands on, dropped by m, and beta mean(y_t - y_{t-1})^2 over what its cells give.

The order in which a recurrent layer reads a row: real tokens first, padding behind them.

So padding, wherever it stands, changes no state that a real token sees; from the last token to the
first, it is behind the first one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from lra.models.mixer import Family, Flow, Layout, Need, Site, State, Traits, blanked, check_share

LAST = torch.iinfo(torch.int64).max
"""Behind the ids of all documents."""


class Reading(NamedTuple):
    """An order of the tokens of each row."""

    order: Int[Tensor, "b l"] | None
    """Positions as they are read; None: all as they stand, or all `backwards`."""
    backwards: bool

    def of(self, x: Shaped[Tensor, "b l *d"]) -> Shaped[Tensor, "b l *d"]:
        """Return the tokens, or a fact of each, as they are read."""
        if self.order is None:
            return x.flip(1) if self.backwards else x
        order = self.order if x.ndim == 2 else self.order[..., None].expand_as(x)
        return x.gather(1, order)

    def back(self, y: Float[Tensor, "b l h"]) -> Float[Tensor, "b l h"]:
        """Return what was made of the tokens, each where it stands."""
        if self.order is None:
            return y.flip(1) if self.backwards else y
        places = self.order[..., None].expand_as(y)
        return torch.zeros_like(y).scatter(1, places, y)


def reading(
    keep: Bool[Tensor, "b l"] | None,
    *,
    backwards: bool,
    document: Int[Tensor, "b l"] | None = None,
) -> Reading:
    """Return the order of real tokens, from the first or from the last, then of padding.

    With `document`, tokens of one document stand together.
    """
    given = document if keep is None else keep
    if given is None:
        return Reading(None, backwards)
    position = torch.arange(given.shape[1], device=given.device)
    turn = (position.flip(0) if backwards else position).expand(given.shape)
    order = (turn if keep is None else turn + turn.shape[1] * ~keep).argsort(dim=1)
    if document is not None:
        document = document if keep is None else document.masked_fill(~keep, LAST)
        order = order.gather(1, document.gather(1, order).argsort(dim=1, stable=True))
    return Reading(order, backwards)


BOTH_WAYS = Need("bidirectional", causal=False)
"""What the option of every such family needs."""


def directions(site: Site, *, bidirectional: bool) -> int:
    """Return from how many ends a row is read."""
    return 2 if bidirectional and not site.causal else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Regularisation:
    """What is dropped around the cells of one layer, and what its activations cost."""

    input_dropout: float
    output_dropout: float
    activation_penalty: float
    change_penalty: float

    def __post_init__(self) -> None:
        """Refuse shares outside [0, 1), and negative costs."""
        check_share(input_dropout=self.input_dropout, output_dropout=self.output_dropout)
        for name in ("activation_penalty", "change_penalty"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or positive: got {getattr(self, name)}")


def locked_dropout(
    x: Float[Tensor, "b l d"], share: float, *, training: bool
) -> Float[Tensor, "b l d"]:
    """Drop the same channels of all tokens of a row; on a GPU others than `TiedDropout` draws."""
    if not (share and training):
        return x
    return x * nn.functional.dropout(torch.ones_like(x[:, :1]), share)


class RecurrentMixer(Family):
    """One cell, or one from each end, with dropout, penalties and a projection where asked for.

    Args:
        cell: Makes a cell from the width that it reads and its own.
        hidden_width: Of each direction, with a linear map back; None: the width of the model, or
            half of it for each of two directions, without a map.
        bidirectional: Whether a second cell reads from the end, where later tokens may be seen.
        input_dropout: Share of the input channels dropped for a whole row; one, or one per layer.
        output_dropout: Share of the output channels dropped for a whole row; one, or one per layer.
        activation_penalty: AR: times the mean square of what the last layer hands on.
        change_penalty: TAR: times the mean square of its change from token to token.
        noisy: Whether cells draw in training.

    Raises:
        ValueError: The width cannot be halved, or a value is out of range.
    """

    def __init__(
        self,
        site: Site,
        cell: Callable[[int, int], nn.Module],
        *,
        hidden_width: int | None,
        bidirectional: bool,
        input_dropout: Sequence[float],
        output_dropout: Sequence[float],
        activation_penalty: float,
        change_penalty: float,
        noisy: bool,
    ) -> None:
        super().__init__()
        sides = directions(site, bidirectional=bidirectional)
        hidden = cell_width(site, hidden_width, sides)
        # A penalty is of the last layer; others must still refuse a wrong one.
        self.regularisation = Regularisation(
            input_dropout=site.at([*input_dropout]),
            output_dropout=site.at([*output_dropout]),
            activation_penalty=activation_penalty,
            change_penalty=change_penalty,
        )
        self.penalised = site.layer == site.depth - 1 and (
            activation_penalty > 0 or change_penalty > 0
        )
        self.cells = nn.ModuleList(cell(site.width, hidden) for _ in range(sides))
        self.out_proj: nn.Linear | None = None
        if hidden_width is not None:
            self.out_proj = nn.Linear(sides * hidden, site.width)
            nn.init.xavier_uniform_(self.out_proj.weight)
            nn.init.zeros_(self.out_proj.bias)
        noisy = (
            noisy or self.regularisation.input_dropout > 0 or self.regularisation.output_dropout > 0
        )
        self.traits = Traits(causal=sides == 1, training_noise=noisy, reversible=not self.penalised)

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Continue from `flow.state`; with state None, from an empty one."""
        chosen = self.regularisation
        x = blanked(flow.x, layout, self.traits)
        x = locked_dropout(x, chosen.input_dropout, training=self.training)
        outputs, state = [], flow.state
        for number, cell in enumerate(self.cells):
            order: Reading = reading(layout.keep, backwards=number == 1)
            y, after = cell(order.of(x), flow.state)
            outputs.append(order.back(y))
            state = state if flow.state is None else after
        y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
        y = blanked(y, layout, self.traits)
        handed_on = locked_dropout(y, chosen.output_dropout, training=self.training)
        flow = flow._replace(
            x=handed_on if self.out_proj is None else self.out_proj(handed_on), state=state
        )
        return self._with_penalties(flow, y, handed_on, layout.keep)

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
        """Add what the last layer's activations cost in training."""
        if not (self.penalised and self.training):
            return flow
        chosen = self.regularisation
        if chosen.activation_penalty:
            cost = chosen.activation_penalty * _mean(handed_on.square(), keep)
            flow = flow.add_penalty("activation", cost)
        if chosen.change_penalty:
            both = None if keep is None else keep[:, 1:] & keep[:, :-1]
            cost = chosen.change_penalty * _mean((y[:, 1:] - y[:, :-1]).square(), both)
            flow = flow.add_penalty("change", cost)
        return flow


def cell_width(site: Site, hidden_width: int | None, directions: int) -> int:
    """Return the width of one cell. ValueError where it is none."""
    if hidden_width is not None:
        if hidden_width < 1:
            raise ValueError(f"hidden_width must be at least 1, or null: got {hidden_width}")
        return hidden_width
    if site.width % directions:
        raise ValueError(
            "two directions share the width in halves: got model.backbone.width="
            f"{site.width}; make it even, or set hidden_width"
        )
    return site.width // directions


def _mean(values: Float[Tensor, "b l h"], keep: Bool[Tensor, "b l"] | None) -> Float[Tensor, ""]:
    """Return the mean over real tokens, at least in float32; 0 where there is none."""
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    if keep is None:
        return values.sum() / max(1, values.numel())
    total = values.masked_fill(~keep[..., None], 0).sum()
    return total / (keep.sum() * values.shape[-1]).clamp(min=1)
