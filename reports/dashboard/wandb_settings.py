"""How wandb behaves in the processes that write runs: silent, and never waiting for long."""

from collections.abc import Mapping
from typing import Any


def settings(wandb: Any, job: Mapping[str, Any], process: int | None = None) -> Any:
    """Return the settings of a run.

    Args:
        wandb: the module.
        job: with `init_timeout_s` and `finish_timeout_s`.
        process: whose use of the system is recorded with the run; None: nobody's.
    """
    wanted = {
        "silent": True,
        "quiet": True,
        "console": "off",
        "symlink": False,
        "use_dot_wandb": False,
        "disable_git": True,
        "save_code": False,
        "init_timeout": job["init_timeout_s"],
        "finish_timeout": job["finish_timeout_s"],
        "finish_timeout_raises": True,
        "x_disable_stats": process is None,
        "x_disable_meta": True,
        "x_disable_machine_info": process is None,
        "x_save_requirements": False,
        **({} if process is None else {"x_stats_pid": process}),
    }
    # settings come and go between versions; none of these changes what is written
    fields = set(wandb.Settings.model_fields)
    return wandb.Settings(**{k: v for k, v in wanted.items() if k in fields})
