"""Weights of a completed training that a run names: a cell of the store, or a cell's folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lra.composition.class_path import NotNamed
from lra.composition.compose import typed
from lra.composition.run import Run
from lra.errors import ConfigError
from lra.runners.storage.formats import fingerprint_of, read_cell, read_newest_rows
from lra.runners.store import BadStore, Store, UnknownCell
from lra.runners.training.checkpoint import Checkpoints
from lra.sweep.sweep import WEIGHTS_KEY
from lra.tasks.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTraining:
    """A completed training with stored weights."""

    key: str
    config: Mapping[str, Any]
    checkpoints: str
    """The folder of its weights."""

    def run(self, tasks: dict[str, Task] | None = None) -> Run:
        """Return its typed run. Raises ConfigError for options that this version does not know."""
        try:
            return typed(self.config, tasks)
        except NotNamed:
            raise
        except ConfigError as error:
            raise ConfigError(
                f"{WEIGHTS_KEY}: run {self.key} has options that this version of lra "
                f"does not know ({error}): train it again with this version"
            ) from error


def stored_training(run: Run) -> StoredTraining | None:
    """Return the training that a run names by `runner.weights`; None if it names none.

    Raises:
        ConfigError: There is no such cell, several keys begin so, or it has no weights.
    """
    named = run.runner.stored_weights
    if named is None:
        return None
    return completed_training(named, Path(run.config["results"]), WEIGHTS_KEY)


def completed_training(named: str, results: Path, option: str) -> StoredTraining:
    """Return a completed training of a results folder.

    Args:
        named: The key of a cell, the beginning of a key, or the folder of a cell.
        results: The results folder.
        option: The option whose value `named` is, for messages.

    Raises:
        ConfigError: There is no such cell, several keys begin so, or it has no weights.
    """
    try:
        folder = _find_folder(named, results, option)
        cell, newest = read_cell(folder), read_newest_rows(folder)
    except (UnknownCell, BadStore) as error:
        raise ConfigError(f"{option}: {error}") from error
    if newest is not None:
        checkpoints = folder / f"checkpoint-{fingerprint_of(newest[0])}"
        if Checkpoints(checkpoints).finished():
            key, config = str(cell["cell"]), cell["config"]
            return StoredTraining(key=key, config=config, checkpoints=str(checkpoints))
    columns, failures = (
        cell["columns"],
        [row for row in newest[1] if row["reason"]] if newest else [],
    )
    ended = (
        f"ended as {failures[0]['status']} ({failures[0]['reason']})"
        if failures
        else "saved no weights"
    )
    raise ConfigError(
        f"{option}: got the run {folder.name} (runner={columns['runner']} model={columns['model']} "
        f"task={columns['task']}), which {ended}; wanted a completed runner=train: "
        f"`lra show {folder.name}` prints the command to rerun it"
    )


def _find_folder(named: str, results: Path, option: str) -> Path:
    """Return the folder of a cell from its key, the beginning of its key, or its path."""
    path = Path(named).expanduser()
    if path.is_dir():
        if not (path / "cell.json").is_file():
            raise ConfigError(
                f"{option}: the folder {path} has no `cell.json`; wanted the folder of a run, as "
                "in `results/cells/3f/3fa9c1e07b2d4c58`, or the key of a run"
            )
        return path.resolve()
    store = Store(results)
    return store.cell_folder(store.find(named))
