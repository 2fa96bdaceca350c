from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from lra.reports.page.document import to_html
from lra.reports.rows import in_order, prepare
from lra.reports.style import Captions, TableStyle
from lra.reports.tables.latex_tables import to_latex
from lra.reports.tables.places import by_place
from lra.reports.tables.ranking import TIES, UNRANKED
from lra.reports.tables.scores import (
    BASELINES,
    EQUAL,
    LANGUAGE,
    ORACLES,
    accuracy_table,
    score_tables,
    splits,
)  # fmt: skip
from lra.reports.tables.table import Entry, Table, to_csv, to_markdown
from lra.sweep.model_names import with_backbones
from tests.reports.conftest import accuracy, failed, frame, row


def table(rows: pd.DataFrame, split: str = "test") -> Table:
    found = accuracy_table(prepare(rows), split)
    assert found is not None
    return found


def only(rows: pd.DataFrame) -> Entry:
    found = table(rows)
    assert len(found.rows) == len(found.columns) == 1
    return found.rows[0].entries[0]


@pytest.mark.parametrize("lengths", [(4, 12, 128, 1024), (1024, 12, 128, 4)])
def test_lengths_are_in_order_of_their_size(lengths: tuple[int, ...]) -> None:
    """Also where they are a part of the words of a source; other places are as they come."""
    of = lambda source, n: accuracy("linear", 0, 0.5, source=source, length=n)  # noqa: E731
    rows = prepare(frame(*[of(f"{kind}, length {n}", n) for kind in ("S5", "A5") for n in lengths]))
    texts = [f"{kind}, length {n}" for kind in ("S5", "A5") for n in sorted(lengths)]
    assert [place[2] for place, _ in by_place(rows)] == texts
    heads = [column.title.partition(", version")[0] for column in table(rows).columns]
    assert heads == [f"{kind}, length {n}" for kind in ("A5", "S5") for n in sorted(lengths)]
    assert sorted(["0.25", "0.5", "0.125"], key=lambda t: in_order([t]))[0] == "0.125"
    assert in_order(["s4", "mamba2", "v1.5"]) == ["s4", "mamba2", "v1.5"]  # names


def seeds(*values: float) -> list[dict[str, Any]]:
    return [accuracy("linear", seed, value) for seed, value in enumerate(values)]


TEST = {"split": "test"}
DIVERGED = failed("accuracy", "linear", "diverged", "loss was nan", seed=2, labels=TEST)
CRASHED = failed("accuracy", "linear", "crashed", "signal 9", labels=TEST)
ENTRIES = {
    "a mean over seeds has a t interval": (
        seeds(0.36, 0.38, 0.40), "38.0 [33.0, 43.0; 3 seeds]", 0.38, "seeds", ""),
    "one seed has Wilson's interval over examples": (
        seeds(0.375), "37.5 [35.4, 39.6; 2,000 examples]", 0.375, "examples", ""),
    "the interval of a share stays among shares": (
        seeds(0.8, 1.0), "90.0 [0.0, 100.0; 2 seeds]", 0.9, "seeds", ""),
    "equal seeds say nothing about another": (
        seeds(1.0, 1.0, 1.0), "100.0 [100.0, 100.0; 3 seeds]", 1.0, "seeds", EQUAL),
    "one seed of 1 is not equal seeds": (
        seeds(1.0), "100.0 [99.8, 100.0; 2,000 examples]", 1.0, "examples", ""),
    "without a number of examples there is no interval": (
        [row("accuracy", 0.375, labels=TEST)], "37.5", 0.375, None, "no interval"),
    "a failed seed is a footnote and no part of the mean": (
        [*seeds(0.3, 0.5), DIVERGED], "40.0 [0.0, 100.0; 2 of 3 seeds]", 0.4, "seeds",
        "diverged: loss was nan"),
    "a run that broke off behind its evaluation is no result": (
        [*seeds(0.3), CRASHED], "crashed", None, None, "crashed: signal 9"),
    "two results of one seed are not averaged": (
        [*seeds(0.3), accuracy("linear", 0, 0.9, cell="another")], "ambiguous", None, None,
        "one sweep at a time"),
    "an evaluation on the way does not count": (
        [accuracy("linear", 0, 0.1, step=10), *seeds(0.3)], "30.0 [28.0, 32.0; 2,000 examples]",
        0.3, "examples", ""),
}  # fmt: skip
"""Rows of one model and task; text, value, source of the interval and note of their entry."""


