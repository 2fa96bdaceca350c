"""The interface of runners: their options, what a sweep must know about their runs, and `run`.

A new runner is one file with a frozen dataclass that derives from `Runner`, and one YAML with its
`class_path` and the defaults of its options.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from lra.runners.metrics import JUDGED_BY, METRICS
from lra.runners.records import Measurement

if TYPE_CHECKING:
    from torch import Tensor

    from lra.models.backbone.config import BackboneConfig
    from lra.models.backbone.model import Backbone, TaskFacts
    from lra.models.multi_head import Core
    from lra.runners.measurement.hardware import HardwareProfile
    from lra.runners.training.optim import OptimConfig
    from lra.tasks.task import Stretches, Task

OWN = "model"
"""Name of the run's own model among those that a sweep trains first."""


class Direction(StrEnum):
    """Which tokens the model attends to: earlier ones alone, or all."""

    task = auto()
    """The task decides: language modelling is causal, everything else is bidirectional."""
    bidirectional = auto()
    causal = auto()
    """A language model over the task's vocabulary, for any task."""


class Passes(NamedTuple):
    """Equal passes through one model."""

    times: float
    rows: int
    """Examples in a batch."""
    length: int
    """Tokens of each row, padding included."""
    step: bool
    """A training step; False: forward alone."""
    micro_rows: int | None = None
    """Rows that are in memory at the same time; None: all."""
    name: str = OWN
    """The model, or a reference in the same backbone."""
    measured: bool = False
    """True for a cost measurement: rows of equal length, and a model built for it."""
    unknown: str = ""
    """Why `times` is unknown, and therefore 0."""
    read: int | None = None
    """If the model writes a text of `length` tokens: how many of them it reads at once (fewer than
    `length` with a state). None: it writes no text."""


class Probe(NamedTuple):
    """What one run passes to the process that compares it with other runs."""

    facts: Mapping[str, Any]
    """Defined by the runner."""


class Uncounted(Exception):
    """Raised for a run whose work is unknown before it starts; the message says why."""


@runtime_checkable
class Cores(Protocol):
    """Makes the attention functions that are compared, each for one layer."""

    def approximation(self, budget: int, *, draw: int, layer: int) -> "Core":
        """Return the family's core. ValueError for a budget that it refuses."""
        ...

    def exact(self, *, layer: int) -> "Core":
        """Return the core that the family approximates."""
        ...

    def reference(self) -> "Core":
        """Return exact attention through SDPA."""
        ...

    def labels(self) -> Mapping[str, str]:
        """Return the options that name the rows."""
        ...


class Work(Protocol):
    """One run in its process: the model, the task and their parts."""

    model: str
    """Name of the model."""
    length: int
    mode: str
    seed: int
    backbone: "BackboneConfig"
    task: "Task"
    optim: "OptimConfig"
    hardware: "HardwareProfile"
    checkpoints: Path | None
    """Folder for the checkpoints of a run that trains."""

    def facts(self, max_length: int | None = None) -> "TaskFacts":
        """Return what the model must know about the task; with a length, for a cost measurement."""
        ...

    def build(
        self,
        *,
        max_length: int | None = None,
        name: str = OWN,
        facts: "TaskFacts | None" = None,
    ) -> "Backbone":
        """Build the run's model, or the reference `name` in the same backbone.

        Args:
            max_length: Longest input; None: the task's.
            name: Of the reference.
            facts: In place of those of the task.
        """
        ...

    def is_reference(self, name: str) -> bool:
        """Tell whether the run's model is the reference `name`: `build` makes the same for both."""
        ...

    def trained(self, name: str = OWN) -> "Backbone":
        """Return a model named in `Runner.starts_from`, with its trained weights."""
        ...

    def weights(self, name: str = OWN) -> Mapping[str, "Tensor"]:
        """Return the weights of that model alone."""
        ...

    def stored(self) -> "Backbone":
        """Return the model of `Runner.stored_weights`, with its weights."""
        ...

    def stored_task(self) -> str:
        """Return the name of the task on which the stored model was trained."""
        ...

    def source_task(self, name: str) -> "Task":
        """Return the task on which the source model was trained."""
        ...

    def stretched(self, options: Mapping[str, object]) -> "Stretches":
        """Return the run's task with other options, its data prepared."""
        ...

    def cores(self) -> Cores:
        """Return the attention functions of the run's family, without a model."""
        ...


