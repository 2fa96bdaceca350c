"""FNet: a Fourier transform along length and width mixes the tokens, without parameters.

    y = Re(F_l x F_d),   (F_l)_jk = exp(-2 pi i j k / l), F_d likewise along the width

Forms      fourier   the above: `method: fft` (fast transform) or `matmul` (the matrices, by blocks
                     of rows, for short sequences on machines where products are cheap)
           linear    y = A x B with learned A (max_length squared) and B (width squared)
           random    the same with A and B drawn once and frozen
Norm       With `none`, as in the paper, values grow by sqrt(l d / 2); `ortho` divides the transform
           by sqrt(l d).
Cost       fft: 2.5 l D log2(l D) operations; matmul, linear and random: 2 l^2 D (matmul: twice
           that) and 2 l D^2. The Fourier forms store nothing for backward: the map is linear and
           symmetric.
Speed      A fast transform does fewer operations per second than a matrix product. On a CPU at
           8,192 tokens, a layer of width 256 takes 5.9 times as long as the same number of
           operations in matrix products would take, and 1/124 of the time of SDPA.
Source     Lee-Thorp et al. 2021, arXiv:2105.03824. Notation: the paper's N, d_h are l, d.
Differs    In the published linear form every sequence has the length of A; here a shorter sequence
           uses the first rows and columns of A.

Every output depends on every input, padding included, and on the length. Masks, a causal form, and
lengths other than that of training are therefore unsupported. For a task that pads, set
`model.backbone.padding=attended` (padding counts as tokens) or `zeroed` (padding counts as zeros).
In half precision, the transform is computed in float32.
"""

import math
from collections.abc import Callable
from enum import StrEnum, auto
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.mixer import Family, Growth, Layout, Need, Site, Traits, Unsupported, options
from lra.models.ops.numerics import full_precision, row_slices, sum_dtype

ROW_BLOCK = 2**22
"""Largest number of cosines and sines that are in memory at the same time."""

AT_ONCE = 2**18
"""Largest input for which PyTorch computes the mirrored half: fewer calls, more memory."""

CUT_DEVIATION = 0.8796256610342398
"""Standard deviation of a standard normal variable that is truncated at -2 and 2."""


class MixingForm(StrEnum):
    """Transform along the sequence and the width."""

    fourier = auto()
    linear = auto()
    random = auto()


class Method(StrEnum):
    """How the Fourier transform is computed."""

    fft = auto()
    matmul = auto()


class Norm(StrEnum):
    """Normalisation of the Fourier transform."""

    none = auto()
    ortho = auto()


def real_transform(x: Float[Tensor, "b l d"], norm: Norm = Norm.none) -> Float[Tensor, "b l d"]:
    """Return the real part of the two-dimensional Fourier transform of `x`, by the FFT.

    The transform Y of real numbers has Y[j, k] = conj Y[-j, -k], with indices modulo l and d. So
    only half of the width is computed, and the other half is copied from it. For small inputs, one
    operator of PyTorch does both, and the result is a view of its complex output, because copying
    would add a fifth of the time.
    """
    if x.numel() <= AT_ONCE:
        # Normalisation 0: none, 1: by the root of the size. False: return both halves.
        return torch._fft_r2c(x, [1, 2], int(norm == Norm.ortho), False).real
    scaling = "ortho" if norm == Norm.ortho else "backward"
    y, computed = torch.empty_like(x), x.shape[2] // 2 + 1
    y[..., :computed] = torch.fft.rfft2(x, dim=(1, 2), norm=scaling).real
    # Copied from y, because reading real parts of complex numbers again would take longer.
    # The flip maps row j to l - 1 - j, one less than the wanted -j modulo l: hence the shift by 1.
    mirrored = y[..., 1 : x.shape[2] - computed + 1].flip(1, 2)
    y[:, 1:, computed:] = mirrored[:, :-1]
    y[:, 0, computed:] = mirrored[:, -1]
    return y


