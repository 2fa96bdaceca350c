"""Planned cells: how one ends without being run, and which rows of a failed one are stored."""

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
from lra.tasks.data.stored_task import MISSING
from lra.terminal.progress import PARTS

TOO_MUCH = frozenset({Status.out_of_memory, Status.timeout, Status.skipped})
"""Endings that a longer sequence would share."""

NO_DATA = {"missing": "data"}
"""Labels of the row that stands for a cell whose data could not be had, before it or during it."""

NOT_WHOLE = PARTS | {DISTURBED, *NO_DATA}
"""Labels of rows that say nothing of longer sequences; the processors' clock still does."""

TELLING = frozenset({Status.diverged, Status.out_of_memory, Status.timeout})
"""Endings of a sound run, whose curve up to there is true."""


def is_done(planned: PlannedCell, store: Store | RowsIndex) -> bool:
    """Tell whether nothing remains to be done; a cell that lacked its data is tried again."""
    return store.complete(planned.cell, planned.run.control.retry, NO_DATA)


def not_done(planned: Sequence[PlannedCell], store: Store) -> list[PlannedCell]:
    """Return the cells of which something remains to be done, as the store's index says."""
    with RowsIndex(store.root) as index:
        return [item for item in planned if not is_done(item, index)]


def still_disturbed(planned: Sequence[PlannedCell], index: RowsIndex) -> list[PlannedCell]:
    """Return the cells that the same command would measure again for what the machine did."""
    again = [item for item in planned if DISTURBED in item.run.control.retry]
    return [
        item
        for item in again
        if (stored := index.summary(item.cell.key, item.cell.fingerprint)) is not None
        and stored.disturbed
    ]


def clear_leftovers(
    planned: Sequence[PlannedCell], waiting: Sequence[PlannedCell], store: Store
) -> int:
    """Remove what killed processes left on complete cells; return how many cells are complete."""
    complete = {item.cell.key for item in planned} - {item.cell.key for item in waiting}
    store.clear_claims(complete)
    return len(complete)


def data_of(planned: PlannedCell) -> tuple[str, ...]:
    """Return what tells the data of a cell from those of others."""
    # Paths are no options here: the content distinguishes them.
    run = planned.run
    return run.task_name, str(run.task_options), run.task.spec.data_hash


def enter(sweep: str, planned: Sequence[PlannedCell], store: Store) -> None:
    """Note which cells belong to a sweep, and which no longer do: see `superseded_keys`."""
    store.record_cells(sweep, {item.cell.key: title(item.cell) for item in planned})
    for key in superseded_keys(sweep, planned, store):
        store.take_from_sweep(sweep, key)


def superseded_keys(sweep: str, planned: Sequence[PlannedCell], store: Store) -> list[str]:
    """Return the keys of a sweep's cells that lacked their data when these here had other keys.

    A file decides a part of the key, which is another one while the file is missing.
    """
    now = {item.cell.key for item in planned}
    names = {_training_columns(item.cell.columns) for item in planned}
    keys = []
    for key in set(store.cells_of(sweep)) - now:
        try:  # most cells lacked nothing, which their bytes tell in a tenth of the time
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
    return tuple(columns[column] for column in ("runner", "mode", "model", "task", "seed"))


def missing_training(planned: PlannedCell, store: Store) -> Cell | None:
    """Return the training that must be finished first, by this sweep or another, or None."""
    for cell in planned.trainings.values():
        if not store.complete(cell):
            return cell
    return None


def known_ending(
    planned: PlannedCell, cells: Sequence[Cell], store: Store
) -> tuple[Status, str, Mapping[str, str]] | None:
    """Return how a cell ends without being tried, with labels, where that is known.

    Args:
        planned: the cell.
        cells: of which shorter ones on its line over lengths may rule it out.
        store: the results.
    """
    if planned.no_data is not None:
        return Status.skipped, planned.no_data, NO_DATA
    for name, source in planned.trainings.items():
        reason = missing_weights(source, store)
        if reason is None:
            continue
        refused = [r for r in store.rows_of(source) if r["status"] == Status.unsupported]
        if name == OWN and refused:  # what cannot be trained cannot be built here either
            return Status.unsupported, str(refused[0]["reason"]), {}
        labels = {} if store.complete(source, undone=NO_DATA) else NO_DATA
        return Status.skipped, f"{title(source)}: {reason}", labels
    reason = _beyond(planned, cells, store)
    return None if reason is None else (Status.skipped, reason, {})


