import dataclasses
import os
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lra.runners.records import COLUMNS, SCHEMA, Status
from lra.runners.store import BadStore, MixedSources, Store, UnknownCell, read_outcomes, read_rows
from tests.runners.storage.stored_cells import (
    ENVIRONMENT,
    failure,
    make_cell,
    measurements,
    outcomes,
)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


def test_rows_come_back_as_a_table_with_exactly_the_columns(store):
    cell = make_cell(seed=3)
    path = store.write(cell, measurements(), [], ENVIRONMENT)
    assert path == store.cell_folder(cell.key) / "rows-aaa.jsonl"
    table = read_rows(store.root)
    assert tuple(table.columns) == COLUMNS
    assert table.metric.tolist() == ["accuracy", "train_loss", "time"]
    assert table.value.tolist() == [0.5, 1.25, 2.0]
    assert table.samples.tolist() == [[], [], [1.0, 2.0, 3.0]]
    assert table.labels.tolist() == [{"split": "test"}, {}, {}]
    assert table.unit.tolist() == ["fraction", "nat", "s"]
    assert table.step.isna().tolist() == [True, False, True]
    assert set(table.cell) == {cell.key}
    assert (table.seed == 3).all()
    assert not table.causal.any()


def test_types_of_the_table_do_not_depend_on_its_rows(store, tmp_path):
    (tmp_path / "empty").mkdir()
    empty = read_rows(tmp_path / "empty")
    assert tuple(empty.columns) == COLUMNS
    store.write(make_cell(), failure(Status.timeout), [], ENVIRONMENT)
    full = read_rows(store.root)
    assert full.value.isna().all()
    for name in ("schema", "length", "seed", "step", "value", "causal", "created"):
        assert empty[name].dtype == full[name].dtype, name
    assert full.length.dtype == pd.Int64Dtype()
    assert full.created.dt.tz is not None


def test_outcomes_come_back_bit_for_bit(store):
    cell, given = make_cell(), [outcomes(13), outcomes(8, "validation"), outcomes(0, "train")]
    store.write(cell, measurements(), given, ENVIRONMENT)
    found = {each.split: each for each in read_outcomes(store.root, cell.key)}
    assert set(found) == {"test", "validation", "train"}
    for each in given:
        for name in ("index", "hit", "nll"):
            got, wanted = getattr(found[each.split], name), getattr(each, name)
            np.testing.assert_array_equal(got, wanted)
            assert got.dtype == wanted.dtype


def test_a_cell_without_outcomes_has_none(store):
    cell = make_cell()
    store.write(cell, measurements(), [], ENVIRONMENT)
    assert read_outcomes(store.root, cell.key) == []
    with pytest.raises(UnknownCell, match="no finished run 0123"):
        read_outcomes(store.root, "0123")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": np.array([0, 2, 1])}, "ascending"),
        ({"index": np.array([0, 1])}, "equal length"),
        ({"nll": np.zeros((3, 1))}, "equal length"),
    ],
)
def test_outcomes_out_of_order_are_refused_and_nothing_is_written(store, change, message):
    cell = make_cell()
    with pytest.raises(ValueError, match=message):
        store.write(cell, measurements(), [replace(outcomes(3), **change)], ENVIRONMENT)
    assert not store.complete(cell)


def test_two_outcomes_of_one_split_and_no_rows_at_all_are_refused(store):
    with pytest.raises(ValueError, match="outcomes of split 'test' were passed twice"):
        store.write(make_cell(), measurements(), [outcomes(), outcomes()], ENVIRONMENT)
    with pytest.raises(ValueError, match="has no rows"):
        store.write(make_cell(), [], [], ENVIRONMENT)
    with pytest.raises(ValueError, match="the fingerprint of a stored run consists"):
        store.write(make_cell(fingerprint="../x"), measurements(), [], ENVIRONMENT)


def test_description_says_what_the_cell_is_and_where_it_ran(store):
    cell = make_cell(seed=1)
    store.write(cell, measurements(), [], ENVIRONMENT)
    assert store.describe(cell.key) == {
        "schema": SCHEMA,
        "cell": cell.key,
        "identity": {"seed": 1},
        "described": {"seed": 1},
        "columns": dict(cell.columns),
        "config": {"seed": 1, "nested": {"list": [1, 2]}},
        "overrides": ["model=linear", "seed=1"],
        "fingerprint": "aaa",
        "environment": ENVIRONMENT,
    }
    with pytest.raises(UnknownCell):
        store.describe("0000000000000000")


def test_text_of_any_kind_survives(store):
    reason = 'tab\t, newline\n, "quotes", é, \u2028, \\ and |'
    store.write(make_cell(), failure(Status.crashed, reason), [], ENVIRONMENT)
    assert read_rows(store.root).reason.tolist() == [reason]


