"""What the benchmarks share: their command line, times by the clock and the processor, ratios.

Each suite prints a table and appends rows to `--json FILE`, one JSON object a line. On a shared
machine processor seconds say what work costs, and ratios of samples taken in turns what two things
cost beside each other.
"""

import argparse
import json
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


def command_line(about: str | None, parts: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser for one of the parts of a suite."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=parts)
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    return parser


def append(file: Path | None, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append rows to a file, where one is named."""
    if file:
        with file.open("a", encoding="utf-8") as opened:
            opened.writelines(json.dumps(row) + "\n" for row in rows)


def say_machine() -> None:
    """Print how many cores there are, and how busy they are."""
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")


def processor_seconds() -> float:
    """Return the processor time of this process and of its ended children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def interleaved(calls: Mapping[Any, Callable[[], object]], samples: int) -> dict[Any, list[float]]:
    """Return seconds of each call, taken in turns behind one round that warms up."""
    taken: dict[Any, list[float]] = {name: [] for name in calls}
    for number in range(samples + 1):
        for name, call in calls.items():
            begun = time.perf_counter()
            call()
            if number:
                taken[name].append(time.perf_counter() - begun)
    return taken


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Return ratios of paired samples."""
    return [a / b for a, b in zip(numerators, denominators, strict=True)]


def quartiles(values: Sequence[float]) -> str:
    """Return the median with the quartiles around it."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.4g} [{low:.3g}, {high:.3g}]"
