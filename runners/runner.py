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
"""Name of the model of the run itself among the models that a sweep trains first."""


class Direction(StrEnum):
    """Which tokens the model attends to: only earlier ones (causal), or all (bidirectional)."""

    task = auto()
    """The task decides: language modelling is causal, everything else is bidirectional."""
    bidirectional = auto()
    causal = auto()
    """A language model over the task's vocabulary, for any task."""


class Passes(NamedTuple):
    """Passes through one model that all have the same shape, for an estimate of their time."""

    times: float
    """How many passes."""
    rows: int
    """Examples in a batch."""
    length: int
    """Tokens of each row, padding included."""
    step: bool
    """True: each pass is a training step; False: it is a forward pass alone."""
    micro_rows: int | None = None
    """Rows that are in memory at the same time; None: all."""
    name: str = OWN
    """`OWN` for the model of the run, or the family of a reference in the same backbone."""
    measured: bool = False
    """True for a cost measurement: rows of equal length, and a model built for it."""
    unknown: str = ""
    """Why `times` is unknown, and therefore 0."""
    read: int | None = None
    """For a model that writes a text of `length` tokens: how many tokens it reads in one step
    (fewer than `length` if it has a state). None: it writes no text."""
    asked: float | None = None
    """Tokens of a row that reach the output layer, on average; None: all."""


class Probe(NamedTuple):
    """What one run sends to the process that compares it with other runs."""

    facts: Mapping[str, Any]
    """Each runner that compares runs defines these entries."""


class Uncounted(Exception):
    """Raised for a run whose work is unknown before it starts; the message says why."""


