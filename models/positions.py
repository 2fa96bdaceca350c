"""Position encodings: their names, those added to the input, and those that mixers apply."""

import math
from collections.abc import Sequence
from enum import StrEnum, auto
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lra.models.tuning import Roles


class Positions(StrEnum):
    """How the order of the tokens enters the model."""

    none = auto()
    learned = auto()
    sinusoidal = auto()
    axial = auto()
    """Learned vectors of rows and columns: the sequence as a grid."""
    rotary = auto()
    """Inside the mixer: queries and keys are rotated."""
    alibi = auto()
    """Inside the mixer: scores decrease with distance."""
    t5 = auto()
    """Inside the mixer: a learned number per bucket of distances is added to scores."""
    shaw = auto()
    """Inside the mixer: a learned vector per distance, up to a largest one, is added to keys."""
    transformer_xl = auto()
    """Inside the mixer: projected sinusoids of distances enter scores, with two learned biases."""
    position_infused = auto()
    """Inside the mixer: a sinusoid is added to the inputs of queries and keys, but not of
    values."""


SCORED = frozenset({Positions.alibi, Positions.t5, Positions.shaw, Positions.transformer_xl})
"""Encodings that change scores, for mixers that compute scores."""

INSIDE = SCORED | {Positions.rotary, Positions.position_infused}
"""Encodings that the mixer applies itself; a site names one of these or none."""

ROTARY_BASE = 10_000.0


class Spacing(NamedTuple):
    """Positions `first`, `first + step`, …, of a sequence whose tokens are `step` apart."""

    first: int = 0
    step: int = 1

    def ids(self, length: int, device: torch.device) -> Int[Tensor, " l"]:
        """Return the first `length` positions, as an integer tensor on `device`."""
        return torch.arange(length, device=device) * self.step + self.first

    def last(self, length: int) -> int:
        """Return the last one of the first `length` positions."""
        return self.first + (length - 1) * self.step


class At(NamedTuple):
    """Positions of queries and keys of different lengths, in one order."""

    queries: Spacing
    keys: Spacing

    def distance(self, queries: int, keys: int, device: torch.device) -> Int[Tensor, "l s"]:
        """Return each query's position minus each key's, given the numbers of queries and keys."""
        return self.queries.ids(queries, device)[:, None] - self.keys.ids(keys, device)


def position_ids(
    length: int, start: Int[Tensor, "b l"] | Int[Tensor, " b"] | Spacing | None, like: Tensor
) -> Int[Tensor, "#b l"]:
    """Return the absolute positions of `length` tokens, on the device of `like`.

    `start` is the position of each row's first token, [b], or of each token, [b l], or a spacing;
    None means positions 0 … length-1.
    """
    if isinstance(start, Spacing):
        return start.ids(length, like.device)[None]
    if start is not None and start.dim() == 2:
        return start
    ids = torch.arange(length, device=like.device)[None]
    return ids if start is None else ids + start[:, None]


def sinusoid(
    ids: Int[Tensor, "*b l"],
    width: int,
    *,
    halves: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*b l d"]:
    """Return vectors with sin on even and cos on odd channels, base 10000 (Vaswani et al. 2017).

    Args:
        ids: Positions, or distances.
        width: Number of channels, d.
        halves: Whether all sines come before all cosines (Transformer-XL's order).
        dtype: Type of the angles and the result: float32, or float64.
    """
    frequency = torch.exp(
        torch.arange(0, width, 2, device=ids.device, dtype=dtype) * (-math.log(ROTARY_BASE) / width)
    )
    angle = ids[..., None].to(dtype) * frequency
    if halves:
        return torch.cat((angle.sin(), angle.cos()), dim=-1)[..., :width]
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., :width]


