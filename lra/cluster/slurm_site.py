"""Asks a SLURM for its partitions with their nodes, its limits, and the states of jobs."""

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lra.cluster import slurm_variables
from lra.errors import ConfigError, unknown

NEEDED = ("sbatch", "srun", "scontrol", "sinfo", "squeue", "scancel")
ASKED_S = 30
"""SLURM must answer within so many seconds."""
MIB = 2**20
DEFAULT_ARRAY = 1001
"""SLURM's own MaxArraySize."""
_UP = ("idle", "mixed", "allocated", "completing", "planned")
"""States of nodes that take jobs, now or later."""
_OVER = re.compile("already completing|already completed|Invalid job id")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Equal nodes of a partition."""

    hosts: str
    count: int
    cpus: int
    memory_bytes: int
    gpus: int


@dataclass(slots=True)
class Partition:
    """Where jobs can run."""

    name: str
    seconds: float | None
    """The longest time of a job; None: no limit."""
    kinds: list[NodeKind] = field(default_factory=list)

    @property
    def hosts(self) -> str:
        """The host names, as SLURM lists them."""
        return ",".join(dict.fromkeys(kind.hosts for kind in self.kinds))


def ask(*command: str) -> str:
    """Return the output of a command of SLURM.

    Raises:
        ConfigError: the command fails; the message has its error.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False,
            timeout=ASKED_S, env=slurm_variables.plain(),
        )  # fmt: skip
    except FileNotFoundError as error:
        raise ConfigError(
            f"cluster=slurm: no {command[0]} on PATH: this machine does not belong to a SLURM "
            "cluster"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(
            f"cluster=slurm: {command[0]} gave no answer within {ASKED_S} s, because SLURM's "
            "controller is busy or down; try again, or choose cluster=local"
        ) from error
    if done.returncode:
        raise ConfigError(
            f"cluster=slurm: {command[0]} failed: {spoken(done.stderr) or spoken(done.stdout)}"
        )
    return done.stdout


def spoken(text: str) -> str:
    """Return the error messages of a program in one line, without its name."""
    lines = (re.sub(r"^\w+: (error: |fatal: )?", "", line.strip()) for line in text.splitlines())
    return "; ".join(dict.fromkeys(line for line in lines if line))


def check_present() -> None:
    """Raise ConfigError if commands of SLURM, or submitit, are missing."""
    lacking = [name for name in NEEDED if shutil.which(name) is None]
    if lacking:
        raise ConfigError(
            f"cluster=slurm: no {', '.join(lacking)} on PATH: this machine does not belong to a "
            "SLURM cluster. Submit from a login node, or choose cluster=local"
        )
    check_submitit()


def check_submitit() -> None:
    """Raise ConfigError if submitit is not installed."""
    try:
        import submitit  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "cluster=slurm: submitit is not installed: type pip install 'lra[slurm]', or set "
            "cluster=local"
        ) from error


def seconds_of(text: str) -> float | None:
    """Return the seconds of a SLURM time, [days-]hours:minutes:seconds; None: unlimited."""
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in parts) or (dash and not days.isdigit()):
        return None  # infinite, UNLIMITED, n/a
    if dash:
        parts = [*parts, "0", "0"][:3]
    total = 0
    for part in parts:
        total = total * 60 + int(part)
    # A single number counts minutes; the last of several counts seconds.
    return float(total * (60 if len(parts) == 1 else 1) + int(days or 0) * 86_400)


def gpus_of(gres: str) -> int:
    """Return the number of GPUs in a node's generic resources: gpu:a100:4(S:0-1),nvme:1 has 4."""
    plain = re.sub(r"\([^)]*\)", "", gres)
    parts = [part.split(":") for part in plain.split(",") if part.split(":")[0] == "gpu"]
    return sum(int(part[-1]) if part[-1].isdigit() else 1 for part in parts)  # `gpu` alone: 1


def partitions() -> tuple[dict[str, Partition], str | None]:
    """Return all partitions by name, and the name of the default one (None: there is none)."""
    fields = "%P|%l|%D|%c|%m|%G|%n"
    by_name: dict[str, Partition] = {}
    default = None
    for line in ask("sinfo", "--noheader", "--exact", "--all", f"--format={fields}").splitlines():
        name, limit, count, cpus, memory, gres, hosts = line.split("|")[:7]
        if name.endswith("*"):
            name = default = name.removesuffix("*")
        entry = by_name.setdefault(name, Partition(name, seconds_of(limit)))
        if count.isdigit() and int(count):
            entry.kinds.append(
                NodeKind(
                    hosts=hosts, count=int(count), cpus=int(cpus.rstrip("+")),
                    memory_bytes=int(memory.rstrip("+")) * MIB, gpus=gpus_of(gres),
                )
            )  # fmt: skip
    return by_name, default


