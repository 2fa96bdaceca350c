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

import torch

from lra.models.contract.case import AGREEMENT, Case, Check, Finding, Result, fix_seed
from lra.models.contract.causality import check_no_lookahead
from lra.models.contract.costs import check_memory, check_operations
from lra.models.contract.effects import (
    check_calls,
    check_dropout,
    check_random_draws,
    check_recomputation,
    check_repeatable,
    check_untouched,
)
from lra.models.contract.form import (
    check_copies,
    check_empty,
    check_half,
    check_hooks,
    check_lengths,
    check_meta,
    check_strides,
    check_traits,
)
from lra.models.contract.gradients import check_gradients, check_slopes
from lra.models.contract.layout import (
    check_document,
    check_is_global,
    check_prefix,
    check_ranks,
    check_start,
)
from lra.models.contract.separation import (
    check_batch,
    check_cross,
    check_heads,
    check_masked_rows,
    check_order,
    check_padding,
)
from lra.models.contract.sight import check_sight
from lra.models.contract.states import (
    check_extend,
    check_flow,
    check_forgetting,
    check_history,
    check_prefill,
    check_state,
)
from lra.models.contract.values import (
    check_content,
    check_large_inputs,
    check_precisions,
    check_weighted_mean,
)
from lra.models.contract.ways import check_ways
from lra.models.mixer import MixerFactory, Traits, Unsupported

__all__ = ["CHECKS", "Case", "Finding", "check_mixer", "verify"]

ON_A_CPU = {"operations", "memory"}
"""Checks whose results are equal on every device."""
CHECKS: dict[str, Check] = {
    "traits": check_traits,
    "lengths": check_lengths,
    "empty": check_empty,
    "half": check_half,
    "meta": check_meta,
    "strides": check_strides,
    "copies": check_copies,
    "hooks": check_hooks,
    "repeatable": check_repeatable,
    "calls": check_calls,
    "untouched": check_untouched,
    "ways": check_ways,
    "dropout": check_dropout,
    "recomputation": check_recomputation,
    "random_draws": check_random_draws,
    "batch": check_batch,
    "heads": check_heads,
    "order": check_order,
    "padding": check_padding,
    "masked_rows": check_masked_rows,
    "cross": check_cross,
    "start": check_start,
    "document": check_document,
    "prefix": check_prefix,
    "ranks": check_ranks,
    "is_global": check_is_global,
    "sight": check_sight,
    "no_lookahead": check_no_lookahead,
    "gradients": check_gradients,
    "slopes": check_slopes,
    "precisions": check_precisions,
    "content": check_content,
    "large_inputs": check_large_inputs,
    "weighted_mean": check_weighted_mean,
    "flow": check_flow,
    "extend": check_extend,
    "prefill": check_prefill,
    "state": check_state,
    "history": check_history,
    "forgetting": check_forgetting,
    "operations": check_operations,
    "memory": check_memory,
}

Watch = Callable[[Sequence[str]], Iterable[str]]
"""Yields the names of checks again, each as it begins, to show progress."""


def direction(causal: bool) -> str:
    """Return the word for a direction, causal or bidirectional."""
    return "causal" if causal else "bidirectional"


def check_mixer(
    make: MixerFactory,
    *,
    causal: bool,
    max_length: int = 256,
    width: int = 32,
    heads: int = 2,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    device: str = "cpu",
    each: Watch = iter,
) -> list[Finding]:
    """Run every check in one direction on a device, cpu or cuda; `each` receives their names.

    A direction that the mixer refuses with `Unsupported` gives one finding, which passes.

    Raises:
        ValueError: `dtype` has no entry in the table of tolerances.
    """
    if dtype not in AGREEMENT:
        raise ValueError(f"dtype must be one of {[*AGREEMENT]}: got {dtype}")
    case = Case(
        make=make,
        causal=causal,
        max_length=max_length,
        width=width,
        heads=heads,
        dtype=dtype,
        seed=seed,
        device=device,
    )
    name = direction(causal)
    try:
        case.build()
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
    findings = [Finding(f"{name}.builds", True, "a site builds it")]
    with fix_seed(seed), _exact_convolutions():
        for label in each([f"{name}.{label}" for label in CHECKS]):
            check = label.partition(".")[2]
            here = replace(case, device="cpu") if check in ON_A_CPU else case
            findings.append(Finding(label, *_run(CHECKS[check], here)))
    return findings


def verify(
    factory: MixerFactory,
    *,
    max_length: int = 256,
    width: int = 32,
    heads: int = 2,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    device: str = "cpu",
    each: Watch = iter,
) -> list[Finding]:
    """Run every check in both directions, on cpu or cuda; the mixer must support one at least."""
    findings: list[Finding] = []
    offered = []
    for causal in (False, True):
        found = check_mixer(
            factory,
            causal=causal,
            max_length=max_length,
            width=width,
            heads=heads,
            dtype=dtype,
            seed=seed,
            device=device,
            each=each,
        )
        findings += found
        if len(found) > 1:
            offered.append(direction(causal))
    detail = f"works {' and '.join(offered)}" if offered else "works in no direction: wanted one"
    return [*findings, Finding("directions", bool(offered), detail)]


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


def _run(check: Check, case: Case) -> Result:
    try:
        return check(case)
    except Exception as error:  # noqa: BLE001 - whatever a stranger's code raises is a finding
        return Result(False, f"raised {type(error).__name__}: {error}")
