"""What the quickstart gives beside other processes, against what it gives on a quiet machine.

    python tests/benchmarks/busy_machine.py ROWS                    # 5 times beside 0, 1, 2 loops
    python tests/benchmarks/busy_machine.py ROWS --loops 0,1 --times 3
    python tests/benchmarks/busy_machine.py ROWS --times 1 runner=scaling runner.lengths=[256,512]

Run it on a machine that does nothing else. Runs with different numbers of busy loops take turns;
each has a store of its own in the folder, which stays, so that the same command goes on from there.

Printed for each number of loops, of the points that every quiet run has: the share that is ordinary
(factors undisturbed, or disturbed and sound by both clocks), and the share whose time is of the
processors' clock; how many exponents and crossovers have a number; how many intervals of factors,
exponents and crossovers hold the median of the quiet runs; and the time over that of these.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from lra.reports.rows import (
    PROCESSOR,
    CostPoint,
    by_setting,
    cost_points,
    cost_rows,
    prepare,
)
from lra.reports.statistics.intervals import Interval
from lra.reports.tables.costs import crossover_table, growth_table
from lra.runners.store import read_rows

QUICKSTART = ("-m", "+experiment=quickstart", "logger=none", "report=false")


class Run(NamedTuple):
    """What one run gave."""

    seconds: float
    points: dict[tuple[str, int], CostPoint]
    numbers: dict[tuple[str, ...], tuple[float, Interval | None]]
    """Factors, exponents and crossovers that are printed, with their intervals."""


@contextmanager
def beside(loops: int) -> Iterator[None]:
    """Keep so many processes busy."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def run(folder: Path, loops: int, words: list[str]) -> None:
    """Run the quickstart once beside so many loops, unless that was done before."""
    if (told := folder / "run.json").exists():
        return
    with beside(loops):
        begun = time.perf_counter()
        command = [sys.executable, "-m", "lra", "run", *QUICKSTART, f"results={folder}", *words]
        code = subprocess.run(command, check=False).returncode
        about = {"loops": loops, "seconds": time.perf_counter() - begun, "exit_code": code}
    told.write_text(json.dumps(about))


def found(folder: Path) -> Run:
    """Return what a run has stored."""
    timed = cost_rows(prepare(read_rows(folder)))
    points = [point for part in by_setting(timed) for point in cost_points(part.rows)]
    numbers: dict[tuple[str, ...], tuple[float, Interval | None]] = {}
    for point in points:
        for reference, ratio in point.time_ratio.items():
            if ratio.value is not None:
                key = ("factor", point.model, str(point.length), reference)
                numbers[key] = (ratio.value, ratio.interval())
    for name, table in (("exponent", growth_table(points)), ("crossover", crossover_table(points))):
        for row in table.rows if table else ():
            for column, entry in zip(table.columns if table else (), row.entries, strict=True):
                if entry.status == "ok" and entry.interval and "memory" not in column.group:
                    key = (name, row.title, column.group, column.title)
                    # faster at every length: 0; at none: infinite
                    value = entry.interval.low if entry.value is None else entry.value
                    numbers[key] = (value, entry.interval)
    seconds = json.loads((folder / "run.json").read_text())["seconds"]
    return Run(seconds, {(p.model, p.length): p for p in points}, numbers)


def compared(quiet: list[Run], runs: list[Run]) -> dict[str, float]:
    """Return how runs compare with quiet ones."""
    wanted = {at for at, p in quiet[0].points.items() if p.time.ok}
    wanted = {at for at in wanted if all(at in r.points and r.points[at].time.ok for r in quiet)}
    points = [r.points.get(at) for r in runs for at in wanted]
    paired = [
        point is not None and point.time.ok and not any(r.mark for r in point.time_ratio.values())
        for point in points
    ]
    keys = set.intersection(*(set(one.numbers) for one in quiet))
    middles = {key: median(one.numbers[key][0] for one in quiet) for key in keys}
    held = [
        interval.low <= middles[key] <= interval.high
        for one in runs
        for key in keys & set(one.numbers)
        if (interval := one.numbers[key][1]) is not None
    ]

    def printed(name: str) -> float:
        of_name = [key for key in keys if key[0] == name]
        return sum(key in one.numbers for one in runs for key in of_name) / max(
            1, len(of_name) * len(runs)
        )

    return {
        "ordinary": sum(paired) / max(1, len(paired)),
        "other clock": sum(point is not None and point.time.mark == PROCESSOR for point in points)
        / max(1, len(points)),
        "exponents": printed("exponent"),
        "crossovers": printed("crossover"),
        "covered": sum(held) / max(1, len(held)),
        "comparisons": len(held),
        "time": median(one.seconds for one in runs) / median(one.seconds for one in quiet),
    }


def rows_of(runs: dict[int, list[Run]]) -> Iterator[str]:
    """Yield a line for each factor, exponent and crossover of each run."""
    for loops, several in sorted(runs.items()):
        for number, one in enumerate(several):
            about = {"loops": loops, "run": number, "seconds": round(one.seconds, 1)}
            for key, (value, interval) in sorted(one.numbers.items()):
                ends = [interval.low, interval.high] if interval else None
                row = about | {"what": "/".join(key), "value": value, "interval": ends}
                yield json.dumps(row).replace("Infinity", "null") + "\n"


def main() -> None:
    """Run, and print a line for each number of loops."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--loops", default="0,1,2")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write rows: a line for each number of each run")
    options, words = parser.parse_known_args()
    loads = [int(text) for text in options.loops.split(",")]
    stores: dict[int, list[Path]] = {loops: [] for loops in {0, *loads}}
    for number in range(options.times):
        for loops, folders in stores.items():
            folders.append(options.folder.absolute() / f"loops-{loops}-run-{number}")
            run(folders[-1], loops, words)
    runs = {loops: [*map(found, folders)] for loops, folders in stores.items()}
    if options.json:
        options.json.write_text("".join(rows_of(runs)))
    for loops in sorted(runs):
        line = compared(runs[0], runs[loops])
        print(f"{loops} loops: " + ", ".join(f"{key} {value:.3g}" for key, value in line.items()))


if __name__ == "__main__":
    main()
