"""A loop in a stack: some layers in a row are applied again and again, with their input injected.

    e   = the layers before the loop, applied to the stack's input
    x_0 = e (start=state), or noise (start=noise)
    x_r = the layers of the loop, applied to inject(x_(r-1), e),    r = 1 ... passes
    y   = the layers behind the loop, applied to norm(x_passes)

    inject(x, e) = x                none
                   x + e            add
                   W [x; e]         concat; W: 2 width -> width without bias

The norm before the layers behind the loop is the stack's last norm, used twice (pre_norm; post_norm
layers end with a norm anyway). Noise is normal with variance 2 / 5, cut at three deviations; in
evaluation x_0 is its mean, 0, so that a model gives the same answer twice.

In training, the number of passes may be random: 1 + Poisson(exp(normal)) with mean passes + 1, one
number per batch. Gradients may go through the last `back` passes only; the layers before the loop
then learn through e and these passes.

Cost       Every pass costs what its layers do; a state has entries for every pass. Parameters count
           once, and concat adds 2 width^2.
Source     Geiping et al. 2025, arXiv:2502.05171 (Huginn), and the code published with it: concat,
           noise, poisson, back=8, passes=32. Its layers have norms before and after mixer and
           network, which ours have not.
Differs    Huginn draws noise in evaluation too, and norms twice if no layer follows the loop.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.backbone.choices import Residual
from lra.models.backbone.stack import PostNormStack, Stack, TransformerBlock
from lra.models.idle import format_value
from lra.models.mixer import Flow, Layout, State, Unsupported

SPREAD = 0.5
"""Standard deviation of the logarithm of the rate from which numbers of passes are drawn."""


class Inject(StrEnum):
    """How the input of the loop enters each pass."""

    none = auto()
    add = auto()
    concat = auto()
    """A linear map of both vectors, concatenated."""


class LoopStart(StrEnum):
    """What the first pass of a loop reads in place of an earlier pass's output."""

    state = auto()
    """The input of the loop."""
    noise = auto()


class TrainPasses(StrEnum):
    """How many passes a loop makes in training."""

    fixed = auto()
    poisson = auto()
    """A random number, as in Huginn."""


@dataclass(frozen=True)
class Loop:
    """Where the loop is, and how it runs."""

    first: int
    """Number of its first layer, from 0."""
    last: int
    """Number of its last layer."""
    passes: int
    inject: Inject
    start: LoopStart
    train_passes: TrainPasses
    back: int | None
    """Last passes that gradients go through; None: all."""


def check_loop(config: Any) -> None:
    """Raise ValueError if the loop in `config` does not fit its layers or its other options."""
    first, last = config.loop_first, config.loop_last
    if first is None:
        return
    last = config.depth - 1 if last is None else last
    if not 0 <= first <= last < config.depth:
        raise ValueError(
            "loop_first and loop_last are the first and the last layer of the loop, counted from 0 "
            f"among depth={config.depth} layers: got loop_first={first}, loop_last="
            f"{format_value(config.loop_last)}; choose 0 <= loop_first <= loop_last <= "
            f"{config.depth - 1}"
        )
    conflicts = {
        f"residual={config.residual}": config.residual in {Residual.reversible, Residual.attention},
        f"pool_blocks={config.pool_blocks}": config.pool_blocks > 1,
        f"decoder_depth={config.decoder_depth}": config.decoder_depth > 0,
    }
    for option, conflicting in conflicts.items():
        if conflicting:
            raise ValueError(
                "a loop repeats layers of one stack at full length with ordinary residuals: got "
                f"loop_first={first} with {option}; set loop_first=null, or leave {option} at its "
                "default"
            )
    if (config.loop_back_passes or 0) > config.loop_passes:
        raise ValueError(
            "loop_back_passes, the last passes that gradients go through, must be at most "
            f"loop_passes={config.loop_passes}: got {config.loop_back_passes}; set it to null for "
            "all"
        )


def loop_of(config: Any) -> Loop | None:
    """Return the loop that the options of a backbone describe, or None."""
    if config.loop_first is None:
        return None
    last = config.depth - 1 if config.loop_last is None else config.loop_last
    return Loop(
        config.loop_first, last, config.loop_passes, config.loop_inject, config.loop_start,
        config.loop_train_passes, config.loop_back_passes,
    )  # fmt: skip