@pytest.mark.parametrize("case", ENTRIES)
def test_an_entry(case: str) -> None:
    rows, text, value, source, note = ENTRIES[case]
    entry = only(frame(*rows))
    assert (entry.text, entry.value) == (text, value if value is None else pytest.approx(value))
    assert (entry.interval and entry.interval.source) == source
    assert len(entry.notes) == bool(note)
    assert note in "".join(entry.notes)


def test_an_entry_has_facts_and_bounds_in_the_csv() -> None:
    found = table(frame(*seeds(0.8, 1.0)))
    assert found.rows[0].entries[0].facts == {"seeds": 2, "seeds_failed": 0, "examples": 2000}
    assert ",0.9,0.0,1.0,0.95," in to_csv(found)


def test_a_failure_holds_for_every_split(make: SimpleNamespace) -> None:
    rows = make.frame(
        make.accuracy("linear", 0, 0.3, labels={"split": "validation"}),
        make.failed("accuracy", "sdpa", "crashed", "signal 9", labels={"split": "test"}),
    )
    found = table(rows, "validation")
    assert [(r.title, r.entries[0].text) for r in found.rows] == [
        ("sdpa", "crashed"),
        ("linear", "30.0 [28.0, 32.0; 2,000 examples]"),
    ]


def test_absent_and_failed_places_are_marks(make: SimpleNamespace) -> None:
    rows = make.frame(
        make.accuracy("linear", 0, 0.3),
        make.accuracy("linear", 0, 0.6, task="text", source="imdb"),
        make.accuracy("sdpa", 0, 0.7, task="text", source="imdb"),
        make.failed("accuracy", "identity", "unsupported", "no causal form",
                    labels={"split": "test"}, task="text", source="imdb"),
    )  # fmt: skip
    found = table(rows)
    texts = {r.title: [e.text for e in r.entries] for r in found.rows}
    assert [c.group for c in found.columns] == ["listops", "text"]
    assert texts["sdpa"][0] == "–"
    assert texts["identity"] == ["–", "unsupported"]
    assert found.footnotes() == ["not run", "unsupported: no causal form"]
    assert all(e.value is None for r in found.rows for e in r.entries if e.status != "ok")


def test_sources_and_versions_never_share_a_column(make: SimpleNamespace) -> None:
    rows = make.frame(
        make.accuracy("linear", 0, 0.3),
        make.accuracy("linear", 1, 0.9, source="sample"),
        make.accuracy("linear", 2, 0.6, task_version=2),
        make.accuracy("linear", 3, 0.5, length=1024),
    )
    found = table(rows)
    assert [c.title for c in found.columns] == [
        "generated, version 1, length 512",
        "generated, version 1, length 1024",
        "sample, version 1, length 512",
        "generated, version 2, length 512",
    ]
    assert [e.value for e in found.rows[0].entries] == [0.3, 0.5, 0.9, 0.6]


def test_errors_have_a_table_in_which_less_is_better(make: SimpleNamespace) -> None:
    place = {"task": "adding", "labels": TEST}
    rows = prepare(
        make.frame(
            *(
                make.row(
                    "mse",
                    value + seed / 1e4,
                    model=model,
                    seed=seed,
                    cell=f"{model}{seed}",
                    **place,
                )
                for model, value in (("linear", 0.16), ("softmax", 0.01))
                for seed in range(3)
            ),
            make.row("mse", 0.0833, model="baseline/second_marker", runner="certify", **place),
        )
    )
    assert splits(rows) == ["test"]
    ((metric, found),) = score_tables(rows)
    assert (metric, found.title) == ("mse", "Mean squared error on the test split")
    entries = {line.title: line.entries[0].text for line in found.rows}
    assert entries["softmax"].startswith("0.0101")
    assert found.rows[-1].section == BASELINES


