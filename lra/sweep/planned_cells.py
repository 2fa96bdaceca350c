"""Planned cells: which are done, which end without being run, and which rows are stored."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from lra.composition.runner_class import runner_of
from lra.runners.metrics import COUNTED
from lra.runners.records import DISTURBED, Cell, Measurement, Outcomes, Status, canonical
from lra.runners.runner import OWN
from lra.runners.storage.formats import read_bytes
from lra.runners.storage.index import RowsIndex
from lra.runners.store import BadStore, Store, UnknownCell
from lra.sweep.identity import is_reference
from lra.sweep.sweep import PlannedCell
from lra.sweep.titles import title
from lra.sweep.trainings import missing_weights
from lra.sweep.trial_builds import refusal
from lra.tasks.data.stored_task import MISSING
from lra.terminal.progress import PARTS

TOO_MUCH = frozenset({Status.out_of_memory, Status.timeout, Status.skipped})
"""Statuses that a longer sequence would have, too."""

NO_DATA = {"missing": "data"}
"""Labels of the row of a cell that failed because its data were missing."""

NOT_WHOLE = PARTS | {DISTURBED, *NO_DATA}
"""Labels of rows from which nothing follows for longer sequences (except processor time)."""

TELLING = frozenset({Status.diverged, Status.out_of_memory, Status.timeout})
"""Statuses with which the curve of a run stays valid up to its end."""


def is_done(planned: PlannedCell, store: Store | RowsIndex) -> bool:
    """Return whether a cell needs no more work; one whose data were missing is tried again."""
    return store.complete(planned.cell, planned.run.control.retry, NO_DATA)


def not_done(planned: Sequence[PlannedCell], store: Store) -> list[PlannedCell]:
    """Return the cells that are not done, according to the index of the store."""
    with RowsIndex(store.root) as index:
        return [item for item in planned if not is_done(item, index)]


def still_disturbed(planned: Sequence[PlannedCell], index: RowsIndex) -> list[PlannedCell]:
    """Return the cells with disturbed timings that the same command would measure again."""
    retried = [item for item in planned if DISTURBED in item.run.control.retry]
    return [
        item
        for item in retried
        if (stored := index.summary(item.cell.key, item.cell.fingerprint)) is not None
        and stored.disturbed
    ]


def clear_leftovers(
    planned: Sequence[PlannedCell], waiting: Sequence[PlannedCell], store: Store
) -> int:
    """Remove claims that killed processes left on complete cells; return how many are complete."""
    complete = {item.cell.key for item in planned} - {item.cell.key for item in waiting}
    store.clear_claims(complete)
    return len(complete)


def data_of(planned: PlannedCell) -> tuple[str, ...]:
    """Return a key that is equal for two cells if they read the same data."""
    # The hash stands for the content of files, so that their paths do not count.
    run = planned.run
    return run.task_name, str(run.task_options), run.task.spec.data_hash


def enter(sweep: str, planned: Sequence[PlannedCell], store: Store) -> None:
    """Store which cells belong to a sweep, and remove the `superseded_keys` from it."""
    store.record_cells(sweep, {item.cell.key: title(item.cell) for item in planned})
    for key in superseded_keys(sweep, planned, store):
        store.take_from_sweep(sweep, key)


def superseded_keys(sweep: str, planned: Sequence[PlannedCell], store: Store) -> list[str]:
    """Return the keys that planned cells had in the sweep while their data were missing.

    The content of a file is part of a cell's key, so that the key changes when the file arrives.
    """
    planned_keys = {item.cell.key for item in planned}
    names = {_training_columns(item.cell.columns) for item in planned}
    keys = []
    for key in set(store.cells_of(sweep)) - planned_keys:
        try:  # searching the bytes is ten times faster than parsing, and excludes most cells
            if MISSING.encode() not in read_bytes(store.cell_folder(key) / "cell.json"):
                continue
            cell = store.cell(key)
        except (UnknownCell, BadStore):
            continue
        lacked = cell["identity"].get("task", {}).get("data") == MISSING
        if lacked and _training_columns(cell["columns"]) in names:
            keys.append(key)
    return keys


def _training_columns(columns: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what stays the same of a cell when a missing file of its data arrives."""
    return tuple(columns[column] for column in ("runner", "mode", "model", "task", "seed"))


def missing_training(planned: PlannedCell, store: Store) -> Cell | None:
    """Return a training that must be finished before this cell can start; None: all are."""
    for cell in planned.trainings.values():
        if not store.complete(cell):
            return cell
    return None


