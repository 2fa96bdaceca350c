import lzma
import zipfile

import numpy as np
import pytest
import torch

from lra.tasks.contract import check_task
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.language.base import Regime
from lra.tasks.language.characters import CharacterCorpus, Characters, CharacterSource, sample_text

TEXT = b"<page> Anarchism \xc3\xa9 &amp; \n" * 200


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "enwik8"
    path.write_bytes(TEXT)
    return path


@pytest.mark.parametrize("options", [
    {},
    {"regime": Regime.sliding, "stride": 16},
    {"regime": Regime.memory, "memory": 64},
    {"contiguous": True},
    {"corpus": CharacterCorpus.text8},
])  # fmt: skip
def test_it_keeps_the_contract(options):
    task = Characters(source=CharacterSource.sample, length=48, **options)
    assert [f for f in check_task(task) if not f.passed] == []


def test_bytes_stay_and_are_split_in_order(file):
    task = Characters(path=str(file), partial=True, length=10)
    task.prepare()
    parts = [task.split(split).tokens.tobytes() for split in ("train", "validation", "test")]
    assert b"".join(parts) == TEXT
    assert [len(part) for part in parts[1:]] == [round(0.05 * len(TEXT))] * 2
    assert "(a part)" in task.spec.source


@pytest.mark.parametrize("ending", [".zip", ".xz"])
def test_packed_files_and_folders(file, ending):
    packed = file.with_name(f"enwik8{ending}")
    if ending == ".zip":
        with zipfile.ZipFile(packed, "w") as archive:
            archive.write(file, "enwik8")
    else:
        packed.write_bytes(lzma.compress(TEXT))
    plain = Characters(path=str(file), partial=True)
    file.rename(file.with_name("plain"))
    task = Characters(path=str(file.parent), partial=True)
    task.prepare()
    assert task.split("test").tokens.tobytes() == TEXT[-round(0.05 * len(TEXT)) :]
    del plain


def test_another_size_is_refused_unless_it_is_a_part(file):
    with pytest.raises(BadData, match=r"5,400 bytes; wanted 100,000,000.*task\.partial=true"):
        Characters(path=str(file)).prepare()


def test_text8_has_27_characters(tmp_path):
    path = tmp_path / "text8"
    path.write_bytes(sample_text(60_000))
    task = Characters(corpus=CharacterCorpus.text8, path=str(path), partial=True)
    task.prepare()
    assert task.spec.vocabulary == 27
    assert task.split("train").tokens.max() < 27
    assert task.describe("train", 0).encode() == sample_text(60_000)[:512]
    path.write_bytes(b"abc Def")
    with pytest.raises(BadData, match=r"byte 4 is b'D', but text8 contains only a to z"):
        Characters(corpus=CharacterCorpus.text8, path=str(path), partial=True).prepare()


def test_damaged_and_missing_files(tmp_path):
    path = tmp_path / "enwik8.xz"
    path.write_bytes(lzma.compress(TEXT)[:-20])
    with pytest.raises(BadData, match="truncated, damaged"):
        Characters(path=str(path), partial=True).prepare()
    with pytest.raises(NotPrepared, match=r"36,445,475 bytes, SHA-256 547994d9"):
        Characters(path=str(tmp_path / "nowhere")).prepare()


def test_a_batch_that_leaves_no_stream():
    task = Characters(source=CharacterSource.sample, length=512, contiguous=True)
    task.prepare()
    with pytest.raises(ValueError, match=r"lower the batch size or task\.length"):
        next(task.batches("train", batch_size=1000, seed=0))


def test_targets_are_the_next_tokens():
    task = Characters(source=CharacterSource.sample, length=20, regime=Regime.sliding, stride=5)
    task.prepare()
    flat = task.split("test").tokens.astype(np.int64)
    seen = np.zeros(len(flat), int)
    for batch in task.batches("test", batch_size=7, seed=0):
        weights = np.ones(batch.target.shape) if batch.weight is None else batch.weight.numpy()
        assert (batch.target[:, :-1] == batch.tokens[:, 0, 1:]).numpy()[weights[:, 1:] > 0].all()
        tally = task.tally(batch.target.float(), batch.target == 0, batch)
        assert tally.nll_sum == pytest.approx(float((batch.target.numpy() * weights).sum()))
        seen[: int(weights.sum())] += 1
    assert (
        sum(
            int(batch.target.numel() if batch.weight is None else batch.weight.sum())
            for batch in task.batches("test", batch_size=7, seed=0)
        )
        == len(flat) - 1
    )


