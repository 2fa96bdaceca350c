"""`lra doctor --rates`: measure the speed of this machine, and store it for `lra plan`."""

import json
import time
from dataclasses import asdict

from lra.composition.binding import make
from lra.composition.compose import group_file
from lra.runners.measurement.hardware import HardwareProfile, device_name
from lra.runners.measurement.rates import Rates, best_of, measure_rates, store_rates
from lra.terminal.screen import table

UNITS = {"products": "FLOP/s", "operator_s": "s"}
"""The units of the rates that are not in bytes per second."""
MEANINGS = {
    "products": "speed of a large matrix product",
    "memory": "speed of adding tensors that are larger than the caches",
    "cache": "speed of adding tensors that fit into a cache",
    "exponentials": "speed of computing exponentials",
    "sorts": "speed of sorting rows of 4,096 numbers",
    "operator_s": "time of one operator on a tiny tensor, forward and backward",
}
"""What each rate measures."""


def rates(name: str, *, as_json: bool) -> int:
    """Measure the speed of this machine for the hardware profile `name`; store and print it.

    Raises:
        ConfigError: There is no such profile.
        ValueError: The machine does not have the device of the profile.
    """
    node = group_file("hardware", name)
    node.pop("about", None)
    hardware: HardwareProfile = make(HardwareProfile, node, "hardware")
    steps: list[tuple[int, Rates, str, float]] = []
    for threads in dict.fromkeys((hardware.training_threads, hardware.timing_threads())):
        begin = time.perf_counter()
        measured = measure_rates(hardware, threads)
        if steps:
            # On a busy machine, more threads can be slower, because they wait for one another.
            _, previous, _, _ = steps[-1]
            measured = best_of(measured, previous)
        spent = time.perf_counter() - begin
        steps.append((threads, measured, str(store_rates(measured, hardware, threads)), spent))
        if str(hardware.device) != "cpu":
            break  # the speed of a GPU does not depend on threads
    if as_json:
        listed = [
            {"threads": threads, "rates": asdict(measured), "file": file, "seconds": spent}
            for threads, measured, file, spent in steps
        ]
        device = device_name(hardware.device)
        about = {"hardware": name, "device": device, "precision": str(hardware.precision)}
        print(json.dumps({**about, "measured": listed}, indent=1))
        return 0
    print(f"{device_name(hardware.device)}, {hardware.precision}, for hardware={name}")
    for threads, measured, file, spent in steps:
        print(f"\nlra measured {threads} threads for {spent:.1f} s, and stored the rates in {file}")
        print(table(_make_rows(measured)))
    return 0


def _make_rows(measured: Rates) -> list[tuple[str, str, str]]:
    """Return name, value with unit, and meaning of each rate."""
    return [
        (name, f"{value:.3g} {UNITS.get(name, 'B/s')}", MEANINGS[name])
        for name, value in asdict(measured).items()
    ]
