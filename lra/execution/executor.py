"""Execute the cells of a sweep: skip what is complete, run the rest, store every ending."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from lra.execution.group import CellGroup
from lra.execution.preparation import prepare
from lra.sweep.cell_list import Sweep
from lra.sweep.estimate import announcement, forecasts
from lra.sweep.live import LiveSweep
from lra.sweep.places import kind_of, places_for
from lra.sweep.planned import Planned, cleared, enter, not_done
from lra.sweep.trainings import missing
from lra.terminal.board import ProgressBoard
from lra.terminal.volume import Volume
from runners.records import Status
from runners.store import Store


def execute(sweep: Sweep, volume: Volume = Volume.normal) -> LiveSweep | None:
    """Run what is not complete. Each cell ends as rows in the store, whatever happens to it.

    Returns:
        What the dashboard got; None: nothing had to be run.
    """
    store = sweep.store
    store.check_writable()
    enter(sweep.name, sweep.planned, store)
    waiting = not_done(sweep.planned, store)
    waiting = [*_trained_again(waiting, sweep, store), *waiting]
    strange = store.strangers(remove=True)
    complete = cleared(sweep.planned, waiting, store)
    board = ProgressBoard([planned.cell for planned in waiting], sweep.titles, volume=volume)
    for word in strange:
        board.say(word)
    if complete:
        board.say(
            f"{complete} of {len(sweep.planned)} cells are complete already and are not repeated"
        )
    if not waiting:
        return None
    expected = announcement(forecasts(waiting, store, sweep.name))
    board.say(f"sweep {sweep.name}: {expected}; results in {sweep.root}")
    live = LiveSweep(sweep, waiting)
    with board, closing(live):
        prepare(waiting, sweep.planned, board)
        if word := live.check():
            board.say(word)
        groups: dict[tuple[object, ...], list[Planned]] = {}
        for planned in waiting:
            groups.setdefault(kind_of(planned), []).append(planned)
        for group in groups.values():
            CellGroup(sweep, store, board, live, group).run(places_for(group))
            if sweep.stopped_by is not None or sweep.refused is not None:
                break
    board.summary(str(sweep.root))
    return live


def _trained_again(waiting: Sequence[Planned], sweep: Sweep, store: Store) -> list[Planned]:
    """Return the complete trainings whose weights somebody needs, and which are gone."""
    left = {p.cell.key for p in waiting}
    ended = {p.cell.key: p for p in sweep.planned if p.cell.key not in left}
    needed = dict.fromkeys(cell.key for p in waiting for cell in p.trainings.values())
    return [
        replace(ended[key], again=True)
        for key in needed
        if key in ended
        and store.statuses(ended[key].cell) == {Status.ok}
        and missing(ended[key].cell, store)
    ]


def exit_code(sweep: Sweep) -> int:
    """Return 0 when every cell has its rows; `lra.cli` lists what else there is."""
    if sweep.refused is not None:
        return 2
    if sweep.stopped_by is not None:
        return 128 + sweep.stopped_by
    failures = {status for status in sweep.endings.values() if status is not Status.ok}
    alone = len(sweep.planned) == 1
    return 1 if sweep.stopped or Status.crashed in failures or (alone and failures) else 0
