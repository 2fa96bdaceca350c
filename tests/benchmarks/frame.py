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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Rows = list[dict[str, Any]]
Forms = tuple[Callable[[], object], Callable[[], object]]
"""Ours, and the other form."""


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


@contextmanager
def timed(rows: Rows, what: str, cells: int | None = None) -> Iterator[None]:
    """Print how long the block took, by the cell too where their number is given; add a row."""
    wall, work = time.perf_counter(), processor_seconds()
    yield
    wall, work = time.perf_counter() - wall, processor_seconds() - work
    each = f" {1000 * wall / cells:9.2f} ms a cell" if cells else ""
    print(f"{what:<58}{wall:8.2f} s wall {work:8.2f} s processor{each}", flush=True)
    count = {"cells": cells} if cells else {}
    rows.append({"what": what, **count, "wall_s": wall, "processor_s": work})


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


def trained(call: "Callable[[], Tensor]", leaves: "Sequence[Tensor]") -> None:
    """Run forward and backward."""
    import torch

    torch.autograd.grad(call().sum(), leaves)


def compare(about: str | None, forms_of: Callable[[int], Mapping[str, Forms]]) -> None:
    """Print how many times the processor time of ours other forms take, on one thread, in turns.

    Args:
        about: Of the command line.
        forms_of: Returns what is compared, by name, at a number of tokens.
    """
    import torch

    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--only", default="", help="those whose names have this part")
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for name, forms in forms_of(arguments.tokens).items():
        if arguments.only not in name:
            continue
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(arguments.samples + 1):
            for form, taken in zip(forms, times, strict=True):
                begun = time.process_time()
                form()
                taken.append(1000 * (time.process_time() - begun))
        each = ratios(times[1][1:], times[0][1:])
        ours, theirs = (statistics.median(taken[1:]) for taken in times)
        rows.append({"name": name, "tokens": arguments.tokens, "ours_ms": ours,
                     "other_ms": theirs, "ratios": each})  # fmt: skip
        print(f"{name}: {ours:.0f} ms beside {theirs:.0f}: {quartiles(each)}", flush=True)
    append(arguments.json, rows)
