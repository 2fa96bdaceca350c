"""One cache for many users: the umask alone says who may read and write what is prepared."""

import os
import stat
from pathlib import Path

import pytest

from lra.composition.catalogue import names
from lra.composition.compose import group_file
from lra.composition.lookup import named_task
from lra.tasks.baselines.certificate import certified_baselines
from lra.tasks.classification.base import baseline
from lra.tasks.classification.listops.task import ListOps, ListOpsSource
from lra.tasks.data import sources
from lra.tasks.data.sources import data_root, lock, remembered_sha256

LARGE = ("pathfinder64", "pathx", "path256")
"""Slow to draw; `pathfinder` is of the same class."""
GENERATED = [
    name
    for name in names("task")
    if "train_examples" in group_file("task", name) and name not in LARGE
]
SAMPLED = [name for name in names("task") if "source" in group_file("task", name)]
FEW = ("train_examples=40", "validation_examples=20", "test_examples=20")


@pytest.fixture(params=[0o022, 0o002], ids=lambda mask: f"umask {mask:03o}")
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def follow(umask):
    """Whether every file and folder of the cache has the rights that the umask gives."""
    found = sorted(data_root().rglob("*"))
    assert any(path.is_file() for path in found)
    for path in found:
        mode = stat.S_IMODE(path.stat().st_mode)
        wanted = (0o777 if path.is_dir() else 0o666) & ~umask
        assert mode == wanted, f"{path.relative_to(data_root())}: {mode:o}, wanted {wanted:o}"


@pytest.mark.parametrize("umask", [0o002], indirect=True, ids=["umask 002"])
@pytest.mark.parametrize("name", [name for name in SAMPLED if name not in (*GENERATED, *LARGE)])
def test_a_sample(name, umask):
    named_task(name, ["source=sample"]).prepare()
    follow(umask)


@pytest.mark.parametrize(
    ("name", "umask"),
    [*((name, 0o002) for name in GENERATED), (GENERATED[0], 0o022)],
    indirect=["umask"],
    ids=lambda value: f"umask {value:03o}" if isinstance(value, int) else value,
)
def test_generated_data(name, umask):
    named_task(name, FEW).prepare()
    follow(umask)


def test_what_is_learnt_from_a_train_split(umask):
    named_task("wikitext2", ["source=sample", "units=subwords", "subword_vocabulary=300"]).prepare()
    assert list(data_root().glob("vocabularies/*/*"))
    follow(umask)


class Quick(ListOps):
    """Has one baseline, which takes no time."""

    def baselines(self, split):
        return [baseline("even", self.split(split).targets % 2 == 0, "answers are even")]


def test_certificates(umask):
    task = Quick(source=ListOpsSource.sample)
    task.prepare()
    certified_baselines(task, "test")
    assert list(data_root().rglob("*certificate*"))
    follow(umask)


def test_remembered_hashes_and_locks(umask, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "SETTLED_S", -1)
    (tmp_path / "file").write_bytes(b"content")
    remembered_sha256(tmp_path / "file")
    with lock("name"):
        follow(umask)


def test_a_remembered_hash_that_nobody_else_may_read_is_computed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "SETTLED_S", -1)
    path = tmp_path / "file"
    path.write_bytes(b"content")
    known = remembered_sha256(path)
    real = Path.read_text

    def refuse(self, *given, **options):
        if self.parent.name == "hashes":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *given, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert remembered_sha256(path) == known
