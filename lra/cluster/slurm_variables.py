"""The variables of a shell that SLURM's commands read, and which of them reach these commands.

A variable is stronger than a line in a job's script: `SBATCH_TIMELIMIT` of a profile, or
`SLURM_MEM_PER_CPU` of an interactive job, would replace what the command line says, or clash with
it. Only those stay that say where SLURM is, and those for what the command line leaves open.
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
"""Where SLURM is and how it is talked to, and what module files call its folder."""
DEFAULTS = frozenset({
    "account", "qos", "constraint", "reservation", "wckey", "export", "acctg-freq", "network",
    "power", "profile", "burst-buffer", "container", "debug", "delay-boot", "gpu-bind", "gpu-freq",
    "cpu-freq-req", "mem-bind", "hint", "threads-per-core",
})  # fmt: skip
"""Options that are a profile's to choose where the command line does not, as by SBATCH_QOS."""
PARTITION = "SBATCH_PARTITION"
JOB = "SLURM_JOB_ID"


def plain(given: Collection[str] = ()) -> dict[str, str]:
    """Return the variables of this process for SLURM's commands.

    Args:
        given: options of sbatch that the command line or lra sets.
    """
    own = {f"SBATCH_{option.upper().replace('-', '_')}" for option in DEFAULTS - {*given}}
    kept = PLACES | own
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(PREFIXES) or name in kept
    }


@contextmanager
def without_overruled(given: Collection[str]) -> Iterator[None]:
    """Have what is started in the block, and the jobs, see no variable that is overruled."""
    before = dict(os.environ)
    after = plain(given)
    for name in before.keys() - after.keys():
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update({name: before[name] for name in before.keys() - after.keys()})


def overruled_words(given: Collection[str], *, partition: bool) -> str:
    """Return a sentence that names the variables without effect on jobs; "" where none is set.

    Args:
        given: options of sbatch that the command line or lra sets.
        partition: whether the command line names one.
    """
    gone: Mapping[str, str] = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("SBATCH_", "SLURM_"))
        and name not in plain(given)
        and (partition or name != PARTITION)
    }
    # Of a job around this shell there are dozens, which nobody has set.
    named = sorted(name for name in gone if name.startswith("SBATCH_") or JOB not in gone)
    words = [", ".join(f"{name}={gone[name]}" for name in named)] if named else []
    if JOB in gone:
        words.append(f"the SLURM_* of job {gone[JOB]} around this shell")
    if not words:
        return ""
    return (
        f"these have no effect on the workers: {' and '.join(words)}. Use cluster.hours, "
        "cluster.partition and so on, and cluster.sbatch for other options"
    )
