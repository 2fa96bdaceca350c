"""The contract kit's checks of numbers: precisions, large inputs, weighted means."""

from typing import Any

import torch
from torch import nn

from lra.models.contract.case import Case, Result, call, inapplicable, traits_of, worst
from lra.models.mixer import Layout

SINGLE_PRECISION = 1e-4
"""Largest relative difference between float32 and float64: half precision inside is 5e-4 off."""
SINGLE_GRADIENT = 5e-4
"""The same of gradients: bfloat16 on the way back is 1e-3 off."""
MEAN_OF_ONES = 1e-5
"""How far a weighted mean of ones may lie from one: room for a small constant in a denominator."""
NEARLY = 1e-8
"""Deviation of tokens that are nearly equal."""
LARGE = (30.0, 100.0)
"""What inputs are multiplied by where logits are to be large."""
STEP, STRAIGHT = 1e-6, 1e-2
"""A step, relative to the input, and how near to straight a smooth response is over two of it."""


def check_precisions(case: Case) -> Result:
    """float64 is not rounded inside, float32 is near it, bfloat16 under autocast is finite."""
    exact, single = case.mixer(), case.mixer().float()
    x = case.input()
    traits = traits_of(exact)
    if case.dtype is torch.float64:
        if not _responds(case):
            return Result(False, "float64 does not respond smoothly to a small step").because(
                "values are rounded inside: .float(), .half(), or a table in a lower precision"
            )
        if not traits.selection_leak:
            near = case.agree(
                "float32 against float64",
                call(single, x.float()).double(),
                call(exact, x),
                SINGLE_PRECISION,
            )
            if near.passed and not traits.random_draws:
                near = _gradients_near(case, single, exact)
            if not near.passed:
                return near.because("float32 is rounded to half precision inside, or overflows")
    half = x.float().requires_grad_()
    with torch.autocast(case.device, torch.bfloat16):
        y = call(single, half)
    torch.autograd.backward(y.float().square().sum())
    parts = [y, half.grad, *(parameter.grad for parameter in single.parameters())]
    if not all(part.isfinite().all() for part in parts if part is not None):
        return Result(
            False, "bfloat16 under autocast gives values or gradients that are not finite"
        )
    return Result(True, "float32 is near float64; bfloat16 under autocast is finite")


def _gradients_near(case: Case, single: nn.Module, exact: nn.Module) -> Result:
    """Compare the gradient of the input in float32 with that in float64.

    Gradients of parameters are excluded: that of a bias without effect consists of rounding alone.
    """
    found = []
    for mixer, dtype in ((single, torch.float32), (exact, torch.float64)):
        x = case.input(case.middling).to(dtype).requires_grad_()
        y = call(mixer, x) * case.input(case.middling, salt=3).to(dtype)
        found.append(torch.autograd.grad(y.sum(), x)[0].double())
    seen, wanted = found
    return case.agree("gradient of the input in float32", seen, wanted, SINGLE_GRADIENT)


def _responds(case: Case) -> bool:
    """Tell whether twice a small step changes the output twice as much, in one of a few tries.

    Rounding to float32 inside the mixer would move values by more than the step. A try is
    inconclusive if a choice changes, such as that of a hash.
    """
    mixer, x = case.mixer(), case.input(case.middling)
    with torch.no_grad():
        start = call(mixer, x)
        for salt in range(4):
            toward = case.input(case.middling, salt=40 + salt) * STEP
            once, twice = (call(mixer, x + times * toward) - start for times in (1, 2))
            bent = (twice - 2 * once).abs().max()
            if bent <= STRAIGHT * once.abs().max() and (once.any() or not start.any()):
                return True
    return False


