"""Whether processes on one processor have a core for each of their threads."""

import os

import torch

from lra.conf.processors import within_quota
from lra.runners.training.parallel.ranks import Ranks


def crowding_reason(ranks: Ranks, device: torch.device) -> str:
    """Return why times are invalid (too few cores for all threads) or ""; all must call this."""
    if device.type != "cpu":
        return ""
    core_sets = ranks.gathered(os.sched_getaffinity(0))
    cores = within_quota(len({core for core_set in core_sets for core in core_set}))
    threads = sum(ranks.gathered(torch.get_num_threads()))
    if threads <= cores:
        return ""
    return (
        f"{ranks.size} processes with {threads} threads in total share {cores} "
        f"core{('' if cores == 1 else 's')}"
    )
