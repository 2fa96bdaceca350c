"""A composed configuration, as plain values (`Composed`) and as typed objects (`Run`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from lra.composition.pattern_name import name_of
from lra.errors import ConfigError, unknown
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.records import DISTURBED, Status
from lra.runners.runner import Runner
from lra.runners.training.optim import OptimConfig

if TYPE_CHECKING:
    from lra.models.backbone.model import BackboneConfig, StackFactory
    from lra.models.mixer import MixerFactory
    from lra.tasks.task import Task

LONGEST_S = 1e9
"""The longest time limit, thirty years; clocks of the system overflow after three centuries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Options of every runner that control a sweep and never change a result."""

    dry_run: bool = False
    """List the runs, finished or not, and start none."""
    shard: str | None = None
    """`i/n`: execute every n-th run, starting with the i-th."""
    retry: list[str] = field(default_factory=list)
    """Which finished runs are executed again: statuses, e.g. [timeout], and `disturbed`, for runs
    that other processes disturbed while they were measured."""
    timeout_s: float | None = None
    """Time limit of a run, in seconds; a run that takes longer is stopped and gets a row with the
    status `timeout`."""
    sweep_timeout_s: float | None = None
    """Time limit of a sweep, in seconds; the sweep then stops, and the same command resumes it."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a value that is not allowed."""
        statuses = [*(status.name for status in Status), DISTURBED]
        for name in self.retry:
            if name not in statuses:
                raise ConfigError("runner.retry: " + unknown("status", name, statuses))
        for name in ("timeout_s", "sweep_timeout_s"):
            if (limit := getattr(self, name)) is not None and not 0 < limit <= LONGEST_S:
                raise ConfigError(
                    f"runner.{name}: got {limit}; wanted a number of seconds above 0 and at most "
                    f"{LONGEST_S:.0f}, or null for no limit"
                )
        self.part()

    def part(self) -> tuple[int, int]:
        """Return the shard i/n as the numbers (i, n); (1, 1) if there is none."""
        if self.shard is None:
            return 1, 1
        i, _, n = self.shard.partition("/")
        # Longer numbers are mistakes, and Python may refuse to read them.
        if i.isdecimal() and n.isdecimal() and len(i + n) < 20 and 1 <= int(i) <= int(n):
            return int(i), int(n)
        raise ConfigError(
            f"runner.shard: got {self.shard!r}; wanted i/n with 1 <= i <= n, as in 2/8"
        )


class Searched(NamedTuple):
    """The ranges of a search; each combination of its lists of values is an arm."""

    sampler: str
    options: Mapping[str, Any]
    """The options of the group `search`."""
    ranges: Mapping[str, str]
    """The range of each searched option in Hydra's syntax, from arguments or presets."""
    lists: tuple[str, ...]
    """The keys that have several values, in which the arms differ."""


class Composed(NamedTuple):
    """The configuration of one run."""

    config: dict[str, Any]
    """The values; nothing may change them, because configurations share parts."""
    overrides: tuple[str, ...]
    """The arguments of the command for this run."""
    place: Mapping[str, str] = {}
    """Where the user's files are: see `lra.runners.records.Cell`."""
    searched: Searched | None = None
    """The search, if the run is an arm of one."""
    several: bool = False
    """Whether the command asks for a sweep, even if the sweep has only one run."""


class LoggerMode(StrEnum):
    """Where a dashboard stores runs, while they are executed and when they have ended."""

    offline = auto()
    """In files of W&B on this machine."""
    online = auto()
    """On the server of W&B."""
    tensorboard = auto()
    disabled = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Logger:
    """The dashboard that shows runs while they are executed and afterwards."""

    mode: LoggerMode
    project: str = "lra"
    entity: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for an account or a project without a name."""
        for name in ("project", "entity"):
            if (value := getattr(self, name)) is not None and not value.strip():
                raise ValueError(f"{name}: got {value!r}; wanted a name that is not blank")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The typed form of one composed configuration."""

    config: Mapping[str, Any]
    """The resolved configuration as plain JSON, from which a child process rebuilds this object."""
    model: str
    mixer_options: Mapping[str, Any]
    """Every option of the mixer or of the stack, with defaults, as plain JSON."""
    mixers: "Sequence[MixerFactory]"
    stack: "StackFactory | None"
    """Builds all layers, if the YAML file of the model has `stack` instead of `mixer`."""
    backbone: "BackboneConfig"
    task_name: str
    task: "Task"
    task_options: Mapping[str, Any]
    hardware: HardwareProfile
    optim: OptimConfig
    runner: Runner
    """The runner with its options."""
    control: Control
    logger: Logger
    seed: int
    sweep: str

    @property
    def model_name(self) -> str:
        """The name of the model in rows: that of its pattern of layers, or else of its family."""
        return name_of(self.config)
