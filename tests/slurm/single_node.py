"""A real SLURM on this one machine, for tests: a controller and several nodes, each a slurmd.

For a machine or container that can be thrown away, Debian 12 or Ubuntu 24.04, as root. It needs
`apt-get install slurm-wlm munge`. It writes nothing into /etc: all files lie in one folder, whose
`slurm.conf` the commands of SLURM find by SLURM_CONF. Nodes claim more cores than there are, so
that a pool of workers can be tried.

Partitions: `main` (all nodes, no limit), `short` (two minutes), `low` (requeued, after ten seconds
of grace, where `high` wants its nodes) and `high`. The last node is a large one; the GPUs that it
names are names alone.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = ("sbatch", "scontrol", "slurmctld", "slurmd", "munged")
PACKAGES = ("slurm-wlm", "munge")
CONTROLLER_PORT = 16817
"""Not SLURM's own, 6817, so that a SLURM of this machine is left alone. Nodes follow."""
LARGE = 4
"""Cores and memory of the last node, as a multiple of those of the others."""
CONF = """\
ClusterName={name}
SlurmctldHost={host}
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=cred_expire=10
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_min_interval=100000,bf_interval=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
GresTypes=gpu
MaxArraySize={arrays}
ReturnToService=2
SlurmdTimeout=15
KillWait=15
MinJobAge=300
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 State=UP
PartitionName=short Nodes=ALL MaxTime=2 State=UP
PartitionName=low Nodes=ALL MaxTime=60 PriorityTier=1 GraceTime=10 PreemptMode=REQUEUE State=UP
PartitionName=high Nodes=ALL MaxTime=60 PriorityTier=9 PreemptMode=OFF State=UP
"""


class SlurmFault(RuntimeError):
    """SLURM cannot be had here; the message says why, and the way out."""


