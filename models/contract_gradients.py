"""The contract kit's checks of gradients: that they arrive, and that they are derivatives."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from models.contract_case import Case, Seen, call, seeded, traits_of, worst
from models.mixer import Traits

STEPS = (1e-6, 1e-7, 1e-5)
"""Steps of finite differences, relative to the size of what moves; the later ones in case a kink
or a choice lies within the first."""
SLOPE_AGREEMENT = 1e-5
"""Largest relative difference between a derivative and its finite difference in float64."""


def situations(case: Case, traits: Traits) -> dict[str, dict[str, Any]]:
    """Return the layouts in which a parameter may be used."""
    facts: dict[str, dict[str, Any]] = {"": {}}
    if "keep" in traits.honours:
        facts[", under a mask"] = {"keep": case.holes()}
    if "is_global" in traits.honours:
        facts[", with global tokens"] = {"is_global": case.globals()}
    return facts


def check_gradients(case: Case) -> Seen:
    """Every parameter receives a finite gradient, in some layout; frozen or not, the same."""
    mixer, x = case.mixer().train(), case.input().requires_grad_()
    direction = case.input(salt=3)
    for facts in situations(case, traits_of(mixer)).values():
        with seeded(30):
            torch.autograd.backward((call(mixer, x, **facts) * direction).sum())
    learnt = {n: p for n, p in mixer.named_parameters() if p.requires_grad}
    for name, parameter in [("the input", x), *learnt.items()]:
        if parameter.grad is None:
            return Seen(False, f"{name} received no gradient: it is unused or cut off")
        if not parameter.grad.isfinite().all():
            return Seen(False, f"{name} received a gradient that is not finite")

    def gradients(of: list[Tensor]) -> tuple[Tensor, ...]:
        with seeded(30):
            y = call(mixer, x)
        return torch.autograd.grad((y * direction).sum(), of, materialize_grads=True)

    both = gradients([x, *learnt.values()])
    cause = "a backward pass that trusts needs_input_grad of one input for another"
    mixer.requires_grad_(False)
    seen = [case.agree("gradient past frozen parameters", gradients([x])[0], both[0])]
    for parameter in learnt.values():
        parameter.requires_grad_()
    x.requires_grad_(False)
    if learnt:
        found = zip(learnt, gradients([*learnt.values()]), both[1:], strict=True)
        seen += [
            case.agree(f"gradient of {name} where the input has none", here, there)
            for name, here, there in found
        ]
    last = worst(seen)
    return (
        Seen(True, "every parameter received a finite gradient")
        if last.passed
        else last.because(cause)
    )


def check_slopes(case: Case) -> Seen:
    """Gradients of the input and of every parameter are derivatives, by finite differences."""
    mixer = case.mixer().double().train()
    traits = traits_of(mixer)
    if traits.surrogate_gradient:
        return Seen(True, "not applicable: traits.surrogate_gradient is declared")
    x = case.input().double().requires_grad_()
    learnt = {n: p for n, p in mixer.named_parameters() if p.requires_grad}
    moved = {"the input": x, **learnt}
    for name, facts in situations(case, traits).items():
        direction = case.input(salt=3).double()
        if "keep" in facts:  # outputs of padding are nobody's
            direction = direction * facts["keep"][..., None]

        def scalar(facts: dict[str, Any] = facts, direction: Tensor = direction) -> Tensor:
            with seeded(30):  # noise of training, where there is some, falls alike
                return (call(mixer, x, **facts) * direction).sum()

        gradients = torch.autograd.grad(scalar(), [*moved.values()], materialize_grads=True)
        for (what, tensor), gradient in zip(moved.items(), gradients, strict=True):
            seen = compare_slope(f"{what}{name}", tensor, gradient, scalar, case.seed)
            if not seen.passed:
                return seen.because(
                    "a path is detached, or a backward pass is not the derivative of its forward; "
                    "one that is not meant to be needs traits.surrogate_gradient=True"
                )
    return Seen(True, f"derivatives agree with finite differences for {len(moved)} tensors")


def compare_slope(
    what: str, tensor: Tensor, gradient: Tensor, scalar: Callable[[], Tensor], seed: int
) -> Seen:
    """Compare the slope along a random direction; one agreement in `STEPS` is enough.

    A wrong gradient disagrees every time; a right one disagrees where a choice changes within the
    step, which is rare.
    """
    start = tensor.detach().clone()
    size = max(start.norm().item(), 1e-3)
    differs = by_gradient = by_difference = 0.0
    for number, step in enumerate(STEPS):
        with seeded(seed + 31 + number):
            toward = torch.randn_like(start)
        toward *= size / toward.norm()
        by_gradient = (gradient * toward).sum().item()
        typical = (gradient.norm() * toward.norm() / start.numel() ** 0.5).item()
        with torch.no_grad():
            tensor.add_(toward, alpha=step)
            above = scalar()
            tensor.copy_(start).sub_(toward, alpha=step)
            below = scalar()
            tensor.copy_(start)
        by_difference = ((above - below) / (2 * step)).item()
        noise = 1e-15 * max(abs(above.item()), 1.0) / step
        scale = max(abs(by_gradient), abs(by_difference), typical, 1e-3)
        differs = max(abs(by_gradient - by_difference) - 10 * noise, 0.0) / scale
        if differs <= SLOPE_AGREEMENT:
            return Seen(True, f"slope of {what}: relative difference {differs:.1e}")
    return Seen(
        False,
        f"slope along a random direction of {what}: {by_gradient:.6g} by the gradient, "
        f"{by_difference:.6g} by finite differences, relative difference {differs:.1e}, wanted "
        f"{SLOPE_AGREEMENT:.0e}",
    )