def test_the_unigram_baseline_is_the_entropy_of_train_over_test():
    task = Characters(source=CharacterSource.sample, length=50)
    task.prepare()
    (baseline,) = task.baselines("test")
    train, test = task.split("train").tokens, task.split("test").tokens[1:]
    counts = np.bincount(train, minlength=256) + 1
    bits = -np.log2(counts / counts.sum())[test].mean()
    assert baseline.name == "unigram"
    assert baseline.measures["bits_per_character"] == pytest.approx(bits)
    assert baseline.measures["loss"] == pytest.approx(bits * np.log(2))
    assert baseline.accuracy == pytest.approx((test == counts.argmax()).mean())


def test_losses_by_place_and_by_frequency():
    task = Characters(source=CharacterSource.sample, length=8)
    task.prepare()
    batch = next(task.batches("test", batch_size=4, seed=0))
    nll = torch.arange(1, 9).expand(4, 8).float()
    parts = task.tally(nll, nll > 0, batch).parts
    places = {part: found for (kind, part), found in parts.items() if kind == "position"}
    assert places == {"1": (4, 4), "2–3": (20, 8), "4–7": (88, 16), "8–15": (32, 4)}
    counts = np.bincount(task.split("train").tokens, minlength=256)[batch.target.numpy()]
    rare = (counts >= 100) & (counts < 1000)
    said = {part: found for (kind, part), found in parts.items() if kind == "frequency"}
    assert said.get("100–999", (0.0, 0.0)) == (float(nll.numpy()[rare].sum()), rare.sum())
    assert sum(count for _, count in said.values()) == 32


def parquet(folder, **texts):
    import pyarrow
    import pyarrow.parquet

    folder.mkdir()
    for split, rows in texts.items():
        pyarrow.parquet.write_table(pyarrow.table({"text": rows}), folder / f"{split}.parquet")
    return str(folder)


def test_text8_from_a_data_set_has_its_own_splits(tmp_path):
    path = parquet(tmp_path / "a", train=["the cat sat"], validation=["on a"], test=["mat on"])
    options = {"corpus": CharacterCorpus.text8, "source": CharacterSource.datasets, "length": 4}
    task = Characters(path=path, partial=True, **options)
    task.prepare()
    assert [len(task.split(split).tokens) for split in ("train", "validation", "test")] == [
        11,
        4,
        6,
    ]
    assert task.describe("test", 0) == "mat "
    assert task.spec.source == "datasets: a (a part)"
    with pytest.raises(BadData, match=r"train split has 11 characters; wanted 90,000,000.*partial"):
        Characters(path=path, **options).prepare()
    path = parquet(tmp_path / "b", train=["the", "cat"], validation=["on a"], test=["mat on"])
    with pytest.raises(BadData, match="train: the split has 2 rows; wanted one"):
        Characters(path=path, partial=True, **options).prepare()
    with pytest.raises(NotPrepared, match=r"missing; .*afmck/text8/tree/58c74e96.*GFDL"):
        Characters(path=str(tmp_path / "c"), **options).prepare()
    with pytest.raises(ValueError, match=r"needs task\.corpus=text8"):
        Characters(source=CharacterSource.datasets)


def test_a_text_of_ones_own_is_read_and_written():
    bytewise = Characters(corpus=CharacterCorpus.enwik8, source=CharacterSource.sample)
    assert bytewise.encode("aß").tolist() == [97, 195, 159]
    assert bytewise.decode(bytewise.encode("aß€")) == "aß€"
    assert bytewise.decode(np.array([97, 195])) == "a�"
    letters = Characters(corpus=CharacterCorpus.text8, source=CharacterSource.sample)
    assert letters.encode("a z").tolist() == [1, 0, 26]
    assert letters.decode(letters.encode("the cat")) == "the cat"
    with pytest.raises(ValueError, match="got '!', '2', 'T', 'é'; write in lower case"):
        letters.encode("Thé 2 cats!!")
