"""Build a model as a plain `nn.Module`, and a task with its data."""

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
    """Return a model with new weights; a run with the same options starts with equal weights.

    It is an `nn.Module` with the embedding, the layers and the head that the task needs. Its method
    `predict` returns logits. If you call the model with tokens and targets, it returns the loss of
    each position and whether its prediction is correct.

    Args:
        name: A name of `lra list models`, or the name of your model.
        task: A name of `lra list tasks`. The task decides the vocabulary, the length, the head and
            the direction; no data are read.
        seed: The seed of the weights.
        config_dir: A folder with your configuration files.
        plugins: Packages that these files may name.
        **options: Options of the mixer, as `lra list NAME` prints them, for example `features=16`.
            Set other options by a mapping, `backbone={"depth": 4, "width": 128}`, or by a dotted
            key, `**{"model.backbone.depth": 4, "task.max_length": 512}`.

    Returns:
        The model, on the CPU, in training mode. Its `predict` takes token ids of shape `[b p l]`:
        b examples, p sequences in each example (2 if the task compares pairs, else 1), length l.

    Raises:
        ValueError: A model, task or option is unknown, or two of them exclude each other.

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
            f"got {name!r:.80} ({type(name).__name__}); wanted the name of a model. To name your "
            "class, write `name: NAME` and `mixer: {class_path: my_package.module.Class}` into "
            "my_conf/model/NAME.yaml, and call lra.model('NAME', config_dir='my_conf', "
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
    """Return a task after its data were generated, converted or downloaded, if necessary.

    Args:
        name: A name of `lra list tasks`, or the name of your task.
        config_dir: A folder with your configuration files.
        plugins: Packages that these files may name.
        **options: Options of the task, as `lra list NAME` prints them; for example
            `source="sample"`, a small offline set.

    Returns:
        The task. Its attribute `spec` holds facts such as the vocabulary; its method `batches`
        yields batches for models.

    Raises:
        ValueError: The task or an option is unknown.
        NotPrepared: The data are missing on this machine; the message says where to get them.

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
