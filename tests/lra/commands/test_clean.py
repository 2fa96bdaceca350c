import json
import os
from pathlib import Path

import pytest

from lra.cli import main
from lra.commands import clean
from lra.runners.records import Measurement
from lra.runners.storage.audit import audit
from lra.runners.store import Store
from tests.runners.storage.stored_cells import make_cell


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two sweeps that share the cell of seed 1, a single run of seed 3, weights, a dashboard."""
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))
    store = Store(tmp_path / "results")
    for seed in range(4):
        store.write(make_cell(seed), [Measurement(metric="time", value=1.0)], (), {})
        folder = store.checkpoint_folder(make_cell(seed))
        folder.mkdir()
        (folder / "weights.safetensors").write_bytes(bytes(1000))
    for name, seeds in (("first", (0, 1)), ("second", (1, 2))):
        for seed in seeds:
            store.record_in_sweep(name, make_cell(seed).key)
    (store.root / "reports" / "first").mkdir(parents=True)
    (store.root / "reports" / "first" / "report.html").write_text("page")
    (store.root / "wandb" / "offline-run").mkdir(parents=True)
    (tmp_path / "data" / "listops-abc").mkdir(parents=True)
    (tmp_path / "data" / "listops-abc" / "train.bin").write_bytes(bytes(5_000_000))
    return store.root


def seeds(results: Path) -> set[int]:
    keys = {make_cell(seed).key: seed for seed in range(4)}
    return {keys[file.parent.name] for file in results.glob("cells/*/*/rows-*.jsonl")}


def run(results: Path, *words: str) -> int:
    return main(["clean", *words, "--results", str(results)])


def test_without_a_kind_all_is_listed_and_nothing_goes(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(results.parent.rglob("*"))
    assert run(results) == 0
    text = capsys.readouterr().out
    assert "5 MB" in text
    for name in ("first", "second", "(none)", "weights", "wandb", "listops-abc"):
        assert name in text
    assert run(results, "sweeps", "first") == 0
    assert "add --yes to remove these files" in capsys.readouterr().out
    assert sorted(results.parent.rglob("*")) == before
    assert run(results, "--yes") == 2
    assert "lra clean sweeps|" in capsys.readouterr().err


def test_a_sweep_goes_with_its_cells_and_those_of_others_stay(results: Path) -> None:
    assert run(results, "sweeps", "first", "--yes") == 0
    assert seeds(results) == {1, 2, 3}
    assert Store(results).sweeps() == ["second"]
    assert not (results / "reports" / "first").exists()
    assert audit(results).damaged == []
    assert run(results, "sweeps", "second", "--yes") == 0
    assert seeds(results) == {3}


def test_the_record_of_a_search_goes_with_its_sweep_and_alone(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "stopped"):
        (results / "searches" / name).mkdir(parents=True)
        (results / "searches" / name / "search.json").write_text("{}")
    assert run(results, "sweeps", "first", "--yes") == 0
    assert [path.name for path in (results / "searches").iterdir()] == ["stopped"]
    capsys.readouterr()
    assert run(results, "sweeps") == 0
    assert "stopped" in capsys.readouterr().out
    assert run(results, "sweeps", "stopped", "--yes") == 0
    assert not [*(results / "searches").iterdir()]
    assert seeds(results) == {1, 2, 3}


def test_cells_of_no_sweep_go_by_the_name_none(results: Path) -> None:
    assert run(results, "sweeps", "(none)", "--yes") == 0
    assert seeds(results) == {0, 1, 2}


def test_weights_of_complete_cells_go_and_a_begun_training_stays(results: Path) -> None:
    begun = Store(results).checkpoint_folder(make_cell(1, "newer"))
    begun.mkdir()
    assert run(results, "weights", "--yes") == 0
    assert [path.name for path in results.glob("cells/*/*/checkpoint-*")] == ["checkpoint-newer"]
    assert seeds(results) == {0, 1, 2, 3}


def test_rows_of_earlier_sources_go_and_the_newest_stay(results: Path) -> None:
    store = Store(results)
    newer = make_cell(0, "newer")
    file = store.write(newer, [Measurement(metric="time", value=2.0)], (), {})
    later = file.stat().st_mtime + 10
    os.utime(file, (later, later))
    (store.cell_folder(newer.key) / "damaged-1-rows").write_text("torn")
    store.checkpoint_folder(make_cell(0, "begun")).mkdir()
    assert run(results, "old", "--yes") == 0
    left = sorted(path.name for path in store.cell_folder(newer.key).iterdir())
    assert left == ["cell.json", "checkpoint-begun", "environment-newer.json", "rows-newer.jsonl"]
    assert store.rows_of(newer)[0]["value"] == 2.0
    assert seeds(results) == {0, 1, 2, 3}


def test_data_by_a_pattern(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(results, "data", "text-*", "--yes") == 2
    assert "text-*" in capsys.readouterr().err
    assert run(results, "data", "listops-*", "--yes") == 0
    assert "removed: 5 MB" in capsys.readouterr().out
    assert not [*(results.parent / "data").iterdir()]
    assert run(results, "data") == 0
    assert "nothing to remove" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["sweeps", "weights"])
def test_nothing_goes_while_a_cell_runs(
    kind: str, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(results.glob("cells/**/*"))
    claim = Store(results).claim(make_cell(2).key)
    assert claim is not None
    with claim:
        assert run(results, kind, "--yes") == 2
        assert make_cell(2).key in capsys.readouterr().err
    assert sorted(results.glob("cells/**/*")) == before


def test_a_cell_with_damaged_rows_is_left_alone(results: Path) -> None:
    (file,) = Store(results).cell_folder(make_cell(0).key).glob("rows-*")
    file.write_text("torn")
    (file.parent / "rows-older.jsonl").write_text("torn too")
    assert run(results, "old", "--yes") == 0
    assert (file.parent / "rows-older.jsonl").exists()


def test_an_unknown_sweep_and_a_missing_folder_are_answered(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(results, "sweeps", "frist") == 2
    assert "did you mean 'first'" in capsys.readouterr().err
    assert run(results / "nowhere") == 2
    assert "no results folder" in capsys.readouterr().err


def test_a_link_goes_and_not_what_it_leads_to(results: Path) -> None:
    treasure = results.parent / "treasure"
    treasure.mkdir()
    (treasure / "gold").write_text("gold")
    (results.parent / "data" / "linked").symlink_to(treasure)
    assert run(results, "data", "--yes") == 0
    assert (treasure / "gold").exists()


def test_json_holds_the_sizes(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(results, "data", "--json") == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["name"], entry["bytes"]) == ("listops-abc", 5_000_000)
    assert run(results, "old", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 B"), (999, "999 B"), (999.6, "1 kB"), (12_345_678, "12.3 MB")]
)
def test_sizes_in_words(count: float, words: str) -> None:
    assert clean.size_words(count) == words
