import errno
import io
import json
import resource

import numpy as np
import pytest

from lra.tasks.data.storage import from_rows, open_store, verify_store, write_store
from lra.tasks.errors import BadData, NotPrepared

ROWS = [np.arange(1, n + 1, dtype=np.uint8) for n in (3, 1, 7)]
SPLIT = from_rows(ROWS, np.array([0, 1, 2], np.uint8))


@pytest.fixture
def folder(tmp_path):
    write_store(tmp_path / "store", {"train": SPLIT, "test": SPLIT.take(np.array([2]))}, {"a": 1})
    return tmp_path / "store"


def test_round_trip(folder):
    store = open_store(folder)
    assert set(store.splits) == {"train", "test"}
    assert store.about == {"a": 1}
    train = store.splits["train"]
    for row, wanted in zip(train.rows(np.arange(3)), ROWS, strict=True):
        np.testing.assert_array_equal(row, wanted)
    assert train.lengths.tolist() == [3, 1, 7]
    assert train.targets.tolist() == [0, 1, 2]
    assert not train.tokens.flags.writeable
    verify_store(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["store"]


def test_absent_store_says_what_to_run(tmp_path):
    with pytest.raises(NotPrepared, match="lra data prepare"):
        open_store(tmp_path / "none")


def test_truncated_file_is_found_on_opening(folder):
    path = folder / "train.tokens.npy"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(BadData, match=r"train.tokens.npy has 137 bytes; wanted 139.*prepare again"):
        open_store(folder)
    path.unlink()
    with pytest.raises(BadData, match=r"has 0 bytes"):
        open_store(folder)


def test_changed_byte_is_found_by_verify(folder):
    path = folder / "train.targets.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    open_store(folder)
    with pytest.raises(BadData, match=r"SHA-256 of train.targets.npy is \w{64}; wanted \w{64}"):
        verify_store(folder)


@pytest.mark.parametrize("content", ["{", json.dumps({"format": 99})])
def test_strange_manifest(folder, content):
    (folder / "manifest.json").write_text(content)
    with pytest.raises(BadData, match=r"is damaged: .*delete this folder"):
        open_store(folder)


@pytest.mark.parametrize("part", ["tokens", "offsets", "targets"])
def test_files_are_those_of_numpy(folder, part):
    written = io.BytesIO()
    np.save(written, getattr(SPLIT, part))
    assert (folder / f"train.{part}.npy").read_bytes() == written.getvalue()


@pytest.mark.parametrize("form", ["whole", "blocks"])
def test_a_refused_write_keeps_the_number_of_its_reason(tmp_path, form):
    rows = from_rows([np.zeros(90_000, np.uint8)], np.zeros(1, np.uint8))
    content = {"train": rows} if form == "whole" else [("train", rows)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_store(tmp_path / "store", content, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


def test_a_split_may_come_block_by_block(tmp_path):
    whole = tmp_path / "whole"
    write_store(whole, {"train": SPLIT}, {})
    blocks = (SPLIT.take(np.array(some)) for some in ([0], [1, 2]))
    write_store(tmp_path / "blocks", {"train": blocks}, {})
    for part in ("tokens", "offsets", "targets"):
        name = f"train.{part}.npy"
        np.testing.assert_array_equal(np.load(whole / name), np.load(tmp_path / "blocks" / name))
    write_store(tmp_path / "none", {"train": iter(())}, {})
    assert len(open_store(tmp_path / "none").splits["train"].targets) == 0
    verify_store(tmp_path / "blocks")


def test_pairs_lie_one_after_another(tmp_path):
    rows = [np.full(n, n, np.uint8) for n in (3, 1, 7, 2)]
    pairs = from_rows(rows, np.array([0, 1], np.uint8))
    assert pairs.parts == 2
    assert pairs.lengths.tolist() == [3, 7]
    assert [len(row) for row in pairs.rows(np.array([1, 0]))] == [7, 2, 3, 1]
    taken = pairs.take(np.array([1]))
    assert (taken.parts, taken.targets.tolist(), taken.lengths.tolist()) == (2, [1], [7])
