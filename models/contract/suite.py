"""The contract kit: checks that every mixer must pass, as plain functions that return findings.

    for finding in verify(partial(MyMixer, features=64)):
        print(finding.check, finding.passed, finding.detail)

A factory takes a `Site` and returns a mixer; options beyond the site must be bound. Checks that do
not apply to a mixer pass and say why. By default all runs on the CPU in float64, because a bound
of 1e-9 shows leaks that float32 would hide in rounding.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch

from lra.models.contract import (
    causality,
    costs,
    effects,
    form,
    layout,
    learning,
    methods,
    rounding,
    separation,
    states,
    upkeep,
    values,
)
from lra.models.contract.calls import Call
from lra.models.contract.case import AGREEMENT, Case, Check, Finding, Result, fix_seed
from lra.models.contract.guards import switches
from lra.models.contract.relations import drive, forget, hold
from lra.models.mixer import MixerFactory, Traits, Unsupported

__all__ = ["CHECKS", "Call", "Case", "Finding", "check_mixer", "repeat", "verify"]

ON_A_CPU = {"methods", "operations", "memory"}
"""Checks whose results are equal on every device."""
CHECKS: dict[str, Check] = {
    "traits": form.check_traits,
    "lengths": form.check_lengths,
    "form": partial(drive, relation="form"),
    "empty": form.check_empty,
    "meta": form.check_meta,
    "copies": form.check_copies,
    "upkeep": upkeep.check_upkeep,
    "hooks": form.check_hooks,
    "options": upkeep.check_options,
    "untouched": partial(drive, relation="untouched"),
    "repeatable": effects.check_repeatable,
    "calls": effects.check_calls,
    "precisions": values.check_precisions,
    "rounding": rounding.check_rounding,
    "statistics": learning.check_statistics,
    "random_draws": effects.check_random_draws,
    "batch": partial(drive, relation="batch"),
    "heads": separation.check_heads,
    "order": separation.check_order,
    "padding": separation.check_padding,
    "start": layout.check_start,
    "unhidden": partial(drive, relation="unhidden"),
    "document": partial(drive, relation="document"),
    "prefix": layout.check_prefix,
    "ranks": layout.check_ranks,
    "is_global": layout.check_is_global,
    "unread": separation.check_unread,
    "no_lookahead": causality.check_no_lookahead,
    "cross": separation.check_cross,
    "flow": states.check_flow,
    "state": states.check_state,
    "extend": states.check_extend,
    "forgetting": states.check_forgetting,
    "long": separation.check_long,
    "content": values.check_content,
    "large_inputs": values.check_large_inputs,
    "weighted_mean": values.check_weighted_mean,
    "sight": partial(drive, relation="sight"),
    "gradients": partial(drive, relation="gradients"),
    "learning": learning.check_learning,
    "ways": partial(drive, relation="ways"),
    "methods": methods.check_methods,
    "operations": costs.check_operations,
    "memory": costs.check_memory,
}
"""From the particular to the general: the first that fails is seldom a consequence of another."""

Watch = Callable[[Sequence[str]], Iterable[str]]
"""Yields the names of checks again, each as it begins, to show progress."""


def direction(causal: bool) -> str:
    """Return the word for a direction, causal or bidirectional."""
    return "causal" if causal else "bidirectional"


def check_mixer(
    make: MixerFactory, *, causal: bool, each: Watch = iter, **settings: Any
) -> list[Finding]:
    """Run every check in one direction; a direction that is refused gives one finding, a pass.

    Args:
        make: The factory.
        causal: The direction.
        each: Receives the names of the checks.
        **settings: Fields of `Case`: max_length, width, heads, dtype, seed, device.

    Raises:
        ValueError: `dtype` has no entry in the table of tolerances.
    """
    case = Case(make=make, causal=causal, **settings)
    if case.dtype not in AGREEMENT:
        raise ValueError(f"dtype must be one of {[*AGREEMENT]}: got {case.dtype}")
    name = direction(causal)
    try:
        mixer = case.build()
    except Unsupported as refusal:
        return [Finding(f"{name}.builds", True, f"refused: {refusal}", applies=False)]
    except Exception as error:  # noqa: BLE001 - whatever a stranger's code raises is a finding
        hint = ""
        if isinstance(error, TypeError) and "Traits.__init__" in str(error):
            names = ", ".join(each.name for each in fields(Traits))
            hint = f"; Traits takes {names}; growth is declared as operations=Growth(1.0, log=True)"
        elif isinstance(error, TypeError) and "argument" in str(error):
            hint = f"; bind options beyond the site: functools.partial({_name(make)}, option=...)"
        return [Finding(f"{name}.builds", False, f"{type(error).__name__}: {error}{hint}")]
    detail = "a site builds it"
    if case.dtype is torch.float64 and getattr(mixer, "may_round", False) and _rounds(case):
        case = replace(case, dtype=torch.float32)
        detail += "; it computes in float32 inside, so all is compared in float32"
    findings = [Finding(f"{name}.builds", True, detail)]
    with fix_seed(case.seed), _exact_convolutions():
        before = switches()
        for label in each([f"{name}.{label}" for label in CHECKS]):
            check = label.partition(".")[2]
            here = replace(case, device="cpu") if check in ON_A_CPU else case
            findings.append(Finding(label, *_run(CHECKS[check], here)))
            for setting, value in switches().items():  # named once, by the first check that sees it
                if value != before[setting]:
                    findings[-1] = Finding(
                        label, False, f"{setting} was {before[setting]}: {value}"
                    )
            before = switches()
    forget()
    return findings


def verify(factory: MixerFactory, *, each: Watch = iter, **settings: Any) -> list[Finding]:
    """Run every check in both directions, of which one must be supported: see `check_mixer`."""
    findings: list[Finding] = []
    offered = []
    for causal in (False, True):
        found = check_mixer(factory, causal=causal, each=each, **settings)
        findings += found
        if len(found) > 1:
            offered.append(direction(causal))
    detail = f"works {' and '.join(offered)}" if offered else "works in no direction: wanted one"
    return [*findings, Finding("directions", bool(offered), detail)]


def repeat(
    make: MixerFactory, check: str, call: Call, *, causal: bool = False, **case: Any
) -> Finding:
    """Repeat one drawn call of a check, as the message of its failure names it.

    Args:
        make: The factory.
        check: Name of the relation, such as `batch`.
        call: The settings.
        causal: The direction.
        **case: Further fields of `Case`: max_length, width, heads, dtype, seed, device.
    """
    name = f"{direction(causal)}.{check}"
    return Finding(name, *hold(Case(make=make, causal=causal, **case), call, check))


@contextmanager
def _exact_convolutions() -> Iterator[None]:
    """Keep convolutions and recurrences in float32, because a GPU would use TensorFloat-32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def _name(make: MixerFactory) -> str:
    """Return the name of what a factory makes, for messages."""
    return getattr(make, "__name__", repr(make))


def _rounds(case: Case) -> bool:
    """Tell whether float64 is rounded inside; False if it raises, which each check reports."""
    try:
        return not values.responds(case)
    except Exception:  # noqa: BLE001 - whatever a stranger's code raises
        return False


def _run(check: Check, case: Case) -> Result:
    try:
        return check(case)
    except Exception as error:  # noqa: BLE001 - whatever a stranger's code raises is a finding
        return Result(False, f"raised {type(error).__name__}: {error}")
