"""What a cell will take: its passes counted, divided by the machine's rates, corrected by rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median
from types import MappingProxyType
from typing import Any

from lra.composition.compose import typed
from lra.composition.run import Run
from lra.models.mixer import Unsupported
from lra.runners.measurement.hardware import Device, HardwareProfile
from lra.runners.measurement.machine import MachineRates, machine_of
from lra.runners.measures.passes import padded_length
from lra.runners.records import Cell, text_of
from lra.runners.runner import OWN, Passes, Uncounted
from lra.sweep.costs import Costs, PassCost
from lra.sweep.past import MOST_SCALED, Past, guess
from lra.sweep.planned_cells import compared_with, reference_shares
from lra.sweep.sweep import PlannedCell
from lra.sweep.trial_builds import TrialBuilds
from lra.sweep.work import CellWork

START_S = 1.0
"""Seconds in which a cell starts, builds its model and stores its rows."""
PROCESS_BYTES = 350 * 2**20
"""Memory of a process that has imported everything, without its tensors."""
TELLING_S = 10.0
"""Stored cells of fewer counted seconds correct no forecast: their start took much of the time."""
MOST_COMPARED = 40
"""At most so many stored cells are counted, to compare counted with measured time."""
LONGEST_REASON = 300
ALONE: Mapping[str, float] = MappingProxyType({})
"""Shares of references in a cell that is compared with no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What one cell will take, as far as that is known before it runs."""

    seconds: float | None = None
    """None: not known."""
    reason: str = ""
    """Why `seconds` is not known, or a remark on it."""
    basis: str = "unknown"
    """stored: similar stored cells took this long; counted; corrected: counted, then multiplied by
    the `correction` of stored cells; scaled: from different stored cells; refused: the model cannot
    be built; unknown."""
    step_s: float | None = None
    steps: int | None = None
    """Optimiser steps of all stages, or timed passes of the model."""
    length: int | None = None
    """Tokens of the longest rows of a step that were counted, padding included."""
    parameters: int | None = None
    """The number of trained weights."""
    need_bytes: int | None = None
    """Of the model's tensors at the peak, parameters and optimiser included."""
    reference: str = ""
    """The reference that needs the most memory among those measured with the model."""
    reference_need_bytes: int | None = None
    """The `need_bytes` of this reference; None: there is none, or it is not known."""
    peak_bytes: int | None = None
    """Peak of the tensors that one pass makes, without those that exist before it."""
    room_bytes: float | None = None
    """The memory that a cell may use."""
    correction: float = 1.0
    """Measured / counted of the nearest stored cells."""

    @property
    def fits(self) -> bool | None:
        """Whether the memory suffices for the model; None where that is not known."""
        return _is_within(self.need_bytes, self.room_bytes)

    @property
    def reference_fits(self) -> bool | None:
        """Whether the memory suffices for the references; None: not known, or there are none."""
        return _is_within(self.reference_need_bytes, self.room_bytes)

    @property
    def whole_bytes(self) -> int | None:
        """The bytes that a cell needs so that its model and its references fit."""
        needs = [need for need in (self.need_bytes, self.reference_need_bytes) if need is not None]
        return max(needs, default=None)


