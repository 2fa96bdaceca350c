"""A preset that names what is swept is a sweep, and says so."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from lra.cli import main
from lra.composition.catalogue import names
from lra.composition.composer import Composer
from lra.composition.hydra_entry import entries
from lra.composition.run import Composed
from lra.tuning.sweep_plan import plan_sweep


def found(*words: str) -> list[Composed]:
    return entries(list(words))


@pytest.mark.share(4)
@pytest.mark.parametrize("name", names("experiment"))
def test_every_preset_runs_as_a_whole_and_lists_its_cells_without_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LRA_DATA", str(tmp_path))
    alone = found(f"+experiment={name}")
    said = capsys.readouterr().err
    assert len(alone) > 1
    whole = f"lra: +experiment={name} is a sweep of {len(alone)} runs, even without -m; --run"
    if alone[0].searched is not None:
        whole = f"lra: +experiment={name} is a search that tunes {len(alone)} arm"
    assert whole in said
    tasks = {entry.config["task"]["name"]: entry for entry in alone}
    listed, _ = plan_sweep([*tasks.values()], elsewhere=True)
    assert tasks.keys() <= {each.run.task_name for each in listed.planned}


@pytest.mark.parametrize(
    "preset", ["quickstart", "lra_modern task=image", "compressive", "self_pretraining"]
)
def test_the_sweep_of_a_preset_is_that_of_m(
    preset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"+experiment={preset}".split()
    alone = found(*words)
    capsys.readouterr()
    assert alone == found("-m", *words)
    assert "is a sweep" not in capsys.readouterr().err  # where -m says so


def test_models_of_a_preset_stand_under_the_protocols_of_their_sources() -> None:
    wanted = {"s4": "s4_v3", "s5": "s5", "lru": "lru", "mega": "mega", "sgconv": "sgconv"}

    def pairs(*words: str) -> list[tuple[str, str]]:
        configs = [entry.config for entry in found("+experiment=lra_modern", "task=image", *words)]
        return [(config["model"]["name"], config["protocol"]) for config in configs]

    assert sorted(pairs()) == sorted(wanted.items())
    assert pairs("model=s5,lru") == [("s5", "s5"), ("lru", "lru")]
    assert pairs("+protocol=s4") == [("s4", "s4")]


@pytest.mark.parametrize("model", ["s4", "s5", "lru", "mega", "sgconv"])
def test_rows_of_the_table_of_today_are_the_presets_of_their_models(model: str) -> None:
    def settings(preset: str, *words: str) -> dict[str, tuple[object, ...]]:
        configs = [entry.config for entry in found(f"+experiment={preset}", *words)]
        parts = ("protocol", "model", "optim", "task", "runner", "deviations")
        return {config["task"]["name"]: tuple(config[p] for p in parts) for config in configs}

    alone = settings(f"lra_{model}")
    assert len(alone) == 6
    assert alone == settings("lra_modern", f"model={model}")


@pytest.mark.parametrize("words", [["--run"], ["hydra.mode=RUN"]])
def test_one_run_of_it_where_that_is_asked_for(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (entry,) = found("+experiment=quickstart", "model=performer", *words)
    assert entry.config["model"]["mixer"]["features"] == 64
    assert ("is a sweep; --run makes one run" in capsys.readouterr().err) == (words == ["--run"])


def test_a_report_is_written_as_after_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("lra.execution.preload.isolate.prepare", lambda *_, **__: None)

    def execute(entries: Sequence[Composed], **_: object) -> SimpleNamespace:
        asked.append(entries[0].several)
        return SimpleNamespace(code=0, sweep=None)

    monkeypatch.setattr("lra.execution.foreground.execute", execute)
    monkeypatch.setattr("lra.commands.run.advice_if_disturbed", lambda *_: "")
    assert main(["run", "+experiment=quickstart"]) == 0
    assert main(["run", "model=linear"]) == 0
    assert asked == [True, False]


def test_a_plain_run_composes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    before = Composer._compose_files
    monkeypatch.setattr(Composer, "_compose_files", lambda *a: calls.append(a) or before(*a))
    found("model=linear")
    assert len(calls) == 1
