"""What killed writers left is swept by whoever comes next; what is written stays."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lra.tasks.data.full_disk import StorageFull, full_disk_explained
from lra.tasks.data.leftovers import STALE_S, sweep
from lra.tasks.data.sources import data_root, lock, place_folder, write_whole
from lra.tasks.diagnostics.induction import Induction

REPOSITORY = Path(__file__).parents[3]
WRITERS = {
    "folder": "from lra.tasks.data.sources import place_folder\nheld = place_folder(root / 'one')",
    "deeper": "from lra.tasks.data.sources import place_folder\n"
        "held = place_folder(root / 'vocabularies' / 'one')",
    "file": "import lra.tasks.data.leftovers as it\n"
        "held = it.temporary_file(root / 'hashes' / 'x')",
    "scratch": "import lra.tasks.data.leftovers as it\nheld = it.temporary_folder(root / 'pg19')",
}  # fmt: skip
CHILD = """
import sys
from pathlib import Path
from lra.tasks.data.sources import data_root
root = data_root()
{}
with held as place:
    (place / "half" if place.is_dir() else place).write_text("half")
    print(place, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("name", WRITERS)
def test_a_living_writer_is_left_alone_and_a_killed_one_is_swept(name):
    with subprocess.Popen(
        [sys.executable, "-c", CHILD.format(WRITERS[name])],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        place = Path(child.stdout.readline().strip())
        sweep(data_root())
        assert place.exists()
        child.kill()
        child.wait()
        assert place.exists()
    Induction(train_examples=4, validation_examples=4, test_examples=4).prepare()
    assert not place.exists()


def test_what_is_no_leftover_stays():
    root = data_root()
    for name in ("downloads/pg19", "one", ".hidden", ".name.nothexxx", "one/two/.deep.0123abcd"):
        (root / name).mkdir(parents=True)
    for name in (".note.tmp", "downloads/new.part", "whole.npy"):
        (root / name).write_text("x")
    (root / ".link.0123abcd").symlink_to(root / "one")
    before = sorted(root.rglob("*"))
    sweep(root)
    assert sorted(root.rglob("*")) == before


def test_partial_downloads_stay_for_a_week_or_until_they_are_done():
    folder = data_root() / "downloads"
    folder.mkdir(parents=True)
    for name in ("fresh", "old", "done"):
        (folder / f"{name}.part").write_text("x")
    (folder / "done").write_text("whole")
    then = time.time() - STALE_S - 60
    os.utime(folder / "old.part", (then, then))
    sweep(data_root())
    assert sorted(p.name for p in folder.iterdir()) == ["done", "fresh.part"]


class Library(Exception):
    """Of a library that wraps what the system says."""


def wrapped(error, how):
    try:
        raise error
    except Exception as cause:
        if how == "cause":
            raise Library("generation failed") from cause
        if how == "context":
            raise Library("generation failed")  # noqa: B904
        if how == "words":
            raise Library(f"Error writing bytes to file. Detail: {cause}") from None
        if how == "group":
            raise ExceptionGroup("workers", [cause]) from None
        raise


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("how", ["bare", "cause", "context", "words", "group"])
@pytest.mark.parametrize("writer", ["folder", "block"])
def test_a_full_disk_is_explained_under_any_wrapping(tmp_path, number, how, writer):
    held = place_folder(tmp_path / "f") if writer == "folder" else full_disk_explained(tmp_path)
    with (
        pytest.raises(StorageFull, match=r"while writing to .* free\).*set LRA_DATA") as caught,
        held,
    ):
        wrapped(OSError(number, os.strerror(number)), how)
    assert caught.value.errno == number
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [ValueError("no"), OSError(errno.EACCES, "no"), KeyError(28)])
def test_other_errors_stay_as_they_are(tmp_path, error):
    with pytest.raises(type(error)) as caught, full_disk_explained(tmp_path):
        raise error
    assert caught.value is error


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_download_to_a_full_disk(tmp_path):
    from lra.tasks.data.sources import download

    public = tmp_path / "public"
    public.write_bytes(b"x" * 9000)
    (data_root() / "downloads").mkdir(parents=True)
    (data_root() / "downloads" / "data.part").symlink_to("/dev/full")
    with pytest.raises(StorageFull, match="LRA_DATA"):
        download(
            public.as_uri(), data_root() / "downloads" / "data", size=9000, sha256="",
            instructions="by hand",
        )  # fmt: skip


def test_datasets_that_meet_a_full_disk(tmp_path, monkeypatch):
    """The `datasets` library wraps what its writer raises."""
    from datasets import arrow_writer

    from lra.tasks.data import hub

    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text('{"text": "a", "label": 0}\n')

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(arrow_writer.ArrowWriter, "finalize", full)
    with pytest.raises(StorageFull, match=r"huggingface.*LRA_DATA"):
        hub.load("x", "y", tmp_path, columns=["text"], splits=["train"], instructions="")


def test_small_files_and_locks_meet_a_full_disk(monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(StorageFull, match="LRA_DATA"):
        write_whole(data_root() / "note", "x")
    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(StorageFull, match="LRA_DATA"), lock("name"):
        pass
