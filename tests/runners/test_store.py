import errno
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from runners import durable
from runners.claims import take
from runners.records import CELL_COLUMNS, COLUMNS, SCHEMA, Cell, Measurement, Outcomes, Status
from runners.store import BadStore, MixedSources, Store, UnknownCell, read_outcomes, read_rows

ROOT = Path(__file__).parent.parent.parent
ENVIRONMENT = {"python": "3.11", "torch": "2.13.0"}


def make_cell(seed=0, fingerprint="aaa", **columns):
    cell_columns = dict.fromkeys(CELL_COLUMNS) | {
        "runner": "train", "mode": "train", "model": "linear", "task": "listops",
        "task_version": 1, "source": "generated", "length": 512, "seed": seed, "causal": False,
        "hardware": "cpu", "device": "some cpu", "precision": "float32", "threads": 1,
    }  # fmt: skip
    return Cell(
        identity={"seed": seed, **columns},
        columns=cell_columns | columns,
        config={"seed": seed, "nested": {"list": [1, 2]}},
        overrides=("model=linear", f"seed={seed}"),
        fingerprint=fingerprint,
    )


def measurements(value=0.5):
    return [
        Measurement(metric="accuracy", value=value, labels={"split": "test"}),
        Measurement(metric="train_loss", value=1.25, step=10),
        Measurement(metric="time", value=2.0, samples=(1.0, 2.0, 3.0)),
    ]


def failure(status, reason="took longer than 3 s"):
    return [Measurement(metric="accuracy", status=status, reason=reason, labels={"split": "test"})]


def outcomes(n=13, split="test"):
    generator = np.random.default_rng(0)
    return Outcomes(
        split=split,
        index=np.arange(n),
        hit=generator.random(n) < 0.5,
        nll=generator.random(n).astype(np.float32),
    )


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


# -- what is written is what is read --------------------------------------------------------------


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
    with pytest.raises(UnknownCell, match="no finished cell 0123"):
        read_outcomes(store.root, "0123")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": np.array([0, 2, 1])}, "ascending"),
        ({"index": np.array([0, 1])}, "one length"),
        ({"nll": np.zeros((3, 1))}, "one length"),
    ],
)
def test_outcomes_out_of_order_are_refused_and_nothing_is_written(store, change, message):
    cell = make_cell()
    with pytest.raises(ValueError, match=message):
        store.write(cell, measurements(), [replace(outcomes(3), **change)], ENVIRONMENT)
    assert not store.complete(cell)


def test_two_outcomes_of_one_split_and_no_rows_at_all_are_refused(store):
    with pytest.raises(ValueError, match="two outcomes for split 'test'"):
        store.write(make_cell(), measurements(), [outcomes(), outcomes()], ENVIRONMENT)
    with pytest.raises(ValueError, match="has no rows"):
        store.write(make_cell(), [], [], ENVIRONMENT)
    with pytest.raises(ValueError, match="needs a fingerprint"):
        store.write(make_cell(fingerprint="../x"), measurements(), [], ENVIRONMENT)


def test_description_says_what_the_cell_is_and_where_it_ran(store):
    cell = make_cell(seed=1)
    store.write(cell, measurements(), [], ENVIRONMENT)
    assert store.describe(cell.key) == {
        "schema": SCHEMA,
        "cell": cell.key,
        "identity": {"seed": 1},
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


# -- damage ---------------------------------------------------------------------------------------


def test_two_halves_do_not_make_a_whole(store):
    """Joined by a comma these two lines would be one valid row."""
    path = store.write(make_cell(), measurements()[:1], [], ENVIRONMENT)
    one, two = path.read_text().split(',"model"')
    path.write_text(f'{one}\n"model"{two}')
    with pytest.raises(BadStore, match="line 1: torn, not JSON"):
        read_rows(store.root)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"schema": 1, "cel', "line 2: torn, not JSON"),
        ("[1, 2]", "line 2: not a row of schema 1"),
        ('{"schema": 1}', "line 2: not a row of schema 1"),
        ('{"schema": 99, "new": true}', "line 2: written with schema 99.*update lra"),
        ("", "line 2: torn, not JSON"),
        ("\udcff", "line 2: not UTF-8"),
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
    for end in [0, 1, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:end])
        with pytest.raises(BadStore, match="torn"):
            read_rows(store.root)


def test_a_file_of_another_cell_or_an_unknown_status_is_foreign(store):
    one = store.write(make_cell(0), measurements(), [], ENVIRONMENT)
    two = store.write(make_cell(1), measurements(), [], ENVIRONMENT)
    kept = one.read_text()
    one.write_text(two.read_text())
    with pytest.raises(BadStore, match="line 1: belongs to cell"):
        read_rows(store.root)
    one.write_text(kept.replace('"status":"ok"', '"status":"fine"'))
    with pytest.raises(BadStore, match="unknown status 'fine'"):
        read_rows(store.root)


