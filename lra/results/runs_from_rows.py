"""Writes the runs of a dashboard that cells did not write: curves, baselines, and timings.

They are written from stored rows at the end of a command, in a separate process. If it fails, the
command prints one sentence, and the rows stay.
"""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lra.reports.dashboard.keys import LENGTH_AXIS, STEP_AXIS
from lra.reports.dashboard.plan import plan_runs
from lra.reports.dashboard.runs import Runs, RunTarget
from lra.runners.isolation import isolate
from lra.runners.isolation.progress import Event, listen
from lra.runners.records import Cell, Status
from lra.runners.storage.formats import read_newest_rows
from lra.runners.store import Store
from lra.sweep.cell_logger import FAILED, model_of
from lra.sweep.sweep_logger import SweepLogger, apart, writes_its_run

BEGUN_S, CELL_S = 60.0, 2.0
"""Seconds that writing may take: a fixed part, and a part for each cell."""
LOG = "log.txt"
"""The file in the folder of the dashboard for the output of W&B."""


def write_runs(logger: SweepLogger, *, ran: bool) -> str:
    """Write the runs that are made from rows; return a sentence that says where all runs are.

    The sentence is "" without a dashboard.

    Args:
        logger: the dashboard of the sweep.
        ran: whether the command ran cells. Otherwise only a run that an agent of W&B waits for is
            written.
    """
    target = logger.target
    if target is None:
        return ""
    if not (ran or target.agent):
        return "nothing is written, because every run was finished before"
    sweep = logger.sweep
    cells = [cell for cell in sweep.cells if not (ran and writes_its_run(cell))]
    fault = _write_in_process(logger, target, cells) if cells else ""
    fault = f"; some runs are missing: {fault}" if fault else ""
    if target.kind == "tensorboard":
        return f"`tensorboard --logdir {target.folder}` shows the runs of this sweep{fault}"
    if target.kind == "online":
        has_offline = any(target.folder.glob("offline-run-*"))
        upload = (
            f"; `wandb sync` sends other runs, which are in {target.folder}" if has_offline else ""
        )
        return (
            f"the server has the runs of this sweep, in the project {target.project}{upload}{fault}"
        )
    why = f" (the server refused them: {logger.unreachable.rstrip('.')})"
    why = why if logger.unreachable else ""
    return f"{target.folder} has the runs of this sweep{why}; `wandb sync` sends them{fault}"


def _write_in_process(logger: SweepLogger, target: RunTarget, cells: Sequence[Cell]) -> str:
    """Write the runs of cells in a separate process; return why something is missing, or ""."""
    warnings: list[str] = []

    def hear(message: object) -> None:
        if isinstance(message, Event) and message.level >= logging.WARNING:
            warnings.append(message.text)

    argument = {
        "target": target,
        "root": logger.sweep.root,
        "cells": [(cell, apart(logger.sweep.titles, cell)) for cell in cells],
    }
    try:
        ending = isolate.run(
            write_from_rows,
            argument,
            on_message=hear,
            seconds=BEGUN_S + CELL_S * len(cells),
            log=target.folder / LOG,
        )
    except (OSError, RuntimeError) as error:  # no process could be started
        return str(error)
    return "; ".join([*warnings, *filter(None, [ending.reason])])


def write_from_rows(argument: Mapping[str, Any], send: Callable[[object], None]) -> None:
    """Read the rows of cells and write their runs. `lra.runners.isolation.isolate` calls it."""
    target, store = argument["target"], Store(argument["root"])
    cells = {
        cell.key: {
            "identity": cell.identity,
            "config": cell.config,
            "model": model_of(cell),
            "apart": suffix,
        }
        for cell, suffix in argument["cells"]
    }
    newest = (read_newest_rows(store.cell_folder(key)) for key in cells)
    rows = [row for _, lines in filter(None, newest) for row in lines]
    if not rows:
        return
    succeeded = {row["cell"] for row in rows if row["status"] == Status.ok}
    with listen(send, log=sys.stderr):
        runs = Runs(target)
        for plan in plan_runs(rows, sweep=target.sweep, cells=cells):
            # A curve over lengths has no training steps, so that its points are numbered.
            curve = any(LENGTH_AXIS in line for line in plan.history)
            run = runs.open(plan.id, plan, curve=curve)
            for number, line in enumerate(plan.history):
                run.log(line, number if curve else int(line[STEP_AXIS]))
            try:
                run.end(plan.summary, 0 if succeeded.intersection(plan.config["cells"]) else FAILED)
            except TimeoutError as error:  # its file is whole, for `wandb sync`
                runs.leave_server(error)
        runs.close()