def transform_by_matmul(
    x: Float[Tensor, "b l d"], norm: Norm = Norm.none
) -> Float[Tensor, "b l d"]:
    """Return the same as `real_transform`: cos_l x cos_d - sin_l x sin_d, by matrix products."""
    length, width = x.shape[1:]
    cosines, sines = waves(width, slice(0, width), x)
    parts = torch.cat((x @ cosines, x @ sines.neg()), dim=1)
    if norm == Norm.ortho:
        parts *= (length * width) ** -0.5
    y = torch.empty_like(x)
    for rows in row_slices(length, max(1, ROW_BLOCK // length)):
        y[:, rows] = torch.cat(waves(length, rows, x), dim=1) @ parts
    return y


def waves(
    length: int, rows: slice, like: Tensor
) -> tuple[Float[Tensor, "r l"], Float[Tensor, "r l"]]:
    """Return the `rows` of the matrices cos(2 pi j k / length) and sin(2 pi j k / length).

    The product j k is reduced modulo `length` before it becomes an angle, so large products stay
    exact. The result has the type and device of `like`.
    """
    position = torch.arange(length, device=like.device)
    product = position[rows, None] * position % length
    angle = torch.arange(length, device=like.device, dtype=torch.float64) * (2 * math.pi / length)
    return angle.cos().to(like.dtype)[product], angle.sin().to(like.dtype)[product]


class _Symmetric(torch.autograd.Function):
    """A symmetric linear map: backward applies the same map, so nothing is stored for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, transform: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.transform = transform
        return transform(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _apply_symmetric(gradient, ctx.transform), None


def _apply_symmetric(x: Float[Tensor, "b l d"], transform: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `transform`, a symmetric linear map, in the precision of `x`, also under autocast."""
    with full_precision(x):
        if torch.is_grad_enabled() and x.requires_grad:
            y: Tensor = _Symmetric.apply(x, transform)  # type: ignore[no-untyped-call]
            return y
        return transform(x)


def fourier_mixing(
    x: Float[Tensor, "b l d"], method: Method = Method.fft, norm: Norm = Norm.none
) -> Float[Tensor, "b l d"]:
    """Return Re(F_l x F_d), computed in float32, or in float64 if `x` is float64."""
    transform = real_transform if method == Method.fft else transform_by_matmul
    transform = partial(transform, norm=norm)
    # For short sequences, even a conversion to the same type takes measurable time.
    if x.dtype == (dtype := sum_dtype(x)):
        return _apply_symmetric(x, transform)
    return _apply_symmetric(x.to(dtype), transform).to(x.dtype)


def lecun_normal(size: int, generator: torch.Generator) -> Float[Tensor, "n n"]:
    """Draw a square normal matrix of variance 1 / size, truncated at two standard deviations.

    It is drawn on the CPU, so it is equal on every machine. On the meta device it has no values.
    """
    matrix = torch.empty(size, size)
    if matrix.is_meta:
        return matrix
    inside = math.erf(math.sqrt(2))  # probability of a normal variable within two deviations
    drawn = torch.empty(size, size, device="cpu").uniform_(-inside, inside, generator=generator)
    deviation = size**-0.5 / CUT_DEVIATION
    return drawn.erfinv_().mul_(math.sqrt(2) * deviation).to(matrix)


@options
class FNet(Family):
    """Mixing by a Fourier transform, or by the two ablations of the paper."""

    form: MixingForm = MixingForm.fourier
    method: Method = Method.fft
    norm: Norm = Norm.none
    needs = (Need("method", "norm", form=MixingForm.fourier),)

    def build(self, site: Site) -> None:
        """Make the matrices of the linear and random forms; `Unsupported` for a causal model."""
        if site.causal:
            raise Unsupported(
                "FNet mixes every token with all others, so it has no causal form: choose a causal "
                "family, or a task whose model reads the whole sequence"
            )
        square = self.form != MixingForm.fourier
        if self.form == MixingForm.linear:
            self.sequence = nn.Parameter(torch.empty(site.max_length, site.max_length))
            self.hidden = nn.Parameter(torch.empty(site.width, site.width))
            nn.init.normal_(self.sequence, std=0.02)
            nn.init.normal_(self.hidden, std=0.02)
        elif self.form == MixingForm.random:
            self.register_buffer("sequence", lecun_normal(site.max_length, site.generator))
            self.register_buffer("hidden", lecun_normal(site.width, site.generator))
        self.traits = Traits(
            supports=frozenset(),
            max_length=site.max_length if square else None,
            operations=(
                Growth(2.0) if square or self.method == Method.matmul else Growth(1.0, log=True)
            ),
            random_draws=self.form == MixingForm.random,
        )

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Return the transform of `x` along the length and the width, or A x B.

        Raises:
            Unsupported: `layout.keep` is given.
            ValueError: A learned or frozen matrix is shorter than the sequence.
        """
        if layout.keep is not None:
            raise Unsupported(
                "FNet cannot exclude padding: got a mask of padding; choose "
                "model.backbone.padding=attended or zeroed, with which padding affects the "
                "outputs, or another family"
            )
        if self.form == MixingForm.fourier:
            return fourier_mixing(x, self.method, self.norm)
        length, limit = x.shape[1], self.sequence.shape[0]
        if length > limit:
            raise ValueError(
                f"this model (form={self.form}) accepts at most {limit} tokens: got {length} "
                "tokens; build it with a larger max_length, or choose form=fourier"
            )
        return self.sequence[:length, :length] @ (x @ self.hidden)
