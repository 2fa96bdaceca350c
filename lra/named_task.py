"""A task from its name and the words of a command line, without a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.compose import build_task
from lra.configuration import ConfigError

if TYPE_CHECKING:
    from tasks.task import Task


def build_task_by_name(
    name: str,
    overrides: Sequence[str] = (),
    config_dirs: Sequence[Path] = (),
    plugins: Sequence[str] = (),
) -> "Task":
    """Build a task from its name and `option=value` words; see `task_node`."""
    return build_task(*task_node(name, overrides, config_dirs, plugins))


def task_node(
    name: str,
    overrides: Sequence[str] = (),
    config_dirs: Sequence[Path] = (),
    plugins: Sequence[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Return the resolved `task` node and the plug-ins of a run, as `lra run` composes them.

    Args:
        name: Of the task.
        overrides: As after `lra run`; an option of the task may leave out `task.`.
        config_dirs: A folder of configuration files beside ours, or none.
        plugins: Packages that these files may name.

    Raises:
        ConfigError: As of `lra run`.
    """
    from lra.composition.hydra_entry import entries

    words = [f"task={name}", *map(_of_the_task, overrides)]
    if plugins:
        words.append(f"plugins=[{','.join(plugins)}]")
    if len(config_dirs) > 1:
        raise ConfigError(f"got {len(config_dirs)} times --config-dir; wanted one folder")
    flags = [f"--config-dir={folder}" for folder in config_dirs]
    (entry,) = entries([*flags, *words])
    return dict(entry.config["task"]), list(entry.config["plugins"])


def _of_the_task(word: str) -> str:
    """Return a word as after `lra run`: `+max_length=9` stands for `+task.max_length=9`."""
    signs = word[: len(word) - len(word.lstrip("+~"))]
    key = word[len(signs) :]
    ours = key.partition("=")[0]
    if (not ours.isidentifier() and "." not in ours) or ours == "plugins":
        return word
    return word if ours.startswith("task.") else f"{signs}task.{key}"