@runtime_checkable
class Cores(Protocol):
    """Makes the attention functions that are compared, each for one layer."""

    def approximation(self, budget: int, *, draw: int, layer: int) -> "Core":
        """Return the attention function of the family for one layer.

        `budget` is the value of the option that trades time for accuracy, and `draw` numbers
        independent random draws. Raises ValueError if the family refuses the budget.
        """
        ...

    def exact(self, *, layer: int) -> "Core":
        """Return the attention function that the family approximates."""
        ...

    def reference(self) -> "Core":
        """Return exact attention through SDPA."""
        ...

    def labels(self) -> Mapping[str, str]:
        """Return the options of the family as labels for the rows."""
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
        """Return the facts of the task for a model; a cost measurement gives `max_length`."""
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
            max_length: Longest input in tokens; None: the longest input of the task.
            name: `OWN`, or the family of the reference.
            facts: Facts that replace those of the task; None: the facts of the task.
        """
        ...

    def is_reference(self, name: str) -> bool:
        """Return whether the run's model equals the reference `name`, as `build` makes both."""
        ...

    def trained(self, name: str = OWN) -> "Backbone":
        """Return a model named in `Runner.starts_from`, with its trained weights."""
        ...

    def weights(self, name: str = OWN) -> Mapping[str, "Tensor"]:
        """Return the trained weights of the model that `trained` returns for `name`."""
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
    """True: one run may use several processes (`hardware.processes`)."""
    by_length: ClassVar[bool] = False
    """True: one run for each of `modes` and `lengths`; a length beyond a limit ends its curve."""
    compares: ClassVar[bool] = False
    """True: runs that differ only in their model are compared. `probe` examines each run in a
    separate process; then `compare` measures all of them in one process."""
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
        """Return which tokens the model of this runner attends to."""
        return Direction.task

    @property
    def beside(self) -> Sequence[str]:
        """Return the families that are measured together with the model of the run."""
        return ()

    @property
    def started_from(self) -> str | None:
        """Return the name of the initial weights for tables; None: tables have no such column."""
        return None

    def marks(self, regime: str) -> Mapping[str, str]:
        """Return labels that every row of a run gets in addition to those of task and model.

        Args:
            regime: The `task.regime` of the run: how the task evaluates a model.
        """
        del regime
        return {}

    @property
    def stored_weights(self) -> str | None:
        """Return key or folder of the training that gives the weights; None: there is none."""
        return None

    def of_model(self, model: str, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return options of this runner that depend on the model and replace those of the command.

        Args:
            model: Name of the model.
            about: The entry `about` of the YAML file of the model.

        Raises:
            ValueError: An entry of `about` is invalid; the message begins with its key.
        """
        del model, about
        return {}

    def starts_from(self) -> Sequence[str]:
        """Return the models that a sweep trains before the run: `OWN`, or names of families."""
        return ()

    def training_changes(self) -> Mapping[str, Mapping[str, Any]]:
        """Return options by group in which the trainings of `starts_from` differ from the run."""
        return {}

    def baseline_split(self, *, several: bool) -> str | None:
        """Return the split for which a sweep computes baselines together with its runs.

        None: it computes no baselines.

        Args:
            several: True if the command asks for several runs.
        """
        del several
        return None

    def check_packages(self) -> None:  # noqa: B027 - most need none
        """Check before any work that the packages which the options need are installed.

        Raises:
            ValueError: A package is missing; the message names the option and what to type.
        """

    def lacking(self, model: str) -> str:
        """Return which part of its work a run skips because a package is missing; "" for no part.

        Args:
            model: Name of the family.
        """
        del model
        return ""

    def unfit(self, task: "Task", families: Sequence[object]) -> str:
        """Return why this runner cannot measure a model on a task; "" if it can, or may.

        It needs no data. A run with a reason ends with it, and no model is trained for it.

        Args:
            task: The task, whose data may be missing.
            families: The classes of the model's layers; empty if one class builds all of them.
        """
        del task, families
        return ""

    def cells(self, name: str, length: int) -> list[tuple[str, int]]:
        """Return the mode and the length of each run that one model, task and seed have.

        Args:
            name: Name of the runner, which is the mode of a runner without modes.
            length: Length of the task in tokens, for a runner that does not vary the length.
        """
        if not self.by_length:
            return [(name, length)]
        runner: Any = self
        return [(mode.name, tokens) for mode in runner.modes for tokens in runner.lengths]

    def too_long(
        self, mode: str, length: int, took: Mapping[int, float], hardware: "HardwareProfile"
    ) -> str:
        """Return why a run would take too long to be tried; "" if it may be tried.

        Args:
            mode: Mode of the run.
            length: Length of the run in tokens.
            took: Measured `outcome` in seconds by length, for shorter lengths of the same curve.
                For a disturbed length it is the processor time.
            hardware: Hardware profile of the run.
        """
        del mode, length, took, hardware
        return ""

    def passes(self, work: Work) -> Sequence[Passes]:
        """Return the passes that one run needs, from which `lra plan` estimates its time.

        Raises:
            Uncounted: the passes are unknown before the run starts, or this runner does not
                declare them.
        """
        del work
        raise Uncounted(
            f"{type(self).__name__} does not declare how many passes through a model a run needs"
        )

    def rough_seconds(self, work: Work) -> float | None:
        """Return about how many seconds a run without passes of a model takes; None: unknown."""
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
        raise NotImplementedError(f"the runner {type(self).__name__} does not compare runs")

    def compare(
        self, works: Mapping[str, Work], probed: Mapping[str, Probe]
    ) -> Iterator[tuple[str, Measurement]]:
        """Yield the remaining rows of several runs, each row with the key of its run.

        Args:
            works: The runs by their keys; they differ only in their model.
            probed: The `Probe` of each run, by its key.
        """
        del works, probed
        raise NotImplementedError(f"the runner {type(self).__name__} does not compare runs")

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return the test score of a run, for example `accuracy 61.2%`; "" if it has none."""
        test_rows = [row for row in rows if row.labels.get("split") == "test"]
        for metric in JUDGED_BY:
            if scores := [row for row in test_rows if row.metric == metric]:
                number_format = ".1%" if METRICS[metric].unit == "fraction" else ".3f"
                return ", ".join(f"{cls.title(row)} {row.value:{number_format}}" for row in scores)
        return ""

    @classmethod
    def title(cls, row: Measurement) -> str:
        """Return the name of a row in a headline."""
        return row.metric.replace("_", " ")


def noise_note(rows: Sequence[Measurement], metric: str) -> str:
    """Return what disturbed the first row of `metric`, as the end of a line; "" for nothing."""
    (cause, *_) = [row.labels.get("disturbed", "") for row in rows if row.metric == metric]
    return f"; disturbed: {cause}" if cause else ""


def values(rows: Sequence[Measurement]) -> dict[str, float]:
    """Return the value of each metric by its name; if a metric has several rows, the last value."""
    return {row.metric: row.value for row in rows if row.value is not None}
