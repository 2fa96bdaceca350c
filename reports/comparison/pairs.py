"""Is one model better than another? Stored rows in pairs.

A pair is two results of the same task, seed and whatever else varies within one side; what differs
between the sides for all pairs, beyond what was asked for, is named in a note.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np

from lra.reports.comparison.numbers import SPEEDS, Numbers, Place, Row, varying_options
from lra.reports.comparison.speeds import UNTIMED, Speed, speed_of
from lra.reports.labels import labels_of
from lra.reports.statistics.intervals import LEVEL, Interval, Uncertainty, mean_interval
from lra.reports.statistics.paired_tests import (
    ALPHA,
    MeanDifference,
    holm,
    holm_levels,
    mean_difference,
    share_difference_interval,
    sign_flip_p,
)
from lra.reports.tables.ranking import above
from lra.reports.tables.scores import ACCURACY, CHANCE, TASK, score_interval
from lra.runners import metrics
from lra.runners.records import is_oracle

_MOST = 3
"""Further settings that a note names."""
_PLURAL = {"seed": "seeds", "study": "studies"}
COUNTED = "counted"
"""What a difference of counts is over: they are the same at every repetition."""
Unit = tuple[str, int]
"""What the two of a pair share: `seed` or `study`, and its number."""
Key = tuple[Any, ...]
"""The unit of a pair, and the values of what varies within a side."""


class NoPair(ValueError):
    """Nothing to compare; the message says what each side has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The results that one word of a comparison chooses."""

    title: str
    cells: frozenset[str]
    about: tuple[str, ...]
    """Beginnings of the settings that the word is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Two sides at one task, or over all tasks."""

    task: str
    first: float | None = None
    second: float | None = None
    difference: MeanDifference | None = None
    over: str = ""
    better: int = 0
    equal: int = 0
    worse: int = 0
    p_holm: float | None = None
    """Corrected for `tests`; the interval and what is detectable have the level of this test."""
    tests: int = 1
    caution: str = ""
    """What a difference that is significant rests on, where pairs are few: a sentence."""
    speed: Speed | None = None
    baseline: tuple[str, float] | None = None
    """The best one, by name."""
    above_baseline: bool = True
    """Whether the better side is shown to be better than it, as for ranks in tables of scores."""
    notes: tuple[str, ...] = ()
    by_unit: Mapping[Unit, tuple[float, float]] = field(default_factory=dict)
    """Of seeds or studies that count once each: the first and the second mean."""
    units: str = "seeds"
    """Or `studies`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sides at every task that one of them has."""

    first: str
    second: str
    lines: tuple[Line, ...]
    over_all: bool
    """Whether the last line is over all tasks."""
    options: str = ""
    """After a search: which options the two have, tuned or not."""

    @property
    def conclusion(self) -> Line | None:
        """Return the line over all tasks, or the only one; None where there are several."""
        paired = [line for line in self.lines if line.difference]
        return paired[-1] if len(paired) == 1 or self.over_all else None


def compare(numbers: Numbers, sides: Sequence[Side], *, best: bool = False) -> list[Comparison]:
    """Compare the first side, or the best, with every other one.

    The p values of all tasks and pairs that are asked for are corrected together by Holm's method,
    and so are those of the means over tasks, which are another family; of the best, which is known
    from the same numbers, those of all pairs of sides. Interval and detectable difference have the
    level of the test.

    Raises:
        NoPair: no two sides have a pair.
    """
    first = _best(numbers, sides) if best else sides[0]
    ordered = [first, *(side for side in sides if side is not first)]
    every = [_compared(numbers, a, b) for a, b in combinations(ordered, 2) if best or a is first]
    if not any(line.difference for each in every for line in each.lines):
        why = [*dict.fromkeys(n for e in every for x in e.lines for n in x.notes)]
        raise NoPair("; ".join(why[:_MOST]) + (" …" if len(why) > _MOST else ""))
    families: tuple[list[Line], list[Line]] = ([], [])
    for each in every:
        for line in each.lines:
            if line.difference and line.difference.p is not None:
                families[each.over_all and line is each.lines[-1]].append(line)
    shares = numbers.score.shares
    tested = {id(x): y for f in families for x, y in zip(f, _tested(f, shares=shares), strict=True)}
    return [
        replace(e, lines=tuple(tested.get(id(x), x) for x in e.lines))
        for e in every
        if e.first == first.title
    ]


def _tested(lines: Sequence[Line], *, shares: bool) -> list[Line]:
    """Return the lines of a family of tests, with p, interval and detectable difference of each.

    No difference of `shares` is larger than 1: so far reach intervals, and beyond nothing is
    detectable.
    """
    p = [line.difference.p or 0.0 for line in lines if line.difference]
    found = []
    for line, corrected, level in zip(lines, holm(p), holm_levels(p), strict=True):
        known, caution = line.difference, ""
        if known and known.interval:
            known = _difference(line.by_unit, level)
            if shares and (ends := known.interval):
                ends = replace(ends, low=max(-1.0, ends.low), high=min(1.0, ends.high))
                size = known.detectable if (known.detectable or 0.0) <= 1 else None
                known = replace(known, interval=ends, detectable=size)
            fewest = 2 + math.floor(-math.log2(1 - level))
            if corrected < ALPHA and known.pairs < fewest:
                caution = (
                    "The t test assumes that differences are normally distributed, which is wrong "
                    f"if some trainings fail to learn. Without this assumption, at least {fewest} "
                    f"{line.units} are needed to show a difference."
                )
                if known.pairs == 2:
                    caution += (
                        " With two, 14 % of comparisons find a difference between equal models "
                        "that learn or fail by chance."
                    )
        found.append(replace(
            line, difference=known, p_holm=corrected, tests=len(lines), caution=caution
        ))  # fmt: skip
    return found


def _difference(by_unit: Mapping[Unit, tuple[float, float]], level: float) -> MeanDifference:
    first, second = zip(*by_unit.values(), strict=True)
    return mean_difference(
        first, second, level=level, source=Uncertainty(_PLURAL[next(iter(by_unit))[0]])
    )


def _best(numbers: Numbers, sides: Sequence[Side]) -> Side:
    """Return the side with the best mean over the places that all sides have."""
    means = [
        [np.mean([r["value"] for r in rows]) if (rows := _rows(numbers, p, s)) else None
         for p in numbers.places]
        for s in sides
    ]  # fmt: skip
    common = [column for column in zip(*means, strict=True) if None not in column]
    if not common:
        raise NoPair("no task has numbers of every side, so none is the best: remove --best")
    averages = np.mean(common, axis=0)
    return sides[int(averages.argmax() if numbers.score.higher else averages.argmin())]


def _rows(numbers: Numbers, place: Place, side: Side) -> list[Row]:
    return [row for cell, row in numbers.places[place].items() if cell in side.cells]


def _compared(numbers: Numbers, first: Side, second: Side) -> Comparison:
    lines = []
    tried = [
        p
        for p in sorted(numbers.places, key=_order)
        if any(_rows(numbers, p, s) for s in (first, second))
    ]
    for place in tried:
        lines.append(_line(numbers, place, _title(place, tried), first, second))
    paired = [line for line in lines if line.difference]
    over_all = len(paired) > 1 and len({dict(p)["task"] for p in tried}) == len(tried)
    over_all &= not any(line.speed or line.over == COUNTED for line in paired)
    if over_all:
        lines.append(_over_all(paired, higher=numbers.score.higher))
    if not lines:
        neither = f"neither {first.title} nor {second.title} has a number of {numbers.metric}"
        lines.append(Line(task="", notes=(neither,)))
    return Comparison(
        first=first.title, second=second.title, lines=tuple(lines), over_all=over_all,
        options=_options(numbers, tried, first, second),
    )  # fmt: skip


def _options(numbers: Numbers, places: Sequence[Place], first: Side, second: Side) -> str:
    """Return in words which of two sides have tuned options; "" without a search."""
    if (final := numbers.trainings) is None:
        return ""
    led = [
        any(str(row["cell"]) in final.studies for p in places for row in _rows(numbers, p, side))
        for side in (first, second)
    ]
    if led[0] == led[1]:
        return f"both {final.options}" * led[0]
    named = zip((first, second), led, strict=True)
    return ", ".join(f"{s.title} {final.options if is_led else 'not tuned'}" for s, is_led in named)


def _order(place: Place) -> list[str]:
    return [value.zfill(12) if value.isdigit() else value for _, value in place]


def _title(place: Place, places: Sequence[Place]) -> str:
    """Return the name of a task, with the settings in which several places of it differ."""
    here = dict(place)
    others = [dict(p) for p in places if dict(p)["task"] == here["task"]]
    keys = [k for k in here if len({o.get(k) for o in others}) > 1]
    return ", ".join([str(here["task"]), *(f"{k} {here[k]}" for k in keys)])


def _line(numbers: Numbers, place: Place, task: str, first: Side, second: Side) -> Line:
    sides = [(side, _rows(numbers, place, side)) for side in (first, second)]
    options_of = numbers.settings
    varying = sorted(
        {
            name
            for _, rows in sides
            for name in varying_options(
                rows, "unit", [options_of[str(row["cell"])] for row in rows]
            )
        }
    )
    keyed: list[dict[Key, Row]] = []
    notes: list[str] = []
    for side, rows in sides:
        by_key: dict[Key, list[Row]] = {}
        for row in rows:
            options = options_of[str(row["cell"])]
            key = (row["unit"], *(options.get(k, "none") for k in varying))
            by_key.setdefault(key, []).append(row)
        single = {key: row for key, found in by_key.items() if (row := _single(found))}
        if len(single) < len(by_key):
            notes.append(
                f"{side.title}: several results of one seed look the same and are excluded"
            )
        keyed.append(single)
        gone = side.cells & numbers.lost.keys() - numbers.places[place].keys()
        lost = [numbers.lost[cell] for cell in sorted(gone)]
        here = (dict(place)["task"], dict(place)["length"])
        if ended := [how for *where, how in lost if (*where,) == here]:
            how = ", ".join(dict.fromkeys(ended))
            notes.append(f"{side.title}: {len(ended)} failed ({how}) and are excluded")
    shared = sorted(set(keyed[0]) & set(keyed[1]))
    has = [f"{s.title} has {_has(k, varying)}" for (s, _), k in zip(sides, keyed, strict=True)]
    if not shared:
        return Line(task=task, notes=(f"no pair at {task}: {'; '.join(has)}", *notes))
    if len(shared) < max(map(len, keyed)):
        notes.append(f"{len(shared)} pair{'s'[: len(shared) - 1]}: {'; '.join(has)}")
    pairs = [(keyed[0][key], keyed[1][key]) for key in shared]
    further = _further(pairs, numbers.settings, (*first.about, *second.about, *varying))
    # a reference has the settings of what it is timed with
    speed = None if further else speed_of(numbers, pairs)
    disturbed = [row["disturbed"] for pair in pairs for row in pair]
    for text in dict.fromkeys([*disturbed, *(speed.disturbed if speed else ())]):
        notes += [f"measured while something disturbed the machine: {text}"] if text else []
    notes += further
    values = [(float(a["value"]), float(b["value"])) for a, b in pairs]
    groups: dict[Key, dict[Unit, tuple[float, float]]] = {}
    for (unit, *setting), value in zip(shared, values, strict=True):
        groups.setdefault((*setting,), {})[unit] = value
    line = _counted(numbers, _over(task, [*groups.values()], "settings"))
    if speed and line.difference:
        alone = MeanDifference(mean=line.difference.mean, pairs=line.difference.pairs)
        over = f"{speed.passes} passes"
        line = replace(line, difference=alone, speed=speed, over=over, notes=())
    if len(groups) > 1:
        notes.append(f"means over {len(groups)} settings of {', '.join(varying)}")
    elif len(shared) == 1 and line.difference and not speed and line.over != COUNTED:
        words, one = "", line.over
        if line.units == "seeds":
            interval, count, words = _over_examples(numbers, *pairs[0])
            over = f"{count:,} examples" if count else line.over
            line = replace(line, difference=replace(line.difference, interval=interval), over=over)
        nothing = f"nothing is known about the variation between {line.units}{words}"
        notes.append(f"{one}: {nothing}")
    notes += [UNTIMED] if numbers.metric in SPEEDS and not speed else []
    baseline = _baseline(numbers, place)
    return replace(
        line, **_counts([a - b for a, b in values], numbers.score.higher), baseline=baseline,
        above_baseline=not baseline or _above(numbers, line, pairs[0], baseline[1]),
        notes=(*notes, *line.notes),
    )  # fmt: skip


def _above(numbers: Numbers, line: Line, pair: tuple[Row, Row], baseline: float) -> bool:
    """Return whether the whole interval of the better side is better than a baseline."""
    score, means = numbers.score, (line.first or 0.0, line.second or 0.0)
    side = means.index(max(means) if score.higher else min(means))
    values = [each[side] for each in line.by_unit.values()] or [means[side]]
    examples = int(labels_of(pair[side]["labels"]).get("examples", 0)) if line.by_unit else 0
    interval = score_interval(score, values, examples)
    return above(means[side], interval, [baseline], higher=score.higher)


def _counted(numbers: Numbers, line: Line) -> Line:
    """Return a line about a counted number, such as parameters, without a statistical test.

    A count that is the same for every seed has no spread, so that seeds are no sample of it.
    """
    spread = line.difference is not None and line.difference.p is not None
    if spread or numbers.metric not in metrics.COUNTED:
        return line
    return replace(line, over=COUNTED, notes=())


def _single(found: Sequence[Row]) -> Row:
    """Return the result of a seed, or the mean over the seeds of a study.

    Returns {} if two results have the same seed, so that none of them can be chosen.
    """
    if len({row["seed"] for row in found}) < len(found):
        return {}
    return {**found[0], "value": fmean(float(row["value"]) for row in found)}


def _over(task: str, groups: Sequence[Mapping[Unit, tuple[float, float]]], kind: str) -> Line:
    """Compare means over groups (settings, or tasks) that stay as they are, while seeds vary.

    A seed or study counts once, as its mean over groups: results of one are not independent. Where
    the groups share fewer than two of them, they themselves are the sample.
    """
    units = sorted(set.intersection(*({*group} for group in groups)))
    word = units[0][0] if units else "seed"
    notes: tuple[str, ...] = ()
    if len(units) > 1 or len(groups) == 1:
        means = np.array([[group[unit] for unit in units] for group in groups]).mean(axis=0)
        by_unit = dict(zip(units, map(tuple, means.tolist()), strict=True))
        found = _difference(by_unit, LEVEL)
        over = f"{len(units)} {_PLURAL[word]}" if len(units) > 1 else f"one {word}"
        if len(units) > 1 and found.p is None:
            notes = ("all differences are equal, so there is no spread to test them by",)
    else:
        means = np.array([np.mean([*group.values()], axis=0) for group in groups])
        gains = means[:, 0] - means[:, 1]
        found = MeanDifference(
            mean=float(gains.mean()), pairs=len(groups), p=sign_flip_p(gains.tolist())
        )
        by_unit, over = {}, f"{len(groups)} {kind}"
        notes = (
            f"the {kind} share no two seeds: p is the share of all choices of signs of their "
            f"differences with a mean as large, which takes these {kind} for a sample; nothing is "
            "known about the variation between seeds",
        )
    first, second = means.mean(axis=0).tolist()
    return Line(
        task=task, first=first, second=second, difference=found, over=over, notes=notes,
        by_unit=by_unit, units=_PLURAL[word],
    )  # fmt: skip


def _has(keyed: Mapping[Key, Any], varying: Sequence[str]) -> str:
    """Say which seeds or studies, and which values of what varies, one side has."""
    if not keyed:
        return "no number"
    units, *rest = zip(*sorted(keyed), strict=True)
    columns = [[*dict.fromkeys(map(str, c))] for c in ([n for _, n in units], *rest)]
    names = [units[0][0] if len(columns[0]) == 1 else _PLURAL[units[0][0]], *varying]
    return ", ".join(f"{n} {' and '.join(c)}" for n, c in zip(names, columns, strict=True))


def _further(
    rows: Sequence[tuple[Row, Row]],
    settings: Mapping[str, Mapping[str, str]],
    asked: tuple[str, ...],
) -> list[str]:
    """Return a note about settings in which the sides differ without having been asked to.

    Args:
        rows: Pairs of results, one of each side.
        settings: The options of each cell.
        asked: Beginnings of the names of settings in which the sides are meant to differ.
    """
    differing: dict[str, str] = {}
    for a, b in rows:
        x, y = settings[str(a["cell"])], settings[str(b["cell"])]
        # what one side lacks is of its family alone; the protocol, which sets much, comes first
        for key in sorted(x.keys() & y.keys(), key=lambda name: (name != "protocol", name)):
            if x[key] != y[key] and not key.startswith(asked):
                differing.setdefault(key, f"{key} ({x[key]}, {y[key]})")
    if not differing:
        return []
    rest = f" and {len(differing) - _MOST} more" if len(differing) > _MOST else ""
    return [f"they differ in further settings: {', '.join([*differing.values()][:_MOST])}{rest}"]


def _over_examples(numbers: Numbers, a: Row, b: Row) -> tuple[Interval | None, int, str]:
    """Return the interval over test examples of two trained models, their number, and words."""
    words = (
        "; the interval is for these two trained models over other test examples; their answers "
    )
    if numbers.metric != ACCURACY.metric:
        return None, 0, ""
    stored = [numbers.hits(str(row["cell"]), numbers.split) for row in (a, b)]
    if stored[0] and stored[1] and np.array_equal(stored[0][0], stored[1][0]):
        gains = np.subtract(stored[0][1], stored[1][1], dtype=np.float64)
        if gains.size > 1 and abs(gains.mean() - (a["value"] - b["value"])) < 1e-6:
            interval = mean_interval([*gains], Uncertainty.examples)
            return interval, gains.size, f"{words}are paired"
    counts = [int(labels_of(row["labels"]).get("examples", 0)) for row in (a, b)]
    if not all(counts):
        return None, 0, ""
    shares = [(min(1.0, float(r["value"])), n) for r, n in zip((a, b), counts, strict=True)]
    interval = share_difference_interval(shares[0], shares[1])
    return interval, min(counts), f"{words}are taken as independent (Newcombe's interval)"


def _baseline(numbers: Numbers, place: Place) -> tuple[str, float] | None:
    """Return the best baseline on the data of a place; at the Long Range Arena, chance is one."""
    here = dict(place)
    of_data = {k: here[k] for k in TASK if k in here}
    scores = {
        str(row["baseline"]).replace("_", " "): float(row["value"])
        for other, rows in numbers.places.items()
        for row in rows.values()
        if row["baseline"] and not is_oracle(row["baseline"])
        if row["status"] == "ok" and of_data.items() <= dict(other).items()
    }
    task = str(here["task"])
    if numbers.metric == ACCURACY.metric and task in CHANCE:
        scores["chance"] = CHANCE[task]
    name = (max if numbers.score.higher else min)(scores, key=lambda n: scores[n], default="")
    return (name, scores[name]) if name else None


def _counts(differences: Sequence[float], higher: bool) -> dict[str, Any]:
    signs = [0 if abs(d) < 1e-12 else 1 if (d > 0) == higher else -1 for d in differences]
    return {"better": signs.count(1), "equal": signs.count(0), "worse": signs.count(-1)}


def _over_all(lines: Sequence[Line], *, higher: bool) -> Line:
    """Return the line that compares means over tasks, each of which has the same weight."""
    alone = [{("seed", 0): (line.first or 0.0, line.second or 0.0)} for line in lines]
    by_unit = [line.by_unit for line in lines]
    together = len(set.intersection(*({*group} for group in by_unit))) > 1
    line = _over(f"all {len(lines)} tasks", by_unit if together else alone, "tasks")
    gains = [x.difference.mean for x in lines if x.difference]
    notes = (f"{line.over} that all tasks have",) if together else ()
    return replace(line, **_counts(gains, higher), notes=(*notes, *line.notes))
