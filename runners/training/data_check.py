"""What trainings and evaluations ask of the data, checked before the first step."""

from lra.models.backbone.model import Backbone
from lra.models.mixer import Unsupported
from lra.models.state import size_bytes
from lra.runners.training.config import TrainConfig
from lra.runners.training.recurrent_state import remembered_tokens
from lra.runners.training.stages import TrainingStages
from lra.tasks.task import Task, WindowedTask


def check_data(model: Backbone, task: Task, stages: TrainingStages, config: TrainConfig) -> None:
    """Refuse stages, memories and positions for which the streams of a task are too short or long.

    Args:
        model: To be trained.
        task: Prepared.
        stages: Of its training.
        config: Of the training.

    Raises:
        ValueError: a stage has no whole batch, or lengths of its windows cannot be drawn.
        Unsupported: see `check_streams`.
    """
    for part in stages.parts:
        config.read(part.apply_to(task))
    stages.check_batches(task)
    begun = 0
    for part in stages.parts:
        begun = part.first if part.new_epoch else begun
        steps = part.end - begun
        check_streams(
            model,
            part.apply_to(task),
            "train",
            part.batch_size,
            training=True,
            steps=steps,
            stage_memory=(f"{part.where}.memory", part.memory) if part.memory else None,
        )
    judged = {*config.evaluate_splits} | ({"validation"} if config.evaluate_every_steps else set())
    for split in sorted(judged):
        check_streams(model, task, split, config.evaluation_batch_size, training=False)


def check_streams(
    model: Backbone,
    task: Task,
    split: str,
    rows: int,
    *,
    training: bool,
    steps: int | None = None,
    stage_memory: tuple[str, int] | None = None,
) -> None:
    """Refuse a memory that streams never fill, and positions that they outrun.

    Args:
        model: Of which the state is.
        task: Prepared.
        split: Which is read.
        rows: Streams side by side.
        training: Whether the memory is that of training.
        steps: Batches that are read; None: the whole split.
        stage_memory: The option that replaces the memory of model and task, and its value.

    Raises:
        Unsupported: with the tokens of a stream, what was asked of it, and the way out.
    """
    if not isinstance(task, WindowedTask) or (tokens := task.row_tokens(split, rows)) is None:
        return
    places = "the row" if rows == 1 else f"each of the {rows} rows"
    available = (
        f"the {split} split of {task.spec.name} has {tokens:,} tokens for {places} of a batch"
    )
    memory = (
        stage_memory[1]
        if stage_memory
        else remembered_tokens(model.config, task, training=training)
    )
    least, needed = (size_bytes(model.initial_state(1, size)) for size in (1, max(2, memory)))
    if memory > tokens and needed > least:  # elsewhere a state has one size
        limits = ("memory",) if training else ("memory", "evaluation_memory")
        changed = [name for name in limits if getattr(model.config, name)]
        name = f"model.backbone.{changed[-1]}" if changed else "task.memory"
        name = stage_memory[0] if stage_memory else name
        fewer = ", or take a smaller batch" if rows > 1 else ""
        raise Unsupported(
            f"{name}={memory} is more tokens than the data have: {available}; type "
            f"{name}={tokens} or less{fewer}"
        )
    read = tokens if steps is None else min(tokens, steps * task.window(split))
    if model.positions is not None and read > model.positions.max_length:
        raise Unsupported(
            f"positions={model.config.positions} end at {model.positions.max_length:,} tokens, "
            f"and {available}, whose positions continue beyond that; choose "
            "model.backbone.positions=rotary, alibi, sinusoidal or none"
        )
