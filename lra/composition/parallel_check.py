"""Refuse options that runs with several processes cannot have, before anything is run."""

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
    """Raise ConfigError if several processes cannot execute the run.

    Args:
        hardware: The hardware profile, with the number of processes of a run.
        runner: The runner.
        optim: The options of the optimiser, with the batch size.
        name: The name of the runner, for messages.
    """
    processes = hardware.processes
    if processes == 1:
        return
    if not runner.parallel:
        raise ConfigError(
            f"hardware.processes: got {processes} with runner={name}, but a run of this runner "
            "uses one process; wanted 1, or runner=train. To execute several trainings at the same "
            "time, set hardware.training_processes"
        )
    _check_batches(runner, optim, processes, hardware.sharded)


def check_one_number(first: Run, other: Run) -> None:
    """Raise ConfigError if two configurations of one run differ in the number of processes.

    The number does not change the result of a training, so a sweep would only execute the first.
    """
    labels, other_labels = first.hardware.labels(), other.hardware.labels()
    if first.runner.trains and labels != other_labels:
        one, two = (
            ", ".join(f"{key}={value}" for key, value in part.items()) or "one"
            for part in (labels, other_labels)
        )
        raise ConfigError(
            f"hardware.processes: got {one} and {two} for the same training. A sweep has each "
            "training once, because its result is the same for any number of processes; wanted "
            "one number in a sweep. To compare numbers, give one command for each, with a separate "
            "results folder (results=...)"
        )


def _check_batches(runner: Runner, optim: OptimConfig, processes: int, sharded: bool) -> None:
    """Raise ConfigError if a batch cannot be divided among the processes.

    Each process needs at least one row; with `sharded` weights, all need the same number of rows.
    """
    from lra.runners.training.config import TrainConfig
    from lra.runners.training.stages import TrainingStages

    sizes = {"optim.batch_size": optim.batch_size}
    if isinstance(runner, TrainConfig):
        try:
            stages = TrainingStages(runner.stages, optim).parts
        except ValueError as error:
            raise ConfigError(str(error)) from error
        sizes |= {f"{stage.where}.batch_size": stage.batch_size for stage in stages}
    for key, rows in sizes.items():
        if rows < processes:
            raise ConfigError(
                f"{key}: got a batch of {rows} rows for {processes} processes; wanted at least one "
                f"row for each process. Raise {key}, or set hardware.processes={rows} or fewer"
            )
        if sharded and rows % processes:
            raise ConfigError(
                f"{key}: got a batch of {rows} rows for {processes} processes; wanted a multiple "
                f"of {processes}, for example {rows - rows % processes}, because each process "
                "takes the same number of rows with hardware.sharded=true"
            )
