"""Check the name of a task, which rows have as a label."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lra.composition.catalogue import names, our_file
from lra.errors import ConfigError

if TYPE_CHECKING:
    from lra.tasks.task import Task

NONE = "none"
"""The protocol of a run without one."""


def check_name(config: Mapping[str, Any], task: "Task") -> None:
    """Raise ConfigError if a task has the name of another task of lra, or should have it.

    Rows name their task, so a task of the user must not have a name of lra's. A protocol has
    settings by the name of a task, so the user must type `task=pathx` in place of
    `task=pathfinder task.side=128`.

    Args:
        config: The configuration of the run.
        task: The task that it describes.
    """
    protocol, name = config["protocol"], config["task"]["name"]
    if name not in (tasks := names("task")):
        return
    own = our_file(f"task/{name}").get("class_path")
    if (given := config["task"]["class_path"]) != own and given in {
        our_file(f"task/{other}").get("class_path") for other in tasks
    }:
        raise ConfigError(
            f"task.name={name} is the name of another task ({own}), so reports would mistake rows "
            f"of {given} for rows of that task. Choose a name that is not in `lra list tasks`, for "
            "example task.name=my_notes"
        )
    if protocol == NONE:
        return
    if (built := task.spec.name) != name and built in tasks:
        raise ConfigError(
            f"with these options, task={name} is the same as task={built}, which has other "
            f"settings in +protocol={protocol}. Choose task={built}, or omit the protocol"
        )
