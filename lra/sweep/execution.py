"""Execute the cells of a sweep: skip what is complete, run the rest, store every ending."""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from lra.compose import ConfigError, Control, Logger, Run, typed
from lra.composition.hydra_entry import Composed
from lra.runner_class import runner_of
from lra.sweep.batch_check import check_batch
from lra.sweep.board import LEFT, STOPPED, ProgressBoard
from lra.sweep.cells import Known, environment, marks, plan, run_cell
from lra.sweep.estimate import announcement, forecasts
from lra.sweep.live import LiveSweep, check_logger
from lra.sweep.planned import (
    NO_DATA,
    Planned,
    done,
    ending,
    failed,
    lacking,
    remains,
    superseded,
)
from lra.sweep.preparation import prepare
from lra.sweep.progress import counted, failure, headline
from lra.sweep.stored_weights import stored_training
from lra.sweep.titles import titles
from lra.sweep.trainings import missing, trainings, words_of
from lra.volume import Volume
from runners.isolation import isolate
from runners.isolation.progress import Event, Progress
from runners.measurement.hardware import Device, HardwareProfile, available_bytes
from runners.records import Cell, Measurement, Outcomes, Status
from runners.storage.atomic import storage_fault
from runners.storage.claims import Claim
from runners.store import Store
from runners.training.checkpoint import Checkpoints


@dataclass(slots=True)
class Sweep:
    """All cells that one command line asks for, and what became of them."""

    name: str
    root: Path
    control: Control
    logger: Logger
    planned: list[Planned]
    titles: dict[str, str]
    """What cells are called, by key: also those that other shards run."""
    endings: dict[str, Status] = field(default_factory=dict)
    stopped_by: signal.Signals | None = None
    """The signal that ended it."""
    refused: str | None = None
    """What the storage could not take, and the way out: it ended the sweep."""
    stopped: dict[str, str] = field(default_factory=dict)
    """Cells that somebody else stopped, by key, and how: they have no rows."""
    live: LiveSweep | None = None
    """What its dashboard was told; None: nothing had to be run."""

    @property
    def store(self) -> Store:
        """The result store."""
        return Store(self.root)


def build(entries: Sequence[Composed], *, elsewhere: bool = False) -> Sweep:
    """List the distinct cells of this shard, cheap kinds first; `elsewhere`: on another machine."""
    _check_shared(entries)
    known = Known(place=entries[0].place, elsewhere=elsewhere)
    first = typed(entries[0].config, known.tasks)
    check_logger(first.logger)
    distinct: dict[str, Planned] = {}
    sources: dict[str, Planned] = {}
    for config, words, _ in counted(entries, "planning run"):
        run = typed(config, known.tasks)
        begun = {}
        for name, source in trainings(run, known.tasks).items():
            (cell,) = plan(source, words_of(name, source, words, run), known)
            begun[name] = cell
            sources.setdefault(cell.key, Planned(cell, source))
        if run.runner.trains:
            check_batch(run, loaded=False)
        for cell in plan(run, words, known):
            distinct.setdefault(cell.key, Planned(cell, run, begun))
    ordered = sorted(distinct.values(), key=_turn)
    part, parts = first.control.part()
    own = ordered[part - 1 :: parts]
    # A training goes with every shard that needs it; a claim keeps two from doing it at once.
    needed = dict.fromkeys(cell.key for planned in own for cell in planned.trainings.values())
    listed = {planned.cell.key for planned in own}
    return Sweep(
        name=first.sweep,
        root=Path(first.config["results"]),
        control=first.control,
        logger=first.logger,
        planned=[*(sources[key] for key in needed if key not in listed), *own],
        titles=titles([*{**sources, **distinct}.values()]),
    )


def _turn(planned: Planned) -> tuple[int, str]:
    """Return when a sweep runs a cell: what is cheap first, and trainings before what is timed."""
    kind = planned.run.runner
    turns = (not kind.models, kind.trains, kind.timed)
    turn = next((at for at, now in enumerate(turns) if now), len(turns))
    return turn, str(planned.cell.columns["runner"])


def _check_shared(entries: Sequence[Composed]) -> None:
    """Refuse a sweep over what it has only one of. Raises ConfigError."""
    for key in ("results", "sweep", "report", "logger"):
        values = [entry.config[key] for entry in entries]
        if other := [value for value in values if value != values[0]]:
            raise ConfigError(
                f"{key}: got {values[0]!r} and {other[0]!r}; a sweep has one: give a command for "
                "each"
            )


