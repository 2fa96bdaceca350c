"""Parts of a sweep that are computed apart: every row is in one W&B run, and none is replaced."""

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from fuzz import cases
from offline_runs import Run

from reports.dashboard.keys import LENGTH_AXIS, SPEEDUP, STEP_AXIS
from reports.dashboard.mirror import MirrorMode, MirrorResult, mirror
from reports.dashboard.plan import RunPlan, contents, plan_report, plan_runs

Logged = Counter[tuple[str, float | None, float]]
"""Cells of a run, place on the axis and value; every value below stands in one row alone."""


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


def expected(rows: pd.DataFrame) -> Logged:
    """One entry for each row that has a value."""
    found: Logged = Counter()
    timed = set(rows[rows["metric"] == "time"]["cell"])
    for row in rows[rows["status"] == "ok"].to_dict("records"):
        place = row["length"] if row["cell"] in timed else row["step"]
        found[row["cell"], None if pd.isna(place) else float(place), float(row["value"])] += 1
    return found


def logged(
    cells: Sequence[str],
    history: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    rows: pd.DataFrame,
) -> Logged:
    """What a run holds, by the cell of its own list that has the value."""
    owner = {
        float(r["value"]): str(r["cell"])
        for r in rows[rows["status"] == "ok"].to_dict("records")
        if r["cell"] in set(cells)
    }
    found: Logged = Counter()
    for line in history:
        place = line.get(LENGTH_AXIS, line.get(STEP_AXIS))
        for key, value in line.items():
            derived = f"_{SPEEDUP}_against_" in key  # of a ratio, which is there as well
            if "/" in key and not derived and not key.startswith("not_measured"):
                found[owner[value], None if place is None else float(place), value] += 1
    last = {value for line in history for value in line.values() if isinstance(value, float)}
    for key, value in summary.items():
        special = key.startswith(("at_", "failed", "not_measured", "_"))
        if not special and isinstance(value, float) and value not in last:
            found[owner[value], None, value] += 1
    return found


def of_plans(plans: Sequence[RunPlan], rows: pd.DataFrame) -> Logged:
    found: Logged = Counter()
    for plan in plans:
        found += logged(plan.config["cells"], plan.history, plan.summary, rows)
    return found


def of_files(folders: Sequence[Path], rows: pd.DataFrame) -> Logged:
    found: Logged = Counter()
    for run in map(Run, folders):
        if run.run.job_type != "report":
            found += logged(run.config["cells"], run.history, run.summary, rows)
    return found


@pytest.fixture
def sweep(make: SimpleNamespace) -> Sweep:
    return Sweep(make)


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


def send(sweep: Sweep, rows: pd.DataFrame, folder: Path, own: Sequence[str]) -> MirrorResult:
    return mirror(
        rows, [], sweep="s", cells=sweep.cells, own=own, mode=MirrorMode.offline,
        folder=folder / "wandb", project="lra",
    )  # fmt: skip


def halves(sweep: Sweep) -> tuple[list[str], list[str]]:
    keys = sorted(sweep.cells)
    return keys[::2], keys[1::2]


def test_two_shards_in_two_stores_are_all_there_on_one_server(sweep: Sweep, tmp_path: Path) -> None:
    found: list[Path] = []
    for number, keys in enumerate(halves(sweep)):
        found += send(sweep, part(sweep, keys), tmp_path / str(number), keys).paths
    ids = [path.name.rsplit("-", 1)[1] for path in found]
    assert len(set(ids)) == len(ids)  # a server keeps one run of each id
    assert of_files(found, sweep.rows) == expected(sweep.rows)


