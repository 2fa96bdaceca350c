"""The contract kit's checks of declared growth: operations and kept activations, by counting."""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from models.contract_case import Case, Seen, call, traits_of
from models.flops import ElementCounter, count_operations, pretending, saved_bytes

GROWTH_LENGTHS = (2**12, 2**14)
"""Long enough that what grows more slowly no longer moves the exponent."""
GROWTH_TOLERANCE = 0.02
FAR_LENGTH, FAR_TOLERANCE = 2**18, 0.05
"""Where the two lengths disagree a little with a declaration: steps, such as of a number of hash
buckets, have worn off by then, while a factor log(length) is still 0.1."""
NEAR_MISS = 0.12
ROOM_BESIDE = 0.3
"""How much faster than declared may grow what no declaration is about: a forward pass alone, and
what is no product. Of the order n x n, a fifth of the work at the shorter length is beyond that."""
SIMULATED = Seen(True, "not applicable: traits.simulated, a dense mask stands for sparsity")


class Work(NamedTuple):
    """What is counted of one row."""

    operations: int
    """Forward and backward."""
    saved: int
    """Bytes of activations that autograd keeps."""
    evaluation: int
    """Operations of a pass without gradient."""
    written: int
    """Numbers that operators write in it."""


def exponent(first: int, second: int, lengths: tuple[int, int] = GROWTH_LENGTHS) -> float:
    """Return the power of the length with which a count grew between the two lengths."""
    shorter, longer = lengths
    return math.log(second / first) / math.log(longer / shorter)


def logarithm(lengths: tuple[int, int]) -> float:
    """Return by how much a factor log(length) raises the exponent between the two lengths."""
    shorter, longer = lengths
    return math.log(math.log(longer) / math.log(shorter)) / math.log(longer / shorter)


@lru_cache(maxsize=8)
def count_work(case: Case, length: int) -> Work:
    """Count the work of one row of this length, in training and without gradient."""
    with pretending():
        mixer = case.build(max_length=length)
        x = torch.empty(1, length, case.width, requires_grad=True)
        saved = 0

        def train() -> None:
            nonlocal saved
            out: list[Tensor] = []
            fixed = [*mixer.parameters(), *mixer.buffers()]
            saved = saved_bytes(lambda: out.append(call(mixer, x)), fixed)
            torch.autograd.backward(out[0].sum())

        operations = count_operations(train)
        mixer.requires_grad_(False)
        with torch.no_grad(), ElementCounter() as forward:
            evaluation = count_operations(lambda: call(mixer, x.detach()))
    return Work(operations, saved, evaluation, forward.written)


def judge_growth(
    what: str,
    counted: tuple[int, int],
    declared: float,
    *,
    log: bool = False,
    lengths: tuple[int, int] = GROWTH_LENGTHS,
    tolerance: float = GROWTH_TOLERANCE,
) -> Seen:
    """Compare the exponent of two counts with the declared one.

    With `log`, a factor log(length) may be in it, wholly or in part: beside linear terms.
    """
    if not all(counted):
        return Seen(True, f"{what}: nothing to count")
    grown = exponent(*counted, lengths)
    room = logarithm(lengths) if log else 0.0
    return Seen(
        -tolerance <= grown - declared <= room + tolerance,
        f"{what} grow with length^{grown:.3f} between {lengths[0]} and "
        f"{lengths[1]}: declared {declared:.2f}{' with a logarithm' if log else ''}, "
        f"wanted within {tolerance}",
    )


def judge_work(case: Case, what: str, field: str, declared: float, *, log: bool = False) -> Seen:
    """Compare the growth of one count with a declaration; after a near miss, far beyond as well."""
    shorter, longer = (getattr(count_work(case, length), field) for length in GROWTH_LENGTHS)
    seen = judge_growth(what, (shorter, longer), declared, log=log)
    if seen.passed or declared > 1.25 or abs(exponent(shorter, longer) - declared) > NEAR_MISS:
        return seen
    again = judge_growth(
        what,
        (shorter, getattr(count_work(case, FAR_LENGTH), field)),
        declared,
        log=log,
        lengths=(GROWTH_LENGTHS[0], FAR_LENGTH),
        tolerance=FAR_TOLERANCE,
    )
    return Seen(again.passed, f"{again.detail}; in steps: {seen.detail}")


def check_operations(case: Case) -> Seen:
    """Operations of forward and backward grow as `traits.operations_exponent` says.

    So do, at most, those of a pass without gradient, and the numbers that are written in it.
    """
    traits = traits_of(case.build())
    if traits.simulated:
        return SIMULATED
    declared, log = traits.operations_exponent, traits.operations_log
    seen = judge_work(case, "operations", "operations", declared, log=log)
    if not seen.passed:
        return seen
    least = max(declared, 1.0)  # to write what comes out is linear already
    for what, field, most in (
        ("operations of a pass without gradient", "evaluation", declared),
        ("numbers written without gradient", "written", least),
    ):
        shorter, longer = (getattr(count_work(case, length), field) for length in GROWTH_LENGTHS)
        if not shorter:
            continue
        grown = exponent(shorter, longer)
        if grown > most + ROOM_BESIDE + (logarithm(GROWTH_LENGTHS) if log else 0.0):
            return Seen(
                False,
                f"{what} grow with length^{grown:.3f}: declared {declared:.2f} for training",
            ).because("a mask, a sort or a statistic of all pairs, on the side or under no_grad")
    return seen


def check_memory(case: Case) -> Seen:
    """Kept activations grow as `traits.memory_exponent` says; a dense mask must be declared."""
    traits = traits_of(case.build())
    if traits.simulated:
        return SIMULATED
    seen = judge_work(case, "saved bytes", "saved", traits.memory_exponent)
    if not seen.passed:
        shorter, longer = (count_work(case, length).saved for length in GROWTH_LENGTHS)
        if exponent(shorter, longer) > max(1.5, traits.memory_exponent):
            return Seen(False, f"{seen.detail}; a dense mask needs traits.simulated=True")
    return seen