def execute(sweep: Sweep, volume: Volume = Volume.normal) -> None:
    """Run what is not complete. Each cell ends as rows in the store, whatever happens to it."""
    store, retry = sweep.store, _retry(sweep.control)
    store.check_writable()
    waiting: list[Planned] = []
    for planned in sweep.planned:
        store.record_in_sweep(sweep.name, planned.cell.key)
        if not done(planned.cell, store, retry):
            waiting.append(planned)
    for key in superseded(sweep.name, sweep.planned, store):
        store.take_from_sweep(sweep.name, key)
    waiting = [*_trained_again(waiting, sweep, store), *waiting]
    complete = len(sweep.planned) - len(waiting)
    board = ProgressBoard([planned.cell for planned in waiting], sweep.titles, volume=volume)
    if complete:
        board.say(
            f"{complete} of {len(sweep.planned)} cells are complete already and are not repeated"
        )
    if not waiting:
        return
    expected = announcement(forecasts(waiting, store, sweep.name))
    board.say(f"sweep {sweep.name}: {expected}; results in {sweep.root}")
    live = sweep.live = LiveSweep(sweep, waiting)
    with board, closing(live):
        prepare(waiting, sweep.planned, board)
        if word := live.check():
            board.say(word)
        for name in {str(planned.cell.columns["runner"]): None for planned in waiting}:
            group = [p for p in waiting if p.cell.columns["runner"] == name]
            # Timing cells run alone on the machine.
            first = group[0].run
            side_by_side = 1 if first.runner.timed else first.hardware.side_by_side()
            _Group(sweep, store, board, live, group).run(side_by_side)
            if sweep.stopped_by is not None or sweep.refused is not None:
                break
    board.summary(str(sweep.root))


def _trained_again(waiting: Sequence[Planned], sweep: Sweep, store: Store) -> list[Planned]:
    """Return the complete trainings whose weights somebody needs, and which are gone."""
    ended = {p.cell.key: p for p in sweep.planned if p not in waiting}
    needed = dict.fromkeys(cell.key for p in waiting for cell in p.trainings.values())
    return [
        replace(ended[key], again=True)
        for key in needed
        if key in ended
        and store.statuses(ended[key].cell) == {Status.ok}
        and missing(ended[key].cell, store)
    ]


def _marked(run: Run, rows: list[Measurement]) -> list[Measurement]:
    """Return the rows with the labels that every row of the run carries."""
    given = marks(run)
    return [replace(row, labels={**given, **row.labels}) for row in rows] if given else rows


def _retry(control: Control) -> set[Status]:
    return {Status[name] for name in control.retry}


class _Group:
    """Cells of one kind while they run: their claims, and what their processes have sent."""

    def __init__(
        self,
        sweep: Sweep,
        store: Store,
        board: ProgressBoard,
        live: LiveSweep,
        group: Sequence[Planned],
    ) -> None:
        self.sweep, self.store, self.board, self.group = sweep, store, board, group
        self.live = live
        self.by_key = {planned.cell.key: planned for planned in group}
        self.rows: dict[str, list[Measurement]] = {}
        self.outcomes: dict[str, list[Outcomes]] = {}
        self.claims: dict[str, Claim] = {}
        self.begun: dict[str, float] = {}
        """When a cell was started, by the monotonic clock; not one that went on in the middle."""

    def run(self, side_by_side: int) -> None:
        """Run the cells, at most `side_by_side` at once."""
        try:
            self.sweep.stopped_by = isolate.pool(
                self._jobs(side_by_side),
                side_by_side=side_by_side,
                on_message=self._on_message,
                on_end=self._on_end,
                stop=lambda: "a storage that takes nothing" if self.sweep.refused else None,
            )
        finally:
            for claim in self.claims.values():
                claim.release()

    def _jobs(self, side_by_side: int) -> Iterator[isolate.Job]:
        retry = _retry(self.sweep.control)
        for planned in self.group:
            cell = planned.cell
            try:
                claim = self._claim(planned)
            except OSError as error:
                _refuse(self.sweep, error)
                return
            if isinstance(claim, str):
                self.board.finish(cell, claim, LEFT)
                self.live.left(cell, claim)
                continue
            self.claims[cell.key] = claim
            gone = planned.again and missing(cell, self.store) is not None
            if done(cell, self.store, retry) and not gone:  # by another sweep just now
                self.claims.pop(cell.key).release()
                self.board.finish(cell, "another sweep has just done it")
                self.live.left(cell, "another sweep has done it")
                continue
            known = ending(planned, self.group, self.store)
            if known is not None:
                labels = NO_DATA if planned.no_data is not None else {}
                self._conclude(cell, [], [], failed(cell, *known, labels))
                continue
            self.rows[cell.key], self.outcomes[cell.key] = [], []
            job = _job(planned, self.store, side_by_side)
            self.board.start(cell, _details(job))
            if not Checkpoints(self.store.checkpoint_folder(cell)).present():
                self.begun[cell.key] = time.monotonic()
            yield job

    def _claim(self, planned: Planned) -> Claim | str:
        """Claim a cell, or return why it is left."""
        claim = self.store.claim(planned.cell.key)
        if claim is None:
            return "left to another sweep that is working on it"
        source = lacking(planned, self.store)
        if source is not None:
            claim.release()
            return f"left: {self.sweep.titles[source.key]} is not finished; run again"
        return claim

    def _on_message(self, job: isolate.Job, message: object) -> None:
        self.live.message(self.by_key[job.name].cell, message)
        if isinstance(message, Progress | Event):
            self.board.advance(self.by_key[job.name].cell, message)
        elif isinstance(message, Outcomes):
            self.outcomes[job.name].append(message)
        elif isinstance(message, Measurement):
            self.rows[job.name].append(message)

    def _on_end(self, job: isolate.Job, ending: isolate.Ending) -> None:
        cell, sweep = self.by_key[job.name].cell, self.sweep
        found, seen = self.rows.pop(job.name), self.outcomes.pop(job.name)
        if not ending.interrupted:
            good = ending.status is Status.ok
            ended = None if good else failed(cell, ending.status, ending.reason)
            self._conclude(cell, found, seen, ended)
            return
        self.claims.pop(job.name).release()
        if ending.storage:
            sweep.refused = sweep.refused or ending.reason
        elif sweep.refused is None:
            sweep.stopped[job.name] = ending.reason
        self.board.finish(cell, f"{STOPPED}: {ending.reason}", STOPPED)
        self.live.left(cell, ending.reason)

    def _conclude(
        self,
        cell: Cell,
        found: Sequence[Measurement],
        seen: Sequence[Outcomes],
        ended: Measurement | None,
    ) -> None:
        rows, results = remains(found, seen, ended)
        try:
            try:
                self._write(cell, rows, results)
            except (TypeError, ValueError) as error:  # a fault of what yielded them
                rows = [failed(cell, Status.crashed, f"its results cannot be stored: {error}")]
                self._write(cell, rows, [])
        except OSError as error:
            outcome, status = f"{STOPPED}: {_refuse(self.sweep, error)}", STOPPED
            self.live.left(cell, outcome)
        else:
            row = failure(rows)
            status = self.sweep.endings[cell.key] = Status.ok if row is None else row.status
            outcome = headline(runner_of(cell), rows)
            self.live.ended(cell, status, "" if row is None else row.reason)
        self.claims.pop(cell.key).release()
        self.board.finish(cell, outcome, status)

    def _write(self, cell: Cell, rows: list[Measurement], outcomes: list[Outcomes]) -> None:
        marked = _marked(self.by_key[cell.key].run, rows)
        begun = self.begun.pop(cell.key, None)
        took = {} if begun is None else {"took_s": round(time.monotonic() - begun, 3)}
        self.store.write(cell, marked, outcomes, {**environment(), **took})