# -- complete, retry, newest ----------------------------------------------------------------------


def test_complete_means_key_and_fingerprint(store):
    cell = make_cell()
    assert not store.complete(cell)
    store.write(cell, measurements(), [], ENVIRONMENT)
    assert store.complete(cell)
    assert not store.complete(replace(cell, fingerprint="bbb"))
    assert not store.complete(make_cell(seed=1))


def test_a_checkpoint_does_not_make_a_cell_complete(store):
    cell = make_cell()
    store.checkpoint_folder(cell).mkdir(parents=True)
    assert not store.complete(cell)
    assert read_rows(store.root).empty


def test_failures_are_complete_and_repeated_only_on_request(store):
    cell = make_cell()
    store.write(cell, failure(Status.timeout), [], ENVIRONMENT)
    assert store.statuses(cell) == {Status.timeout}
    assert store.complete(cell)
    assert store.complete(cell, retry=[Status.crashed])
    assert not store.complete(cell, retry=[Status.crashed, Status.timeout])
    store.write(cell, measurements(), [], ENVIRONMENT)
    assert store.complete(cell, retry=[Status.timeout])
    assert len(store.rows_of(cell)) == 3


def test_a_repeated_cell_leaves_no_outcomes_of_the_attempt_before(store):
    cell = make_cell()
    store.write(cell, measurements(), [outcomes()], ENVIRONMENT)
    store.write(cell, failure(Status.crashed), [], ENVIRONMENT)
    assert read_outcomes(store.root, cell.key) == []


def test_readers_take_the_newest_fingerprint_whatever_the_file_times_say(store):
    old, new = make_cell(fingerprint="bbb"), make_cell(fingerprint="aaa")
    first = store.write(old, measurements(0.1), [outcomes(5)], ENVIRONMENT)
    second = store.write(new, measurements(0.2), [outcomes(6)], {"python": "3.12"})
    os.utime(second, (0, 0))
    assert first.exists()
    table = read_rows(store.root)
    assert table[table.metric == "accuracy"].value.tolist() == [0.2]
    assert len(read_outcomes(store.root, new.key)[0].index) == 6
    assert store.describe(new.key)["fingerprint"] == "aaa"
    assert store.describe(new.key)["environment"] == {"python": "3.12"}


def test_a_table_of_mixed_code_warns_and_one_of_many_models_does_not(store):
    store.write(make_cell(0, "aaa"), measurements(), [], ENVIRONMENT)
    store.write(make_cell(1, "ccc", model="softmax"), measurements(), [], ENVIRONMENT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_rows(store.root)
    store.write(make_cell(2, "bbb"), measurements(), [], ENVIRONMENT)
    with pytest.warns(MixedSources, match="train/linear/listops"):
        read_rows(store.root)


def test_weights_of_several_sources_are_no_mixed_code(store):
    for seed, (start, fingerprint) in enumerate([("softmax", "aaa"), ("scratch", "bbb")]):
        rows = [
            dataclasses.replace(row, labels={**row.labels, "start": start})
            for row in measurements()
        ]
        store.write(make_cell(seed, fingerprint), rows, [], ENVIRONMENT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_rows(store.root)


# -- damage ---------------------------------------------------------------------------------------


def test_two_halves_do_not_make_a_whole(store):
    """Joined by a comma these two lines would be one valid row."""
    path = store.write(make_cell(), measurements()[:1], [], ENVIRONMENT)
    one, two = path.read_text().split(',"model"')
    path.write_text(f'{one}\n"model"{two}')
    with pytest.raises(BadStore, match="line 1: the line is damaged"):
        read_rows(store.root)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"schema": 1, "cel', "line 2: the line is damaged"),
        ("[1, 2]", "line 2: a row must be a JSON object"),
        ('{"schema": 1}', "line 2: a row has wrong columns"),
        ('{"schema": 99, "new": true}', "line 2: this row has schema 99.*update lra"),
        ("", "line 2: the line is damaged"),
        ("\udcff", "line 2: the line is damaged"),
    ],
)
def test_a_damaged_line_names_file_and_line(store, line, message):
    path = store.write(make_cell(), measurements(), [], ENVIRONMENT)
    lines = path.read_bytes().split(b"\n")
    lines[1] = line.encode(errors="surrogateescape")
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(BadStore, match=f"rows-aaa.jsonl, {message}"):
        read_rows(store.root)


