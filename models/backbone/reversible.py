"""Reversible residuals: two streams of activations, each updated by a function of the other.

    y1 = x1 + F(x2),  y2 = x2 + G(y1)      F(x) = mixer(norm(x)), G(x) = network(norm(x))

Backward computes the inputs of each layer from its outputs, x2 = y2 - G(y1) and x1 = y1 - F(x2),
and the gradients at the same time. So only the stack's input and output are stored, whatever its
depth. Each function is computed once more than in an ordinary backward. Streams stay in the
precision of the embedding (float32), also under autocast, because the rounding errors of the
recomputed inputs grow with depth.

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
    def record(cls, like: Tensor) -> "_Random":
        """Return the present state, on the CPU and on the device of `like`."""
        cuda = torch.cuda.get_rng_state(like.device) if like.is_cuda else None
        return cls(torch.get_rng_state(), cuda)

    def restore(self, like: Tensor) -> None:
        """Set the global random state to this one; `like` is on the device of `record`."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, like.device)


@contextmanager
def _replay_random(random: _Random | None, like: Tensor) -> Iterator[None]:
    """In this context, draw the same numbers as after `random` was recorded; None: do nothing.

    The present random state is restored at the end.
    """
    if random is None:
        yield
        return
    present = _Random.record(like)
    random.restore(like)
    try:
        yield
    finally:
        present.restore(like)


class _Autocast(NamedTuple):
    """The state of autocast for a kind of device at one moment."""

    kind: str
    dtype: torch.dtype
    enabled: bool

    @classmethod
    def record(cls, like: Tensor) -> "_Autocast":
        """Return the present state for the kind of device that `like` is on."""
        kind = device_kind(like.device)
        return cls(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))

    @contextmanager
    def restore(self) -> Iterator[None]:
        """In this context, compute values with this autocast state and record gradients.

        Take the gradients themselves outside of this context: inside, autocast would lower the
        precision of products that were computed in float32 on purpose.
        """
        with torch.enable_grad(), torch.autocast(self.kind, self.dtype, self.enabled):
            yield


@dataclass
class _Pass:
    """Arguments and results of one pass through the blocks, except for the streams."""

    blocks: Sequence[TransformerBlock]
    layout: Layout
    blank: Blank
    states: Sequence[State]
    parameters: Sequence[nn.Parameter]
    after: list[State] = field(default_factory=list)
    """State of each block after the pass."""
    random: list[tuple[_Random | None, _Random | None]] = field(default_factory=list)
    """Random states before the mixer and before the network of each block."""

    def mix(self, layer: int, x: Float[Tensor, "b l d"]) -> Flow:
        """Return F(x), the output of the mixer of number `layer`, and the state after it."""
        flow = Flow(x, self.states[layer])
        return self.blocks[layer].mixed(flow, self.layout, self.blank)

    def run(
        self, x1: Float[Tensor, "b l d"], x2: Float[Tensor, "b l d"], *, replay: bool
    ) -> tuple[Float[Tensor, "b l d"], Float[Tensor, "b l d"]]:
        """Return both streams after all blocks, and store the state after each block in `after`.

        With `replay`, also record random states, with which backward repeats dropout.
        """
        for layer, block in enumerate(self.blocks):
            record = replay and block.training
            before_mixer = _Random.record(x1) if record else None
            flow = self.mix(layer, x2)
            x1 = x1 + flow.x
            before_network = _Random.record(x1) if record else None
            x2 = x2 + _join_pieces([block.transformed(part) for part in block.pieces(x1)])
            self.random.append((before_mixer, before_network))
            self.after.append(flow.state)
        return x1, x2


