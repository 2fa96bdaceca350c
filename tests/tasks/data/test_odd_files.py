"""What editors and spreadsheets do to files is read, or refused in a short sentence."""

import codecs
import gzip
import io
import json
import math

import pyarrow
import pyarrow.parquet
import pytest

from lra.conf.short_values import LONGEST, short_list, short_repr
from lra.tasks.classification.listops.text import read_tsv
from lra.tasks.classification.pairs import read_pairs
from lra.tasks.classification.table import TableTask
from lra.tasks.classification.table_files import table_records as read_table
from lra.tasks.contract import check_disjoint, check_task
from lra.tasks.data.lines import file_blocks
from lra.tasks.errors import BadData
from lra.tasks.proteins.fasta import read_fasta

TREES = "Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n"


def trees(path):
    return list(read_tsv(path, max_length=9, check_answers=True))


def table(path):
    return [values for _, values in read_table(path, ["text", "label"])]


def lines(path):
    with path.open("rb") as file:
        return b"".join(block.text for block in file_blocks(file, "x"))


FORMS = {
    "a.csv": ("text,label\na,x\nb,y\n", table),
    "a.tsv": ("text\tlabel\na\tx\nb\ty\n", table),
    "a.jsonl": ('{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n', table),
    "a.fasta": (">a\nMK\nTA\n>b\nMK\n", lambda path: list(read_fasta(path))),
    "basic_val.tsv": (TREES, trees),
    "pairs.tsv": ("1\ta\tb\tone\ttwo\n", lambda path: list(read_pairs(path, longest=9))),
    "wiki.train.raw": (" = A = \n some words \n", lines),
}


@pytest.mark.parametrize("name", FORMS)
def test_marks_and_carriage_returns_are_no_part_of_a_text(name, tmp_path):
    text, reader = FORMS[name]
    path = tmp_path / name
    path.write_text(text)
    plain = reader(path)
    for content in (
        codecs.BOM_UTF8 + text.encode(),
        text.replace("\n", "\r").encode(),
        codecs.BOM_UTF8 + text.replace("\n", "\r").encode(),
    ):
        path.write_bytes(content)
        assert reader(path) == plain
    for encoding in ("utf-16", "utf-32"):
        path.write_bytes(text.encode(encoding))
        with pytest.raises(BadData, match=r"byte order mark of UTF-\d\d; save this file as UTF-8"):
            reader(path)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_tables_in_upper_case_and_packed(name, tmp_path):
    text, _ = FORMS[name]
    upper, packed = tmp_path / name.upper(), tmp_path / f"{name}.GZ"
    upper.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    assert table(upper) == table(packed) == [("a", "x"), ("b", "y")]


@pytest.mark.parametrize("text", ["Target\tSource\n9\t[MAX 2 9 ]\n", "9\t( ( ( [MAX 2 ) 9 ) ] )\n"])
def test_listops_with_the_label_first(text, tmp_path):
    (tmp_path / "a").write_text(text)
    (tmp_path / "b").write_text(TREES)
    assert trees(tmp_path / "a") == trees(tmp_path / "b")


def test_ids_of_pairs_are_no_pairs(tmp_path):
    (tmp_path / "a").write_text("1\tP1\tP2\n")
    with pytest.raises(BadData, match="has the ids of two texts, but not the texts"):
        list(read_pairs(tmp_path / "a", longest=9))


def prepared(path, rows, **options):
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    task = TableTask(train=str(path), labels=["x", "y"], **options)
    task.prepare()
    return task


def test_copies_that_cannot_be_held_out(tmp_path):
    with pytest.raises(BadData, match="30 training texts of label 0, of which 1 are different"):
        prepared(tmp_path / "a.csv", [("a", "x"), ("b", "y")] * 30)


def test_shared_examples_and_labels_without_rows_are_said(tmp_path):
    rows = [(f"text {i}", "x") for i in range(100)]
    path = tmp_path / "a.csv"
    task = prepared(path, rows, test=str(path))
    assert "90 of 100 test examples (90.00%)" in task.remarks["test"]
    assert "has the label 'y'" in task.remarks["labels"]
    assert "90.00% of the test examples are in train as well" in check_disjoint(task).detail


@pytest.mark.parametrize("train", [1, 2, 3, 5, 15, 16, 20])
def test_tables_of_few_rows_are_verified(train, tmp_path):
    paths = {}
    for split, size in {"train": train, "validation": 1, "test": 2}.items():
        paths[split] = str(tmp_path / f"{split}.csv")
        rows = "".join(f"{split} {'x' * (i % 3)}{i},{'xy'[i % 2]}\n" for i in range(size))
        (tmp_path / f"{split}.csv").write_text(f"text,label\n{rows}")
    findings = check_task(TableTask(labels=["x", "y"], **paths))
    assert [finding for finding in findings if not finding.passed] == []


def test_a_missing_number_is_no_label(tmp_path):
    path = tmp_path / "a.parquet"
    columns = {"text": ["a", "b", "c"], "label": [1.0, 0.0, math.nan]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(BadData, match="row 2: the label is nan"):
        TableTask(train=str(path), labels=["0.0", "1.0", "nan"]).prepare()


HUGE = ["x" * 10**6, 10**9999, {str(i): i for i in range(10**5)}, ["é"] * 10**5, b"\0" * 10**6]


@pytest.mark.parametrize("value", HUGE, ids=lambda value: type(value).__name__)
def test_values_are_short_in_messages(value):
    assert len(short_repr(value)) <= LONGEST + 2
    assert len(short_list([str(type(value))] * 10**5)) < 1000


@pytest.mark.parametrize("where", ["text", "label"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", json.dumps(HUGE[2]), json.dumps(HUGE[3])])
def test_no_value_of_json_is_printed_whole(where, value, tmp_path):
    row = {"text": '"a"', "label": '"x"', where: value}
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": {row["text"]}, "label": {row["label"]}}}\n')
    with pytest.raises(BadData, match="line 1") as caught:
        TableTask(train=str(path), labels=["x", "y", "NaN", "Infinity"]).prepare()
    assert len(str(caught.value)) < 500 + len(str(path))


def test_headers_are_not_printed_whole(tmp_path):
    (tmp_path / "a.csv").write_text(",".join("c" * 99 for _ in range(9999)) + "\n1\n")
    with pytest.raises(BadData) as caught:
        table(tmp_path / "a.csv")
    assert len(str(caught.value)) < 1200


def test_a_text_of_one_line_stays():
    assert [block.text for block in file_blocks(io.BytesIO(b"a\rb\n"), "x")] == [b"a\rb\n"]
