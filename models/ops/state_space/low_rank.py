"""State spaces with A = Lambda - P P*, diagonal plus low rank, by the bilinear rule.

    A_ = (1 - dt/2 A)^-1 (1 + dt/2 A),  B_ = (1 - dt/2 A)^-1 dt B
    D = (1 - dt/2 Lambda)^-1,  g = 1 / (2/dt + P* D P)          Woodbury
    A_ - 1 = dt Lambda D - 2 g (D P) (P* D),  B_ = dt (D B - g (D P) (P* D B))
    K_t = C A_^t B_                                             a kernel from all three

States are real here: the real parts of the N / 2 pairs, then the imaginary parts, so that every
matrix is real. With t = i m + j, K is a product of m rows C A_^j and n / m columns A_^(m i) B_.
Each table is doubled by the squares of A_, which takes 2 log2(n) N^3 + 2 (m + n / m) N^2 + 2 n N
operations per channel. S4's paper computes the kernel by Cauchy products at roots of unity, from
C (1 - A_^n). With C as the parameter, that also needs the squares of A_, from which the kernel
follows with few more operations.

For precision, squares are computed from E = A_ - 1 as (1 + E)^2 - 1 = 2 E + E^2, because slow modes
have eigenvalues near 1. Powers cannot grow, because A_ is a contraction in these states.

Channels are computed in blocks, again in the backward pass, so that only parameters are saved.

Source     Gu et al. 2021, arXiv:2111.00396, sections 3.2 and appendix C.
"""

from typing import NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor
from torch.nn import functional as F

from lra.models.ops.convolution.long import long_convolution
from lra.models.ops.linear.exponent_sums import again

ROWS_BITS = 6
"""Of m, which is 64, or less for a short sequence: then N^2 n / m is no more than what is read."""
BLOCK = 1 << 21
"""Numbers of one block of channels."""


class LowRank(NamedTuple):
    """Lambda, P, B and dt of every channel."""

    rates: Complex[Tensor, "d p"]
    low_rank: Complex[Tensor, "d p"]
    entry: Complex[Tensor, "d p"]
    step: Float[Tensor, " d"]


def as_states(x: Complex[Tensor, "*s p"]) -> Float[Tensor, "*s n"]:
    """Return complex states, or their inputs, as real parts followed by imaginary parts."""
    return torch.cat((x.real, x.imag), dim=-1)


def as_pairs(x: Float[Tensor, "*s n"]) -> Complex[Tensor, "*s p"]:
    """Return the complex numbers that `as_states` converted."""
    return torch.complex(*x.chunk(2, dim=-1))


def as_readout(c: Complex[Tensor, "*s p"]) -> Float[Tensor, "*s n"]:
    """Return the real row whose product with `as_states(x)` is 2 Re sum_p c_p x_p."""
    return 2 * as_states(c.conj())


def bilinear(system: LowRank) -> tuple[Float[Tensor, "d n n"], Float[Tensor, "d n"]]:
    """Return A_ - 1 and B_ of x_t = A_ x_(t-1) + B_ u_t, for real states and A = Lambda - P P*."""
    rates, low_rank, entry, step = system
    step = step[:, None]
    inverse = 1 / (1 - step / 2 * rates)  # D
    right, row = inverse * low_rank, as_readout(inverse * low_rank.conj())  # D P, P* D
    g = 1 / (2 / step + (row * as_states(low_rank)).sum(-1, keepdim=True))
    diagonal = step * rates * inverse  # dt Lambda D
    real, imaginary = torch.diag_embed(diagonal.real), torch.diag_embed(diagonal.imag)
    block_diagonal = torch.cat(
        (torch.cat((real, -imaginary), -1), torch.cat((imaginary, real), -1)), -2
    )
    column = g * as_states(right)  # g D P
    change = block_diagonal - 2 * column.unsqueeze(-1) * row.unsqueeze(-2)
    product = (row * as_states(entry)).sum(-1, keepdim=True)  # P* D B
    return change, step * (as_states(inverse * entry) - column * product)


