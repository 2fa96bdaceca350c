"""Gaussian kernel attention without normalisation, and Skyformer: its Nystrom approximation.

Equation   kernelised  o_i = sum_j kappa(q_i, k_j) v_j,  kappa(x, y) = exp(-|x - y|^2 / (2 sqrt(d)))
           skyformer   o = kappa(q, X) D M' D kappa(X, k) v, where X are m of the 2 n queries and
                       keys, M = kappa(X, X) + gamma I, D = diag(rows of M summed)^(-1/2), and M'
                       an inverse of D M D
Inverse    iterative   six steps towards the Moore-Penrose inverse, the paper's
           exact       the Moore-Penrose inverse
Cost       Each head takes 4 n^2 d operations if kernelised, and 8 n m d + 48 m^3 as skyformer.
Source     Chen, Zeng, Ji, Yang, "Skyformer", arXiv:2111.00035.
Notation   the paper's n, p, d are l, k, landmarks; its C is kappa(q, k), its S chooses X.
Landmarks  half of X are queries, half keys. The choice is drawn when the mixer is built and again
           every `redraw_every` optimiser steps, once for all heads and rows, so that evaluation is
           repeatable: m numbers u of [0, 1), which in a row of N real tokens select
           independent  token floor(u N), with repetitions: the authors' choice
           stratified   one token from each of m / 2 segments of equal length: without repetitions,
                        and every token of a row of at most m / 2
           Padding is exact: a padded row gives the result of the row alone. With `padding:
           original`, the authors' code, the first N positions of a row of N real tokens can be
           chosen, padding among them as zeros.
Differs    The authors draw anew in every pass, evaluation included, and divide by the root of a
           head width of 32 at every width. The first value of their iterative inverse depends on
           the batch: see `initialisation`. Attention dropout applies only to kernelised attention.
           Their option `accumulation` (1 in all of their runs) is unsupported.
Mind       Outputs are not divided by the sum of the weights: they grow with the length, and a query
           far from all keys gives 0. With all 2 n landmarks, skyformer differs from kernelised
           attention only because of `gamma` (by 0.3 % at gamma=0.1 for random tokens) and of the
           six steps (by 3 % for the same tokens).
"""

from enum import StrEnum, auto
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lra.models.mixer import Growth, Layout, Need, PaddingRule, Site, Traits, Unsupported, Whole
from lra.models.multi_head import MultiHead
from lra.models.ops.linear.gaussian_product import dropped_product, gaussian_product
from lra.models.ops.low_rank.iterative_inverse import Initialisation, Inverse, InverseRule
from lra.models.ops.numerics import full_precision, sum_dtype

DRAW_BITS = 31


class SkyformerForm(StrEnum):
    """Exact quadratic attention (kernelised), or its linear estimate from landmarks (skyformer)."""

    kernelised = auto()
    skyformer = auto()


class LandmarkSampling(StrEnum):
    """How landmarks are sampled."""

    independent = auto()
    stratified = auto()