def _beyond(planned: PlannedCell, cells: Sequence[Cell], store: Store) -> str | None:
    """Return why a length needs no trial: a shorter one on the same curve was too much already.

    Or the curve's own growth says so. What was too much for a machine that was disturbed may not
    be too much for it.
    """
    cell, kind = planned.cell, planned.run.runner
    if not kind.by_length:
        return None
    line = curve(cell)
    took: dict[int, float] = {}
    for shorter in cells:
        length = shorter.columns["length"]
        if length < cell.columns["length"] and curve(shorter) == line and store.complete(shorter):
            for row in store.rows_of(shorter):
                if not NOT_WHOLE.isdisjoint(row["labels"]):
                    continue
                if row["metric"] == f"processor_{kind.outcome}" and row["value"]:
                    took.setdefault(length, row["value"])
                if row["metric"] != kind.outcome:
                    continue
                if Status(row["status"]) in TOO_MUCH:
                    return (
                        f"not tried, because {length:,} tokens were too many "
                        f"({row['status']}: {row['reason']})"
                    )
                if row["value"]:
                    took[length] = row["value"]
    mode, length = cell.columns["mode"], cell.columns["length"]
    return kind.too_long(mode, length, took, planned.run.hardware) or None


def compared_with(planned: PlannedCell) -> object:
    """Return what cells have in common that are compared: all but their models.

    A cell that is compared with no other has a value of its own.
    """
    run, columns = planned.run, planned.cell.columns
    if not run.runner.compares:
        return planned.cell.key
    part = (run.task_name, run.task_options, run.backbone, run.runner, run.hardware, run.control)
    return repr((columns["mode"], columns["length"], columns["seed"], part))


def reference_shares(cells: Sequence[PlannedCell]) -> dict[str, float]:
    """Return which part of each reference falls to one of these cells, which are compared.

    They time it once for all; not at all where it is the model of one of them.
    """
    shares = {}
    for name in cells[0].run.runner.beside:
        beside = sum(planned.run.model != name for planned in cells)
        among = any(is_reference(planned.run, name) for planned in cells)
        shares[name] = 0.0 if among or not beside else 1 / beside
    return shares


def curves(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """Return the cells that stand on lines over lengths, by their lines."""
    by_curve: dict[str, list[Cell]] = {}
    for cell in cells:
        if runner_of(cell).by_length:
            by_curve.setdefault(curve(cell), []).append(cell)
    return by_curve


def curve(cell: Cell) -> str:
    """Return what the cells of one line over lengths have in common."""
    return canonical({**cell.identity, "length": None})


def failure_row(
    cell: Cell, status: Status, reason: str, labels: Mapping[str, str] = MappingProxyType({})
) -> Measurement:
    """Return the one row that stands for a cell without a result."""
    kind = runner_of(cell)
    split = {"split": "test"} if kind.outcome == "accuracy" else {}
    return Measurement(
        metric=kind.outcome, status=status, reason=reason, labels={**split, **labels}
    )


def remains(
    rows: Sequence[Measurement], outcomes: Sequence[Outcomes], ended: Measurement | None
) -> tuple[list[Measurement], list[Outcomes]]:
    """Return what is stored of a cell: all it yielded, or of a failed one its failure.

    A run that diverged, or met a limit of time or memory, keeps its curve too, which tells when and
    how, and one that met a limit of time what was counted. Final values and per-example results go:
    a failed cell has no score.

    Args:
        rows: What it yielded.
        outcomes: What it yielded.
        ended: The row by which it failed, from `failure_row`; None where it did not.
    """
    if ended is None:
        return [*rows], [*outcomes]
    curve = [row for row in rows if row.step is not None and ended.status in TELLING]
    late = ended.status is Status.timeout
    counted = [row for row in rows if late and row.step is None and row.metric in COUNTED]
    return [*curve, *counted, ended], []
