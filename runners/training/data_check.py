"""Checks before the first step that the data suffice for a training and its evaluations."""

from lra.models.backbone.model import Backbone
from lra.models.mixer import Unsupported
from lra.models.state import size_bytes
from lra.runners.training.config import TrainConfig
from lra.runners.training.recurrent_state import remembered_tokens
from lra.runners.training.stages import TrainingStages
from lra.tasks.task import Task, WindowedTask


def check_data(model: Backbone, task: Task, stages: TrainingStages, config: TrainConfig) -> None:
    """Check that the texts of a task are long enough for batches and memories, and not too long.

    Args:
        model: The model that will be trained.
        task: The task, with prepared data.
        stages: The stages of the training.
        config: The options of the training.

    Raises:
        ValueError: a stage has no whole batch or trains no parameter, or lengths of its windows
            cannot be drawn.
        Unsupported: see `check_streams`.
    """
    config.check_scores(task, prepared=True)
    stages.check_parts(model)
    for part in stages.parts:
        config.read(part.apply_to(task))  # raises if lengths cannot be drawn
    stages.check_batches(task)
    epoch_start = 0
    for part in stages.parts:
        # Stages without a new epoch continue in the text where the one before ended.
        epoch_start = part.first if part.new_epoch else epoch_start
        steps = part.end - epoch_start
        check_streams(
            model,
            part.apply_to(task),
            "train",
            part.batch_size,
            training=True,
            steps=steps,
            stage_memory=(f"{part.where}.memory", part.memory) if part.memory else None,
        )
    splits = {*config.evaluate_splits} | ({"validation"} if config.evaluate_every_steps else set())
    for split in sorted(splits):
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
    """Check that each row of a batch has enough text for its memory, and no more than positions.

    Args:
        model: The model, which has the state and the positions.
        task: The task, with prepared data.
        split: The split that is read.
        rows: Rows of a batch; the split is cut into so many texts.
        training: Whether the model is trained; evaluation may have another memory.
        steps: Number of batches that are read; None: the whole split.
        stage_memory: Name and value of an option that replaces the memory of model and task.

    Raises:
        Unsupported: The memory is longer than the text, or the text is longer than the positions.
    """
    if not isinstance(task, WindowedTask) or (tokens := task.row_tokens(split, rows)) is None:
        return
    row_text = "the row" if rows == 1 else f"each of the {rows} rows"
    available = (
        f"the {split} split of {task.spec.name} has {tokens:,} tokens for {row_text} of a batch"
    )
    if stage_memory:
        name, memory = stage_memory
    else:
        memory = remembered_tokens(model.config, task, training=training)
        limits = ("memory",) if training else ("memory", "evaluation_memory")
        changed = [limit for limit in limits if getattr(model.config, limit)]
        name = f"model.backbone.{changed[-1]}" if changed else "task.memory"
    # Bytes of a state that remembers 1 token, and of one that remembers `memory` tokens.
    least, needed = (size_bytes(model.initial_state(1, size)) for size in (1, max(2, memory)))
    if memory > tokens and needed > least:  # a state that does not grow has no limit
        advice = ", or choose a smaller batch" if rows > 1 else ""
        raise Unsupported(
            f"{name}={memory} is longer than the text: {available}; type {name}={tokens} or "
            f"less{advice}"
        )
    read = tokens if steps is None else min(tokens, steps * task.window(split))
    if model.positions is not None and read > model.positions.max_length:
        raise Unsupported(
            f"positions={model.config.positions} end at {model.positions.max_length:,} tokens, "
            f"but {available} in one piece; choose model.backbone.positions=rotary, alibi, "
            "sinusoidal or none"
        )
