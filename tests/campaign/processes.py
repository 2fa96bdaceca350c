"""Kills at random in a sweep whose trainings consist of two processes each."""

from tests.campaign.kills import campaign
from tests.campaign.part import Found, Settings
from tests.campaign.sweeps import TINY

ABOUT = "SIGKILL of parents, ranks, fork servers of trainings by two processes"
SHARE = 5
"""Of so many kills of the part `kills`, one here: a cell takes four times as long to begin."""


def run(settings: Settings) -> Found:
    """Kill in a sweep of cells of two processes."""
    found = Found("processes")
    kills = max(1, settings.kills // SHARE)
    words = ("-m", *TINY, "hardware.processes=2", "hardware.training_processes=1",
             "model=linear,softmax", f"seed=range(0,{max(1, kills // 10)})")  # fmt: skip
    campaign(found, settings, words, kills)
    return found
