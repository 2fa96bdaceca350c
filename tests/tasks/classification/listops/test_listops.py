import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from lra.tasks.classification.listops import oracle as listops_oracle
from lra.tasks.classification.listops.task import ListOps, ListOpsSource
from lra.tasks.classification.listops.text import FILES, VOCABULARY, decode, solve
from lra.tasks.contract import fingerprint
from lra.tasks.data import storage as ragged
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.task import SPLITS

REPOSITORY = Path(__file__).parents[4]
SMALL = {
    "min_length": 10,
    "max_length": 60,
    "max_depth": 4,
    "max_args": 5,
    "train_examples": 600,
    "validation_examples": 50,
    "test_examples": 100,
}


def small(**changes):
    return ListOps(**{**SMALL, **changes})


def rows(task, split):
    data = task.split(split)
    return [row.tobytes() for row in data.rows(np.arange(len(data.targets)))]


def test_encoded_examples_are_solved_without_error():
    task = small()
    task.prepare()
    for split, size in task.spec.sizes.items():
        solved = 0
        for batch in task.batches(split, batch_size=10, seed=0):
            answers = [solve(row[0].tolist()) for row in batch.tokens]
            assert answers == batch.target.tolist()
            solved += len(answers)
        assert solved == size


def test_identity_is_the_options_alone_and_needs_no_data():
    one, other = small(), small()
    assert one.spec == other.spec
    assert not one.folder.exists()
    one.prepare()
    assert one.folder.is_dir()
    assert one.spec == small(processes=3, bucket_batches=4).spec
    hashes = {small(**{name: SMALL[name] + 1}).spec.data_hash for name in SMALL}
    assert len({one.spec.data_hash, small(data_seed=1).spec.data_hash, *hashes}) == 9
    assert one.spec.vocabulary == len(VOCABULARY) == 16
    assert one.spec.source == "generated"


def test_options_make_a_sample_smaller_but_not_larger():
    usual = ListOps(source="sample")
    assert usual.spec == ListOps(source="sample", train_examples=96_001, max_length=3000).spec
    assert usual.spec.sizes == {"train": 2000, "validation": 400, "test": 400}
    less = ListOps(
        source="sample", train_examples=90, validation_examples=20, test_examples=10, max_length=40
    )
    less.prepare()
    assert [len(less.split(split).targets) for split in SPLITS] == [90, 20, 10]
    assert 20 < max(less.split("train").lengths) < less.spec.max_length == 40
    others = {
        ListOps(source="sample", **{name: 3}).spec.data_hash
        for name in ("max_depth", "max_args", "data_seed")
    }
    assert len({usual.spec.data_hash, *others}) == 4
    with pytest.raises(ValueError, match=r"min_length=20, max_length=21, .* raise max_length"):
        ListOps(source="sample", max_length=21)


def test_another_seed_gives_other_trees_and_splits_are_alike():
    one, other = small(), small(data_seed=1)
    one.prepare()
    other.prepare()
    assert rows(one, "test") != rows(other, "test")
    lengths = [one.split(split).lengths.mean() for split in ("train", "test")]
    assert abs(lengths[0] - lengths[1]) < 4


def test_rare_trees_are_spread_over_the_splits():
    # 400 trees in all: the last ones found are the longest, and may not all be test examples.
    task = ListOps(
        min_length=0, max_length=5, max_depth=2, max_args=2,
        train_examples=210, validation_examples=100, test_examples=100,
    )  # fmt: skip
    task.prepare()
    shares = [(task.split(s).lengths == 1).mean() for s in ("train", "test")]
    assert max(shares) < 0.1


def test_trees_of_official_files_are_those_generated(tmp_path):
    task = small()
    task.prepare()
    folder = tmp_path / "tsv"
    folder.mkdir()
    for split, name in FILES.items():
        data = zip(rows(task, split), task.split(split).targets, strict=True)
        lines = [f"{decode(np.frombuffer(row, np.uint8))}\t{target}" for row, target in data]
        (folder / name).write_text("\n".join(["Source\tTarget", *lines]) + "\n")
    read = ListOps(source=ListOpsSource.tsv, path=str(folder), partial=True, max_length=60)
    before = read.spec
    assert before.source == "tsv (a part)"
    read.prepare()
    again = ListOps(source=ListOpsSource.tsv, path=str(folder), partial=True, max_length=60)
    assert again.spec == before
    for split in ("train", "validation", "test"):
        assert rows(read, split) == rows(task, split)
        np.testing.assert_array_equal(read.split(split).targets, task.split(split).targets)
    with (folder / "basic_test.tsv").open("a") as file:
        file.write("5\t5\n")
    edited = ListOps(source=ListOpsSource.tsv, path=str(folder), partial=True)
    assert edited.spec.data_hash != before.data_hash


