"""The program of a job of SLURM: it starts a worker, makes it save in time, and is requeued."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from lra.cluster import slurm_variables
from lra.cluster.engine import AGAIN, STARTS, STORAGE, UNTIL
from lra.cluster.visibility import TokenFault, check_token

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
"""Signals by which `scancel` asks a job to end."""
STOPPED = 128 + signal.SIGTERM
"""Exit code of a worker that was asked to end."""
ASKED_S = 20
MOST_RESTARTS = 20
"""After so many restarts, a fault of the storage is taken as permanent."""


class WorkerJob:
    """One worker as a job: starts it, passes signals on, and lets SLURM run it again.

    Three events end it early. Before its time limit, submitit's signal arrives: `checkpoint` makes
    the worker save, and the job is queued again. If SLURM preempts the job, it sends SIGTERM and
    lets it run for a time of grace: the job queues itself again, because SLURM would count it as
    completed. Any other signal, by scancel or `lra submit --stop`, ends the job.

    Args:
        command: the command of the worker.
        token: a file in the plan's folder, by which a node finds out whether it sees this folder.
        requeue: whether a job that was preempted goes back to the queue.
        seconds: the time until the worker must save; None: no limit.
    """

    def __init__(
        self, command: Sequence[str], token: Path, *, requeue: bool, seconds: float | None
    ) -> None:
        """Take a worker's command: see the class for the arguments."""
        self.command, self.token, self.requeue = list(command), token, requeue
        self.seconds = seconds
        self._pid: int | None = None
        self._signalled = False

    def __call__(self) -> int:
        """Run the worker to its end, and return its exit code. It prints into the job's output."""
        try:
            _say(f"begins: {check_token(self.token)}")
        except TokenFault as error:
            _say(f"this job cannot start its worker: {error}")
            sys.exit(2)
        _say(STARTS + " ".join(self.command))
        for number in STOPS:
            signal.signal(number, self._stop)
        environment = dict(os.environ)
        if self.seconds is not None:
            environment[UNTIL] = str(time.time() + self.seconds)
        # SLURM signals every process of a step: the worker leaves submitit's signal to this one.
        child = subprocess.Popen(self.command, env=environment, preexec_fn=_ignore_signals)  # noqa: PLW1509 - no threads
        self._pid = child.pid
        code = child.wait()
        self._pid = None
        _say(f"the worker ended with exit code {code}")
        if self._signalled:
            if self.requeue and is_preempted():
                _say("this job is preempted and requeued")
                _requeue()
            # For submitit this is no error: the job has ended, and its resources are free.
            return STOPPED
        if code == AGAIN and self.requeue:
            _say("this job is requeued, because one run needs the full time of a job")
            _requeue()
        if code == STORAGE and self.requeue and _count_restarts() < MOST_RESTARTS:
            _say("this job is requeued, because the storage failed")
            _requeue()
        if code:
            sys.exit(code if code > 0 else 128 - code)  # negative: the signal that killed it
        return code

    def checkpoint(self) -> NoReturn:
        """Make the worker save and end, and queue the job again; submitit calls this.

        Raises SystemExit to skip what submitit does next: it would write the job's file again, or
        print a traceback for a job that is not queued again.
        """
        _say("this job is preempted, or its time is nearly over, so that its worker saves")
        self._end_worker()
        if self.requeue:
            _say("this job has saved its run and is requeued")
            _requeue()
        else:
            _say("this job has saved its run and ends, because cluster.requeue is false")
        sys.exit(0)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal of `STOPS`."""
        del number, frame
        self._signal_worker()

    def _signal_worker(self) -> None:
        """Send SIGTERM to the worker, once."""
        if self._pid is not None and not self._signalled:
            self._signalled = True
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    def _end_worker(self) -> None:
        """Make the worker save, and wait until it has ended."""
        self._signal_worker()
        if self._pid is not None:
            # The signal may have interrupted `Popen.wait`, which must not be called again inside.
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)


def is_preempted() -> bool:
    """Return whether SLURM has announced that it takes this job's node for another job."""
    command = ["scontrol", "--oneliner", "show", "job", _job_id()]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=ASKED_S,
            env=slurm_variables.plain(),
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        _say(f"lra cannot find out whether SLURM preempts this job: {error}")
        return False
    facts = dict(word.partition("=")[::2] for word in done.stdout.split())
    announced = facts.get("PreemptTime", "None") not in ("None", "Unknown")
    return announced and facts.get("JobState") == "RUNNING"


def _requeue() -> None:
    """Make SLURM queue this job again. If it refuses, exit with 1: another job must resume."""
    try:
        subprocess.run(
            ["scontrol", "requeue", _job_id()], check=True, timeout=60, capture_output=True,
            text=True, env=slurm_variables.plain(),
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        words = getattr(error, "stderr", "") or str(error)
        _say(
            f"SLURM does not requeue this job ({words.strip()}); rerun the same lra submit command "
            "to resume"
        )
        sys.exit(1)
    time.sleep(60)  # SLURM ends this process: if it ended itself, the job would count as completed


def _count_restarts() -> int:
    """Return how often SLURM has restarted this job; 0 if it does not say."""
    count = os.environ.get("SLURM_RESTART_COUNT", "")
    return int(count) if count.isdigit() else 0


def _job_id() -> str:
    """Return the id of this job, such as 12_3 for element 3 of the array 12."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    job = os.environ.get("SLURM_JOB_ID", "")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else job


def _ignore_signals() -> None:
    for number in (signal.SIGUSR2, signal.SIGHUP):  # this process handles them for the worker
        signal.signal(number, signal.SIG_IGN)


def _say(text: str) -> None:
    """Print a line with the id of this job."""
    print(f"job {_job_id()}: {text}", file=sys.stderr, flush=True)
