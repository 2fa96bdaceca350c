"""Test whether one model is better than another, by pairs of stored rows.

A comparison has two sides, for example two models. A pair has one result of each side, with the
same task and seed, and the same value of each setting that varies within a side. A note names the
settings in which the sides differ although the user did not ask for it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np

from lra.reports.comparison.examples import interval_over_examples, variance_from_examples
from lra.reports.comparison.numbers import (
    MOST,
    SPEEDS,
    Numbers,
    Place,
    Row,
    further_differences,
    varying_options,
)
from lra.reports.comparison.speeds import UNTIMED, Speed, speed_of
from lra.reports.labels import labels_of
from lra.reports.rows import in_order
from lra.reports.statistics.intervals import LEVEL, Interval, Uncertainty
from lra.reports.statistics.paired_examples import over_seeds_and_examples
from lra.reports.statistics.paired_tests import (
    ALPHA,
    MeanDifference,
    holm,
    holm_levels,
    mean_difference,
    sign_flip_p,
)
from lra.reports.statistics.several_tasks import improvement
from lra.reports.tables.ranking import above
from lra.reports.tables.scores import ACCURACY, CHANCE, TASK, score_interval
from lra.reports.tables.success import success_notes
from lra.runners import metrics
from lra.runners.records import is_oracle

_PLURAL = {"seed": "seeds", "study": "studies"}
COUNTED = "counted"
"""The value of `Line.over` for counted numbers, which are the same at every repetition."""
Unit = tuple[str, int]
"""`seed` or `study`, and its number: the two results of a pair share it."""
Key = tuple[Any, ...]
"""The unit of a pair, and the values of the settings that vary within a side."""


class NoPair(ValueError):
    """The sides share no pair; the message says which results each side has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """The results that one argument of `lra compare` chooses, for example `linear`."""

    title: str
    cells: frozenset[str]
    about: tuple[str, ...]
    """Beginnings of the names of the settings that the argument chooses."""
    published: bool = False
    """Whether it is a published number instead of runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The comparison of two sides on one task, or over all tasks: a line of the printed table."""

    task: str
    first: float | None = None
    second: float | None = None
    difference: MeanDifference | None = None
    over: str = ""
    better: int = 0
    equal: int = 0
    worse: int = 0
    p_holm: float | None = None
    """The p-value, corrected for `tests` tests; the interval has the level of this test."""
    tests: int = 1
    caution: str = ""
    """A warning if few pairs make a significant difference depend on normal differences."""
    speed: Speed | None = None
    baseline: tuple[str, float] | None = None
    """The name and the score of the best baseline."""
    above_baseline: bool = True
    """Whether the better side is significantly better than the baseline, as in tables of scores."""
    notes: tuple[str, ...] = ()
    by_unit: Mapping[Unit, tuple[float, float]] = field(default_factory=dict)
    """The means of the first and the second side, for each seed or study."""
    units: str = "seeds"
    """`seeds` or `studies`."""
    with_examples: Interval | None = None
    """The interval over seeds and test examples, if the runs have answers to the same examples."""
    variances: tuple[float, ...] = ()
    """The variance that comes from test examples, for each task of the line."""
    improvement: tuple[float, Interval] | None = None
    """The probability that a random seed of the first side is better, and its interval."""
    scores: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] = ()
    """For each task, the numbers of both sides; higher is better, and failures are infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of two sides on every task that one of them has."""

    first: str
    second: str
    lines: tuple[Line, ...]
    over_all: bool
    """Whether the last line is the mean over all tasks."""
    options: str = ""
    """After a search: whether the sides have tuned options, as in "both tuned"."""
    published: str = ""
    """The title of the side that is a published number, if one is."""

    @property
    def conclusion(self) -> Line | None:
        """Return the line over all tasks, or the only line with a difference, or None."""
        with_difference = [line for line in self.lines if line.difference]
        return with_difference[-1] if len(with_difference) == 1 or self.over_all else None


