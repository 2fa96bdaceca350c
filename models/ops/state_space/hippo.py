"""Initial eigenvalues and inputs of diagonal state spaces: N real states as N / 2 complex pairs.

    legs      the normal part of HiPPO-LegS: of A with A_nk = -sqrt((2n + 1) (2k + 1)) for n > k
              and -(n + 1) for n = k, that of A + P P^T with P_n = sqrt(n + 1/2); its input is
              B_n = sqrt(2n + 1)
    legs_ones the same eigenvalues; inputs are 1
    inverse   -1/2 + i (N / pi) (N / (2p + 1) - 1), its limit for large N; inputs are 1
    linear    -1/2 + i pi p, Fourier's; inputs are 1

From each pair, the eigenvalue with positive imaginary part is given (`linear` has a real one), in
rising order. Phases of eigenvectors are arbitrary: those of `legs` are chosen so that inputs are
positive, which is the same on every machine. All are computed on the CPU, in float64.

Source     Gu et al. 2022, arXiv:2206.11893 (S4D-LegS, S4D-Inv, S4D-Lin); Gu et al. 2021,
           arXiv:2111.00396, for the normal part.
"""

import math
from enum import StrEnum, auto
from typing import TypeAlias

import torch
from jaxtyping import Complex, Float
from torch import Tensor

Spectrum: TypeAlias = tuple[Complex[Tensor, " p"], Float[Tensor, " p"]]
"""Eigenvalues, and the input of each."""


class Initial(StrEnum):
    """Which eigenvalues a state space starts from."""

    legs = auto()
    legs_ones = auto()
    inverse = auto()
    linear = auto()


def spectrum(initial: Initial, states: int) -> Spectrum:
    """Return the p = `states` / 2 initial eigenvalues and their inputs; `states` must be even."""
    pair = torch.arange(states // 2, dtype=torch.float64, device="cpu")
    if initial in (Initial.legs, Initial.legs_ones):
        frequency, inputs = _legs(states)
        inputs = inputs if initial == Initial.legs else torch.ones_like(pair)
    elif initial == Initial.inverse:
        frequency = states / math.pi * (states / (2 * pair.flip(0) + 1) - 1)  # S4D-Inv
        inputs = torch.ones_like(pair)
    else:
        frequency, inputs = math.pi * pair, torch.ones_like(pair)  # S4D-Lin
    return torch.complex(torch.full_like(frequency, -0.5), frequency), inputs


def _legs(states: int) -> tuple[Float[Tensor, " p"], Float[Tensor, " p"]]:
    """Return imaginary parts of the eigenvalues of LegS's normal part, and their inputs B."""
    frequency, vectors = legs_vectors(states)
    return frequency, (vectors.mH @ _root(states).to(vectors.dtype)).real


def legs_vectors(states: int) -> tuple[Float[Tensor, " p"], Complex[Tensor, "n p"]]:
    """Return the imaginary parts of eigenvalues of LegS's normal part, and the eigenvectors."""
    root = _root(states)
    below = -torch.outer(root, root).tril(-1) / 2
    frequency, vectors = torch.linalg.eigh(-1j * (below - below.T))
    frequency, vectors = frequency[states // 2 :], vectors[:, states // 2 :]  # those above 0
    inputs = vectors.mH @ root.to(vectors.dtype)
    return frequency, vectors * (inputs / inputs.abs())  # with phases that make inputs positive


def _root(states: int) -> Float[Tensor, " n"]:
    """Return B_n = sqrt(2n + 1) of LegS, for n < `states`."""
    return (2 * torch.arange(states, dtype=torch.float64, device="cpu") + 1).sqrt()
