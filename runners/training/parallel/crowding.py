"""Whether processes on one processor have a core for each of their threads."""

import os

import torch

from lra.conf.processors import within_quota
from lra.runners.training.parallel.ranks import Ranks


def crowding_reason(ranks: Ranks, device: torch.device) -> str:
    """Return why a time says nothing of devices: threads without a core each, or ""; all call."""
    if device.type != "cpu":
        return ""
    cores = within_quota(
        len({core for each in ranks.gathered(os.sched_getaffinity(0)) for core in each})
    )
    threads = sum(ranks.gathered(torch.get_num_threads()))
    if threads <= cores:
        return ""
    return (
        f"{ranks.size} processes with {threads} threads in total share {cores} "
        f"core{('' if cores == 1 else 's')}"
    )
