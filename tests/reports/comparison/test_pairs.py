"""Which results form pairs, and what is concluded of them, from planted rows."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lra.reports.comparison.numbers import Numbers, numbers_of
from lra.reports.comparison.pairs import Comparison, Line, NoPair, Side, compare
from lra.reports.comparison.wording import comparison_table, verdict
from lra.reports.rows import prepare
from lra.reports.statistics.intervals import median_interval
from lra.reports.statistics.paired_tests import mean_difference, share_difference_interval
from lra.reports.tables.scores import score_tables
from lra.reports.tables.table import to_markdown

Options = dict[str, dict[str, str]]


def numbers(rows: pd.DataFrame, options: Options | None = None, **more: Any) -> Numbers:
    """Return the numbers of rows whose cells have these options besides their model."""
    frame = prepare(rows)
    settings = {
        str(cell): {"model": str(model), **(options or {}).get(str(cell), {})}
        for cell, model in zip(frame["cell"], frame["model"], strict=True)
    }
    given = {"metric": "accuracy", "split": "test", "hits": lambda cell, split: None} | more
    return numbers_of(frame, settings, **given)


def side(found: Numbers, **options: str) -> Side:
    """Return the side of the cells that have some options."""
    cells = {c for c, own in found.settings.items() if options.items() <= own.items()}
    title = " ".join(options.values())
    return Side(title=title, cells=frozenset(cells), about=("model", *options))


def only(found: Numbers, first: str = "linear", second: str = "sdpa") -> Comparison:
    (result,) = compare(found, [side(found, model=first), side(found, model=second)])
    return result


def one_line(found: Numbers) -> Line:
    (line,) = only(found).lines
    return line


def scores(make: SimpleNamespace, model: str, values: list[float], **columns: Any) -> list[Any]:
    return [make.accuracy(model, seed, value, **columns) for seed, value in enumerate(values)]


A, B = [0.60, 0.64, 0.61, 0.66], [0.55, 0.60, 0.59, 0.59]


def test_seeds_are_paired_whatever_the_order_of_rows(make: SimpleNamespace) -> None:
    rows = [*scores(make, "linear", A), *reversed(scores(make, "sdpa", B))]
    found = numbers(make.frame(*rows))
    line = one_line(found)
    assert line.difference.p == pytest.approx(stats.ttest_rel(A, B).pvalue)
    assert (line.first, line.second) == (pytest.approx(np.mean(A)), pytest.approx(np.mean(B)))
    assert (line.better, line.equal, line.worse, line.over) == (4, 0, 0, "4 seeds")
    assert "linear is better." in verdict(found, only(found))
    other = only(found, "sdpa", "linear")
    assert "p = 0.023. The t test assumes" in verdict(found, other)
    assert (other.lines[0].better, other.lines[0].worse) == (0, 4)


def test_lower_is_better_where_the_metric_says_so(make: SimpleNamespace) -> None:
    rows = [
        make.row("bits_per_character", value, model=model, seed=seed, labels={"split": "test"})
        for model, values in (("linear", A), ("sdpa", B))
        for seed, value in enumerate(values)
    ]
    found = numbers(make.frame(*rows), metric="bits_per_character")
    assert "sdpa is better." in verdict(found, only(found))
    assert one_line(found).worse == 4


def test_no_difference_says_what_would_have_been_found(make: SimpleNamespace) -> None:
    rows = [*scores(make, "linear", [0.5, 0.52]), *scores(make, "sdpa", [0.51, 0.512])]
    text = verdict(found := numbers(make.frame(*rows)), only(found))
    assert "a true difference of 35.2 would be shown in 80 % of repetitions." in text
    assert one_line(found).better == one_line(found).worse == 1
    rows = [*scores(make, "linear", [0.5, 0.6]), *scores(make, "sdpa", [0.6, 0.52])]
    text = verdict(found := numbers(make.frame(*rows)), only(found))
    assert "and so few seeds with this spread cannot show a difference." in text
    table = comparison_table(found, [only(found)])
    ends = table.rows[0].entries[2].interval
    assert (ends.low, ends.high) == (-1, 1)
    assert "95 % interval, cut off at ±100" in table.caption
    assert "| none |" in to_markdown(table)


def test_a_difference_over_few_seeds_says_what_it_rests_on(make: SimpleNamespace) -> None:
    for count, wanted in ((2, True), (3, True), (6, False)):
        gains = [0.2 + 0.001 * seed for seed in range(count)]
        rows = scores(make, "linear", [0.5 + g for g in gains])
        found = numbers(make.frame(*rows, *scores(make, "sdpa", [0.5] * count)))
        text = verdict(found, only(found))
        assert text.endswith("are normally distributed, linear is better." if wanted else
                             ": linear is better.")  # fmt: skip
        assert ("at least 6 seeds are needed to show a difference" in text) == wanted
        assert ("14 % of comparisons" in text) == (count == 2)
        assert one_line(found).caution in to_markdown(comparison_table(found, [only(found)]))


def test_other_seeds_are_named(make: SimpleNamespace) -> None:
    rows = [make.accuracy("linear", s, 0.5) for s in (0, 1)]
    rows += [make.accuracy("sdpa", s, 0.5) for s in (2, 3)]
    with pytest.raises(NoPair, match="linear has seeds 0 and 1; sdpa has seeds 2 and 3"):
        only(numbers(make.frame(*rows)))
    rows.append(make.accuracy("sdpa", 1, 0.4))
    line = one_line(numbers(make.frame(*rows)))
    assert line.over == "2,000 examples"
    one_pair = "only 1 pair of runs can be compared"
    assert f"{one_pair}: linear has seeds 0 and 1; sdpa has seeds 1 and 2 and 3" in line.notes


def test_tasks_are_never_mixed_and_each_has_its_line(make: SimpleNamespace) -> None:
    rows = [
        row
        for task, add in (("listops", 0.0), ("text", 0.2))
        for model, values in (("linear", A), ("sdpa", B))
        for row in scores(make, model, [v + add for v in values], task=task)
    ]
    found = numbers(make.frame(*rows))
    result = only(found)
    assert [line.task for line in result.lines] == ["listops", "text", "all 2 tasks"]
    raw = [line.difference.p for line in result.lines if line.difference]
    assert raw[2] == pytest.approx(raw[0])  # equal gains: a task more is no evidence more
    # the mean over tasks is another question than its tasks, and asked once
    assert [line.p_holm for line in result.lines] == pytest.approx([2 * raw[0]] * 2 + [raw[0]])
    assert [line.tests for line in result.lines] == [2, 2, 1]
    levels = [x.difference.interval.level for x in result.lines if x.difference.interval]
    assert sorted(levels) == pytest.approx([0.95, 0.95, 0.975])  # the steps of Holm's method
    text = to_markdown(comparison_table(found, [result]))
    assert "| Holm, 2 tests, interval of 97.5 % |" in text
    versions = [*rows, *scores(make, "linear", A, task_version=2)]
    versions += scores(make, "sdpa", B, task_version=2)
    lines = only(numbers(make.frame(*versions))).lines
    assert [line.task for line in lines][:2] == ["listops, task_version 1",
                                                 "listops, task_version 2"]  # fmt: skip
    assert len(lines) == 3  # without a mean over versions


def test_interval_p_and_what_is_detectable_have_one_level(make: SimpleNamespace) -> None:
    """Of every line, whatever the number of tasks and models: 0 is outside exactly where p < 0.05.

    Other models, in the store or in front, move nothing of a pair that is asked for alone.
    """
    rng, seen = np.random.default_rng(0), set()
    for _ in range(12):
        tasks = ("listops", "text", "image", "retrieval")[: rng.integers(1, 5)]
        names = ("sdpa", "linear", "local", "performer")[: rng.integers(2, 5)]
        rows = [
            row
            for task in tasks
            for model in names
            for row in scores(make, model, [*rng.normal(0.5 + rng.normal(0, 0.03), 0.02, 4)],
                              task=task)
        ]  # fmt: skip
        found = numbers(make.frame(*rows))
        sides = [side(found, model=name) for name in names]
        for result in compare(found, sides, best=bool(rng.integers(2))):
            for line in result.lines:
                assert line.difference.interval is not None
                ends = line.difference.interval
                assert (line.p_holm < 0.05) == (not ends.low <= 0 <= ends.high)
                assert ends.level >= 1 - 0.05 / line.tests - 1e-12 or line.tests > 1
                wanted = mean_difference(
                    *zip(*line.by_unit.values(), strict=True), level=ends.level
                )
                assert line.difference.detectable == wanted.detectable
                assert line.difference.detectable > max(abs(ends.high - line.difference.mean), 0)
                seen.add((line.tests > 1, line.p_holm < 0.05))
            text = verdict(found, result)
            assert ("is better" in text) == (result.conclusion.p_holm < 0.05)
        alone = numbers(make.frame(*(row for row in rows if row["model"] in names[:2])))
        assert [*only(found, *names[:2]).lines] == [*only(alone, *names[:2]).lines]
        assert only(found, *names[:2]).lines[-1].tests == 1
    assert len(seen) == 4


def test_one_seed_at_several_tasks_flips_their_signs(make: SimpleNamespace) -> None:
    tasks = ["listops", "text", "image", "retrieval", "pathx"]
    rows = [
        make.accuracy(model, 0, value + 0.01 * number, task=task)
        for number, task in enumerate(tasks)
        for model, value in (("linear", 0.6), ("sdpa", 0.5))
    ]
    found = numbers(make.frame(*rows))
    last = only(found).lines[-1]
    assert (last.difference.p, last.over, last.better) == (2 / 32, "5 tasks", 5)
    assert "nothing is known about the variation between seeds" in last.notes[-1]
    assert [line.difference.p for line in only(found).lines[:-1] if line.difference] == [None] * 5


def test_one_seed_has_an_interval_over_examples(make: SimpleNamespace) -> None:
    rows = [make.accuracy("linear", 0, 0.6), make.accuracy("sdpa", 0, 0.5)]
    line = one_line(numbers(make.frame(*rows)))
    assert line.difference.interval == share_difference_interval((0.6, 2000), (0.5, 2000))
    assert (line.over, line.difference.p) == ("2,000 examples", None)
    assert line.notes[-1].startswith("there is only one seed, so nothing is known about")
    outcomes = {
        row["cell"]: (np.arange(10), np.array([1] * right + [0] * (10 - right)))
        for row, right in zip(rows, (6, 5), strict=True)
    }
    paired = one_line(numbers(make.frame(*rows), hits=lambda cell, split: outcomes[cell]))
    gains = outcomes[rows[0]["cell"]][1] - outcomes[rows[1]["cell"]][1]
    wanted = stats.ttest_1samp(gains, 0).confidence_interval(0.95)
    assert paired.difference.interval.low == pytest.approx(wanted.low)
    assert paired.over == "10 examples"
    others = {cell: (index + at, hit) for at, (cell, (index, hit)) in enumerate(outcomes.items())}
    unlike = one_line(numbers(make.frame(*rows), hits=lambda cell, split: others[cell]))
    assert unlike.over == "2,000 examples"  # other examples are no pairs


def test_what_varies_within_a_side_pairs_and_what_differs_between_is_named(
    make: SimpleNamespace,
) -> None:
    rows, options = [], {}
    for model in ("linear", "sdpa"):
        for rate in ("0.001", "0.003"):
            for seed in (0, 1):
                cell = f"{model}{rate}{seed}"
                value = 0.5 + (model == "linear") * (0.1 + seed / 50) + (rate == "0.003") * 0.2
                rows.append(make.accuracy(model, seed, value, cell=cell))
                options[cell] = {"optim.rate": rate, "depth": "2" if model == "linear" else "4"}
    found = numbers(make.frame(*rows), options)
    line = one_line(found)
    assert (line.better, line.over) == (4, "2 seeds")
    assert line.difference.mean == pytest.approx(0.11)
    assert "the two sides differ in further settings: depth (2, 4)" in line.notes
    assert "each number is a mean over 2 settings of optim.rate" in line.notes
    rates = [side(found, **{"optim.rate": rate}) for rate in ("0.003", "0.001")]
    (by_rate,) = compare(found, rates)
    assert by_rate.lines[0].difference.mean == pytest.approx(0.2)
    assert not any("further" in note for note in by_rate.lines[0].notes)


def test_failures_and_results_that_nothing_tells_apart_are_left_out(make: SimpleNamespace) -> None:
    rows = [*scores(make, "linear", A), *scores(make, "sdpa", B)]
    rows.append(make.failed("accuracy", "sdpa", "diverged", "nan", seed=3, labels={}))
    line = one_line(numbers(make.frame(*rows)))
    assert line.over == "3 seeds"
    assert "the comparison excludes 1 failed run of sdpa (diverged)" in line.notes
    rows.append(make.accuracy("linear", 0, 0.9, cell="twice"))
    line = one_line(numbers(make.frame(*rows)))
    assert line.over == "2 seeds"
    assert any("linear has several runs with the same seed" in note for note in line.notes)


def test_the_best_baseline_stands_beside_and_is_to_be_beaten(make: SimpleNamespace) -> None:
    rows = [*scores(make, "linear", A), *scores(make, "sdpa", B)]
    assert one_line(numbers(make.frame(*rows))).baseline == ("chance", 0.1)
    rows += [make.baseline("majority", 0.3, "x"), make.baseline("last_token", 0.7, "y")]
    rows += [make.baseline("other_data", 0.8, "z", source="sample")]
    rows += [make.baseline("oracle_depth_3", 1.0, "a bound, and no rival")]
    found = numbers(make.frame(*rows))
    assert one_line(found).baseline == ("last token", 0.7)
    assert verdict(found, only(found)).endswith(
        "is shown to be better than the baseline last token, which has 70.0."
    )


@pytest.mark.parametrize(("best", "shown"), [(0.58, True), (0.61, False), (0.63, False)])
def test_a_baseline_is_beaten_here_where_a_table_ranks(
    best: float, shown: bool, make: SimpleNamespace
) -> None:
    """One criterion: beyond the interval of the best mean, here 62.8 [58.4, 67.1]."""
    rows = [*scores(make, "linear", A), *scores(make, "sdpa", B)]
    frame = make.frame(*rows, make.baseline("majority", best, "x"))
    found = numbers(frame)
    (table,) = (table for _, table in score_tables(prepare(frame)))
    assert any(row.entries[0].rank for row in table.rows) == shown
    assert one_line(found).above_baseline == shown
    assert ("Neither of the two is shown to be better" in verdict(found, only(found))) != shown
    one = make.frame(rows[0], rows[4], make.baseline("majority", best, "x"))  # of 2,000 examples
    (table,) = (table for _, table in score_tables(prepare(one)))
    assert any(row.entries[0].rank for row in table.rows) == one_line(numbers(one)).above_baseline


def test_several_are_compared_with_the_first_or_the_best(make: SimpleNamespace) -> None:
    rows = [*scores(make, "linear", A), *scores(make, "sdpa", B), *scores(make, "local", A[::-1])]
    found = numbers(make.frame(*rows))
    sides = [side(found, model=name) for name in ("sdpa", "linear", "local")]
    by_first = compare(found, sides)
    assert [(c.first, c.second) for c in by_first] == [("sdpa", "linear"), ("sdpa", "local")]
    by_best = compare(found, sides, best=True)
    assert {c.first for c in by_best} == {"linear"}
    raw = {c.second: c.lines[0].difference.p for c in by_best if c.lines[0].difference}
    corrected = {c.second: c.lines[0].p_holm for c in by_best}
    assert corrected["sdpa"] == pytest.approx(3 * raw["sdpa"])  # of all three pairs
    assert len(comparison_table(found, by_first).rows) == 2


def test_differences_without_spread_have_no_p(make: SimpleNamespace) -> None:
    rows = [*scores(make, "linear", [0.3, 0.4, 0.7]), *scores(make, "sdpa", [0.2, 0.3, 0.6])]
    found = numbers(make.frame(*rows))
    line = one_line(found)
    assert (line.p_holm, line.better) == (None, 3)
    assert "; the difference is equal for all pairs" in verdict(found, only(found))


def test_rows_of_one_cell_have_lines_of_their_own(make: SimpleNamespace) -> None:
    rows = [
        make.row("time_ratio", value, model=model, cell=model, length=length, runner="scaling",
                 labels={"reference": reference, "kernel": model})
        for model, value in (("linear", 0.5), ("local", 0.6))
        for length in (512, 1024)
        for reference in ("sdpa", "softmax")
    ]  # fmt: skip
    found = numbers(make.frame(*rows), metric="time_ratio")
    result = only(found, "linear", "local")
    assert [line.task for line in result.lines][:2] == [
        "listops, length 512, reference sdpa",
        "listops, length 512, reference softmax",
    ]
    assert verdict(found, result) == (
        "No difference can be tested; the notes of the table say why. linear has a better mean "
        "than local in 4 of 4 lines of the table."
    )
    rows[0] |= {"value": None, "status": "out_of_memory", "reason": "8 GiB"}
    lines = only(numbers(make.frame(*rows), metric="time_ratio"), "linear", "local").lines
    assert [line.difference is not None for line in lines] == [False, True, True, True]
    assert lines[0].notes[-1] == "the comparison excludes 1 failed run of linear (OOM)"
    assert not any("failed" in note for note in lines[1].notes)


def test_a_ratio_of_the_processors_clock_is_marked(make: SimpleNamespace) -> None:
    rows = []
    for row in make.timing("linear", 512, 0.01, references={"sdpa": 0.02}):
        if row["metric"] == "time_ratio":
            row["labels"] = {**row["labels"], "disturbed": "load"}
            row["samples"] = [row["value"] * (1 + 2 * (i % 2)) for i in range(11)]
            clock = {"samples": [0.6] * 11, "value": 0.6, "labels": {"reference": "sdpa"}}
            rows.append(row | {"metric": "processor_time_ratio"} | clock)
        rows.append(row)
    rows += make.timing("sdpa", 512, 0.02)
    found = numbers(make.frame(*rows), metric="time")
    result = only(found)
    (line,) = result.lines
    assert (line.speed.clock, line.speed.factor) == ("processor", pytest.approx(1 / 0.6))
    assert line.speed.interval.low < 1 / 1.5
    assert "1.67 ◇ [" in verdict(found, result)


def test_models_timed_beside_the_same_passes_have_a_ratio(make: SimpleNamespace) -> None:
    """A slow pass of the machine is in the times of both."""
    drift, rows = np.random.default_rng(0).uniform(1, 3, 11), []
    for model, seconds in (("linear", 0.01), ("local", 0.03)):
        made = make.timing(model, 512, seconds, references={"sdpa": 0.02})
        for row in made:
            if row["metric"] in ("time", "reference_time"):
                row["samples"] = [*(row["value"] * drift)]
        rows += made
    (line,) = only(numbers(make.frame(*rows), metric="time"), "linear", "local").lines
    assert line.speed.factor == pytest.approx(3)
    assert line.speed.interval.high / line.speed.interval.low == pytest.approx(1)
    for row in rows:
        if row["model"] == "local" and row["metric"] == "reference_time":
            row["samples"] = row["samples"][::-1]
    (line,) = only(numbers(make.frame(*rows), metric="time"), "linear", "local").lines
    assert line.speed is None


def test_counts_need_no_test(make: SimpleNamespace) -> None:
    rows = [
        row
        for length, factor in ((512, 2), (1024, 3))
        for model, peak in (("linear", 1e6), ("sdpa", factor * 1e6))
        for row in make.timing(model, length, 0.1, peak=peak)
    ]
    found = numbers(make.frame(*rows), metric="peak_tensor_bytes")
    result = only(found, "sdpa", "linear")
    assert [(line.over, line.notes) for line in result.lines] == [("counted", ())] * 2
    repeats = (
        "times as many as linear. The numbers are counted, so every repetition gives the same ones."
    )
    assert verdict(found, result) == (
        f"linear is better than sdpa in 2 of 2 lines of the table. sdpa has 2.00 to 3.00 {repeats}"
    )
    one = numbers(make.frame(*rows[:10]), metric="peak_tensor_bytes")
    assert verdict(one, only(one, "sdpa", "linear")) == (
        f"sdpa − linear at listops: +1,000,000. sdpa has 2.00 {repeats}"
    )


@pytest.mark.parametrize("metric", ["time", "tokens_per_second"])
def test_times_are_compared_by_ratios_that_were_interleaved(
    metric: str, make: SimpleNamespace
) -> None:
    """The slow drift of a machine is in both times, and in no ratio."""
    rng, rows = np.random.default_rng(0), []
    for length, factor in ((512, 2.0), (1024, 9.0), (2048, 1.0)):
        for model, seconds in (("linear", 0.01), ("sdpa", 0.01 * factor), ("local", 0.02)):
            made = make.timing(model, length, seconds, references={"sdpa": 0.01 * factor})
            paired = ("time_ratio", "reference_time")
            rows += [row for row in made if model == "linear" or row["metric"] not in paired]
            rows.append(make.row(
                "tokens_per_second", 1 / seconds, model=model, length=length, runner="scaling",
                mode="step", cell=made[0]["cell"],
            ))  # fmt: skip
    for row in rows:
        if row["metric"] == "time_ratio":
            row["samples"] = [*(row["value"] * rng.normal(1, 0.02, 11))]
            row["value"] = float(np.median(row["samples"]))
    found = numbers(make.frame(*rows), metric=metric)
    result = only(found)
    speeds = [line.speed for line in result.lines]
    assert [s.factor for s in speeds if s] == pytest.approx([2, 9, 1], rel=0.02)
    assert [s.differs for s in speeds if s] == [True, True, False]
    (ratio,) = [r for r in rows if (r["metric"], r["length"]) == ("time_ratio", 1024)]
    wanted = median_interval(ratio["samples"])
    assert (speeds[1].interval.low, speeds[1].interval.high) == (1 / wanted.high, 1 / wanted.low)
    text = verdict(found, result)
    assert text.startswith("linear is 1.0")
    assert text.endswith(
        "sdpa in 3 of 3 lines of the table; in 2 of them, the 95 % interval excludes 1."
    )
    assert "significant" not in text
    other = only(found, "sdpa", "linear").lines[1].speed
    assert other.factor == pytest.approx(1 / speeds[1].factor)
    (ratio,) = [row for row in rows if row["metric"] == "time_ratio" and row["length"] == 1024]
    ratio["samples"] = ratio["samples"][:5]
    short = numbers(make.frame(*(row for row in rows if row["length"] == 1024)), metric=metric)
    assert verdict(short, only(short)).endswith(
        "over 5 passes: too few passes were timed for a 95 % interval."
    )
    unpaired = only(found, "local", "linear")
    assert verdict(found, unpaired).startswith("No difference can be tested")
    assert "linear has a faster mean than local in 3 of 3 lines" in verdict(found, unpaired)
    assert "faster / equal / slower" in to_markdown(comparison_table(found, [unpaired]))
    for line in unpaired.lines:
        assert line.speed is None
        assert any("were not timed interleaved" in note for note in line.notes)
    apart = {str(row["cell"]): {"positions": row["model"]} for row in rows}
    unlike = only(numbers(make.frame(*rows), apart, metric=metric))  # the reference is another
    assert [line.speed for line in unlike.lines] == [None] * 3
    for row in rows:
        row |= {
            "family": row["model"],
            "options": {"mixer.window": "4"} if "sdpa" in row["model"] else {},
        }
    unlike = only(numbers(make.frame(*rows), metric=metric))
    assert [line.speed for line in unlike.lines] == [None] * 3
