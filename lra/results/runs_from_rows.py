"""The runs of a sweep that its cells did not write: curves, baselines, and what is timed.

They are written from stored rows when a command ends that ran cells, in a process of their own: the
rows are there, and whatever happens to it is one sentence.
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
"""How long writing may take: once, and for each cell."""
LOG = "log.txt"
"""In the folder of the dashboard: what W&B says."""


def write_runs(logger: SweepLogger, *, ran: bool) -> str:
    """Write the runs that are made of rows, and say where all are; "" without a dashboard.

    Args:
        logger: of the sweep.
        ran: whether the command ran cells. A command that did not writes nothing, but the run that
            an agent of W&B waits for.
    """
    target = logger.target
    if target is None:
        return ""
    if not (ran or target.agent):
        return "nothing new to write: every run was finished before"
    sweep = logger.sweep
    cells = [cell for cell in sweep.cells if not (ran and writes_its_run(cell))]
    fault = _written(logger, target, cells) if cells else ""
    fault = f"; some are missing: {fault}" if fault else ""
    if target.kind == "tensorboard":
        return f"`tensorboard --logdir {target.folder}` shows its runs{fault}"
    if target.kind == "online":
        others = any(target.folder.glob("offline-run-*"))
        left = f"; `wandb sync` sends those in {target.folder}" if others else ""
        return f"its runs are on the server, in the project {target.project}{left}{fault}"
    why = f", as the server refused them ({logger.unreachable.rstrip('.')})"
    why = why if logger.unreachable else ""
    return f"its runs are in {target.folder}{why}; `wandb sync` sends them{fault}"


def _written(logger: SweepLogger, target: RunTarget, cells: Sequence[Cell]) -> str:
    """Write the runs of cells; return why something is missing, or ""."""
    said: list[str] = []

    def hear(message: object) -> None:
        if isinstance(message, Event) and message.level >= logging.WARNING:
            said.append(message.text)

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
    return "; ".join([*said, *filter(None, [ending.reason])])


def write_from_rows(argument: Mapping[str, Any], send: Callable[[object], None]) -> None:
    """Read the rows of cells and write their runs. Called by `lra.runners.isolation.isolate`."""
    target, store = argument["target"], Store(argument["root"])
    about = {
        cell.key: {
            "identity": cell.identity,
            "config": cell.config,
            "model": model_of(cell),
            "apart": words,
        }
        for cell, words in argument["cells"]
    }
    newest = (read_newest_rows(store.cell_folder(key)) for key in about)
    rows = [row for stored in newest if stored is not None for row in stored[1]]
    if not rows:
        return
    good = {row["cell"] for row in rows if row["status"] == Status.ok}
    with listen(send, log=sys.stderr):
        runs = Runs(target)
        for plan in plan_runs(rows, sweep=target.sweep, cells=about):
            curve = any(LENGTH_AXIS in line for line in plan.history)
            run = runs.open(plan.id, plan, curve=curve)
            for number, line in enumerate(plan.history):
                run.log(line, number if curve else int(line[STEP_AXIS]))
            try:
                run.end(plan.summary, 0 if good.intersection(plan.config["cells"]) else FAILED)
            except TimeoutError as error:  # its file is whole, for `wandb sync`
                runs.leave_server(error)
        runs.close()
