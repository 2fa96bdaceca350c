"""What a machine computes per second, for `lra plan`: measured once, stored in the cache folder.

Rates are those of PyTorch's eager operators, which allocate their results; each is the best of
several calls. With one thread on a CPU, processor time is measured, so that other load on the
machine matters little.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.conf.plain_files import read_json, typed_object
from lra.runners.measurement.hardware import Device, HardwareProfile, Precision, device_name
from lra.runners.records import digest
from lra.runners.storage.atomic import make_folder, write_whole
from lra.runners.storage.formats import pretty
from lra.tasks.data.sources import data_root

if TYPE_CHECKING:
    import torch

VERSION = 1
"""Version of the measurement; files of other versions are ignored."""
MEASURING_S = 0.25
"""Calls are repeated for so many seconds to measure one rate."""
CACHED_BYTES, STREAMED_BYTES = 2**18, 2**26
"""Bytes of a tensor that fits into the cache of a core, and of one that fits into no cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of one device with one number format and number of threads."""

    products: float
    """Operations of a large matrix product, per second."""
    memory: float
    """Bytes per second, read and written, of an addition of tensors that no cache holds."""
    cache: float
    """The same for tensors that fit into a cache."""
    exponentials: float
    """Bytes per second, read and written, of exponentials."""
    sorts: float
    """Bytes per second, read and written, of sorting rows of 4,096 numbers."""
    operator_s: float
    """Seconds of an operator on a very small tensor, in a forward and backward pass."""

    def __post_init__(self) -> None:
        """Check that all rates are positive numbers. Raises ValueError."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if type(value) is not float or not 0 < value < math.inf:
                raise ValueError(f"rates.{entry.name}: got {value!r}; wanted a number above 0")


def rates_file(device: Device, precision: Precision, threads: int, name: str = "") -> Path:
    """Return the file that stores the rates of this machine; it may not exist.

    Args:
        device: kind of device.
        precision: number format of products.
        threads: threads of a CPU; they do not matter for a GPU.
        name: name of the device; "": the device of this machine.
    """
    import torch

    identity = {
        "version": VERSION,
        "device": name or device_name(device),
        "precision": str(precision),
        "threads": threads if device is Device.cpu else 0,
        "torch": torch.__version__,
    }
    return data_root() / "rates" / f"{device}-{precision}-{digest(identity)}.json"


def stored_rates(hardware: HardwareProfile, threads: int) -> Rates | None:
    """Return the stored rates of this machine; None if there are none, or they are damaged."""
    try:
        file = rates_file(hardware.device, hardware.precision, threads)
        rates = typed_object(read_json(file), {"rates": dict})["rates"]
        return Rates(**{entry.name: rates[entry.name] for entry in fields(Rates)})
    except (OSError, ValueError, KeyError):  # a missing device raises ValueError, too
        return None


def store_rates(rates: Rates, hardware: HardwareProfile, threads: int) -> Path:
    """Store the rates of this machine, and return the file."""
    import torch

    file = rates_file(hardware.device, hardware.precision, threads)
    make_folder(file.parent)
    about: dict[str, Any] = {
        "version": VERSION,
        "device": device_name(hardware.device),
        "precision": str(hardware.precision),
        "threads": threads,
        "torch": torch.__version__,
        "processors": len(os.sched_getaffinity(0)),
        "rates": asdict(rates),
    }
    write_whole(file, pretty(about))
    return file


def measure_rates(hardware: HardwareProfile, threads: int) -> Rates:
    """Measure the rates of this machine, in about two seconds.

    Raises:
        ValueError: this machine has no such device.
    """
    import torch

    from lra.runners.measurement.device import DTYPES, set_matmul_precision

    device_name(hardware.device)  # raises ValueError without such a device
    device, dtype = torch.device(str(hardware.device)), DTYPES[hardware.precision]
    before = torch.get_num_threads()
    if hardware.device is Device.cpu:
        torch.set_num_threads(threads)
    set_matmul_precision(hardware.matmul_precision)
    try:
        return _measure_on(device, dtype)
    finally:
        torch.set_num_threads(before)


def best_of(one: Rates, other: Rates) -> Rates:
    """Return the better value of each rate: the larger one, or the smaller one for `operator_s`."""
    pairs = {name: (value, getattr(other, name)) for name, value in asdict(one).items()}
    return Rates(**{n: min(pair) if n == "operator_s" else max(pair) for n, pair in pairs.items()})


def _measure_on(device: "torch.device", dtype: "torch.dtype") -> Rates:
    """Measure all rates; `dtype` is the number format of products, the others use float32."""
    import torch

    side = 8192 if device.type == "cuda" else 512  # large enough for the peak rate
    left = torch.randn(side, side, device=device).to(dtype)
    large = torch.randn(STREAMED_BYTES // 4, device=device)  # a number has 4 bytes
    small = torch.randn(CACHED_BYTES // 4, device=device)
    rows = torch.randn(32, 4096, device=device)
    return Rates(
        # Sums read two operands and write one result; exponentials read one and write one.
        products=2.0 * side**3 / _time_best(lambda: left @ left, device),
        memory=3.0 * STREAMED_BYTES / _time_best(lambda: large + large, device),
        cache=3.0 * CACHED_BYTES / _time_best(lambda: small + small, device),
        exponentials=2.0 * CACHED_BYTES / _time_best(small.exp, device),
        # Sorting writes values (4 bytes) and indices (8 bytes): three times what it reads.
        sorts=4.0 * rows.numel() * 4 / _time_best(lambda: rows.sort(dim=-1), device),
        operator_s=_measure_operator(device),
    )


def _measure_operator(device: "torch.device") -> float:
    """Return the mean seconds of an operator in a chain of small ones, forward and backward."""
    import torch

    x = torch.randn(8, 8, device=device, requires_grad=True)
    links = 50

    def chain() -> None:
        y = x
        for _ in range(links):
            y = (y * 0.5 + x).transpose(0, 1)
        torch.autograd.backward(y.sum())

    # Each link has 6 operators: product, sum and view, forward and backward.
    return _time_best(chain, device) / (6 * links)


def _time_best(call: Callable[[], object], device: "torch.device") -> float:
    """Return the seconds of the fastest call: of the processor if one CPU thread computes."""
    import torch

    from lra.runners.measurement.measure import time_call

    alone = device.type == "cpu" and torch.get_num_threads() == 1
    best, end = math.inf, time.perf_counter() + MEASURING_S
    time_call(call, device)  # warm-up
    while best == math.inf or time.perf_counter() < end:
        begin = time.thread_time()
        spent = time_call(call, device)
        best = min(best, time.thread_time() - begin if alone else spent)
    return best