def test_torn_outcomes_are_an_error_that_names_the_file(store):
    cell = make_cell()
    path = store.write(cell, measurements(), [outcomes(500)], ENVIRONMENT)
    archive = path.with_name("outcomes-aaa.npz")
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(BadStore, match=r"outcomes-aaa\.npz: torn or foreign"):
        read_outcomes(store.root, cell.key)


def test_no_results_folder_is_said_plainly(tmp_path):
    with pytest.raises(FileNotFoundError, match="no results folder"):
        read_rows(tmp_path / "nothing")


# -- folders and disks that refuse ----------------------------------------------------------------


def all_files(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("call", ["replace", "fsync"])
@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_full_disk_loses_nothing_and_leaves_nothing_half(store, monkeypatch, call, after):
    store.write(make_cell(0), measurements(), [outcomes()], ENVIRONMENT)
    before = all_files(store.root)
    left = after
    owner = os if call == "fsync" else Path
    real = getattr(owner, call)

    def full(*given):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*given)

    monkeypatch.setattr(owner, call, full)
    with pytest.raises(durable.Unwritable, match=r"No space left .*bytes free.*intact") as caught:
        store.write(make_cell(1), measurements(), [outcomes()], ENVIRONMENT)
    assert caught.value.errno == errno.ENOSPC
    assert str(store.root) in str(caught.value)
    monkeypatch.undo()
    assert not list(store.root.rglob("*.tmp"))
    assert not store.complete(make_cell(1))
    assert before.items() <= all_files(store.root).items()
    assert len(read_rows(store.root)) == 3
    store.write(make_cell(1), measurements(), [outcomes()], ENVIRONMENT)
    assert len(read_rows(store.root)) == 6


def test_a_real_limit_on_file_size(store):
    """The kernel itself refuses the bytes, in a process of its own."""
    code = f"""
import resource, sys
sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
from test_store import *
store = Store(Path({str(store.root)!r}))
store.write(make_cell(0), measurements(), [], ENVIRONMENT)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    store.write(make_cell(1), measurements() * 200, [], ENVIRONMENT)
except durable.Unwritable as error:
    print(error)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "File too large" in result.stdout
    assert "ulimit -f" in result.stdout
    assert not list(store.root.rglob("*.tmp"))
    assert len(read_rows(store.root)) == 3


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "results").write_text("I am a file")
    store = Store(tmp_path / "results")
    for act in (
        store.check_writable,
        lambda: store.write(make_cell(), measurements(), [], ENVIRONMENT),
        lambda: store.record_in_sweep("s", "k"),
        lambda: store.claim("k"),
    ):
        with pytest.raises(durable.Unwritable, match=r"Not a directory.*a file stands where"):
            act()
    assert (tmp_path / "results").read_text() == "I am a file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(durable.Unwritable, match=r"Permission denied.*give yourself the right"):
        Store(tmp_path / "results").check_writable()


def test_a_refused_permission_names_the_way_out(store, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(durable.Unwritable, match=r"Permission denied.*give yourself the right"):
        store.check_writable()


def test_checking_leaves_nothing(store):
    store.check_writable()
    assert all_files(store.root) == {}


def test_temporary_files_of_the_dead_are_removed_and_those_of_the_living_kept(store):
    cell = make_cell()
    folder = store.write(cell, measurements(), [], ENVIRONMENT).parent
    old, young = folder / ".rows-aaa.jsonl.host.1.x.tmp", folder / ".rows-aaa.jsonl.host.2.y.tmp"
    for path in (old, young):
        path.write_text("half")
    then = time.time() - 2 * durable.STALE_S
    os.utime(old, (then, then))
    store.write(cell, measurements(), [], ENVIRONMENT)
    assert not old.exists()
    assert young.exists()
    assert len(read_rows(store.root)) == 3


# -- many writers, and sudden death ---------------------------------------------------------------


def write_many(root, value, times):
    store = Store(Path(root))
    for _ in range(times):
        store.write(make_cell(), measurements(value) * 20, [outcomes(1000)], ENVIRONMENT)


def test_two_writers_of_one_cell_leave_one_valid_file(store):
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=write_many, args=(str(store.root), value, 20))
        for value in (0.25, 0.75)
    ]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        if store.complete(make_cell()):
            rows = [row for row in store.rows_of(make_cell()) if row["metric"] == "accuracy"]
            assert len(rows) == 20
            values = {row["value"] for row in rows}
            assert len(values) == 1  # never a mixture
            seen |= values
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert seen <= {0.25, 0.75}
    folder = store.cell_folder(make_cell().key)
    assert {path.name for path in folder.iterdir()} == {
        "cell.json", "rows-aaa.jsonl", "outcomes-aaa.npz", "environment-aaa.json",
    }  # fmt: skip
    assert len(read_outcomes(store.root, make_cell().key)[0].hit) == 1000


def test_killing_a_writer_at_random_moments_leaves_no_half_cell(store):
    """Cells 0, 1, 2 … are written in order by a process that is killed again and again."""
    code = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
from test_store import *
store = Store(Path({str(store.root)!r}))
print("ready", flush=True)
for seed in range(100_000):
    cell = make_cell(seed)
    if not store.complete(cell):
        store.write(cell, measurements(seed / 100_000) * 50, [outcomes(2000)], ENVIRONMENT)
"""
    generator = np.random.default_rng(0)
    counts = [0]
    for _ in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(0.02 + 0.1 * generator.random())
            writer.send_signal(signal.SIGKILL)
        table = read_rows(store.root)  # raises on any half line
        cells = table.groupby("cell").size()
        assert (cells == 150).all()
        for key in cells.index:
            assert len(read_outcomes(store.root, key)[0].index) == 2000
            assert store.describe(key)["environment"] == ENVIRONMENT
        assert sorted(set(table.seed)) == list(range(len(cells)))  # none lost, none twice
        counts.append(len(cells))
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


