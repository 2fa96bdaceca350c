"""An index answers as the rows files do, whatever became of it or of them."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from lra.runners.records import DISTURBED, Measurement, Status
from lra.runners.storage import index as indices
from lra.runners.storage.formats import BadStore
from lra.runners.storage.index import RowsIndex, statuses
from lra.runners.storage.seals import seal
from lra.runners.store import Store
from tests.runners.storage.stored_cells import make_cell

FAILED = Measurement(
    metric="accuracy", status=Status.skipped, reason="none " * 400, labels={"missing": "data"}
)
GOOD = Measurement(metric="accuracy", value=0.5)
SHAKEN = Measurement(metric="accuracy", value=0.5, labels={DISTURBED: "load of other processes"})
MANY = indices.WORTH_WRITING


def cell(seed, fingerprint="f00d"):
    return make_cell(seed, fingerprint)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)
    store = Store(tmp_path)
    for seed in range(MANY):
        own = FAILED if seed % 10 == 0 else SHAKEN if seed % 10 == 1 else GOOD
        store.write(cell(seed), [own, GOOD][: 1 + (own is SHAKEN)], [], {})
    with RowsIndex(tmp_path) as index:
        for seed in range(MANY):
            index.complete(cell(seed))
    assert index.path.exists()
    return store


@pytest.fixture
def read(monkeypatch):
    """Return the keys of the cells whose rows files are read."""
    found = []
    real = indices._read_summary

    def reading(path, key):
        found.append(key)
        return real(path, key)

    monkeypatch.setattr(indices, "_read_summary", reading)
    return found


def answers(store):
    """Return what an index says of all cells and one that is not there, and the store."""
    retries = ((), {Status.skipped}, {Status.ok, Status.crashed}, {DISTURBED})
    index = RowsIndex(store.root)
    return tuple(
        [
            each.complete(cell(seed), retry, undone)
            for seed in range(MANY + 1)
            for retry in retries
            for undone in (None, {"missing": "data"}, {"missing": "weights"})
        ]
        for each in (index, store)
    )


def test_an_index_saves_the_reading_and_answers_alike(store, read):
    said, true = answers(store)
    assert said == true
    assert read == []
    index = RowsIndex(store.root)
    assert [index.complete(cell(seed), [DISTURBED]) for seed in (10, 11, 12)] == [True, False, True]
    found = statuses(store.root)
    assert len(found) == MANY
    assert found[cell(10).key].statuses == {Status.skipped}
    (failure,) = found[cell(10).key].failures
    assert (failure.status, dict(failure.labels)) == (Status.skipped, {"missing": "data"})
    assert failure.reason.startswith("none")
    assert len(failure.reason) == indices.LONGEST_REASON
    assert read == []


@pytest.mark.parametrize(
    "text",
    [
        None, b"", b"{", b"\0" * 100, b"[1]", b"[" * 100_000, b'{"format":2,"files":{}}',
        b'{"format":1,"files":7}', "foreign", "another answer",
    ],
)  # fmt: skip
def test_an_index_that_is_gone_torn_or_foreign_is_written_again(text, store, read):
    path = RowsIndex(store.root).path
    if text is None:
        path.unlink()
    elif text == "another answer":  # which a change of one word, or of one digit, makes
        path.write_text(path.read_text().replace('"skipped"', '"ok"'))
    elif text == "foreign":
        foreign = {f"{cell(seed).key}/f00d": [[1], 2, "x"] for seed in range(MANY)}
        path.write_bytes(seal({"format": indices.FORMAT, "files": foreign}))
    else:
        path.write_bytes(text)
    said, true = answers(store)
    assert said == true
    assert len(read) == MANY
    assert len(statuses(store.root)) == MANY  # which writes it
    read.clear()
    assert len(statuses(store.root)) == MANY
    assert read == []


@pytest.mark.parametrize("change", ["torn", "foreign", "gone", "other", "touched", "folder"])
def test_a_rows_file_that_changed_is_read_again(change, store, read):
    path = store.cell_folder(cell(1).key) / "rows-f00d.jsonl"
    if change == "torn":
        path.write_bytes(path.read_bytes()[:-5])
    elif change == "foreign":
        path.write_bytes(store._rows_file(cell(2)).read_bytes())
    elif change == "other":
        store.write(cell(1), [FAILED], [], {})
    elif change == "touched":
        os.utime(path, (1, 1))
    else:
        path.unlink()
        if change == "folder":
            path.mkdir()
    said, true = answers(store)
    assert said == true
    assert set(read) <= {cell(1).key}
    assert bool(read) == (change != "gone")


def test_rows_of_a_newer_version_stop_a_run(store):
    path = store._rows_file(cell(1))
    path.write_bytes(path.read_bytes().replace(b'"schema":2', b'"schema":9'))
    with pytest.raises(BadStore, match="schema 9"):
        RowsIndex(store.root).complete(cell(1))


def test_the_newest_rows_count(store):
    store.write(cell(3, "abc"), [FAILED], [], {})
    assert statuses(store.root, [cell(3).key, "0" * 16])[cell(3).key].fingerprint == "abc"


def test_where_nothing_can_be_written_nothing_is_lost(store, monkeypatch):
    RowsIndex(store.root).path.unlink()

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(indices.atomic, "write_whole", refuse)
    assert len(statuses(store.root)) == MANY
    assert not RowsIndex(store.root).path.exists()


def test_many_writers_of_an_index_leave_a_whole_one(store, read):
    RowsIndex(store.root).path.unlink()
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda _: len(statuses(store.root)), range(16))]
    assert found == [MANY] * 16
    read.clear()
    assert len(statuses(store.root)) == MANY
    assert read == []
    assert [path.name for path in (store.root / "index").iterdir()] == ["rows.json"]


def test_a_few_cells_make_no_index(tmp_path):
    store = Store(tmp_path)
    store.write(cell(0), [GOOD], [], {})
    assert len(statuses(tmp_path)) == 1
    assert not (tmp_path / "index").exists()


def test_cells_that_a_sweep_has_are_noted_once(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.record_cells("s", {"a": "", "b": ""})
    noted = []
    monkeypatch.setattr(Store, "record_in_sweep", lambda _, *words: noted.append(words))
    store.record_cells("s", {"b": "", "c": "train c"})
    assert noted == [("s", "c", "train c")]
    assert store.cells_of("s") == ["a", "b"]
