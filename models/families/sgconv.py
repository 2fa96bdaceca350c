"""SGConv: a structured global convolution; its multiscale kernel decays with distance.

    K = [m^(S-1) P_0, m^(S-2) P_1, m^(S-3) up(P_2, 2), ... up(P_{S-1}, 2^(S-2))] / |K at start|
    y = K * u + D u                           bidirectional: + K' * u, from lag 1 to later tokens
    out = GLU(W gelu(y) + b),  W: c d -> 2 d        (mixing=linear: W gelu(y) + b, c d -> d)

Each P_i has `smallest` parameters a channel and is interpolated linearly to 2^max(0, i-1) as many
lags, up to the longest input: S = 1 + ceil(log2(n / smallest)) pieces. m goes from `decay_min` in
the first channel to `decay_max` in the last. With decay=lag, all pieces have equal weights, and K_t
is multiplied by (t + 1)^-m.

LongConv (kernel=free) learns every lag: K = sign(V) max(|V| - threshold, 0). In training,
`kernel_dropout` applies to this kernel. It is not normalised.

Cost       For each sequence, the convolution takes O(d n log n) operations and the output map 4 c n
           d^2; the kernel takes O(c d n). The number of parameters grows as log n, or as n with
           LongConv.
State      The state stores the last `model.backbone.memory` inputs; a decoding step takes O(d n).
Source     Li et al. 2022, arXiv:2210.09298, code: ctlllll/SGConv, branch preview. LongConv: Fu et
           al. 2023, arXiv:2302.06646, code: HazyResearch/safari.
Notation   kernel_dim is `smallest`, l_max the longest input, init_scale the logarithm of `stretch`
           to base 2, channels is `kernels` (c); mode cat_randn is init=normal, cat_cos is
           init=cosine, cat_randn_learnable_fixed is decay=lag. lam is `threshold`.
Published  The papers' blocks have no feed-forward network (feed_forward=none), as in S4. LongConv
           has kernels=2, values of threshold and kernel_dropout for each task, and is bidirectional
           on Pathfinder and Path-X and causal elsewhere.
Optimiser  kernels learn at `rate` times the run's learning rate; those of LongConv without weight
           decay.
Differs    With decay=lag, that code draws m between its ends; here m is spread evenly. Distances
           skip padding inside a sequence. Inputs longer than the longest for which the model was
           built raise an error; in that code the kernel is padded with zeros. Modes sum, nearest
           and learned decays are unsupported. LongConv's code wraps lags beyond a short input
           around to later tokens; here they are dropped.
"""

from collections.abc import Mapping
from enum import StrEnum, auto
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import (
    Count,
    Family,
    Flow,
    Growth,
    Layout,
    Need,
    NonNegative,
    Positive,
    Share,
    Site,
    State,
    Traits,
    Tuning,
    blanked,
)
from lra.models.ops.channel_map import ChannelMixing, apply_channel_gate, channel_projection
from lra.models.ops.convolution.kernels import Decay, FreeKernel, PiecewiseKernel, Start
from lra.models.ops.convolution.long import check_length, continued_convolution, long_convolution
from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.recurrent.layer import BOTH_WAYS, directions, reading_order


class KernelForm(StrEnum):
    """Parametrisation of a kernel: interpolated pieces, or a parameter for each lag (free)."""

    pieces = auto()
    free = auto()


def decays(site: Site, chosen: Any) -> bool:
    """Return whether `decay_min` and `decay_max` have an effect: on lags, or on several pieces."""
    if chosen.kernel == KernelForm.free:
        return False
    several_pieces: bool = chosen.smallest * chosen.stretch < site.max_length
    return chosen.decay == Decay.lag or several_pieces


