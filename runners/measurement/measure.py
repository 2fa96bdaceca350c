"""Time, memory and machine rates, measured so that the numbers can be compared.

Times are taken after warm-up, synchronised, interleaved over everything that is compared, and every
sample is stored. Memory is the peak of live *tensor* bytes, in a separate pass: on a GPU the
allocator's peak, on a CPU the running total of the allocator's events, workspaces inside operators
included. Bytes that were alive before the pass are subtracted, so parameters, optimiser state and
inputs are excluded, and gradients that the pass makes are included.
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
"""Warm-up goes on while the call before took more than this times the last call."""
FUSED = re.compile(r"aten::_scaled_dot_product_(?!.*backward)(\w+)")
"""Names of the operators of fused attention in a profiler's recording."""


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
        call: must have run once before, so that compilation and other one-time work are done.
        watch: watches the machine meanwhile.
    """
    return watch.sample(partial(time_call, call, watch.device))


def warm_up(
    call: Call, device: torch.device, *, least: int, long_s: float = math.inf, most: int = 8
) -> float:
    """Call until the time is stable, and return the time of the last call.

    Args:
        call: what to run.
        device: where it runs.
        least: smallest number of calls.
        long_s: warm-up ends after a call that takes longer than these seconds.
        most: largest number of calls.
    """
    times: list[float] = []

    def falling() -> bool:  # whether the last call was still clearly faster than the one before
        return len(times) > 1 and times[-1] * STABLE < times[-2]

    while len(times) < least or (falling() and len(times) < most):
        so_far("warming up", len(times), 0, "call", MEASURING_S)
        times.append(time_call(call, device))
        if times[-1] > long_s:
            break
    return times[-1]


def in_turns(calls: Mapping[str, Call], watch: Watch, rounds: int, *, repeat_s: float) -> Rounds:
    """Time each call once per round; every other round goes backwards.

    Sample i of one call and sample i of another are neighbours in time: a pair. A round in which
    the machine disturbed any of them is repeated, within a budget.

    Args:
        calls: the calls that are compared, by name.
        watch: watches the machine meanwhile.
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
        watch: watches the machine meanwhile.
        rounds: how many undisturbed rounds are requested for each comparison.
        parts: names of the calls of each comparison.
        repeat_s: most seconds for repeated rounds, for each comparison.

    Returns:
        The rounds of each comparison, in the order of `parts`.
    """

    def turn(number: int, wanted: Collection[str] | None) -> Round:
        names = [name for name in calls if wanted is None or name in wanted]
        order, samples = names if number % 2 == 0 else names[::-1], {}
        for name in order:  # report each call, because a silent process counts as hanging
            so_far("timing", min(number, rounds), rounds, "sample", MEASURING_S)
            samples[name] = watch.sample(partial(time_call, calls[name], watch.device))
        return samples

    with without_collection():
        return watch.rounds_of(turn, parts, rounds, repeat_s=repeat_s)


@contextmanager
def without_collection() -> Iterator[None]:
    """Collect garbage before the block and not in it, where it would slow down single samples."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def stalls(samples: Sequence[float]) -> int:
    """Return how many samples are longer than three times the median."""
    middle = sorted(samples)[len(samples) // 2]
    return sum(sample > STALL * middle for sample in samples)


class Pass(NamedTuple):
    """The memory and the kernels of one observed pass."""

    peak_tensor_bytes: int
    """Highest total of tensor bytes above what was alive before."""
    kernels: str
    """The fused attention operators that ran, as PyTorch names them; "" for none."""


def observe(call: Call, device: torch.device) -> Pass:
    """Run `call` once, outside timing, and return its peak memory and the kernels it ran.

    Run `call` once before this, so that buffers made on first use and autotuning do not count.
    """
    on_gpu = device.type == "cuda"
    # At level 6 the recorder does not write two lines to stderr for each use.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    before = 0
    if on_gpu:
        synchronise(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    # torch.profiler.profile would import 800 modules first; this is the same recorder.
    with torch.autograd.profiler.profile(use_cpu=True, profile_memory=not on_gpu) as record:
        call()
        synchronise(device)
    if record.kineto_results is None:
        raise RuntimeError("this build of PyTorch records no events")
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
    """Return the peak of tensor bytes that `call` adds to what is alive before it."""
    return observe(call, device).peak_tensor_bytes


def process_peak_bytes() -> int:
    """Return the peak resident bytes of this process so far.

    Linux gives it as VmHWM. `ru_maxrss`, used elsewhere, starts at the peak of the parent.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@cache
def machine_rates(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Return flop/s of a large matrix product and B/s of a large copy (read + write), best of 5.

    Measured once per process, with the threads that are set when it is first asked for.
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
        time_call(call, device)
        best[name] = min(time_call(call, device) for _ in range(5))
    moved = 2 * source.numel() * source.element_size()
    return 2 * side**3 / best["multiply"], moved / best["copy"]