def _refuse(sweep: Sweep, error: OSError) -> str:
    """Note that the storage refused, which ends the sweep, and return how.

    Every other error is raised again.
    """
    fault = storage_fault(error)
    if fault is None:
        raise error
    sweep.refused = sweep.refused or fault
    return fault


def _job(planned: Planned, store: Store, side_by_side: int) -> isolate.Job:
    cell, hardware, stored = planned.cell, planned.run.hardware, stored_training(planned.run)
    return isolate.Job(
        name=cell.key,
        function=run_cell,
        argument={
            "config": cell.config,
            "runner": cell.columns["runner"],
            "mode": cell.columns["mode"],
            "length": cell.columns["length"],
            "trainings": {
                name: str(store.checkpoint_folder(source))
                for name, source in planned.trainings.items()
            },
            "stored": None if stored is None else asdict(stored),
            "checkpoints": str(store.checkpoint_folder(cell))
            if planned.run.runner.trains
            else None,
        },
        seconds=planned.run.control.timeout_s,
        memory_bytes=_memory(hardware, side_by_side),
        threads=int(cell.columns["threads"]),
        log=store.cell_folder(cell.key) / "log.txt",
    )


def _details(job: isolate.Job) -> list[str]:
    """Return the details of a cell that `--verbose` prints."""
    limit = "" if job.memory_bytes is None else f", {job.memory_bytes / 2**30:.1f} GiB at most"
    found = [f"key {job.name}, {job.threads} threads{limit}", f"log {job.log}"]
    if job.argument["checkpoints"]:
        found.append(f"checkpoints {job.argument['checkpoints']}")
    return found


def _memory(hardware: HardwareProfile, side_by_side: int) -> int | None:
    """Return the bytes that a cell may use on a CPU; a GPU's limit is set in the cell.

    Without a limit of the profile, a share of what is available: a cell that wants more fails by
    itself, before the system looks for a victim.
    """
    if hardware.device is not Device.cpu:
        return None
    if hardware.memory_limit_bytes is not None:
        return hardware.memory_limit_bytes
    available = available_bytes()
    return None if available is None else int(0.9 * available / side_by_side)


def exit_code(sweep: Sweep) -> int:
    """Return 0 when every cell has its rows; `lra.cli` lists what else there is."""
    if sweep.refused is not None:
        return 2
    if sweep.stopped_by is not None:
        return 128 + sweep.stopped_by
    failures = {status for status in sweep.endings.values() if status is not Status.ok}
    alone = len(sweep.planned) == 1
    return 1 if sweep.stopped or Status.crashed in failures or (alone and failures) else 0