def low_rank_state_space(
    u: Float[Tensor, "b d l"],
    system: LowRank,
    readout: Complex[Tensor, "s d p"],
    before: Complex[Tensor, "b d p"] | None = None,
) -> tuple[Float[Tensor, "b d l"], Complex[Tensor, "b d p"] | None]:
    """Return the output of each token, and the states after the last if `before` is given.

    Args:
        u: Inputs, 0 at padding.
        system: Lambda, P, B and dt of every channel.
        readout: C; with s = 2, the second one reads later tokens.
        before: States before the first token, for s = 1; None: no states are returned.
    """
    length, states = u.shape[-1], 2 * readout.shape[-1]
    # The squares of A_, and twice the columns A_^(m i) B_; `again`: backward computes blocks again.
    per_channel = states * (length.bit_length() * states + 2 * (length >> ROWS_BITS) + 1)
    size = max(1, BLOCK // per_channel)
    blocks = [LowRank._make(x) for x in zip(*(torch.split(x, size) for x in system), strict=True)]
    readouts = torch.split(readout, size, 1)
    if before is None:
        pairs = zip(blocks, readouts, strict=True)
        kernels = [again(_kernels, length, *pair) for pair in pairs]
        return long_convolution(u, *torch.cat(kernels, dim=1)), None
    pasts = (torch.split(x, size, 1) for x in (u, before))
    parts = [
        again(_continue_states, *block) for block in zip(blocks, readouts, *pasts, strict=True)
    ]
    kernel, y, after = (torch.cat(part, dim=-2) for part in zip(*parts, strict=True))
    return y + long_convolution(u, kernel), as_pairs(after)


def _kernels(
    length: int, system: LowRank, readout: Complex[Tensor, "s d p"]
) -> Float[Tensor, "s d l"]:
    """Return the kernel K_t, t < `length`, of every direction and channel."""
    change, driven = bilinear(system)
    return responses(as_readout(readout), squares(change, length), driven[None], length)[0]


def _continue_states(
    system: LowRank,
    readout: Complex[Tensor, "s d p"],
    u: Float[Tensor, "b d l"],
    before: Complex[Tensor, "b d p"],
) -> tuple[Float[Tensor, "d l"], Float[Tensor, "b d l"], Float[Tensor, "b d n"]]:
    """Return the kernel, the output of the states `before`, and the states after the last token."""
    length = u.shape[-1]
    change, driven = bilinear(system)
    powers, states = squares(change, length), as_states(before)
    starts = torch.cat((driven[None], _step_states(states, change)))  # B_, and A_ x of examples
    kernel, *read = responses(as_readout(readout), powers, starts, length)[:, 0]
    after = last_states(u, powers, driven)
    for bit, power in enumerate(powers):
        if length >> bit & 1:  # A_^length is a product of squares
            states = _step_states(states, power)
    return kernel, torch.stack(read), after + states


def squares(change: Float[Tensor, "d n n"], length: int) -> list[Float[Tensor, "d n n"]]:
    """Return A_^(2^k) - 1 of every 2^k that is at most `length`."""
    powers = [change]
    for _ in range(length.bit_length() - 1):
        powers.append(torch.baddbmm(powers[-1], powers[-1], powers[-1], beta=2))
    return powers


def responses(
    readout: Float[Tensor, "s d n"],
    powers: list[Float[Tensor, "d n n"]],
    starts: Float[Tensor, "k d n"],
    length: int,
) -> Float[Tensor, "k s d {length}"]:
    """Return c A_^t x of every c in `readout`, every x in `starts` and every t < `length`."""
    bits = min(ROWS_BITS, (length - 1).bit_length())
    rows, number = readout.transpose(0, 1), -(-length >> bits)
    for power in powers[:bits]:  # the rows c A_^j, j < m = 2^bits: each step doubles their number
        rows = torch.cat((rows, torch.baddbmm(rows, rows, power)), dim=1)
    columns = starts.permute(1, 2, 0)  # then the columns A_^(m i) x
    for power in powers[bits:]:
        if columns.shape[2] < number * len(starts):
            columns = torch.cat((columns, torch.baddbmm(columns, power, columns)), dim=2)
    table = rows @ columns[..., : number * len(starts)]  # all c A_^(j + m i) x
    table = table.reshape(len(table), 1 << bits, len(readout), number, len(starts))
    return table.permute(4, 2, 0, 3, 1).flatten(-2)[..., :length]


def last_states(
    u: Float[Tensor, "b d l"], powers: list[Float[Tensor, "d n n"]], entry: Float[Tensor, "d n"]
) -> Float[Tensor, "b d n"]:
    """Return sum_t A_^(l-1-t) B_ u_t: the states after the last token, from states of 0."""
    length = u.shape[-1]
    bits = min(ROWS_BITS, (length - 1).bit_length())
    # Sums over parts of m = 2^bits inputs (latest first) are joined pair by pair.
    columns, number = entry.unsqueeze(1), -(-length >> bits)
    for power in powers[:bits]:
        columns = torch.cat((columns, torch.baddbmm(columns, columns, power.mT)), dim=1)
    short = (number << bits) - length
    parts = torch.unflatten(F.pad(u.flip(-1), (0, short)), -1, (number, -1))
    states = torch.einsum("bdij,djn->dbin", parts, columns)
    for power in powers[bits:]:
        if states.shape[2] > 1:
            states = F.pad(states, (0, 0, 0, states.shape[2] % 2))
            even, odd = torch.unflatten(states, 2, (-1, 2)).unbind(3)
            states = even + odd + odd @ power.mT.unsqueeze(1)
    return states[:, :, 0].transpose(0, 1)


def _step_states(
    states: Float[Tensor, "b d n"], change: Float[Tensor, "d n n"]
) -> Float[Tensor, "b d n"]:
    """Return A_ x for states x, from `change` = A_ - 1."""
    return states + torch.einsum("dmn,bdn->bdm", change, states)
