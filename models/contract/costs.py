"""The contract kit's checks of declared growth: operations and saved activations, by counting."""

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lra.models.contract.case import Case, Result, call, inapplicable, traits_of
from lra.models.contract.counting import (
    ElementCounter,
    OperationCounter,
    count_operations,
    fake_tensors,
    saved_bytes,
)
from lra.models.mixer import Growth

LENGTHS = (2**9, 2**10, 2**11)
"""At which everything is counted. Counts that grow as n are most often n and a constant, each times
a whole number: three of them prove it."""
FURTHER_LENGTHS = (2**12, 2**13, 2**14)
"""Counted besides, one after the other, where they are not: another growth f(n) beside these two
takes four counts, a step or a term in log n a fifth, sizes that are rounded all."""
FAR_LENGTH = 2**16
"""Counted besides where steps, such as of a number of hash buckets, look like a faster growth."""
HALF = 0.5
"""A faster growth with less than this share of the longest count may be nothing but steps."""
COMPUTED_BYTES = 2**28
"""Tensors have no contents where activations, if they grew as n², might take more than this; below
it is quicker to compute."""
COMPUTED_OPERATIONS, COMPUTED_A_CALL = 2**31, 2**23
"""Nor have they where operations, growing as declared, are more than this, and this for each call
of an operator: to pretend takes as long for a small one as for a large."""
EXACT = 1e-9
"""Relative error of a fit that is none but rounding: counts are whole numbers."""
SHARE = 1e-7
"""A growth with less than this share of the longest count is not among it."""
STEPS = 0.25
"""Largest relative error of a fit to a count in steps: a last block that is filled up."""
AS_NEAR = 2.0
"""Errors of two fits to a count in steps that differ by less than this factor are alike."""
SOME = 3.0
"""A term is there if its share of the longest count is so many times the error of the fit."""
ROOM_BESIDE = 0.3
"""How much faster than declared may grow what is counted at two lengths alone: a forward pass. Of
the order n x n, a fifth of the work at the shorter length is beyond that."""
CONSTANT, LOGARITHM, LINEAR = Growth(0.0), Growth(0.0, log=True), Growth(1.0)
ROOT = Growth(1.5)
LADDER = frozenset(
    {
        CONSTANT,
        *(Growth(power, log=log) for power in (0.5, 1.0, 1.5, 2.0, 3.0) for log in (False, True)),
    }
)
"""What a declaration is compared with."""
SIMULATED = inapplicable("traits.simulated: a dense mask imitates sparsity")


class TrainingCost(NamedTuple):
    """Counts of one row in training, forward and backward."""

    operations: int
    saved: int
    """Bytes of activations that autograd saves."""
    calls: int
    """Calls of operators."""


class EvaluationCost(NamedTuple):
    """Counts of one row in a pass without gradient."""

    operations: int
    written: int
    """Numbers that operators write."""


def counting_context(case: Case, length: int) -> AbstractContextManager[object]:
    """Return the context in which mixers of this length are counted.

    Without real numbers where this changes no count.
    """
    if length <= LENGTHS[0]:
        return nullcontext()
    if length > FURTHER_LENGTHS[-1]:
        return fake_tensors()
    half, declared = length // 2, traits_of(case.build()).operations
    counted = count_training(case, half)
    operations = counted.operations * declared.at(length) / declared.at(half)
    room = COMPUTED_OPERATIONS + counted.calls * COMPUTED_A_CALL
    quick = counted.saved * 2**2 <= COMPUTED_BYTES and operations <= room
    return nullcontext() if quick else fake_tensors()


@lru_cache(maxsize=256)
def count_training(case: Case, length: int) -> TrainingCost:
    """Count the work of one row of this length in training."""
    with counting_context(case, length):
        mixer = case.build(max_length=length)
        x = case.input(length, rows=1).float().requires_grad_()
        saved = 0

        def train() -> None:
            nonlocal saved
            out: list[Tensor] = []
            fixed = [*mixer.parameters(), *mixer.buffers()]
            saved = saved_bytes(lambda: out.append(call(mixer, x)), fixed)
            torch.autograd.backward(out[0].sum())

        with OperationCounter() as counter:
            train()
        return TrainingCost(counter.operations, saved, counter.calls)


