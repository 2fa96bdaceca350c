import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from stored_cells import ENVIRONMENT, make_cell, measurements, outcomes

from lra.cluster.progress_of import room_lines
from lra.machine.probes import writable
from lra.runners.storage import atomic
from lra.runners.store import Store, read_outcomes, read_rows
from lra.tasks.data.full_disk import StorageFull, full_disk_explained

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


def all_files(root):
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_full_disk_leaves_other_cells_as_they_are(store, monkeypatch):
    """Whatever the step at which it is full: `test_storage_refusals` takes each of them."""
    store.write(make_cell(0), measurements(), [outcomes()], ENVIRONMENT)
    before = all_files(store.root)

    def full(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(atomic.Unwritable, match=r"No space left .*bytes free.*intact"):
            store.write(make_cell(1), measurements(), [outcomes()], ENVIRONMENT)
    assert before.items() <= all_files(store.root).items()
    assert len(read_rows(store.root)) == 3


def test_a_real_limit_on_file_size(store):
    """The kernel itself refuses the bytes, in a process of its own."""
    code = f"""
import resource, sys
sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]
from pathlib import Path
from stored_cells import *
from lra.runners.storage import atomic
from lra.runners.store import Store
store = Store(Path({str(store.root)!r}))
store.write(make_cell(0), measurements(), [], ENVIRONMENT)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    store.write(make_cell(1), measurements() * 200, [], ENVIRONMENT)
except atomic.Unwritable as error:
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
        with pytest.raises(atomic.Unwritable, match=r"Not a directory.*there is a file where"):
            act()
    assert (tmp_path / "results").read_text() == "I am a file"


@pytest.mark.parametrize("name", ["results", "results/part"])
def test_a_link_that_leads_nowhere_is_no_file(tmp_path, name):
    (tmp_path / "results").symlink_to(tmp_path / "absent" / "disk")
    with pytest.raises(
        atomic.Unwritable, match="this link points to a missing file: create that file"
    ):
        Store(tmp_path / name).check_writable()
    found = writable(tmp_path / name)
    assert (found.works, found.detail) == (
        False,
        f"{tmp_path}/results is a link to a folder that does not exist",
    )
    (tmp_path / "absent" / "disk").mkdir(parents=True)
    Store(tmp_path / name).check_writable()
    assert writable(tmp_path / name).works


@pytest.mark.parametrize(("inodes", "left", "said"), [(9, 0, True), (9, 1, False), (0, 0, False)])
def test_no_inodes_left_is_said_beside_free_bytes(tmp_path, monkeypatch, inodes, left, said):
    real = os.statvfs(tmp_path)
    table = SimpleNamespace(
        f_files=inodes, f_favail=left, f_frsize=real.f_frsize, f_bavail=real.f_bavail,
        f_blocks=real.f_blocks, f_bfree=real.f_bfree,
    )  # fmt: skip
    monkeypatch.setattr(os, "statvfs", lambda _: table)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "x"))
    assert ("no inodes free: remove" in str(atomic.unwritable(tmp_path / "x", full))) == said
    assert ("no inodes free: remove" in atomic.fault_of(full).words) == said
    with pytest.raises(StorageFull, match="bytes free") as caught, full_disk_explained(tmp_path):
        raise full
    assert ("no inodes free: remove" in str(caught.value)) == said
    assert bool([*room_lines(tmp_path)]) == said


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(atomic.Unwritable, match=r"Permission denied.*give yourself the right"):
        Store(tmp_path / "results").check_writable()


def test_a_refused_permission_names_the_way_out(store, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(atomic.Unwritable, match=r"Permission denied.*give yourself the right"):
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
    then = time.time() - 2 * atomic.STALE_S
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
from pathlib import Path
from stored_cells import *
from lra.runners.storage import atomic
from lra.runners.store import Store
store = Store(Path({str(store.root)!r}))
print("ready", flush=True)
for seed in range(100_000):
    cell = make_cell(seed)
    if not store.complete(cell):
        store.write(cell, measurements(seed / 100_000) * 50, [outcomes(2000)], ENVIRONMENT)
"""
    generator = np.random.default_rng(0)
    counts = [0]
    while len(counts) <= 6 or not counts[-1]:  # a starved writer is given ever more time
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep((0.02 + 0.1 * generator.random()) * max(1, len(counts) - 6))
            writer.send_signal(signal.SIGKILL)
        assert len(counts) < 40
        if not store.root.exists():  # killed before its first word
            counts.append(0)
            continue
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