def compare(
    numbers: Numbers, sides: Sequence[Side], *, best: bool = False, every: bool = False
) -> list[Comparison]:
    """Compare the first side with every other side; if `best`, the best side with every other.

    If `every`, compare each side with each other one.

    The p-values of all lines of tasks are corrected together by Holm's method, and so are those of
    all means over tasks. If `best`, the correction includes all pairs of sides, because the best
    side was chosen by the same numbers. Intervals and detectable differences have the level of the
    corrected test.

    Raises:
        NoPair: no two sides share a pair.
    """
    first = _best_side(numbers, sides) if best else sides[0]
    ordered = [first, *(side for side in sides if side is not first)]
    comparisons = [
        _compare_sides(numbers, a, b)
        for a, b in combinations(ordered, 2)
        if best or every or a is first
    ]
    if not any(line.difference for comparison in comparisons for line in comparison.lines):
        why = [*dict.fromkeys(n for c in comparisons for line in c.lines for n in line.notes)]
        raise NoPair("; ".join(why[:MOST]) + (" …" if len(why) > MOST else ""))
    of_tasks: list[Line] = []
    of_means: list[Line] = []
    for comparison in comparisons:
        for line in comparison.lines:
            if line.difference and line.difference.p is not None:
                is_mean = comparison.over_all and line is comparison.lines[-1]
                (of_means if is_mean else of_tasks).append(line)
    tested = {
        id(before): after
        for lines in (of_tasks, of_means)
        for before, after in zip(
            lines, _correct_lines(lines, shares=numbers.score.shares), strict=True
        )
    }
    return [
        replace(c, lines=tuple(tested.get(id(line), line) for line in c.lines))
        for c in comparisons
        if every or c.first == first.title
    ]


def _correct_lines(lines: Sequence[Line], *, shares: bool) -> list[Line]:
    """Return lines with p-values, intervals and detectable differences by Holm's method.

    Args:
        lines: all lines whose p-values are corrected together.
        shares: whether the numbers are fractions of examples. Their difference is at most 1, so
            intervals are cut there, and a larger detectable difference becomes None.
    """
    p = [line.difference.p or 0.0 for line in lines if line.difference]
    corrected_lines = []
    for line, corrected, level in zip(lines, holm(p), holm_levels(p), strict=True):
        difference, caution, with_examples = line.difference, "", None
        if difference and difference.interval:
            difference = _difference_of_units(line.by_unit, level)
            if line.variances:
                with_examples = over_seeds_and_examples(difference, line.variances, level)
            if shares and (interval := difference.interval):
                interval = _cut_off(interval)
                with_examples = with_examples and _cut_off(with_examples)
                size = difference.detectable if (difference.detectable or 0.0) <= 1 else None
                difference = replace(difference, interval=interval, detectable=size)
            # A sign-flip test of n pairs reaches p = 2^(1 - n), which must be below 1 - level.
            fewest = 2 + math.floor(-math.log2(1 - level))
            if corrected < ALPHA and difference.pairs < fewest:
                caution = (
                    "The t test assumes that differences are normally distributed, which is wrong "
                    f"if some trainings fail to learn. Without this assumption, at least {fewest} "
                    f"{line.units} are needed to show a difference."
                )
                if difference.pairs == 2:
                    caution += (
                        f" With only two {line.units}, 14 % of comparisons find a difference "
                        "between equal models that learn or fail by chance."
                    )
        corrected_lines.append(replace(
            line, difference=difference, p_holm=corrected, tests=len(lines), caution=caution,
            with_examples=with_examples,
        ))  # fmt: skip
    return corrected_lines


def _cut_off(interval: Interval) -> Interval:
    """Return an interval of a difference of fractions, which is from -1 to 1."""
    return replace(interval, low=max(-1.0, interval.low), high=min(1.0, interval.high))


def _difference_of_units(
    by_unit: Mapping[Unit, tuple[float, float]], level: float
) -> MeanDifference:
    """Return the mean difference of two sides, with an interval of `level` over the units."""
    first, second = zip(*by_unit.values(), strict=True)
    return mean_difference(
        first, second, level=level, source=Uncertainty(_PLURAL[next(iter(by_unit))[0]])
    )


