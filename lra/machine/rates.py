"""`lra doctor --rates`: how fast this machine is, measured and stored for `lra plan`."""

import json
import time
from dataclasses import asdict

from lra.composition.binding import make
from lra.composition.compose import group_file
from lra.runners.measurement.hardware import HardwareProfile, device_name
from lra.runners.measurement.rates import Rates, best_of, measure_rates, store_rates
from lra.terminal.screen import table

UNITS = {"products": "FLOP/s", "operator_s": "s"}
"""Of the rates that are no bytes per second."""
MEANINGS = {
    "products": "a large matrix product",
    "memory": "adding tensors that are larger than the caches",
    "cache": "adding tensors that fit in a cache",
    "exponentials": "exponentials",
    "sorts": "sorting rows of 4,096 numbers",
    "operator_s": "one operator on a tiny tensor, forward and backward",
}


def rates(name: str, *, as_json: bool) -> int:
    """Measure the rates of this machine on a hardware profile, keep them and print them.

    Raises:
        ConfigError: there is no such profile.
        ValueError: the machine has no such device.
    """
    node = group_file("hardware", name)
    node.pop("about", None)
    hardware: HardwareProfile = make(HardwareProfile, node, "hardware")
    steps: list[tuple[int, Rates, str, float]] = []
    for threads in dict.fromkeys((hardware.training_threads, hardware.timing_threads())):
        begin = time.perf_counter()
        measured = measure_rates(hardware, threads)
        if steps:  # threads that wait for one another on a busy machine say nothing
            measured = best_of(measured, steps[-1][1])
        spent = time.perf_counter() - begin
        steps.append((threads, measured, str(store_rates(measured, hardware, threads)), spent))
        if str(hardware.device) != "cpu":
            break
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
        print(f"\n{threads} threads, in {spent:.1f} s, stored in {file}")
        print(table(_rate_rows(measured)))
    return 0


def _rate_rows(measured: Rates) -> list[tuple[str, str, str]]:
    return [
        (name, f"{value:.3g} {UNITS.get(name, 'B/s')}", MEANINGS[name])
        for name, value in asdict(measured).items()
    ]
