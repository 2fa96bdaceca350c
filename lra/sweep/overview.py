"""What a dry run prints: every cell, whether it is done, and if not, why."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from lra.composition.task_name import NONE
from lra.conf.short_values import number_of
from lra.runners.records import Cell, Status, legible
from lra.runners.storage.claims import is_stale
from lra.runners.storage.fingerprint import changes, summary
from lra.runners.storage.formats import BadStore, fingerprint_of, read_object, rows_files
from lra.runners.storage.index import RowsIndex
from lra.runners.store import Store
from lra.runners.training.checkpoint import Checkpoints
from lra.sweep.costs import NO_TIME
from lra.sweep.estimate import Forecasts, announcement, forecasts, format_duration
from lra.sweep.forecast import Forecast
from lra.sweep.planned_cells import is_done, known_ending
from lra.sweep.sweep import PlannedCell, Sweep
from lra.sweep.trainings import missing_weights
from lra.tasks.data.stored_task import StoredTask

TO_DO, REFUSED = "to do", "refused"
"""States of cells without rows; a refused one becomes a row with the reason."""
MOST_NAMED = 6
"""Changed modules that a line names."""
MOST_REFUSED = 20
"""Refused cells that `lra submit` names."""
LONGEST_REASON = 200
LONGEST_FAULT = 800


def overview(sweep: Sweep) -> Iterator[str]:
    """Yield a line for each cell, with its state and the reason, then a line about all cells.

    The last line has the counts and the expected time. Nothing is written.
    """
    store = sweep.store
    index = RowsIndex(store.root)  # only read here
    complete = {p.cell.key: is_done(p, index) for p in sweep.planned}
    needed = {
        source.key: planned.cell.key
        for planned in sweep.planned
        if not complete[planned.cell.key]
        for source in planned.trainings.values()
    }
    states = {
        cell.key: _describe_done(planned, needed.get(cell.key), store, index)
        if complete[cell.key]
        else (TO_DO, "; ".join(reasons(planned, store, complete)))
        for planned in sweep.planned
        if (cell := planned.cell)  # always true: only names the cell
    }
    waiting = [planned for planned in sweep.planned if states[planned.cell.key][0] == TO_DO]
    pairs = forecasts(waiting, store, sweep.name, listed=True, together=True)
    expected = {planned.cell.key: forecast for planned, forecast in pairs}
    for planned in sweep.planned:
        cell = planned.cell
        state, why = states[cell.key]
        if cell.key in expected:
            state, takes = _expect(expected[cell.key])
            why += takes and f"; {takes}"  # "" stays ""
        protocol = str(planned.run.config["protocol"])
        under = "" if protocol == NONE else f", protocol {protocol}"
        yield f"{cell.key}  {state:8} {sweep.titles[cell.key]}{under}{why and f': {why}'}"
    for task, fault in _find_lacking(waiting).items():
        yield (
            f"the data of task={task} are missing, so that each run of this task ends with a row "
            f"that gives the reason: {fault}"
        )
    yield from unprepared_tasks(waiting)
    total, to_do = len(sweep.planned), len(waiting)
    refused = sum(forecast.basis == "refused" for _, forecast in pairs)
    line = f"{total} run{'s' * (total != 1)} in {sweep.root}: {total - to_do} done, {to_do} to do"
    if (runs := len(sweep.of_words)) < total - sum(planned.beside for planned in sweep.planned):
        configurations = number_of(runs, "configuration")
        line += f"; each of {configurations} has a run for each mode, length and training"
    line += f"; {number_of(refused, 'run')} will be refused" if refused else ""
    line += f"; {announcement(pairs)}" if waiting else ""
    limits = [float(p.run.config["runner"]["timeout_s"]) for p in waiting if p.beside]
    if limits:
        longest = format_duration(max(limits))
        line += f"; a run of baselines takes at most {longest}, and runner.baselines=false skips it"
    yield line


def refusals(pairs: Forecasts, titles: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each cell whose model is refused, with the reason that its row will have.

    `pairs` are the cells to run with their forecasts; `titles` are the names of cells, by key.
    """
    refused = [(planned, f) for planned, f in pairs if f.basis == "refused"]
    for planned, forecast in refused[:MOST_REFUSED]:
        yield f"{REFUSED:8} {titles[planned.cell.key]}: {legible(forecast.reason, LONGEST_REASON)}"
    if (more := len(refused) - MOST_REFUSED) > 0:
        yield f"{REFUSED:8} {more:,} more runs, which runner.dry_run=true lists"


def _expect(forecast: Forecast) -> tuple[str, str]:
    """Return the state of a cell that is to be run, and its expected time or why it is unknown."""
    reason = legible(forecast.reason, LONGEST_REASON)
    if forecast.basis == "refused":
        return REFUSED, reason
    if forecast.reason == NO_TIME:  # the last line of the overview says this once for all cells
        return TO_DO, ""
    if forecast.seconds is None:
        return TO_DO, f"the time of this run is unknown ({reason})"
    takes = format_duration(forecast.seconds)
    needs = [
        (forecast.fits, "the model", forecast.need_bytes),
        (
            forecast.reference_fits,
            f"the reference {forecast.reference}",
            forecast.reference_need_bytes,
        ),
    ]
    for fits, name, size in needs:
        if fits is False:
            need, room = (f"{(n or 0) / 2**30:,.3g} GiB" for n in (size, forecast.room_bytes))
            takes += f"; {name} needs {need} of memory, but only {room} are available"
            break
    return TO_DO, takes


def _find_lacking(waiting: Sequence[PlannedCell]) -> dict[str, str]:
    """Return why the data of a task are missing, by task, as far as planning can find out."""
    return {
        planned.run.task_name: fault
        for planned in waiting
        if (fault := _find_fault(planned)) is not None
    }


