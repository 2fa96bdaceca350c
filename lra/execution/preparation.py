"""The data of a sweep's cells, prepared before any of them runs."""

from collections.abc import Sequence

from lra.sweep.batch_check import check_batch
from lra.sweep.planned import Planned
from lra.terminal.board import ProgressBoard
from tasks.errors import BadData, NotPrepared


def data_of(planned: Planned) -> tuple[str, ...]:
    """Return what tells the data of a cell from those of others."""
    # Paths are no options here: the content distinguishes them.
    run = planned.run
    return run.task_name, str(run.task_options), run.task.spec.data_hash


def prepare(waiting: Sequence[Planned], every: Sequence[Planned], board: ProgressBoard) -> None:
    """Make the data of every task ready, once, before any child needs them.

    Cells whose data cannot be had are noted, and others go on; where a sweep has no others, the
    reason is raised.
    """
    from tasks.task import remarks_of

    faults: dict[tuple[str, ...], NotPrepared | BadData | None] = {}
    for planned in waiting:
        if not planned.run.runner.data:
            continue
        task = planned.run.task
        identity = data_of(planned)
        if identity not in faults:
            faults[identity] = None
            try:
                with board.preparing(task.spec.name):
                    task.prepare()
                for remark in remarks_of(task).values():
                    board.say(f"{task.spec.name}: warning: {remark}")
            except (NotPrepared, BadData) as error:
                faults[identity] = error
        if (fault := faults[identity]) is not None:
            planned.no_data = str(fault)
    fault = next((fault for fault in faults.values() if fault is not None), None)
    if fault is not None and all(planned.no_data for planned in every):
        raise fault
    for planned in waiting:
        if planned.run.runner.trains and planned.no_data is None:
            check_batch(planned.run, loaded=True)
