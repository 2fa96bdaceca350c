"""Hyena: implicit long convolutions that alternate with gates; a small network makes the kernels.

    x_1, ... x_N, v = short(W_in u + b_in),  W_in: d -> (N + 1) d      separate taps per channel
    v <- K_i * (v x_i) + D_i (v x_i)         for i = N, ... 2; * is causal, as long as the sequence
    out = W_out (v x_1) + b_out

A network with sine activations maps each lag to the value of the kernel K
(`lra.models.ops.convolution.implicit`).

Cost       For each sequence of a batch, the convolutions take O(N d n log n) operations and the
           maps (N + 2) d^2 n. The kernels take O(n w (w + N d)), once for the whole batch.
State      The state stores the last inputs of the short convolution and the last
           `model.backbone.memory` inputs of each long one. A decoding step takes O(N d n).
Source     Poli et al. 2023, arXiv:2302.10866. Code: HazyResearch/safari, standalone_hyena.py.
Notation   N is `order`, filter_order `filter_width`, w `frequency` (1 in the standalone file, 10 in
           configured models), emb_dim 1 + 2 `bands`, l_max the longest input.
Published  The paper's language models are causal, in blocks with a feed-forward network.
Optimiser  The network learns at `rate` times the run's learning rate, and its table z at
           `rate_of_positions` times that rate, both without weight decay. (The released code fixes
           these rates at 0.001 and 0.00001.)
Differs    bidirectional=true is an addition of this project. Separate kernels weigh later tokens
           from lag 1 on; they come from another last map of the same network. Short convolutions
           stay causal. Distances skip padding inside a sequence. Inputs longer than the longest for
           which the model was built raise an error; the released code cuts them. The network starts
           as in the standalone file; language models of the repository draw its maps again from
           N(0, 0.02).
"""

from collections.abc import Mapping
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.linear_map import projection
from lra.models.mixer import (
    Count,
    Family,
    Flow,
    Fraction,
    Growth,
    Layout,
    Need,
    NonNegative,
    Positive,
    Site,
    State,
    Traits,
    Tuning,
    Whole,
    blanked,
    check_least,
    options,
)
from lra.models.ops.convolution.implicit import ImplicitKernel
from lra.models.ops.convolution.long import check_length, continued_convolution, long_convolution
from lra.models.ops.convolution.short import short_convolution
from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.recurrent.layer import BOTH_WAYS, directions, reading_order


