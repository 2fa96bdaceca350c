"""How long a sweep will take is said from like cells, or not at all."""

from dataclasses import replace
from pathlib import Path

import pytest

from lra.composition.hydra_entry import entries
from lra.runners.records import Measurement
from lra.runners.store import Store
from lra.sweep.cell_list import build
from lra.sweep.estimate import announcement, forecasts, format_duration
from lra.sweep.past import Past, guess

WORDS = ("task=listops", "task.source=sample", "optim.warmup_steps=0", "optim.steps=100")
"""Of a small sweep, which is not counted."""


@pytest.fixture(autouse=True)
def nothing_counted_before(tmp_path_factory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("counts")
    monkeypatch.setattr("lra.sweep.kept_counts.data_root", lambda: folder)


def planned(*words: str):
    return build(entries([*WORDS, *words])).planned


def keep(store: Store, cell, took_s: object) -> None:
    row = Measurement(metric="accuracy", value=0.5, labels={"split": "test"})
    store.write(cell, [row], (), {"took_s": took_s})


def announced(waiting, store: Store, sweep: str) -> str:
    return announcement(forecasts(waiting, store, sweep))


def test_a_small_sweep_is_not_counted(tmp_path: Path) -> None:
    line = announced(planned("model=linear"), Store(tmp_path), "adhoc")
    unknown = "the time is unknown until the first run has ended, but `lra plan` computes it"
    assert line == f"1 run to do; {unknown}"
    assert [*tmp_path.iterdir()] == []


def test_an_empty_store_leaves_counting_and_typical_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lra.sweep.estimate.COUNTING_S", 60.0)  # of a busy machine, too
    waiting = planned("model=linear", "optim.steps=1000")
    line = announced(waiting, Store(tmp_path), "adhoc")
    assert line.startswith("1 run to do, very roughly ")
    assert line.endswith(" (counted)")
    assert [*tmp_path.iterdir()] == []


def test_other_seeds_count_as_alike(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed, took in ((1, 30.0), (2, 40.0), (3, 500.0)):
        keep(store, planned("model=linear", f"seed={seed}")[0].cell, took)
    waiting = planned("-m", "model=linear", "seed=4,5,6,7", "hardware.training_processes=2")
    line = announced(waiting, store, "adhoc")
    assert line == "4 runs to do, about 80 s (similar stored runs took this long)"


def test_other_code_of_the_same_cell_counts_as_alike(tmp_path: Path) -> None:
    (one,) = planned("model=linear")
    keep(Store(tmp_path), replace(one.cell, fingerprint="0" * 12, sources={}), 600.0)
    assert "about 10 min (similar" in announced([one], Store(tmp_path), "adhoc")


def test_other_models_and_lengths_are_scaled_and_said_so(tmp_path: Path) -> None:
    keep(Store(tmp_path), planned("model=sdpa", "optim.steps=50")[0].cell, 50.0)
    line = announced(planned("model=linear", "optim.steps=200"), Store(tmp_path), "adhoc")
    assert line == "1 run to do, very roughly 3 min (the time is scaled from different stored runs)"


@pytest.mark.parametrize("name", ["device", "runner", "mode"])
def test_another_machine_or_runner_is_no_measure(tmp_path: Path, name: str) -> None:
    (one,) = planned("model=linear")
    other = {**one.cell.columns, name: "scaling" if name == "runner" else "another"}
    keep(Store(tmp_path), replace(one.cell, columns=other), 50.0)
    assert "unknown" in announced([one], Store(tmp_path), "adhoc")


@pytest.mark.parametrize("took", [None, True, -1.0, 0, "3", [], 1e300])
def test_senseless_times_count_for_nothing(tmp_path: Path, took: object) -> None:
    (one,) = planned("model=linear")
    keep(Store(tmp_path), one.cell, took)
    assert "unknown" in announced([one], Store(tmp_path), "adhoc")


def test_torn_files_count_for_nothing(tmp_path: Path) -> None:
    (one,) = planned("model=linear")
    for file, text in (("cell.json", "{"), ("cell.json", "[]"), ("environment-0.json", "null")):
        keep(Store(tmp_path), one.cell, 3.0)
        next(tmp_path.glob("cells/*/*")).joinpath(file).write_text(text)
        if file != "cell.json":
            next(tmp_path.glob("cells/*/*/environment-*[a-f1-9]*.json")).unlink()
        assert "unknown" in announced([one], Store(tmp_path), "adhoc")


def test_a_preset_as_it_is_says_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lra.sweep.estimate.COUNTING_S", 0.0)
    whole = build(entries(["-m", "+experiment=quickstart"])).planned
    said = announced(whole, Store(tmp_path), "quickstart")
    assert "the whole preset takes about 4 minutes on 2 CPU cores on an idle machine" in said
    changed = planned("-m", "+experiment=quickstart", "model=linear", "optim.steps=50")
    assert "unknown" in announced(changed, Store(tmp_path), "quickstart")


def test_nearest_is_same_model_before_same_length() -> None:
    (wanted,) = planned("model=linear", "optim.steps=100")
    near = planned("model=linear", "optim.steps=200")[0].cell
    far = planned("model=sdpa", "optim.steps=100")[0].cell
    past = [Past(near.columns, near.config, 20.0), Past(far.columns, far.config, 99.0)]
    found = guess(wanted.cell, past)
    assert found.seconds == pytest.approx(10.0)
    assert not found.alike


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.01, "1 s"), (40.2, "40 s"), (99.4, "99 s"), (130, "2 min"), (3599, "60 min"),
     (7800, "2 h 10 min"), (7200, "2 h"), (300_000, "3 days"),
     (1e11, "3,169 years")],
)  # fmt: skip
def test_times_as_one_says_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
