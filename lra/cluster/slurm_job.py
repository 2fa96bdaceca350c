"""What SLURM runs: one worker, signalled to save before its time is over, and queued again."""

import os
import signal
import socket
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
"""By which `scancel` asks for an end."""
STOPPED = 128 + signal.SIGTERM
"""How a worker ends on request."""
ASKED_S = 20
MOST_RESTARTS = 20
"""After so many a storage that fails is no matter of a while."""


class WorkerJob:
    """One worker as a job: starts it, passes signals on, and lets SLURM run it again.

    Three things end it early. Before the time limit submitit's signal arrives, and `checkpoint`
    has the worker save and the job queued again. SLURM's preemption is a SIGTERM to a job that
    keeps running for its time of grace: the job requeues itself, as it would end well otherwise
    and be forgotten. Any other signal to stop, by scancel or by `lra watch`, is the end.

    Args:
        command: the worker.
        token: what the plan's folder holds, seen from the host of the submission.
        requeue: whether a job that was preempted goes back to the queue.
        seconds: that a worker has before it must save; None: no limit.
    """

    def __init__(
        self, command: Sequence[str], token: Path, *, requeue: bool, seconds: float | None
    ) -> None:
        self.command, self.token, self.requeue = list(command), token, requeue
        self.seconds = seconds
        self._pid: int | None = None
        self._signalled = False

    def __call__(self) -> int:
        """Run the worker to its end; its words go where the job's go."""
        try:
            _say(f"on {socket.gethostname()}: {check_token(self.token)}")
        except TokenFault as error:
            _say(str(error))
            sys.exit(2)
        _say(STARTS + " ".join(self.command))
        for number in STOPS:
            signal.signal(number, self._stop)
        environment = dict(os.environ)
        if self.seconds is not None:
            environment[UNTIL] = str(time.time() + self.seconds)
        # SLURM signals every process of a step: the worker leaves submitit's signal to this one.
        child = subprocess.Popen(self.command, env=environment, preexec_fn=_ignore)  # noqa: PLW1509 - no threads
        self._pid = child.pid
        code = child.wait()
        self._pid = None
        _say(f"the worker ended with {code}")
        if self._signalled:
            if self.requeue and is_preempted():
                _say("preempted: this job is requeued")
                _requeue()
            # Not an error to submitit: what it held is free again.
            return STOPPED
        if code == AGAIN and self.requeue:
            _say("requeued, because one run needs the full time of a job")
            _requeue()
        if code == STORAGE and self.requeue and _restarts() < MOST_RESTARTS:
            _say("the storage failed: this job is requeued")
            _requeue()
        if code:
            sys.exit(code if code > 0 else 128 - code)
        return code

    def checkpoint(self) -> NoReturn:
        """Have the worker save and end, and the job queued again; submitit calls this.

        Raises SystemExit: what submitit would do next is a traceback where a job is not queued
        again, and what it would write for the next time stands in the job's file already.
        """
        _say("the job's time is nearly over, or it is preempted: the worker saves")
        self._end()
        if self.requeue:
            _say("saved: this job is requeued")
            _requeue()
        else:
            _say("saved; the job ends because cluster.requeue is false")
        sys.exit(0)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._tell()

    def _tell(self) -> None:
        if self._pid is not None and not self._signalled:
            self._signalled = True
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)

    def _end(self) -> None:
        self._tell()
        if self._pid is not None:
            # Not `Popen.wait`, in the middle of which the signal has come.
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)


def is_preempted() -> bool:
    """Tell whether SLURM has announced that it wants this job's node for another one."""
    asked = ["scontrol", "--oneliner", "show", "job", _job_id()]
    try:
        done = subprocess.run(
            asked, capture_output=True, text=True, check=True, timeout=ASKED_S,
            env=slurm_variables.plain(),
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        _say(f"lra cannot find out whether SLURM preempts this job: {error}")
        return False
    facts = dict(word.partition("=")[::2] for word in done.stdout.split())
    begun = facts.get("PreemptTime", "None") not in ("None", "Unknown")
    return begun and facts.get("JobState") == "RUNNING"


def _requeue() -> None:
    """Have SLURM queue this job again; exit with 1 where it does not, for another to resume it."""
    try:
        subprocess.run(
            ["scontrol", "requeue", _job_id()], check=True, timeout=60, capture_output=True,
            text=True, env=slurm_variables.plain(),
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        words = getattr(error, "stderr", "") or str(error)
        _say(
            f"SLURM does not requeue this job: {words.strip()}; rerun the same lra submit to resume"
        )
        sys.exit(1)
    time.sleep(60)  # SLURM ends this process; an end of its own would complete the job


def _restarts() -> int:
    """Return how often SLURM has started this job again; 0 where it does not say."""
    count = os.environ.get("SLURM_RESTART_COUNT", "")
    return int(count) if count.isdigit() else 0


def _job_id() -> str:
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    job = os.environ.get("SLURM_JOB_ID", "")
    return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else job


def _ignore() -> None:
    for number in (signal.SIGUSR2, signal.SIGHUP):  # of these the worker knows nothing
        signal.signal(number, signal.SIG_IGN)


def _say(text: str) -> None:
    print(f"job {_job_id()} {text}", file=sys.stderr, flush=True)
