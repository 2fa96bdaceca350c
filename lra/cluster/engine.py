"""Engines, which start workers: their protocol, and the choice of one by the command line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

from lra.composition.binding import make
from lra.composition.catalogue import names, ours
from lra.composition.class_path import locate
from lra.composition.yaml_text import load, parse
from lra.errors import ConfigError, unknown

GROUP = "cluster"
LOCAL = "local"
MOST_WORKERS = 100_000
UNTIL = "LRA_WORKER_UNTIL"
"""Variable of a worker's environment: the time (in seconds since 1970) at which it is ended."""
QUEUED, RUNNING, ENDED = "queued", "running", "ended"
"""States of jobs that every engine knows."""
SUSPENDED = "suspended"
"""State of a job that its engine has paused and will continue."""
FORGOTTEN = "forgotten"
"""State of a job that its engine no longer knows: it ended a while ago."""
STARTS = "starts "
"""In the output of a job, comes before the command of the worker, which then has started."""
AGAIN = 75
"""Exit code of a worker that needs a job with its full time left: BSD's EX_TEMPFAIL."""
STORAGE = 74
"""Exit code of a worker after a fault of the storage that may pass: BSD's EX_IOERR."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources that one worker has, or that one cell needs."""

    gpus: int = 0
    cpus: int = 1
    memory_bytes: int | None = None
    """None: not known (of a cell), or no limit (of a worker)."""
    seconds: float | None = None
    """None: not known (of a cell), or no limit (of a worker)."""

    def hold(self, needed: "Resources") -> bool:
        """Return whether a worker with these resources can run a cell; unknown needs always fit."""

        def within(limit: float | None, need: float | None) -> bool:
            return limit is None or need is None or need <= limit

        return (
            needed.gpus <= self.gpus
            and needed.cpus <= self.cpus
            and within(self.memory_bytes, needed.memory_bytes)
            and within(self.seconds, needed.seconds)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGroup:
    """Equal workers for a class of cells. Each takes cells that fit, the largest first."""

    name: str
    count: int
    resources: Resources
    timed: bool | None = None
    """Whether they run timed cells alone on a machine; False: no timed cells; None: any cells."""


class JobState(NamedTuple):
    """The state of one job, as its engine reports it."""

    state: str
    """queued, running, suspended, ended, forgotten, or a state of the engine such as timeout."""
    reason: str = ""
    """Why a queued job waits, in the words of the engine; "" if it does not say."""

    @property
    def active(self) -> bool:
        """Whether the job runs, or will run."""
        return self.state in (QUEUED, RUNNING, SUSPENDED)


class StartedJobs(NamedTuple):
    """The jobs of one submission, as recorded when they were started."""

    mark: str
    """A text that no other submission has."""
    place: Mapping[str, str]
    """Where the engine starts them, such as the cluster and the user."""
    ids: Sequence[str]
    """Ids of the jobs; empty if the command was killed before it stored them."""


class Engine(Protocol):
    """Starts workers, and reports their states; its fields are the keys of its YAML file."""

    @property
    def workers(self) -> int | None:
        """How many workers to start; None: the engine decides."""
        ...

    @property
    def wait_s(self) -> float:
        """Seconds for which a worker without work waits while others have claimed cells."""
        ...

    def check(self, groups: Sequence[WorkerGroup], plan: Path) -> None:
        """Raise ConfigError if workers cannot be started; the folder `plan` may not exist."""
        ...

    def place(self) -> Mapping[str, str]:
        """Return where jobs are started (cluster, user), to distinguish them from other jobs."""
        ...

    def submit(
        self, plan: Path, groups: Sequence[WorkerGroup], command: Sequence[str], mark: str
    ) -> list[str]:
        """Start workers and return the ids of their jobs, without waiting for them.

        Args:
            plan: the folder of the stored plan.
            groups: the workers to start; a worker of a group gets `--group NAME`.
            command: the program of one worker, for example `[python, -m, lra, work, PLAN]`.
            mark: a text by which jobs can be found even if their ids were not stored.
        """
        ...

    def states(self, started: Sequence[StartedJobs]) -> Mapping[str, JobState]:
        """Return the state of each job of submissions that have the same `place`.

        Raises ConfigError if the engine cannot be asked from here.
        """
        ...

    def output(self, plan: Path, job: str) -> Path | None:
        """Return the file with the first output of a job, before its worker starts, or None."""
        ...

    def stop(self, ids: Sequence[str]) -> None:
        """Make the workers of these jobs save their runs and end. Raises ConfigError."""
        ...


@runtime_checkable
class SizesWorkers(Protocol):
    """An engine that starts workers with as many resources as the cells need."""

    def grouped(self, cells: Sequence[tuple[Resources, bool]]) -> list[WorkerGroup]:
        """Return groups of workers; `cells` has the needs of each cell and whether it is timed."""
        ...


@runtime_checkable
class WritesScripts(Protocol):
    """An engine that starts workers by a script, which it can show."""

    def script(self, plan: Path, group: WorkerGroup) -> str:
        """Return the script that starts the workers of a group, with placeholders explained."""
        ...


class ChosenEngine(NamedTuple):
    """The engine of a command line."""

    name: str
    engine: Engine
    options: Mapping[str, Any]
    """The options in its file and on the command line, from which `build_engine` can make it."""


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments that set options of the cluster, and all other arguments."""
    of_cluster = [w for w in words if w.lstrip("+").partition("=")[0].partition(".")[0] == GROUP]
    return of_cluster, [word for word in words if word not in of_cluster]


def engine_of(words: Sequence[str]) -> ChosenEngine:
    """Return the engine that arguments such as `cluster=local cluster.workers=4` choose.

    Raises:
        ConfigError: no such engine or option, or a value that it does not take.
    """
    name, by_key = LOCAL, {}
    for word in words:
        key, equals, text = word.lstrip("+").partition("=")
        if not equals or not text:
            raise ConfigError(f"{word}: wanted {key}=VALUE, for example cluster={LOCAL}")
        if key == GROUP:
            name = text
        else:
            by_key[key.removeprefix(f"{GROUP}.")] = parse(text, key)
    node = _read_node(name)
    for key in by_key.keys() - node.keys():
        if others := [other for other in names(GROUP) if key in _read_node(other)]:
            raise ConfigError(
                f"{GROUP}.{key} is an option of {GROUP}={' and '.join(others)}: got {GROUP}={name}"
            )
    options = {**node, **by_key}
    return ChosenEngine(name, build_engine(options), options)


def _read_node(name: str) -> Mapping[str, Any]:
    """Return the content of an engine's YAML file. Raises ConfigError if there is none."""
    existing = names(GROUP)
    if name not in existing:
        raise ConfigError(unknown(GROUP, name, existing))
    node: Mapping[str, Any] = load(ours() / GROUP / f"{name}.yaml")
    return node


def started_by(submission: Mapping[str, Any]) -> Engine:
    """Return the engine of a stored submission. Raises ConfigError.

    Its class comes from lra's file of this name. A class that the submission names is ignored,
    because a stored file must not decide which code runs.
    """
    node = _read_node(str(submission["cluster"]))
    return build_engine({**submission["options"], "class_path": node["class_path"]})


def build_engine(node: Mapping[str, Any]) -> Engine:
    """Return the engine with the options in `node`, of its `class_path`. Raises ConfigError."""
    options = {key: value for key, value in node.items() if key not in ("name", "about")}
    class_path = options.pop("class_path", None)
    if not isinstance(class_path, str):
        raise ConfigError(f"{GROUP}.class_path: got {class_path!r}; wanted the class of an engine")
    return cast(Engine, make(locate(class_path, rooms=("lra",)), options, GROUP))


def check_common(workers: int | None, wait_s: float) -> None:
    """Raise ValueError for values of common options that no engine accepts."""
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise ValueError(
            f"workers: got {workers}; wanted 1 to {MOST_WORKERS:,}, or null for as many as fit"
        )
    if not 0 <= wait_s <= 1e7:
        raise ValueError(f"wait_s: got {wait_s}; wanted seconds from 0 to 1e7")
