"""`lra watch`: show how many runs of a sweep are finished, from its results folder alone.

Exit codes: 0: every run succeeded; 1: all runs ended, and some failed or lacked data; 3: some runs
have not ended.
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
"""The most runs and workers listed on a page that is printed once."""


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra watch`."""
    args = Parser(
        prog="lra watch",
        description="Show how far a sweep is: how many runs finished, failed, are running or have "
        "not started. For a submitted sweep, the command also shows workers, jobs and the time "
        "left. It works on every machine that can read the results folder. On a terminal it "
        "updates the page until the sweep and its report are finished; Ctrl-C ends it.",
        epilog="""\
examples:
  lra watch mysweep         update the page every two seconds
  lra watch mysweep --once  print the page once
  lra watch mysweep --json  print the same facts for a program

Exit codes: 0 means that every run succeeded; 1 that some runs crashed, diverged, reached a limit
or lacked their data; 3 that some runs have not ended yet.""",
    )
    args.add_argument("plan", metavar="SWEEP", help="name of the sweep, or the folder of its plan")
    add_results(args)
    args.add_argument("--once", action="store_true", help="print the page once, and end")
    args.add_argument("--workers", action="store_true", help="print a line for each worker")
    args.add_argument("--json", action="store_true", help="print one JSON object, and end")
    return args


def main(argv: list[str]) -> int:
    """Show the state of a sweep until it is finished, or once; return the exit code."""
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
            return _watch_unplanned(root, name, once=arguments.once, as_json=arguments.json)
        if sweeps and "/" not in name:
            planned = (path.parent.name for path in plan_folder(root, "").glob(f"*/{HEAD}"))
            way_out = "For a sweep of another results folder, add --results DIR."
            known = {*sweeps, *planned}
            raise CommandError(unknown(f"sweep of {root}", name, known, way_out=way_out))
    folder = locate_plan(name, root)
    plan = StoredPlan(folder)
    watcher, jobs = Watcher(plan), JobWatcher(folder)
    if arguments.json or arguments.once or not on_terminal(sys.stdout):
        standing = watcher.look()
        standing.jobs = jobs.look()
        if arguments.json:
            print(json.dumps(_standing_as_json(standing), ensure_ascii=False))
        else:
            text = [*sweep_lines(standing, PlanTitles(plan), MOST_LINES)]
            text += stages(watcher, standing)
            text += worker_lines(standing, 1000 if arguments.workers else 0)
            # Without --workers, the line that counts hidden workers would be the only one.
            text = [one_line(line) for line in text if not line.endswith(" more workers")]
            print("\n".join(text))
        return standing.code
    region = Region(sys.stdout)
    while True:
        standing = watcher.look()
        standing.jobs = jobs.look()
        _, rows = region.room()
        # Runs and failures get half of the rows each, without four for the summary.
        text = [*sweep_lines(standing, PlanTitles(plan), max(2, (rows - 4) // 2))]
        text += stages(watcher, standing)
        text += worker_lines(standing, max(0, rows - len(text) - 3))
        region.draw(text[: rows - 1])
        if not standing.left and not standing.unwritten:
            print()
            return standing.code
        time.sleep(EVERY_S)
        # If the plan file was removed or is only partly written, the page shows the plan read last.
        with suppress(OSError, TornPart):
            if mark_of((folder / HEAD).stat()) != plan.mark:
                new_plan = StoredPlan(folder)
                plan, watcher = new_plan, Watcher(new_plan)


def _watch_unplanned(root: Path, name: str, *, once: bool, as_json: bool) -> int:
    """Show the state of a sweep that `lra run` started, so that it has no plan and no workers."""
    from lra.cluster.progress_of import of_stored, sweep_lines

    region = Region(sys.stdout)
    updates = on_terminal(sys.stdout) and not once and not as_json
    while True:
        standing = of_stored(root, name)
        if as_json:
            print(json.dumps(_standing_as_json(standing), ensure_ascii=False))
            return standing.code
        # No plan has titles, so that a failed run is named by its key.
        keys = {key: key for failed in standing.failures.values() for key in failed}
        text = [*sweep_lines(standing, keys, MOST_LINES)]
        if not updates:
            print("\n".join(map(one_line, text)))
            return standing.code
        _, rows = region.room()
        region.draw(text[: rows - 1])
        if not standing.left:
            print()
            return standing.code
        time.sleep(EVERY_S)


def stages(watcher: "Watcher", standing: "Standing") -> list[str]:
    """Return lines that say how far each arm of a search has come; none for other sweeps."""
    from lra.cluster.growth import stage_lines

    running = {cell.key for cell in standing.running}
    return [*stage_lines(watcher.plan, watcher.ended, running)]


def _standing_as_json(standing: "Standing") -> dict[str, object]:
    """Return the object that `lra watch --json` prints."""
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
