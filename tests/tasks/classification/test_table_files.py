"""Every row of a table is read, and every value as it stands."""

import csv
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lra.tasks.classification.table import TableTask
from lra.tasks.classification.table_files import table_records
from lra.tasks.errors import BadData
from tests.fuzz import cases

ODD = (
    '"', '""', 'a "quoted" word', '"begins', 'ends"', "it's", "01", "1", "1.50", "1e3", "-0", "NA",
    "nan", "null", "None", "true", "True", "inf", " ", "  two  ", "2020-01-01", "\\", "\\t", "#",
    "=1+1", "naïve", "\u2028", "\x0b", "\x1c", "\x85", "\ufeff", "日本", "a,b", ";", "'", "0x10",
    "1_000", "ü" * 9,
)  # fmt: skip
LONG = "x" * 140_000
"""Longer than a field that the csv module takes by default."""


def rows(source, *, also=()):
    """Return rows of odd texts and labels."""
    pick = (*ODD, *also)
    return [
        ("".join(source.choices(pick, k=source.randint(1, 3))), source.choice(ODD), str(number))
        for number in range(source.randint(1, 12))
    ]


def as_tsv(path, header, rows, end):
    lines = ["\t".join(row) for row in (header, *rows)]
    path.write_bytes(end.join(lines).encode() + end.encode() * 2)


def as_csv(path, header, rows, end):
    lone = any("\r" in value for row in rows for value in row)  # bare before 3.13
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        quoting = csv.QUOTE_ALL if lone else csv.QUOTE_MINIMAL
        csv.writer(file, lineterminator=end, quoting=quoting).writerows([header, *rows])
        file.write(end)


def as_lines(path, header, rows, end):
    objects = [json.dumps(dict(zip(header, row, strict=True))) for row in rows]
    path.write_bytes(end.join([*objects, ""]).encode())


def as_array(path, header, rows, end):
    del end
    path.write_text(json.dumps([dict(zip(header, r, strict=True)) for r in rows], indent=1))


def as_parquet(path, header, rows, end):
    del end
    columns = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
    pq.write_table(pa.table(columns), path)


FORMS = {
    "a.tsv": as_tsv, "a.csv": as_csv, "a.jsonl": as_lines, "a.json": as_array,
    "a.parquet": as_parquet,
}  # fmt: skip


@pytest.mark.fuzz
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("seed", range(cases(4)))
def test_values_are_read_as_they_stand(name, seed, tmp_path):
    source = random.Random(f"{name} {seed}")
    also = () if name == "a.tsv" else ("\n", "\r\n", "\t", "\r", LONG)
    written, end = rows(source, also=also), source.choice(["\n", "\r\n"])
    FORMS[name](tmp_path / name, ("text", "label", "extra"), written, end)
    found = [values for _, values in table_records(tmp_path / name, ["label", "text"])]
    assert found == [(label, text) for text, label, _ in written]


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(cases(3)))
def test_a_stray_quote_merges_no_rows(seed, tmp_path):
    """Forty rows are forty rows."""
    source = random.Random(seed)
    texts = [f"review {number} is fine" for number in range(40)]
    for number in source.sample(range(40), source.randint(1, 8)):
        place = source.randrange(len(texts[number]))
        texts[number] = f'{texts[number][:place]}"{texts[number][place:]}'
    lines = ["text\tlabel", *(f"{text}\t0{n % 2}" for n, text in enumerate(texts))]
    (tmp_path / "own.tsv").write_text("\n".join(lines) + "\n")
    task = TableTask(train=str(tmp_path / "own.tsv"), labels=["00", "01"])
    task.prepare()
    found = {}
    for split in ("train", "validation", "test"):
        data = task.split(split)
        for row, target in zip(data.rows(np.arange(len(data.targets))), data.targets, strict=True):
            found[row.tobytes().decode()] = int(target)
    assert found == {text: n % 2 for n, text in enumerate(texts)}