def _best_side(numbers: Numbers, sides: Sequence[Side]) -> Side:
    """Return the side with the best mean over the places at which all sides have numbers."""
    means = [
        [np.mean([r["value"] for r in rows]) if (rows := _rows(numbers, p, s)) else None
         for p in numbers.places]
        for s in sides
    ]  # fmt: skip
    common = [column for column in zip(*means, strict=True) if None not in column]
    if not common:
        raise NoPair(
            "the best model is unknown, because no task has a number of each model: remove --best"
        )
    averages = np.mean(common, axis=0)
    return sides[int(averages.argmax() if numbers.score.higher else averages.argmin())]


def _rows(numbers: Numbers, place: Place, side: Side) -> list[Row]:
    """Return the rows of a side at a place."""
    return [row for cell, row in numbers.places[place].items() if cell in side.cells]


def _compare_sides(numbers: Numbers, first: Side, second: Side) -> Comparison:
    """Return the comparison of two sides: a line for each place, and one for the mean over tasks.

    The last line is missing if a task has several places, for example several lengths, and if the
    metric is a time or a count.
    """
    places = [
        place
        for place in sorted(numbers.places, key=lambda place: in_order(value for _, value in place))
        if any(_rows(numbers, place, side) for side in (first, second))
    ]
    lines = [_line_at(numbers, place, _title(place, places), first, second) for place in places]
    with_difference = [line for line in lines if line.difference]
    over_all = len(with_difference) > 1 and len({dict(p)["task"] for p in places}) == len(places)
    over_all &= not any(line.speed or line.over == COUNTED for line in with_difference)
    if over_all:
        lines.append(_line_over_tasks(with_difference, higher=numbers.score.higher))
    if not lines:
        note = (
            f"neither {first.title} nor {second.title} has a value of the metric {numbers.metric}"
        )
        lines.append(Line(task="", notes=(note,)))
    return Comparison(
        first=first.title, second=second.title, lines=tuple(lines), over_all=over_all,
        options=_options_in_words(numbers, places, first, second),
        published=next((side.title for side in (second, first) if side.published), ""),
    )  # fmt: skip


def _options_in_words(numbers: Numbers, places: Sequence[Place], first: Side, second: Side) -> str:
    """Say which of two sides have the options of a search, as in "both tuned"; "" without one."""
    if (final := numbers.trainings) is None:
        return ""
    searched = [
        any(str(row["cell"]) in final.studies for p in places for row in _rows(numbers, p, side))
        for side in (first, second)
    ]
    if searched[0] == searched[1]:
        return f"both {final.options}" * searched[0]
    return ", ".join(
        f"{side.title} {final.options if of_search else 'not tuned'}"
        for side, of_search in zip((first, second), searched, strict=True)
    )


def _title(place: Place, places: Sequence[Place]) -> str:
    """Return the task of a place, with the columns in which `places` with this task differ."""
    columns = dict(place)
    same_task = [dict(p) for p in places if dict(p)["task"] == columns["task"]]
    differing = [name for name in columns if len({p.get(name) for p in same_task}) > 1]
    return ", ".join([str(columns["task"]), *(f"{name} {columns[name]}" for name in differing)])


