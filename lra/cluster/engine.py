"""What starts workers: the protocol of every engine, and the one that the command line chooses."""

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
"""Of the environment of a worker: when its engine ends it, in seconds since 1970."""
QUEUED, RUNNING, ENDED = "queued", "running", "ended"
"""States of jobs that every engine knows."""
SUSPENDED = "suspended"
"""State of a job that its engine holds still, and will let go on."""
FORGOTTEN = "forgotten"
"""State of a job that its engine no longer knows: it ended a while ago."""
STARTS = "starts "
"""Before the command of a worker, in what its job says: what comes first was its way there."""
AGAIN = 75
"""How a worker ends that could go on, had it a whole job's time: BSD's EX_TEMPFAIL."""
STORAGE = 74
"""How a worker ends whose storage failed, as it may not do a while later: BSD's EX_IOERR."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one worker has, or one cell needs."""

    gpus: int = 0
    cpus: int = 1
    memory_bytes: int | None = None
    """None: not known, of a cell; no limit, of a worker."""
    seconds: float | None = None
    """None: not known, of a cell; no limit, of a worker."""

    def hold(self, needed: "Resources") -> bool:
        """Tell whether a cell fits in these; what is not known of it does."""

        def within(have: float | None, need: float | None) -> bool:
            return have is None or need is None or need <= have

        return (
            needed.gpus <= self.gpus
            and needed.cpus <= self.cpus
            and within(self.memory_bytes, needed.memory_bytes)
            and within(self.seconds, needed.seconds)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerGroup:
    """Workers that are alike, for a class of cells: each takes what fits, the largest first."""

    name: str
    count: int
    resources: Resources
    timed: bool | None = None
    """Whether they have machines alone and so take cells that read the clock; None: as it comes."""


class JobState(NamedTuple):
    """What an engine says of one job."""

    state: str
    """queued, running, suspended, ended, forgotten, or a word of the engine, as in timeout."""
    reason: str = ""
    """Why a queued one waits, in the engine's words; "" where it says nothing."""

    @property
    def active(self) -> bool:
        """Whether it runs, or will."""
        return self.state in (QUEUED, RUNNING, SUSPENDED)


class StartedJobs(NamedTuple):
    """What is known of the jobs of one submission, from before they were started."""

    mark: str
    """A word that no other submission has."""
    place: Mapping[str, str]
    """What the engine said of where it starts them."""
    ids: Sequence[str]
    """Of the jobs; none where they could not be noted."""


class Engine(Protocol):
    """Starts workers, and knows what became of them; its fields are the keys of its YAML."""

    @property
    def workers(self) -> int | None:
        """How many to start; None: as many as the engine thinks right."""
        ...

    @property
    def wait_s(self) -> float:
        """Seconds that a worker without work stays while others hold claims."""
        ...

    def check(self, groups: Sequence[WorkerGroup], plan: Path) -> None:
        """Raise ConfigError for what could not be started, of a plan that need not be there yet."""
        ...

    def place(self) -> Mapping[str, str]:
        """Return where jobs are started, so that no others are taken for them: cluster, user."""
        ...

    def submit(
        self, plan: Path, groups: Sequence[WorkerGroup], command: Sequence[str], mark: str
    ) -> list[str]:
        """Start workers and return the ids of their jobs, without waiting for them.

        Args:
            plan: the folder of the stored plan.
            groups: what is to be started; a worker of `groups[i]` gets `--group NAME`.
            command: the program of one worker, as in `[python, -m, lra, work, PLAN]`.
            mark: by which the jobs are found whose ids nobody noted.
        """
        ...

    def states(self, started: Sequence[StartedJobs]) -> Mapping[str, JobState]:
        """Return how each job of submissions of one place is, with or without a noted id.

        Raises ConfigError where that cannot be asked from here.
        """
        ...

    def output(self, plan: Path, job: str) -> Path | None:
        """Return the file of what a job says before its worker begins; None: there is none."""
        ...

    def stop(self, ids: Sequence[str]) -> None:
        """Have the workers of these jobs save what runs and end. Raises ConfigError."""
        ...


@runtime_checkable
class SizesWorkers(Protocol):
    """An engine whose workers have the sizes of the cells."""

    def grouped(self, cells: Sequence[tuple[Resources, bool]]) -> list[WorkerGroup]:
        """Return the workers for cells, from what they need and whether they read the clock."""
        ...


@runtime_checkable
class WritesScripts(Protocol):
    """An engine whose workers are started by a script that a person can read."""

    def script(self, plan: Path, group: WorkerGroup) -> str:
        """Return the script that starts the workers of a group, and what is not known of it yet."""
        ...


class ChosenEngine(NamedTuple):
    """The engine of a command line."""

    name: str
    engine: Engine
    options: Mapping[str, Any]
    """As its file and the words set them: `engine` can be built from these again."""


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words about the cluster, and all others."""
    of_cluster = [w for w in words if w.lstrip("+").partition("=")[0].partition(".")[0] == GROUP]
    return of_cluster, [word for word in words if word not in of_cluster]


def engine_of(words: Sequence[str]) -> ChosenEngine:
    """Return the engine that words like `cluster=local cluster.workers=4` ask for.

    Raises:
        ConfigError: no such engine or option, or a value that it does not take.
    """
    name, by_key = LOCAL, {}
    for word in words:
        key, equals, text = word.lstrip("+").partition("=")
        if not equals or not text:
            raise ConfigError(f"{word}: wanted {key}=VALUE, as in cluster={LOCAL}")
        if key == GROUP:
            name = text
        else:
            by_key[key.removeprefix(f"{GROUP}.")] = parse(text, key)
    node = _node(name)
    for key in by_key.keys() - node.keys():
        if others := [other for other in names(GROUP) if key in _node(other)]:
            raise ConfigError(
                f"{GROUP}.{key} is an option of {GROUP}={' and '.join(others)}: got {GROUP}={name}"
            )
    options = {**node, **by_key}
    return ChosenEngine(name, build_engine(options), options)


def _node(name: str) -> Mapping[str, Any]:
    """Return what stands in the file of an engine. Raises ConfigError where there is none."""
    existing = names(GROUP)
    if name not in existing:
        raise ConfigError(unknown(GROUP, name, existing))
    node: Mapping[str, Any] = load(ours() / GROUP / f"{name}.yaml")
    return node


def started_by(submission: Mapping[str, Any]) -> Engine:
    """Return the engine of a stored submission, whose class is that of its name.

    Raises ConfigError.

    What a store calls a class is not called.
    """
    node = _node(str(submission["cluster"]))
    return build_engine({**submission["options"], "class_path": node["class_path"]})


def build_engine(node: Mapping[str, Any]) -> Engine:
    """Return the engine that a node of options describes. Raises ConfigError."""
    options = {key: value for key, value in node.items() if key not in ("name", "about")}
    class_path = options.pop("class_path", None)
    if not isinstance(class_path, str):
        raise ConfigError(f"{GROUP}.class_path: got {class_path!r}; wanted the class of an engine")
    return cast(Engine, make(locate(class_path, rooms=("lra",)), options, GROUP))


def check_common(workers: int | None, wait_s: float) -> None:
    """Refuse values that no engine can take. Raises ValueError."""
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise ValueError(
            f"workers: got {workers}; wanted 1 to {MOST_WORKERS:,}, or null for as many as fit"
        )
    if not 0 <= wait_s <= 1e7:
        raise ValueError(f"wait_s: got {wait_s}; wanted seconds from 0 to 1e7")