class SGConv(Family):
    """A long convolution, followed by a map over channels.

    Args:
        kernel: Parametrisation of the long kernel.
        smallest: Number of parameters of each piece of the kernel, which is also the number of lags
            of the first piece.
        stretch: Number of distances (lags) that share each parameter of the kernel's first piece; a
            power of two.
        init: Initial values of the kernel's pieces.
        decay: Whether weights of the kernel decay from piece to piece, or from lag to lag.
        decay_min: Strength m of the kernel's decay in the first channel.
        decay_max: Strength m of the kernel's decay in the last channel.
        threshold: Number by which each weight of a free kernel shrinks towards 0 (LongConv's
            lambda).
        kernel_dropout: Dropout rate of the lags of a free kernel.
        kernels: Number of kernels per channel; the output map reads the results of all.
        mixing: Map over channels after the mixer's activation.
        dropout: Dropout rate before the output map.
        rate: Learning rate of the kernel, as a multiple of the run's learning rate.
    """

    needs = (
        BOTH_WAYS,
        Need("smallest", "stretch", "init", kernel=KernelForm.pieces),
        Need("decay", kernel=KernelForm.pieces),
        Need("decay_min", "decay_max", words="a kernel that decays", holds=decays),
        Need("threshold", "kernel_dropout", kernel=KernelForm.free),
    )

    def __init__(
        self,
        site: Site,
        *,
        kernel: KernelForm = KernelForm.pieces,
        smallest: Count = 64,
        stretch: int = 1,
        init: Start = Start.normal,
        decay: Decay = Decay.piece,
        decay_min: float = 2.0,
        decay_max: float = 2.0,
        threshold: NonNegative = 0.003,
        kernel_dropout: Share = 0.0,
        kernels: Count = 1,
        bidirectional: bool = True,
        mixing: ChannelMixing = ChannelMixing.glu,
        dropout: Share = 0.0,
        rate: Positive = 0.1,
    ) -> None:
        """Check the options; make the kernels, the skip weights and the output map."""
        super().__init__()
        if stretch < 1 or stretch & (stretch - 1):
            raise ValueError(
                "stretch, the number of lags per parameter of the kernel's first piece, must be a "
                f"power of two: got {stretch}; use 1, 2, 4 or 8"
            )
        if not 0 < decay_min <= decay_max:
            raise ValueError(
                "the kernel's decays must be positive, and decay_min at most decay_max: got "
                f"decay_min={decay_min}, decay_max={decay_max}"
            )
        self.kernels, self.mixing, self.dropout, self.rate = kernels, mixing, dropout, rate
        width, sides = site.width, directions(site, bidirectional=bidirectional)
        shape, free = (sides * kernels, width), kernel == KernelForm.free
        self.kernel: PiecewiseKernel | FreeKernel
        if free:
            self.kernel = FreeKernel(shape, site.max_length, threshold, kernel_dropout)
        else:
            ends = (decay_min, decay_max)
            self.kernel = PiecewiseKernel(
                shape, smallest, site.max_length, stretch=stretch, decay=decay, ends=ends, init=init
            )
        self.skip = nn.Parameter(torch.empty(kernels, width))
        nn.init.normal_(self.skip)
        self.out_proj = channel_projection(kernels * width, width, mixing)
        self.traits = Traits(
            supports=frozenset({"keep", "start"}),
            causal=sides == 1,
            max_length=site.max_length,
            operations=Growth(1.0, log=True),
            training_noise=dropout > 0 or (free and kernel_dropout > 0),
        )

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Continue after the inputs in `flow.state`; with state None, start without inputs.

        Raises:
            ValueError: Without a state, the input is longer than the kernel.
        """
        x = blanked(flow.x, layout, self.traits)
        # Padding is moved after the real tokens, so that distances count real tokens only.
        order = reading_order(layout.keep, backwards=False)
        u = order.reorder(x).mT.to(sum_dtype(x))
        with full_precision(x):
            y, state = self._convolve(u, flow.state)
        y = blanked(order.back(y.mT).to(x.dtype), layout, self.traits)
        y = F.dropout(F.gelu(y), self.dropout, self.training)
        return flow._replace(x=apply_channel_gate(self.out_proj(y), self.mixing), state=state)

    def _convolve(
        self, u: Float[Tensor, "b d l"], state: State
    ) -> tuple[Float[Tensor, "b cd l"], State]:
        """Return y of every token for each of c kernels, and the next state if one is given."""
        skip = (self.skip.to(u.dtype)[..., None] * u[:, None]).flatten(1, 2)
        convolved = list[Tensor]()
        if state is None:
            check_length(u.shape[-1], self.traits.max_length)
            sides = self.kernel(u.shape[-1]).to(u.dtype).split(self.kernels)
            convolved = [long_convolution(u, *pair) for pair in zip(*sides, strict=True)]
        else:
            before = cast(Tensor, state)
            # A token reads itself and the inputs before it; all kernels give the same next state.
            for kernel in self.kernel(before.shape[-1] + 1).to(u.dtype):
                y, state = continued_convolution(u, kernel, before)
                convolved.append(y)
        return skip + torch.cat(convolved, dim=1), state

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return zeros for the `memory` - 1 earlier inputs that a token reads."""
        check_length(memory, self.traits.max_length)
        width = self.skip.shape[1]
        return self.skip.new_zeros(batch_size, width, memory - 1, dtype=sum_dtype(self.skip))

    def tuning(self) -> Mapping[str, Tuning]:
        """Return settings of the kernels: a lower learning rate; no weight decay for LongConv."""
        free = isinstance(self.kernel, FreeKernel)
        return {
            name: Tuning(
                learning_rate_scale=self.rate, weight_decay=0.0 if free else None, matrix=False
            )
            for name, _ in self.named_parameters()
            if name.startswith("kernel.")
        }