def count_evaluation(case: Case, length: int) -> EvaluationCost:
    """Count the work of one row of this length without gradient."""
    with counting_context(case, length):
        mixer = case.build(max_length=length).requires_grad_(False)
        x = case.input(length, rows=1).float()
        with torch.no_grad(), ElementCounter() as forward:
            operations = count_operations(lambda: call(mixer, x))
    return EvaluationCost(operations, forward.written)


class GrowthFit(NamedTuple):
    """How well counts are fitted by multiples of a growth and of slower terms."""

    error: float
    """Largest, relative to each count."""
    share: float
    """Of the growth itself in the count at the longest length."""

    @property
    def exact(self) -> bool:
        """Whether the fit has no error and the growth has a positive multiple."""
        return self.error <= EXACT and self.share > SHARE

    @property
    def possible(self) -> bool:
        """Whether the fit is exact but for steps, such as rounding up to blocks."""
        return self.error <= STEPS and self.share > SOME * self.error


def terms(growth: Growth, beside: tuple[Growth, ...]) -> list[Growth]:
    """Return `growth`, and those of `beside` that are slower."""
    return [growth, *(each for each in beside if each < growth)]


def fit_growth(
    counts: Mapping[int, int], growth: Growth, beside: tuple[Growth, ...] = (LINEAR, CONSTANT)
) -> GrowthFit:
    """Fit multiples of `growth`, and of what is slower among `beside`, by least squares."""
    parts = terms(growth, beside)
    values = np.array(
        [[part.at(length) / count for part in parts] for length, count in counts.items()]
    )
    scale = np.abs(values).max(0)
    found = np.linalg.lstsq(values / scale, np.ones(len(counts)), rcond=None)[0] / scale
    return GrowthFit(float(np.abs(values @ found - 1).max()), float(values[-1, 0] * found[0]))


def exact_growth(
    counts: Mapping[int, int], declared: Growth, *, log: bool = False
) -> Growth | None:
    """Return the growth that fits the counts exactly, with a term in log n if asked for.

    With as many terms as counts, anything would fit: these are left out.
    """
    beside = (LINEAR, LOGARITHM, CONSTANT) if log else (LINEAR, CONSTANT)
    room = [each for each in sorted(LADDER | {declared}) if len(terms(each, beside)) < len(counts)]
    return next((each for each in room if fit_growth(counts, each, beside).exact), None)


def stepped_growth(counts: Mapping[int, int], declared: Growth) -> tuple[Growth | None, float]:
    """Return the growth that is nearest to counts in steps, and its error; None if none is near.

    It is `declared` where that is about as near: steps do not tell the two apart, and hide a log n.
    """
    fits = {each: fit_growth(counts, each) for each in sorted(LADDER | {declared})}
    possible = {each: found.error for each, found in fits.items() if found.possible}
    if not possible:
        return None, math.inf
    nearest = min(possible, key=lambda each: possible[each])
    near = fits[declared].error < AS_NEAR * possible[nearest]
    if near and (declared in possible or declared.exponent == nearest.exponent):
        return declared, fits[declared].error
    return nearest, possible[nearest]


