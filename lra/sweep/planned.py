"""Planned cells: how one ends without being run, and which rows of a failed one are stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lra.compose import Run
from lra.runner_class import runner_of
from lra.sweep.progress import PARTS
from lra.sweep.titles import title
from lra.sweep.trainings import missing
from runners.records import Cell, Measurement, Outcomes, Status, canonical
from runners.runner import OWN
from runners.store import Store

TOO_MUCH = frozenset({Status.out_of_memory, Status.timeout, Status.skipped})
"""Endings that a longer sequence would share."""

TELLING = frozenset({Status.diverged, Status.out_of_memory, Status.timeout})
"""Endings of a sound run, whose curve up to there is true."""


@dataclass(slots=True)
class Planned:
    """A cell and the run that it belongs to."""

    cell: Cell
    run: Run
    trainings: Mapping[str, Cell] = field(default_factory=dict)
    """Cells whose weights it starts from."""
    again: bool = False
    """Complete, but done once more for what is gone of it: the weights of a training."""


def lacking(planned: Planned, store: Store) -> Cell | None:
    """Return the training that must be finished first, by this sweep or another, or None."""
    for cell in planned.trainings.values():
        if not store.complete(cell):
            return cell
    return None


def ending(planned: Planned, group: Sequence[Planned], store: Store) -> tuple[Status, str] | None:
    """Return how a cell ends without being tried, where that is known."""
    for name, source in planned.trainings.items():
        reason = missing(source, store)
        if reason is None:
            continue
        refused = [r for r in store.rows_of(source) if r["status"] == Status.unsupported]
        if name == OWN and refused:  # what cannot be trained cannot be built here either
            return Status.unsupported, str(refused[0]["reason"])
        return Status.skipped, f"{title(source)}: {reason}"
    reason = _beyond(planned.cell, group, store)
    return None if reason is None else (Status.skipped, reason)


def _beyond(cell: Cell, group: Sequence[Planned], store: Store) -> str | None:
    """Return why a length needs no trial: a shorter one on the same curve was too much already."""
    if not runner_of(cell).by_length:
        return None
    curve, outcome = _curve(cell), runner_of(cell).outcome
    for shorter in (planned.cell for planned in group):
        if (
            shorter.columns["length"] < cell.columns["length"]
            and _curve(shorter) == curve
            and store.complete(shorter)
        ):
            for row in store.rows_of(shorter):
                whole = row["metric"] == outcome and not PARTS & row["labels"].keys()
                if whole and Status(row["status"]) in TOO_MUCH:
                    return (
                        f"not tried, because {shorter.columns['length']:,} tokens were too many "
                        f"({row['status']}: {row['reason']})"
                    )
    return None


def _curve(cell: Cell) -> str:
    """Return what the cells of one line over lengths have in common."""
    return canonical({**cell.identity, "length": None})


def failed(cell: Cell, status: Status, reason: str) -> Measurement:
    """Return the one row that stands for a cell without a result."""
    kind = runner_of(cell)
    return Measurement(
        metric=kind.outcome,
        status=status,
        reason=reason,
        labels={"split": "test"} if kind.outcome == "accuracy" else {},
    )


def remains(
    rows: Sequence[Measurement], outcomes: Sequence[Outcomes], ended: Measurement | None
) -> tuple[list[Measurement], list[Outcomes]]:
    """Return what is stored of a cell: all it yielded, or of a failed one its failure.

    A run that diverged, or met a limit of time or memory, keeps its curve too, which tells when and
    how. Final values and per-example results go: a failed cell has no score.

    Args:
        rows: What it yielded.
        outcomes: What it yielded.
        ended: The row by which it failed, from `failed`; None where it did not.
    """
    if ended is None:
        return [*rows], [*outcomes]
    curve = [row for row in rows if row.step is not None and ended.status in TELLING]
    return [*curve, ended], []