def test_several_scores_of_one_cell_are_no_score_of_its_model(make: SimpleNamespace) -> None:
    """A runner of the user's own that corrupts more and more, say."""
    whole = make.accuracy("linear", 0, 0.9)
    parts = [
        make.accuracy("linear", 0, 0.9 - share, runner="corrupt", labels={"share": str(share)})
        for share in (0.1, 0.5)
    ]
    assert only(make.frame(whole, *parts)).text.startswith("90.0")
    assert accuracy_table(prepare(make.frame(*parts))) is None


def test_variants_have_rows_of_their_own(make: SimpleNamespace) -> None:
    rows = make.frame(
        make.accuracy("linear", 0, 0.3),
        make.accuracy("linear", 0, 0.4, cell="b", labels={"variant": "features=64"}),
    )
    assert [r.title for r in table(rows).rows] == ["linear", "linear (features=64)"]


def test_baselines_stand_below_with_their_sentences(make: SimpleNamespace) -> None:
    rows = make.frame(
        make.baseline("root_operator", 0.37, "Knowing only the outermost operator."),
        make.accuracy("softmax", 0, 0.38),
    )
    found = table(rows)
    assert [(r.title, r.section) for r in found.rows] == [
        ("softmax", ""),
        ("root operator", BASELINES),
    ]
    assert found.footnotes() == ["Knowing only the outermost operator."]


def test_positions_that_differ_are_named_below() -> None:
    models = ("linear", "sdpa", "fnet", "gla")
    rows = frame(*(accuracy(model, 0, 0.5, cell=model) for model in models))
    cells = {m: {"described": {"backbone": {"positions": "learned"}}} for m in models}
    assert "Positions" not in table(with_backbones(rows, cells)).caption
    cells["gla"] = {"identity": {"backbone": {"positions": "rotary"}}}
    found = table(with_backbones(rows, cells)).caption
    assert (
        "Position encodings differ: on listops, gla used rotary (most models used learned)."
        in found
    )
    text = frame(*(accuracy(model, 0, 0.5, cell=f"t{model}", task="text") for model in models))
    cells |= {f"t{m}": {"identity": {"backbone": {"positions": "rotary"}}} for m in models}
    found = table(with_backbones(pd.concat([rows, text]), cells)).caption
    assert (
        "Position encodings differ: on listops, gla used rotary (most models used learned)."
        in found
    )
    assert "Positions" not in table(rows).caption  # of a file without configurations


def test_splits_that_have_results(make: SimpleNamespace) -> None:
    rows = make.frame(
        make.accuracy("linear", 0, 0.3, labels={"split": "validation"}),
        make.accuracy("linear", 0, 0.3),
        make.accuracy("linear", 0, 0.3, labels={"split": "train"}),
    )
    assert splits(prepare(rows)) == ["test", "validation"]
    assert accuracy_table(prepare(make.frame(make.row("loss", 1.0)))) is None


def scores_of(make: SimpleNamespace, seeds: int) -> pd.DataFrame:
    """A good model, one like it, and one that is far worse at every seed."""
    spread = [0.01 * seed for seed in range(seeds)]
    return make.frame(
        make.baseline("majority", 0.2, "It is no model, and has no rank."),
        make.baseline("oracle_depth_3", 0.99, "It follows the rule of the task."),
        *(make.accuracy("sdpa", s, 0.90 + x) for s, x in enumerate(spread)),
        *(make.accuracy("linear", s, 0.89 + 1.1 * x) for s, x in enumerate(reversed(spread))),
        *(make.accuracy("identity", s, 0.30 + 1.01 * x) for s, x in enumerate(spread)),
    )


