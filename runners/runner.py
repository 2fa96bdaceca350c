"""What every runner is: options, what a sweep must know of its cells, and how one is measured.

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
    """Which way the model looks."""

    task = auto()
    """As the task needs: language modelling is causal, everything else bidirectional."""
    bidirectional = auto()
    causal = auto()
    """A language model over the task's vocabulary, whatever the task asks."""


class Passes(NamedTuple):
    """Equal passes through one model."""

    times: float
    rows: int
    """Examples of a batch."""
    length: int
    """Tokens of its rows, padding included."""
    step: bool
    """A training step; False: forward alone."""
    micro_rows: int | None = None
    """Rows that are in memory at once; None: all."""
    name: str = OWN
    """Of the model, or of a reference in the same backbone."""
    measured: bool = False
    """Of a cost measurement: rows of equal length, and a model built for it."""
    unknown: str = ""
    """Why `times` is unknown, and 0."""
    read: int | None = None
    """Of a model that writes a text of `length` tokens, those that it reads at once: with a state
    where they are fewer. None: no text is written."""


class Probe(NamedTuple):
    """What the process of one cell hands on to the one that compares it with others."""

    facts: Mapping[str, Any]
    """As the runner wants them."""


class Uncounted(Exception):
    """Raised for a cell whose work is unknown before it runs; the message says why."""


@runtime_checkable
class Cores(Protocol):
    """Makes the attention functions that are compared, each for one layer."""

    def approximation(self, budget: int, *, draw: int, layer: int) -> "Core":
        """Return the family's core. ValueError for a budget that it refuses."""
        ...

    def exact(self, *, layer: int) -> "Core":
        """Return what is approximated."""
        ...

    def reference(self) -> "Core":
        """Return exact attention through SDPA."""
        ...

    def labels(self) -> Mapping[str, str]:
        """Return the options that name the rows."""
        ...


