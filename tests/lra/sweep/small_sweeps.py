"""Sweeps of a few seconds, in this process or in one of their own, and what to compare of them."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from lra.cli import main
from lra.runners.store import read_rows
from tests.lra_process import Program

TINY = (
    "task=listops",
    "task.source=sample",
    "optim.steps=6",
    "optim.warmup_steps=0",
    "optim.batch_size=8",
    "runner.timeout_s=300",
    "logger=none",
    "report=false",
    "++for_runner.train.runner.baselines=false",
)
BRIEF = (
    "runner.warmup_steps=1",
    "runner.timed_steps=3",
    "runner.long_timed_steps=3",
    "runner.repeat_limit_s=0",
    "runner.retry=[]",  # whatever else this machine does
    "hardware.token_budget=64",
)
"""Of runners that measure time, where no time is looked at."""
FAULTY = (
    "model=identity",
    "model.mixer.class_path=faulty_mixers.Faulty",
    "plugins=[faulty_mixers]",
)
# Wall clock, and memory of a whole process, differ from run to run.
NOISY = {
    "train_step_time", "train_time", "trial_time", "data_wait", "waiting_share",
    "process_peak_bytes",
}  # fmt: skip


def run(results: Path, *words: str) -> int:
    return main(["run", *TINY, f"results={results}", *words])


def start(results: Path, *words: str, prepare: Callable[[], object] | None = None) -> Program:
    here = Path(__file__).parent
    return Program(
        ["run", *TINY, f"results={results}", *words],
        env=os.environ | {"PYTHONPATH": f"{here.parents[2]}{os.pathsep}{here}"},
        prepare=prepare,
    )


def settled(results: Path) -> pd.DataFrame:
    """All rows but times, in an order that does not depend on who wrote first."""
    rows = read_rows(results)
    rows = rows[~rows["metric"].isin(NOISY)].drop(columns=["created"])
    rows["labels"] = [json.dumps(dict(labels), sort_keys=True) for labels in rows["labels"]]
    rows["samples"] = [str(list(samples)) for samples in rows["samples"]]
    keys = ["cell", "metric", "step", "labels"]
    return rows.sort_values(keys, ignore_index=True)
