"""Selects the variables of a shell that SLURM's commands may read.

A variable overrides a line in a job's script: `SBATCH_TIMELIMIT` of a profile, or
`SLURM_MEM_PER_CPU` of an interactive job, would replace options of the command line. Therefore only
variables stay that say where SLURM is, or that set an option which the command line does not.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

PREFIXES = (
    "SBATCH_", "SLURM_", "SRUN_", "SALLOC_", "SQUEUE_", "SCANCEL_", "SINFO_", "SCONTROL_",
)  # fmt: skip
PLACES = frozenset({
    "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_DEBUG_FLAGS", "SLURM_UMASK",
    "SLURM_ROOT", "SLURM_HOME", "SLURM_DIR", "SLURM_PREFIX",
})  # fmt: skip
"""Variables that say where SLURM is and how to connect to it."""
DEFAULTS = frozenset({
    "account", "qos", "constraint", "reservation", "wckey", "export", "acctg-freq", "network",
    "power", "profile", "burst-buffer", "container", "debug", "delay-boot", "gpu-bind", "gpu-freq",
    "cpu-freq-req", "mem-bind", "hint", "threads-per-core",
})  # fmt: skip
"""Options that a variable such as SBATCH_QOS may set if the command line does not."""
PARTITION = "SBATCH_PARTITION"
JOB = "SLURM_JOB_ID"


def plain(given: Collection[str] = ()) -> dict[str, str]:
    """Return this process's environment without the variables that SLURM must not read.

    Args:
        given: options of sbatch that the command line or lra sets.
    """
    optional = {f"SBATCH_{option.upper().replace('-', '_')}" for option in DEFAULTS - {*given}}
    allowed = PLACES | optional
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(PREFIXES) or name in allowed
    }


@contextmanager
def without_overruled(given: Collection[str]) -> Iterator[None]:
    """Remove the variables that `plain` excludes from the environment, during a `with` block."""
    before = dict(os.environ)
    after = plain(given)
    for name in before.keys() - after.keys():
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update({name: before[name] for name in before.keys() - after.keys()})


def overruled_words(given: Collection[str], *, partition: bool) -> str:
    """Return a sentence that names the variables without effect on jobs; "" if none is set.

    Args:
        given: options of sbatch that the command line or lra sets.
        partition: whether the command line names a partition.
    """
    removed: Mapping[str, str] = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("SBATCH_", "SLURM_"))
        and name not in plain(given)
        and (partition or name != PARTITION)
    }
    # Inside a job, SLURM itself sets dozens of them: they are summed up in one phrase.
    listed = sorted(name for name in removed if name.startswith("SBATCH_") or JOB not in removed)
    parts = [", ".join(f"{name}={removed[name]}" for name in listed)] if listed else []
    if JOB in removed:
        parts.append(f"SLURM_* of job {removed[JOB]}, in which this shell runs")
    if not parts:
        return ""
    return (
        f"these variables have no effect on workers: {' and '.join(parts)}. Use cluster.hours, "
        "cluster.partition and so on, and cluster.sbatch for other options"
    )