def test_tsv_faults_name_the_file(tmp_path):
    with pytest.raises(NotPrepared, match=r"basic_train.tsv is missing; .*listops-1000"):
        ListOps(source=ListOpsSource.tsv, path=str(tmp_path)).prepare()
    for name in ("train", "val", "test"):
        (tmp_path / f"basic_{name}.tsv").write_text("Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n")
    (tmp_path / "basic_val.tsv").write_text("Source\tTarget\n( ( [MAX 2\t9\n")
    task = ListOps(source=ListOpsSource.tsv, path=str(tmp_path))
    with pytest.raises(
        BadData, match=r"basic_val.tsv, line 2: the tokens must be exactly one closed tree"
    ):
        task.prepare()
    assert not task.folder.exists()


def test_longer_rows_than_allowed_are_never_cut(tmp_path):
    for name in ("train", "val", "test"):
        (tmp_path / f"basic_{name}.tsv").write_text("Source\tTarget\n[MAX 2 9 1 1 ]\t9\n")
    wanted = r"6 tokens, more than task.max_length=5; set task.max_length"
    task = ListOps(
        source=ListOpsSource.tsv, path=str(tmp_path), partial=True, min_length=0, max_length=5
    )
    with pytest.raises(BadData, match=wanted):
        task.prepare()
    ListOps(source=ListOpsSource.tsv, path=str(tmp_path), partial=True, max_length=6).prepare()
    with pytest.raises(BadData, match=wanted):
        task.prepare()
    with pytest.raises(BadData, match=wanted):
        task.split("test")


def test_baselines_are_those_of_the_first_token():
    task = small()
    task.prepare()
    train, test = task.split("train"), task.split("test")
    found = {baseline.name: baseline for baseline in task.baselines("test")}
    assert list(found) == [
        "majority", "bag_of_tokens", "ngrams", "root_operator",
        "oracle_depth_1", "oracle_depth_2", "oracle_depth_3",
    ]  # fmt: skip
    majority, root = found["majority"], found["root_operator"]
    best = max(range(10), key=lambda digit: (train.targets == digit).sum())
    assert majority.accuracy == pytest.approx((test.targets == best).mean())
    right = 0
    for row, target in zip(rows(task, "test"), test.targets, strict=True):
        same = [
            t for r, t in zip(rows(task, "train"), train.targets, strict=True) if r[0] == row[0]
        ]
        right += max(range(10), key=same.count) == target
    assert root.accuracy == pytest.approx(right / len(test.targets))
    assert majority.accuracy < root.accuracy < 1
    known = listops_oracle.habits(task.seen("train"))
    for depth in (1, 2, 3):
        right = listops_oracle.oracle_answers(task.seen("test"), depth, known)
        assert found[f"oracle_depth_{depth}"].accuracy == right.mean()
    assert f"answers {best}" in majority.sentence
    assert "first token" in root.sentence


def test_unknown_split_and_unprepared_task():
    task = small()
    with pytest.raises(NotPrepared, match="lra data prepare"):
        task.batches("train", batch_size=4, seed=0)
    task.prepare()
    with pytest.raises(ValueError, match="split: got 'dev'; wanted one of train, validation"):
        task.batches("dev", batch_size=4, seed=0)
    with pytest.raises(IndexError, match=r"examples 0 to 99: got example 100"):
        task.describe("test", 100)
    assert task.describe("test", 0).startswith("[")


def test_damage_after_preparing_is_found():
    task = small()
    task.prepare()
    task.verify()
    path = task.folder / "test.targets.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(BadData, match=r"SHA-256 of test.targets.npy is"):
        task.verify()


def test_full_disk_leaves_nothing_behind(monkeypatch):
    task = small()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ragged, "_save", full)
        with pytest.raises(OSError, match=r"No space left.*set LRA_DATA"):
            task.prepare()
    assert not list(task.folder.parent.glob("*listops*"))
    task.prepare()
    task.verify()


CHILD = f"""
from lra.tasks.contract import fingerprint
from lra.tasks.classification.listops.task import ListOps

task = ListOps(**{SMALL})
made, make = [], task.make
task.make = lambda: (made.append(0), make())
task.prepare()
print(len(made), fingerprint(task.batches("train", batch_size=8, seed=0)))
"""


def test_processes_at_once_and_hash_seeds_give_the_same_batches():
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "77")
    ]
    outputs = [process.communicate()[0].split() for process in children]
    assert sorted(made for made, _ in outputs) == ["0", "1"]
    task = small()
    task.prepare()
    wanted = fingerprint(task.batches("train", batch_size=8, seed=0))
    assert {digest for _, digest in outputs} == {wanted}


def test_killed_while_writing(monkeypatch):
    task, calls, save = small(), [], ragged._save

    def save_or_die(*arguments, **options):
        calls.append(0)
        if len(calls) == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        save(*arguments, **options)

    if (number := os.fork()) == 0:
        monkeypatch.setattr(ragged, "_save", save_or_die)
        with suppress(BaseException):
            task.prepare()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(number, 0)[1]) == signal.SIGKILL
    assert not task.folder.exists()
    leftovers = list(task.folder.parent.glob(f".{task.folder.name}.*"))
    assert len(leftovers) == 1
    assert len(list(leftovers[0].iterdir())) == 3
    task.prepare()
    task.verify()
    assert not list(task.folder.parent.glob(f".{task.folder.name}.*"))
