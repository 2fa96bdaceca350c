"""Rows and accounts of a sweep with hostile names, failures, one seed and mixed settings."""

from pathlib import Path

import pandas as pd
import pytest

from lra.composition.runner_class import sections
from lra.reports.page.configurations import CellAccount
from lra.reports.report import write_report
from tests.reports.conftest import accuracy, baseline, failed, frame, row, timing

SCRIPT = "<script>alert(1)</script>"
PERCENT = "50%_$x"
REASON = "needs 5 GiB & </script><b>more</b>"
CLOSING = "</script><img src=x onerror=alert(2)>"


def awkward_rows() -> pd.DataFrame:
    """Four models at three lengths, two of hostile names; one fails, one has no memory."""
    rows = []
    seconds = {"sdpa": 4e-6, "linear": 9e-6, SCRIPT: 2e-6, PERCENT: 5e-7}
    for model, factor in seconds.items():
        for length in (256, 512, 1024):
            cell = {"runner": "scaling", "mode": "step", "length": length}
            if model == "linear" and length == 1024:
                rows.append(failed("time", model, "out_of_memory", REASON, **cell))
                continue
            beside = {} if model == "sdpa" else {"sdpa": seconds["sdpa"] * length**1.5}
            made = timing(model, length, factor * length**1.5, references=beside, noise=0.05)
            if model == PERCENT:  # a metric that one model lacks
                made = [r for r in made if r["metric"] != "peak_tensor_bytes"]
            rows += made
        rows.append(accuracy(model, 0, 0.2 + factor * 2e4))
        for step in (1, 2, 3):
            value = 2.0 / step + factor * 1e4
            rows.append(row("train_loss", value, model=model, step=100 * step))
    rows += timing("linear", 256, 0.01, causal=True) + timing("linear", 512, 0.02, causal=True)
    rows.append(baseline("majority", 0.18, CLOSING))
    return frame(*rows)


def accounts_of(rows: pd.DataFrame) -> dict[str, CellAccount]:
    """A configuration of several levels for each cell, which differs in the model's name."""
    first = rows.drop_duplicates("cell")
    return {
        str(key): CellAccount(
            config={"mixer": {"name": model, "features": None}, "note": CLOSING, "steps": [1, 2]},
            command=f"lra run model='{model}' 'runner.lengths=[{length}]'",
            environment={"torch": "2.13.0", "platform": CLOSING},
        )
        for key, model, length in zip(first["cell"], first["model"], first["length"], strict=True)
    }


def write_awkward(folder: Path) -> None:
    """Write the report, with figures in one format."""
    rows = awkward_rows()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lra.reports.figures.drawing.FORMATS", ("svg",))
        write_report(
            rows, folder, title=f"A & {SCRIPT}", sections=sections(), cells=accounts_of(rows)
        )
