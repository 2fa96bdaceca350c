"""Text of one split that stands in another, at any place, against a search byte by byte."""

from itertools import pairwise

import numpy as np
import pytest

from lra.commands import data
from lra.runners.measures.certify import certify
from lra.tasks.classification.table import TableTask
from lra.tasks.classification.text import Text, TextSource
from lra.tasks.contract import check_disjoint
from lra.tasks.data import overlap
from lra.tasks.data.overlap import Sequences, run_shares
from lra.tasks.language.characters import Characters
from lra.tasks.language.corpus import Corpus, CorpusUnits
from lra.tasks.language.wikitext import Units, WikiText, WikiTextCorpus, WikiTextSource

PARTS = ("train", "validation", "test")


def made_up(number, seed=0):
    """Return that many words of 7 letters, 9 in a line."""
    drawn = np.random.default_rng(seed).integers(97, 123, (number, 7), np.uint8)
    words = [row.tobytes().decode() for row in drawn]
    return "".join(" ".join(words[i : i + 9]) + "\n" for i in range(0, number, 9))


def literal(splits, run):
    found = {}
    for number, (split, (tokens, ends)) in enumerate(splits.items()):
        texts = [tokens[a:b].tobytes() for a, b in pairwise(ends)]
        runs = [text[i : i + run] for text in texts for i in range(0, len(text) - run + 1, run)]
        for earlier in list(splits)[:number] if runs else ():
            whole = splits[earlier].tokens.tobytes()
            found[split, earlier] = sum(whole.find(part) >= 0 for part in runs) / len(runs)
    return found


@pytest.mark.parametrize("run", [1, 2, 3, 7, 8])
def test_shares_are_those_of_a_search_byte_by_byte(run, monkeypatch):
    monkeypatch.setattr(overlap, "AT_ONCE", 64)
    drawn = np.random.default_rng(run)
    for letters, train, validation in ((2, 300, 90), (40, 300, 90), (3, 5, 40), (3, 40, 5)):
        splits = {}
        for name, size in zip(PARTS, (train, validation, 70), strict=True):
            ends = np.sort(np.append(drawn.integers(0, size + 1, 6), [0, size]))
            splits[name] = Sequences(drawn.integers(0, letters, size, np.uint8), ends)
        assert run_shares(splits, run) == pytest.approx(literal(splits, run))


def test_runs_are_taken_from_all_of_a_split(monkeypatch):
    monkeypatch.setattr(overlap, "MOST_RUNS", 10)
    tokens = np.frombuffer(made_up(100).encode(), np.uint8)
    half = np.concatenate([tokens[:400], np.zeros(400, np.uint8)])
    ends = np.array([0, 800])
    splits = {"train": Sequences(tokens, ends), "test": Sequences(half, ends)}
    assert run_shares(splits, 4) == {("test", "train"): 0.5}


def written(folder, **texts):
    for split, text in texts.items():
        (folder / f"{split}.txt").write_text(text)
    return {split: str(folder / f"{split}.txt") for split in texts}


def prepared(task):
    task.prepare()
    return task


@pytest.mark.parametrize("units", CorpusUnits)
def test_a_text_behind_a_heading_is_found_in_every_unit(units, tmp_path, capsys):
    text = made_up(2000)
    options = written(tmp_path, train=text, validation=made_up(300, 1), test=f"A HEADING\n{text}")
    options |= {"units": units, "length": 64}
    if units is CorpusUnits.subwords:
        options["subword_vocabulary"] = 300
    elif units is CorpusUnits.words:
        options["least_count"] = 1
    task = prepared(Corpus(**options))
    found = task.overlaps(task.store().splits)
    assert found["test", "train"] > 0.98
    assert found["validation", "train"] < 0.02
    assert "of the text of test is in train" in task.remarks["test"]
    assert all(task.remarks["test"] in row.labels["remark"] for row in certify(task, split="test"))
    given = ["corpus", *(f"{name}={value}" for name, value in options.items())]
    assert data.main(["prepare", *given]) == 0
    assert task.remarks["test"] in capsys.readouterr().out
    assert data.main(["verify", *given]) == 0
    assert "of test is in train" in capsys.readouterr().out


@pytest.mark.parametrize("as_folder", [True, False])
def test_copies_in_one_text_are_found_in_train(as_folder, tmp_path):
    train = tmp_path / "train"
    if as_folder:
        train.mkdir()
        for number in range(40):  # each shorter than a run
            (train / f"{number}.txt").write_text(made_up(5))
    else:
        train.write_text(made_up(300) * 2)
    task = prepared(Corpus(train=str(train), length=64))
    for split in ("validation", "test"):
        assert f"100.00% of the text of {split} is in train" in task.remarks[split]
    assert "100.00% of the text of test is in train" in check_disjoint(task).detail


def test_texts_of_a_table_that_differ_in_their_beginning_are_found(tmp_path):
    paths = {}
    for split, shift in {"train": 0, "validation": 100, "test": 0}.items():
        texts = [made_up(20, shift + n).replace("\n", " ") for n in range(40)]
        rows = "".join(f"{split} {n}: {text},{'xy'[n % 2]}\n" for n, text in enumerate(texts))
        (tmp_path / f"{split}.csv").write_text(f"text,label\n{rows}")
        paths[split] = str(tmp_path / f"{split}.csv")
    task = prepared(TableTask(labels=["x", "y"], **paths))
    assert list(task.remarks) == ["test"]
    assert "of the text of test is in train" in task.remarks["test"]


def test_a_public_text_that_holds_its_end_twice_is_found(tmp_path):
    (tmp_path / "enwik8").write_text(made_up(500) + made_up(60))
    task = prepared(Characters(path=str(tmp_path / "enwik8"), partial=True, length=64))
    assert "100.00% of the text of test is in train" in task.remarks["test"]


@pytest.mark.parametrize(
    "task",
    [
        Text(source=TextSource.sample),
        Characters(source="sample"),
        WikiText(corpus=WikiTextCorpus.wikitext2, source=WikiTextSource.sample),
        WikiText(
            corpus=WikiTextCorpus.wikitext2, source=WikiTextSource.sample, units=Units.subwords
        ),
    ],
)
def test_samples_raise_no_alarm(task):
    assert prepared(task).remarks == {}
