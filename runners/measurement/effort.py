"""Estimates the time of a pass on a machine from the work of the pass.

    seconds = sum over kinds of work of  weight x work / rate

A GPU works while the program already calls the next operators, so the longer of the two times
counts. On a CPU both are added. Operators inside models are slower than the measured rates; the
weights correct this. The page "Plan the time and memory of a sweep" of the documentation says how
they were fitted.
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
"""Operators that compute longer on each number than memory needs to load it."""
SORTS = frozenset({"argsort", "cumsum", "kthvalue", "sort", "topk"})
"""Operators that process the numbers of a row one after the other."""


class Effort(NamedTuple):
    """The work of a pass by kind."""

    products: float = 0.0
    """Operations of products; causal attention counts all pairs of tokens."""
    streamed: float = 0.0
    """Bytes that operators move in tensors that are too large for a cache."""
    cached: float = 0.0
    """Bytes that operators move in smaller tensors."""
    exponentials: float = 0.0
    """Bytes that `EXPONENTIALS` move."""
    sorts: float = 0.0
    """Bytes that `SORTS` move."""
    skipped: float = 0.0
    """Operations among `products` that fused causal kernels skip: blocks above the diagonal."""
    operators: float = 0.0
    """Number of calls of operators."""


WEIGHTS = Effort(
    products=1.9, streamed=0.7, cached=1.2, exponentials=2.8, sorts=1.0, skipped=0.0, operators=2.9
)  # fmt: skip
"""Time of each kind of work inside models, divided by its time at the rate of the machine. Sorts
have weight 1, because no fitted run has many. `tests/benchmarks/planning.py` fits the weights."""


def effort(calls: Mapping[Operator, float], views: float = 0.0) -> Effort:
    """Return the work of a pass by kind; `views` are calls that move no data."""
    total: dict[str, float] = defaultdict(float)
    for call, times in calls.items():
        total["operators"] += times
        total["products"] += call.operations * times
        # A causal kernel skips the half of all pairs of tokens in which the key is later.
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
"""Tensors of an operator that moves more bytes fit into no cache."""


def parts(work: Effort, rates: Rates) -> Effort:
    """Return the seconds of each kind of work at the rates of a machine, without weights."""
    return Effort(
        (work.products - work.skipped) / rates.products,
        work.streamed / rates.memory,
        work.cached / rates.cache,
        work.exponentials / rates.exponentials,
        work.sorts / rates.sorts,
        0.0,  # skipped operations take no time
        work.operators * rates.operator_s,
    )


def seconds(work: Effort, rates: Rates, *, ahead: bool, weights: Effort = WEIGHTS) -> float:
    """Return the estimated seconds of a pass.

    Args:
        work: the work of the pass.
        rates: the rates of the machine.
        ahead: whether the device works while the program already calls more, as with a GPU.
        weights: the weight of each kind of work.
    """
    # The last kind of work is the calls of operators, which the program does, not the device.
    *device_s, calls_s = (
        weight * part for weight, part in zip(weights, parts(work, rates), strict=True)
    )
    return max(sum(device_s), calls_s) if ahead else sum(device_s) + calls_s


def extrapolate_calls(
    near: Mapping[Operator, float], far: Mapping[Operator, float], share: float
) -> dict[Operator, float]:
    """Return the calls of a large pass by linear extrapolation from two smaller passes.

    If both passes call an operator with equal shapes, and the larger pass not less often, the
    number of its calls is extrapolated. For other operators, number and sizes are extrapolated,
    summed over all operators of a name.

    Args:
        near: calls of the smallest pass.
        far: calls of the next larger pass.
        share: position of the large pass on the line: 0 is `near`, 1 is `far`.
    """
    totals: dict[Operator, float] = {}
    # By name: sums of calls, of operations and of moved bytes.
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
        n = max(1.0, calls)  # a line that falls may extrapolate to no call, or to fewer
        if operations > 0 or moved > 0:
            whole = Operator(name, round(max(0.0, operations) / n), round(max(0, moved) / n))
            totals[whole] = totals.get(whole, 0.0) + n
    return totals


__all__ = ["CACHED_BYTES", "STREAMED_BYTES", "Effort", "effort", "extrapolate_calls", "seconds"]
