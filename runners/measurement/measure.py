"""Time, memory and machine rates, measured so that the numbers can be compared.

Calls that are compared are timed interleaved, after warm-up and with synchronisation, and every
sample is stored. Memory is the largest number of bytes in tensors, measured in a separate pass: by
the allocator of a GPU, or by the sum of allocations on a CPU, temporary memory of operators
included. Bytes that were in use before the pass are subtracted. So parameters, optimiser state and
inputs are excluded, but new gradients are included.
"""

import gc
import math
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import torch

from lra.runners.isolation.progress import MEASURING_S, so_far
from lra.runners.measurement.watch import Round, Rounds, Sample, Watch

Call = Callable[[], object]

STALL = 3.0
"""A sample longer than this many times the median counts as a stall of the machine."""
STABLE = 1.2
"""Warm-up continues while a call takes less than the time of the call before divided by this."""
FUSED = re.compile(r"aten::_scaled_dot_product_(?!.*backward)(\w+)")
"""Names of fused attention operators, as the profiler records them."""


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_call(call: Call, device: torch.device) -> float:
    """Return the seconds of one call, device work included."""
    synchronise(device)
    begin = time.perf_counter()
    call()
    synchronise(device)
    return time.perf_counter() - begin


def try_call(call: Call, watch: Watch) -> Sample:
    """Time one call, for comparison with a time limit.

    Args:
        call: the call; it must have run once before, because the first time is longer.
        watch: watches the machine during the call.
    """
    return watch.sample(partial(time_call, call, watch.device))


def warm_up(
    call: Call, device: torch.device, *, least: int, long_s: float = math.inf, most: int = 8
) -> float:
    """Repeat a call until its time is stable, and return the seconds of the last call.

    Args:
        call: the call.
        device: its device.
        least: smallest number of calls.
        long_s: warm-up ends after a call that takes more seconds than this.
        most: largest number of calls.
    """
    times: list[float] = []

    def gets_faster() -> bool:
        return len(times) > 1 and times[-1] * STABLE < times[-2]

    while len(times) < least or (gets_faster() and len(times) < most):
        so_far("warming up", len(times), 0, "call", MEASURING_S)
        times.append(time_call(call, device))
        if times[-1] > long_s:
            break
    return times[-1]


def in_turns(calls: Mapping[str, Call], watch: Watch, rounds: int, *, repeat_s: float) -> Rounds:
    """Time each call once in each round; every other round has the reverse order.

    The samples of two calls in one round are a pair, because they are close in time. A round in
    which the machine disturbed a sample is repeated, within a time limit.

    Args:
        calls: the calls that are compared, by name.
        watch: watches the machine during the calls.
        rounds: how many undisturbed rounds are requested.
        repeat_s: most seconds for repeated rounds.
    """
    return compared_in_turns(calls, watch, rounds, [[*calls]], repeat_s=repeat_s)[0]


def compared_in_turns(
    calls: Mapping[str, Call],
    watch: Watch,
    rounds: int,
    parts: Sequence[Collection[str]],
    *,
    repeat_s: float,
) -> list[Rounds]:
    """Time calls as `in_turns` does, for several comparisons that may share calls.

    Args:
        calls: the calls of all comparisons, by name.
        watch: watches the machine during the calls.
        rounds: how many undisturbed rounds are requested for each comparison.
        parts: names of the calls of each comparison.
        repeat_s: most seconds for repeated rounds, for each comparison.

    Returns:
        The rounds of each comparison, in the order of `parts`.
    """

    def take_round(number: int, wanted: Collection[str] | None) -> Round:
        names = [name for name in calls if wanted is None or name in wanted]
        order, samples = names if number % 2 == 0 else names[::-1], {}
        for name in order:  # each call is reported, because a silent process counts as hanging
            so_far("timing", min(number, rounds), rounds, "sample", MEASURING_S)
            samples[name] = watch.sample(partial(time_call, calls[name], watch.device))
        return samples

    with without_collection():
        return watch.rounds_of(take_round, parts, rounds, repeat_s=repeat_s)


@contextmanager
def without_collection() -> Iterator[None]:
    """Collect garbage before the `with` block, and not in it, where it would slow some samples."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def stalls(samples: Sequence[float]) -> int:
    """Return how many samples are longer than three times the median."""
    median = sorted(samples)[len(samples) // 2]
    return sum(sample > STALL * median for sample in samples)


class Pass(NamedTuple):
    """The memory and the kernels of one observed pass."""

    peak_tensor_bytes: int
    """Largest number of bytes in tensors during the pass, minus that before the pass."""
    kernels: str
    """The fused attention operators that ran, as PyTorch names them; "" for none."""


def observe(call: Call, device: torch.device) -> Pass:
    """Run `call` once, and return its peak memory and its fused attention operators.

    Run `call` once before this, because its first run allocates further buffers.
    """
    on_gpu = device.type == "cuda"
    # At level 6 the profiler writes nothing to stderr; otherwise it writes two lines per use.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    before = 0
    if on_gpu:
        synchronise(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    # torch.profiler.profile is the same profiler, but imports 800 modules first.
    with torch.autograd.profiler.profile(use_cpu=True, profile_memory=not on_gpu) as record:
        call()
        synchronise(device)
    if record.kineto_results is None:
        raise RuntimeError("the profiler of this build of PyTorch does not record memory")
    events = record.kineto_results.events()
    fused = (FUSED.fullmatch(name) for name in {event.name() for event in events})
    kernels = ", ".join(sorted(match[1] for match in fused if match))
    if on_gpu:
        return Pass(int(torch.cuda.max_memory_allocated(device) - before), kernels)
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    total = peak = 0
    for _, change in sorted(changes, key=lambda event: event[0]):
        total += change
        peak = max(peak, total)
    return Pass(peak, kernels)


def peak_tensor_bytes(call: Call, device: torch.device) -> int:
    """Return how many bytes of tensors `call` needs at most, beyond those before it."""
    return observe(call, device).peak_tensor_bytes


def process_peak_bytes() -> int:
    """Return the largest resident memory of this process so far.

    On Linux it is VmHWM. Other systems have `ru_maxrss`, which starts at the peak of the parent.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024  # macOS reports bytes, other systems KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@cache
def machine_rates(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Return operations per second of a matrix product, and bytes per second of a copy.

    Both are the best of 5 large calls; bytes read and written count. They are measured once in a
    process, with the number of threads at that time.
    """
    on_gpu = device.type == "cuda"
    side = 8192 if on_gpu else 1024
    left = torch.randn(side, side, device=device).to(dtype)
    right = torch.randn(side, side, device=device).to(dtype)
    source = torch.empty(2**28 if on_gpu else 2**24, device=device).normal_()
    target = torch.empty_like(source)

    def multiply() -> object:
        return left @ right

    def copy() -> object:
        return target.copy_(source)

    best = {}
    for name, call in (("multiply", multiply), ("copy", copy)):
        time_call(call, device)  # warm-up
        best[name] = min(time_call(call, device) for _ in range(5))
    moved = 2 * source.numel() * source.element_size()
    return 2 * side**3 / best["multiply"], moved / best["copy"]
