"""The command line that computes a stored cell again."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lra.composition.python_words import word as word_of
from lra.composition.runner_class import mode_word
from lra.runners.records import Cell
from lra.runners.store import Store
from lra.sweep.sweep import WEIGHTS, WEIGHTS_KEY

HERE = Store(Path("results"))
NARROWED = ("runner.lengths", "runner.modes", "runner.qk")


def origin_of(description: Mapping[str, Any]) -> dict[str, str]:
    """Return the folders of the user's files that a stored cell read; {} if it read none."""
    origin = description.get("place")
    if not isinstance(origin, Mapping):
        return {}
    return {str(key): value for key, value in origin.items() if isinstance(value, str)}


def folder_is_gone(cell: Cell) -> bool:
    """Return whether the folder in which the command of a cell was typed has been removed."""
    return "folder" in cell.place and not Path(cell.place["folder"]).is_dir()


def repeat(cell: Cell, store: Store = HERE, *, results: str = "results-repeated") -> str:
    """Return the command that computes this one cell again.

    If its run has several modes and lengths, the command names those of the cell. It begins with
    `cd` to the folder of the first command, where the user's files are, unless this is the current
    folder or is gone.

    Args:
        cell: The cell.
        store: The results, which may hold the weights that the cell starts from.
        results: The results folder of the new command.
    """
    words = [
        word
        for word in cell.overrides
        if word.split("=", 1)[0].lstrip("+") not in (*NARROWED, "results", "runner.dry_run")
    ]
    source = cell.identity.get("trainings", {}).get(WEIGHTS)
    if source is not None:
        words = [word for word in words if not word.startswith(f"{WEIGHTS_KEY}=")]
        words.append(word_of(WEIGHTS_KEY, store.cell_folder(source).resolve()))
    if cell.columns["mode"] != cell.columns["runner"]:  # one of several lengths
        word = mode_word(cell)
        words += [*([word] if word else []), f"runner.lengths=[{cell.columns['length']}]"]
    flags = [f"--config-dir={cell.place['config_dir']}"] if "config_dir" in cell.place else []
    # `--run` runs one configuration of a preset that is a sweep.
    flags += ["--run"] if any(word.startswith("+experiment=") for word in words) else []
    command = shlex.join(["lra", "run", *flags, *words, word_of("results", results)])
    folder = cell.place.get("folder", str(Path.cwd()))
    if folder_is_gone(cell) or Path(folder) == Path.cwd():
        return command
    return f"{shlex.join(['cd', folder])} && {command}"
