"""What a dashboard gets of rows: which runs, what they are called, and what they hold."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from lra.reports.dashboard.plan import RunPlan, contents, plan_report, plan_runs
from lra.runners.store import read_rows_file, rows_in, table_of

ROOT = Path(__file__).resolve().parents[3]


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
    return {"identity": identity, "columns": columns, "config": {"model": row["model"]}}


def part(sweep: Sweep, keys: Sequence[str]) -> pd.DataFrame:
    return sweep.rows[sweep.rows["cell"].isin(keys)].reset_index(drop=True)


@pytest.fixture
def sweep(make: SimpleNamespace) -> Sweep:
    return Sweep(make)


def halves(sweep: Sweep) -> tuple[list[str], list[str]]:
    keys = sorted(sweep.cells)
    return keys[::2], keys[1::2]


def test_a_run_is_called_the_same_whatever_else_the_store_holds(sweep: Sweep) -> None:
    whole = plan_runs(rows_in(sweep.rows), sweep="s", cells=sweep.cells)
    for plan in whole:
        keys = plan.config["cells"]
        (alone,) = plan_runs(rows_in(part(sweep, keys)), sweep="s", cells=sweep.cells)
        assert (alone.id, alone.name, alone.tags) == (plan.id, plan.name, plan.tags)
    # as a report renames models that it must tell apart
    stored = sweep.rows["model"]
    renamed = sweep.rows.assign(
        model=[f"{m} (features=64)" if m == "linear" else m for m in stored],
        family=stored,
        options=[{"mixer.features": "64"} if m == "linear" else {} for m in stored],
    )
    named = plan_runs(rows_in(renamed), sweep="s", cells=sweep.cells)
    assert [(p.id, p.name) for p in named] == [(p.id, p.name) for p in whole]
    told = plan_runs(rows_in(renamed), sweep="s", cells=sweep.cells,
                     names=dict.fromkeys(sweep.cells, "own (features=8)"))  # fmt: skip
    assert {p.name.partition("/")[0] for p in told} == {"own (features=8)", "baselines"}


def test_reports_on_different_parts_are_different_runs(sweep: Sweep, tmp_path: Path) -> None:
    plans = [
        plan_report(rows_in(part(sweep, keys)), [], sweep="s", rows_folder=tmp_path)
        for keys in (*halves(sweep), sorted(sweep.cells))
    ]
    assert len({plan.id for plan in plans}) == 3
    lines = [
        json.loads(line)
        for plan in plans[:2]
        for file in plan.artifact["rows-s"]
        for line in Path(file).read_text().splitlines()
    ]
    assert Counter(line["cell"] for line in lines) == Counter(sweep.rows["cell"])


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
    plan = plan_runs(rows_in(rows), sweep="quick", cells={})[0]
    assert RunPlan.from_json(json.loads(json.dumps(plan.as_json()))) == plan


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


def test_rows_of_a_table_are_those_of_the_store() -> None:
    """A dashboard is told of rows as they are read, and afterwards of a report's table of them."""
    (file,) = (ROOT / "reports/published").glob("quickstart-*.jsonl")
    rows = read_rows_file(file)
    again = rows_in(table_of(rows))
    assert contents(again) == contents(rows)
    for row, same in zip(rows, again, strict=True):
        assert {**row, "created": ""} == {**same, "created": ""}
        assert {name: type(value) for name, value in row.items()} == {
            name: type(value) for name, value in same.items()
        }
