"""Finite differences: whether a gradient is the derivative."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lra.models.contract.case import (
    ROWS,
    Case,
    Result,
    fix_seed,
)
from lra.models.contract.states import MEMORY
from lra.models.mixer import Flow, Layout

STEPS = {torch.float64: (1e-5, 1e-6, 1e-7), torch.float32: (1e-2, 3e-3, 1e-3)}
"""Steps of finite differences, relative to the size of what moves, the longest first."""
SLOPE_AGREEMENT = {torch.float64: 1e-6, torch.float32: 0.02}
"""Largest relative difference between a derivative and its central difference. What is cut off
falls with the square of the step, in float64 1e-10 and less."""
ROUNDING = {torch.float64: 1e-14, torch.float32: 1e-6}
"""Of the function, which is allowed for besides: it grows as 1 / step."""
DIRECTIONS = 2
KINKS, FALLS = 1e-3, 0.2
"""Where many kinks lie within a step, as with ReLU of every score, differences fall with the step:
the largest, relative, at the shortest step, and by what share of that at the longest."""


def learns_in_stream(case: Case, mixer: Any, parameter: Tensor) -> bool:
    """Tell whether `parameter` gets a gradient in a stream that is longer than its memory."""
    state = mixer.initial_state(ROWS, MEMORY)
    total = torch.zeros((), dtype=case.dtype, device=case.device)
    for piece in torch.split(case.input(4 * MEMORY), MEMORY, dim=1):
        flow = mixer.extend(Flow(piece, state), Layout())
        state, total = flow.state, total + flow.x.sum() + sum(flow.penalties.values())
    (found,) = torch.autograd.grad(total, [parameter], allow_unused=True)
    return found is not None and bool(found.any())


@torch.no_grad()
def _difference(
    parts: list[tuple[Tensor, Tensor]],
    starts: list[Tensor],
    toward: list[Tensor],
    scalar: Callable[[], Tensor],
    step: float,
) -> tuple[float, float]:
    """Return the central difference quotient along `toward`, and the size of the function."""
    values = []
    for sign in (1, -1):
        for (tensor, _), start, direction in zip(parts, starts, toward, strict=True):
            tensor.copy_(start).add_(direction, alpha=sign * step)
        values.append(scalar().item())
    for (tensor, _), start in zip(parts, starts, strict=True):
        tensor.copy_(start)
    return (values[0] - values[1]) / (2 * step), abs(values[0])


def compare_slope(
    what: str, parts: list[tuple[Tensor, Tensor]], scalar: Callable[[], Tensor], seed: int
) -> Result:
    """Compare the slope along a random direction of tensors that are given with their gradients.

    Each moves by its own size times one of `STEPS`. One agreement is enough: a wrong gradient
    disagrees every time, a right one where a choice changes within the step, which is rare. Where
    the function bends within a step, as long phases of state spaces do, half a step tells by how
    much: the error falls with its square.
    """
    starts = [tensor.detach().clone() for tensor, _ in parts]
    dtype = starts[0].real.dtype
    agreement, by_difference = SLOPE_AGREEMENT[dtype], 0.0
    for number in range(DIRECTIONS):
        with fix_seed(seed + 31 + number):
            toward = [torch.randn_like(start) for start in starts]
        for start, direction in zip(starts, toward, strict=True):
            direction.mul_(max(start.norm().item(), 1e-3) / direction.norm())
        by_gradient = sum(
            (gradient.conj() * direction).real.sum().item()
            for (_, gradient), direction in zip(parts, toward, strict=True)
        )
        typical = max(
            (gradient.norm() * direction.norm()).item() / gradient.numel() ** 0.5
            for (_, gradient), direction in zip(parts, toward, strict=True)
        )
        along, differences = partial(_difference, parts, starts, toward, scalar), list[float]()
        for step in STEPS[dtype]:
            whole, size = along(step)
            for share in (step, step / 2):
                by_difference = whole if share == step else (4 * along(share)[0] - whole) / 3
                scale = max(abs(by_gradient), abs(by_difference), typical, 1e-3)
                rounding = ROUNDING[dtype] * max(size, 1.0) / share
                differs = max(abs(by_gradient - by_difference) - rounding, 0.0) / scale
                if differs <= agreement:
                    return Result(True, f"slope of {what}: relative difference {differs:.1e}")
            differences.append(abs(by_gradient - whole) / scale)
        first, *_, last = differences
        if dtype is torch.float64 and last <= min(KINKS, FALLS * first):
            return Result(True, f"slope of {what}: difference {last:.1e}, falling with the step")
    return Result(
        False,
        f"slope along a random direction of {what}: {by_gradient:.6g} by the gradient, "
        f"{by_difference:.6g} by finite differences, relative difference {differs:.1e}, wanted "
        f"{agreement:.0e}",
    )
