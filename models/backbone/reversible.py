"""Reversible residuals: two streams that each change by a function of the other.

    y1 = x1 + F(x2),  y2 = x2 + G(y1)      F = mixer behind its norm, G = network behind its norm

Backward computes the inputs from the outputs, x2 = y2 - G(y1) and x1 = y1 - F(x2), and the
gradients on the way, so that what is kept, input and output, does not grow with depth. Each
function is computed once more than in an ordinary backward. Streams stay in the precision of the
embedding (float32), also under autocast: rounding errors of the reconstruction grow with depth.

Source: Gomez et al. 2017, arXiv:1707.04585; Kitaev et al. 2020, arXiv:2001.04451, section 3.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lra.models.backbone.norms import NORM_EPSILON, NormKind
from lra.models.backbone.stack import Blank, Stack, TransformerBlock, family
from lra.models.device_kind import device_kind
from lra.models.mixer import Flow, Layout, State, Unsupported
from lra.models.state import detach


@dataclass
class _Random:
    """The global random state at one moment, on the CPU and on the streams' device."""

    cpu: Tensor
    cuda: Tensor | None

    @classmethod
    def now(cls, like: Tensor) -> "_Random":
        cuda = torch.cuda.get_rng_state(like.device) if like.is_cuda else None
        return cls(torch.get_rng_state(), cuda)

    def set(self, like: Tensor) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, like.device)


@contextmanager
def _replaying(random: _Random | None, like: Tensor) -> Iterator[None]:
    """Draw the same numbers as after `random` was recorded; restore the random state at the end."""
    if random is None:
        yield
        return
    before = _Random.now(like)
    random.set(like)
    try:
        yield
    finally:
        before.set(like)


class _Autocast(NamedTuple):
    """The state of autocast for a kind of device at one moment."""

    kind: str
    dtype: torch.dtype
    enabled: bool

    @classmethod
    def now(cls, like: Tensor) -> "_Autocast":
        kind = device_kind(like.device)
        return cls(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))

    @contextmanager
    def again(self) -> Iterator[None]:
        """Restore autocast and gradients as they were at this moment, to compute values again.

        Gradients themselves are taken outside of this context, as for any module: inside, autocast
        would lower the precision of products that were computed in float32 on purpose.
        """
        with torch.enable_grad(), torch.autocast(self.kind, self.dtype, self.enabled):
            yield


@dataclass
class _Pass:
    """What one pass through the blocks needs and returns, except for the streams."""

    blocks: Sequence[TransformerBlock]
    layout: Layout
    blank: Blank
    states: Sequence[State]
    parameters: Sequence[nn.Parameter]
    after: list[State] = field(default_factory=list)
    random: list[tuple[_Random | None, _Random | None]] = field(default_factory=list)

    def mixed(self, layer: int, x: Float[Tensor, "b l d"]) -> Flow:
        """Return the output of the mixer of `layer` for the stream `x`, and the state after it."""
        flow = Flow(x, self.states[layer])
        return self.blocks[layer].mixed(flow, self.layout, self.blank)

    def run(
        self, x1: Float[Tensor, "b l d"], x2: Float[Tensor, "b l d"], *, replay: bool
    ) -> tuple[Float[Tensor, "b l d"], Float[Tensor, "b l d"]]:
        """Pass both streams through every block; `replay` records the random state of each part."""
        for layer, block in enumerate(self.blocks):
            drawing = replay and block.training
            first = _Random.now(x1) if drawing else None
            flow = self.mixed(layer, x2)
            x1 = x1 + flow.x
            second = _Random.now(x1) if drawing else None
            x2 = x2 + _joined([block.transformed(part) for part in block.pieces(x1)])
            self.random.append((first, second))
            self.after.append(flow.state)
        return x1, x2


