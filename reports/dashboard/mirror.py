"""Copy finished results to W&B, from the store and never live: no account or network is needed.

The mirror neither asks, hangs nor fails: it works in a child process without a terminal, with a
deadline, and ends with one sentence that says where the runs lie or why there are none.
"""

import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, auto
from pathlib import Path
from typing import Any

import pandas as pd

from reports.dashboard.child import WritingProcess
from reports.dashboard.keys import AXES
from reports.dashboard.plan import RunPlan, contents, plan_report, plan_runs, raw
from reports.dashboard.state import (
    REPORT,
    RUN,
    Mirrored,
    forget_files,
    forget_older_reports,
    read_state,
    write_state,
)


class MirrorMode(StrEnum):
    """Whether runs go to the service, to local files, or nowhere."""

    offline = auto()
    """Into files that `wandb sync` can send later."""
    online = auto()
    """To the server; into files where there is no key or no answer."""
    disabled = auto()


@dataclass(frozen=True, slots=True)
class MirrorResult:
    """What became of a mirror."""

    paths: list[Path]
    """Folder of each run, in the order planned."""
    sentence: str


def mirror(
    rows: pd.DataFrame,
    report_files: Sequence[Path],
    *,
    sweep: str,
    cells: Mapping[str, Mapping[str, Any]],
    mode: MirrorMode,
    folder: Path,
    project: str,
    names: Mapping[str, str] | None = None,
    apart: Mapping[str, str] | None = None,
    own: Collection[str] | None = None,
    entity: str | None = None,
    unreachable: str = "",
    init_timeout_s: float = 20.0,
    seconds_per_run: float = 60.0,
) -> MirrorResult:
    """Write one W&B run per cell or curve of cost, and one that holds the report.

    A run whose content was mirrored before is not written again; a changed one replaces its
    offline files. What other processes wrote, here or into another folder, is never replaced.
    Raises nothing that wandb raises.

    Args:
        rows: of one sweep, as `runners.store.read_rows` returns them.
        report_files: what `write_report` returned; may be empty.
        sweep: names the group; run ids derive from it and from the cells in a run.
        cells: what the store says of each cell: `identity`, `columns`, `config`.
        mode: offline, online or disabled.
        folder: everything is written below it; a folder called `wandb` holds the runs itself.
        project: W&B project.
        names: display names of models by cell; by default the model column.
        apart: words that tell cells of the sweep apart, by cell, for the names of runs.
        own: the cells to send, None for all; the report's run holds all rows.
        entity: W&B account or team, None for the default.
        unreachable: why the server cannot be reached, where that is known: nothing tries it again.
        init_timeout_s: how long to wait for the server before going offline.
        seconds_per_run: deadline of the whole, times the number of runs.

    Raises:
        NoRows: there are no rows.
    """
    if mode is MirrorMode.disabled:
        return MirrorResult([], "W&B is disabled.")
    if unreachable:
        mode = MirrorMode.offline
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    state = read_state(folder)
    hashes = contents(rows)
    known = {run: was.cells for run, was in state.items() if (was.sweep, was.kind) == (sweep, RUN)}
    plans = plan_runs(
        rows, sweep=sweep, cells=cells, names=names, apart=apart, known=known, own=own
    )
    files = [Path(p).resolve() for p in report_files]
    report = plan_report(raw(rows), files, sweep=sweep, rows_folder=folder / "rows")
    plans.append(report)

    content = {plan.id: plan.content() for plan in plans}
    due = [p for p in plans if not _is_done(state.get(p.id), p, content[p.id], hashes, mode)]
    job: dict[str, Any] = {
        "axes": AXES,
        "dir": str(folder.parent if folder.name == "wandb" else folder),
        "entity": entity,
        "finish_timeout_s": seconds_per_run / 2,
        "init_timeout_s": init_timeout_s,
        "mode": str(mode),
        "project": project,
    }
    # staged copies of the report's files must outlive the run until it is sent, but no longer
    data = folder / "data" / plans[-1].id
    if plans[-1] in due:
        shutil.rmtree(data, ignore_errors=True)
    events = _run(job, due, folder, data, deadline=init_timeout_s + seconds_per_run * len(due))
    written = {e["id"]: e for e in events if e["event"] == "written"}
    if unreachable:
        events.append({"event": "offline", "reason": unreachable})
    if mode is MirrorMode.online and len(written) < len(due):
        # a new child, since W&B's service keeps the run that it could not send
        why = _reason(events, "failed") or "the server did not answer in time"
        left = [p for p in due if p.id not in written]
        job["mode"] = "offline"
        events = [e for e in events if e["event"] == "written"]
        events.append({"event": "offline", "reason": why})
        events += _run(job, left, folder, data, deadline=seconds_per_run * len(left))
        written = {e["id"]: e for e in events if e["event"] == "written"}
    for plan in (p for p in plans if p.id in written):
        event = written[plan.id]
        forget_files(plan.id, keep=Path(event["path"]))
        state[plan.id] = Mirrored(
            content=content[plan.id],
            path=event["path"],
            mode=event["mode"],
            sweep=sweep,
            kind=REPORT if plan is report else RUN,
            cells={cell: hashes[cell] for cell in plan.config["cells"]},
        )
        write_state(folder, plan.id, state[plan.id])
    if report.id in written:
        forget_older_reports(folder, state, report.id)
    done = [state[p.id] for p in plans if p.id in written or p not in due]
    return MirrorResult([Path(d.path) for d in done], _sentence(plans, done, events, folder))


