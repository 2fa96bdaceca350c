"""`lra watch`: how far a submitted sweep is, from its results folder alone.

Exit codes: 0 every run succeeded; 1 all ended, and some failed or lacked data; 3 runs are left.
"""

import argparse
import json
import sys
import time
from contextlib import suppress
from os.path import lexists
from pathlib import Path
from typing import TYPE_CHECKING

from lra.composition.arguments import Parser, add_results
from lra.errors import CommandError, unknown
from lra.terminal.screen import Region, on_terminal, one_line

if TYPE_CHECKING:
    from lra.cluster.progress_of import Standing, Watcher

EVERY_S = 2.0
MOST_LINES = 12
"""Running cells and workers on a page that is not drawn again."""


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra watch`."""
    args = Parser(
        prog="lra watch",
        description="Show how far a sweep is: how many runs finished, failed, are running or have "
        "not started. For a submitted sweep it also shows workers, jobs and the time left. It "
        "works on every machine that can read the results folder. On a terminal it stays until "
        "the sweep and its report are finished; Ctrl-C ends it.",
        epilog="""\
examples:
  lra watch mysweep         stay, and update the page every two seconds
  lra watch mysweep --once  print it once
  lra watch mysweep --json  the same for a program

exit codes: 0 every run succeeded; 1 some crashed, diverged, reached a limit or lacked their data;
3 runs are left""",
    )
    args.add_argument("plan", metavar="SWEEP", help="name of the sweep, or the folder of its plan")
    add_results(args)
    args.add_argument("--once", action="store_true", help="print it once, and end")
    args.add_argument("--workers", action="store_true", help="print a line for each worker")
    args.add_argument("--json", action="store_true", help="print one JSON object, and end")
    return args


def main(argv: list[str]) -> int:
    """Show how far a sweep is."""
    arguments = parser().parse_args(argv)
    from lra.cluster.jobs import JobWatcher
    from lra.cluster.plan import (
        HEAD,
        PlanTitles,
        StoredPlan,
        TornPart,
        locate_plan,
        mark_of,
        plan_folder,
    )
    from lra.cluster.progress_of import Watcher, sweep_lines, worker_lines
    from lra.runners.store import Store

    root, name = arguments.results, arguments.plan
    if not lexists(plan_folder(root, name) / HEAD):
        sweeps = Store(root).sweeps()
        if name in sweeps:
            return _of_run(root, name, once=arguments.once, as_json=arguments.json)
        if sweeps and "/" not in name:
            planned = (path.parent.name for path in plan_folder(root, "").glob(f"*/{HEAD}"))
            way_out = "Name another results folder by --results DIR."
            known = {*sweeps, *planned}
            raise CommandError(unknown(f"sweep of {root}", name, known, way_out=way_out))
    folder = locate_plan(name, root)
    plan = StoredPlan(folder)
    watcher, jobs = Watcher(plan), JobWatcher(folder)
    if arguments.json or arguments.once or not on_terminal(sys.stdout):
        standing = watcher.look()
        standing.jobs = jobs.look()
        if arguments.json:
            print(json.dumps(_standing_json(standing), ensure_ascii=False))
        else:
            text = [*sweep_lines(standing, PlanTitles(plan), MOST_LINES)]
            text += stages(watcher, standing)
            text += worker_lines(standing, 1000 if arguments.workers else 0)
            text = [one_line(line) for line in text if not line.endswith(" more workers")]
            print("\n".join(text))
        return standing.code
    region = Region(sys.stdout)
    while True:
        standing = watcher.look()
        standing.jobs = jobs.look()
        _, rows = region.room()
        text = [*sweep_lines(standing, PlanTitles(plan), max(2, (rows - 4) // 2))]
        text += stages(watcher, standing)
        text += worker_lines(standing, max(0, rows - len(text) - 3))
        region.draw(text[: rows - 1])
        if not standing.left and not standing.unwritten:
            print()
            return standing.code
        time.sleep(EVERY_S)
        # A plan that is gone or torn meanwhile: what was read of it goes on.
        with suppress(OSError, TornPart):
            if mark_of((folder / HEAD).stat()) != plan.mark:
                again = StoredPlan(folder)
                plan, watcher = again, Watcher(again)


def _of_run(root: Path, name: str, *, once: bool, as_json: bool) -> int:
    """Show how far a sweep of `lra run` is, which has no plan and no workers."""
    from lra.cluster.progress_of import of_stored, sweep_lines

    region = Region(sys.stdout)
    staying = on_terminal(sys.stdout) and not once and not as_json
    while True:
        standing = of_stored(root, name)
        if as_json:
            print(json.dumps(_standing_json(standing), ensure_ascii=False))
            return standing.code
        keys = {key: key for failed in standing.failures.values() for key in failed}
        text = [*sweep_lines(standing, keys, MOST_LINES)]
        if not staying:
            print("\n".join(map(one_line, text)))
            return standing.code
        region.draw(text[: region.room()[1] - 1])
        if not standing.left:
            print()
            return standing.code
        time.sleep(EVERY_S)


def stages(watcher: "Watcher", standing: "Standing") -> list[str]:
    """Return how far the arms of a search are."""
    from lra.cluster.growth import stage_lines

    running = {cell.key for cell in standing.running}
    return [*stage_lines(watcher.plan, watcher.ended, running)]


def _standing_json(standing: "Standing") -> dict[str, object]:
    return {
        **{name: getattr(standing, name) for name in ("sweep", "total", "done", "left")},
        "endings": dict(standing.endings),
        "failures": [
            {"status": status, "reason": reason, "cells": keys}
            for (status, reason), keys in standing.failures.items()
        ],
        "running": [cell._asdict() for cell in standing.running],
        "ended": dict(standing.ended),
        "notes": standing.notes,
        "jobs": [jobs.as_json() for jobs in standing.jobs],
        "workers": [dict(worker) for worker in standing.workers],
        "cells_per_hour": standing.per_hour,
        "left_s": standing.left_s,
    }
