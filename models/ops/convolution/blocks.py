"""Rows of all examples one after another, cut into blocks that a banded matrix maps.

A block of C outputs is a banded C x (C + K - 1) matrix times a strided view of its inputs, so that
matrix products do the work of a convolution with K taps.
"""

from jaxtyping import Float
from torch import Tensor

from lra.models.ops.numerics import sum_dtype

BLOCK = 32
"""Outputs of one product: the fastest on a CPU for kernels of 33 and 65 taps."""


def lay(x: Float[Tensor, "b h l v"], taps: int, first: int) -> Float[Tensor, "h n v"]:
    """Copy the rows of all examples into one buffer of n slots per head, each after `first` zeros.

    Between rows are at least `taps` - 1 zeros, so that no output of a row reads another row.
    """
    batch, heads, length, width = x.shape
    # Each row takes a whole number of blocks; the last outputs read `taps` - 1 slots after them.
    stride = -(-(length + taps - 1) // BLOCK) * BLOCK
    buffer = x.new_empty(heads, batch * stride + taps - 1, width, dtype=sum_dtype(x))
    rows = buffer[:, : batch * stride].view(heads, batch, stride, width)
    rows[:, :, :first] = 0
    rows[:, :, first : first + length] = x.transpose(0, 1)
    rows[:, :, first + length :] = 0
    buffer[:, batch * stride :] = 0
    return buffer


def input_blocks(buffer: Float[Tensor, "h n v"], taps: int) -> Float[Tensor, "h m w v"]:
    """View the w = BLOCK + K - 1 inputs that each of m blocks of outputs reads.

    K is `taps`. Inputs of neighbouring blocks overlap.
    """
    heads, rows, width = buffer.shape
    shape = heads, (rows - taps + 1) // BLOCK, BLOCK + taps - 1, width
    return buffer.as_strided(shape, (rows * width, BLOCK * width, width, 1))


def lift(out: Float[Tensor, "h m c v"], batch: int, length: int) -> Float[Tensor, "b h l v"]:
    """View the m blocks of c outputs as the rows of `batch` examples with `length` tokens."""
    rows = out.view(out.shape[0], batch, -1, out.shape[-1])
    return rows[:, :, :length].transpose(0, 1)


def diagonals(band: Float[Tensor, "n c w"]) -> Float[Tensor, "n c t"]:
    """View the diagonals of n banded matrices: element (c, t) is row c, column c + t."""
    matrices, rows, columns = band.shape
    shape = matrices, rows, columns - rows + 1
    return band.as_strided(shape, (rows * columns, columns + 1, 1))
