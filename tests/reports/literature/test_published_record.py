"""The published record: impossible entries are refused, and derived figures are recomputed."""

import csv
import shutil
import time
from collections import Counter
from importlib import resources
from pathlib import Path

import pytest
from program_tables import written

from lra.reports.literature.findings import (
    CheckKind,
    arena_means,
    disagreements,
    lint,
    mixed_tables,
)
from lra.reports.literature.record import (
    BadRecord,
    PublishedRecord,
    published_record,
    read_record,
)

DATA = Path(str(resources.files("lra.reports.literature"))) / "data"
CONF = Path(__file__).parents[3] / "conf"
HEAD = "table,system,model,task,metric,split,value,unit,parameters_m,origin,quoted_from,at,remark\n"


def record_of(
    folder: Path, lines: str, tables: str = 'one: {source: "arXiv:1"}\n'
) -> PublishedRecord:
    folder.mkdir(exist_ok=True)
    shutil.copy(DATA / "terms.yaml", folder)
    (folder / "tables.yaml").write_text(tables)
    (folder / "some.csv").write_text(HEAD + lines)
    return read_record(folder)


def line(task: str, value: str, system: str = "A", table: str = "one") -> str:
    return f"{table},{system},,{task},accuracy,test,{value},%,,own,,,\n"


FIVE = ("listops", "text", "retrieval", "image", "pathfinder")


@pytest.mark.parametrize(
    ("lines", "tables", "says"),
    [
        (line("text", "101"), None, r"some.csv, line 2: accuracy is 101 %, but must be from 0 to"),
        ("one,A,,wikitext103,perplexity,test,-3,per word,,own,,,\n", None, "perplexity is -3 per"),
        (
            line("text", "50", table="two"),
            None,
            "no source, because tables.yaml has no",
        ),
        (line("text", "50"), "one: {table: table 1}\n", "one: the table has no source"),
        (line("text", "50"), 'one: {source: "  "}\n', "one: the table has no source"),
        (line("txt", "50"), None, "the task 'txt' is unknown"),
        ("one,A,,text,accuracy,test,50,bits,,own,,,\n", None, "the unit of accuracy is 'bits'"),
        ("one,A,,text,acuracy,test,50,%,,own,,,\n", None, "the metric 'acuracy' is unknown"),
        ("one,A,,text,accuracy,test,50,%,,me,,,\n", None, "'me' is none of own, rerun, quoted"),
        ("one,A,,text,accuracy,test,50,%,,quoted,,,\n", None, "needs the source that it is quoted"),
        (line("text", ""), None, "the value is ''; write a number"),
        (line("text", "nan"), None, "accuracy is nan %"),
        ("one,A,,text\n", None, "line 2: the line must have exactly the columns table, system"),
        (line("text", "50") * 2, None, "line 3: an earlier line has a figure of one / A / text"),
        (line("five_tasks", "5") + line("six_tasks", "5", "B"), None, "means five_tasks and six_"),
        (line("text", "50"), "one: {source: x, chosen: test}\n", "no fact is called 'chosen'"),
        (line("text", "50"), "one: {source: x, chosen_on: dev}\n", "'dev' is none of test"),
    ],
)
def test_impossible_entries_are_refused(tmp_path: Path, lines, tables, says: str) -> None:
    with pytest.raises(BadRecord, match=says) as error:
        record_of(tmp_path, lines, *([tables] if tables else []))
    assert "\n" not in str(error.value)


def test_means_are_recomputed_within_the_rounding_of_what_is_printed(tmp_path: Path) -> None:
    cells = "".join(line(task, "50.0") for task in FIVE)
    for mean, right in (("50.05", True), ("50.06", False), ("49", False), ("~50.1", True)):
        record = record_of(tmp_path, cells + line("five_tasks", mean))
        (check,) = lint(record)
        assert (check.kind, check.expected, not check.finding) == (CheckKind.mean, 50.0, right)
    assert lint(record_of(tmp_path, line("text", "50") + line("five_tasks", "50"))) == []


