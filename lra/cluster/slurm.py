"""Workers as jobs of SLURM, in arrays within its limits, submitted through submitit."""

import math
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lra.cluster import slurm_site as site, slurm_variables as variables
from lra.cluster.engine import (
    ENDED,
    FORGOTTEN,
    QUEUED,
    RUNNING,
    SUSPENDED,
    JobState,
    Resources,
    StartedJobs,
    WorkerGroup,
    check_common,
)
from lra.cluster.resources import GIB, HEADROOM, time_of, with_clock, worker_groups
from lra.cluster.slurm_job import WorkerJob
from lra.cluster.slurm_python import check_python
from lra.cluster.visibility import check_pattern, check_shared, leave_token
from lra.errors import ConfigError, near
from lra.runners.storage.atomic import make_folder

FOREVER = 10**9
"""A job is queued again after so many time limits, that is, always."""
MOST_HOURS = 24 * 366
EARLY_S = 60
"""SLURM may signal so many seconds earlier than it is asked to."""
USUAL_WORKERS = 32
MOST_CANCELLED = 1000
"""At most so many jobs are named in one command."""
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
AT_WORK = ("RUNNING", "COMPLETING", "SIGNALING", "STAGE_OUT", "RESIZING")
STILL = ("SUSPENDED", "STOPPED")
RESERVED = {
    "array", "cpus-per-task", "error", "exclusive", "gpus-per-node", "job-name", "mem", "nodes",
    "ntasks-per-node", "open-mode", "output", "requeue", "no-requeue", "signal", "time",
    "partition", "account", "qos", "constraint", "clusters", "wait", "test-only", "parsable",
}  # fmt: skip
"""Options of sbatch that the engine sets itself."""
OUTPUTS = "slurm"
"""The folder of a plan with the outputs of jobs."""
NOT_NOW = "Requested node configuration is not available"
"""Error of `sbatch --test-only` if no node can run the job, for ever or only now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmEngine:
    """Submits workers as jobs of SLURM; conf/cluster/slurm.yaml explains each field."""

    workers: int | None = None
    wait_s: float = 360.0
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    hours: float | None = None
    gpus: int | None = None
    cpus: int | None = None
    memory_gb: float | None = None
    exclusive: bool | None = None
    signal_s: int = 120
    requeue: bool = True
    results_shared: bool = False
    python: str | None = None
    setup: list[str] = field(default_factory=list)
    sbatch: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError for values that SLURM never accepts."""
        check_common(self.workers, self.wait_s)
        for name, least, most in (
            ("hours", 1 / 60, MOST_HOURS), ("gpus", 0, 4096), ("cpus", 1, 4096),
            ("memory_gb", 0.25, 2**20), ("signal_s", 1, 65_535),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                limits = f"{least:.2g} to {most:,}"
                raise ValueError(f"{name}: got {value}; wanted {limits}")
        if self.hours is not None and (asked := _minutes(self.hours * 3600)) < self._shortest_s:
            raise ValueError(
                f"hours: got {self.hours}, which are {asked:.0f} s in whole minutes; wanted "
                f"{self._shortest_s / 3600:.3g} or more, because a worker needs the last "
                f"{self.signal_s} s (signal_s) to save, and SLURM may signal a minute early"
            )
        for name, value in self.sbatch.items():
            if not re.fullmatch(r"-{0,2}[a-z][a-z_-]*", str(name)) or not (
                value is True or isinstance(value, str | int | float)
            ):
                raise ValueError(
                    f"sbatch: got {name}: {value}; wanted long options with their values (true if "
                    "an option has none), such as 'cluster.sbatch={reservation: maintenance}'"
                )
        if taken := sorted(RESERVED & {name.lstrip("-").replace("_", "-") for name in self.sbatch}):
            raise ValueError(
                f"sbatch: got {', '.join(taken)}; wanted options that lra does not set itself; "
                "see cluster.hours, cluster.partition and so on"
            )

    @property
    def _shortest_s(self) -> int:
        """The shortest time limit, in seconds, in which a worker can save."""
        return self.signal_s + EARLY_S

    def grouped(self, cells: Sequence[tuple[Resources, bool]]) -> list[WorkerGroup]:
        """Return groups of workers by the sizes of the cells; timed cells get separate groups."""
        needs = [need for need, _ in cells] or [Resources()]
        workers = min(self.workers or USUAL_WORKERS, len(needs))
        if self.exclusive is None and any(timed for _, timed in cells):
            return with_clock(cells, workers)
        return worker_groups(needs, workers)

    def check(self, groups: Sequence[WorkerGroup], plan: Path) -> None:
        """Raise ConfigError with everything that SLURM would refuse, or would never start."""
        site.check_present()
        set_options = self._list_given()
        if words := variables.overruled_words(set_options, partition=self.partition is not None):
            print(words, file=sys.stderr)
        faults: list[str] = []

        def collect(check: Callable[..., Any], *arguments: Any) -> Any:
            """Return what a check returns, or None and its fault in `faults`."""
            try:
                return check(*arguments)
            except ConfigError as error:
                faults.append(str(error))

        partitions = collect(site.partition, self.partition) or []
        collect(self._check_allowed)
        collect(check_pattern, plan)
        if partitions:
            collect(self._check_python, partitions)
            collect(self._check_folder, plan, partitions)
        for group in groups if partitions else ():
            collect(self._check_size, group, partitions)
            collect(self._check_time, group, partitions)
        for group in () if faults else groups:  # SLURM would repeat the faults
            collect(self._check_by_slurm, group, partitions)
        if faults:
            raise ConfigError("\n".join(dict.fromkeys(faults)))

    def place(self) -> Mapping[str, str]:
        """Return the cluster and the user of the jobs."""
        return site.place()

    def submit(
        self, plan: Path, groups: Sequence[WorkerGroup], command: Sequence[str], mark: str
    ) -> list[str]:
        """Submit workers in arrays of at most MaxArraySize jobs; return the ids of all jobs."""
        partitions = site.partition(self.partition)
        token, array_size = leave_token(plan), site.array_limit()
        ids: list[str] = []
        for group in groups:
            worker_words = [self.python or command[0], *command[1:], "--group", group.name]
            limit = self.resources_of(group, partitions).seconds
            seconds = None if limit is None else max(0.0, limit - self.signal_s)
            command_of = [*worker_words, "--workers", "1"]
            job = WorkerJob(command_of, token, requeue=self.requeue, seconds=seconds)
            for first in range(0, group.count, array_size):
                part = min(array_size, group.count - first)
                try:
                    ids += self._submit(
                        plan, group, partitions, job, count=part, name=_job_name(mark)
                    )
                except ConfigError:
                    self.stop(ids)
                    raise
        return ids

    def states(self, started: Sequence[StartedJobs]) -> Mapping[str, JobState]:
        """Return the state of each job: queued with SLURM's reason, running, or how it ended.

        Jobs are found by their name, which has the mark of the submission: numbers of jobs are
        used again, on other clusters and after some time on the same one.
        """
        settings = site.settings()
        queued = {user: site.queued_jobs(user) for user in {_owner(jobs) for jobs in started}}
        states: dict[str, JobState] = {}
        for jobs in started:
            site.check_cluster(jobs.place, settings)
            name = _job_name(jobs.mark)
            listed = {job.number: _state(job) for job in queued[_owner(jobs)] if job.name == name}
            if not listed and (owner := _hidden(jobs, settings)):
                raise ConfigError(
                    f"cluster=slurm: the jobs belong to {owner}, and SLURM hides them from other "
                    f"users here (PrivateData): run the command as {owner}"
                )
            # SLURM lists an array that was cancelled before it began as one job, without elements.
            arrays = {
                job: listed.get(job.partition("_")[0], JobState(FORGOTTEN)) for job in jobs.ids
            }
            states |= {job: listed.get(job, arrays[job]) for job in jobs.ids}
            numbers = {job.partition("_")[0] for job in jobs.ids}
            # Jobs without a stored id belong to a submission that was killed before it stored them.
            states |= {job: listed[job] for job in listed if "_" in job or job not in numbers}
        return states

    def output(self, plan: Path, job: str) -> Path | None:
        """Return the file into which sbatch writes the output of a job."""
        return plan / OUTPUTS / f"{job}_0_log.out"

    def stop(self, ids: Sequence[str]) -> None:
        """Remove queued jobs from the queue, and make running ones save and end."""
        for first in range(0, len(ids), MOST_CANCELLED):
            numbers = ids[first : first + MOST_CANCELLED]
            site.cancel("--state=PENDING", *numbers)
            site.cancel("--signal=TERM", *numbers)

    def resources_of(self, group: WorkerGroup, there: Sequence[site.Partition]) -> Resources:
        """Return the resources that one worker of a group requests from SLURM."""
        needed = group.resources
        gpus = needed.gpus if self.gpus is None else self.gpus
        cpus = needed.cpus if self.cpus is None else self.cpus
        memory = None if self.memory_gb is None else int(self.memory_gb * GIB)
        if memory is None and needed.memory_bytes is not None and not gpus:
            memory = math.ceil(HEADROOM * needed.memory_bytes / GIB) * GIB
        if memory is None:
            memory = _share_of(cpus, gpus, there)
        limits = [part.seconds for part in there]
        limit = None if None in limits else max((s for s in limits if s is not None), default=None)
        return Resources(
            gpus=gpus, cpus=cpus, memory_bytes=memory,
            seconds=_minutes(time_of(needed.seconds, self.hours, limit)),
        )  # fmt: skip

    def _check_python(self, there: Sequence[site.Partition]) -> None:
        """Raise ConfigError if the nodes cannot run the Python that starts workers."""
        if self.python is not None:
            check_python(self.python, prepared=bool(self.setup))
        elif not _at_home(there):
            check_shared(
                Path(sys.prefix), "Python's environment", _list_hosts(there),
                "make one that all nodes can read, or set cluster.python=PATH to one of theirs",
            )  # fmt: skip

    def _check_folder(self, plan: Path, there: Sequence[site.Partition]) -> None:
        """Raise ConfigError if the nodes cannot see the folder of the plan."""
        if not self.results_shared and not _at_home(there):
            check_shared(
                plan, "the results folder", _list_hosts(there),
                "set results=DIR to a shared folder, or cluster.results_shared=true for this one",
            )  # fmt: skip

    def _check_size(self, group: WorkerGroup, there: Sequence[site.Partition]) -> None:
        """Raise ConfigError if no node of the partitions `there` has what a worker requests."""
        need = self.resources_of(group, there)
        kinds = [kind for part in there for kind in part.kinds]
        names = ",".join(part.name for part in there)
        if not kinds:
            raise ConfigError(f"cluster.partition: {names} has no nodes; choose another partition")
        if group.resources.gpus > need.gpus:
            raise ConfigError(
                f"cluster.gpus: got {need.gpus}; wanted {group.resources.gpus} or more, which a "
                "run needs (hardware.processes, hardware.device)"
            )
        if not any(_holds(kind, need) for kind in kinds):
            sizes = [f"{kind.gpus} GPUs, {kind.cpus} cores, {kind.memory_bytes / GIB:,.0f} GiB"
                    for kind in kinds]  # fmt: skip
            memory = need.memory_bytes
            room = "" if memory is None else f" and {memory / GIB:,.0f} GiB"
            fitting = [part.name for part in site.partitions()[0].values()
                      if any(_holds(kind, need) for kind in part.kinds)]  # fmt: skip
            raise ConfigError(
                f"cluster=slurm: a worker ({group.name}) needs {need.gpus} GPUs, {need.cpus} "
                f"cores{room} at once, but the nodes of {names} have "
                f"{' or '.join(dict.fromkeys(sizes))}; choose another partition "
                f"({', '.join(fitting) or 'none has enough'}), set "
                "hardware.processes, hardware.threads or optim.micro_batch_size lower, or "
                "cluster.gpus, cluster.cpus or cluster.memory_gb"
            )

    def _check_time(self, group: WorkerGroup, there: Sequence[site.Partition]) -> None:
        """Raise ConfigError if the time limit is too long for the partitions, or for a run."""
        need = self.resources_of(group, there)
        names = ",".join(part.name for part in there)
        limit = max((part.seconds or math.inf for part in there), default=math.inf)
        if (need.seconds or 0) > limit:
            raise ConfigError(
                f"cluster.hours: got {self.hours}; wanted at most {limit / 3600:.3g}, the limit of "
                f"{names}; a short limit is safe, because the next job resumes from saved states"
            )
        longest, usable = group.resources.seconds or 0.0, (need.seconds or 0) - self.signal_s
        if group.timed and longest > usable > 0:
            raise ConfigError(
                f"cluster.hours: a timed run takes about {longest / 3600:.3g} h "
                f"without interruption, but a job of {names} would have {usable / 3600:.3g} h; set "
                "cluster.hours higher, or choose a partition that allows more"
            )
        if (need.seconds or math.inf) < self._shortest_s:
            raise ConfigError(
                f"cluster.signal_s: got {self.signal_s}; {names} allows jobs of "
                f"{need.seconds:.0f} s, and SLURM may send its signal a minute early; wanted "
                f"{(need.seconds or 0) - EARLY_S:.0f} or less"
            )

    def _check_allowed(self) -> None:
        """Raise ConfigError for an account or QOS that this user does not have."""
        accounts, qos = site.accounts_and_qos()
        for name, value, known in (("account", self.account, accounts), ("qos", self.qos, qos)):
            if value is not None and known and value not in known:  # []: SLURM names none
                like = near(value, known)
                hint = f": did you mean {like[0]!r}?" if like else "."
                raise ConfigError(
                    f"cluster.{name}: {value!r} is not available to you{hint} Available: "
                    f"{', '.join(known)}"
                )

    def script(self, plan: Path, group: WorkerGroup) -> str:
        """Return the script of a group's first array, with WORD in place of the submission's mark.

        On a machine without SLURM, it has no limits of the partition.
        """
        try:
            partitions, array_size = site.partition(self.partition), site.array_limit()
        except ConfigError:
            partitions, array_size = [], site.DEFAULT_ARRAY
        python, count = self.python or sys.executable, min(group.count, array_size)
        executor = _executor(plan / OUTPUTS, python)
        parameters = self._parameters(group, partitions, _job_name(f"{plan.name}-WORD"))
        executor.update_parameters(**parameters, array_parallelism=count)
        if count > 1:  # submitit then writes an array of jobs
            executor.parameters["map_count"] = count
        text = executor._make_submission_file_text(executor._submitit_command_str, "0")
        command = f"{python} -m lra work {plan} --group {group.name} --workers 1"
        return f"{text}\n# WORD stands for six letters of the submission. Each job starts {command}"

    def _make_script(self, group: WorkerGroup, there: Sequence[site.Partition]) -> str:
        """Return a script with the options of a group's jobs, which does nothing."""
        executor = _executor(Path(), "")
        executor.update_parameters(**self._parameters(group, there))
        return str(executor._make_submission_file_text("true", "0"))

    def _check_by_slurm(self, group: WorkerGroup, there: Sequence[site.Partition]) -> None:
        """Let SLURM check the options of a group's jobs without submitting. Raises ConfigError."""
        text = self._make_script(group, there)
        try:
            done = subprocess.run(
                ["sbatch", "--test-only"], input=text, capture_output=True, text=True, check=False,
                timeout=site.ASKED_S, env=variables.plain(self._list_given()),
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ConfigError(
                f"cluster=slurm: sbatch gave no answer within {site.ASKED_S} s; try again"
            ) from error
        names = [part.name for part in there]
        if done.returncode and NOT_NOW in done.stderr and not site.all_up(names):
            # sbatch would queue the job until its drained or down nodes are back: no error.
            print(
                f"nodes of {','.join(names)} are drained, down or reserved: workers "
                f"({group.name}) wait for them", file=sys.stderr,
            )  # fmt: skip
        elif done.returncode:
            options = re.findall(r"^#SBATCH (--(?!output|error|open|wckey).*)$", text, re.MULTILINE)
            raise ConfigError(
                f"cluster=slurm: SLURM refuses a worker ({group.name}): "
                f"{site.spoken(done.stderr)}; lra asked for {' '.join(options)}"
            )

    def _parameters(
        self, group: WorkerGroup, there: Sequence[site.Partition], name: str = "lra"
    ) -> dict[str, Any]:
        """Return submitit's parameters for the jobs `name` of a group on the partitions `there`."""
        need = self.resources_of(group, there)
        extra = {key.lstrip("-").replace("_", "-"): value for key, value in self.sbatch.items()}
        values: dict[str, Any] = {
            "job_name": name,
            "partition": ",".join(part.name for part in there) or self.partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "nodes": 1,
            "ntasks_per_node": 1,
            "cpus_per_task": need.cpus,
            "gpus_per_node": need.gpus or None,
            "mem": f"{need.memory_bytes // site.MIB}M" if need.memory_bytes else None,
            "time": round((need.seconds or 60) / 60),
            "signal_delay_s": self.signal_s,
            "exclusive": self._is_alone(group) or None,
            "setup": self.setup or None,
            "stderr_to_stdout": True,
            "additional_parameters": {"requeue" if self.requeue else "no-requeue": True, **extra},
            # Since SLURM 22.05, srun does not use all cores of its job unless it is told to.
            "srun_args": [f"--cpus-per-task={need.cpus}"],
        }
        # By default submitit sends its key for accounting (wckey), which few clusters accept.
        return {**{key: value for key, value in values.items() if value is not None}, "wckey": None}

    def _list_given(self) -> set[str]:
        """Return the options of sbatch that the command line sets, so that no variable may."""
        fields = {n for n in ("account", "qos", "constraint") if getattr(self, n) is not None}
        return fields | {name.lstrip("-").replace("_", "-") for name in self.sbatch}

    def _is_alone(self, group: WorkerGroup) -> bool:
        """Return whether workers get whole nodes; by default, those of timed cells."""
        return bool(group.timed) if self.exclusive is None else self.exclusive

    def _submit(
        self, plan: Path, group: WorkerGroup, there: Sequence[site.Partition], job: WorkerJob,
        *, count: int, name: str,
    ) -> list[str]:  # fmt: skip
        """Submit one array of `count` jobs; return their ids. Raises ConfigError."""
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        executor = _executor(make_folder(plan / OUTPUTS), self.python or sys.executable)
        executor.update_parameters(**self._parameters(group, there, name), array_parallelism=count)
        try:
            with variables.without_overruled(self._list_given()), executor.batch():
                jobs = [executor.submit(job) for _ in range(count)]
            return [str(started.job_id) for started in jobs]
        except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError) as error:
            raise ConfigError(
                f"cluster=slurm: sbatch refused {count} workers ({group.name}): "
                f"{site.spoken(str(error))}"
            ) from error


def _executor(folder: Path, python: str) -> Any:
    """Return submitit's executor, which queues a job again after each time limit."""
    import shlex

    site.check_submitit()
    import submitit

    class Executor(submitit.SlurmExecutor):
        """An executor that also works without SLURM, to write scripts; `check` looks for SLURM."""

        @classmethod
        def affinity(cls) -> int:
            return 1  # submitit refuses an executor without affinity to this machine

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Executor(folder=folder, max_num_timeout=FOREVER, python=shlex.quote(python))


def _at_home(there: Sequence[site.Partition]) -> bool:
    """Return whether this machine is the only node."""
    import socket

    names = {socket.gethostname(), socket.gethostname().partition(".")[0], "localhost"}
    return {kind.hosts for part in there for kind in part.kinds} <= names


def _list_hosts(there: Sequence[site.Partition]) -> str:
    return ",".join(part.hosts for part in there)


def _holds(kind: site.NodeKind, asked: Resources) -> bool:
    """Return whether a node has the requested resources; `_check_time` checks the time limit."""
    node = Resources(gpus=kind.gpus, cpus=kind.cpus, memory_bytes=kind.memory_bytes)
    return node.hold(replace(asked, seconds=None))


def _share_of(cpus: int, gpus: int, there: Sequence[site.Partition]) -> int | None:
    """Return a worker's share of a node's memory by its cores and GPUs, the least of all nodes."""
    shares = [
        int(kind.memory_bytes * max(cpus / kind.cpus, gpus / kind.gpus if gpus else 0.0))
        for part in there
        for kind in part.kinds
        if kind.cpus >= cpus and kind.gpus >= gpus
    ]
    return min(shares, default=None)


def _minutes(seconds: float) -> float:
    """Round a time in seconds down to whole minutes, which is the unit of SLURM's limits."""
    return 60.0 * max(1, math.floor(seconds / 60))


def _state(job: site.QueuedJob) -> JobState:
    """Return the state of a job in the words of `lra.cluster.engine`."""
    if job.state in WAITING:
        return JobState(QUEUED, "" if job.reason == "None" else job.reason)
    if job.state in AT_WORK:
        return JobState(RUNNING)
    if job.state in STILL:
        return JobState(SUSPENDED)
    return JobState(ENDED if job.state == "COMPLETED" else job.state.lower())


def _job_name(mark: str) -> str:
    return f"lra-{mark}"


def _owner(started: StartedJobs) -> str:
    """Return the number of the user who owns the jobs; this user if the note names none."""
    user = started.place.get("user", "")
    return user if user.isdigit() else str(os.getuid())


def _hidden(started: StartedJobs, found: Mapping[str, str]) -> str:
    """Return the owner of jobs that SLURM hides from this user; "" if it shows them."""
    private = "jobs" in found.get("PrivateData", "").lower().split(",")
    if not private or os.getuid() == 0 or _owner(started) == str(os.getuid()):
        return ""
    return started.place.get("named") or _owner(started)
