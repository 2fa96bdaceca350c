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
"""What the id of a W&B run may be: a file is named by it, too."""
_OF_WANDB = frozenset({LoggerMode.online, LoggerMode.offline})
_WHOLE = ("cells", "disturbed_cells", "family", "kind", "longest_length")
"""Keys of the configuration of a whole W&B run, which `lra run` takes as no options."""


def agents_sweep() -> str:
    """Return the id of the W&B sweep whose agent started this command; "" if no agent did."""
    return os.environ.get("WANDB_SWEEP_ID", "")


def agent_run(sweep: SweepCells) -> str:
    """Return the id of the W&B run that an agent has opened for this sweep; "" if there is none.

    It is "" as well if the sweep does not log to W&B.

    Raises:
        ConfigError: The sweep has more than one cell, or the id cannot be the name of a file.
    """
    run_id = os.environ.get("WANDB_RUN_ID")
    if not run_id or not agents_sweep() or sweep.logger.mode not in _OF_WANDB:
        return ""
    if not _ID.fullmatch(run_id):
        raise ConfigError(f"WANDB_RUN_ID: got {run_id!r}; wanted letters, digits, - and _")
    if len(sweep.cells) != 1:
        raise ConfigError(
            f"WANDB_SWEEP_ID is set, and an agent starts a single training: got {len(sweep.cells)} "
            "runs; give single values and let W&B vary them, or omit the agent and vary them "
            "here: lra run -m, or search=halton"
        )
    return run_id


def unheard(sweep: SweepCells) -> str:
    """Return a warning if an agent waits for a W&B run that this sweep does not write; else ""."""
    if not agents_sweep() or sweep.logger.mode in _OF_WANDB:
        return ""
    return (
        f"lra: an agent of the W&B sweep {agents_sweep()} started this command, and "
        "its logger writes no run to W&B, so the agent gets no score; add logger=wandb_online"
    )


def check_words(words: Sequence[str]) -> None:
    """Refuse the arguments of an agent that passes the whole configuration of a W&B run.

    Raises:
        ConfigError: An argument sets a key that is no option of lra.
    """
    names = [argument.partition("=")[0].lstrip("-") for argument in words]
    foreign = [name for name in names if "__" in name or name in _WHOLE]
    if foreign and agents_sweep():
        raise ConfigError(
            f"{foreign[0]}: an agent that resumes a preempted run passes its whole configuration, "
            "which contains more than options; type the arguments of its first start to resume "
            "the training from its saved state"
        )
