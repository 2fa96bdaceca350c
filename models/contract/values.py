"""The contract kit's checks of numbers: precisions, large inputs, weighted means."""

from typing import Any

import torch
from torch import nn

from lra.models.contract.case import ROWS, Case, Result, call, inapplicable, traits_of, worst
from lra.models.mixer import Layout

SINGLE_PRECISION = 1e-4
"""Largest relative difference between float32 and float64: half precision inside is 5e-4 off."""
MEAN_OF_ONES = 1e-5
"""How far a weighted mean of ones may lie from one: room for a small constant in a denominator."""
LARGE_MEAN = 1e-3
"""The same in float32 at large logits."""
NEARLY = 1e-8
"""Deviation of tokens that are nearly equal."""
LARGE = (30.0, 100.0)
"""What inputs are multiplied by where logits are to be large."""
HUGE = 300.0
"""The same under a mask: logits of 1e5."""
STEP, STRAIGHT = 1e-6, 1e-2
"""A step, relative to the input, and how near to straight a smooth response is over two of it."""


def check_precisions(case: Case) -> Result:
    """float64 is not rounded inside."""
    if case.dtype is torch.float64 and not responds(case):
        return Result(False, "float64 does not respond smoothly to a small step").because(
            "values are rounded inside: .float(), .half(), or a table in a lower precision"
        )
    return Result(True, "float64 is not rounded inside")


def responds(case: Case) -> bool:
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
    for what, x, y in passes:
        if not torch.autograd.grad(y.float().sum(), x)[0].isfinite().all():
            return Result(False, f"{what}: gradients are not finite").because(
                "a quotient or a root of what underflows to 0"
            )
    if "keep" in traits_of(mixer).supports:
        x, keep = case.input(scale=HUGE), case.before([1] * ROWS)
        with torch.no_grad():
            y, wanted = call(case.mixer(), x, keep)[:, :1], call(case.mixer(), x[:, :1])
        seen = case.agree(f"padding behind a single token, inputs x {HUGE:g}", y, wanted)
        if not seen.passed:
            return seen.because("a number such as -1e4 added to the logits of what is hidden")
    return Result(True, f"finite for inputs x {', '.join(f'{scale:g}' for scale in LARGE)}")


def attention(mixer: nn.Module) -> tuple[Any, Any] | None:
    """Return the core and the projections of a mixer that has both under these names, or None."""
    core, project = getattr(mixer, "core", None), getattr(mixer, "project", None)
    return (core, project) if callable(core) and callable(project) else None


def check_weighted_mean(case: Case) -> Result:
    """A core that declares weighted means returns ones for values of ones, at any logits."""
    mixer = case.mixer()
    traits, parts = traits_of(mixer), attention(mixer)
    if not traits.row_stochastic or parts is None:
        return inapplicable("traits.row_stochastic is False, or it has no core and projections")
    seen, masks = [], case.masks(traits)
    tried = [(1.0, case.dtype, *each, MEAN_OF_ONES) for each in masks.items()]
    tried += [(scale, torch.float32, "no mask", None, LARGE_MEAN) for scale in LARGE]
    for scale, dtype, name, mask, limit in tried:
        core, project = attention(mixer.to(dtype)) or parts
        layout = Layout(keep=mask)
        q, k, v = project(case.input(scale=scale).to(dtype), layout)
        o = core(q, k, torch.ones_like(v), layout).transpose(1, 2)
        o = o if mask is None else o[mask]
        what = f"mean of ones, {name}, inputs x {scale:g}"
        seen.append(case.agree(what, o, torch.ones_like(o), limit))
    return worst(seen).because(
        "padding or a constant counts in the sum of weights, or weights underflow to 0 or overflow"
    )
