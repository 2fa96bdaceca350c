"""What schema 1 wrote of cells and rows is read in the words of this version."""

from pathlib import Path

import pytest

from lra.runners.records import Measurement, baseline_of
from lra.runners.storage.formats import read_cell, read_rows_file
from lra.runners.storage.schema_1 import describe_cell
from lra.runners.store import Store, read_rows
from tests.runners.storage.stored_cells import ENVIRONMENT, make_cell

PUBLISHED = Path(__file__).parents[3] / "reports" / "published"
RUNNER = {
    "name": "approximation",
    "budgets": [16, 32],
    "budget": {"performer": "features", "yoso": "hashes"},
    "own_budgets": {"yoso": [4]},
    "targets": {"yoso": {"mode": "expectation"}},
}


def write(root: Path, name: str, **columns: str) -> Path:
    """Write a cell with one row of the model `name`; return the file of its rows."""
    measurement = Measurement(metric="accuracy", value=0.2, model=name)
    return Store(root).write(make_cell(**columns), [measurement], [], ENVIRONMENT)


def make_old(path: Path) -> None:
    """Turn a file of this version into one of schema 1."""
    text = path.read_text()
    assert text.count('"schema":2') + text.count('"schema": 2') == 1
    path.write_text(text.replace('"schema":2', '"schema":1').replace('"schema": 2', '"schema": 1'))


@pytest.mark.parametrize(
    ("stored", "read"),
    [("floor/majority", "baseline/majority"), ("my floor/majority", "my floor/majority")],
)
def test_floors_of_a_store_are_baselines(tmp_path: Path, stored: str, read: str) -> None:
    rows = write(tmp_path, stored, runner="certify")
    make_old(rows)
    assert list(read_rows(tmp_path)["model"]) == [read]
    assert [row["model"] for row in read_rows_file(rows)] == [read]


def test_rows_of_this_version_are_read_as_they_are(tmp_path: Path) -> None:
    write(tmp_path, "floor/majority", runner="certify")
    assert list(read_rows(tmp_path)["model"]) == ["floor/majority"]


@pytest.mark.parametrize(("runner", "read"), [("certify", "baseline"), ("train", "floor")])
def test_a_cell_without_a_model_is_one_of_baselines(tmp_path: Path, runner: str, read: str) -> None:
    rows = write(tmp_path, "floor", runner=runner, model="floor")
    make_old(rows)
    make_old(rows.parent / "cell.json")
    assert list(read_rows(tmp_path)["model"]) == [read]
    assert read_cell(rows.parent)["columns"]["model"] == read


def test_published_rows_of_baselines_have_todays_name() -> None:
    (path,) = PUBLISHED.glob("families_train-*.jsonl")
    read = [*read_rows_file(path)]
    certified = {row["model"] for row in read if row["runner"] == "certify"}
    assert {baseline_of(model) for model in certified} >= {"majority", "root_operator"}


def test_of_mappings_by_model_the_models_own_part_stays() -> None:
    shared = {"name": "approximation", "own_budgets": {}}
    assert describe_cell({"model": "performer", "runner": RUNNER})["runner"] == {
        **shared, "option": "features", "budgets": [16, 32], "target": {},
    }  # fmt: skip
    assert describe_cell({"model": "yoso", "runner": RUNNER})["runner"] == {
        **shared, "option": "hashes", "budgets": [4], "target": {"mode": "expectation"},
    }  # fmt: skip
    other = {"model": "yoso", "runner": {"name": "train", "log_every_steps": 5}}
    assert describe_cell(other)["runner"] == {"name": "train"}