class LoopStack(Stack):
    """Layers, some of which are repeated, then a norm.

    Args:
        blocks: Every layer once.
        loop: Which layers are repeated, and how.
        width: Channels of the tokens.
        options: Arguments of `Stack`.
    """

    def __init__(
        self, blocks: Sequence[TransformerBlock], *, loop: Loop, width: int, **options: Any
    ) -> None:
        super().__init__(blocks, width=width, **options)
        self.loop, self.passes = loop, loop.passes
        self.adapter: nn.Linear | None = None
        if loop.inject == Inject.concat:
            self.adapter = nn.Linear(2 * width, width, bias=False)
            deviation = (2 / (5 * width)) ** 0.5  # as released
            nn.init.trunc_normal_(
                self.adapter.weight, std=deviation, a=-3 * deviation, b=3 * deviation
            )

    @property
    def visits(self) -> list[int]:
        """The number of each layer, from 0, in the order of a pass outside of training."""
        loop = self.loop
        core = list(range(loop.first, loop.last + 1))
        before, behind = range(loop.first), range(loop.last + 1, len(self.blocks))
        return [*before, *core * self.passes, *behind]

    def forward(self, flow: Flow, layout: Layout) -> Flow:  # type: ignore[override]
        """Return the output of the stack.

        A state, if given, has one entry for each layer and pass.

        Raises:
            Unsupported: The number of passes is random, and there is a state.
        """
        flow = self.opened(flow, layout.condition)
        facts = self.checked(layout)
        blocks, loop = [*self.blocks], self.loop
        passes = self.draw_passes(flow)
        has_state = flow.state is not None
        states = iter(cast(tuple[State, ...], flow.state)) if has_state else None
        after: list[State] = []

        def through_all(layers: Sequence[nn.Module], flow: Flow) -> Flow:
            for block in layers:
                if states is not None:
                    flow = flow._replace(state=next(states))
                flow = self.through(block, flow, *facts)
                after.append(flow.state)
            return flow

        flow = through_all(blocks[: loop.first], flow)
        entering = flow.x
        flow = flow.with_x(self.started(entering))
        blind = 0 if loop.back is None else passes - loop.back
        for number in range(passes):
            with torch.no_grad() if number < blind else nullcontext():
                flow = flow.with_x(self.injected(flow.x, entering))
                flow = through_all(blocks[loop.first : loop.last + 1], flow)
        if behind := blocks[loop.last + 1 :]:
            flow = through_all(behind, flow.with_x(self.closed(flow.x, layout.condition)))
        flow = flow._replace(state=tuple(after) if has_state else None)
        return flow.with_x(self.closed(flow.x, layout.condition))

    def draw_passes(self, flow: Flow) -> int:
        """Return the number of passes: random in training with train_passes=poisson."""
        loop = self.loop
        if not self.training or loop.train_passes == TrainPasses.fixed or flow.x.is_meta:
            return self.passes
        if flow.state is not None:
            raise Unsupported(
                "loop_train_passes=poisson draws a number of passes for each batch, but a state "
                "has entries for one number: set model.backbone.loop_train_passes=fixed, or choose "
                "a task without a memory"
            )
        mean = torch.tensor(float(self.passes)).log() - SPREAD**2 / 2
        rate = (mean + SPREAD * torch.randn(())).exp()
        return int(torch.poisson(rate)) + 1

    def started(self, entering: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        """Return x_0 of a loop with this input."""
        if self.loop.start == LoopStart.state:
            return entering
        if not self.training:
            return torch.zeros_like(entering)
        deviation = (2 / 5) ** 0.5
        noise = torch.empty_like(entering, requires_grad=False)
        return nn.init.trunc_normal_(noise, std=deviation, a=-3 * deviation, b=3 * deviation)

    def injected(
        self, x: Float[Tensor, "b l d"], entering: Float[Tensor, "b l d"]
    ) -> Float[Tensor, "b l d"]:
        """Return what the first layer of the loop reads in a pass."""
        if self.adapter is not None:
            adapted: Tensor = self.adapter(torch.cat((x, entering), dim=-1))
            return adapted
        return x + entering if self.loop.inject == Inject.add else x


class PostNormLoopStack(LoopStack, PostNormStack):
    """A norm, then layers that each end with a norm, some of which are repeated."""