@pytest.mark.fuzz
@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
@pytest.mark.parametrize("seed", range(cases(3)))
def test_a_row_of_another_width_is_named(name, seed, tmp_path):
    source = random.Random(f"{name} {seed}")
    sep = {"a.tsv": "\t", "a.csv": ","}[name]
    lines = [sep.join(("text", "label")), *(sep.join((f"t{n}", "x")) for n in range(9))]
    place = source.randrange(1, 9)
    lines[place] = source.choice(["", "alone", sep.join(("a", "b", "c"))])
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    with pytest.raises(
        BadData, match=f"line {place + 1}: this row has . fields, but the header has 2"
    ):
        list(table_records(tmp_path / name, ["text"]))


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(cases(5)))
def test_an_unbalanced_quote_in_csv_is_refused_with_its_line(seed, tmp_path):
    source = random.Random(seed)
    lines = ["text,label", *(f'"t ""{n}"", yes",x' for n in range(9))]
    place = source.randrange(1, 10)
    lines[place] = source.choice(['"open,x', '"clo"sed,x', '"a""b,x', '"', '"a" ,x'])
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(
        BadData, match=f"line {place + 1}: the row that begins in this line .*a quote"
    ):
        list(table_records(tmp_path / "a.csv", ["text", "label"]))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "text\ttext\tlabel\na\tb\tx\n", "2 columns have the name 'text'"),
        ("a.csv", "text,label,label\na,x,y\n", "2 columns have the name 'label'"),
        ("a.jsonl", '{"text": "a", "text": "b", "label": "x"}\n', "2 columns have the name"),
        ("a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b"}\n', "line 2: .* without label"),
        ("a.jsonl", '{"text": "a", "label": "x"}\n\n{"text": "a"}\n', "2: the row is not JSON"),
        ("a.jsonl", '{"text": "a", "label": "x"\n', "line 1: the row is not JSON"),
        ("a.jsonl", '["a", "x"]\n', "line 1: the row is no JSON object"),
        ("a.json", '[{"text": "a", "label": "x"}, 3]', "row 1: the row is no JSON object"),
        ("a.json", '[{"text": "a", "label": "x"}', "the row is not JSON"),
        ("a.tsv", b"text\tlabel\na\xff\tx\n", "line 2: byte 2 of this line is not UTF-8"),
        ("a.csv", b"text,label\na,x\n\xe9,x\n", "line 3: byte 1 of this line is not UTF-8"),
        ("a.csv", "text,label\na\rb,x\n", "line 2: the row .* has a carriage return"),
        ("a.csv", "", "is empty"),
        ("a.tsv", "\n\n", "is empty"),
        ("a.jsonl", "\n", "is empty"),
        ("a.parquet", "PAR1 no parquet", "lra cannot read"),
    ],
)  # fmt: skip
def test_what_is_no_table_is_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadData, match=message):
        list(table_records(tmp_path / name, ["text", "label"]))


@pytest.mark.parametrize(
    ("name", "text", "sign"),
    [
        ("t.csv", "id;text;label\n1;a, b;c\n", "semicolons"),
        ("t.csv", '"text";"label"\r\n"a";"b"\r\n', "semicolons"),
        ("t.csv", "text\tlabel\na\tb\n", "tabs"),
        ("t.csv", "text|label\na|b\n", "bars"),
        ("t.tsv", "text,label\na,b\n", "commas"),
        ("t.tsv", "text;label\na;b\n", "semicolons"),
    ],
)
def test_another_separator_is_named(tmp_path, name, text, sign):
    (tmp_path / name).write_bytes(text.encode())
    with pytest.raises(BadData, match=rf"{name}: .* separated by {sign}; save the table as \.csv"):
        list(table_records(tmp_path / name, ["text", "label"]))
    for header in ("text,a;b", "text"):
        (tmp_path / "t.csv").write_text(f"{header}\nx;y{',z' * header.count(',')}\n")
        assert [row.values for row in table_records(tmp_path / "t.csv", ["text"])] == [("x;y",)]


def test_other_columns_may_come_twice(tmp_path):
    (tmp_path / "a.csv").write_text('more,text,more,label\n1,"a\nb",2,x\n')
    assert [values for _, values in table_records(tmp_path / "a.csv", ["text", "label"])] == [
        ("a\nb", "x")
    ]


def test_numbers_of_json_are_spelled_as_in_the_file(tmp_path):
    lines = '{"text": 1.50, "label": 007}'.replace("007", "7"), '{"text": "a", "label": true}'
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = [values for _, values in table_records(tmp_path / "a.jsonl", ["text", "label"])]
    assert found == [("1.50", "7"), ("a", "true")]


def test_classes_of_parquet_are_read_by_name(tmp_path):
    import datasets

    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    made = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    made.to_parquet(tmp_path / "a.parquet")
    found = [values for _, values in table_records(tmp_path / "a.parquet", ["text", "label"])]
    assert found == [("a", "pos"), ("b", "neg")]


@pytest.mark.parametrize("label", ["null", "[1]", "{}"])
def test_what_is_no_label_is_refused(label, tmp_path):
    lines = ['{"text": "a", "label": %s}' % label] * 3  # noqa: UP031
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(BadData, match=r"a.jsonl, line 1: the label is .*; wanted one of"):
        TableTask(train=str(tmp_path / "a.jsonl"), labels=["None", "[]"]).prepare()


def test_a_text_that_is_no_unicode_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "\\ud800", "label": "x"}\n')
    with pytest.raises(BadData, match=r"line 1, text: .*surrogates not allowed"):
        TableTask(train=str(tmp_path / "a.jsonl"), labels=["x", "y"]).prepare()
