"""What the page of a report says of cells: from a store, and from published rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from lra.composition.runner_class import mode_word, our_runners
from lra.results.accounts import published_accounts, stored_accounts
from lra.results.rows import publish, published_cells, published_with_names, stored_rows
from lra.runners.records import CELL_COLUMNS, Cell, Measurement
from lra.runners.store import Store


def cell_of(runner: str, mode: str, config: dict[str, object] | None = None) -> Cell:
    columns = dict.fromkeys(CELL_COLUMNS, "x") | {
        "runner": runner, "mode": mode, "model": "linear", "length": 64, "seed": 0,
        "task_version": 1, "threads": 1, "causal": False,
    }  # fmt: skip
    return Cell(
        identity={"seed": 0, "mode": mode, "mixer": {"features": 16}},
        columns=columns,
        config=config or {},
        overrides=("-m", "model=linear", "runner.lengths=[64,128]", "results=there"),
        fingerprint="ab",
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "results")
    cells = [
        cell_of("scaling", "step", {"mixer": {"features": 16}, "runner": {"name": "scaling"}}),
        cell_of("elsewhere", "far", {"runner": {"name": "elsewhere", "class_path": "gone.Away"}}),
    ]
    for cell in cells:
        made.write(cell, [Measurement(metric="time", value=0.5)], [], {"torch": "2.13.0"})
        made.record_in_sweep("mine", cell.key)
    return made


def test_a_store_says_configuration_command_and_environment(store: Store) -> None:
    rows, cells, left_out = stored_rows(store.root, "mine")
    assert left_out == []
    found = {about.command: about for about in stored_accounts(store.root, rows, cells).values()}
    command = (
        "lra run -m model=linear 'runner.modes=[step]' 'runner.lengths=[64]' "
        "results=results-repeated"
    )
    assert set(found) == {command, ""}  # a package that is not here has no command, and stops none
    assert found[command].config["mixer"] == {"features": 16}
    assert found[command].environment == {"torch": "2.13.0"}


def test_an_environment_that_is_damaged_is_left_out(store: Store) -> None:
    rows, cells, _ = stored_rows(store.root, "mine")
    for file in store.root.glob("cells/*/*/environment-*.json"):
        file.write_text("{torn")
    accounts = stored_accounts(store.root, rows, cells)
    assert [about.environment for about in accounts.values()] == [{}, {}]


def test_published_rows_say_the_same(store: Store, tmp_path: Path) -> None:
    rows, cells, _ = stored_rows(store.root, "mine")
    wanted = stored_accounts(store.root, rows, cells)
    publish(store.root, "mine", tmp_path / "kept.jsonl")
    kept = tmp_path / "kept.jsonl"
    found = published_accounts(published_with_names(kept), published_cells(kept))
    assert {key: about.environment for key, about in found.items()} == {
        key: about.environment for key, about in wanted.items()
    }
    assert {about.command for about in found.values()} == {
        about.command for about in wanted.values()
    }


def test_the_word_of_a_mode_is_that_of_the_runners_class() -> None:
    for name, kind in our_runners().items():
        if kind.by_length:
            assert mode_word(cell_of(name, "one")) == kind.word("one"), name


def test_equal_parts_of_many_cells_are_held_once(tmp_path: Path) -> None:
    """Of 50,000 cells of one sweep, configurations alone were 2 GiB."""
    store = Store(tmp_path / "results")
    options = {f"option_{number}": number for number in range(20)}
    for seed in range(3):
        cell = cell_of("scaling", "step", {"mixer": options, "optim": {"seed": seed}})
        cell = replace(cell, identity={**cell.identity, "seed": seed})
        store.write(cell, [Measurement(metric="time", value=0.5)], [], {})
    _, cells, _ = stored_rows(store.root, None)
    configs = [cell["config"] for cell in cells.values()]
    assert len({id(config["mixer"]) for config in configs}) == 1
    assert sorted(config["optim"]["seed"] for config in configs) == [0, 1, 2]
    assert cells == {key: store.cell(key) for key in cells}