class SingleNode:
    """A SLURM whose nodes are all on this machine.

    Args:
        folder: of configuration, state, logs and process ids.
        name: of the cluster.
        port: of the controller, which those of the nodes follow.
    """

    def __init__(self, folder: Path, *, name: str = "lra", port: int = CONTROLLER_PORT) -> None:
        self.folder, self.name, self.port = folder, name, port
        self.conf = folder / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        """What the commands of SLURM, and what calls them, need."""
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def start(self, *, nodes: int, cpus: int, memory_mb: int, arrays: int) -> None:
        """Start controller and nodes, and wait until all are idle.

        Args:
            nodes: how many, two at least; the last one is `LARGE` times as large.
            cpus: of each of the others.
            memory_mb: of each of the others.
            arrays: MaxArraySize, above which SLURM refuses an index.
        """
        refusal = why_not()
        if refusal is not None:
            raise SlurmFault(refusal)
        if _pid(self.folder / "slurmctld.pid"):
            raise SlurmFault(f"SLURM runs already, from {self.folder}: stop it first")
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        host = socket.gethostname().partition(".")[0]
        names = [f"n{number}" for number in range(1, nodes + 1)]
        lines = []
        for number, name in enumerate(names, start=1):
            times = LARGE if name == names[-1] else 1
            gres = " Gres=gpu:2" if name == names[-1] else ""
            lines.append(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 "
                f"Port={self.port + number} CPUs={times * cpus} "
                f"RealMemory={times * memory_mb}{gres} State=UNKNOWN"
            )
        self.conf.write_text(
            CONF.format(
                host=host, name=self.name, port=self.port, folder=self.folder, arrays=arrays,
                nodes="\n".join(lines),
            )
        )  # fmt: skip
        # Files that are no devices: jobs are placed by their count, and no GPU is there.
        for number in (0, 1):
            (self.folder / f"gpu{number}").touch()
        gpus = f"NodeName={names[-1]} Name=gpu File={self.folder}/gpu[0-1]\n"
        (self.folder / "gres.conf").write_text(gpus)
        _munge()
        self._call("slurmctld")
        for name in names:
            self.back(name)
        self._wait(names)

    def stop(self) -> None:
        """End all jobs, the nodes and the controller."""
        if _pid(self.folder / "slurmctld.pid"):
            subprocess.run(["scancel", "--user=root"], env=self.environment, check=False)
        for name in self.nodes():
            self.lose(name)
        controller = _pid(self.folder / "slurmctld.pid")
        if controller:
            _end(controller, signal.SIGTERM)

    def nodes(self) -> list[str]:
        """Return the names of all nodes."""
        if not self.conf.exists():
            return []
        lines = self.conf.read_text().splitlines()
        return [line.split()[0].partition("=")[2] for line in lines if line.startswith("NodeName=")]

    def lose(self, node: str) -> None:
        """Kill a node: its slurmd, what watches its jobs, and the jobs, in this order.

        To the others it is what a machine without power is. The controller notices after
        `SlurmdTimeout`; `scontrol update node=NAME state=down reason=lost` tells it at once.
        """
        daemon = _pid(self.folder / f"slurmd-{node}.pid")
        if daemon:
            _end(daemon, signal.SIGKILL)
        jobs = _processes_of(node, self.conf)
        for pid in [*{step for job in jobs for step in _watchers(job)}, *jobs]:
            _end(pid, signal.SIGKILL)

    def back(self, node: str) -> None:
        """Start a node's slurmd."""
        if node not in self.nodes():
            raise SlurmFault(f"no node {node!r}; there are {', '.join(self.nodes())}")
        self._call("slurmd", "-N", node)

    def _call(self, *command: str) -> None:
        """Start a daemon, which goes to the background by itself."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SlurmFault(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")

    def _wait(self, names: Sequence[str], seconds: float = 30) -> None:
        states = ""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            asked = ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T"]
            states = subprocess.run(
                asked, env=self.environment, capture_output=True, text=True, check=False
            ).stdout
            if states.split().count("idle") == len(names):
                return
            time.sleep(0.2)
        raise SlurmFault(
            f"nodes are not idle after {seconds:.0f} s: {' '.join(states.split())}; "
            f"see {self.folder}/*.log"
        )


def why_not() -> str | None:
    """Say why SLURM cannot be started here; None: it can."""
    if os.geteuid() != 0:
        return "SLURM's daemons need root: run this as root, on a machine that can be thrown away"
    lacking = [name for name in PROGRAMS if _which(name) is None]
    if lacking:
        return f"no {', '.join(lacking)} here: apt-get install {' '.join(PACKAGES)}"
    return None


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _munge() -> None:
    """Start munged as its own user where none runs: without it SLURM trusts nobody."""
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode == 0:
        return
    folder = Path("/run/munge")
    folder.mkdir(mode=0o755, exist_ok=True)
    shutil.chown(folder, "munge", "munge")
    folder.chmod(0o755)
    user = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups"]
    subprocess.run([*user, _which("munged") or "munged", "--force"], check=True)


def _pid(file: Path) -> int | None:
    """Return the id of the living process that a file names."""
    try:
        pid = int(file.read_text())
        return pid if "slurm" in Path(f"/proc/{pid}/comm").read_text() else None
    except (OSError, ValueError):
        return None


def _processes_of(node: str, conf: Path) -> list[int]:
    """Return the processes of all jobs on a node of this SLURM: they say so themselves."""
    wanted = {f"SLURMD_NODENAME={node}".encode(), f"SLURM_CONF={conf}".encode()}
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and wanted <= {
                *(folder / "environ").read_bytes().split(b"\0")
            }:
                found.append(int(folder.name))
        except OSError:  # it has just ended
            continue
    return found


def _watchers(pid: int) -> list[int]:
    """Return the slurmstepd processes above a process."""
    found = []
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        name, _, rest = stat.partition("(")[2].rpartition(")")
        if name.startswith("slurmstepd"):
            found.append(pid)
        pid = int(rest.split()[1])
    return found


def _end(pid: int, how: signal.Signals) -> None:
    try:
        os.kill(pid, how)
        until = time.monotonic() + 10
        while time.monotonic() < until and Path(f"/proc/{pid}").exists():
            if ") Z " in Path(f"/proc/{pid}/stat").read_text():
                return
            time.sleep(0.05)
    except OSError:
        return
