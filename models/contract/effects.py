"""The contract kit's checks of effects: what a pass may change, and what may change a pass."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lra.models.contract.calls import entries_of, plain_call
from lra.models.contract.case import Case, Result, call, fix_seed, traits_of
from lra.models.contract.facts import masks_for
from lra.models.contract.passes import Path
from lra.models.mixer import Layout


def check_repeatable(case: Case) -> Result:
    """In eval, two passes are bitwise equal, and so are two builds from one seed."""
    first, second, x = case.mixer(), case.mixer(), case.input()
    after = []
    for seed in (1, 2):
        with fix_seed(seed):
            case.make(case.site())
            after.append(torch.get_rng_state())
    if torch.equal(*after):
        return Result(False, "the constructor seeds the global random state").because(
            "torch.manual_seed: draw from site.generator instead"
        )
    with fix_seed(11):
        once = call(first, x)
    with fix_seed(12):
        if not torch.equal(call(first, x), once):
            return Result(False, "two passes in eval differ: nothing may be drawn inside forward")
    for name, value in first.state_dict().items():
        if not torch.equal(value, second.state_dict()[name]):
            return Result(False, f"{name} differs between builds: draw from site.generator")
    if not torch.equal(call(second, x), once):
        return Result(False, "two builds from one seed differ; draw from site.generator")
    return Result(True, "two passes and two builds are bitwise equal")


BETWEEN: Mapping[str, Mapping[str, Any]] = {
    "another input": {},
    "a shorter input": {"length": 23},
    "a single token": {"length": 1},
    "a single token by extend": {"length": 1, "entry": "extend"},
    "a single token in training": {"length": 1, "training": True},
    "another batch": {"rows": 1},
    "a mask": {"mask": "holes"},
    "training": {"training": True},
    "inference_mode": {"gradient": "inference_mode"},
    "no_grad": {"gradient": "no_grad"},
    "a state": {"length": 2, "entry": "stream"},
}
"""Calls between two equal ones."""


def check_calls(case: Case) -> Result:
    """No call changes the result of a later or an earlier call, in float64 or under autocast."""
    entries, masks = entries_of(case), masks_for(traits_of(case.build()))
    plain = plain_call(case)._replace(seed=1)
    path = Path(case, plain, "between")
    first = path.run()
    copy = first.detach().clone()
    for name, settings in BETWEEN.items():
        call = plain._replace(**{"seed": 2, **settings})
        if call.entry in entries and call.mask in masks and call.length <= plain.length:
            other = Path(case, call, "between")
            y = other.run(other.x.requires_grad_(call.training))
            if call.training and y.requires_grad:
                torch.autograd.backward(y.sum())
            found = _unchanged(path, (first, copy), name)
            if not found.passed:
                return found
    with torch.autocast(case.device, torch.bfloat16):
        path.mixer(path.x, Layout())
    found = _unchanged(path, (first, copy), "autocast")
    x = path.x.clone().requires_grad_()
    torch.autograd.backward(path.run(x).sum())  # raises where an inference tensor was kept
    return found


def _unchanged(path: Path, before: tuple[Tensor, Tensor], name: str) -> Result:
    """Compare an earlier output with its copy, and with that of the same call."""
    first, copy = before
    if not torch.equal(first, copy):
        return Result(False, f"a call with {name} overwrote the output of the call before").because(
            "the output is a view of a buffer that is used again"
        )
    if not torch.equal(path.run(), copy):
        return Result(
            False, f"after a call with {name} the same input gives another output"
        ).because("a cache or a running statistic is read by the next call")
    return Result(True, "no call changes another call")


def check_random_draws(case: Case) -> Result:
    """Draws of the site's generator decide the function exactly if that is declared."""
    declared = traits_of(case.build()).random_draws
    x = case.input()
    changed = not torch.equal(call(case.mixer(), x), call(case.mixer(draw=case.seed + 77), x))
    if changed != declared:
        return Result(
            False,
            f"another site.generator gives {'another' if changed else 'the same'} function: "
            f"traits.random_draws is {declared}",
        )
    return Result(True, f"random draws decide the function: {changed}")