def check_content(case: Case) -> Result:
    """Equal tokens, or zeros, give finite values and gradients.

    Tokens that are nearly equal give nearly what equal ones do.
    """
    seen, equal = [], case.input(1).expand(-1, case.middling, -1)
    masks = case.masks(traits_of(case.build()))
    masks.pop("padding", None)  # that in the middle leaves as much to divide by
    for dtype in {case.dtype, torch.float32}:
        mixer = case.mixer().to(dtype)
        learnt = [each for each in mixer.parameters() if each.requires_grad]
        zero = [("zero", torch.zeros_like(equal))] if dtype is torch.float32 else []
        for what, tokens in [("equal", equal), *zero]:
            for name, mask in masks.items():
                keep = None if mask is None else mask[:, : case.middling]
                x = tokens.to(dtype).clone().requires_grad_()
                y = call(mixer, x, keep)
                parts = torch.autograd.grad(y.sum(), [x, *learnt], materialize_grads=True)
                if not all(part.isfinite().all() for part in (y, *parts)):
                    return Result(
                        False, f"tokens that are all {what}, {name}, {dtype}: not finite"
                    ).because("a quotient or a root of a difference between tokens")
                if what == "equal" and dtype is case.dtype:
                    near = call(mixer, x + NEARLY * case.input(case.middling, salt=5), keep)
                    real = slice(None) if keep is None else keep
                    label = f"nearly equal tokens, {name}"
                    seen.append(case.agree(label, near[real], y[real], SINGLE_PRECISION))
    return worst(seen).because("equal tokens take a separate path")


def check_large_inputs(case: Case) -> Result:
    """Large logits give finite values and gradients, and weighted means stay means."""
    mixer, passes = case.mixer().float(), []
    for scale in LARGE:
        for name, half in (("float32", False), ("bfloat16 under autocast", True)):
            x = case.input(case.middling, scale=scale).float().requires_grad_()
            with torch.autocast(case.device, torch.bfloat16, enabled=half):
                y = call(mixer, x)
            passes.append((f"inputs multiplied by {scale:g}, computed in {name}", x, y))
    for what, _, y in passes:
        if not y.isfinite().all():
            return Result(False, f"{what}: values are not finite").because(
                "exp() of a logit from which the maximum was not subtracted"
            )
    if traits_of(mixer).row_stochastic:
        for scale in LARGE:
            seen = _means(case, mixer, scale)
            if not seen.passed:
                return seen.because("weights, or their sum, underflow to 0 or overflow")
    for what, x, y in passes:
        if not torch.autograd.grad(y.float().sum(), x)[0].isfinite().all():
            return Result(False, f"{what}: gradients are not finite").because(
                "a quotient or a root of what underflows to 0"
            )
    return Result(True, f"finite for inputs x {', '.join(f'{scale:g}' for scale in LARGE)}")


def _means(case: Case, mixer: nn.Module, scale: float) -> Result:
    """Compare weighted means of ones with ones, in float32 and at large logits."""
    parts = attention(mixer)
    if parts is None:
        return inapplicable("no core and projections")
    core, project = parts
    q, k, v = project(case.input(case.middling, scale=scale).float(), Layout())
    o = core(q, k, torch.ones_like(v), Layout())
    return case.agree(f"mean of ones, inputs x {scale:g}", o, torch.ones_like(o), 1e-3)


def attention(mixer: nn.Module) -> tuple[Any, Any] | None:
    """Return the core and the projections of a mixer that has both under these names, or None."""
    core, project = getattr(mixer, "core", None), getattr(mixer, "project", None)
    return (core, project) if callable(core) and callable(project) else None


def check_weighted_mean(case: Case) -> Result:
    """A core that declares weighted means returns ones for values of ones."""
    mixer = case.mixer()
    traits = traits_of(mixer)
    if not traits.row_stochastic:
        return inapplicable("traits.row_stochastic is False")
    parts = attention(mixer)
    if parts is None:
        return inapplicable("it has no core and projections that could receive values of ones")
    core, project = parts
    seen = []
    for name, mask in case.masks(traits).items():
        layout = Layout(keep=mask)
        q, k, v = project(case.input(), layout)
        o = core(q, k, torch.ones_like(v), layout).transpose(1, 2)
        if mask is not None:
            o = o[mask]
        wanted = torch.ones_like(o)
        seen.append(case.agree(f"mean of ones, {name}", o, wanted, MEAN_OF_ONES))
    return worst(seen).because("padding or a constant counts in the sum of weights")
