"""What is stored of a sweep and was not written while its cells ran, for its dashboard.

The process that wrote those writes the report, too, where it is there and lacks nothing else, and a
new one what is left. It neither asks, hangs nor fails, and ends with
one sentence that says where the runs lie or why there are none.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lra.composition.run import LoggerMode
from lra.reports.dashboard.plan import RunPlan, contents, plan_report
from lra.reports.dashboard.state import REPORT, RUN, Mirrored, read_state
from lra.runners.records import Cell, Status
from lra.runners.storage.index import RowsIndex
from lra.runners.store import rows_in
from lra.sweep import live as live_events
from lra.sweep.agent import agent_of
from lra.sweep.live import LiveSweep, folder_of, group_of
from lra.sweep.sweep import SweepCells
from lra.terminal.progress import failure_of

RUN_S = 60.0
"""How long a run, or the report, may take at most to be written."""


def replay(
    sweep: SweepCells, live: LiveSweep | None, rows: pd.DataFrame, report_files: Sequence[Path]
) -> str:
    """Write what the dashboard lacks; return what a person should know.

    A run that holds these rows is left alone. W&B gets a run with the report as well.

    Args:
        sweep: whose cells have rows.
        live: what the dashboard was told while cells ran; None: nothing had to be run.
        rows: of the sweep, as `lra.runners.store.read_rows` returns them.
        report_files: what `write_report` returned; may be empty.
    """
    folder, logger = folder_of(sweep), sweep.logger
    first = None if live is None else live.runs
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replayed = _Replay(sweep, rows, report_files, live)
        if logger.mode is not LoggerMode.tensorboard:
            return replayed.sentence_for_wandb()
    except OSError as error:  # no room, no right: the rows are there
        return f"{live_events.name_of(logger)} got nothing: {error}"
    failed = first.failed if first is not None else ""
    failed = failed or replayed.write(None)
    if failed:
        return f"nothing more is written: {failed}"
    return f"`tensorboard --logdir {folder}` shows its runs"


class _Replay:
    """The cells and the report of a sweep, beside what its dashboard has."""

    def __init__(
        self,
        sweep: SweepCells,
        rows: pd.DataFrame,
        files: Sequence[Path],
        live: LiveSweep | None,
    ) -> None:
        self.sweep, self.live = sweep, live
        runs = None if live is None else live.runs
        self.unreachable = "" if runs is None else runs.offline
        self.report_content = ""
        self.folder = folder_of(sweep)
        self.rows = rows_in(rows)
        self.contents = contents(self.rows)
        self.files = [Path(file).resolve() for file in files]
        self.agent = agent_of(sweep)

    def sentence_for_wandb(self) -> str:
        """Write runs and report, offline where the server does not take them."""
        report = None
        if self.agent is None:  # whose run is the only one
            report = plan_report(
                self.rows, self.files, sweep=self.sweep.name, rows_folder=self.folder / "rows"
            )
            self.report_content = report.content()
        failed = self.write(report)
        if self._wants_server and (self._left() or self._due(report)):
            # in a new process, since W&B's service keeps the run that it could not send
            self.unreachable = failed or "the server did not answer in time"
            failed = self.write(report)
        return self._sentence(report, failed)

    @property
    def _wants_server(self) -> bool:
        return self.sweep.logger.mode is LoggerMode.online and not self.unreachable

    def write(self, report: RunPlan | None) -> str:
        """Replay what is not there; return why something is missing then, or ""."""
        left = self._left()
        due = report if self._due(report) else None
        if not left and due is None:
            return ""
        if due is not None and not left and self.live is not None and self.live.goes_on:
            self._report(self.live, due)
            if not self._due(due):
                return ""
        if self.live is not None:
            self.live.close()
        copied = LiveSweep(self.sweep, left or self.sweep.cells, unreachable=self.unreachable)
        index = RowsIndex(self.sweep.root)
        for cell in left:
            summary = index.of(cell.key, cell.fingerprint)
            bad = None if summary is None else failure_of(summary)
            status, reason = (Status.ok, "") if bad is None else (bad.status, bad.reason)
            copied.ended(cell, status, reason, wait=True)
        if (runs := copied.runs) is None:
            return copied.fault
        self._report(copied, due, left=len(left))
        return runs.failed or runs.lost

    def _report(self, live: LiveSweep, due: RunPlan | None, *, left: int = 0) -> None:
        """Hand over the report, behind so many cells, and wait until all is written."""
        if (runs := live.runs) is None:
            return
        if due is not None:
            cells = {cell: self.contents[cell] for cell in due.config["cells"]}
            event = {"event": "report", "cell": "report", "plan": due.as_json()}
            runs.hand(event | {"content": self.report_content, "cells": cells})
        live.close(live_events.CLOSED_S + RUN_S * (left + (due is not None)))
        self.unreachable = self.unreachable or runs.offline

    def _left(self) -> list[Cell]:
        """Return the cells whose rows no run holds, those of one run behind each other."""
        there: dict[str, set[str]] = {}
        for was in self._runs().values():
            if self._in_place(was):
                for cell, content in was.cells.items():
                    there.setdefault(cell, set()).add(content)
        lacking = [
            cell
            for cell in self.sweep.cells
            if self.contents.get(cell.key) not in (None, *there.get(cell.key, ()))
            and self.sweep.store.complete(cell)
        ]
        return sorted(lacking, key=group_of)

    def _due(self, report: RunPlan | None) -> bool:
        if report is None:
            return False
        was = read_state(self.folder).get(report.id)
        return was is None or not (
            was.kind == REPORT
            and was.content == self.report_content
            and Path(was.path).is_dir()
            and self._in_place(was)
        )

    def _in_place(self, was: Mirrored) -> bool:
        return was.mode == "online" or not self._wants_server

    def _runs(self) -> dict[str, Mirrored]:
        return {
            run: was
            for run, was in read_state(self.folder).items()
            if (was.sweep, was.kind) == (self.sweep.name, RUN)
            and Path(was.path).is_dir()
            and (self.agent is None or run == self.agent.run)
        }

    def _sentence(self, report: RunPlan | None, failed: str) -> str:
        keys = {cell.key for cell in self.sweep.cells}
        done = [was for was in self._runs().values() if keys & was.cells.keys()]
        lost = len(self._left())
        if self._due(report):
            lost += 1
        elif report is not None:
            done.append(read_state(self.folder)[report.id])
        failed = failed or "the process that writes them ended early"
        if not done:
            return f"W&B got nothing: {failed}."
        online = sum(was.mode == "online" for was in done)
        parts = [f"{online} W&B runs are on the server"] if online else []
        if offline := len(done) - online:
            where = Path(done[0].path).parent if not online else self.folder
            text = f"{offline} W&B runs are offline under {where}"
            if self.unreachable:
                text += f" because going online failed ({self.unreachable.rstrip('.')})"
            parts.append(text + "; `wandb sync` sends them")
        if lost:
            parts.append(f"{lost} could not be written: {failed}")
        return "; ".join(parts) + "."
