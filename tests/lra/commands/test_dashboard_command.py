"""`lra dashboard`: a script, which W&B's own library takes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lra.cli import main
from lra.reports.dashboard import keys
from lra.runners.metrics import METRICS
from tests.reports.dashboard.wandb_server import KEY, wandb_server

SWEEP = "quick \"one\" \\ 'two'"


def test_the_script_saves_a_workspace_over_keys_that_runs_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dashboard", "--sweep", SWEEP, "--project", "own"]) == 0
    script = tmp_path / "workspace.py"
    script.write_text(capsys.readouterr().out)
    with wandb_server() as server:
        account = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": server.url, "HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, str(script)], env=os.environ | account, cwd=tmp_path,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{server.url}/me/own?nw=")
    ((name, view),) = server.views.items()
    assert name.removeprefix("nw-").removesuffix("-v") in done.stdout
    assert (view["entityName"], view["projectName"]) == ("me", "own")
    section = json.loads(view["spec"])["section"]
    (group,) = section["runSets"][0]["filters"]["filters"]
    assert (group["key"]["name"], group["op"], group["value"]) == ("group", "=", SWEEP)
    sections = section["panelBankConfig"]["sections"]
    assert [each["name"] for each in sections] == [
        "Cost against length", "Learning curves", "While training", "Scores", "Score against cost",
        "Failures",
    ]  # fmt: skip
    costs, curves, live, *_ = (
        [(panel["config"]["xAxis"], *panel["config"]["metrics"]) for panel in each["panels"]]
        for each in sections[:3]
    )
    assert (keys.LENGTH_AXIS, "speed/step_speedup_against_sdpa") in costs
    assert all(panel["config"]["xLogScale"] for panel in sections[0]["panels"])
    assert (keys.STEP_AXIS, keys.LOSS) in curves
    assert live == [(keys.STEP_AXIS, key) for key in keys.TRAINING.values()]
    for word in re.findall(r"(?:validation|test|train/train)_(\w+)", json.dumps(sections[3:])):
        assert {word, f"train_{word}"} & {*METRICS}, word


def test_every_run_of_a_project_and_an_entity(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--entity", "team"]) == 0
    told = capsys.readouterr().out
    assert "SWEEP = None" in told
    assert "PROJECT = 'lra'" in told
    assert "ENTITY = 'team'" in told


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("--project=a/b", r"got 'a/b'; wanted a name of at most 128 characters .*%"),
        ("--entity=\udcff", r"got '\\udcff'; wanted a name of at most 128"),
    ],
)
def test_words_that_are_none(word: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["dashboard", word])
    assert re.search(told, capsys.readouterr().err)