class Runner(ABC):
    """Base of a runner's options, a frozen dataclass whose fields are the keys of its YAML."""

    outcome: ClassVar[str] = "accuracy"
    """Metric of the single row that a run without a result gets."""
    tabled: ClassVar[tuple[str, ...]] = ()
    """Metrics in the first columns of a report's table; empty: `outcome`. The YAML file of the
    runner may name a section instead."""
    models: ClassVar[bool] = True
    """True: measures a model; False: measures the task alone."""
    data: ClassVar[bool] = True
    """True: reads the task's data; False: reads random inputs."""
    trains: ClassVar[bool] = False
    """True: trains weights, so optimiser and data belong to the identity, and there are
    checkpoints."""
    timed: ClassVar[bool] = False
    """True: measures time, so its runs run alone, and the machine belongs to the identity."""
    parallel: ClassVar[bool] = False
    """True: one run may have several processes, `hardware.processes`."""
    by_length: ClassVar[bool] = False
    """True: one run for each of `modes` and `lengths`; a length beyond a limit ends its curve."""
    compares: ClassVar[bool] = False
    """True: runs that differ in their model alone may share a process. Each is probed in a separate
    process by `probe`, then one process compares them in `compare`."""
    mode_option: ClassVar[str] = "modes"
    """With `by_length`, the option that selects one mode: a list, or the mode itself."""
    version: ClassVar[int] = 1
    """Increased if the same options give other numbers than before."""
    incidental: ClassVar[frozenset[str]] = frozenset()
    """Options that change no number and are therefore excluded from a result's identity."""
    files: ClassVar[tuple[str, ...]] = ()
    """Options that name a file; the content of the file, not its path, belongs to the identity."""

    @property
    def facing(self) -> Direction:
        """Which tokens the model attends to."""
        return Direction.task

    @property
    def beside(self) -> Sequence[str]:
        """Families of lra that are measured with the model."""
        return ()

    @property
    def started_from(self) -> str | None:
        """Return what weights a run starts from, in a word for tables; None: no such column."""
        return None

    def marks(self, regime: str) -> Mapping[str, str]:
        """Return labels for every row of a run, in addition to those of its task and its model.

        Args:
            regime: What the task's own evaluation judges.
        """
        del regime
        return {}

    @property
    def stored_weights(self) -> str | None:
        """The key or folder of a finished training whose weights a run starts from; None: none."""
        return None

    def of_model(self, model: str, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return options that depend on the run's model; they replace those of the command.

        Args:
            model: Its name.
            about: What its YAML file says of it.

        Raises:
            ValueError: The file says what cannot be; the message begins with its key in `about`.
        """
        del model, about
        return {}

    def starts_from(self) -> Sequence[str]:
        """Return what a sweep trains first: `OWN`, or families in the same backbone."""
        return ()

    def training_changes(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the options, by group, in which these trainings differ from the run."""
        return {}

    def baseline_split(self, *, several: bool) -> str | None:
        """Return the split whose baselines a sweep computes together with its runs; None: none.

        Args:
            several: Whether the command asks for a sweep.
        """
        del several
        return None

    def check_packages(self) -> None:  # noqa: B027 - most need none
        """Refuse options that need a package which is not installed, before any work.

        Raises:
            ValueError: with the option's dotted name, and what to type.
        """

    def lacking(self, model: str) -> str:
        """Return what a run skips because a package is missing; "" for nothing.

        Args:
            model: The family.
        """
        del model
        return ""

    def cells(self, name: str, length: int) -> list[tuple[str, int]]:
        """Return mode and length of each run.

        Args:
            name: Of the runner.
            length: The task's.
        """
        if not self.by_length:
            return [(name, length)]
        runner: Any = self
        return [(mode.name, tokens) for mode in runner.modes for tokens in runner.lengths]

    def too_long(
        self, mode: str, length: int, took: Mapping[int, float], hardware: "HardwareProfile"
    ) -> str:
        """Return why a length would take too long to be tried; "" if it may be tried.

        Args:
            mode: Of the cell.
            length: Of the cell.
            took: `outcome` of shorter lengths on the same curve, of disturbed ones by the
                processors' clock.
            hardware: Of the run.
        """
        del mode, length, took, hardware
        return ""

    def passes(self, work: Work) -> Sequence[Passes]:
        """Return the passes that one run needs, from which `lra plan` estimates its time.

        Raises:
            Uncounted: it is unknown before the cell runs, or this runner does not say.
        """
        del work
        raise Uncounted(
            f"{type(self).__name__} does not declare how many passes of a model its runs need"
        )

    def rough_seconds(self, work: Work) -> float | None:
        """Return the approximate seconds of a run without passes of a model; None: unknown."""
        del work
        return None

    @classmethod
    def word(cls, mode: str) -> str:
        """Return the command-line argument that selects one mode."""
        listed = f"[{mode}]" if cls.mode_option == "modes" else mode
        return f"runner.{cls.mode_option}={listed}"

    @abstractmethod
    def run(self, work: Work) -> Iterator[object]:
        """Yield the rows of one run, `lra.runners.records.Measurement`, and its outcomes."""

    def probe(self, work: Work) -> Iterator[object]:
        """Yield the rows of a run that need no other run, then a `Probe` if it is compared."""
        del work
        raise NotImplementedError(f"{type(self).__name__} does not compare runs")

    def compare(
        self, works: Mapping[str, Work], probed: Mapping[str, Probe]
    ) -> Iterator[tuple[str, Measurement]]:
        """Yield the remaining rows of several runs, each with the key of its run.

        Args:
            works: The cells by their keys; their models alone differ.
            probed: What `probe` has yielded of each.
        """
        del works, probed
        raise NotImplementedError(f"{type(self).__name__} does not compare runs")

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return the result of a run in a few words, from its rows with a value; "" for none."""
        judged = [row for row in rows if row.labels.get("split") == "test"]
        for metric in JUDGED_BY:
            if scores := [row for row in judged if row.metric == metric]:
                form = ".1%" if METRICS[metric].unit == "fraction" else ".3f"
                return ", ".join(f"{cls.title(row)} {row.value:{form}}" for row in scores)
        return ""

    @classmethod
    def title(cls, row: Measurement) -> str:
        """Return the name of a row in a headline."""
        return row.metric.replace("_", " ")


def noise_note(rows: Sequence[Measurement], metric: str) -> str:
    """Return what disturbed a time, as the end of a line; "" for nothing."""
    (first, *_) = [row.labels.get("disturbed", "") for row in rows if row.metric == metric]
    return f"; disturbed: {first}" if first else ""


def values(rows: Sequence[Measurement]) -> dict[str, float]:
    """Return the value of each metric; of several, the last."""
    return {row.metric: row.value for row in rows if row.value is not None}
