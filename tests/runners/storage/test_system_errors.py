"""Errors of the system are no damage: nothing is set aside, run again, or advised to be moved."""

import errno
import logging
import os
from pathlib import Path

import pytest
from stored_cells import ENVIRONMENT, make_cell, measurements, outcomes

from lra.conf import system_errors
from lra.runners.records import Status
from lra.runners.storage import atomic, claims
from lra.runners.storage.atomic import fault_of
from lra.runners.storage.audit import audit
from lra.runners.storage.formats import BadStore, DamagedFile, Unreadable
from lra.runners.storage.index import RowsIndex
from lra.runners.store import Store, read_rows
from tests.faulty_calls import FOREVER, PASSING, Faults


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    store.write(make_cell(), measurements(), [outcomes()], ENVIRONMENT)
    return store


@pytest.fixture
def faults(store: Store, monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("number", PASSING)
@pytest.mark.parametrize("only", ["open", "stat"])
def test_one_error_at_sound_rows_is_tried_again(number, only, store, faults, caplog):
    before = files(store.root)
    for answer in (store.complete, lambda cell: RowsIndex(store.root).complete(cell)):
        faults.fail(number, "rows-", only=only)
        assert answer(make_cell())
    assert files(store.root) == before
    if faults.failed:
        assert os.strerror(number) in caplog.text
        assert "rows-" in caplog.text


@pytest.mark.parametrize("number", PASSING)
def test_an_error_that_stays_is_told_and_sets_nothing_aside(number, store, faults):
    before = files(store.root)
    faults.fail(number, "rows-", FOREVER)
    for act in (
        lambda: store.complete(make_cell()),
        lambda: RowsIndex(store.root).complete(make_cell()),
        lambda: store.write(make_cell(), measurements(0.9), [outcomes()], ENVIRONMENT),
        lambda: read_rows(store.root),
    ):
        with pytest.raises(OSError, match=r"rows-.*|.*rows-") as caught:
            act()
        assert not isinstance(caught.value, DamagedFile)
        fault = fault_of(caught.value)
        assert fault is not None
        assert fault.may_pass
        assert "move it away" not in fault.words
    faults.left = 0
    assert files(store.root) == before


def test_a_report_and_the_doctor_say_what_it_is(store, faults):
    faults.fail(errno.ESTALE, "rows-", FOREVER)
    left_out: list[BadStore] = []
    assert read_rows(store.root, left_out=left_out).empty
    (why,) = map(str, left_out)
    assert "Stale file handle" in why
    assert "mount that folder again" in why
    (said,) = audit(store.root).damaged
    assert said == why


@pytest.mark.parametrize("number", PASSING)
def test_the_doctor_calls_no_sound_weights_torn(number, store, faults):
    folder = store.checkpoint_folder(make_cell())
    from lra.runners.training.checkpoint import Checkpoints

    Checkpoints(folder).finish({})
    faults.fail(number, "weights.pt")
    assert audit(store.root).damaged == []
    faults.patch.setattr("io.open", _failing_open(open, number))
    (said,) = audit(store.root).damaged
    assert os.strerror(number) in said
    assert "torn" not in said
    assert "move it" not in said


def _failing_open(real, number):
    def call(path, *given, **options):
        if str(path).endswith("weights.pt"):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *given, **options)

    return call


def test_rows_without_the_right_to_read_stop_a_run(store, faults):
    faults.fail(errno.EACCES, "rows-", FOREVER, only="open")
    with pytest.raises(
        Unreadable, match=r"cannot be read \(Permission denied\); give yourself the"
    ):
        store.complete(make_cell())
    assert faults.failed == 1, "nobody else gives a right: it is not tried again"
    left_out: list[BadStore] = []
    assert read_rows(store.root, left_out=left_out).empty
    assert "give yourself the right to read it" in str(left_out[0])


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EAGAIN, 523])
@pytest.mark.parametrize("only", ["open", "stat", "mkdir", "unlink", "rename", "replace"])
def test_any_call_may_fail_once(number, only, tmp_path, monkeypatch):
    store = Store(tmp_path)
    faults = Faults(monkeypatch)
    faults.fail(number, str(tmp_path), only=only)
    store.check_writable()
    with store.claim("k") as claim:
        assert claim is not None
        faults.fail(number, str(tmp_path), only=only)
    faults.left = 0
    assert not (tmp_path / "claims" / "k").exists()
    for _ in range(2):
        faults.fail(number, str(tmp_path), only=only)
        store.write(make_cell(), measurements(), [outcomes()], ENVIRONMENT)
        store.record_in_sweep("name", make_cell().key)
    faults.fail(number, str(tmp_path), only=only)
    assert store.statuses(make_cell()) == {Status.ok}
    faults.left = 0
    assert len(read_rows(tmp_path)) == 3
    assert not [path for path in tmp_path.rglob("*") if "damaged" in path.name]


def test_a_claim_that_could_not_be_removed_is_when_the_process_ends(store, faults, monkeypatch):
    claim = store.claim("k")
    faults.fail(errno.EIO, "claims", FOREVER, only="unlink")
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: os.unlink(self))  # noqa: PTH108
    claim.release()
    assert faults.failed
    faults.left = 0
    assert (store.root / "claims" / "k").exists()
    claims._keeper._settle()
    assert not (store.root / "claims" / "k").exists()


def test_a_mount_that_is_gone_is_waited_for_once(store, faults, monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(system_errors, "WAITS_S", (1.0, 2.0, 57.0))
    monkeypatch.setattr(system_errors.time, "sleep", pauses.append)
    monkeypatch.setattr(system_errors._Patience, "in_vain", False)
    faults.fail(errno.ENOTCONN, "rows-", FOREVER, only="open")
    for _ in range(3):
        with pytest.raises(Unreadable):
            store.rows_of(make_cell())
    assert pauses == [1.0, 2.0, 57.0, 1.0, 2.0, 1.0, 2.0]
    faults.fail(errno.ENOTCONN, "rows-", 2, only="open")
    store.rows_of(make_cell())
    assert not system_errors._Patience.in_vain


def test_where_nothing_fails_no_call_is_made_more(store, faults):
    faults.calls.clear()
    assert store.complete(make_cell())
    assert dict(faults.calls) == {"stat": 1, "open": 1}
    faults.calls.clear()
    assert RowsIndex(store.root).complete(make_cell())
    assert faults.calls["stat"] == 1
    assert faults.calls["open"] == 2


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_folder_that_cannot_be_flushed_is_said_once(number, tmp_path, monkeypatch, caplog):
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    atomic._warn_unflushed.cache_clear()
    store = Store(tmp_path / "new" / "results")
    with caplog.at_level(logging.WARNING):
        for seed in range(3):
            store.write(make_cell(seed), measurements(), [outcomes()], ENVIRONMENT)
    assert len(read_rows(store.root)) == 9
    assert len([r for r in caplog.records if "flush folders" in r.getMessage()]) == 1


def test_a_file_that_cannot_be_flushed_is_not_stored(tmp_path, monkeypatch):
    def fsync(descriptor: int) -> None:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):  # noqa: PTH112
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(atomic.Unwritable, match="Invalid argument"):
        Store(tmp_path).write(make_cell(), measurements(), [], ENVIRONMENT)
