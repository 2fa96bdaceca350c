"""Cells, rows and outcomes for the store's tests."""

import numpy as np

from lra.runners.records import CELL_COLUMNS, Cell, Measurement, Outcomes

ENVIRONMENT = {"python": "3.11", "torch": "2.13.0"}


def make_cell(seed=0, fingerprint="aaa", *, identity=None, config=None, overrides=None, **columns):
    """Return a training of `linear` on ListOps, but for what is given."""
    cell_columns = dict.fromkeys(CELL_COLUMNS) | {
        "runner": "train", "mode": "train", "model": "linear", "task": "listops",
        "task_version": 1, "source": "generated", "length": 512, "seed": seed, "causal": False,
        "hardware": "cpu", "device": "some cpu", "precision": "float32", "threads": 1,
    }  # fmt: skip
    return Cell(
        identity={"seed": seed, **columns} if identity is None else identity,
        columns=cell_columns | columns,
        config={"seed": seed, "nested": {"list": [1, 2]}} if config is None else config,
        overrides=("model=linear", f"seed={seed}") if overrides is None else overrides,
        fingerprint=fingerprint,
    )


def measurements(value=0.5):
    return [
        Measurement(metric="accuracy", value=value, labels={"split": "test"}),
        Measurement(metric="train_loss", value=1.25, step=10),
        Measurement(metric="time", value=2.0, samples=(1.0, 2.0, 3.0)),
    ]


def failure(status, reason="took longer than 3 s"):
    return [Measurement(metric="accuracy", status=status, reason=reason, labels={"split": "test"})]


def outcomes(n=13, split="test"):
    generator = np.random.default_rng(0)
    return Outcomes(
        split=split,
        index=np.arange(n),
        hit=generator.random(n) < 0.5,
        nll=generator.random(n).astype(np.float32),
    )