def draw(landmarks: int, generator: torch.Generator) -> Int[Tensor, "2 m"]:
    """Draw uniform integers below 2^31 for queries and for keys: exact on every machine."""
    return torch.randint(2**DRAW_BITS, (2, landmarks // 2), generator=generator, device="cpu")


def choose(
    draws: Int[Tensor, "2 m"], total: Int[Tensor, "b 1"], sampling: LandmarkSampling
) -> tuple[Int[Tensor, "2 b m"], Bool[Tensor, "b m"]]:
    """Return which tokens of each row are landmarks (for queries, for keys), and which exist.

    A draw u selects token floor(u N) of `total` N real tokens, or of the tokens of its segment.
    """
    slot = torch.arange(draws.shape[1], device=total.device)
    if sampling == LandmarkSampling.independent:
        chosen = draws[:, None] * total >> DRAW_BITS
        return chosen, (total > 0).expand(-1, len(slot))
    used = total.clamp(max=len(slot))  # at most one landmark for each token
    segments = used.clamp(min=1)
    start, end = slot * total // segments, (slot + 1) * total // segments
    chosen = start + (draws[:, None] * (end - start) >> DRAW_BITS)
    return chosen, slot < used


def take_tokens(
    x: Float[Tensor, "b h l k"], chosen: Int[Tensor, "b m"], keep: Bool[Tensor, "b l"] | None
) -> Float[Tensor, "b h m k"]:
    """Return the `chosen` tokens of `x`; their numbers count only tokens that `keep` allows."""
    chosen = chosen.clamp(max=x.shape[2] - 1)
    if keep is not None:
        # Real token number t, from 0, is where the count of real tokens reaches t + 1.
        index = torch.searchsorted(keep.cumsum(1), chosen + 1)
        chosen = index.clamp(max=x.shape[2] - 1)
    index = chosen[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
    return x.gather(2, index)


def skyformer_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    draws: Int[Tensor, "2 m"],
    *,
    inverse: InverseRule,
    gamma: float = 0.1,
    sampling: LandmarkSampling = LandmarkSampling.independent,
    keep: Bool[Tensor, "b l"] | None = None,
    padding: PaddingRule = PaddingRule.exact,
) -> Float[Tensor, "b h l v"]:
    """Return Skyformer's attention (see the module's docstring), at least in float32.

    `draws` selects the landmarks X among queries and keys, see `choose`.
    """
    dtype = sum_dtype(v)
    with full_precision(q):
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        if keep is None:
            total = draws.new_full((q.shape[0], 1), q.shape[2])
        else:
            total = keep.sum(1, keepdim=True)
        candidates = keep
        if keep is not None and padding == PaddingRule.original:
            q, k = (x.masked_fill(~keep[:, None, :, None], 0.0) for x in (q, k))
            candidates = None
        (queries, keys), exists = choose(draws, total, sampling)
        x = torch.cat((take_tokens(q, queries, candidates), take_tokens(k, keys, candidates)), 2)
        exists = torch.cat((exists, exists), dim=1)[:, None, :, None]
        y = x * x.shape[-1] ** -0.25
        norm = y.square().sum(-1, keepdim=True)
        small = (y @ y.mT - 0.5 * (norm + norm.mT)).clamp(max=0).exp()
        small = small + gamma * torch.eye(y.shape[2], dtype=dtype, device=y.device)
        small = small * (exists & exists.mT)
        # Rows and columns of landmarks that do not exist are 0, also in the inverse.
        root = torch.where(exists, small.sum(-1, keepdim=True), 1).rsqrt()
        z = inverse(root * small * root.mT)
        gathered = gaussian_product(x, k, v, keep)
        return gaussian_product(q, x, root * (z @ (root * gathered)))


class GaussianCore(nn.Module):
    """Attention with a Gaussian kernel, over every pair of tokens."""

    def __init__(self, dropout: float = 0.0) -> None:
        """Set the traits; outputs are sums and no means, because weights are not normalised."""
        super().__init__()
        self.dropout = dropout
        self.traits = Traits(
            operations=Growth(2.0), cross=True, sees_order=False, weight_dropout=True
        )

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Return the kernel-weighted sum of all values for each query."""
        if self.training and self.dropout:
            return dropped_product(q, k, v, layout.keep, self.dropout).to(v.dtype)
        return gaussian_product(q, k, v, layout.keep).to(v.dtype)


class SkyformerCore(nn.Module):
    """`skyformer_attention` with its options and its random draws."""

    draws: Int[Tensor, "2 m"]

    def __init__(
        self,
        draws: Int[Tensor, "2 m"],
        *,
        inverse: InverseRule,
        gamma: float,
        sampling: LandmarkSampling,
        padding: PaddingRule,
        max_length: int,
    ) -> None:
        """Set the traits; if the landmarks are all tokens, each once, order has no effect."""
        super().__init__()
        self.register_buffer("draws", draws)
        self.inverse, self.gamma, self.sampling, self.padding = inverse, gamma, sampling, padding
        every_token = sampling == LandmarkSampling.stratified and draws.shape[1] >= max_length
        self.traits = Traits(
            random_draws=True,
            sees_order=not every_token,
            by_batch=inverse.by_batch,
            **padding.traits,
        )

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Return Skyformer's attention, through the drawn landmarks."""
        return skyformer_attention(
            q, k, v, self.draws,
            inverse=self.inverse, gamma=self.gamma, sampling=self.sampling,
            keep=layout.keep, padding=self.padding,
        ).to(v.dtype)  # fmt: skip


class Skyformer(MultiHead):
    """Gaussian attention between the four projections, exact or through landmarks.

    `landmarks` is the number of queries and keys together. They are drawn again every
    `redraw_every` optimiser steps; 0: never.
    """

    version = 2  # initialisation=original scales by sums of columns alone
    needs = (
        Need(
            "landmarks", "sampling", "gamma", "inverse", "iterations", "initialisation",
            "redraw_every", "padding", form=SkyformerForm.skyformer,
        ),
        Need("iterations", "initialisation", inverse=Inverse.iterative),
    )  # fmt: skip

    def __init__(
        self,
        site: Site,
        *,
        form: SkyformerForm = SkyformerForm.skyformer,
        landmarks: int = 128,
        sampling: LandmarkSampling = LandmarkSampling.independent,
        gamma: float = 0.1,
        inverse: Inverse = Inverse.iterative,
        iterations: int = 6,
        initialisation: Initialisation = Initialisation.exact,
        redraw_every: Whole = 1,
        padding: PaddingRule = PaddingRule.exact,
    ) -> None:
        """Check the options, and draw the landmarks."""
        if site.causal:
            raise Unsupported(
                f"Skyformer (form={form}) has no causal form: choose a causal family, or a task "
                "that reads the whole sequence"
            )
        if landmarks < 2 or landmarks % 2:
            raise ValueError(
                "half of the landmarks are queries and half are keys, so their number must be "
                f"even and above 0: got {landmarks}; use {max(2, landmarks + landmarks % 2)}"
            )
        if gamma < 0:
            raise ValueError(
                "gamma, which is added to the diagonal of the landmarks' kernel, must be 0 or "
                f"more: got {gamma}; the authors use 0.1"
            )
        if inverse == Inverse.ridge:
            raise ValueError(
                "Skyformer already adds gamma to the diagonal, which is a ridge: got "
                "inverse=ridge; choose inverse=iterative or exact"
            )
        rule = InverseRule(inverse=inverse, iterations=iterations, initialisation=initialisation)
        core: GaussianCore | SkyformerCore = GaussianCore(site.attention_dropout)
        if form == SkyformerForm.skyformer:
            # Drawn on the CPU, then moved to the device of parameters, which may be meta.
            draws = draw(landmarks, site.generator).to(torch.empty(()).device)
            core = SkyformerCore(
                draws, inverse=rule, gamma=gamma, sampling=sampling, padding=padding,
                max_length=site.max_length,
            )  # fmt: skip
        super().__init__(site, core)
        self.landmarks, self.redraw_every = landmarks, redraw_every

    def after_step(self, step: int, generator: torch.Generator) -> None:
        """Draw new landmarks every `redraw_every` steps."""
        core = cast(GaussianCore | SkyformerCore, self.core)
        due = self.redraw_every and step % self.redraw_every == 0
        if isinstance(core, SkyformerCore) and due:
            core.draws.copy_(draw(self.landmarks, generator))
