"""Write comparisons of models as a table, as sentences and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from lra.reports.comparison.numbers import SPEEDS, Numbers
from lra.reports.comparison.pairs import COUNTED, Comparison, Line
from lra.reports.comparison.speeds import Speed
from lra.reports.rows import DIAMOND
from lra.reports.statistics.equivalence import equivalence_p, excess_p
from lra.reports.statistics.intervals import LEVEL, Interval
from lra.reports.statistics.paired_tests import ALPHA, POWER
from lra.reports.tables.costs import significant
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.table import Column, Entry, Table
from lra.runners.metrics import METRICS

_TESTED = (
    "p: the p-value of a two-sided paired t test, or of a sign-flip test if the tasks share fewer "
    f"than two seeds; bold below {ALPHA:.2g}. detectable: the true difference that the same number "
    f"of new pairs would find in {100 * POWER:g} % of repetitions, if differences are normally "
    "distributed with the spread of these pairs; none: there are too few pairs to find any."
)
_CORRECTED = (
    "correction: the p-values of all tasks are corrected together by Holm's method, and so are "
    "those of all means over tasks. The interval and the detectable difference of a line use its "
    f"corrected level, so the interval excludes 0 exactly if p is below {ALPHA:.2g}."
)
_TIMED = (
    "times as fast: the time of the second model divided by that of the first, from interleaved "
    f"passes in one process [{100 * LEVEL:g} % interval of the median]; bold if the interval "
    "excludes 1. The seconds of the two models come from separate runs, so their ratio differs. "
    f"{DIAMOND}: the factor uses the processors' clock, which excludes waiting, because another "
    "process disturbed the machine."
)


_OVER_EXAMPLES = (
    "seeds and examples: the interval of the difference if both the seeds and the test examples "
    "change; the other interval is for this test set."
)
_IMPROVEMENT = (
    "P(better): the probability that a random seed of the first model is better than one of the "
    f"second [{100 * LEVEL:g} % interval]; a failed run is worse than all others."
)
INNER = ("by_unit", "scores", "variances")
"""Fields of a line that JSON omits."""
_REPEATS = "The numbers are counted, so every repetition gives the same ones."


def p_text(p: float | None) -> str:
    """Return a p-value as printed: two digits, or a dash for None."""
    if p is None:
        return "–"
    return f"{p:.2f}" if p >= 0.1 else f"{p:.2g}"


def verdict(numbers: Numbers, comparison: Comparison, margin: float | None = None) -> str:
    """Return the result of a comparison in one to three sentences.

    If a `margin` in the printed unit is given, another sentence says whether the two are
    equivalent.

    For example: "linear − sdpa at mqar: −6.4 [−14.8, +2.0] over 5 seeds, p = 0.10: ...".
    """
    line, a, b = comparison.conclusion, comparison.first, comparison.second
    higher, word = numbers.score.higher, _relations(numbers)[0]
    options = f", {comparison.options}" if comparison.options else ""
    if line is None or line.difference is None:
        return _summarise_lines(numbers, comparison, options)
    difference = line.difference
    if line.speed:
        faster = a if line.speed.factor > 1 else b
        conclusion = f"{faster} is faster" if line.speed.differs else "no difference is shown"
        if line.speed.interval is None or line.speed.interval.level < LEVEL:
            conclusion = f"too few passes were timed for a {100 * LEVEL:g} % interval"
        times = f"{_factor_text(line.speed)} times as fast as {b} at {line.task}{options}"
        return f"{a} is {times}, over {line.over}: {conclusion}."
    size = numbers.text(difference.mean, signed=True) + _bounds_text(numbers, difference.interval)
    words = f"{a} − {b} at {line.task}{options}: {size}"
    if line.over == COUNTED:
        return f"{words}. {_ratio_sentence(a, b, [line])} {_REPEATS}"
    words += f" over {line.over}"
    p = line.p_holm
    test = f"p = {p_text(p)}" + (f" ({_correction_text(line)})" if line.tests > 1 else "")
    if p is None:
        words += f"; {line.notes[-1]}."
    elif p < ALPHA:
        better = f"{a if (difference.mean > 0) == higher else b} is {word}."
        if line.caution:
            words += f", {test}. {line.caution} If differences are normally distributed, {better}"
        else:
            words += f", {test}: {better}"
    else:
        words += f", {test}: no difference is shown"
        if difference.interval and difference.detectable is None:
            words += f", and so few {line.units} with this spread cannot show a difference"
        elif difference.detectable is not None:
            size = numbers.text(difference.detectable)
            words += f"; a true difference of {size} would be shown in {100 * POWER:g} % of "
            words += "repetitions"
        words += "."
    if line.baseline and not line.above_baseline:
        name, score = line.baseline
        words += (
            f" Neither of the two is shown to be better than the baseline {name}, which has "
            f"{numbers.text(score)}."
        )
    return words + _equivalence_words(numbers, comparison, margin)


def _equivalence_words(numbers: Numbers, comparison: Comparison, margin: float | None) -> str:
    """Return a sentence about equivalence within a margin in the printed unit; "" for None.

    A published number is reproduced if it is equivalent. A mean that is significantly better than
    it by more than the margin is too good.
    """
    line = comparison.conclusion
    if margin is None or line is None or line.difference is None:
        return ""
    limit = margin / numbers.score.factor
    if (p := equivalence_p(line.difference, limit)) is None:
        return f" Equivalence within ±{margin:g} cannot be tested."
    a, b = comparison.first, comparison.second
    test = f"(two one-sided tests, p = {p_text(p)})"
    if p < ALPHA:
        meaning = (
            "the published number is reproduced"
            if comparison.published
            else f"{a} and {b} are equal"
        )
        return f" Within ±{margin:g}, {meaning} {test}."
    words = f" Equality within ±{margin:g} is not shown {test}."
    good = line.difference.mean * (1 if numbers.score.higher else -1)
    excess = excess_p(replace(line.difference, mean=good), limit)
    if comparison.published == b and excess is not None and excess < ALPHA:
        words += (
            f" {a} is better than published by more than the margin (one-sided p = "
            f"{p_text(excess)}), which is suspicious: look for test examples in training, easier "
            "data, or a choice by test scores."
        )
    return words


def _summarise_lines(numbers: Numbers, comparison: Comparison, options: str) -> str:
    """Return the result of a comparison with several lines and no mean, or without a difference."""
    a, b = comparison.first, comparison.second
    lines = [x for x in comparison.lines if x.difference]
    if not lines:
        return f"{a} and {b}: {'; '.join(n for x in comparison.lines for n in x.notes)}."
    if speeds := [x.speed for x in lines if x.speed]:
        return _summarise_speeds(a, b + options, speeds, len(lines))
    higher, word = numbers.score.higher, _relations(numbers)[0]
    signs = [(x.difference.mean > 0) == higher for x in lines if x.difference and x.difference.mean]
    wins, losses = signs.count(True), signs.count(False)
    if losses > wins:
        a, b, wins = b, a, losses
    place = f"in {wins} of {len(lines)} lines of the table"
    if all(x.over == COUNTED for x in lines):
        ratio = _ratio_sentence(comparison.first, comparison.second, lines)
        return f"{a} is {word} than {b}{options} {place}. {ratio} {_REPEATS}"
    words = f"{a} has a {word} mean than {b}{options} {place}."
    tested = [x for x in lines if x.p_holm is not None]
    if not tested:
        return f"No difference can be tested; the notes of the table say why. {words}"
    significant_lines = [x for x in tested if (x.p_holm or 0.0) < ALPHA]
    counts = f"{len(significant_lines)} of {len(tested)} differences are significant"
    counts += f" (Holm, {tested[0].tests} tests)" if tested[0].tests > 1 else ""
    caution = next((f" {x.caution}" for x in significant_lines[:1] if x.caution), "")
    return f"{counts}.{caution} {words}"


def _summarise_speeds(a: str, b: str, speeds: Sequence[Speed], lines: int) -> str:
    """Return how many times as fast model `a` is as model `b` in several lines of the table."""
    factors = [_factor_text(speed) for speed in sorted(speeds, key=lambda s: s.factor)]
    differ = [s.differs for s in speeds if s.interval and s.interval.level >= LEVEL]
    extremes = " to ".join(dict.fromkeys((factors[0], factors[-1])))
    words = f"{a} is {extremes} times as fast as {b} in {len(speeds)} of {lines} lines of the table"
    if differ:
        words += f"; in {sum(differ)} of them, the {100 * LEVEL:g} % interval excludes 1"
    if without_interval := len(speeds) - len(differ):
        words += f"; {without_interval} had too few passes for a {100 * LEVEL:g} % interval"
    return f"{words}."


def _ratio_sentence(a: str, b: str, lines: Sequence[Line]) -> str:
    """Say how many times as large the counts of `a` are as those of `b`."""
    pairs = [(x.first or 0.0, x.second or 0.0) for x in lines]
    if not all(second for _, second in pairs):
        return f"The numbers of {a} differ from those of {b}."
    ratios = sorted(first / second for first, second in pairs)
    extremes = dict.fromkeys(significant(ratio) for ratio in (ratios[0], ratios[-1]))
    return f"{a} has {' to '.join(extremes)} times as many as {b}."


def _correction_text(line: Line) -> str:
    """Return by how many tests p is corrected, and the level of the interval after correction."""
    interval = line.difference.interval if line.difference else None
    level = f", interval of {100 * interval.level:.3g} %" if interval else ""
    return f"Holm, {line.tests} tests{level}"


def _factor_text(speed: Speed) -> str:
    """Return how many times as fast a model is, with the interval, as in `2.4 [2.1, 2.8]`."""
    interval, text = speed.interval, significant(speed.factor)
    text += f" {DIAMOND}" * (speed.clock == "processor")
    if interval is None:
        return text
    level = "" if interval.level >= LEVEL else f"{100 * interval.level:.3g} %: "
    return f"{text} [{level}{significant(interval.low)}, {significant(interval.high)}]"


def trainings(numbers: Numbers) -> str:
    """Say which trainings are compared after a search; "" if there was no search."""
    if (final := numbers.trainings) is None:
        return ""
    source = "before the search" if final.options == "untuned" else "that the search chose"
    share = "study (as means over the seeds of a study)" if final.by_study else "seed"
    return (
        f"After a search, the final trainings with the options {source} ({final.options}) are "
        f"compared; they are paired by {share}."
    )


def _relations(numbers: Numbers) -> tuple[str, str, str]:
    """Return the words for a first number above, equal to and below the second.

    They are "higher" and "lower" for metrics of which neither direction is better.
    """
    metric = METRICS[numbers.metric]
    if metric.unit == "s" or numbers.metric in SPEEDS:
        return ("faster", "equal", "slower")
    neutral = metric.higher_is_better is None
    return ("higher", "equal", "lower") if neutral else ("better", "equal", "worse")


def _bounds_text(numbers: Numbers, interval: Interval | None) -> str:
    """Return the ends of an interval, as in ` [−14.8, +2.0]`; "" for None."""
    if interval is None:
        return ""
    low, high = (numbers.text(v, signed=True) for v in (interval.low, interval.high))
    return f" [{low}, {high}]"


def comparison_table(numbers: Numbers, comparisons: Sequence[Comparison]) -> Table:
    """Return the table of comparisons, with a section for each two models and a row for a task."""
    single = len(comparisons) == 1
    first, second = comparisons[0].first, comparisons[0].second if single else "other"
    lines = [line for comparison in comparisons for line in comparison.lines]
    corrected, timed = any(x.tests > 1 for x in lines), any(x.speed for x in lines)
    tested = any(x.p_holm is not None for x in lines)
    intervals = [x.difference.interval for x in lines if x.difference and x.difference.interval]
    cut = numbers.score.shares and any(max(-i.low, i.high) == 1 for i in intervals)
    heads = {
        "first": first, "second": second, "difference": "first − second",
        "speed": "times as fast", "over": "over", "p": "p", "tests": "correction",
        "detectable": "detectable", "examples": "seeds and examples", "improvement": "P(better)",
        "counts": " / ".join(_relations(numbers)),
        "baseline": "best baseline",
    }  # fmt: skip
    by_example = any(x.with_examples for x in lines)
    improved = any(x.improvement for x in lines)
    shown = {"speed": timed, "p": tested, "detectable": tested, "tests": corrected,
             "examples": by_example, "improvement": improved}  # fmt: skip
    heads = {key: title for key, title in heads.items() if shown.get(key, True)}
    rows = []
    for comparison in comparisons:
        for line in comparison.lines:
            entries = _entries_by_column(numbers, line)
            section = "" if single else f"{comparison.first} and {comparison.second}"
            rows.append((section, line.task, [entries[name] for name in heads]))
    caption = (
        trainings(numbers),
        f"Numbers are {numbers.score.unit}, as means over pairs of runs. The runs of a pair share "
        "the task, the seed and each setting that varies within a model. "
        'The column "over" names what the interval accounts for.',
        f"A difference has its {100 * LEVEL:g} % interval{', cut off at ±100' * cut}."
        * bool(intervals),
        _TESTED * tested,
        _CORRECTED * corrected,
        _TIMED * timed,
        _OVER_EXAMPLES * by_example,
        _IMPROVEMENT * improved,
    )
    return listed_table(
        rows,
        [Column(title=title, key=key, words=key in ("over", "tests", "counts", "baseline"))
         for key, title in heads.items()],
        title=f"{numbers.score.title}: {first} and {second if single else 'others'}",
        caption=" ".join(filter(None, caption)), stub="task",
    )  # fmt: skip


def _entries_by_column(numbers: Numbers, line: Line) -> dict[str, Entry]:
    """Return the entries of a line of the table, by the keys of their columns."""

    def number(value: float | None, text: str = "", **more: Any) -> Entry:
        """Return the entry of a number, printed as `text` if this is not empty; a dash for None."""
        if value is None:
            return absent()
        return Entry(text=text or numbers.text(value), value=value, **more)

    difference, p, speed = line.difference, line.p_holm, line.speed
    notes = (*line.notes, line.caution) if line.caution else line.notes
    entries = {
        "first": number(line.first),
        "second": number(line.second),
        "difference": absent(*notes),
        "speed": absent(),
        "over": Entry(text=line.over or "–"),
        "p": number(p, p_text(p)),
        "tests": Entry(text=_correction_text(line) if line.tests > 1 else "–"),
        "detectable": number(difference.detectable if difference else None),
        "counts": Entry(text=f"{line.better} / {line.equal} / {line.worse}"),
        "baseline": absent(),
        "examples": absent(),
        "improvement": absent(),
    }
    if wide := line.with_examples:
        entries["examples"] = Entry(text=_bounds_text(numbers, wide).strip(), interval=wide)
    if line.improvement:
        chance, around = line.improvement
        text = f"{chance:.2f} [{around.low:.2f}, {around.high:.2f}]"
        entries["improvement"] = number(chance, text, interval=around)
    if difference:
        interval = difference.interval
        text = numbers.text(difference.mean, signed=True) + _bounds_text(numbers, interval)
        rank = int(p is not None and p < ALPHA)  # rank 1 is printed bold
        more = {"interval": interval, "notes": notes, "rank": rank}
        entries["difference"] = number(difference.mean, text, **more)
        if interval and p is not None and difference.detectable is None:
            entries["detectable"] = Entry(text="none")
    if speed:
        more = {"interval": speed.interval, "rank": int(speed.differs)}
        entries["speed"] = number(speed.factor, _factor_text(speed), **more)
    if line.baseline:
        name, score = line.baseline
        entries["baseline"] = Entry(text=f"{name} {numbers.text(score)}", value=score)
    return entries


def as_json(
    numbers: Numbers, comparisons: Sequence[Comparison], margin: float | None = None
) -> dict[str, Any]:
    """Return comparisons as plain JSON, at full precision; see `verdict` for `margin`."""
    return {
        "schema": 1,
        "metric": numbers.metric,
        "split": numbers.split,
        "trainings": trainings(numbers),
        "comparisons": [
            {
                "first": comparison.first,
                "second": comparison.second,
                "verdict": verdict(numbers, comparison, margin),
                "lines": [
                    {k: v for k, v in asdict(line).items() if k not in INNER}
                    for line in comparison.lines
                ],
            }
            for comparison in comparisons
        ],
    }
