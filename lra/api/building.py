"""A model as a plain `nn.Module`, and a task with its data."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.api.plain_errors import plainly
from lra.composition.python_words import flags, model_words, words_of
from lra.errors import ConfigError

if TYPE_CHECKING:
    from lra.models.backbone.model import Backbone
    from lra.tasks.task import Task


@plainly
def model(
    name: str,
    /,
    *,
    task: str = "listops",
    seed: int = 0,
    config_dir: "str | Path | None" = None,
    plugins: Sequence[str] = (),
    **options: Any,
) -> "Backbone":
    """Return a model with new weights, as a run of the same words would begin with.

    It is an `nn.Module` with the embedding, layers and head that the task asks for. `predict`
    returns its logits; calling it with tokens and targets returns losses and hits.

    Args:
        name: One of `lra list models`, or your own.
        task: One of `lra list tasks`: it decides vocabulary, length, head and direction. No data
            are read.
        seed: Of the weights.
        config_dir: A folder with configuration files of your own.
        plugins: Packages that these files may name.
        **options: Options of the mixer by name, as `lra list NAME` shows them. Others by dotted key
            or as a mapping: `backbone={"depth": 4, "width": 128}` or
            `**{"model.backbone.depth": 4, "task.max_length": 512}`.

    Returns:
        The model, on the CPU, in training mode. Its `predict` takes tokens `[b p l]`: examples,
        sequences of each (2 where a task compares pairs, else 1), length.

    Raises:
        ValueError: There is no such model, task or option, or they do not go together.

    Examples:
        >>> import lra, torch
        >>> model = lra.model("performer", features=16, backbone={"depth": 1, "width": 32})
        >>> logits, _ = model.predict(torch.randint(1, 10, (2, 1, 50)))
        >>> logits.shape
        torch.Size([2, 10])
    """
    from lra.composition.compose import build_model, typed
    from lra.composition.hydra_entry import only_entry

    if not isinstance(name, str):
        raise ConfigError(
            f"got {name!r:.80} ({type(name).__name__}); wanted the name of a model. A class of "
            "your own has one once a file my_conf/model/NAME.yaml says `name: NAME` and `mixer: "
            "{class_path: my_package.module.Class}`: lra.model('NAME', config_dir='my_conf', "
            "plugins=['my_package']); lra.verify takes the class itself"
        )
    folders = [] if config_dir is None else [Path(config_dir)]
    words = [*flags(config_dir, plugins), *words_of({"model": name, "task": task, "seed": seed})]
    words += model_words(name, options, folders)
    return build_model(typed(only_entry(words).config))


@plainly
def task(
    name: str,
    /,
    *,
    config_dir: "str | Path | None" = None,
    plugins: Sequence[str] = (),
    **options: Any,
) -> "Task":
    """Return a task with its data ready: generated, converted or downloaded where they are not.

    Args:
        name: One of `lra list tasks`, or your own.
        config_dir: A folder with configuration files of your own.
        plugins: Packages that these files may name.
        **options: Options of the task by name, as `lra list NAME` shows them: `source="sample"` is
            a small offline set for trials.

    Returns:
        The task: `spec` has its facts, `batches` yields what models read.

    Raises:
        ValueError: There is no such task or option.
        NotPrepared: Its data cannot be had here; the message says what to fetch.

    Examples:
        >>> import lra
        >>> task = lra.task("listops", source="sample", train_examples=64)
        >>> batch = next(iter(task.batches("train", seed=0, batch_size=4)))
        >>> tuple(batch.tokens.shape[:2])
        (4, 1)
    """
    from lra.composition.hydra_entry import hydra_left_alone
    from lra.composition.lookup import named_task
    from lra.tasks.data.full_disk import full_disk_explained
    from lra.tasks.data.sources import data_root

    folders = [] if config_dir is None else [Path(config_dir)]
    with hydra_left_alone():
        built = named_task(name, words_of(options, "task."), folders, plugins)
    with full_disk_explained(data_root()):
        built.prepare()
    return built
