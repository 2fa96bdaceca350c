"""Comparisons of models as a table, and as a sentence."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lra.reports.comparison.numbers import Numbers
from lra.reports.comparison.pairs import Comparison, Line
from lra.reports.statistics.intervals import LEVEL, Interval
from lra.reports.statistics.paired import POWER
from lra.reports.tables.marks import absent
from lra.reports.tables.table import Column, Entry, Table, TableRow
from lra.runners.metrics import METRICS


def p_text(p: float | None) -> str:
    """Return a p value as printed."""
    if p is None:
        return "–"
    return f"{p:.2f}" if p >= 0.1 else f"{p:.2g}"


def verdict(numbers: Numbers, comparison: Comparison) -> str:
    """Return what a comparison shows, in a sentence or two."""
    line, a, b = comparison.conclusion, comparison.first, comparison.second
    higher, word = numbers.score.higher, _words(numbers)[0]
    if line is None or line.difference is None:
        gains = [x for x in comparison.lines if x.difference]
        if not gains:
            return f"{a} and {b}: {'; '.join(n for x in comparison.lines for n in x.notes)}."
        wins = [x for x in gains if x.difference and (x.difference.mean > 0) == higher]
        sure = [x for x in gains if x.p_holm is not None and x.p_holm < 1 - LEVEL]
        return (
            f"{a} is {word} than {b} in {len(wins)} of {len(gains)} lines; "
            f"{len(sure)} of {len(gains)} differences are significant."
        )
    found = line.difference
    size = numbers.text(found.mean, signed=True) + _bounds(numbers, found.interval)
    at = f"{a} − {b} at {line.task}: {size} over {line.over}"
    p = found.p if line.p_holm is None else line.p_holm
    test = f"p = {p_text(p)}"
    if p is None:
        words = f"{at}; {line.notes[-1]}."
    elif p < 1 - LEVEL:
        words = f"{at}, {test}: {a if (found.mean > 0) == higher else b} is {word}."
    else:
        words = f"{at}, {test}: no difference is shown"
        if found.detectable is not None:
            size = numbers.text(found.detectable)
            words += f"; one of {size} would be, in {100 * POWER:g} % of repetitions"
        words += "."
    if line.baseline and line.first is not None and line.second is not None:
        name, score = line.baseline
        best = max(line.first, line.second) if higher else min(line.first, line.second)
        if best == score or (best < score) == higher:
            words += f" Neither is better than the baseline {name}, {numbers.text(score)}."
    return words


def _words(numbers: Numbers) -> tuple[str, str, str]:
    """Return what a first side is called: of a number that only describes, none is better."""
    neutral = METRICS[numbers.metric].higher_is_better is None
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
    tested = [x for c in comparisons for x in c.lines if x.p_holm is not None]
    heads = {
        "first": first, "second": second, "difference": "first − second", "over": "over",
        "p": "p", "holm": "p, Holm", "detectable": "detectable",
        "counts": " / ".join(_words(numbers)), "baseline": "best baseline",
    }  # fmt: skip
    if len(tested) < 2:
        del heads["holm"]
    rows = []
    for each in comparisons:
        for line in each.lines:
            entries = tuple(_entries(numbers, line)[name] for name in heads)
            section = "" if single else f"{each.first} and {each.second}"
            rows.append(TableRow(title=line.task, entries=entries, section=section))
    return Table(
        title=f"{numbers.score.title}: {first} and {second if single else 'others'}",
        caption=(
            f"{numbers.score.unit}; means over pairs, which share task, seed and all that varies "
            f"within a side. Difference [{100 * LEVEL:g} % interval]; over: what interval and p "
            "account for. p: two-sided, paired t test (over tasks: sign flips)"
            + (", also by Holm's correction for all p values here" if "holm" in heads else "")
            + f"; bold below {1 - LEVEL:.2g}. detectable: smallest true difference that as many "
            f"pairs of this spread show in {100 * POWER:g} % of repetitions."
        ),
        stub="task",
        columns=tuple(
            Column(title=title, key=key, words=key in ("over", "baseline"))
            for key, title in heads.items()
        ),
        rows=tuple(rows),
    )


def _entries(numbers: Numbers, line: Line) -> dict[str, Entry]:
    """Return the entries of a line by the keys of their columns."""

    def number(value: float | None, text: str = "", **more: Any) -> Entry:
        return (
            absent()
            if value is None
            else Entry(text=text or numbers.text(value), value=value, **more)
        )

    found, p = line.difference, line.p_holm
    plain, detectable = (found.p, found.detectable) if found else (None, None)
    entries = {
        "first": number(line.first),
        "second": number(line.second),
        "difference": absent(*line.notes),
        "over": Entry(text=line.over or "–"),
        "p": number(plain, p_text(plain)),
        "holm": number(p, p_text(p)),
        "detectable": number(detectable),
        "counts": Entry(text=f"{line.better} / {line.equal} / {line.worse}"),
        "baseline": absent(),
    }
    if found:
        size = numbers.text(found.mean, signed=True) + _bounds(numbers, found.interval)
        rank = int(p is not None and p < 1 - LEVEL)
        more = {"interval": found.interval, "notes": line.notes, "rank": rank}
        entries["difference"] = number(found.mean, size, **more)
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
        "comparisons": [
            {
                "first": each.first,
                "second": each.second,
                "verdict": verdict(numbers, each),
                "lines": [
                    {k: v for k, v in asdict(line).items() if k != "by_seed"} for line in each.lines
                ],
            }
            for each in comparisons
        ],
    }
