"""Cells of one kind while they run: claimed, done in processes of their own, stored."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from lra.composition.class_path import named_plugins
from lra.composition.run import Run
from lra.composition.runner_class import runner_of
from lra.sweep.cell_list import Sweep
from lra.sweep.cells import environment, marks, run_cell
from lra.sweep.live import LiveSweep
from lra.sweep.places import processes
from lra.sweep.planned import (
    NO_DATA,
    Planned,
    curve,
    curves,
    done,
    ending,
    failed,
    lacking,
    remains,
)
from lra.sweep.stored_weights import stored_training
from lra.sweep.trainings import missing
from lra.terminal.board import LEFT, STOPPED, ProgressBoard
from lra.terminal.progress import decisive, failure, headline
from runners.isolation import isolate
from runners.isolation.places import Places, Taken, facts, words
from runners.isolation.progress import Event, Progress
from runners.measurement.hardware import Device, HardwareProfile, available_bytes
from runners.records import Cell, Measurement, Outcomes, Status
from runners.storage.atomic import storage_fault
from runners.storage.claims import Claim
from runners.storage.index import RowsIndex
from runners.store import Store
from runners.training.checkpoint import Checkpoints


class CellGroup:
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
        self.curves = curves(group)
        self.rows: dict[str, list[Measurement]] = {}
        self.outcomes: dict[str, list[Outcomes]] = {}
        self.claims: dict[str, Claim] = {}
        self.devices: dict[str, Taken] = {}
        self.begun: dict[str, float] = {}
        """When a cell was started, by the monotonic clock; not one that went on in the middle."""

    def run(self, places: Places) -> None:
        """Run the cells on these places, those of several processes before those of one."""
        try:
            self.sweep.stopped_by = isolate.pool(
                {width: self._jobs(lane, len(places.all)) for width, lane in self._lanes().items()},
                places=places,
                on_start=self._on_start,
                on_message=self._on_message,
                on_end=self._on_end,
                stop=lambda: "a storage that takes nothing" if self.sweep.refused else None,
            )
        finally:
            for claim in self.claims.values():
                claim.release()

    def _lanes(self) -> Mapping[int, Iterator[Planned]]:
        """Return cells whose claims are held, each when it has its places, by their processes."""
        lanes: dict[int, list[Planned]] = {}
        for planned in self.group:
            lanes.setdefault(processes(planned.run), []).append(planned)
        return {width: self._taken(lane) for width, lane in lanes.items()}

    def _jobs(self, lane: Iterator[Planned], places: int) -> Iterator[isolate.Job]:
        for planned in lane:
            cell = planned.cell
            self.by_key[cell.key] = planned
            end = self._known_end(planned)
            if end is not None:
                labels = NO_DATA if planned.no_data is not None else {}
                self._conclude(cell, [], [], failed(cell, *end, labels))
                continue
            self.rows[cell.key], self.outcomes[cell.key] = [], []
            yield _job(planned, self.store, places)

    def _on_start(self, job: isolate.Job, taken: Taken) -> None:
        cell = self.by_key[job.name].cell
        self.devices[cell.key] = taken
        self.board.start(cell, _details(job), words(taken))
        if not Checkpoints(self.store.checkpoint_folder(cell)).present():
            self.begun[cell.key] = time.monotonic()

    def _taken(self, lane: Sequence[Planned]) -> Iterator[Planned]:
        """Yield cells whose claims are held, each when a place is free."""
        for planned in lane:
            cell = planned.cell
            try:
                claim = self._claim(planned)
            except OSError as error:
                refuse(self.sweep, error)
                return
            if isinstance(claim, str):
                self.board.finish(cell, claim, LEFT)
                self.live.left(cell, claim)
                continue
            self.claims[cell.key] = claim
            self.store.see_anew(cell.key)
            gone = planned.again and missing(cell, self.store) is not None
            if done(planned, self.store) and not gone:  # by another sweep just now
                self.claims.pop(cell.key).release()
                self.board.finish(cell, "another sweep has just done it")
                self.live.left(cell, "another sweep has done it")
                continue
            yield planned

    def _known_end(self, planned: Planned) -> tuple[Status, str] | None:
        """Return how a cell ends without being tried, where that is known."""
        on_curve = self.curves.get(curve(planned.cell), ()) if self.curves else ()
        return ending(planned, on_curve, self.store)

    def _claim(self, planned: Planned) -> Claim | str:
        """Claim a cell, or return why it is left."""
        key = planned.cell.key
        claim = self.store.claim(key, title=self.sweep.titles[key])
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
        rows, seen = self.rows.pop(job.name), self.outcomes.pop(job.name)
        if not ending.interrupted:
            good = ending.status is Status.ok
            ended = None if good else failed(cell, ending.status, ending.reason)
            self._conclude(cell, rows, seen, ended)
            return
        self.claims.pop(job.name).release()
        if ending.storage:
            sweep.refused = sweep.refused or ending.reason
        elif sweep.refused is None:
            sweep.stopped[job.name] = ending.reason
        self.live.left(cell, ending.reason)
        self._ended(cell, f"{STOPPED}: {ending.reason}", STOPPED)

    def _conclude(
        self,
        cell: Cell,
        measurements: Sequence[Measurement],
        seen: Sequence[Outcomes],
        ended: Measurement | None,
    ) -> None:
        rows, results = remains(measurements, seen, ended)
        try:
            try:
                stays = self._write(cell, rows, results)
            except (TypeError, ValueError) as error:  # a fault of what yielded them
                rows = [failed(cell, Status.crashed, f"its results cannot be stored: {error}")]
                stays = self._write(cell, rows, [])
        except OSError as error:
            outcome, status = f"{STOPPED}: {refuse(self.sweep, error)}", STOPPED
            self.live.left(cell, outcome)
        else:
            row = failure(rows)
            status = self.sweep.endings[cell.key] = Status.ok if row is None else row.status
            outcome = headline(runner_of(cell), rows)
            outcome += "; the numbers from before stay" if stays else ""
            self.live.ended(cell, status, "" if row is None else row.reason)
        self.claims.pop(cell.key).release()
        self._ended(cell, outcome, status)

    def _worse(self, cell: Cell, rows: list[Measurement]) -> bool:
        """Tell whether an attempt failed at a cell that has numbers: it was disturbed before.

        The weights of a training that is done again are gone: its failure is what there is to say.
        """
        if failure(rows) is None or self.by_key[cell.key].again:
            return False
        before = RowsIndex(self.store.root).of(cell.key, cell.fingerprint)
        if before is None:
            return False
        return decisive(before.failures, some_good=Status.ok in before.statuses) is None

    def _ended(self, cell: Cell, outcome: str, status: str) -> None:
        """Say how a cell ended, once its claim is given back."""
        self.board.finish(cell, outcome, status)

    def _write(self, cell: Cell, rows: list[Measurement], outcomes: list[Outcomes]) -> bool:
        """Store a cell, or return True where what is stored is better."""
        marked = _marked(self.by_key[cell.key].run, rows)
        begun = self.begun.pop(cell.key, None)
        took = {} if begun is None else {"took_s": round(time.monotonic() - begun, 3)}
        here = facts(self.devices.pop(cell.key, ()))
        if self._worse(cell, rows):
            return True
        self.store.write(cell, marked, outcomes, {**environment(), **here, **took})
        return False


def _marked(run: Run, rows: list[Measurement]) -> list[Measurement]:
    """Return the rows with the labels that every row of the run carries."""
    labels = marks(run)
    return [replace(row, labels={**labels, **row.labels}) for row in rows] if labels else rows


def refuse(sweep: Sweep, error: OSError) -> str:
    """Note that the storage refused, which ends the sweep, and return how.

    Every other error is raised again.
    """
    fault = storage_fault(error)
    if fault is None:
        raise error
    sweep.refused = sweep.refused or fault
    return fault


def _job(planned: Planned, store: Store, places: int) -> isolate.Job:
    cell, hardware, stored = planned.cell, planned.run.hardware, stored_training(planned.run)
    return isolate.Job(
        name=cell.key,
        function=run_cell,
        argument={
            "config": cell.config,
            "plugins": named_plugins(),
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
        memory_bytes=_memory(hardware, places),
        threads=int(cell.columns["threads"]),
        processes=processes(planned.run),
        log=store.cell_folder(cell.key) / "log.txt",
    )


def _details(job: isolate.Job) -> list[str]:
    """Return the details of a cell that `--verbose` prints."""
    limit = "" if job.memory_bytes is None else f", {job.memory_bytes / 2**30:.1f} GiB at most"
    lines = [f"key {job.name}, {job.threads} threads{limit}", f"log {job.log}"]
    if job.argument["checkpoints"]:
        lines.append(f"checkpoints {job.argument['checkpoints']}")
    return lines


def _memory(hardware: HardwareProfile, places: int) -> int | None:
    """Return the bytes that a process may use on a CPU; a GPU's limit is set in the cell.

    Without a limit of the profile, a share of what is available: a cell that wants more fails by
    itself, before the system looks for a victim.
    """
    if hardware.device is not Device.cpu:
        return None
    if hardware.memory_limit_bytes is not None:
        return hardware.memory_limit_bytes
    available = available_bytes()
    return None if available is None else int(0.9 * available / places)