def partition(named: str | None) -> list[Partition]:
    """Return the partitions with these names, for example `gpu,gpu-long`.

    None stands for the names in SBATCH_PARTITION, or else for SLURM's default partition.

    Raises:
        ConfigError: a partition does not exist, or there is no default.
    """
    existing, default = partitions()
    named = named or os.environ.get(slurm_variables.PARTITION) or None
    if named is None and default is None:
        raise ConfigError(
            "cluster.partition: got null, but this SLURM has no default partition; wanted one of "
            f"{', '.join(sorted(existing))}"
        )
    names = (named or default or "").split(",")
    for name in names:
        if name not in existing:
            raise ConfigError(f"cluster.partition: {unknown('partition', name, existing)}")
    return [existing[name] for name in names]


def settings() -> dict[str, str]:
    """Return the configuration of this SLURM by the names in its file, such as ClusterName."""
    lines = ask("scontrol", "show", "config").splitlines()
    pairs = (line.partition("=")[::2] for line in lines if "=" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def array_limit() -> int:
    """Return how many jobs an array may have."""
    text = settings().get("MaxArraySize", "")
    return max(1, int(text)) if text.isdigit() else DEFAULT_ARRAY


def place() -> dict[str, str]:
    """Return the cluster and the user that jobs of this process belong to."""
    user = os.getuid()
    return {"cluster": settings().get("ClusterName", ""), "user": str(user), "named": _name(user)}


def _name(user: int) -> str:
    """Return the name of a user, or the number if there is no name."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:  # a container without a list of users
        return str(user)


def check_cluster(place: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raise ConfigError if the jobs at `place` belong to another cluster than this one."""
    jobs_cluster, this_cluster = place.get("cluster", ""), found.get("ClusterName", "")
    if jobs_cluster != this_cluster:
        raise ConfigError(
            f"cluster=slurm: the jobs belong to the cluster {jobs_cluster!r}, but this is "
            f"{this_cluster!r}: run the command on a machine of that cluster"
        )


def accounts_and_qos() -> tuple[list[str], list[str]]:
    """Return the accounts and the QOS of this user; two empty lists if SLURM has no accounting."""
    if shutil.which("sacctmgr") is None:
        return [], []
    user = os.environ.get("USER") or str(os.getuid())
    query = ("assoc", f"user={user}", "format=Account,QOS")
    try:
        table = ask("sacctmgr", "--noheader", "--parsable2", "show", *query)
    except ConfigError:  # no accounting, and so no limits
        return [], []
    rows = [line.split("|") for line in table.splitlines() if line.count("|") == 1]
    qos = {name for _, names in rows for name in names.split(",") if name}
    return sorted({account for account, _ in rows}), sorted(qos)


class QueuedJob(NamedTuple):
    """A job, or one element of an array, as SLURM's queue lists it."""

    number: str
    state: str
    reason: str
    name: str


def queued_jobs(user: str) -> list[QueuedJob]:
    """Return every job of a user that SLURM still knows, elements of arrays one by one."""
    command = ("squeue", "--noheader", "--all", "--array", "--states=all", f"--user={user}")
    lines = ask(*command, "--format=%i|%T|%r|%j").splitlines()
    return [QueuedJob(*line.split("|", 3)) for line in lines if line.count("|") >= 3]


def cancel(*words: str) -> None:
    """Call scancel with `words`. Its errors about jobs that have just ended are ignored.

    Raises:
        ConfigError: SLURM refuses, for example because the jobs belong to another user.
    """
    try:
        ask("scancel", *words)
    except ConfigError as error:
        parts = str(error).partition("scancel failed: ")[2].split("; ")
        if any("denied" in part for part in parts):
            raise ConfigError(f"{error}; only the owner of the job can end it") from error
        if not all(_OVER.search(part) for part in parts):
            raise


def all_up(names: Sequence[str]) -> bool:
    """Return whether every node of the partitions takes jobs, and none is drained or down."""
    command = ("sinfo", "--noheader", f"--partition={','.join(names)}", "--format=%a|%T")
    rows = [line.split("|") for line in ask(*command).splitlines() if "|" in line]
    return all(up == "up" and state in _UP for up, state in rows)
