"""The data must hold a batch: checked before anything is trained."""

from lra.composition.run import Run
from lra.errors import ConfigError
from lra.runners.training.config import TrainConfig
from lra.runners.training.stages import TrainingStages

SPLIT = "train"


def check_batch(run: Run, *, loaded: bool) -> None:
    """Refuse a batch that the training split cannot fill.

    Args:
        run: A run whose runner trains.
        loaded: Whether the data are prepared. If so, their examples are counted, if the task can.
            If not, the batch is compared with the size that the options of the task state,
            and accepted if they state none.

    Raises:
        ConfigError: with the sizes of split and batch, and the arguments to type.
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
        f"`{SPLIT}` of task={run.task_name} (source {task.spec.source}) has {size:,}: use "
        f"{fewer}{' or fewer' if size else ''}"
        + (", or raise task.train_examples" if task.spec.source == "generated" else "")
    )


def _check_stages(run: Run, config: TrainConfig) -> None:
    """Raise ConfigError if the data cannot fill a batch of one of the training's stages."""
    try:
        TrainingStages(config.stages, run.optim).check_batches(run.task)
    except ValueError as error:
        raise ConfigError(str(error)) from error
