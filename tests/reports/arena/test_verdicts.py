"""Our scores under a protocol, next to the published ones: difference, deviations and verdict."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lra.cli import main
from lra.reports.arena.runs import protocol_runs
from lra.reports.arena.verdicts import ComparedScore, MixedProtocols, findings_of, published_table
from lra.reports.literature.record import published_record
from lra.reports.rows import prepare
from lra.reports.sections.published_figures import section
from lra.reports.sections.section import LeftOut, TablePart
from lra.reports.tables.table import Table, to_markdown
from tests.reports.arena.arena_rows import SCORES, labels, score
from tests.reports.conftest import failed, frame, row

ROOT = Path(__file__).parents[3]


def seeds(model: str, task: str, values: tuple[float, ...], **marks: str) -> list[dict[str, Any]]:
    own = labels(**marks)
    return [r for s, v in enumerate(values) for r in score(model, task, v, seed=s, marks=own)]


def found(*rows: dict[str, Any]) -> dict[str, ComparedScore]:
    (runs,) = protocol_runs(prepare(frame(*rows)))
    return {f.figure.task: f for f in findings_of(runs, published_record())}


# nystrom, table 3: exact attention has 37.10 on ListOps.
@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.370, 0.371, 0.372), "within the margin"),
        ((0.400, 0.401, 0.402), "higher"),
        ((0.330, 0.331, 0.332), "lower"),
        ((0.300, 0.370, 0.440), "too uncertain"),
        ((0.379, 0.380, 0.381), "higher"),
    ],
)
def test_the_verdict_follows_from_the_interval_and_the_margin(values, verdict: str) -> None:
    finding = found(*seeds("softmax", "listops", values, protocol="nystrom"))["listops"]
    assert (finding.figure.text, finding.words) == ("37.10", verdict)
    assert finding.difference == pytest.approx(100 * sum(values) / 3 - 37.10)


@pytest.mark.parametrize(
    ("marks", "reason", "numbers"),
    [
        ({"deviations": "precision, vocabulary"}, "deviations", "; by the numbers: higher"),
        ({"changed": "optim.steps"}, "changed options: optim.steps", "; by the numbers: higher"),
        ({"settings": "shared"}, "the source did not train this model", "; by the numbers: higher"),
        ({"start": "x"}, "the training began from stored weights", "; by the numbers: higher"),
        ({"scale": "tiny"}, "scale tiny", ""),
    ],
)
def test_rows_that_differ_from_the_source_are_never_comparable(marks, reason, numbers) -> None:
    rows = seeds("softmax", "listops", (0.40, 0.401, 0.402), protocol="nystrom", **marks)
    finding = found(*rows)["listops"]
    assert finding.words == f"not comparable ({reason}){numbers}"
    assert (finding.difference is None) == ("scale" in marks)
    table = published_table(prepare(frame(*rows)))
    assert isinstance(table, Table)
    line = next(r for r in table.rows if "listops" in r.title)
    assert line.entries[3].text == marks.get("deviations", "none")


def test_averages_need_every_task_and_the_seeds_of_all() -> None:
    five = [t for t in SCORES if t != "pathx"]
    rows = [r for t in five for r in seeds("softmax", t, (0.5, 0.7), protocol="nystrom")]
    mean = found(*rows)["five_tasks"]
    assert mean.ours.value == pytest.approx(0.6)
    assert mean.ours.interval is not None
    assert mean.words == "too uncertain"
    part = found(*(r for r in rows if r["task"] != "text"))["five_tasks"]
    assert part.words == "not comparable (no accuracy on the test split of text)"
    assert part.ours.value is None
    alone = found(*rows, *seeds("softmax", "text", (0.5, 0.6, 0.7), protocol="nystrom")[4:])
    assert alone["five_tasks"].ours.interval is None


def test_missing_failed_and_several_scores_are_marked() -> None:
    marks = labels("nystrom")
    lost = failed("accuracy", "softmax", "out_of_memory", "80 GiB", labels=marks, task="text")
    text = found(lost, *score("softmax", "listops", 0.4, marks=marks))["text"]
    assert text.words == "not comparable (text: OOM: 80 GiB)"
    lengths = [
        r | {"family": "softmax", "options": {"task.max_length": n}}
        for n in ("1000", "2000")
        for r in score("softmax", "text", 0.6, length=int(n), marks=marks)
    ]
    assert "settings of text: ours 2, the source 1" in found(*lengths)["text"].words
    assert found(*lengths)["text"].ours.value is None


def test_a_mean_over_settings_needs_all_settings() -> None:
    own = labels("mad", split="test")
    rows = [row("macro_accuracy", 0.9, model="mamba", task="mad_recall", labels=own, cell="a")]
    finding = found(*rows)["mad_recall"]
    assert (finding.figure.text, finding.ours.value) == ("90.4", 0.9)
    assert "settings of mad_recall: ours 1, the source 11" in finding.words


def test_bits_are_compared_in_the_metric_of_the_source() -> None:
    own = {"protocol": "transformer_xl", "split": "test"}
    values = (1.061, 1.062, 1.063)
    columns = {"model": "transformer_xl", "task": "enwik8", "labels": own}
    rows = [row("bits_per_character", v, seed=s, **columns) for s, v in enumerate(values)]
    assert found(*rows)["enwik8"].words == "within the margin"
    other = row("accuracy", 0.5, **columns)
    assert found(other)["enwik8"].words == (
        "not comparable (no bits_per_character on the test split of enwik8)"
    )


def test_rows_of_two_protocols_are_refused_in_one_comparison() -> None:
    rows = seeds("softmax", "listops", (0.4,), protocol="nystrom")
    rows += seeds("softmax", "listops", (0.4,), protocol="skyformer")
    one, other = protocol_runs(prepare(frame(*rows)))
    mixed = replace(one, rows=prepare(frame(*rows)))
    with pytest.raises(MixedProtocols, match="one protocol and scale, but these have nystrom and"):
        list(findings_of(mixed, published_record()))
    table = published_table(prepare(frame(*rows)))
    assert isinstance(table, Table)
    assert {r.section for r in table.rows} == {one.title, other.title}


def test_reports_have_the_table_or_say_why_nothing_compares() -> None:
    rows = prepare(frame(*seeds("softmax", "listops", (0.4, 0.41), protocol="nystrom")))
    (part,) = section(rows)
    assert isinstance(part, TablePart)
    assert "arXiv:2102.03902, table 3, re-run by others" in to_markdown(part.table)
    (part,) = section(prepare(frame(*seeds("fnet", "listops", (0.4,), protocol="nystrom"))))
    assert isinstance(part, LeftOut)
    assert part.reason == "the published record has no figure of fnet under the protocol nystrom"
    assert not [*section(prepare(frame(*score("softmax", "listops", 0.4, marks={}))))]


def test_the_command_prints_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    file = ROOT / "reports/published/lra_modern-epyc-2026-11-27.jsonl"
    assert main(["report", "compare", "--rows", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "| s5, listops, accuracy (test) | 23.60 [20.09, 27.51] | 62.15" in printed
    assert "not comparable (scale tiny; deviations)" in printed
    assert main(["report", "compare", "--rows", "example"]) == 0
    assert "no row has a protocol" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["report", "compare", "--out", "x"])
    assert "omit --publish, --out, --title, --style" in capsys.readouterr().err
