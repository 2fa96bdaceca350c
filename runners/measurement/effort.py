"""From what a pass does to the time that it takes on a machine.

    seconds = sum over kinds of work of  weight x work / rate

On a CPU one kind follows the other. A GPU works while the program that calls its operators runs
ahead: there it is the longer of the two. The weights are what operators inside models reach of the
rates, which are measured on nothing else; the page "Plan the time and memory of a sweep" of the
documentation says on what they were fitted.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from lra.models.contract.trace import CAUSAL, Operator
from lra.runners.measurement.rates import CACHED_BYTES, STREAMED_BYTES, Rates

EXPONENTIALS = frozenset(
    {
        "_fft_c2c", "_fft_c2r", "_fft_r2c",
        "_log_softmax", "_log_softmax_backward_data", "_softmax", "_softmax_backward_data", "cos",
        "erf", "exp", "exp2", "exp2_", "exp_", "gelu", "gelu_backward", "log", "log2", "logaddexp",
        "logsumexp", "native_dropout", "native_layer_norm", "native_layer_norm_backward", "pow",
        "rsqrt", "sigmoid", "sin", "softmax", "special_ndtr", "tanh",
    }
)  # fmt: skip
"""Operators that compute more of each number than memory takes time to bring."""
SORTS = frozenset({"argsort", "cumsum", "kthvalue", "sort", "topk"})
"""Operators that go through rows one number at a time."""


class Effort(NamedTuple):
    """The work of a pass by kind."""

    products: float = 0.0
    """Operations, of all pairs in causal attention."""
    streamed: float = 0.0
    """Bytes of tensors too large for a cache."""
    cached: float = 0.0
    """Bytes of smaller tensors."""
    exponentials: float = 0.0
    """Bytes."""
    sorts: float = 0.0
    """Bytes."""
    skipped: float = 0.0
    """Operations among `products` that fused kernels leave out: of blocks above the diagonal."""
    operators: float = 0.0
    """Calls."""


WEIGHTS = Effort(
    products=1.9, streamed=0.7, cached=1.2, exponentials=2.8, sorts=1.0, skipped=0.0, operators=2.9
)  # fmt: skip
"""Time of each kind of work inside models / time by the machine's rate; that of sorts, which no
fitted cell spends much on, is the rate's own. `tests/benchmarks/planning.py` fits them."""


def effort(calls: Mapping[Operator, float], views: float = 0.0) -> Effort:
    """Sort the calls of a pass by kind of work."""
    total: dict[str, float] = defaultdict(float)
    for call, times in calls.items():
        total["operators"] += times
        total["products"] += call.operations * times
        total["skipped"] += call.operations * times / 2 if call.name.endswith(CAUSAL) else 0.0
        name = call.name.partition(".")[0]
        if name in SORTS:
            kind = "sorts"
        elif name in EXPONENTIALS:
            kind = "exponentials"
        else:
            kind = "streamed" if call.moved > LARGE_BYTES else "cached"
        total[kind] += call.moved * times
    total["operators"] += views
    return Effort(**total)


LARGE_BYTES = 16 * 2**20
"""What an operator moves beyond which its tensors stay in no cache."""


def parts(work: Effort, rates: Rates) -> Effort:
    """Return the seconds of each kind of work by the machine's rates, not weighted."""
    return Effort(
        (work.products - work.skipped) / rates.products,
        work.streamed / rates.memory,
        work.cached / rates.cache,
        work.exponentials / rates.exponentials,
        work.sorts / rates.sorts,
        0.0,
        work.operators * rates.operator_s,
    )


def seconds(work: Effort, rates: Rates, *, ahead: bool, weights: Effort = WEIGHTS) -> float:
    """Return the time of a pass.

    Args:
        work: what it does.
        rates: of the machine.
        ahead: whether the device works while the program runs ahead, as a GPU does.
        weights: of each kind.
    """
    *device, calling = (
        weight * part for weight, part in zip(weights, parts(work, rates), strict=True)
    )
    return max(sum(device), calling) if ahead else sum(device) + calling


def extrapolate_calls(
    near: Mapping[Operator, float], far: Mapping[Operator, float], share: float
) -> dict[Operator, float]:
    """Return the calls of a pass from those of two smaller ones, on the straight line.

    Operators that both call, the larger one more often, work on pieces of a fixed size: their
    number grows. What is left of each name grows in size.

    Args:
        near: calls of the smallest pass.
        far: calls of the next one.
        share: how far to go, in steps from the one to the other: 0 is near, 1 is far.
    """
    totals: dict[Operator, float] = {}
    rest: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for call in {**near, **far}:
        first, second = near.get(call, 0.0), far.get(call, 0.0)
        if first and second >= first:
            totals[call] = first + share * (second - first)
            continue
        times = first + share * (second - first)
        for index, amount in enumerate((1.0, call.operations, call.moved)):
            rest[call.name][index] += times * amount
    for name, (calls, operations, moved) in rest.items():
        n = max(1.0, calls)
        if operations > 0 or moved > 0:
            whole = Operator(name, round(max(0.0, operations) / n), round(max(0, moved) / n))
            totals[whole] = totals.get(whole, 0.0) + n
    return totals


__all__ = ["CACHED_BYTES", "STREAMED_BYTES", "Effort", "effort", "extrapolate_calls", "seconds"]
