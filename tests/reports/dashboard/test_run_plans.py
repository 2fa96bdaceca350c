"""What a dashboard gets of rows: which runs, what they are called, and what they hold."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from lra.reports.dashboard.plan import plan_runs
from tests.reports.rows_of_tables import rows_in


class Sweep:
    """Rows of models, tasks and runners, no value twice."""

    def __init__(self, make: SimpleNamespace, models: Sequence[str] = ("linear", "sdpa")) -> None:
        self.count = 0
        rows: list[dict[str, Any]] = []
        for model in models:
            for seed in (0, 1):
                rows += self._training(make, model, seed)
            for mode in ("step", "forward"):
                for length in (256, 512, 1024):
                    rows += self._timing(make, model, length, mode)
        for name in ("majority", "root"):
            rows.append(make.baseline(name, self.value(), "s", cell="baselines"))
        for factor in ("1", "2"):
            labels = {"split": "test", "factor": factor, "tokens": "64", "trained_tokens": "64"}
            rows.append(
                make.row("accuracy", self.value(), runner="extrapolate", mode="extrapolate",
                         labels=labels)
            )  # fmt: skip
        for peer in ("a", "b"):  # one cell, one metric, told apart by a label
            rows.append(make.row("peer_error", self.value(), runner="peers", mode="step",
                                 labels={"peer": peer, "version": "1"}))  # fmt: skip
        why = {"runner": "scaling", "mode": "step", "length": 2048}
        rows.append(make.failed("time", "linear", "out_of_memory", "needs 5 GiB", **why))
        self.rows: pd.DataFrame = make.frame(*rows)
        self.cells = {
            str(part["cell"].iloc[0]): _described(part.iloc[0])
            for _, part in self.rows.groupby("cell")
        }

    def value(self) -> float:
        self.count += 1
        return self.count / 2**14

    def _training(self, make: SimpleNamespace, model: str, seed: int) -> list[dict[str, Any]]:
        rows = [make.accuracy(model, seed, self.value())]
        for step in (10, 20):
            rows.append(make.row("train_loss", self.value(), model=model, seed=seed, step=step))
            rows.append(make.row("accuracy", self.value(), model=model, seed=seed, step=step,
                                 labels={"split": "validation"}))  # fmt: skip
        return rows

    def _timing(
        self, make: SimpleNamespace, model: str, length: int, mode: str
    ) -> list[dict[str, Any]]:
        place = {"runner": "scaling", "mode": mode, "model": model, "length": length}
        rows = [make.row(m, self.value(), **place) for m in ("time", "peak_tensor_bytes")]
        for reference in ("sdpa", "softmax"):
            told = place | {"labels": {"reference": reference}}
            rows.append(make.row("time_ratio", self.value(), **told))
        return rows


def _described(row: pd.Series) -> dict[str, Any]:
    columns = {c: row[c] for c in ("runner", "mode", "model", "task", "length", "seed", "device")}
    identity = {k: str(v) for k, v in columns.items()}
    return {"identity": identity, "columns": columns, "config": {"model": {"name": row["model"]}}}


def part(sweep: Sweep, keys: Sequence[str]) -> pd.DataFrame:
    return sweep.rows[sweep.rows["cell"].isin(keys)].reset_index(drop=True)


@pytest.fixture
def sweep(make: SimpleNamespace) -> Sweep:
    return Sweep(make)


def test_a_run_is_called_the_same_whatever_else_the_store_holds(sweep: Sweep) -> None:
    whole = plan_runs(rows_in(sweep.rows), sweep="s", cells=sweep.cells)
    for plan in whole:
        keys = plan.config["cells"]
        (alone,) = plan_runs(rows_in(part(sweep, keys)), sweep="s", cells=sweep.cells)
        assert (alone.id, alone.name, alone.tags) == (plan.id, plan.name, plan.tags)
    about = {cell: {**told, "model": "own (features=8)"} for cell, told in sweep.cells.items()}
    named = plan_runs(rows_in(sweep.rows), sweep="s", cells=about)
    assert {p.name.partition("/")[0] for p in named} == {"own (features=8)", "baselines"}
    apart = {cell: {**told, "apart": " features=8"} for cell, told in about.items()}
    told = {p.name for p in plan_runs(rows_in(sweep.rows), sweep="s", cells=apart)}
    assert "linear/listops/s0 features=8" in told


def test_baselines_of_a_task_are_one_run_with_all_of_them(sweep: Sweep) -> None:
    plans = [
        p
        for p in plan_runs(rows_in(sweep.rows), sweep="s", cells=sweep.cells)
        if p.job_type == "certify"
    ]
    (plan,) = plans
    keys = {key for key in plan.summary if "accuracy" in key}
    assert keys == {
        "quality/test_accuracy/baseline/majority",
        "quality/test_accuracy/baseline/root",
    }


def test_run_ids_are_stable_and_tell_sweeps_and_seeds_apart(sweep: Sweep) -> None:
    def ids(frame: pd.DataFrame, name: str) -> set[str]:
        return {plan.id for plan in plan_runs(rows_in(frame), sweep=name, cells={})}

    rows = sweep.rows
    assert ids(rows, "quick") == ids(rows, "quick")
    assert not ids(rows, "quick") & ids(rows, "other")
    other = rows.assign(seed=1, cell="seed-1-" + rows["cell"])  # a seed is part of a cell's key
    assert not ids(other, "quick") & ids(rows, "quick")


def test_marks_of_a_whole_run_are_no_part_of_a_key(make: SimpleNamespace) -> None:
    """A score under a protocol, at a scale, is compared with any other under one key."""
    marks = {"protocol": "s4", "scale": "tiny", "changed": "a, b", "deviations": "c"}
    row = make.row("train_loss", 1.0, step=1, labels=marks)
    final = make.accuracy("linear", 0, 0.5, labels=marks)
    (plan,) = plan_runs(rows_in(make.frame(row, final)), sweep="s", cells={})
    assert plan.history == [{"optimiser_step": 1.0, "train/loss": 1.0}]
    assert plan.summary == {"quality/test_accuracy": 0.5, "status": "complete"}


def test_parts_of_one_cell_have_names_of_their_own(make: SimpleNamespace) -> None:
    def longer(factor: str, value: float) -> dict[str, Any]:
        return make.accuracy(
            "linear", 0, value, labels={"factor": factor}, runner="extrapolate", mode="extrapolate"
        )

    def span(value: float, **labels: str) -> dict[str, Any]:
        told = {"layer": "all", "head": "all", "split": "validation"} | labels
        return make.row("span", value, labels=told, runner="span", mode="span")

    frame = make.frame(
        longer("1", 0.5), longer("2", 0.4), span(3.0, measure="attention", layer="0", head="1"),
        span(4.0, measure="gradient"),
    )  # fmt: skip
    plans = {p.job_type: p.summary for p in plan_runs(rows_in(frame), sweep="s", cells={})}
    assert plans["extrapolate"]["quality/test_accuracy/factor_1"] == 0.5
    assert plans["extrapolate"]["quality/test_accuracy/factor_2"] == 0.4
    assert plans["span"]["span/measure_attention/layer_0/head_1"] == 3.0
    assert plans["span"]["span/measure_gradient"] == 4.0
