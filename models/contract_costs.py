"""The contract kit's checks of declared growth: operations and kept activations, by counting."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from models.contract_case import Case, Seen, call, traits_of
from models.flops import count_operations, pretending, saved_bytes

GROWTH_LENGTHS = (2**12, 2**14)
"""Long enough that what grows more slowly no longer moves the exponent."""
GROWTH_TOLERANCE = 0.02
SIMULATED = Seen(True, "not applicable: traits.simulated, a dense mask stands for sparsity")


def exponent(first: int, second: int) -> float:
    """Return the power of the length with which a count grew between the two lengths."""
    shorter, longer = GROWTH_LENGTHS
    return math.log(second / first) / math.log(longer / shorter)


def counts(case: Case, count: Callable[[nn.Module, Tensor], int]) -> list[int]:
    """Count something about a fresh mixer and one row, at each length."""
    found = []
    for length in GROWTH_LENGTHS:
        with pretending():
            mixer = case.build(max_length=length)
            found.append(count(mixer, torch.empty(1, length, case.width, requires_grad=True)))
    return found


def judge_growth(what: str, counted: list[int], declared: float, *, log: bool = False) -> Seen:
    """Compare the exponent of two counts with the declared one.

    With `log`, a factor log(length) may be in it, wholly or in part: beside linear terms.
    """
    if not all(counted):
        return Seen(True, f"{what}: nothing to count")
    grown = exponent(*counted)
    shorter, longer = GROWTH_LENGTHS
    room = math.log(math.log(longer) / math.log(shorter)) / math.log(longer / shorter) if log else 0
    return Seen(
        -GROWTH_TOLERANCE <= grown - declared <= room + GROWTH_TOLERANCE,
        f"{what} grow with length^{grown:.3f} between {GROWTH_LENGTHS[0]} and "
        f"{GROWTH_LENGTHS[1]}: declared {declared:.2f}{' with a logarithm' if log else ''}, "
        f"wanted within {GROWTH_TOLERANCE}",
    )


def count_training(mixer: nn.Module, x: Tensor) -> int:
    """Count the operations of forward and backward."""
    return count_operations(lambda: torch.autograd.backward(call(mixer, x).sum()))


def count_saved(mixer: nn.Module, x: Tensor) -> int:
    """Count the bytes of activations that autograd keeps."""
    return saved_bytes(lambda: call(mixer, x), [*mixer.parameters(), *mixer.buffers()])


def check_operations(case: Case) -> Seen:
    """Operations of forward and backward grow as `traits.operations_exponent` says."""
    traits = traits_of(case.build())
    if traits.simulated:
        return SIMULATED
    counted = counts(case, count_training)
    return judge_growth(
        "operations", counted, traits.operations_exponent, log=traits.operations_log
    )


def check_memory(case: Case) -> Seen:
    """Kept activations grow as `traits.memory_exponent` says; a dense mask must be declared."""
    traits = traits_of(case.build())
    if traits.simulated:
        return SIMULATED
    counted = counts(case, count_saved)
    seen = judge_growth("saved bytes", counted, traits.memory_exponent)
    if not seen.passed and exponent(*counted) > max(1.5, traits.memory_exponent):
        return Seen(False, f"{seen.detail}; a dense mask needs traits.simulated=True")
    return seen