def judge_growth(
    case: Case, what: str, field: str, declared: Growth, *, at_most: bool = False
) -> Result:
    """Compare the growth of one count in training with the `declared` growth.

    Terms that are constant or grow as n at most are fitted together with it. With `at_most`, slower
    growth passes, too.
    """
    counts: dict[int, int] = {}

    def count(*lengths: int) -> dict[int, int]:
        for length in lengths:
            counts[length] = getattr(count_training(case, length), field)
        return dict(sorted(counts.items()))

    def answer(found: Growth | None, steps: str = "") -> Result:
        grown = "in no known way" if found is None else f"as {found}"
        text = f"{what} grow {grown} up to length {max(counts)}{steps}: declared {declared}"
        slower = at_most and found is not None and found < declared
        return Result(found == declared or slower, text)

    if not all(count(*LENGTHS).values()):
        return inapplicable(f"{what}: nothing to count")
    if found := exact_growth(count(), declared):
        return answer(found)
    for length in FURTHER_LENGTHS:
        count(length)
        last = dict([*count().items()][1:])  # behind the length at which a window is filled
        if found := (
            exact_growth(count(), declared)
            or exact_growth(count(), declared, log=True)
            or exact_growth(last, declared)
        ):
            return answer(found)
    found, error = stepped_growth(count(), declared)
    little = found is not None and fit_growth(count(), found).share < HALF
    if found != declared and little and declared < ROOT:
        found, error = stepped_growth(count(FAR_LENGTH), declared)
    return answer(found, f", in steps of {error:.1%}")


def written_growth(counts: Mapping[int, int]) -> Growth:
    """Return how the number of written elements grows: as n, or faster if that is certain."""
    found, _ = stepped_growth(counts, LINEAR)
    faster = found is not None and found > LINEAR and fit_growth(counts, found).share >= HALF
    return found if faster and found is not None else LINEAR


def check_operations(case: Case) -> Result:
    """Operations of forward and backward grow as `traits.operations` declares.

    Those are products, or what is written element by element where that grows faster. So do, at
    most, those of a pass without gradient: from further lengths on where a cheaper form serves
    short sequences.
    """
    traits = traits_of(case.build())
    if traits.simulated:
        return SIMULATED
    passes: dict[int, EvaluationCost] = {}

    def at(lengths: Iterable[int]) -> dict[int, EvaluationCost]:
        passes.update({n: count_evaluation(case, n) for n in lengths if n not in passes})
        return {n: passes[n] for n in lengths}

    def written(lengths: Iterable[int]) -> Growth:
        return written_growth({n: each.written for n, each in at(lengths).items()})

    most = max(traits.operations, LINEAR)  # to write what comes out is linear already
    grown = written((*LENGTHS, FURTHER_LENGTHS[0]))
    of_elements = grown == traits.operations and grown > LINEAR
    seen = judge_growth(case, "operations", "operations", traits.operations, at_most=of_elements)
    if not seen.passed:
        return seen
    ends = (LENGTHS[0], FURTHER_LENGTHS[0]), FURTHER_LENGTHS[::2]
    for what, field, declared in (
        ("operations of a pass without gradient", "operations", traits.operations),
        ("numbers written without gradient", "written", most),
    ):
        for each in ends:
            if (power := beyond(at(each), field, declared)) is None:
                break
        else:
            return Result(
                False,
                f"{what} grow with length^{power:.3f}: declared {traits.operations} for training",
            ).because(
                "a mask, a sort or a statistic of all pairs, outside products or under no_grad"
            )
    if grown > most and (grown := written((*FURTHER_LENGTHS, FAR_LENGTH))) > most:
        text = f"numbers written without gradient grow as {grown}: declared {traits.operations}"
        return Result(False, text).because("element-wise work counts like products")
    return seen


def beyond(passes: Mapping[int, EvaluationCost], field: str, declared: Growth) -> float | None:
    """Return the power of n with which a count grows, if this is more than declared; else None."""
    (short, first), (long, last) = ((n, getattr(each, field)) for n, each in passes.items())
    room = (long / short) ** ROOM_BESIDE * declared.at(long) / declared.at(short)
    return (
        math.log(last / first) / math.log(long / short) if first and last / first > room else None
    )


def check_memory(case: Case) -> Result:
    """Saved activations grow as `traits.memory` declares; a dense mask must be declared."""
    traits = traits_of(case.build())
    if traits.simulated:
        return SIMULATED
    seen = judge_growth(case, "saved bytes", "saved", traits.memory)
    if not seen.passed:
        shorter, longer = (count_training(case, length).saved for length in LENGTHS[-2:])
        if longer / shorter > 2 ** max(1.5, traits.memory.exponent):
            return Result(False, f"{seen.detail}; a dense mask needs traits.simulated=True")
    return seen