class Forecaster:
    """Forecasts the time and memory of cells; passes that cells share are counted once.

    Args:
        past: stored cells with the time that they took.
        costs: counts passes; None: a new counter.
        trials: whether every model is built without weights, to find out which are refused.
        together: cells that one process will run, so that they may share the timing of references.
    """

    def __init__(
        self,
        past: Sequence[Past] = (),
        costs: Costs | None = None,
        *,
        trials: bool = True,
        together: Sequence[PlannedCell] = (),
    ) -> None:
        """Take the arguments of the class; compute which part of references each cell times."""
        self.past, self.costs = past, costs or Costs()
        self.trials = TrialBuilds() if trials else None
        self.machines: dict[str, tuple[HardwareProfile, MachineRates] | None] = {}
        self._forecasts: dict[str, Forecast] = {}
        self._ratios: list[tuple[Past, Forecast, float]] | None = None
        groups: dict[object, list[PlannedCell]] = {}
        for planned in together:
            groups.setdefault(compared_with(planned), []).append(planned)
        self._shares: dict[str, Mapping[str, float]] = {}
        for group in groups.values():
            self._shares |= dict.fromkeys((p.cell.key for p in group), reference_shares(group))

    def of(self, planned: PlannedCell) -> Forecast:
        """Return the forecast of a cell; cells that differ only in seed share it."""
        cell = planned.cell
        columns = {name: value for name, value in cell.columns.items() if name != "seed"}
        shares = self._shares.get(cell.key, ALONE)
        key = repr((columns, {**cell.described, "seed": None}, shares))
        if key not in self._forecasts:
            self._forecasts[key] = self._forecast(planned.run, cell, shares)
        return self._forecasts[key]

    def _forecast(self, run: Run, cell: Cell, shares: Mapping[str, float]) -> Forecast:
        """Return the forecast of a cell: from similar stored cells, or a corrected count."""
        stored_guess = guess(cell, self.past)
        try:
            if self.trials is not None:
                self.trials.check(run, int(cell.columns["length"]))
            count = self.counted(run, cell.columns, shares)
        except Unsupported as error:
            return Forecast(seconds=START_S, basis="refused", reason=str(error))
        except Exception as error:  # noqa: BLE001 - an error of a runner must not stop a plan
            reason = " ".join(text_of(error).split())[:LONGEST_REASON]
            if not isinstance(error, Uncounted):
                reason = f"{type(error).__name__}: {reason}"
            if stored_guess is None:
                return Forecast(reason=reason)
            basis = "stored" if stored_guess.alike else "scaled"
            return Forecast(seconds=stored_guess.seconds, basis=basis, reason=reason)
        if stored_guess is not None and stored_guess.alike:
            return replace(count, seconds=stored_guess.seconds, basis="stored")
        ratio = self.correction(cell.columns, count.step_s)
        if ratio is None or count.seconds is None:
            return count
        step = None if count.step_s is None else ratio * count.step_s
        return replace(
            count, seconds=ratio * count.seconds, step_s=step, basis="corrected", correction=ratio
        )

    def counted(
        self, run: Run, columns: Mapping[str, Any], shares: Mapping[str, float] = ALONE
    ) -> Forecast:
        """Return the forecast of a cell from counted operations and the machine's rates alone.

        Args:
            run: The run of the cell.
            columns: The columns of the cell.
            shares: By reference: which part of its passes this cell times; all if not named.

        Raises:
            Unsupported: the model refuses its task.
            Uncounted: it cannot be counted.
        """
        work = CellWork.planned(run, columns)
        if (rough := run.runner.rough_seconds(work)) is not None:
            return Forecast(seconds=min(rough, run.control.timeout_s or rough), basis="counted")
        passes = run.runner.passes(work)
        if not passes:
            raise Uncounted(f"{type(run.runner).__name__} runs no model that could be counted")
        machine = self.machine(run)
        if machine is None:
            raise Uncounted(
                f"the speed of hardware={run.hardware.name} is unknown: measure it with "
                "lra doctor --rates, or set hardware.typical"
            )
        costs = [*self._costs(run, passes)]
        pass_seconds = [machine.seconds(cost.work) for _, cost in costs]
        process = 0 if machine.ahead else PROCESS_BYTES  # not in the memory of a GPU (`ahead`)
        needs: dict[str, int] = {}
        for part, cost in costs:
            needs[part.name] = max(needs.get(part.name, 0), cost.need_bytes + process)
        need = needs.pop(OWN)  # of the run's model; what is left are references
        reference = max(needs, key=needs.__getitem__, default="")
        seconds = [
            part.times * shares.get(part.name, 1.0) * one_pass
            for (part, _), one_pass in zip(costs, pass_seconds, strict=True)
        ]
        total = START_S + sum(seconds)
        first, stages = passes[0], _count_stages(passes)  # evaluations follow the stages
        steps = sum(p.times for p in passes[:stages])
        remarks = [_remark_on_length(run, first), *(p.unknown for p in passes[stages : stages + 1])]
        _, first_cost = costs[0]
        return Forecast(
            seconds=min(total, run.control.timeout_s or total),
            basis="counted",
            step_s=pass_seconds[0] if stages == 1 else sum(seconds[:stages]) / steps,
            steps=round(steps),
            length=max(p.length for p in passes[:stages]),
            parameters=first_cost.parameters(run.optim if first.step else None),
            need_bytes=need,
            reference=reference,
            reference_need_bytes=needs.get(reference),
            peak_bytes=max(cost.peak_bytes for _, cost in costs[:stages]),
            room_bytes=room(run, machine),
            reason="; ".join(filter(None, remarks)),
        )

    def _costs(self, run: Run, passes: Sequence[Passes]) -> Iterator[tuple[Passes, PassCost]]:
        """Yield each pass with its cost, but those of a reference that refuses the task."""
        for part in passes:
            try:
                yield part, self.costs.of(run, part)
            except Unsupported:
                if part.name == OWN:
                    raise

    def machine(self, run: Run) -> MachineRates | None:
        """Return the rates and memory of the machine that a run is meant for; None: not known."""
        key = repr((run.hardware, threads(run)))
        if key not in self.machines:
            rates = machine_of(run.hardware, threads(run))
            self.machines[key] = None if rates is None else (run.hardware, rates)
        pair = self.machines[key]
        return None if pair is None else pair[1]

    def seen(self) -> list[tuple[HardwareProfile, MachineRates]]:
        """Return the hardware profiles of the forecasts, each with the rates of its machine."""
        return [pair for pair in self.machines.values() if pair is not None]

    def correction(self, columns: Mapping[str, Any], step_s: float | None) -> float | None:
        """Return measured / counted time, the median over the stored cells most like `columns`.

        None if no stored cell has the same runner, machine, and steps of roughly `step_s` counted
        seconds: what surrounds the operations takes most of the time of a short step.
        """
        by_distance: dict[tuple[bool, ...], list[float]] = {}
        for past, count, ratio in self.ratios():
            steps = count.step_s / step_s if count.step_s and step_s else 1.0
            if not 1 / MOST_SCALED <= steps <= MOST_SCALED:
                continue
            required = ("runner", "device", "hardware", "threads", "precision")
            if any(past.columns.get(name) != columns[name] for name in required):
                continue
            distance = tuple(
                past.columns.get(name) != columns[name] for name in ("model", "task", "length")
            )
            by_distance.setdefault(distance, []).append(ratio)
        return median(by_distance[min(by_distance)]) if by_distance else None

    def ratios(self) -> list[tuple[Past, Forecast, float]]:
        """Return stored cells that can be counted, with count, and measured / counted time."""
        if self._ratios is None:
            self._ratios = []
            # A forecast is seldom wrong by a factor of 4, and counting a cell takes a moment.
            telling = (past for past in self.past if past.took_s >= TELLING_S / 4)
            for past in islice(telling, MOST_COMPARED):
                counted = self._count_stored(past)
                if counted and counted.seconds is not None and counted.seconds >= TELLING_S:
                    self._ratios.append((past, counted, past.took_s / counted.seconds))
        return self._ratios

    def _count_stored(self, past: Past) -> Forecast | None:
        """Return the forecast of a stored cell by counting; None if it cannot be counted."""
        try:
            return self.counted(typed(past.config), past.columns, past.shares)
        except Exception:  # noqa: BLE001 - of an older version, or a package that is not here
            return None


