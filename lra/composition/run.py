"""What one composed configuration says: as plain values, and typed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

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
"""A limit of thirty years is none; clocks of the system hold no more than three centuries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Options of every runner that steer a sweep and never change a result."""

    dry_run: bool = False
    """List the cells, done and to do, and stop."""
    shard: str | None = None
    """`i/n`: run every n-th cell, starting with the i-th."""
    retry: list[str] = field(default_factory=list)
    """Which complete cells are to be repeated: statuses, e.g. [timeout], and `disturbed`, those
    that the machine disturbed while they were measured."""
    timeout_s: float | None = None
    """A cell that takes longer ends as a `timeout` row."""
    sweep_timeout_s: float | None = None
    """A sweep that takes longer stops; the same command goes on with what is left."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense, each with the way out."""
        statuses = [*(status.name for status in Status), DISTURBED]
        for name in self.retry:
            if name not in statuses:
                raise ConfigError("runner.retry: " + unknown("status", name, statuses))
        for name in ("timeout_s", "sweep_timeout_s"):
            if (limit := getattr(self, name)) is not None and not 0 < limit <= LONGEST_S:
                raise ConfigError(
                    f"runner.{name}: got {limit}; wanted seconds above 0, at most "
                    f"{LONGEST_S:.0f}, or null for no limit"
                )
        self.part()

    def part(self) -> tuple[int, int]:
        """Return shard as (i, n), 1 <= i <= n."""
        if self.shard is None:
            return 1, 1
        i, _, n = self.shard.partition("/")
        if i.isdecimal() and n.isdecimal() and len(i + n) < 20 and 1 <= int(i) <= int(n):
            return int(i), int(n)
        raise ConfigError(
            f"runner.shard: got {self.shard!r}; wanted i/n with 1 <= i <= n, as in 2/8"
        )


class Searched(NamedTuple):
    """What a command searches over, each combination of its lists being an arm."""

    sampler: str
    options: Mapping[str, Any]
    """Of the group `search`."""
    ranges: Mapping[str, str]
    """Functions of Hydra by option, as the words of the command and of presets have them."""
    lists: tuple[str, ...]
    """Keys of several values, in which arms differ."""


class Composed(NamedTuple):
    """One combination of choices."""

    config: dict[str, Any]
    """Parts of it may be those of other entries: nothing may change them."""
    overrides: tuple[str, ...]
    place: Mapping[str, str] = {}
    """Where files of the user's own are: see `lra.runners.records.Cell`."""
    searched: Searched | None = None
    """Of an arm of a search."""
    several: bool = False
    """Whether the command asks for a sweep, be it of one run."""


class LoggerMode(StrEnum):
    """Where runs are written, live and with what is stored of them in the end."""

    offline = auto()
    """Files of W&B."""
    online = auto()
    """The server of W&B."""
    tensorboard = auto()
    disabled = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Logger:
    """The dashboard that shows cells while they run and afterwards."""

    mode: LoggerMode
    project: str = "lra"
    entity: str | None = None

    def __post_init__(self) -> None:
        """Refuse an account or a project without a name."""
        for name in ("project", "entity"):
            if (value := getattr(self, name)) is not None and not value.strip():
                raise ValueError(f"{name}: got {value!r}; wanted a name")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything one composed configuration says, typed."""

    config: Mapping[str, Any]
    """The resolved tree, plain JSON: a child process rebuilds this object from it."""
    model: str
    mixer_options: Mapping[str, Any]
    """Every option of the mixer (or of the stack), defaults included, plain JSON."""
    mixers: "Sequence[MixerFactory]"
    stack: "StackFactory | None"
    """For a model whose YAML has `stack` in place of `mixer`."""
    backbone: "BackboneConfig"
    task_name: str
    task: "Task"
    task_options: Mapping[str, Any]
    hardware: HardwareProfile
    optim: OptimConfig
    runner: Runner
    """Its options, typed."""
    control: Control
    logger: Logger
    seed: int
    sweep: str