def unprepared_tasks(waiting: Iterable[PlannedCell]) -> Iterator[str]:
    """Yield a line for each task whose data can be prepared and are not prepared yet."""
    unprepared = ((planned.run.task_name, unready(planned)) for planned in waiting)
    for name, task in {name: task for name, task in unprepared if task is not None}.items():
        yield (
            f"{name} is not prepared in {task.folder}: type lra data prepare {name}, or let lra "
            "run or lra submit prepare it"
        )


def unready(planned: PlannedCell) -> StoredTask | None:
    """Return the task of a cell if its data can be prepared and are not yet; otherwise None."""
    task = planned.run.task
    if not planned.run.runner.data or not isinstance(task, StoredTask) or task.lacking is not None:
        return None
    return task if task.wants_files() else None


def _find_fault(planned: PlannedCell) -> str | None:
    """Return why the data that a cell needs are missing; None: they are there, or it needs none."""
    fault = getattr(planned.run.task, "lacking", None) if planned.run.runner.data else None
    return None if fault is None else legible(str(fault), LONGEST_FAULT)


def _describe_done(
    planned: PlannedCell, dependant: str | None, store: Store, index: RowsIndex
) -> tuple[str, str]:
    """Return state and reason of a cell that has its rows.

    `dependant` is the key of a cell that starts from its weights; None: there is none.
    """
    stored = index.summary(planned.cell.key, planned.cell.fingerprint)
    statuses = store.statuses(planned.cell) if stored is None else stored.statuses
    if dependant and statuses == {Status.ok} and missing_weights(planned.cell, store):
        return TO_DO, f"the weights of this run are missing, and run {dependant} starts from them"
    failures = sorted(str(status) for status in statuses - {Status.ok})
    return "done" + (f" ({', '.join(failures)})" if failures else ""), ""


def reasons(planned: PlannedCell, store: Store, complete: Mapping[str, bool]) -> Iterator[str]:
    """Yield why a cell is to be run, and what will happen to it, as far as that is known.

    `complete` says for each cell, by key, whether it has all its rows.
    """
    cell = planned.cell
    yield _find_reason(cell, store, planned.run.control.retry)
    step = step_reached(store.checkpoint_folder(cell))
    if step is not None:
        yield f"training resumes {step}"
    claim = store.root / "claims" / cell.key
    try:
        if claim.exists() and not is_stale(claim):
            yield "this run is claimed, because another sweep is working on it"
    except OSError as error:
        yield f"the file {claim}, which claims this run, cannot be read ({error.strerror})"
    lacking = getattr(planned.run.task, "lacking", None)
    if planned.run.runner.data and lacking is not None:
        yield f"the data of this run are missing ({legible(str(lacking), LONGEST_REASON)})"
    if packages := planned.run.runner.lacking(planned.run.model):
        yield (
            "one part of this run cannot be executed; its row says which package is missing "
            f"({legible(packages, LONGEST_REASON)})"
        )
    sources = planned.trainings.values()
    if to_do := [s.key for s in sources if not complete.get(s.key, store.complete(s))]:
        yield f"this run starts after the training {', '.join(to_do)}"
    elif any(store.statuses(source) != {Status.ok} for source in sources):
        end = known_ending(planned, [], store)  # []: shorter lengths have not been run yet
        if end is not None:
            status, reason, _ = end
            yield f"this run will get the status {status} ({legible(reason, LONGEST_REASON)})"


def _find_reason(cell: Cell, store: Store, retry: Collection[str]) -> str:
    """Return why a cell has to run, though it may have run before; `retry` names statuses."""
    folder = store.cell_folder(cell.key)
    rows = folder / f"rows-{cell.fingerprint}.jsonl"
    if rows.exists():
        try:
            if store.complete(cell, retry):
                return "the data of this run were missing"
            again = sorted(str(status) for status in store.statuses(cell) if status in retry)
        except BadStore as error:
            return f"the stored rows of this run are damaged: {legible(str(error), LONGEST_REASON)}"
        ended = (
            f"it ended as {', '.join(again)}"
            if again
            else "the run was disturbed while it was measured"
        )
        return f"{ended}, and runner.retry repeats such runs"
    older_files = [path for path in _readable_rows_files(folder) if path != rows]
    if not older_files:
        return "never run" if not folder.exists() else "this run was started and has not ended"
    newest = max(older_files, key=lambda path: path.stat().st_mtime_ns)
    return f"this run has results, but code changed since it ran ({_changed_code(newest, cell)})"


def _readable_rows_files(folder: Path) -> list[Path]:
    """Return the files of a cell's rows; none if one of them is damaged."""
    try:
        return rows_files(folder)
    except BadStore:
        return []


def _changed_code(rows: Path, cell: Cell) -> str:
    """Return the names of the modules that changed since a rows file was written."""
    try:
        environment = read_object(rows.with_name(f"environment-{fingerprint_of(rows)}.json"))
    except BadStore:
        environment = {}
    before = environment.get("sources")
    stored = {str(k): str(v) for k, v in before.items()} if isinstance(before, dict) else {}
    if summary(stored) != fingerprint_of(rows):  # the fingerprint in its name sums up all files
        return "lra did not record which files changed"
    modules = changes(stored, cell.sources)
    more = len(modules) - MOST_NAMED
    return ", ".join(modules[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def step_reached(folder: Path) -> str | None:
    """Return at which step a training resumes, in words; None if it has no checkpoint."""
    checkpoints = Checkpoints(folder)
    if not checkpoints.present():
        return None
    step = checkpoints.step()
    return "at its last checkpoint" if step is None else f"at step {step:,}"