def test_a_truncated_file_is_an_error_wherever_it_ends(store):
    path = store.write(make_cell(), measurements(), [], ENVIRONMENT)
    whole = path.read_bytes()
    behind = [place + 1 for place, byte in enumerate(whole[:-1]) if byte == ord("\n")]
    assert len(behind) == 2
    for end in [0, 1, len(whole) // 2, len(whole) - 1, *behind]:
        path.write_bytes(whole[:end])
        with pytest.raises(BadStore, match=r"incomplete|rows are missing"):
            read_rows(store.root)
        assert not store.complete(make_cell())


def test_a_row_behind_the_last_is_an_error(store):
    path = store.write(make_cell(), measurements(), [], ENVIRONMENT)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, lines[-1]]))
    with pytest.raises(BadStore, match="line 4: the row before was the last one"):
        read_rows(store.root)


def test_a_file_of_another_cell_or_an_unknown_status_is_foreign(store):
    one = store.write(make_cell(0), measurements(), [], ENVIRONMENT)
    two = store.write(make_cell(1), measurements(), [], ENVIRONMENT)
    kept = one.read_text()
    one.write_text(two.read_text())
    with pytest.raises(BadStore, match="line 1: this row belongs to run"):
        read_rows(store.root)
    one.write_text(kept.replace('"status":"ok"', '"status":"fine"'))
    with pytest.raises(BadStore, match="unknown status 'fine'"):
        read_rows(store.root)


def test_torn_outcomes_are_an_error_that_names_the_file(store):
    cell = make_cell()
    path = store.write(cell, measurements(), [outcomes(500)], ENVIRONMENT)
    archive = path.with_name("outcomes-aaa.npz")
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(
        BadStore, match=r"outcomes-aaa\.npz: this file is incomplete or of another kind"
    ):
        read_outcomes(store.root, cell.key)


def test_no_results_folder_is_said_plainly(tmp_path):
    with pytest.raises(FileNotFoundError, match="no results folder"):
        read_rows(tmp_path / "nothing")


# -- sweeps and names -----------------------------------------------------------------------------


def test_a_cell_may_belong_to_many_sweeps(store):
    cells = [make_cell(seed) for seed in range(3)]
    for cell in cells:
        store.write(cell, measurements(), [], ENVIRONMENT)
    store.record_in_sweep("one", cells[0].key)
    store.record_in_sweep("one", cells[1].key)
    store.record_in_sweep("one", cells[1].key)
    store.record_in_sweep("two", cells[1].key)
    store.record_in_sweep("two", make_cell(99).key)  # planned, not done
    assert store.sweeps() == ["one", "two"]
    assert store.cells_of("one") == sorted(cell.key for cell in cells[:2])
    assert set(read_rows(store.root, sweep="one").seed) == {0, 1}
    assert set(read_rows(store.root, sweep="two").seed) == {1}
    with pytest.raises(UnknownCell, match=r"no sweep 'ones'.*near matches: one"):
        read_rows(store.root, sweep="ones")
    with pytest.raises(UnknownCell, match="sweeps there: one, two"):
        store.cells_of("zzzz")
    for name in ("../one", "", "a/b", ".hidden"):
        with pytest.raises(ValueError, match="a sweep name consists of"):
            store.record_in_sweep(name, cells[0].key)


def test_cells_are_found_by_the_beginning_of_their_key(store):
    keys = ["3fa9c1e07b2d4c58", "3fa9d1e07b2d4c58", "71000000000000aa"]
    for key in keys:
        store.cell_folder(key).mkdir(parents=True)
    assert store.find("7") == keys[2]
    assert store.find("3fa9c") == keys[0]
    assert store.find(keys[1]) == keys[1]
    with pytest.raises(UnknownCell, match=r"keys of 2 runs begin with .*: 3fa9c.*type more digits"):
        store.find("3fa9")
    with pytest.raises(UnknownCell, match="begins with '3fa8c1'; near matches: 3fa9c1e0"):
        store.find("3fa8c1")
    with pytest.raises(UnknownCell, match="runs there: 3fa9c1e0"):
        store.find("zzz")
    with pytest.raises(UnknownCell, match="runs there: none"):
        Store(store.root / "nothing").find("3f")


def test_what_no_reader_would_take_is_not_written(store):
    cell = make_cell(model="x" * 300)
    with pytest.raises(
        ValueError, match=r"row 1: model: got 'x+\.\.\.x+'; wanted `str` of length <= 200"
    ):
        store.write(cell, measurements(), [], ENVIRONMENT)
    labels = {"examples": "many"}
    bad = dataclasses.replace(measurements()[0], labels=labels)
    with pytest.raises(ValueError, match="label examples: got 'many'; wanted a text of the form"):
        store.write(make_cell(), [bad], [], ENVIRONMENT)
    assert not store.root.exists()
