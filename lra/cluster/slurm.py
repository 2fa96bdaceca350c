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
"""Time limits after which a worker is still queued again."""
MOST_HOURS = 24 * 366
EARLY_S = 60
"""By how much SLURM may signal earlier than it is asked to."""
USUAL_WORKERS = 32
MOST_CANCELLED = 1000
"""Jobs that one command names."""
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
"""Folder of a plan with what jobs say."""
NOT_NOW = "Requested node configuration is not available"
"""How `sbatch --test-only` refuses what no node can take, and what none can take just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmEngine:
    """Submits workers; conf/cluster/slurm.yaml says what each field means."""

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
        """Refuse values that no SLURM takes."""
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
                f"hours: got {self.hours}, {asked:.0f} s in SLURM's whole minutes, of which the "
                f"last {self.signal_s} s are for saving (signal_s), and SLURM may send its signal "
                f"a minute early; wanted {self._shortest_s / 3600:.3g} or more"
            )
        for name, value in self.sbatch.items():
            if not re.fullmatch(r"-{0,2}[a-z][a-z_-]*", str(name)) or not (
                value is True or isinstance(value, str | int | float)
            ):
                raise ValueError(
                    f"sbatch: got {name}: {value}; wanted long options with values, as in "
                    "'cluster.sbatch={reservation: maintenance}'; true for one without a value"
                )
        if taken := sorted(RESERVED & {name.lstrip("-").replace("_", "-") for name in self.sbatch}):
            raise ValueError(
                f"sbatch: got {', '.join(taken)}; wanted other options; set these by "
                "cluster.hours, cluster.partition and so on, or leave them to lra"
            )

    @property
    def _shortest_s(self) -> int:
        return self.signal_s + EARLY_S

    def grouped(self, cells: Sequence[tuple[Resources, bool]]) -> list[WorkerGroup]:
        """Return workers by the sizes of the cells; those that read the clock have their own."""
        needs = [need for need, _ in cells] or [Resources()]
        workers = min(self.workers or USUAL_WORKERS, len(needs))
        if self.exclusive is None and any(timed for _, timed in cells):
            return with_clock(cells, workers)
        return worker_groups(needs, workers)

    def check(self, groups: Sequence[WorkerGroup], plan: Path) -> None:
        """Raise ConfigError with all that is known that SLURM would refuse, or hold for ever."""
        site.check_present()
        given = self._given()
        if words := variables.overruled_words(given, partition=self.partition is not None):
            print(words, file=sys.stderr)
        found: list[str] = []

        def asked(check: Callable[..., Any], *given: Any) -> Any:
            try:
                return check(*given)
            except ConfigError as error:  # the next checks are made, too
                found.append(str(error))

        there = asked(site.partition, self.partition) or []
        asked(self._check_allowed)
        asked(check_pattern, plan)
        if there:
            asked(self._check_python, there)
            asked(self._check_folder, plan, there)
        for group in groups if there else ():
            asked(self._check_size, group, there)
            asked(self._check_time, group, there)
        for group in () if found else groups:  # it would say the same in other words
            asked(self._check_by_slurm, group, there)
        if found:
            raise ConfigError("\n".join(dict.fromkeys(found)))

    def place(self) -> Mapping[str, str]:
        """Return the cluster and the user that jobs are of."""
        return site.place()

    def submit(
        self, plan: Path, groups: Sequence[WorkerGroup], command: Sequence[str], mark: str
    ) -> list[str]:
        """Submit arrays of workers, as long as MaxArraySize allows; return the ids of all."""
        there = site.partition(self.partition)
        token, most = leave_token(plan), site.array_limit()
        ids: list[str] = []
        for group in groups:
            words = [self.python or command[0], *command[1:], "--group", group.name]
            limit = self.resources_of(group, there).seconds
            seconds = None if limit is None else max(0.0, limit - self.signal_s)
            command_of = [*words, "--workers", "1"]
            job = WorkerJob(command_of, token, requeue=self.requeue, seconds=seconds)
            for first in range(0, group.count, most):
                part = min(most, group.count - first)
                try:
                    ids += self._submit(plan, group, there, job, count=part, name=_job_name(mark))
                except ConfigError:
                    self.stop(ids)
                    raise
        return ids

    def states(self, started: Sequence[StartedJobs]) -> Mapping[str, JobState]:
        """Return queued, with SLURM's reason, running, ended, or how it ended otherwise.

        A number is that of another job on another cluster, and one day on the same: the name
        decides, which holds the mark of the submission.
        """
        found = site.settings()
        queued = {user: site.queued_jobs(user) for user in {_owner(each) for each in started}}
        states: dict[str, JobState] = {}
        for each in started:
            site.check_cluster(each.place, found)
            name = _job_name(each.mark)
            own = {job.number: _state(job) for job in queued[_owner(each)] if job.name == name}
            if not own and (who := _hidden(each, found)):
                raise ConfigError(
                    f"cluster=slurm: its jobs belong to {who}, and SLURM hides them from other "
                    f"users here (PrivateData): run the command as {who}"
                )
            # An array that was cancelled before any of it began is one job again, without elements.
            whole = {job: own.get(job.partition("_")[0], JobState(FORGOTTEN)) for job in each.ids}
            states |= {job: own.get(job, whole[job]) for job in each.ids}
            noted = {job.partition("_")[0] for job in each.ids}
            states |= {job: own[job] for job in own if "_" in job or job not in noted}
        return states

    def output(self, plan: Path, job: str) -> Path | None:
        """Return the file that sbatch gives a job's words to."""
        return plan / OUTPUTS / f"{job}_0_log.out"

    def stop(self, ids: Sequence[str]) -> None:
        """Take what is queued out of the queue, and have what runs save and end."""
        for first in range(0, len(ids), MOST_CANCELLED):
            some = ids[first : first + MOST_CANCELLED]
            site.cancel("--state=PENDING", *some)
            site.cancel("--signal=TERM", *some)

    def resources_of(self, group: WorkerGroup, there: Sequence[site.Partition]) -> Resources:
        """Return what one worker of a group asks SLURM for."""
        cells = group.resources
        gpus = cells.gpus if self.gpus is None else self.gpus
        cpus = cells.cpus if self.cpus is None else self.cpus
        memory = None if self.memory_gb is None else int(self.memory_gb * GIB)
        if memory is None and cells.memory_bytes is not None and not gpus:
            memory = math.ceil(HEADROOM * cells.memory_bytes / GIB) * GIB
        if memory is None:
            memory = _share(cpus, gpus, there)
        limits = [part.seconds for part in there]
        limit = None if None in limits else max((s for s in limits if s is not None), default=None)
        return Resources(
            gpus=gpus, cpus=cpus, memory_bytes=memory,
            seconds=_minutes(time_of(cells.seconds, self.hours, limit)),
        )  # fmt: skip

    def _check_python(self, there: Sequence[site.Partition]) -> None:
        if self.python is not None:
            check_python(self.python, prepared=bool(self.setup))
        elif not _at_home(there):
            check_shared(
                Path(sys.prefix), "Python's environment", _hosts(there),
                "make one that all nodes see, or name their Python by cluster.python=PATH",
            )  # fmt: skip

    def _check_folder(self, plan: Path, there: Sequence[site.Partition]) -> None:
        if not self.results_shared and not _at_home(there):
            check_shared(
                plan, "the results folder", _hosts(there),
                "give results=DIR on a shared one, or cluster.results_shared=true if it is",
            )  # fmt: skip

    def _check_size(self, group: WorkerGroup, there: Sequence[site.Partition]) -> None:
        asked = self.resources_of(group, there)
        kinds = [kind for part in there for kind in part.kinds]
        names = ",".join(part.name for part in there)
        if not kinds:
            raise ConfigError(f"cluster.partition: {names} has no nodes; choose another")
        if group.resources.gpus > asked.gpus:
            raise ConfigError(
                f"cluster.gpus: got {asked.gpus}; a run needs {group.resources.gpus} "
                "(hardware.processes, hardware.device)"
            )
        if not any(_holds(kind, asked) for kind in kinds):
            most = [f"{kind.gpus} GPUs, {kind.cpus} cores, {kind.memory_bytes / GIB:,.0f} GiB"
                    for kind in kinds]  # fmt: skip
            memory = asked.memory_bytes
            room = "" if memory is None else f" and {memory / GIB:,.0f} GiB"
            others = [part.name for part in site.partitions()[0].values()
                      if any(_holds(kind, asked) for kind in part.kinds)]  # fmt: skip
            raise ConfigError(
                f"cluster=slurm: a worker ({group.name}) needs {asked.gpus} GPUs, {asked.cpus} "
                f"cores{room} at once, and the nodes of {names} have "
                f"{' or '.join(dict.fromkeys(most))}; choose another partition "
                f"({', '.join(others) or 'none has enough'}), set "
                "hardware.processes, hardware.threads or optim.micro_batch_size lower, or "
                "cluster.gpus, cluster.cpus or cluster.memory_gb"
            )

    def _check_time(self, group: WorkerGroup, there: Sequence[site.Partition]) -> None:
        asked = self.resources_of(group, there)
        names = ",".join(part.name for part in there)
        limit = max((part.seconds or math.inf for part in there), default=math.inf)
        if (asked.seconds or 0) > limit:
            raise ConfigError(
                f"cluster.hours: got {self.hours}; {names} allows {limit / 3600:.3g} at most; "
                "the next job resumes from the saved states, so a short limit is safe"
            )
        longest, usable = group.resources.seconds or 0.0, (asked.seconds or 0) - self.signal_s
        if group.timed and longest > usable > 0:
            raise ConfigError(
                f"cluster.hours: a timed run takes about {longest / 3600:.3g} h "
                f"without interruption, and a job of {names} would have {usable / 3600:.3g} h; set "
                "cluster.hours higher, or choose a partition that allows more"
            )
        if (asked.seconds or math.inf) < self._shortest_s:
            raise ConfigError(
                f"cluster.signal_s: got {self.signal_s}; {names} allows jobs of "
                f"{asked.seconds:.0f} s, and SLURM may send its signal a minute early; wanted "
                f"{(asked.seconds or 0) - EARLY_S:.0f} or less"
            )

    def _check_allowed(self) -> None:
        accounts, qos = site.accounts_and_qos()
        for name, value, known in (("account", self.account, accounts), ("qos", self.qos, qos)):
            if value is not None and known and value not in known:
                like = near(value, known)
                hint = f": did you mean {like[0]!r}?" if like else "."
                raise ConfigError(
                    f"cluster.{name}: {value!r} is not available to you{hint} Available: "
                    f"{', '.join(known)}"
                )

    def script(self, plan: Path, group: WorkerGroup) -> str:
        """Return the script of a group's first array; WORD in its name is one of the submission.

        Where SLURM is not, no partition is known by its limits and nodes.
        """
        try:
            there, most = site.partition(self.partition), site.array_limit()
        except ConfigError:
            there, most = [], site.DEFAULT_ARRAY
        python, count = self.python or sys.executable, min(group.count, most)
        executor = _executor(plan / OUTPUTS, python)
        parameters = self._parameters(group, there, _job_name(f"{plan.name}-WORD"))
        executor.update_parameters(**parameters, array_parallelism=count)
        if count > 1:
            executor.parameters["map_count"] = count
        text = executor._make_submission_file_text(executor._submitit_command_str, "0")
        command = f"{python} -m lra work {plan} --group {group.name} --workers 1"
        return f"{text}\n# WORD: six letters of the submission; each job starts {command}"

    def _script(self, group: WorkerGroup, there: Sequence[site.Partition]) -> str:
        executor = _executor(Path(), "")
        executor.update_parameters(**self._parameters(group, there))
        return str(executor._make_submission_file_text("true", "0"))

    def _check_by_slurm(self, group: WorkerGroup, there: Sequence[site.Partition]) -> None:
        """Have SLURM itself judge the very options, without submitting."""
        text = self._script(group, there)
        try:
            done = subprocess.run(
                ["sbatch", "--test-only"], input=text, capture_output=True, text=True, check=False,
                timeout=site.ASKED_S, env=variables.plain(self._given()),
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ConfigError(
                f"cluster=slurm: sbatch gave no answer within {site.ASKED_S} s; try again"
            ) from error
        names = [part.name for part in there]
        if done.returncode and NOT_NOW in done.stderr and not site.all_up(names):
            # Of nodes that are drained or down: sbatch itself queues the job until they are back.
            print(
                f"nodes of {','.join(names)} are drained, down or reserved: workers "
                f"({group.name}) wait for them", file=sys.stderr,
            )  # fmt: skip
        elif done.returncode:
            asked = re.findall(r"^#SBATCH (--(?!output|error|open|wckey).*)$", text, re.MULTILINE)
            raise ConfigError(
                f"cluster=slurm: SLURM refuses a worker ({group.name}): "
                f"{site.spoken(done.stderr)}; asked for {' '.join(asked)}"
            )

    def _parameters(
        self, group: WorkerGroup, there: Sequence[site.Partition], name: str = "lra"
    ) -> dict[str, Any]:
        asked = self.resources_of(group, there)
        more = {key.lstrip("-").replace("_", "-"): value for key, value in self.sbatch.items()}
        values: dict[str, Any] = {
            "job_name": name,
            "partition": ",".join(part.name for part in there) or self.partition,
            "account": self.account,
            "qos": self.qos,
            "constraint": self.constraint,
            "nodes": 1,
            "ntasks_per_node": 1,
            "cpus_per_task": asked.cpus,
            "gpus_per_node": asked.gpus or None,
            "mem": f"{asked.memory_bytes // site.MIB}M" if asked.memory_bytes else None,
            "time": round((asked.seconds or 60) / 60),
            "signal_delay_s": self.signal_s,
            "exclusive": self._alone(group) or None,
            "setup": self.setup or None,
            "stderr_to_stdout": True,
            "additional_parameters": {"requeue" if self.requeue else "no-requeue": True, **more},
            # Since 22.05 srun does not ask for the cores of its job by itself.
            "srun_args": [f"--cpus-per-task={asked.cpus}"],
        }
        # submitit's own key of accounts, "submitit", is one that a site would have to know.
        return {**{key: value for key, value in values.items() if value is not None}, "wckey": None}

    def _given(self) -> set[str]:
        """Return the options of sbatch that are not a profile's to choose."""
        own = {name for name in ("account", "qos", "constraint") if getattr(self, name) is not None}
        return own | {name.lstrip("-").replace("_", "-") for name in self.sbatch}

    def _alone(self, group: WorkerGroup) -> bool:
        return bool(group.timed) if self.exclusive is None else self.exclusive

    def _submit(
        self, plan: Path, group: WorkerGroup, there: Sequence[site.Partition], job: WorkerJob,
        *, count: int, name: str,
    ) -> list[str]:  # fmt: skip
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        executor = _executor(make_folder(plan / OUTPUTS), self.python or sys.executable)
        executor.update_parameters(**self._parameters(group, there, name), array_parallelism=count)
        try:
            with variables.without_overruled(self._given()), executor.batch():
                jobs = [executor.submit(job) for _ in range(count)]
            return [str(started.job_id) for started in jobs]
        except (FailedJobError, FailedSubmissionError, subprocess.CalledProcessError) as error:
            raise ConfigError(
                f"cluster=slurm: sbatch refused {count} workers ({group.name}): "
                f"{site.spoken(str(error))}"
            ) from error


def _executor(folder: Path, python: str) -> Any:
    """Return submitit's executor, which queues a job again however often its time is over."""
    import shlex

    site.check_submitit()
    import submitit

    class Executor(submitit.SlurmExecutor):
        """One that writes a script on any machine; `check` looks for SLURM."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Executor(folder=folder, max_num_timeout=FOREVER, python=shlex.quote(python))


def _at_home(there: Sequence[site.Partition]) -> bool:
    """Tell whether all nodes are this machine."""
    import socket

    names = {socket.gethostname(), socket.gethostname().partition(".")[0], "localhost"}
    return {kind.hosts for part in there for kind in part.kinds} <= names


def _hosts(there: Sequence[site.Partition]) -> str:
    return ",".join(part.hosts for part in there)


def _holds(kind: site.NodeKind, asked: Resources) -> bool:
    whole = Resources(gpus=kind.gpus, cpus=kind.cpus, memory_bytes=kind.memory_bytes)
    return whole.hold(replace(asked, seconds=None))


def _share(cpus: int, gpus: int, there: Sequence[site.Partition]) -> int | None:
    """Return the memory that belongs to so many cores or GPUs, on the leanest node with them."""
    shares = [
        int(kind.memory_bytes * max(cpus / kind.cpus, gpus / kind.gpus if gpus else 0.0))
        for part in there
        for kind in part.kinds
        if kind.cpus >= cpus and kind.gpus >= gpus
    ]
    return min(shares, default=None)


def _minutes(seconds: float) -> float:
    """Return the whole minutes of a time, in seconds: what SLURM is asked for."""
    return 60.0 * max(1, math.floor(seconds / 60))


def _state(job: site.QueuedJob) -> JobState:
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
    """Return the number of the user that jobs are of; this one where the note names none."""
    user = started.place.get("user", "")
    return user if user.isdigit() else str(os.getuid())


def _hidden(started: StartedJobs, found: Mapping[str, str]) -> str:
    """Return whose jobs they are where SLURM does not show them to this user, and "" else."""
    private = "jobs" in found.get("PrivateData", "").lower().split(",")
    if not private or os.getuid() == 0 or _owner(started) == str(os.getuid()):
        return ""
    return started.place.get("named") or _owner(started)