class _Reversed(torch.autograd.Function):
    """All blocks as one function of autograd; parameters are arguments, so they get gradients."""

    @staticmethod
    def forward(
        ctx: Any, x1: Tensor, x2: Tensor, run: _Pass, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return both streams after all blocks; store only these and the second input."""
        del parameters
        y1, y2 = run.run(x1, x2, replay=True)
        ctx.autocast = _Autocast.record(x1)
        ctx.run = run
        ctx.save_for_backward(y1, y2, x2)
        return y1, y2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d1: Tensor, d2: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the arguments, from those of both outputs, d1 and d2.

        In the loop, y1, y2, d1 and d2 change from those of a block's output to those of its input.
        """
        run: _Pass = ctx.run
        y1, y2, input2 = ctx.saved_tensors
        gradients: dict[nn.Parameter, Tensor] = {}
        for layer in reversed(range(len(run.blocks))):
            block, (before_mixer, before_network) = run.blocks[layer], run.random[layer]
            with _replay_random(before_network, y1):
                added, dy1 = _undo_network(block, y1, d2, gradients, ctx.autocast)
            # For the first block the stored input is used: its norm would magnify rounding errors
            # of vectors near zero, such as CLS.
            y2, d1 = y2 - added if layer else input2, d1 + dy1
            x2 = y2.detach().requires_grad_()
            with _replay_random(before_mixer, y1), ctx.autocast.restore():
                mixed = run.mix(layer, x2).x
            parts = [block.mixer_norm, block.mixer]
            d2 = d2 + _backpropagate(mixed, x2, d1, parts, gradients)
            y1 = y1 - mixed.detach()
        return d1, d2, None, *(gradients.get(parameter) for parameter in run.parameters)


def _undo_network(
    block: TransformerBlock,
    y1: Tensor,
    d2: Tensor,
    gradients: dict[nn.Parameter, Tensor],
    autocast: _Autocast,
) -> tuple[Tensor, Tensor]:
    """Return G(y1), which the network of `block` added to the second stream, and its gradient.

    This gradient is that of `y1`, given the gradient `d2` of the second stream. Gradients of the
    network's parameters are added to `gradients`.
    """
    outputs, input_gradients = [], []
    parts = [cast(Any, block.network_norm), cast(Any, block.network)]
    for piece, gradient in zip(block.pieces(y1), block.pieces(d2), strict=True):
        leaf = piece.detach().requires_grad_()
        with autocast.restore():
            output = block.transformed(leaf)
        input_gradients.append(_backpropagate(output, leaf, gradient, parts, gradients))
        outputs.append(output.detach())
    return _join_pieces(outputs), _join_pieces(input_gradients)


def _join_pieces(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate pieces along the length, without a copy if there is only one."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)


def _backpropagate(
    y: Tensor,
    x: Tensor,
    gradient: Tensor,
    parts: Sequence[nn.Module],
    gradients: dict[nn.Parameter, Tensor],
) -> Tensor:
    """Return the gradient of `x`, given the `gradient` of `y`, which was computed from `x`.

    Gradients of the parameters of `parts` are added to `gradients`.
    """
    parameters = dict.fromkeys(p for part in parts for p in part.parameters() if p.requires_grad)
    derivatives = torch.autograd.grad(y, [x, *parameters], gradient.to(y.dtype), allow_unused=True)
    for parameter, value in zip(parameters, derivatives[1:], strict=True):
        if value is not None:
            gradients[parameter] = gradients[parameter] + value if parameter in gradients else value
    return torch.zeros_like(x) if derivatives[0] is None else derivatives[0]


class ReversibleStack(Stack):
    """A stack that recomputes activations from its output in backward, instead of storing them.

    Both streams start as the input. The output is the norm of their mean or, with `concat`, the
    norm of both concatenated, with twice the width. A state is detached from earlier batches.

    Raises:
        Unsupported: A mixer passes more than tokens from layer to layer (`traits.reversible`).
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
        """Check the mixers, and make the last norm, twice as wide for two concatenated streams."""
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
                    f"residual=reversible cannot recompute {family(block.mixer)}, because this "
                    "mixer passes more than hidden states from layer to layer, for example a "
                    "memory or a penalty: choose residual=pre_norm"
                )

    def forward(self, flow: Flow, layout: Layout) -> Flow:  # type: ignore[override]
        """Return the output of the stack; a state, if given, has one entry per block."""
        layout, blank = self.checked(layout)
        blocks = [cast(TransformerBlock, block) for block in self.blocks]
        has_state = flow.state is not None
        states = cast(
            tuple[State, ...], detach(flow.state) if has_state else (None,) * len(self.blocks)
        )
        parameters = [p for p in self.blocks.parameters() if p.requires_grad]
        run = _Pass(blocks, layout, blank, states, parameters)
        if torch.is_grad_enabled():
            y1, y2 = _Reversed.apply(flow.x, flow.x, run, *parameters)  # type: ignore[no-untyped-call]
        else:
            y1, y2 = run.run(flow.x, flow.x, replay=False)
        x = torch.cat((y1, y2), dim=-1) if self.concat else (y1 + y2) / 2
        return flow._replace(state=tuple(run.after) if has_state else None).with_x(self.norm(x))
