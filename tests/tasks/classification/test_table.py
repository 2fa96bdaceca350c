import json

import pytest

from lra.tasks.classification.table import TableTask
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.task import Kind

ROWS = [(f"text number {i} of kind {i % 2}", ("ham", "spam")[i % 2]) for i in range(60)]


def csv(path, rows=ROWS, sep=",", header=("text", "label")):
    lines = [sep.join(header), *(sep.join(row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def texts(task, split):
    data = task.split(split)
    return {row.tobytes().decode() for row in data.rows(range_of(data))}


def range_of(data):
    import numpy as np

    return np.arange(len(data.targets))


def test_one_table_is_split_by_the_hash_of_its_texts(tmp_path):
    task = TableTask(train=csv(tmp_path / "mine.csv"), labels=["ham", "spam"])
    task.prepare()
    parts = {split: texts(task, split) for split in ("train", "validation", "test")}
    assert {split: len(part) for split, part in parts.items()} == {
        "train": 48, "validation": 6, "test": 6,
    }  # fmt: skip
    assert set.union(*parts.values()) == {text for text, _ in ROWS}
    assert task.spec.source == "mine.csv"
    again = TableTask(train=csv(tmp_path / "other.csv", ROWS[::-1]), labels=["ham", "spam"])
    again.prepare()
    assert texts(again, "test") == parts["test"]


def test_every_form_of_table(tmp_path):
    csv(tmp_path / "a.tsv", sep="\t")
    lines = [json.dumps({"text": text, "label": label}) for text, label in ROWS]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"text": [t for t, _ in ROWS], "label": [x for _, x in ROWS]})
    pq.write_table(table, tmp_path / "a.parquet")
    found = []
    for name in (csv(tmp_path / "a.csv"), "a.tsv", "a.jsonl", "a.parquet"):
        task = TableTask(train=str(tmp_path / name), labels=["ham", "spam"])
        task.prepare()
        found.append(task.split("test").tokens.tobytes())
    assert len(set(found)) == 1


def test_tables_of_their_own_for_each_split(tmp_path):
    parts = {
        split: csv(tmp_path / f"{split}.csv", ROWS[place::3])
        for place, split in enumerate(("train", "validation", "test"))
    }
    task = TableTask(**parts, labels=["spam", "ham"])
    task.prepare()
    assert texts(task, "test") == {text for text, _ in ROWS[2::3]}
    assert task.example("train", 0)[1] == 1  # ham
    assert "(ham)" in task.describe("train", 0)


def test_pairs_and_numbers_as_labels(tmp_path):
    rows = [(f"first {i}", f"second {i}", str(i % 3)) for i in range(60)]
    path = csv(tmp_path / "pairs.csv", rows, header=("a", "b", "score"))
    task = TableTask(train=path, labels=["0", "1", "2"], text="a", second_text="b", label="score")
    task.prepare()
    assert (task.spec.kind, task.spec.classes) == (Kind.pair, 3)
    batch = next(task.batches("test", batch_size=4, seed=0))
    assert batch.tokens.shape[:2] == (4, 2)


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([*ROWS, ("x", "eggs")], ("text", "label"), r"line 62: the label is 'eggs'; wanted one of"),
        ([*ROWS, ("", "ham")], ("text", "label"), "line 62, text"),
        (ROWS, ("message", "label"), "without text; set task.text"),
        ([], ("text", "label"), "mine.csv"),
        (ROWS[:3], ("text", "label"), "too few|at least one text for each split"),
    ],
)
def test_bad_tables(tmp_path, rows, header, message):
    task = TableTask(train=csv(tmp_path / "mine.csv", rows, header=header), labels=["ham", "spam"])
    with pytest.raises(BadData, match=message):
        task.prepare()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"set either task\.train"),
        ({"train": "a.csv", "dataset": "b"}, r"set either task\.train"),
        ({"dataset": "b", "test": "a.csv"}, "because the splits come from task.dataset=b"),
        ({"train": "a.csv", "labels": ["x"]}, "at least two labels"),
        ({"train": "a.csv", "labels": ["x", "x"]}, "at least two labels, each once"),
        ({"train": "a.docx"}, r"ends in \.csv"),
        ({"train": "a.csv", "test_fraction": 0.5}, "must lie in \\(0, 0.5\\)"),
        ({"train": "a.csv", "max_length": 0}, "max_length=0"),
        ({"train": "a.csv", "second_text": "text"}, "must be different columns"),
        ({"train": "a.csv", "text": "label"}, "must be different columns"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        TableTask(**({"labels": ["ham", "spam"]} | options))


def test_a_missing_table(tmp_path):
    with pytest.raises(NotPrepared, match="is missing"):
        TableTask(train=str(tmp_path / "none.csv"), labels=["a", "b"]).prepare()