def known_ending(
    planned: PlannedCell, cells: Sequence[Cell], store: Store
) -> tuple[Status, str, Mapping[str, str]] | None:
    """Return status, reason and labels of a cell that need not be tried; None: it must be tried.

    Args:
        planned: the cell.
        cells: cells on its curve over lengths. If a shorter one was too long, this one is skipped.
        store: the results.
    """
    if planned.no_data is not None:
        return Status.skipped, planned.no_data, NO_DATA
    if reason := refusal(planned.run):
        return Status.unsupported, reason, {}
    for name, source in planned.trainings.items():
        lost = missing_weights(source, store)
        if lost is None:
            continue
        refused = [r for r in store.rows_of(source) if r["status"] == Status.unsupported]
        if name == OWN and refused:  # what cannot be trained cannot be built here either
            return Status.unsupported, str(refused[0]["reason"]), {}
        labels = {} if store.complete(source, undone=NO_DATA) else NO_DATA
        return Status.skipped, f"{title(source)}: {lost}", labels
    slow = _reason_too_long(planned, cells, store)
    return None if slow is None else (Status.skipped, slow, {})


def _reason_too_long(planned: PlannedCell, cells: Sequence[Cell], store: Store) -> str | None:
    """Return why a length is skipped; None: it must be tried.

    It is skipped if a shorter length of its curve ran out of memory or time, or if the times of
    shorter lengths grow so fast that this one is `too_long`. Disturbed timings do not count.
    """
    cell, kind = planned.cell, planned.run.runner
    if not kind.by_length:
        return None
    key = curve(cell)
    times: dict[int, float] = {}
    for shorter in cells:
        length = shorter.columns["length"]
        if length < cell.columns["length"] and curve(shorter) == key and store.complete(shorter):
            for row in store.rows_of(shorter):
                if not NOT_WHOLE.isdisjoint(row["labels"]):
                    continue
                if row["metric"] == f"processor_{kind.outcome}" and row["value"]:
                    # Processor time counts only if the length has no other time.
                    times.setdefault(length, row["value"])
                if row["metric"] != kind.outcome:
                    continue
                if Status(row["status"]) in TOO_MUCH:
                    return (
                        f"this length was not tried, because {length:,} tokens were too many "
                        f"({row['status']}: {row['reason']})"
                    )
                if row["value"]:
                    times[length] = row["value"]
    mode, length = cell.columns["mode"], cell.columns["length"]
    return kind.too_long(mode, length, times, planned.run.hardware) or None


def compared_with(planned: PlannedCell) -> object:
    """Return a key that is equal for cells that are timed together: they differ only in the model.

    If the runner compares no cells, it is the key of the cell itself.
    """
    run, columns = planned.run, planned.cell.columns
    if not run.runner.compares:
        return planned.cell.key
    setting = (run.task_name, run.task_options, run.backbone, run.runner, run.hardware, run.control)
    return repr((columns["mode"], columns["length"], columns["seed"], setting))


def reference_shares(cells: Sequence[PlannedCell]) -> dict[str, float]:
    """Return, by reference, the part of its timing that counts for each of `cells`.

    Cells that are timed together time a reference once. The part is 0 if the reference is the model
    of one of them, as it then needs no separate timing.
    """
    shares = {}
    for name in cells[0].run.runner.beside:
        others = sum(planned.run.model != name for planned in cells)
        is_model = any(is_reference(planned.run, name) for planned in cells)
        shares[name] = 0.0 if is_model or not others else 1 / others
    return shares


def curves(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """Group cells by their `curve`; cells of runners that do not vary the length are excluded."""
    by_curve: dict[str, list[Cell]] = {}
    for cell in cells:
        if runner_of(cell).by_length:
            by_curve.setdefault(curve(cell), []).append(cell)
    return by_curve


def curve(cell: Cell) -> str:
    """Return a key that is equal for cells that differ only in length."""
    return canonical({**cell.identity, "length": None})


def failure_row(
    cell: Cell, status: Status, reason: str, labels: Mapping[str, str] = MappingProxyType({})
) -> Measurement:
    """Return the single row of a cell without a result: its status and the reason."""
    kind = runner_of(cell)
    split = {"split": "test"} if kind.outcome == "accuracy" else {}  # as rows with a score have it
    return Measurement(
        metric=kind.outcome, status=status, reason=reason, labels={**split, **labels}
    )


def remains(
    rows: Sequence[Measurement], outcomes: Sequence[Outcomes], ended: Measurement | None
) -> tuple[list[Measurement], list[Outcomes]]:
    """Return the rows and the per-example results that are stored of a cell that has ended.

    A failed cell has the row `ended` and no score. Its curve up to the end is stored, too, if it
    diverged or ran out of time or memory; so are counted operations if it ran out of time.

    Args:
        rows: The rows that the cell yielded.
        outcomes: The per-example results that it yielded.
        ended: The row that says why it failed, from `failure_row`; None: it did not fail.
    """
    if ended is None:
        return [*rows], [*outcomes]
    curve = [row for row in rows if row.step is not None and ended.status in TELLING]
    is_late = ended.status is Status.timeout
    counted = [row for row in rows if is_late and row.step is None and row.metric in COUNTED]
    return [*curve, *counted, ended], []