def _line_at(numbers: Numbers, place: Place, task: str, first: Side, second: Side) -> Line:
    """Return the line of two sides at one place; `task` is its title.

    A line has no difference if the sides share no pair; a note then says which results they have.
    """
    options_of = numbers.settings
    varying_names: set[str] = set()
    for rows in (_rows(numbers, place, first), _rows(numbers, place, second)):
        options = [options_of[str(row["cell"])] for row in rows]
        varying_names |= varying_options(rows, "unit", options)
    varying = sorted(varying_names)
    notes: list[str] = []
    of_first = _rows_by_key(numbers, place, first, varying, notes)
    of_second = _rows_by_key(numbers, place, second, varying, notes)
    shared = sorted(set(of_first) & set(of_second))
    results = "; ".join(
        f"{side.title} has {_keys_in_words(by_key, varying)}"
        for side, by_key in ((first, of_first), (second, of_second))
    )
    if not shared:
        return Line(
            task=task, notes=(f"the two sides share no pair of runs at {task}: {results}", *notes)
        )
    if len(shared) < max(len(of_first), len(of_second)):
        # The slice of 's' is empty for a single pair.
        notes.append(
            f"only {len(shared)} pair{'s'[: len(shared) - 1]} of runs can be compared: {results}"
        )
    pairs = [(of_first[key], of_second[key]) for key in shared]
    further = further_differences(pairs, options_of, (*first.about, *second.about, *varying))
    # A reference has the settings of the model that it was timed with, not those of the other side.
    speed = None if further else speed_of(numbers, pairs)
    disturbed = [row["disturbed"] for pair in pairs for row in pair]
    for text in filter(None, dict.fromkeys([*disturbed, *(speed.disturbed if speed else ())])):
        notes.append(f"this was measured while something disturbed the machine: {text}")
    notes += further
    values = [(float(a["value"]), float(b["value"])) for a, b in pairs]
    groups: dict[Key, dict[Unit, tuple[float, float]]] = {}
    for (unit, *setting), value in zip(shared, values, strict=True):
        groups.setdefault((*setting,), {})[unit] = value
    line = _without_test_if_counted(numbers, _line_over(task, [*groups.values()], "settings"))
    if speed and line.difference:
        untested = MeanDifference(mean=line.difference.mean, pairs=line.difference.pairs)
        over = f"{speed.passes} passes"
        line = replace(line, difference=untested, speed=speed, over=over, notes=())
    if len(groups) > 1:
        notes.append(f"each number is a mean over {len(groups)} settings of {', '.join(varying)}")
    elif len(shared) == 1 and line.difference and not speed and line.over != COUNTED:
        words, one_unit = "", line.over
        if line.units == "seeds":
            interval, count, words = interval_over_examples(numbers, *pairs[0])
            over = f"{count:,} examples" if count else line.over
            line = replace(line, difference=replace(line.difference, interval=interval), over=over)
        unknown = f"nothing is known about the variation between {line.units}"
        notes.append(f"there is only {one_unit}, so {unknown}{words}")
    notes += [UNTIMED] if numbers.metric in SPEEDS and not speed else []
    baseline = _best_baseline(numbers, place)
    line, further_notes = _over_seeds(
        numbers,
        place,
        line,
        [(first, of_first), (second, of_second)],
        baseline,
        one_setting=len(groups) == 1,
    )
    notes += further_notes
    return replace(
        line, **_count_signs([a - b for a, b in values], numbers.score.higher), baseline=baseline,
        above_baseline=not baseline or _is_above(numbers, line, pairs[0], baseline[1]),
        notes=(*notes, *line.notes),
    )  # fmt: skip


def _rows_by_key(
    numbers: Numbers, place: Place, side: Side, varying: Sequence[str], notes: list[str]
) -> dict[Key, Row]:
    """Return the row of a side for each key; append notes about the runs that it excludes."""
    rows_by_key: dict[Key, list[Row]] = {}
    for row in _rows(numbers, place, side):
        options = numbers.settings[str(row["cell"])]
        key = (row["unit"], *(options.get(name, "none") for name in varying))
        rows_by_key.setdefault(key, []).append(row)
    by_key = {key: row for key, same in rows_by_key.items() if (row := _single_result(same))}
    if len(by_key) < len(rows_by_key):
        notes.append(
            f"{side.title} has several runs with the same seed and settings; the comparison "
            "excludes them"
        )
    if statuses := _failures(numbers, place, side):
        reasons = ", ".join(dict.fromkeys(statuses))
        runs = f"run{'s'[: len(statuses) - 1]}"
        notes.append(
            f"the comparison excludes {len(statuses)} failed {runs} of {side.title} ({reasons})"
        )
    return by_key


def _failures(numbers: Numbers, place: Place, side: Side) -> list[str]:
    """Return the status of each failed run of a side at a place."""
    missing = side.cells & numbers.lost.keys() - numbers.places[place].keys()
    here = (dict(place)["task"], dict(place)["length"])
    lost = [numbers.lost[cell] for cell in sorted(missing)]
    return [status for *where, status in lost if (*where,) == here]