def test_the_best_is_bold_the_second_underlined_and_a_star_differs(make: SimpleNamespace) -> None:
    found = table(scores_of(make, seeds=4))
    ranks = {row.title: (row.entries[0].rank, row.entries[0].text) for row in found.rows}
    assert ranks["sdpa"] == (1, "91.5 [89.4, 93.6; 4 seeds]")
    assert ranks["linear"][0] == 1  # it does not differ from the best
    assert "*" not in ranks["linear"][1]
    assert ranks["identity"] == (0, "31.5* [29.4, 33.6; 4 seeds]")
    assert ranks["majority"][0] == 0
    assert f"and the second is underlined. {TIES}*: the number differs significantly from" in (
        found.caption
    )
    assert "| sdpa | **91.5** [89.4, 93.6; 4 seeds] |" in to_markdown(found)
    assert "| identity | 31.5\\* [29.4, 33.6; 4 seeds] |" in to_markdown(found)
    assert r"\textbf{91.5} {}[89.4, 93.6; 4 seeds]" in to_latex(found)
    assert r"\textbf{90.6} {}[" in to_latex(found)
    assert "31.5*" in to_latex(found)
    plain = to_latex(found, TableStyle(bold_best=False))
    assert "bold" not in plain
    one = table(scores_of(make, seeds=1))
    assert one.brief == (
        "Numbers are in percent. The best number of a column is bold, and the second is underlined."
    )
    short = TableStyle(bold_best=False, captions=Captions.short)
    assert "bold" not in to_latex(one, short)
    assert "*: the number differs" in plain
    assert '<b>91.5</b><span class="rest"> [89.4' in to_html(found)
    assert '<b>90.6</b><span class="rest"> [' in to_html(found)
    assert "<ins>90.6</ins>" not in to_markdown(found)
    assert "<ins>" in to_markdown(one)  # one seed: nothing is tested, and nothing is tied
    assert "31.5* [29.4, 33.6; 4 seeds]" in to_csv(found)


def test_one_seed_is_ranked_and_not_tested(make: SimpleNamespace) -> None:
    found = table(scores_of(make, seeds=1))
    assert [row.entries[0].rank for row in found.rows] == [1, 0, 2, 0, 0]
    assert [row.section for row in found.rows[3:]] == [BASELINES, ORACLES]
    assert not any("*" in row.entries[0].text for row in found.rows)
    assert "Differences are not tested, because no two models share two seeds" in found.caption
    assert "bold" not in table(make.frame(make.accuracy("linear", 0, 0.3))).caption


def test_the_size_of_a_vocabulary_does_not_read_like_a_length(make: SimpleNamespace) -> None:
    rows = make.frame(make.accuracy("linear", 0, 0.3, source="generated, 4 pairs of 8192 tokens"))
    assert "generated, 4 pairs, vocabulary 8192" in table(rows).columns[0].title


def test_nobody_is_ranked_below_chance_or_the_best_baseline(make: SimpleNamespace) -> None:
    at_chance = [make.accuracy(m, s, 0.10 + x / 1000) for m, x in (("sdpa", 1), ("linear", 2))
                 for s in (0, 1)]  # fmt: skip
    assert "bold" in table(make.frame(*at_chance)).caption  # 10.1 and 10.2, each of two alike
    below = [make.accuracy("sdpa", 0, 0.30), make.accuracy("linear", 0, 0.20)]
    for rows in (
        [make.accuracy("sdpa", 0, 0.101), make.accuracy("linear", 0, 0.099)],
        [*below, make.baseline("root_operator", 0.37, "x")],
    ):
        found = table(make.frame(*rows))
        assert not any(row.entries[0].rank for row in found.rows)
        for words in (found.caption, found.brief):
            assert UNRANKED.strip() in words
            assert "bold" not in words
    found = table(make.frame(*below, make.baseline("oracle_depth_3", 0.99, "x")))
    assert [row.entries[0].rank for row in found.rows] == [1, 2, 0]
    alone = table(make.frame(make.baseline("root_operator", 0.37, "x")))
    assert [row.title for row in alone.rows] == ["root operator"]