@pytest.mark.slow
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_shards_in_one_store_then_the_whole_then_more(
    sweep: Sweep, tmp_path: Path, order: tuple[int, int]
) -> None:
    shards = halves(sweep)
    folder = tmp_path / "wandb"

    def there() -> dict[Path, int]:
        return {p: p.stat().st_mtime_ns for p in folder.glob("offline-run-*")}

    done: list[str] = []
    for number in order:
        done += shards[number]
        send(sweep, part(sweep, done), tmp_path, shards[number])
        assert of_files([*there()], sweep.rows) == expected(part(sweep, done))
    before = there()
    send(sweep, sweep.rows, tmp_path, sorted(sweep.cells))  # the whole sweep, again
    assert there() == before
    changed = sweep.rows.copy()
    changed.loc[changed["cell"] == shards[0][0], "value"] *= 3
    changed["value"] = changed["value"].astype(float)
    send(sweep, changed, tmp_path, shards[0])
    assert of_files([*there()], changed) == expected(changed)
    reports = [run for run in map(Run, there()) if run.run.job_type == "report"]
    assert [sorted(run.config["cells"]) for run in reports] == [sorted(sweep.cells)]


@pytest.mark.parametrize("case", range(cases(4)))
def test_any_order_of_any_parts_puts_each_row_into_one_run(
    make: SimpleNamespace, case: int
) -> None:
    draw = random.Random(case)
    sweep = Sweep(make, ("linear", "sdpa", "performer"))
    rows = sweep.rows.copy()
    known: dict[str, dict[str, str]] = {}
    runs: dict[str, RunPlan] = {}
    computed: set[str] = set()
    for _ in range(4):
        own = set(draw.sample(sorted(sweep.cells), draw.randint(1, len(sweep.cells))))
        for cell in own & computed if draw.random() < 0.5 else ():  # computed anew
            rows.loc[rows["cell"] == cell, "value"] += draw.randint(1, 9) * 2.0**-30
        computed |= own
        now = rows[rows["cell"].isin(computed)].reset_index(drop=True)
        hashes = contents(now)
        for plan in plan_runs(now, sweep="s", cells=sweep.cells, known=known, own=own):
            runs[plan.id] = plan
            known[plan.id] = {cell: hashes[cell] for cell in plan.config["cells"]}
    now = rows[rows["cell"].isin(computed)]
    homes = Counter(cell for plan in runs.values() for cell in plan.config["cells"])
    assert set(homes) == computed
    assert set(homes.values()) == {1}
    assert of_plans([*runs.values()], now) == expected(now)
    failures = [line for plan in runs.values() for t in plan.tables.values() for line in t.rows]
    assert len(failures) == len({json.dumps(line) for line in failures})


def test_a_run_is_called_the_same_whatever_else_the_store_holds(sweep: Sweep) -> None:
    whole = plan_runs(sweep.rows, sweep="s", cells=sweep.cells)
    for plan in whole:
        keys = plan.config["cells"]
        (alone,) = plan_runs(part(sweep, keys), sweep="s", cells=sweep.cells)
        assert (alone.id, alone.name, alone.tags) == (plan.id, plan.name, plan.tags)
    # as a report renames models that it must tell apart
    stored = sweep.rows["model"]
    renamed = sweep.rows.assign(
        model=[f"{m} (features=64)" if m == "linear" else m for m in stored],
        family=stored,
        options=[{"mixer.features": "64"} if m == "linear" else {} for m in stored],
    )
    named = plan_runs(renamed, sweep="s", cells=sweep.cells)
    assert [(p.id, p.name) for p in named] == [(p.id, p.name) for p in whole]
    told = plan_runs(renamed, sweep="s", cells=sweep.cells,
                     names=dict.fromkeys(sweep.cells, "own (features=8)"))  # fmt: skip
    assert {p.name.partition("/")[0] for p in told} == {"own (features=8)", "baselines"}


def test_reports_on_different_parts_are_different_runs(sweep: Sweep, tmp_path: Path) -> None:
    plans = [
        plan_report(part(sweep, keys), [], sweep="s", rows_folder=tmp_path)
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
        p for p in plan_runs(sweep.rows, sweep="s", cells=sweep.cells) if p.job_type == "certify"
    ]
    (plan,) = plans
    keys = {key for key in plan.summary if "accuracy" in key}
    assert keys == {
        "quality/test_accuracy/baseline/majority",
        "quality/test_accuracy/baseline/root",
    }