def test_a_failure_counts_as_its_table_says_and_another_rule_is_named(tmp_path: Path) -> None:
    cells = "".join(line(task, "60") for task in FIVE) + line("pathx", "FAIL")
    for failure, mean in (("50", "58.33"), ("0", "50.00"), ("chance", "58.33")):
        tables = f"one: {{source: x, failure: {failure}}}\n"
        (check,) = lint(record_of(tmp_path, cells + line("six_tasks", mean), tables))
        assert not check.finding
    (check,) = lint(record_of(tmp_path, cells + line("five_tasks", "58.33")))
    assert check.finding == "its 5 figures give 60.00; 58.33 is the mean six_tasks_failure_50"
    means = arena_means(check.figure, record_of(tmp_path, cells))
    assert {name: round(mean, 2) for name, mean in means.items()} == {
        "five_tasks": 60.0, "six_tasks_failure_50": 58.33, "six_tasks_failure_0": 50.0,
    }  # fmt: skip


def test_ratios_and_quotes_are_checked(tmp_path: Path) -> None:
    speed = "one,{},,text,{},,{},{},,own,,length=1000,\n"
    lines = speed.format("R", "steps_per_second", "2.0", "steps/s")
    lines += speed.format("A", "steps_per_second", "3.0", "steps/s")
    tables = "one: {source: x, ratio_of: R}\ntwo: {source: y}\n"
    for ratio, right in (("1.5", True), ("1.6", True), ("1.7", False)):
        ratios = lines + speed.format("A", "speedup_vs_transformer", ratio, "x")
        (check,) = lint(record_of(tmp_path, ratios, tables))
        assert (check.kind, not check.finding) == (CheckKind.ratio, right)
    quote = "two,A,,text,accuracy,test,{},%,,quoted,one,,\n"
    for value, right in (("61.2", True), ("61", True), ("61.4", False)):
        (check,) = lint(record_of(tmp_path, line("text", "61.20") + quote.format(value), tables))
        assert (check.kind, not check.finding) == (CheckKind.quote, right)


def test_the_record_that_comes_with_lra_is_checked_and_its_wrong_figures_are_known() -> None:
    begin = time.process_time()
    record = read_record(DATA)
    checks = lint(record)
    assert time.process_time() - begin < 5
    assert len(record.figures) > 1300
    counts = Counter(check.kind for check in checks)
    assert sum(counts[k] for k in (CheckKind.mean, CheckKind.ratio, CheckKind.column)) >= 150
    assert {(c.figure.system, c.figure.text) for c in checks if c.finding} == {
        ("Sinkhorn Transformer", "51.39"), ("Sinkhorn Transformer", "51.29"), ("LRU", "86.30"),
        ("RWKV-4", "72.07"), ("LION-D (HiPPO init)", "85.63"), ("LION-S (HiPPO init)", "86.07"),
        ("S5", "87.04"), ("ATLAS", "91.4"),
    }  # fmt: skip
    assert "arXiv:2209.10655, table 2" in mixed_tables(record)
    widest = disagreements(record)[0]
    assert [f.text for f in widest] == ["6.9", "15.5", "39.0"]
    assert {f.system for f in widest} == {"GLA"}


def test_protocols_and_models_of_the_record_exist() -> None:
    record = published_record()
    for table in record.tables.values():
        assert all((CONF / "protocol" / f"{name}.yaml").is_file() for name in table.protocols)
        assert not table.cells_of or table.cells_of in record.tables
    models = {f.model for f in record.figures if f.model}
    assert {"softmax", "mamba", "transformer_xl"} <= models
    named = {path.stem for path in (CONF / "model").glob("*.yaml")} | {"s4d", "kernelised"}
    assert models <= named
    for file in DATA.glob("*.csv"):
        with file.open() as lines:
            assert all(each["table"] in record.tables for each in csv.DictReader(lines))


def test_the_page_has_the_findings_of_the_record() -> None:
    page = (Path(__file__).parents[3] / "docs" / "published.md").read_text("utf-8")
    assert written(page) == page