def _sentence(
    plans: Sequence[RunPlan],
    known: Sequence[Mirrored],
    events: Sequence[Mapping[str, str]],
    folder: Path,
) -> str:
    lost = len(plans) - len(known)
    failed = _reason(events, "failed") or "the process that writes them ended early"
    if not known:
        return f"W&B got nothing: {failed}."
    online = sum(k.mode == "online" for k in known)
    offline = len(known) - online
    parts = []
    if online:
        parts.append(f"{online} W&B runs are on the server")
    if offline:
        where = Path(known[0].path).parent if online == 0 else folder
        text = f"{offline} W&B runs are offline under {where}"
        why = _reason(events, "offline")
        if why:
            text += f" because going online failed ({why.rstrip('.')})"
        parts.append(text + "; `wandb sync` sends them")
    if lost:
        parts.append(f"{lost} could not be written: {failed}")
    return "; ".join(parts) + "."


def _reason(events: Iterable[Mapping[str, str]], kind: str) -> str:
    return next((e["reason"] for e in events if e["event"] == kind), "")


def _run(
    job: Mapping[str, Any], plans: Sequence[RunPlan], folder: Path, data: Path, *, deadline: float
) -> list[dict[str, str]]:
    """Let a child write `plans`; return what it said before it ended or its time was up."""
    if not plans:
        return []
    # online, the user's own settings may name their server; offline they have nothing to say
    writer = WritingProcess(
        "reports.dashboard.process", folder, data, own_settings=job["mode"] != "offline"
    )
    events, complaint = writer.ask({**job, "plans": [p.as_json() for p in plans]}, deadline)
    if writer.process.returncode > 0:
        events.append({"event": "failed", "reason": complaint or "no message"})
    return events


def _is_done(
    before: Mirrored | None,
    plan: RunPlan,
    content: str,
    hashes: Mapping[str, str],
    mode: MirrorMode,
) -> bool:
    """Tell whether a run needs no writing: it holds this, or was written live and holds more."""
    if before is None or not Path(before.path).is_dir():
        return False
    if before.live:
        return before.cells == {cell: hashes[cell] for cell in plan.config["cells"]}
    return before.content == content and (mode is MirrorMode.offline or before.mode == "online")
