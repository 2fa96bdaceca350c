"""How fast a large report is written: `python -m tests.benchmarks.reports --json rows.jsonl`.

Makes a store of about 100,000 rows, as `tests/benchmarks/store.py` does, and writes its report:
reading, configurations, tables, figures and page are timed apart. Prints wall seconds and processor
seconds: on a shared machine only the second says what the work costs.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

from matplotlib.figure import Figure

from lra.composition.runner_class import sections
from lra.composition.selection import kinds
from lra.results.accounts import stored_accounts
from lra.results.stored import stored
from reports import report
from runners.storage import atomic
from runners.store import Store
from tests.benchmarks.store import Rows, fill, timed


def summed(function: Callable[..., Any], into: dict[str, float]) -> Callable[..., Any]:
    """Return a function that adds how long its calls took."""

    @wraps(function)
    def measured(*arguments: Any, **options: Any) -> Any:
        wall, work = time.perf_counter(), processor()
        try:
            return function(*arguments, **options)
        finally:
            into["wall_s"] = into.get("wall_s", 0.0) + time.perf_counter() - wall
            into["processor_s"] = into.get("processor_s", 0.0) + processor() - work

    return measured


def processor() -> float:
    """Return processor seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def run(root: Path, scale: float) -> Rows:
    """Measure, print, and return what was printed."""
    rows: Rows = []
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    fill(Store(root), scale)
    with timed(rows, "load: rows, descriptions, names"):
        frame, cells, _ = stored(root, None)
    print(f"{len(frame):,} rows of {len(cells):,} cells")
    with timed(rows, "configurations and commands of the cells"):
        accounts = stored_accounts(root, frame, cells)
    page: dict[str, float] = {}
    saving: dict[str, float] = {}
    with (
        patch.object(report, "write_documents", summed(report.write_documents, page)),
        patch.object(Figure, "savefig", summed(Figure.savefig, saving)),
        timed(rows, "the report: tables, figures, both documents"),
    ):
        paths = report.write_report(
            frame,
            root / "report",
            title="Benchmark",
            sections=sections(),
            groups=kinds(),
            cells=accounts,
        )
    whole = rows[-1]
    for what, part in (("of it, both documents", page), ("of it, saving figures", saving)):
        print(f"{what:<58}{part['wall_s']:8.2f} s wall {part['processor_s']:8.2f} s processor")
        rows.append({"what": what, **part})
    size = (root / "report" / "report.html").stat().st_size
    print(f"{len(paths)} files; report.html has {size / 1e6:.2f} MB")
    whole |= {"files": len(paths), "page_bytes": size, "rows": len(frame)}
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="1 = about 100,000 rows")
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    arguments = parser.parse_args()
    # the disk is not what is measured, and 20,000 files would wait for it for minutes
    atomic.os.fsync = lambda descriptor: None  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        rows = run(Path(folder), arguments.scale)
    if arguments.json:
        with arguments.json.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
