"""Workspaces as code: over keys that runs carry, built offline, saved to a stub."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from wandb_server import KEY, wandb_server

from lra.reports.dashboard import keys, publish
from lra.reports.dashboard.panels import Workspace, plan_workspace
from lra.reports.dashboard.plan import RunPlan, plan_runs
from lra.runners.store import rows_in

DEVICE = "AMD \"E'P\\ 9"
SWEEP = 'quick "one"'


def planned(rows: pd.DataFrame) -> tuple[list[RunPlan], Workspace]:
    runs = plan_runs(rows_in(rows), sweep=SWEEP, cells={})
    return runs, plan_workspace(runs, title="Quick", sweep=SWEEP)


@pytest.fixture
def rows(make: SimpleNamespace) -> pd.DataFrame:
    """Two models of every kind of result, on two machines, and a failure."""
    found: list[dict[str, Any]] = []
    for model, share in (("linear", 0.3), ("softmax", 0.4)):
        for device in ("chip", DEVICE):
            for n in (256, 512):
                found += make.timing(
                    model, n, n * share, references={"sdpa": 0.02}, device=device,
                    cell=f"{model} {device} {n}",
                )  # fmt: skip
        for seed in (0, 1):
            told = {"model": model, "seed": seed}
            for step in (10, 20):
                found.append(make.row("train_loss", 2 - share, step=step, **told))
                labels = {"split": "validation"}
                found.append(make.row("accuracy", share, step=step, labels=labels, **told))
            found.append(make.accuracy(model, seed, share))
            found.append(make.row("train_step_time", share, **told))
            found.append(make.row("process_peak_bytes", 2.0**30, **told))
    where = {"runner": "scaling", "mode": "step", "length": 1024, "cell": "c"}
    return make.frame(
        *found, make.failed("time", "<script>", "out_of_memory", "a | b\n<b>50%_$x$</b>", **where)
    )


def wanted(panel: dict[str, Any]) -> list[tuple[str, str]]:
    """Return place and name of all keys of a panel that must be in one run."""
    config = panel["config"]
    if panel["viewType"] == "Run History Line Plot":
        return [("history", name) for name in (config["xAxis"], *config["metrics"])]
    if panel["viewType"] == "Bar Chart":
        return [("summary", name) for name in config["metrics"]]
    if panel["viewType"] == "Weave":
        return [("table", re.findall(r'"val": "(\w+)"', json.dumps(config))[-1])]
    accessors = [config["xAxis"], config["yAxis"]] if "xAxis" in config else [
        column["accessor"] for column in config["columns"]
    ]  # fmt: skip
    places = [accessor.partition(":") for accessor in accessors]
    return [(place, name.removesuffix(".value")) for place, _, name in places]


def carries(run: RunPlan, needed: list[tuple[str, str]]) -> bool:
    alone = [name for place, name in needed if place == "history"]
    has = {"summary": run.summary, "config": run.config, "table": run.tables}
    return any(set(alone) <= set(line) for line in run.history or [{}]) and all(
        name in has[place] for place, name in needed if place != "history"
    )


def test_every_panel_has_all_its_keys_in_one_run(rows: pd.DataFrame) -> None:
    runs, workspace = planned(rows)
    made = publish.specification(workspace, project="lra", entity=None)
    section = made["spec"]["section"]
    sections = section["panelBankConfig"]["sections"]
    assert [each["name"] for each in sections] == [
        "Cost against length", "Learning curves", "While training", "Scores", "Score against cost",
        "Failures",
    ]  # fmt: skip
    shown = [panel for each in sections for panel in each["panels"]]
    forms = {panel["viewType"] for panel in shown}
    assert forms == {"Run History Line Plot", "Scatter Plot", "Parallel Coordinates Plot",
                     "Bar Chart", "Weave"}  # fmt: skip
    live = {("history", keys.STEP_AXIS), *(("history", name) for name in keys.TRAINING)}
    for panel in shown:
        needed = wanted(panel)
        assert set(needed) <= live or any(carries(run, needed) for run in runs), panel
    lines = {p["config"]["metrics"][0]: p["config"] for p in sections[0]["panels"]}
    speedup = lines["speed/step_speedup_against_sdpa"]
    assert speedup["xLogScale"]
    assert speedup["yLogScale"]
    assert lines["speed/step_time"]["chartTitle"] == "speed/step_time, s"
    (runset,) = section["runSets"]
    grouped = {key["name"].removesuffix(".value") for key in runset["grouping"]}
    assert grouped == {"model", "device"}  # machines are lines of their own
    assert all(grouped <= run.config.keys() for run in runs)
    (group,) = runset["filters"]["filters"]
    assert (group["key"]["name"], group["value"]) == ("group", SWEEP)
    assert publish.specification(workspace, project="lra", entity=None) == made


def test_runs_that_an_option_tells_apart_are_lines_of_their_own(make: SimpleNamespace) -> None:
    """Or a line would be the mean of two learning rates."""
    rows = make.frame(
        *(make.row("train_loss", 1.0, step=step, cell=cell) for step in (1, 2) for cell in "abc")
    )
    rates = {"a": (0.1, 50), "b": (0.2, 50), "c": (0.1, 60)}
    cells = {
        cell: {"config": {"optim": {"peak_learning_rate": rate}, "runner": {"timeout_s": limit}}}
        for cell, (rate, limit) in rates.items()
    }
    runs = plan_runs(rows_in(rows), sweep="quick", cells=cells)
    workspace = plan_workspace(runs, title="Quick", sweep=None)
    assert workspace.group_by == ("model", "optim__peak_learning_rate")


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    return monkeypatch


VIEW: dict[str, Any] = {
    "project": "lra", "entity": None, "name": "nw-0ab-v", "displayName": "Quick? yes",
    "description": "", "type": "project-view", "spec": {"section": {}},
}  # fmt: skip


def test_what_is_saved_is_the_specification_and_takes_its_own_place_again(
    account: pytest.MonkeyPatch,
) -> None:
    with wandb_server() as server:
        account.setenv("WANDB_BASE_URL", server.url)
        first = publish.save(VIEW, deadline_s=30)
        assert first == publish.Saved(url=f"{server.url}/me/lra?nw=0ab", problem="")
        assert [sent["id"] for sent in server.views.values()] == [None]
        assert publish.save(VIEW, deadline_s=30) == first
    (sent,) = server.views.values()
    assert sent["id"] == "id-of-nw-0ab-v"
    assert json.loads(sent["spec"]) == VIEW["spec"]
    assert (sent["entityName"], sent["projectName"]) == ("me", "lra")
    assert server.projects == 1


def test_a_server_that_does_not_take_it(account: pytest.MonkeyPatch) -> None:
    with wandb_server() as server:
        server.refuses = True
        account.setenv("WANDB_BASE_URL", server.url)
        assert "not allowed" in publish.save(VIEW, deadline_s=30).problem
        server.refuses, server.hangs = False, True
        assert publish.save(VIEW, deadline_s=0.2).problem == "no answer within 0.2 s"
    account.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody listens there
    assert "no answer" in publish.save(VIEW, deadline_s=4).problem


def test_the_library_is_missing(
    rows: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb_workspaces.py").write_text("raise ImportError('No module here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(publish.MissingLibrary, match=r"pip install 'lra\[dashboard\]'"):
        publish.specification(planned(rows)[1], project="lra", entity=None)
