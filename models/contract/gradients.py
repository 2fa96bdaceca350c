"""The contract kit's checks of gradients: they reach all parameters, and they are derivatives."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lra.models.contract.case import (
    ROWS,
    Case,
    Result,
    call,
    fix_seed,
    inapplicable,
    traits_of,
    worst,
)
from lra.models.contract.facts import layouts
from lra.models.contract.states import MEMORY
from lra.models.contract.ways import DROPPED, with_dropout
from lra.models.mixer import MASKS, Flow, Layout, Traits

STEPS = (1e-6, 1e-5, 3e-7)
"""Steps of finite differences, relative to the size of what moves; the later ones in case a kink
or a choice lies within the first."""
SLOPE_AGREEMENT = 1e-6
"""Largest relative difference between a derivative and its central difference in float64. What is
cut off falls with the square of the step, 1e-10 and less; rounding, which grows as 1 / step, is
allowed for besides."""


def situations(case: Case, traits: Traits) -> dict[str, dict[str, Any]]:
    """Return the layouts in which a parameter may be used, by name."""
    facts: dict[str, dict[str, Any]] = {"": {}}
    if "keep" in traits.supports:
        facts[", under a mask"] = {"keep": case.holes()}
    if "is_global" in traits.supports:
        facts[", with global tokens"] = {"is_global": case.globals()}
    *_, together = layouts(case, traits, case.max_length).values()
    if {*MASKS} & together.keys():
        facts[f", under {' and '.join(together)}"] = dict(together)
    return facts


def check_gradients(case: Case) -> Result:
    """Every parameter receives a finite gradient in some layout; freezing changes nothing."""
    mixer, x = case.mixer().train(), case.input().requires_grad_()
    direction = case.input(salt=3)
    for facts in situations(case, traits_of(mixer)).values():
        with fix_seed(30):
            torch.autograd.backward((call(mixer, x, **facts) * direction).sum())
    learnt = {n: p for n, p in mixer.named_parameters() if p.requires_grad}
    for name in sorted(traits_of(mixer).in_streams):
        if name not in learnt or learnt[name].grad is not None:
            kind = "it learns without a state" if name in learnt else "there is no such parameter"
            return Result(False, f"traits.in_streams has {name}: {kind}")
        if not learns_in_stream(case, mixer, learnt.pop(name)):
            return Result(False, f"{name} received no gradient after a full memory either")
    for name, parameter in [("the input", x), *learnt.items()]:
        if parameter.grad is None:
            return Result(False, f"{name} received no gradient: it is unused or cut off")
        if not parameter.grad.isfinite().all():
            return Result(False, f"{name} received a gradient that is not finite")

    def gradients(of: list[Tensor]) -> tuple[Tensor, ...]:
        with fix_seed(30):
            y = call(mixer, x)
        return torch.autograd.grad((y * direction).sum(), of, materialize_grads=True)

    both = gradients([x, *learnt.values()])
    cause = "a backward pass that mistakes needs_input_grad of one input for that of another"
    mixer.requires_grad_(False)
    seen = [case.agree("gradient past frozen parameters", gradients([x])[0], both[0])]
    for parameter in learnt.values():
        parameter.requires_grad_()
    x.requires_grad_(False)
    if learnt:
        found = zip(learnt, gradients([*learnt.values()]), both[1:], strict=True)
        seen += [
            case.agree(f"gradient of {name} if the input needs none", here, there)
            for name, here, there in found
        ]
    last = worst(seen)
    return (
        Result(True, "every parameter received a finite gradient")
        if last.passed
        else last.because(cause)
    )


def learns_in_stream(case: Case, mixer: Any, parameter: Tensor) -> bool:
    """Tell whether `parameter` gets a gradient in a stream that is longer than its memory."""
    state = mixer.initial_state(ROWS, MEMORY)
    total = torch.zeros((), dtype=case.dtype, device=case.device)
    for piece in torch.split(case.input(4 * MEMORY), MEMORY, dim=1):
        flow = mixer.extend(Flow(piece, state), Layout())
        state, total = flow.state, total + flow.x.sum() + sum(flow.penalties.values())
    (found,) = torch.autograd.grad(total, [parameter], allow_unused=True)
    return found is not None and bool(found.any())


def check_slopes(case: Case) -> Result:
    """Gradients of the input and of every parameter are derivatives, by finite differences.

    With dropped weights, too, where a backward pass has to find the same ones again.
    """
    mixer = case.mixer()
    traits = traits_of(mixer)
    if traits.surrogate_gradient:
        return inapplicable("traits.surrogate_gradient declares that it is not the derivative")
    kinds = situations(case, traits)
    *_, (last, together) = kinds.items()
    tried = [(mixer, name, facts) for name, facts in kinds.items()]
    for each in with_dropout(case, DROPPED):
        tried.append((each, f"{last}, with attention_dropout", together))
    for each, name, facts in tried:
        seen = _slope(case, each.double().train(), name, facts)
        if not seen.passed:
            return seen.because(
                "a path is detached, or a backward pass is not the derivative of its forward "
                "pass; if that is intended, set traits.surrogate_gradient=True"
            )
    return Result(True, "derivatives agree with central differences along a random direction")


def _slope(case: Case, mixer: nn.Module, name: str, facts: dict[str, Any]) -> Result:
    """Compare the directional derivative of all tensors at once with finite differences.

    Without facts, each tensor is then tried alone, so that a failure names it.
    """
    x, direction = case.input().double().requires_grad_(), case.input(salt=3).double()
    moved = {"the input": x, **{n: p for n, p in mixer.named_parameters() if p.requires_grad}}
    if "keep" in facts:  # outputs of padding mean nothing
        direction = direction * facts["keep"][..., None]

    def scalar() -> Tensor:
        with fix_seed(30):  # noise of training, where there is some, falls alike
            return (call(mixer, x, **facts) * direction).sum()

    gradients = torch.autograd.grad(scalar(), [*moved.values()], materialize_grads=True)
    slopes = dict(zip(moved, gradients, strict=True))

    def slope(what: str, of: list[str]) -> Result:
        parts = [(moved[each], slopes[each]) for each in of]
        return compare_slope(f"{what}{name}", parts, scalar, case.seed)

    seen = slope("all at once", [*moved])
    if not (seen.passed or facts):  # to name it, and since fewer choices change one by one
        seen = worst(slope(each, [each]) for each in moved)
    return seen


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
    differs = by_gradient = by_difference = 0.0
    for number, step in enumerate(STEPS):
        with fix_seed(seed + 31 + number):
            toward = [torch.randn_like(start) for start in starts]
        for start, direction in zip(starts, toward, strict=True):
            direction.mul_(max(start.norm().item(), 1e-3) / direction.norm())
        slopes = [
            (gradient * direction).sum().item()
            for (_, gradient), direction in zip(parts, toward, strict=True)
        ]
        typical = max(
            (gradient.norm() * direction.norm()).item() / gradient.numel() ** 0.5
            for (_, gradient), direction in zip(parts, toward, strict=True)
        )
        by_gradient, along = sum(slopes), partial(_difference, parts, starts, toward, scalar)
        whole, size = along(step)
        for share in (step, step / 2):
            by_difference = whole if share == step else (4 * along(share)[0] - whole) / 3
            scale = max(abs(by_gradient), abs(by_difference), typical, 1e-3)
            rounding = 1e-14 * max(size, 1.0) / share
            differs = max(abs(by_gradient - by_difference) - rounding, 0.0) / scale
            if differs <= SLOPE_AGREEMENT:
                return Result(True, f"slope of {what}: relative difference {differs:.1e}")
    return Result(
        False,
        f"slope along a random direction of {what}: {by_gradient:.6g} by the gradient, "
        f"{by_difference:.6g} by finite differences, relative difference {differs:.1e}, wanted "
        f"{SLOPE_AGREEMENT:.0e}",
    )