class _Reversed(torch.autograd.Function):
    """All blocks as one function; parameters are arguments, so that they get gradients."""

    @staticmethod
    def forward(
        ctx: Any, x1: Tensor, x2: Tensor, run: _Pass, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        del parameters
        y1, y2 = run.run(x1, x2, replay=True)
        ctx.autocast = _Autocast.now(x1)
        ctx.run = run
        ctx.save_for_backward(y1, y2, x2)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d1: Tensor, d2: Tensor) -> tuple[Tensor | None, ...]:
        run: _Pass = ctx.run
        y1, y2, begin = ctx.saved_tensors
        gradients: dict[nn.Parameter, Tensor] = {}
        for layer in reversed(range(len(run.blocks))):
            block, (first, second) = run.blocks[layer], run.random[layer]
            with _replaying(second, y1):
                undone, pulled = _undo_network(block, y1, d2, gradients, ctx.autocast)
            # The first norm would magnify the rounding of vectors near zero, such as CLS.
            y2, d1 = y2 - undone if layer else begin, d1 + pulled
            x2 = y2.detach().requires_grad_()
            with _replaying(first, y1), ctx.autocast.again():
                mixed = run.mixed(layer, x2).x
            d2 = d2 + _pull(mixed, x2, d1, [block.mixer_norm, block.mixer], gradients)
            y1 = y1 - mixed.detach()
        return d1, d2, None, *(gradients.get(parameter) for parameter in run.parameters)


def _undo_network(
    block: TransformerBlock,
    y1: Tensor,
    d2: Tensor,
    gradients: dict[nn.Parameter, Tensor],
    autocast: _Autocast,
) -> tuple[Tensor, Tensor]:
    """Return what the network of `block` added to the second stream, and the gradient of `y1`."""
    added, pulled = [], []
    parts = [cast(Any, block.network_norm), cast(Any, block.network)]
    for piece, gradient in zip(block.pieces(y1), block.pieces(d2), strict=True):
        leaf = piece.detach().requires_grad_()
        with autocast.again():
            changed = block.transformed(leaf)
        pulled.append(_pull(changed, leaf, gradient, parts, gradients))
        added.append(changed.detach())
    return _joined(added), _joined(pulled)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate pieces along the length, without a copy if there is only one."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)


def _pull(
    y: Tensor,
    x: Tensor,
    gradient: Tensor,
    parts: Sequence[nn.Module],
    gradients: dict[nn.Parameter, Tensor],
) -> Tensor:
    """Return the gradient of `x`; add those of the parameters of `parts` to `gradients`."""
    parameters = dict.fromkeys(p for part in parts for p in part.parameters() if p.requires_grad)
    derivatives = torch.autograd.grad(y, [x, *parameters], gradient.to(y.dtype), allow_unused=True)
    for parameter, value in zip(parameters, derivatives[1:], strict=True):
        if value is not None:
            gradients[parameter] = gradients[parameter] + value if parameter in gradients else value
    return torch.zeros_like(x) if derivatives[0] is None else derivatives[0]


class ReversibleStack(Stack):
    """A stack whose activations are recomputed from its output.

    Both streams begin as the input; they leave as their mean, or side by side behind one norm of
    twice the width (`concat`). A state passes through, detached from the past.

    Raises:
        Unsupported: A mixer carries a second stream or penalties of activations.
    """

    def __init__(
        self,
        blocks: Sequence[TransformerBlock],
        *,
        width: int,
        concat: bool = False,
        zeroed: bool = False,
        norm: NormKind = NormKind.layer,
        norm_epsilon: float = NORM_EPSILON,
    ) -> None:
        super().__init__(
            blocks,
            width=2 * width if concat else width,
            zeroed=zeroed,
            norm=norm,
            norm_epsilon=norm_epsilon,
        )
        self.concat = concat
        for block in blocks:
            if not cast(Any, block.mixer).traits.reversible:
                raise Unsupported(
                    f"residual=reversible cannot run {family(block.mixer)}, because it passes "
                    "more than hidden states from layer to layer, for example a memory or a "
                    "penalty: choose residual=pre_norm"
                )

    def forward(self, flow: Flow, layout: Layout) -> Flow:  # type: ignore[override]
        """Pass through every block; the state, if given, has one entry per block."""
        layout, blank = self.checked(layout)
        blocks = [cast(TransformerBlock, block) for block in self.blocks]
        given = flow.state is not None
        states = cast(
            tuple[State, ...], detach(flow.state) if given else (None,) * len(self.blocks)
        )
        parameters = [p for p in self.blocks.parameters() if p.requires_grad]
        run = _Pass(blocks, layout, blank, states, parameters)
        if torch.is_grad_enabled():
            y1, y2 = _Reversed.apply(flow.x, flow.x, run, *parameters)  # type: ignore[no-untyped-call]
        else:
            y1, y2 = run.run(flow.x, flow.x, replay=False)
        x = torch.cat((y1, y2), dim=-1) if self.concat else (y1 + y2) / 2
        return flow._replace(state=tuple(run.after) if given else None).with_x(self.norm(x))