class Work(Protocol):
    """One cell of a run, in its process: its subject and its parts."""

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
    """Folder of a cell that trains."""

    def facts(self, max_length: int | None = None) -> "TaskFacts":
        """Return what the task tells the model; with a length, what a cost measurement does."""
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
        """Tell whether the run's model is the reference `name`: `build` makes the same of both."""
        ...

    def trained(self, name: str = OWN) -> "Backbone":
        """Return a model of `Runner.starts_from`, with its weights."""
        ...

    def weights(self, name: str = OWN) -> Mapping[str, "Tensor"]:
        """Return its weights alone."""
        ...

    def stored(self) -> "Backbone":
        """Return the model of `Runner.stored_weights`, with its weights."""
        ...

    def stored_task(self) -> str:
        """Return the name of the task that it was trained on."""
        ...

    def source_task(self, name: str) -> "Task":
        """Return the task that it was trained on."""
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
    """Metric of the one row that stands for a cell without a result."""
    tabled: ClassVar[tuple[str, ...]] = ()
    """Metrics that come first in the table of its rows in a report, `outcome` where there are none.
    Its YAML may name a section instead."""
    models: ClassVar[bool] = True
    """Measures a model; False: the task alone."""
    data: ClassVar[bool] = True
    """Reads the task's data; False: random inputs."""
    trains: ClassVar[bool] = False
    """Moves weights: optimiser and data decide the result, and there are checkpoints."""
    timed: ClassVar[bool] = False
    """Reads the clock: its cells run alone, and the machine is part of what decides the result."""
    parallel: ClassVar[bool] = False
    """Its cells may have several processes, `hardware.processes`."""
    by_length: ClassVar[bool] = False
    """A cell for each of `modes` and `lengths`; a length that was too much ends its curve."""
    compares: ClassVar[bool] = False
    """Where one process runs several cells that differ in their model alone, it may `probe` each in
    a process of its own and `compare` them in one."""
    mode_option: ClassVar[str] = "modes"
    """With `by_length`, the option that leads to one mode: a list, or else the mode itself."""
    version: ClassVar[int] = 1
    """Raised where the same options give other numbers than before."""
    incidental: ClassVar[frozenset[str]] = frozenset()
    """Options that change no number: not part of a result's identity."""
    files: ClassVar[tuple[str, ...]] = ()
    """Options that name a file, whose content decides the result, and not its place."""

    @property
    def facing(self) -> Direction:
        """Which way the model looks."""
        return Direction.task

    @property
    def beside(self) -> Sequence[str]:
        """Families of lra that are measured with the model."""
        return ()

    @property
    def started_from(self) -> str | None:
        """In a word for tables, what weights a run starts from; None where none are meant."""
        return None

    def marks(self, regime: str) -> Mapping[str, str]:
        """Return labels of every row of a run, besides those of its task and its model.

        Args:
            regime: What the task's own evaluation judges.
        """
        del regime
        return {}

    @property
    def stored_weights(self) -> str | None:
        """A completed training whose weights a run starts from: its key or folder; None: none."""
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
        """Return options by group that these trainings have other than the run."""
        return {}

    def baseline_split(self, *, several: bool) -> str | None:
        """Return the split whose baselines a sweep computes beside its cells; None: of none.

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
        """Return what of a cell will be left out for want of a package; "" for nothing.

        Args:
            model: The family.
        """
        del model
        return ""

    def cells(self, name: str, length: int) -> list[tuple[str, int]]:
        """Return mode and length of each cell of a run.

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
        """Return why a length would take too long to be tried; "" where nothing says so.

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
        """Return what one cell asks of its model, from which `lra plan` reckons its time.

        Raises:
            Uncounted: it is unknown before the cell runs, or this runner does not say.
        """
        del work
        raise Uncounted(f"{type(self).__name__} does not say what its cells ask of a model")

    def rough_seconds(self, work: Work) -> float | None:
        """Return about how long one cell takes that asks nothing of a model; None: not known."""
        del work
        return None

    @classmethod
    def word(cls, mode: str) -> str:
        """Return the word of the command line that leads to one mode."""
        listed = f"[{mode}]" if cls.mode_option == "modes" else mode
        return f"runner.{cls.mode_option}={listed}"

    @abstractmethod
    def run(self, work: Work) -> Iterator[object]:
        """Yield the rows of one cell, `lra.runners.records.Measurement`, and its outcomes."""

    def probe(self, work: Work) -> Iterator[object]:
        """Yield the rows of a cell that need no other, then a `Probe` where it is compared."""
        del work
        raise NotImplementedError(f"{type(self).__name__} compares no cells")

    def compare(
        self, works: Mapping[str, Work], probed: Mapping[str, Probe]
    ) -> Iterator[tuple[str, Measurement]]:
        """Yield the other rows of several cells, each with the key of its cell.

        Args:
            works: The cells by their keys; their models alone differ.
            probed: What `probe` has yielded of each.
        """
        del works, probed
        raise NotImplementedError(f"{type(self).__name__} compares no cells")

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return the result of a cell in a few words, from its rows with a value; "" for none."""
        judged = [row for row in rows if row.labels.get("split") == "test"]
        for metric in JUDGED_BY:
            if scores := [row for row in judged if row.metric == metric]:
                form = ".1%" if METRICS[metric].unit == "fraction" else ".3f"
                return ", ".join(f"{cls.title(row)} {row.value:{form}}" for row in scores)
        return ""

    @classmethod
    def title(cls, row: Measurement) -> str:
        """Return how a headline calls a row."""
        return row.metric.replace("_", " ")


def noise_note(rows: Sequence[Measurement], metric: str) -> str:
    """Return what disturbed a time, as the end of its line; "" for nothing."""
    (first, *_) = [row.labels.get("disturbed", "") for row in rows if row.metric == metric]
    return f"; disturbed: {first}" if first else ""


def values(rows: Sequence[Measurement]) -> dict[str, float]:
    """Return the value of each metric, the last of several."""
    return {row.metric: row.value for row in rows if row.value is not None}
