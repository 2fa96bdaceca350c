"""Comparisons of models as a table, and as a sentence."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lra.reports.comparison.numbers import SPEEDS, Numbers
from lra.reports.comparison.pairs import COUNTED, Comparison, Line
from lra.reports.comparison.speeds import Speed
from lra.reports.rows import DIAMOND
from lra.reports.statistics.intervals import LEVEL, Interval
from lra.reports.statistics.paired_tests import ALPHA, POWER
from lra.reports.tables.costs import significant
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.table import Column, Entry, Table
from lra.runners.metrics import METRICS

_TESTED = (
    f"p: two-sided, paired t test (over tasks: sign flips); bold below {ALPHA:.2g}. detectable: "
    f"the true difference that as many new pairs show in {100 * POWER:g} % of repetitions, if "
    "differences are normally distributed with the spread of these pairs; none: there are too few "
    "pairs."
)
_CORRECTED = (
    "correction: p by Holm's method for all lines of tasks here, or for all means over tasks. "
    "Interval and detectable difference use the corrected level of their line, so an interval "
    f"excludes 0 exactly if p is below {ALPHA:.2g}."
)
_TIMED = (
    "times as fast: the time of the second divided by that of the first, measured interleaved in "
    f"one process [{100 * LEVEL:g} % interval of the median]; bold if the interval excludes 1. The "
    "seconds come from other passes, in the run of each model, so their ratio differs. "
    f"{DIAMOND}: by the processors' clock, which excludes waiting, because the machine was busy."
)


_REPEATS = "counted, so every repetition gives the same number"


def p_text(p: float | None) -> str:
    """Return a p value as printed."""
    if p is None:
        return "–"
    return f"{p:.2f}" if p >= 0.1 else f"{p:.2g}"


def verdict(numbers: Numbers, comparison: Comparison) -> str:
    """Return what a comparison shows, in a sentence or two."""
    line, a, b = comparison.conclusion, comparison.first, comparison.second
    higher, word = numbers.score.higher, _words(numbers)[0]
    options = f", {comparison.options}" if comparison.options else ""
    if line is None or line.difference is None:
        return _over_lines(numbers, comparison, options)
    found = line.difference
    if line.speed:
        faster = a if line.speed.factor > 1 else b
        shown = f"{faster} is faster" if line.speed.differs else "no difference is shown"
        if line.speed.interval is None or line.speed.interval.level < LEVEL:
            shown = f"too few passes for an interval of {100 * LEVEL:g} %"
        times = f"{_factor(line.speed)} times as fast as {b} at {line.task}{options}"
        return f"{a} is {times}, over {line.over}: {shown}."
    size = numbers.text(found.mean, signed=True) + _bounds(numbers, found.interval)
    at = f"{a} − {b} at {line.task}{options}: {size}"
    if line.over == COUNTED:
        return f"{at}. {a} has {_times([line])}: {_REPEATS}."
    at += f" over {line.over}"
    p = line.p_holm
    test = f"p = {p_text(p)}" + (f" ({_corrected(line)})" if line.tests > 1 else "")
    if p is None:
        words = f"{at}; {line.notes[-1]}."
    elif p < ALPHA:
        ahead = f"{a if (found.mean > 0) == higher else b} is {word}."
        normal = f". {line.caution} If they are normal, " if line.caution else ": "
        words = f"{at}, {test}{normal}{ahead}"
    else:
        words = f"{at}, {test}: no difference is shown"
        if found.interval and found.detectable is None:
            words += f", and {line.units} of this spread are too few to show any"
        elif found.detectable is not None:
            size = numbers.text(found.detectable)
            words += f"; one of {size} would be, in {100 * POWER:g} % of repetitions"
        words += "."
    if line.baseline and not line.above_baseline:
        name, score = line.baseline
        words += f" Neither is shown to be better than the baseline {name}, {numbers.text(score)}."
    return words


def _over_lines(numbers: Numbers, comparison: Comparison, options: str) -> str:
    """Return what a comparison shows that has several lines and no mean over them, or none."""
    a, b = comparison.first, comparison.second
    gains = [x for x in comparison.lines if x.difference]
    if not gains:
        return f"{a} and {b}: {'; '.join(n for x in comparison.lines for n in x.notes)}."
    if speeds := [x.speed for x in gains if x.speed]:
        return _over_speeds(a, b + options, speeds, len(gains))
    higher, word = numbers.score.higher, _words(numbers)[0]
    signs = [(x.difference.mean > 0) == higher for x in gains if x.difference and x.difference.mean]
    wins, losses = signs.count(True), signs.count(False)
    if losses > wins:
        a, b, wins = b, a, losses
    if all(x.over == COUNTED for x in gains):
        words = f"{a} is {word} than {b}{options} in {wins} of {len(gains)} lines"
        return f"{words}. {comparison.first} has {_times(gains)}: {_REPEATS}."
    words = f"{a} has a {word} mean than {b}{options} in {wins} of {len(gains)} lines."
    tested = [x for x in gains if x.p_holm is not None]
    if not tested:
        return f"No difference can be tested, and the notes say why. {words}"
    sure = [x for x in tested if (x.p_holm or 0.0) < ALPHA]
    found = f"{len(sure)} of {len(tested)} differences are significant"
    found += f" (Holm, {tested[0].tests} tests)" if tested[0].tests > 1 else ""
    caution = f" {sure[0].caution}" if sure and sure[0].caution else ""
    return f"{found}.{caution} {words}"


def _over_speeds(a: str, b: str, speeds: Sequence[Speed], lines: int) -> str:
    """Return how many times as fast a model is in several lines."""
    ends = [_factor(speed) for speed in sorted(speeds, key=lambda s: s.factor)]
    known = [s.differs for s in speeds if s.interval and s.interval.level >= LEVEL]
    factors = " to ".join(dict.fromkeys((ends[0], ends[-1])))
    words = f"{a} is {factors} times as fast as {b} in {len(speeds)} of {lines} lines"
    if known:
        words += f"; in {sum(known)} the {100 * LEVEL:g} % interval excludes 1"
    if few := len(speeds) - len(known):
        words += f"; {few} had too few passes for an interval of {100 * LEVEL:g} %"
    return f"{words}."


def _times(lines: Sequence[Line]) -> str:
    """Say how many times as large the first of two counts are."""
    pairs = [(x.first or 0.0, x.second or 0.0) for x in lines]
    if not all(second for _, second in pairs):
        return "others"
    ratios = sorted(first / second for first, second in pairs)
    ends = dict.fromkeys(significant(ratio) for ratio in (ratios[0], ratios[-1]))
    return f"{' to '.join(ends)} times as many"


def _corrected(line: Line) -> str:
    """Say by how many tests a line is corrected, and the level that its interval has for it."""
    ends = line.difference.interval if line.difference else None
    level = f", interval of {100 * ends.level:.3g} %" if ends else ""
    return f"Holm, {line.tests} tests{level}"


def _factor(speed: Speed) -> str:
    """Return how many times as fast, with its interval."""
    ends, text = speed.interval, significant(speed.factor)
    text += f" {DIAMOND}" * (speed.clock == "processor")
    if ends is None:
        return text
    level = "" if ends.level >= LEVEL else f"{100 * ends.level:.3g} %: "
    return f"{text} [{level}{significant(ends.low)}, {significant(ends.high)}]"


def trainings(numbers: Numbers) -> str:
    """Say after a search which trainings are compared; "" without one."""
    if (final := numbers.trainings) is None:
        return ""
    which = "it began from" if final.options == "untuned" else "it chose on validation"
    share = "study (means over its seeds)" if final.by_study else "seed"
    return (
        f"Trainings: after a search, the final ones with the options that {which} "
        f"({final.options}); these pair by {share}."
    )


def _words(numbers: Numbers) -> tuple[str, str, str]:
    """Return what a first side is called: of a number that only describes, none is better."""
    metric = METRICS[numbers.metric]
    if metric.unit == "s" or numbers.metric in SPEEDS:
        return ("faster", "equal", "slower")
    neutral = metric.higher_is_better is None
    return ("higher", "equal", "lower") if neutral else ("better", "equal", "worse")


def _bounds(numbers: Numbers, interval: Interval | None) -> str:
    if interval is None:
        return ""
    low, high = (numbers.text(v, signed=True) for v in (interval.low, interval.high))
    return f" [{low}, {high}]"


def comparison_table(numbers: Numbers, comparisons: Sequence[Comparison]) -> Table:
    """Build the table of comparisons: a section for each two, a row for each task."""
    single = len(comparisons) == 1
    first, second = comparisons[0].first, comparisons[0].second if single else "other"
    lines = [x for each in comparisons for x in each.lines]
    corrected, timed = any(x.tests > 1 for x in lines), any(x.speed for x in lines)
    tested = any(x.p_holm is not None for x in lines)
    intervals = [x.difference.interval for x in lines if x.difference and x.difference.interval]
    cut = numbers.score.shares and any(max(-i.low, i.high) == 1 for i in intervals)
    heads = {
        "first": first, "second": second, "difference": "first − second",
        "speed": "times as fast", "over": "over", "p": "p", "tests": "correction",
        "detectable": "detectable", "counts": " / ".join(_words(numbers)),
        "baseline": "best baseline",
    }  # fmt: skip
    shown = {"speed": timed, "p": tested, "detectable": tested, "tests": corrected}
    heads = {key: title for key, title in heads.items() if shown.get(key, True)}
    rows = []
    for each in comparisons:
        for line in each.lines:
            entries = _entries(numbers, line)
            section = "" if single else f"{each.first} and {each.second}"
            rows.append((section, line.task, [entries[name] for name in heads]))
    caption = (
        trainings(numbers),
        f"{numbers.score.unit}; means over pairs with the same task, seed and other settings that "
        'vary within a side. "over" names what the interval accounts for.',
        f"Difference [{100 * LEVEL:g} % interval{', cut off at ±100' * cut}]." * bool(intervals),
        _TESTED * tested,
        _CORRECTED * corrected,
        _TIMED * timed,
    )
    return listed_table(
        rows,
        [Column(title=title, key=key, words=key in ("over", "tests", "counts", "baseline"))
         for key, title in heads.items()],
        title=f"{numbers.score.title}: {first} and {second if single else 'others'}",
        caption=" ".join(filter(None, caption)), stub="task",
    )  # fmt: skip


def _entries(numbers: Numbers, line: Line) -> dict[str, Entry]:
    """Return the entries of a line by the keys of their columns."""

    def number(value: float | None, text: str = "", **more: Any) -> Entry:
        if value is None:
            return absent()
        return Entry(text=text or numbers.text(value), value=value, **more)

    found, p, speed = line.difference, line.p_holm, line.speed
    notes = (*line.notes, line.caution) if line.caution else line.notes
    entries = {
        "first": number(line.first),
        "second": number(line.second),
        "difference": absent(*notes),
        "speed": absent(),
        "over": Entry(text=line.over or "–"),
        "p": number(p, p_text(p)),
        "tests": Entry(text=_corrected(line) if line.tests > 1 else "–"),
        "detectable": number(found.detectable if found else None),
        "counts": Entry(text=f"{line.better} / {line.equal} / {line.worse}"),
        "baseline": absent(),
    }
    if found:
        size = numbers.text(found.mean, signed=True) + _bounds(numbers, found.interval)
        rank = int(p is not None and p < ALPHA)
        more = {"interval": found.interval, "notes": notes, "rank": rank}
        entries["difference"] = number(found.mean, size, **more)
        if found.interval and p is not None and found.detectable is None:
            entries["detectable"] = Entry(text="none")
    if speed:
        more = {"interval": speed.interval, "rank": int(speed.differs)}
        entries["speed"] = number(speed.factor, _factor(speed), **more)
    if line.baseline:
        name, score = line.baseline
        entries["baseline"] = Entry(text=f"{name} {numbers.text(score)}", value=score)
    return entries


def as_json(numbers: Numbers, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return comparisons as plain JSON, at full precision."""
    return {
        "schema": 1,
        "metric": numbers.metric,
        "split": numbers.split,
        "trainings": trainings(numbers),
        "comparisons": [
            {
                "first": each.first,
                "second": each.second,
                "verdict": verdict(numbers, each),
                "lines": [
                    {k: v for k, v in asdict(line).items() if k != "by_unit"} for line in each.lines
                ],
            }
            for each in comparisons
        ],
    }