@options
class Hyena(Family):
    """A hierarchy of gates and long convolutions."""

    order: int = 2
    """Number of gates, N, with N - 1 long convolutions between them."""
    filter_width: Count = 64
    """Width of the network that makes the kernels."""
    bands: Count = 1
    """Number of frequencies in the position features of the network, each as cosine and sine."""
    inner_layers: Whole = 2
    """Number of hidden layers of the network between its first and its last layer."""
    frequency: Positive = 1.0
    """Initial frequency of the network's sine activations; each unit has a separate one."""
    fast_decay: float = 0.3
    """Lag at which the last channel's kernel has decayed to `target`, as a fraction of the longest
    input."""
    slow_decay: float = 1.5
    """Lag at which the first channel's kernel has decayed to `target`, as a fraction of the longest
    input."""
    target: Fraction = 0.01
    """Factor to which kernels have decayed at the lags of `fast_decay` and `slow_decay`."""
    shift: NonNegative = 0.0
    """Constant that is added to the decay factor of kernels."""
    convolution: Count = 3
    """Kernel size of the short convolutions."""
    train_positions: bool = True
    """Whether the network's position features are trained."""
    bidirectional: bool = False
    rate: Positive = 1.0
    """Learning rate of the network, as a multiple of the run's learning rate."""
    rate_of_positions: Positive = 0.01
    """Learning rate of the position features, as a multiple of the run's learning rate."""
    needs = (BOTH_WAYS, Need("rate_of_positions", train_positions=True))

    def build(self, site: Site) -> None:
        """Make projections and kernels; ValueError for bad decays, or `order` below 2."""
        check_least(2, order=self.order)
        if not 0 < self.fast_decay <= self.slow_decay:
            raise ValueError(
                "the lags of kernel decay must be positive, and fast_decay at most slow_decay: got "
                f"fast_decay={self.fast_decay}, slow_decay={self.slow_decay}"
            )
        width, inner = site.width, (self.order + 1) * site.width
        sides = directions(site, bidirectional=self.bidirectional)
        self.in_proj = projection(width, inner, bias=True)
        self.taps = nn.Parameter(torch.empty(inner, self.convolution))
        self.taps_bias = nn.Parameter(torch.empty(inner))
        for parameter in (self.taps, self.taps_bias):  # as PyTorch draws a convolution's
            nn.init.uniform_(parameter, -(self.convolution**-0.5), self.convolution**-0.5)
        self.skip = nn.Parameter(torch.empty(self.order - 1, width))
        nn.init.normal_(self.skip)
        self.kernel = ImplicitKernel(
            (self.order - 1) * width, site.max_length, copies=sides, width=self.filter_width,
            bands=self.bands, inner_layers=self.inner_layers, frequency=self.frequency,
            slow=self.slow_decay, fast=self.fast_decay, target=self.target, shift=self.shift,
            train_positions=self.train_positions,
        )  # fmt: skip
        self.out_proj = projection(width, width, bias=True)
        self.traits = Traits(
            supports=frozenset({"keep", "start"}),
            causal=sides == 1,
            max_length=site.max_length,
            operations=Growth(1.0, log=True),
            summarises=self.convolution > 1 or self.order > 2,
        )

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Continue after the inputs in `flow.state`; with state None, start without inputs.

        Raises:
            ValueError: Without a state, the input is longer than the kernels.
        """
        # Padding is moved after the real tokens, so that distances count real tokens only.
        order = reading_order(layout.keep, backwards=False)
        u = self.in_proj(order.reorder(blanked(flow.x, layout, self.traits)))
        with full_precision(u):
            z, state = self._convolve(u, layout, flow.state)
        y = blanked(order.back(z.to(u.dtype)), layout, self.traits)
        return flow._replace(x=blanked(self.out_proj(y), layout, self.traits), state=state)

    def _convolve(
        self, u: Float[Tensor, "b l e"], layout: Layout, state: State
    ) -> tuple[Float[Tensor, "b l d"], State]:
        """Return v x_1 of every token, and the next state if one is given.

        `u` holds the projected tokens, with padding after the real tokens.
        """
        tokens, *inputs = (None,) if state is None else cast(tuple[Tensor, ...], state)
        u, tokens = short_convolution(u, self.taps, self.taps_bias, tokens)
        if layout.keep is not None:  # biases and taps have made padding nonzero
            place = torch.arange(u.shape[1], device=u.device)
            u = u * (place < layout.keep.sum(1, keepdim=True))[..., None]
        *gates, v = u.mT.chunk(len(self.skip) + 2, dim=1)
        if state is None:
            check_length(u.shape[1], self.traits.max_length)
        # With a state, a token reads itself and the remembered inputs.
        lags = u.shape[1] if state is None else inputs[0].shape[-1] + 1
        kernels = self.kernel(lags).to(u.dtype).chunk(len(self.skip), dim=1)
        after = [tokens]
        for number, (kernel, skip) in enumerate(zip(kernels, self.skip.to(u.dtype), strict=True)):
            v = v * gates[-1 - number]
            if state is None:
                convolved = long_convolution(v, *kernel)
            else:
                convolved, last_inputs = continued_convolution(v, kernel[0], inputs[number])
                after.append(last_inputs)
            v = convolved + skip[:, None] * v
        return (v * gates[0]).mT, None if state is None else tuple(after)

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return zeros for the earlier inputs of each convolution, as many as `memory` needs."""
        check_length(memory, self.traits.max_length)
        dtype, (inner, taps) = sum_dtype(self.taps), self.taps.shape
        shapes = [(taps - 1, inner), *[(self.skip.shape[1], memory - 1)] * len(self.skip)]
        return tuple(self.taps.new_zeros(batch_size, *shape, dtype=dtype) for shape in shapes)

    def tuning(self) -> Mapping[str, Tuning]:
        """Return settings of the kernel network (no weight decay, other rates) and of taps."""
        names = dict(self.named_parameters())
        network = Tuning(learning_rate_scale=self.rate, weight_decay=0.0)
        special = {name: network for name in names if name.startswith("kernel.")}
        if "kernel.positions" in special:
            special["kernel.positions"] = Tuning(
                learning_rate_scale=self.rate_of_positions, weight_decay=0.0, matrix=False
            )
        return special | dict.fromkeys(("taps", "skip"), Tuning(matrix=False))
