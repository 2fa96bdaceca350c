"""What cells of several processes cannot do: refused before anything runs."""

from lra.composition.run import Run
from lra.errors import ConfigError
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.runner import Runner
from lra.runners.training.optim import OptimConfig


def check_processes(
    hardware: HardwareProfile,
    runner: Runner,
    optim: OptimConfig,
    name: str,
) -> None:
    """Refuse several processes where they cannot do the work of one.

    Args:
        hardware: Says how many.
        runner: Of the run.
        optim: Of the run.
        name: Of the runner.

    Raises:
        ConfigError: with the value seen, what was wanted and the way out.
    """
    ranks = hardware.processes
    if ranks == 1:
        return
    if not runner.parallel:
        raise ConfigError(
            f"hardware.processes: got {ranks} with runner={name}, whose runs have one process "
            "each; wanted 1, or runner=train (hardware.training_processes sets how many runs are "
            "executed at the same time)"
        )
    _check_batches(runner, optim, ranks, hardware.sharded)


def check_one_number(first: Run, other: Run) -> None:
    """Refuse two numbers of processes for one cell, of which a sweep would run the first alone.

    Raises:
        ConfigError: with both, and the way out.
    """
    mine, theirs = first.hardware.labels(), other.hardware.labels()
    if first.runner.trains and mine != theirs:
        both = [", ".join(f"{k}={v}" for k, v in part.items()) or "one" for part in (mine, theirs)]
        raise ConfigError(
            f"hardware.processes: got {both[0]} and {both[1]} for the same training, but a "
            "training has the same result for any number of processes; wanted one number in a "
            "sweep. Give one command for each number, with a separate results folder (results=...)"
        )


def _check_batches(runner: Runner, optim: OptimConfig, parts: int, sharded: bool) -> None:
    """Refuse a batch that leaves a process without a row, or with sharded weights an uneven one."""
    from lra.runners.training.config import TrainConfig
    from lra.runners.training.stages import TrainingStages

    sizes = {"optim.batch_size": optim.batch_size}
    if isinstance(runner, TrainConfig):
        try:
            stages = TrainingStages(runner.stages, optim).parts
        except ValueError as error:
            raise ConfigError(str(error)) from error
        sizes |= {f"{stage.where}.batch_size": stage.batch_size for stage in stages}
    for where, rows in sizes.items():
        if rows < parts:
            raise ConfigError(
                f"{where}: got {rows} rows for {parts} processes, which share them; wanted at "
                f"least one row for each. Raise it, or set hardware.processes={rows} or fewer"
            )
        if sharded and rows % parts:
            raise ConfigError(
                f"{where}: got {rows} rows for {parts} processes with hardware.sharded=true, which "
                f"take equal parts; wanted a multiple of {parts}, as in {rows - rows % parts}"
            )