def _is_within(need: int | None, room: float | None) -> bool | None:
    """Return whether `need` bytes fit into `room` bytes; None: one of them is not known."""
    return None if need is None or room is None else need <= room


def threads(run: Run) -> int:
    """Return the number of CPU threads of a cell."""
    return run.hardware.timing_threads() if run.runner.timed else run.hardware.training_threads


def room(run: Run, machine: MachineRates) -> float | None:
    """Return the bytes that one cell may use; None: not known.

    Without a limit, cells that run at the same time share nine tenths of a CPU's memory.
    """
    hardware = run.hardware
    if hardware.memory_limit_bytes is not None:
        return float(hardware.memory_limit_bytes)
    if machine.memory_bytes is None:
        return None
    if hardware.device is Device.cuda:
        return machine.memory_bytes
    lanes = 1 if run.runner.timed else hardware.side_by_side()
    return 0.9 * machine.memory_bytes / lanes


def _count_stages(passes: Sequence[Passes]) -> int:
    """Return how many passes at the beginning are steps of one training; 1 if it is measured."""
    if not passes[0].step or passes[0].measured:
        return 1
    return next((n for n, part in enumerate(passes) if not part.step), len(passes))


def _remark_on_length(run: Run, first: Passes) -> str:
    """Return a remark if missing data are counted at the longest length of the task; else ""."""
    spec = run.task.spec
    if not run.runner.data or padded_length(run.task, "train", first.rows)[1]:  # it is exact
        return ""
    return f"the data are missing, so every example is counted as {spec.max_length:,} tokens"
