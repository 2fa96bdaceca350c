"""Frames like those the store reads: real columns, invented but plausible numbers."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from lra.composition.runner_class import sections
from lra.reports.report import write_report
from lra.runners.metrics import METRICS
from lra.runners.records import COLUMNS

Report = Callable[[pd.DataFrame], dict[str, Path]]

CELL = {
    "schema": 1, "fingerprint": "f00d", "created": "2026-01-02T03:04:05+00:00", "runner": "train",
    "mode": "train", "model": "linear", "task": "listops", "task_version": 1,
    "source": "generated", "length": 512, "seed": 0, "causal": False, "hardware": "cpu",
    "device": "cpu", "precision": "float32", "threads": 1,
}  # fmt: skip


def row(metric: str, value: float | None, **columns: Any) -> dict[str, Any]:
    """One row; columns override the defaults; the cell key names what tells cells apart."""
    full = {**CELL, "status": "ok", "reason": "", "samples": [], "step": None, "labels": {}}
    full |= {"metric": metric, "value": value, "unit": METRICS[metric].unit} | columns
    told = ("runner", "mode", "model", "task", "task_version", "source", "length", "seed")
    full.setdefault("cell", "-".join(str(full[c]) for c in told))
    return full


def frame(*rows: dict[str, Any]) -> pd.DataFrame:
    """Rows as the store returns them, column types included; or as names are told apart."""
    told = [column for column in ("family", "options") if rows and column in rows[0]]
    table = pd.DataFrame(list(rows), columns=[*COLUMNS, *told])
    integers = ("schema", "task_version", "length", "seed", "threads", "step")
    kinds: dict[str, str] = {**dict.fromkeys(integers, "Int64"), "causal": "boolean"}
    return table.astype({**kinds, "value": "float64", "created": "datetime64[us, UTC]"})


def accuracy(model: str, seed: int, value: float | None, **columns: Any) -> dict[str, Any]:
    """A final test accuracy over 2,000 examples."""
    labels = {"split": "test", "examples": "2000"} | columns.pop("labels", {})
    return row("accuracy", value, model=model, seed=seed, labels=labels, **columns)


def baseline(name: str, value: float, sentence: str, **columns: Any) -> dict[str, Any]:
    """A certified baseline."""
    labels = {"split": "test", "examples": "2000", "sentence": sentence}
    return row(
        "accuracy", value, model=f"baseline/{name}", runner="certify", mode="certify",
        labels=labels, **columns,
    )  # fmt: skip


def timing(
    model: str,
    length: int,
    seconds: float,
    *,
    mode: str = "step",
    peak: float = 2.0**24,
    references: dict[str, float] | None = None,
    batch: int = 4,
    noise: float = 0.0,
    **columns: Any,
) -> list[dict[str, Any]]:
    """The rows of one timing cell. `references` gives their seconds; samples wander by `noise`."""
    rng = np.random.default_rng(length)
    wander = 1 + noise * rng.standard_normal(11)
    cell = {"runner": "scaling", "mode": mode, "model": model, "length": length} | columns
    samples = list(seconds * wander)
    rows = [
        row("time", float(np.median(samples)), samples=samples, **cell),
        row("tokens_per_second", batch * length / seconds, **cell),
        row("peak_tensor_bytes", peak, **cell),
        row("batch_size", float(batch), **cell),
        row("parameters", 65_000.0, **cell),
    ]
    for reference, other in (references or {}).items():
        told = cell | {"labels": {"reference": reference}}
        theirs = other * (1 + noise * rng.standard_normal(11))
        ratios = list(np.asarray(samples) / theirs)
        rows += [
            row("reference_time", float(np.median(theirs)), samples=list(theirs), **told),
            row("time_ratio", float(np.median(ratios)), samples=ratios, **told),
            row("peak_tensor_bytes_ratio", seconds / other, **told),
        ]
    return rows


def failed(metric: str, model: str, status: str, reason: str, **columns: Any) -> dict[str, Any]:
    """A row that says why there is no number."""
    return row(metric, None, model=model, status=status, reason=reason, **columns)


def _realistic() -> pd.DataFrame:
    """Six models, lengths 256 to 16,384 with gaps, three seeds, baselines and curves."""
    factor = {
        "softmax": (2.0, 9e-9), "sdpa": (1.92, 7e-9), "linear": (1.0, 6e-6),
        "performer": (1.02, 1.3e-5), "sliding_window": (1.03, 9e-6), "identity": (0.98, 1.6e-6),
    }  # fmt: skip
    lengths = [256, 512, 1024, 2048, 4096, 8192, 16384]
    rows: list[dict[str, Any]] = []
    skip = "one step would take longer than step_limit_s=10; raise the limit to measure it"

    def seconds(model: str, n: int, mode: str) -> float:
        e, c = factor[model]
        return (0.002 + c * n**e) * (1.0 if mode == "step" else 0.36)

    for model, n, mode in product(factor, lengths, ("step", "forward")):
        cell: dict[str, Any] = {"runner": "scaling", "mode": mode, "length": n, "threads": 2}
        batch = max(1, 8192 // n)
        if model == "softmax" and n > 4096:
            rows.append(failed("time", model, "skipped", skip, **cell))
            continue
        if model == "performer" and n > 8192:
            why = "needs about 5.1 GiB, the limit is 4.0 GiB (hardware.memory_limit_bytes)"
            rows.append(failed("time", model, "out_of_memory", why, **cell))
            continue
        refs = {"sdpa": seconds("sdpa", n, mode) * batch}
        if n <= 4096:
            refs["softmax"] = seconds("softmax", n, mode) * batch
        refs.pop(model, None)
        peak = batch * (60_000.0 + 900 * n + (8 * n * n if model == "softmax" else 0)
                        + {"performer": 2300.0, "linear": 500.0}.get(model, 90.0) * n)  # fmt: skip
        rows += timing(
            model, n, seconds(model, n, mode) * batch, mode=mode, peak=peak, references=refs,
            batch=batch, noise=0.04, threads=2,
        )  # fmt: skip
        if n > 4096 and model != "softmax":
            rows.append(
                failed(
                    "time_ratio", model, "skipped", skip, labels={"reference": "softmax"}, **cell
                )
            )
    for model, seed in product(factor, range(3)):
        rng = np.random.default_rng([seed, len(model)])
        base = 0.17 if model == "identity" else 0.378
        for split in ("validation", "test"):
            labels = {"split": split}
            if model == "performer" and seed == 2:
                if split == "test":
                    why = "loss was nan at step 210"
                    rows.append(failed("accuracy", model, "diverged", why, seed=2, labels=labels))
                continue
            value = base + 0.006 * float(rng.standard_normal())
            rows.append(accuracy(model, seed, value, labels=labels))
        for step in range(25, 401, 25):
            loss = 1.55 + (0.75 if base > 0.3 else 0.95) * np.exp(-step / 120)
            loss += 0.03 * rng.standard_normal()
            rows.append(row("train_loss", float(loss), model=model, seed=seed, step=step))
    rows.append(
        baseline("majority", 0.179, "Always answering the commonest class of the training data.")
    )
    rows.append(
        baseline("root_operator", 0.370, "Knowing only the outermost operator: scores up to here "
                 "show learning, but rank no mixer.")
    )  # fmt: skip
    return frame(*rows)


@pytest.fixture(autouse=True)
def drawn(one_format: None) -> None:
    """Draw the figures of every report in one format."""


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make files of figures without drawing them."""
    monkeypatch.setattr(
        Figure, "savefig", lambda _, path, **__: Path(path).write_text("<svg></svg>")
    )


@pytest.fixture
def report(tmp_path_factory: pytest.TempPathFactory, undrawn: None) -> Report:
    """Write the report of rows, with figures undrawn; return its files by name."""

    def write(rows: pd.DataFrame) -> dict[str, Path]:
        folder = tmp_path_factory.mktemp("report")
        paths = write_report(rows, folder, title="of a test", sections=sections())
        return {path.name: path for path in paths}

    return write


@pytest.fixture
def make() -> SimpleNamespace:
    """The factories of this file."""
    return SimpleNamespace(
        row=row, frame=frame, accuracy=accuracy, baseline=baseline, timing=timing, failed=failed
    )


@pytest.fixture(scope="session")
def realistic() -> pd.DataFrame:
    """A sweep as a stranger would have it: never changed by a test."""
    return _realistic()
