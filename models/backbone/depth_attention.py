"""Attention over depth in place of residuals: every mixer and network reads all earlier outputs.

    input_s  = sum_i softmax_i(q_s . k_i) v_i,    k_i = RMS(v_i) = v_i / sqrt(mean(v_i^2) + epsilon)
    output_s = f_s(norm_s(input_s))

f_0, f_1, ... are mixer and network of one layer after the other. v_0 is the stack's input, and
v_(s + 1) is output_s. With `size` = n, the outputs of n functions in a row form one source, their
sum; a function also reads the sum of its block so far. A last query reads all sources for the
stack's output. Queries are learned, one vector for each f, and 0 at first: then every input is the
mean of its sources.

Cost       (2 depth + 1) width parameters. Each of s functions reads up to s / n + 1 sources, so
           the operations per token grow with depth^2 width / n; the sources of all layers stay in
           memory.
Source     Kimi Team 2026, "Attention Residuals", arXiv:2603.15031.
Differs    The norm of the keys has no weights, because they would only multiply the query. A layer
           with mixer and network counts as two functions, as in the paper.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.backbone.stack import Blank, Stack, TransformerBlock, family
from lra.models.mixer import Flow, Layout, State, Unsupported


class Sources:
    """What the functions of a stack have computed in one pass.

    Args:
        x: The input of the stack.
        size: Functions whose sum is one source.
        epsilon: Added to the mean square of a key.
    """

    def __init__(self, x: Float[Tensor, "b l d"], size: int, epsilon: float) -> None:
        self.size, self.epsilon, self.functions = size, epsilon, 0
        self.complete: list[tuple[Tensor, Tensor]] = []
        """Each source that no longer changes, with the factors that norm it."""
        self.latest = x
        """The sum of the block so far."""

    def factors(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l"]:
        """Return 1 / sqrt(mean(x^2) + epsilon) of each vector, in float32 or float64."""
        precise = x.to(torch.promote_types(x.dtype, torch.float32))
        return (precise.square().mean(-1) + self.epsilon).rsqrt()

    def read(self, query: Float[Tensor, " d"]) -> Float[Tensor, "b l d"]:
        """Return the mean of all sources, weighted by the softmax of their scores."""
        sources = [*self.complete, (self.latest, self.factors(self.latest))]
        scores = [(x * query).sum(-1, dtype=norm.dtype) * norm for x, norm in sources]
        weights = torch.stack(scores).softmax(0).to(self.latest.dtype)
        read = weights[0, ..., None] * sources[0][0]
        for weight, (x, _) in zip(weights[1:], sources[1:], strict=True):
            read = read + weight[..., None] * x
        return read

    def add(self, output: Float[Tensor, "b l d"]) -> None:
        """Add the output of the next function to its block; the first one begins a new block."""
        if self.functions % self.size:
            self.latest = self.latest + output
        else:
            self.complete.append((self.latest, self.factors(self.latest)))
            self.latest = output
        self.functions += 1


class DepthBlock(TransformerBlock):
    """One mixer and one position-wise network, each of which reads all earlier outputs.

    Raises:
        Unsupported: The mixer has a gate between its output and the residual, which is missing.
    """

    def __init__(self, mixer: nn.Module, *, width: int, **options: Any) -> None:
        """Make the block, and queries of zeros."""
        super().__init__(mixer, width=width, **options)
        if self.gates:
            raise Unsupported(
                f"{family(mixer)} has a gate between its output and the residual stream, which "
                "residual=attention replaces: choose residual=pre_norm or post_norm, or another "
                "family"
            )
        self.mixer_query = nn.Parameter(torch.zeros(width))
        if self.network is not None:
            self.network_query = nn.Parameter(torch.zeros(width))

    def forward(  # type: ignore[override]
        self, flow: Flow, layout: Layout, blank: Blank, sources: Sources
    ) -> Flow:
        """Apply the mixer, then the network, and add both outputs to `sources`.

        The tokens of `flow` are not read.
        """
        flow, canon = self.begun(flow.with_x(sources.read(self.mixer_query)), layout)
        mixed = self.mixed(flow, layout, blank, None, canon)
        sources.add(mixed.x)
        if self.network is not None:
            x = sources.read(self.network_query)
            sources.add(self.by_pieces(x, canon, layout.condition))
        return self.ended(mixed.with_x(sources.latest), canon)


class AttentionStack(Stack):
    """Blocks that read all outputs of the blocks before them, then a norm.

    Args:
        blocks: The blocks, which are `DepthBlock`s.
        width: Channels of the tokens.
        size: Mixers and networks whose sum is one source.
        options: Arguments of `Stack`.
    """

    def __init__(
        self, blocks: Sequence[DepthBlock], *, width: int, size: int, **options: Any
    ) -> None:
        super().__init__(blocks, width=width, **options)
        self.size, self.epsilon = size, cast(float, options["norm_epsilon"])
        self.query = nn.Parameter(torch.zeros(width))

    def forward(self, flow: Flow, layout: Layout) -> Flow:  # type: ignore[override]
        """Return the output of the stack; a state, if given, has one entry per block."""
        layout, blank = self.checked(layout)
        sources = Sources(flow.x, self.size, self.epsilon)
        has_state = flow.state is not None
        states = cast(tuple[State, ...], flow.state if has_state else (None,) * len(self.blocks))
        after = []
        for block, state in zip(self.blocks, states, strict=True):
            flow = block(flow._replace(state=state), layout, blank, sources)
            after.append(flow.state)
        flow = flow._replace(state=tuple(after) if has_state else None)
        return flow.with_x(self.closed(sources.read(self.query), layout.condition))