def _over_seeds(
    numbers: Numbers,
    place: Place,
    line: Line,
    sides: Sequence[tuple[Side, Mapping[Key, Row]]],
    baseline: tuple[str, float] | None,
    *,
    one_setting: bool,
) -> tuple[Line, list[str]]:
    """Return a line over several seeds with statistics beyond the t test, and notes about them.

    Args:
        numbers: the numbers that are compared.
        place: the place of the line.
        line: the line, which is returned unchanged if it has no several seeds.
        sides: both sides with their rows.
        baseline: the name and the score of the best baseline.
        one_setting: whether a side has one row for each seed.
    """
    if not (line.by_unit and line.difference and line.difference.pairs > 1) or line.speed:
        return line, []
    (_, of_first), (_, of_second) = sides
    of_units: dict[Unit, list[tuple[Row, Row]]] = {}
    for key in sorted(set(of_first) & set(of_second)):
        if key[0] in line.by_unit:
            of_units.setdefault(key[0], []).append((of_first[key], of_second[key]))
    variances, reason = variance_from_examples(numbers, of_units)
    line, notes = replace(line, variances=variances), [reason] if reason else []
    copied = any(" " in str(row["cell"]) for rows in (of_first, of_second) for row in rows.values())
    if copied or not one_setting or line.over == COUNTED:  # a baseline is no sample of seeds
        return line, notes
    first, second = (_scores(numbers, place, side, rows) for side, rows in sides)
    if baseline and numbers.score.shares:
        titled = [(side.title, x) for (side, _), x in zip(sides, (first, second), strict=True)]
        labels = labels_of(next(iter(of_first.values()))["labels"])
        notes += success_notes(titled, int(labels.get("examples", 0)), baseline)
    return replace(
        line, scores=((first, second),), improvement=improvement([first], [second])
    ), notes


def _scores(
    numbers: Numbers, place: Place, side: Side, by_key: Mapping[Key, Row]
) -> tuple[float, ...]:
    """Return the numbers of a side so that higher is better; a failed run is minus infinity."""
    sign = 1 if numbers.score.higher else -1
    values = [sign * float(row["value"]) for row in by_key.values()]
    return (*values, *(-math.inf for _ in _failures(numbers, place, side)))


def _is_above(numbers: Numbers, line: Line, pair: tuple[Row, Row], baseline: float) -> bool:
    """Return whether the whole interval of the better side is better than a baseline."""
    score, means = numbers.score, (line.first or 0.0, line.second or 0.0)
    side = means.index(max(means) if score.higher else min(means))
    values = [unit_means[side] for unit_means in line.by_unit.values()] or [means[side]]
    examples = int(labels_of(pair[side]["labels"]).get("examples", 0)) if line.by_unit else 0
    interval = score_interval(score, values, examples)
    return above(means[side], interval, [baseline], higher=score.higher)


def _without_test_if_counted(numbers: Numbers, line: Line) -> Line:
    """Return a line without a statistical test if the metric is a count, such as parameters.

    A count is usually the same for every seed. If it varies between seeds, the test stays.
    """
    varies = line.difference is not None and line.difference.p is not None
    if varies or numbers.metric not in metrics.COUNTED:
        return line
    return replace(line, over=COUNTED, notes=())


def _single_result(same: Sequence[Row]) -> Row:
    """Return the single row with a key, or, of a study, a row with the mean over its seeds.

    Return {} if two rows have the same seed, because neither of them can be preferred.
    """
    if len({row["seed"] for row in same}) < len(same):
        return {}
    return {**same[0], "value": fmean(float(row["value"]) for row in same)}