def test_baselines_of_another_split_count_where_there_is_none(make: SimpleNamespace) -> None:
    split = {"labels": {"split": "validation"}}
    models = [make.accuracy("sdpa", 0, 0.30, **split), make.accuracy("linear", 0, 0.20, **split)]
    words = "The ranks on listops use baselines from another split"
    for value, ranks in ((0.37, [0, 0]), (0.15, [1, 2])):
        test = make.baseline("last_value", value, "x")
        found = accuracy_table(prepare(make.frame(*models, test)), "validation")
        assert [row.entries[0].rank for row in found.rows] == ranks
        assert words in found.caption
        assert "runner=certify" not in found.caption
        assert (UNRANKED.strip() in found.caption) is (ranks == [0, 0])
    alone = accuracy_table(prepare(make.frame(models[0], test)), "validation")
    assert words not in alone.caption  # one model has no rank
    own = make.baseline("last_value", 0.15, "x") | split
    beside = make.baseline("majority", 0.37, "x")
    oracle = make.baseline("oracle_depth_3", 0.99, "x")
    for others in ([own, beside], [oracle]):
        found = accuracy_table(prepare(make.frame(*models, *others)), "validation")
        assert [row.entries[0].rank for row in found.rows][:2] == [1, 2]
        assert words not in found.caption


def test_a_baseline_of_several_settings_counts_with_its_best(make: SimpleNamespace) -> None:
    """Models of several settings are told apart by name; what they have to beat is one number."""
    rows = [
        make.accuracy("linear", 0, 0.5),
        make.accuracy("sdpa", 0, 0.6),
        make.baseline("majority", 0.2, "x", cell="one"),
        make.baseline("majority", 0.7, "x", cell="other"),
        make.baseline("majority", 0.7, "x", cell="the same again"),
    ]
    found = table(make.frame(*rows))
    (floor,) = [row.entries[0] for row in found.rows if row.title == "majority"]
    assert floor.value == 0.7
    assert floor.cells == ("one", "other", "the same again")
    assert "this is the best of 2 scores, from different settings of the data" in floor.notes
    assert not any(entry.rank for row in found.rows for entry in row.entries)
    alike = table(make.frame(*rows[:2], *rows[3:]))
    assert "settings" not in str(alike.rows)


def test_baselines_that_failed_are_not_asked_for_again(make: SimpleNamespace) -> None:
    failed = make.row(
        "accuracy", None, model="baseline", runner="certify", mode="certify", task="listops",
        status="timeout", reason="took longer than 600 s", labels={"split": "test"},
    )  # fmt: skip
    found = table(make.frame(make.accuracy("linear", 0, 0.5), failed))
    assert "No baselines" not in found.caption
    (lost,) = [row.entries[0] for row in found.rows if row.title == "baseline"]
    assert lost.notes == ("timeout: took longer than 600 s",)


def test_without_baselines_the_caption_says_so(make: SimpleNamespace) -> None:
    rows = [make.accuracy("linear", 0, 0.3), make.accuracy("linear", 0, 0.3, task="mqar")]
    words = "The rows have no baselines of listops, mqar; add them with runner=certify. Chance is "
    assert f"{words}listops 10.0." in table(make.frame(*rows)).caption
    rows.append(make.baseline("majority", 0.2, "x"))
    assert "The rows have no baselines of mqar" in table(make.frame(*rows)).caption


def test_where_lower_is_better_the_lowest_is_best(make: SimpleNamespace) -> None:
    values = {"sdpa": 1.2, "linear": 1.3, "local": 1.3001, "identity": 2.0}
    rows = make.frame(
        *(make.row("bits_per_character", v, model=name, labels={"split": "test"})
          for name, v in values.items())
    )  # fmt: skip
    (score,) = (each for each in LANGUAGE if each.metric == "bits_per_character")
    found = accuracy_table(prepare(rows), "test", score)
    ranks = {row.title: row.entries[0].rank for row in found.rows}
    assert ranks == {"sdpa": 1, "linear": 2, "local": 2, "identity": 0}