def precise(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which positions are computed: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def add_sinusoids(
    x: Float[Tensor, "b l d"], start: Int[Tensor, " b"] | Spacing | None = None
) -> Float[Tensor, "b l d"]:
    """Return `x` plus the sinusoid of each position, as Shortformer does for queries and keys."""
    ids = position_ids(x.shape[1], start, x)
    return x + sinusoid(ids, x.shape[-1], halves=True, dtype=precise(x.dtype)).to(x.dtype)


class Rotation(NamedTuple):
    """Cosines and sines for each position and each of p channel pairs, for queries and keys."""

    cos: Float[Tensor, "#b 1 l p"]
    sin: Float[Tensor, "#b 1 l p"]


def rotation(
    x: Float[Tensor, "*b l d"],
    width: int,
    start: Int[Tensor, "b l"] | Int[Tensor, " b"] | Spacing | None = None,
    base: float = ROTARY_BASE,
) -> Rotation:
    """Return the rotation of `width` channels at the position of each token of `x`.

    `start` is as in `position_ids`; channel pair i turns by base^(-2 i / width). Angles are
    computed in float32, or in float64 if `x` is float64. Raises ValueError for an odd width.
    """
    if width % 2:
        raise ValueError(
            "rotary positions rotate pairs of channels, so they need an even head width: got "
            f"{width}; change heads or head_width"
        )
    dtype = precise(x.dtype)
    frequency = torch.exp(
        torch.arange(0, width, 2, device=x.device, dtype=dtype) * (-math.log(base) / width)
    )
    angle = position_ids(x.shape[-2], start, x)[:, None, :, None].to(dtype) * frequency
    return Rotation(angle.cos(), angle.sin())


def rotate(
    x: Float[Tensor, "b h l k"], start: Int[Tensor, " b"] | Spacing | Rotation | None = None
) -> Float[Tensor, "b h l k"]:
    """Rotate the channel pairs (i, i + k/2) by position (Su et al. 2021, half-split pairing).

    Scores of rotated queries and keys depend only on their distance; position 0 is not rotated.
    `start` is as in `position_ids`, or a rotation that was computed before; a rotation of fewer
    channels leaves the last channels as they are.
    """
    angles = start if isinstance(start, Rotation) else rotation(x, x.shape[-1], start)
    cos, sin = angles.cos.to(x.dtype), angles.sin.to(x.dtype)
    if (turned := 2 * cos.shape[-1]) < x.shape[-1]:
        return torch.cat((rotate(x[..., :turned], angles), x[..., turned:]), dim=-1)
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


def rotate_last(
    x: Float[Tensor, "b l h k"],
    place: Int[Tensor, "#b l"],
    *,
    width: int,
    base: float = ROTARY_BASE,
    back: bool = False,
) -> Float[Tensor, "b l h k"]:
    """Rotate the last `width` channels of heads by the position `place`; with `back`, by -place.

    With a width of 0, return `x`. The `base` is as in `rotation`.
    """
    if not width:
        return x
    by_head = x[..., -width:].transpose(1, 2)
    turn = rotation(by_head, width, place, base)
    turn = Rotation(turn.cos, -turn.sin) if back else turn
    return torch.cat((x[..., :-width], rotate(by_head, turn).transpose(1, 2)), dim=-1)


def alibi_slopes(heads: int) -> Float[Tensor, " h"]:
    """Return the slope with distance of each head's scores (Press et al. 2022), in float32.

    If h is a power of two, the slopes are 2^(-8/h), 2^(-16/h), ..., 2^-8. For any other h, they are
    the slopes of the next lower power of two, followed by every other slope of the next higher one.
    """
    lower = 1 << (heads.bit_length() - 1)
    steps = [8.0 * (i + 1) / lower for i in range(lower)]
    steps += [4.0 * (2 * i + 1) / lower for i in range(heads - lower)]
    return torch.tensor([2.0**-step for step in steps])


class AxialPositions(Roles):
    """Learned positions on a grid with n1 rows and n2 columns (Kitaev et al. 2020).

    Position i concatenates the vector of row i // n2, d1 wide, and that of column i % n2, d2 wide.
    This needs n1 d1 + n2 d2 parameters instead of n d (arXiv:2001.04451), drawn from N(0, 0.02).
    """

    no_matrices = ("rows_table", "columns_table")

    def __init__(
        self, max_length: int, width: int, shape: Sequence[int] = (), widths: Sequence[int] = ()
    ) -> None:
        """Draw the tables of rows and columns; an empty `shape` means a nearly square grid."""
        super().__init__()
        columns = math.isqrt(max_length - 1) + 1  # the square root, rounded up
        rows, columns = shape or (-(-max_length // columns), columns)
        if rows * columns < max_length:
            raise ValueError(
                f"axial_shape={[rows, columns]} (rows, columns) has {rows * columns} positions, "
                f"but the model needs {max_length}: choose rows * columns >= {max_length}"
            )
        first, second = widths or (width // 2, width - width // 2)
        if first + second != width or min(first, second) < 1:
            raise ValueError(
                f"the two axial_widths must be at least 1 and add up to width={width}: got "
                f"{[first, second]}"
            )
        self.max_length, self.columns = rows * columns, columns
        self.rows_table = nn.Parameter(torch.empty(rows, first))
        self.columns_table = nn.Parameter(torch.empty(columns, second))
        for table in (self.rows_table, self.columns_table):
            nn.init.normal_(table, std=0.02)

    def forward(self, ids: Int[Tensor, "b l"]) -> Float[Tensor, "b l d"]:
        """Return the vector of each position in `ids`."""
        row, column = ids // self.columns, ids % self.columns
        return torch.cat((self.rows_table[row], self.columns_table[column]), dim=-1)


class LearnedPositions(Roles):
    """A table of one vector per position, drawn from N(0, 0.02)."""

    no_matrices = ("table",)

    def __init__(self, max_length: int, width: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.table = nn.Parameter(torch.empty(max_length, width))
        nn.init.normal_(self.table, std=0.02)

    def forward(self, ids: Int[Tensor, "b l"]) -> Float[Tensor, "b l d"]:
        """Return the vector of each position in `ids`."""
        self._check(ids.shape[1])
        return self.table[ids]

    def first(self, length: int) -> Float[Tensor, "l d"]:
        """Return the vectors of positions 0 … length-1 as a view, whose backward is faster."""
        self._check(length)
        return self.table[:length]

    def _check(self, length: int) -> None:
        """Raise ValueError if the table has fewer than `length` positions."""
        if length > self.max_length:
            raise ValueError(
                f"this model has learned positions for at most {self.max_length} tokens: got "
                f"{length} tokens; truncate the input, or choose positions=sinusoidal, rotary or "
                "none"
            )