def _line_over(task: str, groups: Sequence[Mapping[Unit, tuple[float, float]]], kind: str) -> Line:
    """Return the line that compares the means of two sides over groups.

    If the groups share at least two units (seeds or studies), these are the sample of the t test:
    a unit counts once, as its mean over the groups, because its results depend on each other.
    Otherwise, the groups are the sample of a sign-flip test.

    Args:
        task: the title of the line.
        groups: for each setting or task, the first and the second number of each unit.
        kind: what the groups are: `settings` or `tasks`.
    """
    units = sorted(set.intersection(*({*group} for group in groups)))
    unit_kind = units[0][0] if units else "seed"
    notes: tuple[str, ...] = ()
    if len(units) > 1 or len(groups) == 1:
        means = np.array([[group[unit] for unit in units] for group in groups]).mean(axis=0)
        by_unit = dict(zip(units, map(tuple, means.tolist()), strict=True))
        difference = _difference_of_units(by_unit, LEVEL)
        over = f"{len(units)} {_PLURAL[unit_kind]}" if len(units) > 1 else f"one {unit_kind}"
        if len(units) > 1 and difference.p is None:
            notes = ("the difference is equal for all pairs, so a t test is impossible",)
    else:
        means = np.array([np.mean([*group.values()], axis=0) for group in groups])
        differences = means[:, 0] - means[:, 1]
        p = sign_flip_p(differences.tolist())
        difference = MeanDifference(mean=float(differences.mean()), pairs=len(groups), p=p)
        by_unit, over = {}, f"{len(groups)} {kind}"
        notes = (
            f"the {kind} share fewer than two seeds, so p is from a sign-flip test: p is the "
            "fraction of all choices of signs of the differences with a mean at least as large. "
            f"The test treats the {kind} as a random sample; nothing is known about the variation "
            "between seeds",
        )
    first, second = means.mean(axis=0).tolist()
    return Line(
        task=task, first=first, second=second, difference=difference, over=over, notes=notes,
        by_unit=by_unit, units=_PLURAL[unit_kind],
    )  # fmt: skip


def _keys_in_words(by_key: Mapping[Key, Any], varying: Sequence[str]) -> str:
    """Say which units a side has, and which values of `varying`: "seeds 0 and 1, depth 2 and 4"."""
    if not by_key:
        return "no number"
    units, *settings = zip(*sorted(by_key), strict=True)
    columns = [[*dict.fromkeys(map(str, c))] for c in ([n for _, n in units], *settings)]
    unit_kind, _ = units[0]
    names = [unit_kind if len(columns[0]) == 1 else _PLURAL[unit_kind], *varying]
    return ", ".join(f"{n} {' and '.join(c)}" for n, c in zip(names, columns, strict=True))


def _best_baseline(numbers: Numbers, place: Place) -> tuple[str, float] | None:
    """Return the name and score of the best baseline on the data of a place; None without any.

    For accuracies on tasks of the Long Range Arena, chance is one of the baselines.
    """
    columns = dict(place)
    of_data = {name: columns[name] for name in TASK if name in columns}
    scores = {
        str(row["baseline"]).replace("_", " "): float(row["value"])
        for other, rows in numbers.places.items()
        for row in rows.values()
        if row["baseline"] and not is_oracle(row["baseline"])
        if row["status"] == "ok" and of_data.items() <= dict(other).items()
    }
    task = str(columns["task"])
    if numbers.metric == ACCURACY.metric and task in CHANCE:
        scores["chance"] = CHANCE[task]
    name = (max if numbers.score.higher else min)(scores, key=lambda n: scores[n], default="")
    return (name, scores[name]) if name else None


def _count_signs(differences: Sequence[float], higher: bool) -> dict[str, Any]:
    """Return how many differences favour the first side, are equal, and favour the second side.

    A positive difference favours the first side if `higher` numbers are better.
    """
    signs = [0 if abs(d) < 1e-12 else 1 if (d > 0) == higher else -1 for d in differences]
    return {"better": signs.count(1), "equal": signs.count(0), "worse": signs.count(-1)}


def _line_over_tasks(lines: Sequence[Line], *, higher: bool) -> Line:
    """Return the line for the mean over tasks, which have equal weights."""
    task_means = [{("seed", 0): (line.first or 0.0, line.second or 0.0)} for line in lines]
    by_unit = [line.by_unit for line in lines]
    share_units = len(set.intersection(*({*group} for group in by_unit))) > 1
    groups = by_unit if share_units else task_means
    line = _line_over(f"all {len(lines)} tasks", groups, "tasks")
    differences = [x.difference.mean for x in lines if x.difference]
    notes = (f"the mean is over the {line.over} that all tasks have",) if share_units else ()
    if share_units and all(x.variances for x in lines):
        line = replace(line, variances=tuple(v for x in lines for v in x.variances))
    if all(x.scores for x in lines):
        scores = tuple(task for x in lines for task in x.scores)
        line = replace(line, scores=scores, improvement=improvement(*zip(*scores, strict=True)))
    return replace(line, **_count_signs(differences, higher), notes=(*notes, *line.notes))
