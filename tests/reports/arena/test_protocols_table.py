"""Several protocols of the Long Range Arena in one table, beside what their sources print."""

from pathlib import Path
from typing import Any

import pytest

from lra.reports.arena.protocols_table import protocols_tables
from lra.reports.arena.runs import protocol_runs
from lra.reports.arena.scores import arena_scores
from lra.reports.report import write_report
from lra.reports.rows import prepare
from lra.reports.tables.scores import CAVEAT
from lra.reports.tables.table import Table, to_markdown
from tests.reports.arena.arena_rows import labels, score, whole
from tests.reports.conftest import failed, frame

OF_S5, OF_LRU = labels("s5"), labels("lru")


def tables(*rows: dict[str, Any]) -> dict[str, Table]:
    prepared = prepare(frame(*rows))
    found = [arena_scores(runs, prepared) for runs in protocol_runs(prepared)]
    return dict(protocols_tables([scores for scores in found if scores is not None]))


def modern(**marks: str) -> list[dict[str, Any]]:
    """S5 at six tasks, one of them with three seeds; LRU at two, one of which failed."""
    rows = whole("s5", marks=OF_S5 | marks)
    for seed, value in ((1, 0.38), (2, 0.40)):
        rows += score("s5", "listops", value, seed=seed, marks=OF_S5 | marks)
    rows += score("lru", "image", 0.85, marks=OF_LRU | marks)
    rows += score("lru", "pathx", 0.501, marks=OF_LRU | marks)
    lost = failed("accuracy", "lru", "out_of_memory", "80 GiB", labels=OF_LRU | marks,
                  task="text", source="imdb", length=1000)  # fmt: skip
    return [*rows, lost]


WHOLE = """\
| model (protocol) | ListOps | Text | Retrieval | Image | Pathfinder | Path-X | mean of 6 |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| lru (lru) | – (60.20) | OOM (89.40)¹ | – (89.90) | 85.0 | – (95.10) | FAIL (94.20)² | – |
| s5 (s5) | 38.0 [33.0, 43.0] (62.15; −24.1) | 64.0 (89.31; −25.3) | 57.0 (91.40; −34.4) \
| 42.0 (88.00; −46.0) | 71.0 (95.33; −24.3) | 80.0 (98.58; −18.6) | 58.7 (87.46; −28.8) |
"""


def test_each_protocol_has_its_line_beside_its_published_figures() -> None:
    (table,) = tables(*modern()).values()
    text = to_markdown(table)
    assert text[text.index("| model") : text.index("\n¹")].strip() == WHOLE.strip()
    for words in ("arXiv:2208.04933, table 1", "arXiv:2303.06349, table 3",
                  "the protocol of its paper", "FAIL: the accuracy is not",
                  "Image: cifar10", CAVEAT):  # fmt: skip
        assert words in table.caption
    assert "arXiv:2111.00396" not in table.caption


def test_numbers_for_programs_have_the_published_one_and_the_difference() -> None:
    (table,) = tables(*modern()).values()
    (of_s5,) = [row for row in table.rows if row.title == "s5 (s5)"]
    facts = of_s5.entries[3].facts
    assert (facts["published"], facts["difference"]) == pytest.approx((0.88, 0.42 - 0.88))


def test_small_runs_are_not_subtracted_and_scales_share_no_table() -> None:
    found = tables(*modern(), *modern(scale="tiny"))
    assert set(found) == {"", "tiny"}
    (of_s5,) = [row for row in found["tiny"].rows if row.title == "s5 (s5)"]
    assert of_s5.entries[3].text == "42.0 (88.00)"
    assert "do not compare their scores with published ones" in found["tiny"].caption


def test_one_protocol_has_its_own_table_alone() -> None:
    assert not tables(*whole("s5", marks=OF_S5))


def test_without_path_x_the_mean_is_that_of_five(tmp_path: Path) -> None:
    five = ("listops", "text", "retrieval", "image", "pathfinder")
    nystrom = whole("softmax", tasks=five, marks=labels("nystrom"))
    rows = [*nystrom, *whole("softmax", tasks=five, marks=labels("skyformer"))]
    (table,) = tables(*rows).values()
    assert [column.title for column in table.columns][-1] == "mean of 5"
    assert table.rows[0].entries[-1].text == "54.0 (58.77; −4.8)"
    write_report(frame(*rows), tmp_path, title="both")
    assert (tmp_path / "lra-protocols.md").read_text(encoding="utf-8") == to_markdown(table)
