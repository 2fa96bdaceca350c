"""The data must hold a batch: checked before anything is trained."""

from lra.composition.run import Run
from lra.errors import ConfigError
from lra.runners.training.config import TrainConfig
from lra.runners.training.stages import TrainingStages

SPLIT = "train"


def check_batch(run: Run, *, loaded: bool) -> None:
    """Refuse a batch that the training split cannot fill.

    Args:
        run: Of a runner that trains.
        loaded: Whether the data are prepared: then they are counted, where the task can; before,
            only a number that its options state counts.

    Raises:
        ConfigError: with the sizes of split and batch, and the words to type.
    """
    task, batch = run.task, run.optim.batch_size
    size = task.spec.sizes.get(SPLIT)
    if loaded and hasattr(task, "examples"):
        size = task.examples(SPLIT)
    if size is None or batch <= size:
        if loaded and isinstance(run.runner, TrainConfig):
            _check_stages(run, run.runner)
        return
    fewer = f"optim.batch_size={size}" if size else "more data"
    raise ConfigError(
        f"optim.batch_size: a batch of {batch:,} needs as many training examples, and the split "
        f"`{SPLIT}` of task={run.task_name} (source {task.spec.source}) has {size:,}: take "
        f"{fewer}{' or fewer' if size else ''}"
        + (", or raise task.train_examples" if task.spec.source == "generated" else "")
    )


def _check_stages(run: Run, config: TrainConfig) -> None:
    try:
        TrainingStages(config.stages, run.optim).check_batches(run.task)
    except ValueError as error:
        raise ConfigError(str(error)) from error
