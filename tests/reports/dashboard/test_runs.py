"""Which run is opened where: of W&B's server, of its files, of TensorBoard."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lra.reports.dashboard import runs
from lra.reports.dashboard.describe import Description
from lra.reports.dashboard.runs import Runs, RunTarget

ABOUT = Description(name="linear/listops/s0", job_type="train", tags=[], config={"a": 1})
TARGET = RunTarget(kind="online", folder=Path("r/wandb"), sweep="s", project="lra", entity=None)


class Opened:
    """In the place of a run of W&B: the server takes none."""

    every: ClassVar[list[tuple[RunTarget, str, bool]]] = []

    def __init__(
        self, target: RunTarget, run: str, _: object, *, curve: bool, resumed=False
    ) -> None:
        assert not curve
        self.every.append((target, run, resumed))
        if target.kind == "online":
            raise RuntimeError("it\ndoes not answer")


@pytest.fixture(autouse=True)
def _stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "WandbRun", Opened)
    monkeypatch.setattr(Opened, "every", [])


def test_once_the_server_takes_no_run_all_go_into_files(caplog: Any) -> None:
    sweep = Runs(TARGET)
    for run in ("one", "two"):
        sweep.open(run, ABOUT)
    assert [(target.kind, run) for target, run, _ in Opened.every] == [
        ("online", "one"), ("offline", "one"), ("offline", "two"),
    ]  # fmt: skip
    assert [each.getMessage() for each in caplog.records] == [
        "W&B: it does not answer; runs are written to files in r/wandb"
    ]


def test_a_resumed_run_goes_on_on_the_server_and_is_a_second_one_in_files() -> None:
    Runs(TARGET).open("one", ABOUT, resumed=True)
    (_, first, resumed), (_, second, again) = Opened.every
    assert (first, resumed, again) == ("one", True, False)
    assert (second != "one", len(second)) == (True, 16)
    Runs(replace(TARGET, kind="offline", agent="one")).open("one", ABOUT, resumed=True)
    assert Opened.every[-1][1] == "one", "an agent waits for this one"


def test_a_folder_of_tensorboard_is_a_runs_own(tmp_path: Path) -> None:
    target = replace(TARGET, kind="tensorboard", folder=tmp_path, sweep="../s:1")
    for resumed in (False, False, True):  # the second in the place of the first
        run = Runs(target).open("0123456789abcdef", ABOUT, resumed=resumed)
        run.log({"optimiser_step": 3.0, "train/loss": 0.5}, 3)
        run.end({"status": "complete", "quality/test_accuracy": 0.25}, 0)
    files = [*tmp_path.rglob("events.*")]
    assert len(files) == 2
    places = {str(file.parent.relative_to(tmp_path)) for file in files}
    assert "-/s-1/linear/listops/s0 01234567" in places
    assert all(place.startswith("-/s-1/linear/listops/s0 ") for place in places)