# -- claims ---------------------------------------------------------------------------------------


def test_a_claim_is_held_by_one_and_given_back(store):
    claim = store.claim("k")
    assert claim is not None
    assert store.claim("k") is None
    other = store.claim("other")
    assert other is not None
    with claim, other:
        held = json.loads((store.root / "claims" / "k").read_text())
        assert (held["host"], held["pid"]) == (socket.gethostname(), os.getpid())
    assert list((store.root / "claims").iterdir()) == []
    claim.release()  # harmless
    again = store.claim("k")
    assert again is not None
    again.release()


def dead_pid():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def write_claim(store, host, pid, age_s=0.0):
    path = store.root / "claims" / "k"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"host": host, "pid": pid}))
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


@pytest.mark.parametrize(
    ("host", "alive", "age_s", "free"),
    [
        ("elsewhere", True, 0, False),  # may well be alive: nobody here can tell
        ("elsewhere", True, 299, False),
        ("elsewhere", True, 301, True),
        (socket.gethostname(), True, 0, False),
        (socket.gethostname(), True, 301, True),  # alive, and no sign of it: another process
        (socket.gethostname(), False, 0, True),
    ],
)
def test_when_a_claim_counts_as_left_behind(store, host, alive, age_s, free):
    write_claim(store, host, os.getpid() if alive else dead_pid(), age_s)
    claim = store.claim("k")
    assert (claim is not None) == free
    if claim is not None:
        claim.release()


def test_an_unreadable_claim_is_judged_by_its_age(store):
    path = write_claim(store, "elsewhere", 1)
    path.write_text("")  # created, not yet filled
    assert store.claim("k") is None
    os.utime(path, (0, 0))
    claim = store.claim("k")
    assert claim is not None
    claim.release()


def test_the_holder_shows_signs_of_life(tmp_path):
    path = tmp_path / "claim"
    with take(path, touch_s=0.01) or pytest.fail("not taken"):
        os.utime(path, (0, 0))
        for _ in range(500):
            if path.stat().st_mtime > 0:
                break
            time.sleep(0.01)
        assert path.stat().st_mtime > time.time() - 60


def test_a_claim_that_another_took_over_is_left_alone(store):
    claim = store.claim("k")
    assert claim is not None
    path = write_claim(store, "elsewhere", 1)
    claim.release()
    assert path.exists()


def claim_and_hold(root, barrier, queue):
    barrier.wait()
    claim = Store(Path(root)).claim("k")
    queue.put(claim is not None)
    barrier.wait()
    if claim is not None:
        claim.release()


def test_of_many_at_once_one_gets_the_claim(store):
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(3), context.Queue()
    several = [
        context.Process(target=claim_and_hold, args=(str(store.root), barrier, queue))
        for _ in range(3)
    ]
    for process in several:
        process.start()
    got = [queue.get(timeout=60) for _ in several]
    for process in several:
        process.join()
    assert sorted(got) == [False, False, True]


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
        with pytest.raises(ValueError, match="a sweep name is made of"):
            store.record_in_sweep(name, cells[0].key)


def test_cells_are_found_by_the_beginning_of_their_key(store):
    keys = ["3fa9c1e07b2d4c58", "3fa9d1e07b2d4c58", "71000000000000aa"]
    for key in keys:
        store.cell_folder(key).mkdir(parents=True)
    assert store.find("7") == keys[2]
    assert store.find("3fa9c") == keys[0]
    assert store.find(keys[1]) == keys[1]
    with pytest.raises(UnknownCell, match=r"beginning of 2 cells: 3fa9c.*give more digits"):
        store.find("3fa9")
    with pytest.raises(UnknownCell, match="begins with '3fa8c1'; near matches: 3fa9c1e0"):
        store.find("3fa8c1")
    with pytest.raises(UnknownCell, match="cells there: 3fa9c1e0"):
        store.find("zzz")
    with pytest.raises(UnknownCell, match="cells there: none"):
        Store(store.root / "nothing").find("3f")
