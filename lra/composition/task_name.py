"""The names of tasks, under which their rows stand."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lra.composition.catalogue import names, our_file
from lra.errors import ConfigError

if TYPE_CHECKING:
    from lra.tasks.task import Task

NONE = "none"
"""The protocol of a run without one."""


def check_name(config: Mapping[str, Any], task: "Task") -> None:
    """Raise ConfigError where a task has the name of another, or its options make another.

    A name is what rows stand under: a text of one's own is none of ours. A protocol knows tasks by
    their names: `task=pathfinder task.side=128` is `task=pathx`.
    """
    protocol, name = config["protocol"], config["task"]["name"]
    if name not in (tasks := names("task")):
        return
    own = our_file(f"task/{name}").get("class_path")
    if (given := config["task"]["class_path"]) != own and given in {
        our_file(f"task/{other}").get("class_path") for other in tasks
    }:
        raise ConfigError(
            f"task.name={name} is the name of another task ({own}), so that rows of {given} would "
            "be taken for its rows. Choose a name that `lra list tasks` lacks, as "
            "task.name=my_notes"
        )
    if protocol == NONE:
        return
    if (built := task.spec.name) != name and built in tasks:
        raise ConfigError(
            f"+protocol={protocol} has its settings for task={name}, and these options of it make "
            f"{built}: choose task={built}, or omit the protocol"
        )
