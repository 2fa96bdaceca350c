"""A run that an agent of W&B has opened: the command's one cell is written into it.

An agent starts the command with the run and its sweep in the environment, and stops it by SIGTERM.
"""

import os
import re
from collections.abc import Sequence

from lra.composition.run import LoggerMode
from lra.errors import ConfigError
from lra.sweep.sweep import SweepCells

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""Names of files too."""
_OF_WANDB = frozenset({LoggerMode.online, LoggerMode.offline})
_WHOLE = ("cells", "disturbed_cells", "family", "kind", "longest_length")
"""Keys of a run's configuration that are no options."""


def agents_sweep() -> str:
    """Return the sweep of W&B whose agent started this command; "" where none did."""
    return os.environ.get("WANDB_SWEEP_ID", "")


def agent_run(sweep: SweepCells) -> str:
    """Return the run that an agent has opened for this sweep; "" without one, or without W&B.

    Raises:
        ConfigError: The sweep has more than one cell, or the run a name that no file can have.
    """
    run = os.environ.get("WANDB_RUN_ID")
    if not run or not agents_sweep() or sweep.logger.mode not in _OF_WANDB:
        return ""
    if not _ID.fullmatch(run):
        raise ConfigError(f"WANDB_RUN_ID: got {run!r}; wanted letters, digits, - and _")
    if len(sweep.cells) != 1:
        raise ConfigError(
            f"WANDB_SWEEP_ID is set, and an agent starts a single training: got {len(sweep.cells)} "
            "runs; give single values and let W&B vary them, or omit the agent and vary them "
            "here: lra run -m, or search=halton"
        )
    return run


def unheard(sweep: SweepCells) -> str:
    """Return what to say where an agent waits for a run that nobody writes; "" where none does."""
    if not agents_sweep() or sweep.logger.mode in _OF_WANDB:
        return ""
    return (
        f"lra: an agent of the W&B sweep {agents_sweep()} started this command, and "
        "its logger writes no run to W&B, so the agent gets no score; add logger=wandb_online"
    )


def check_words(words: Sequence[str]) -> None:
    """Refuse the words of an agent that hands over a run's whole configuration.

    Raises:
        ConfigError: The words are no options of ours.
    """
    names = [word.partition("=")[0].lstrip("-") for word in words]
    told = [name for name in names if "__" in name or name in _WHOLE]
    if told and agents_sweep():
        raise ConfigError(
            f"{told[0]}: an agent that resumes a preempted run passes its whole configuration, "
            "which contains more than options; type the arguments of its first start to resume "
            "the training from its saved state"
        )
