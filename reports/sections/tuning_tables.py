"""Tables of a search: what tuning gave and cost, how wide the good options are, who is ahead."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np
import pandas as pd

from lra.reports.names import short_option_words
from lra.reports.sections.tuning_curves import COSTS, Curve, arm_curves
from lra.reports.statistics.intervals import LEVEL, Uncertainty, wilson_interval
from lra.reports.statistics.paired import mean_difference
from lra.reports.statistics.tuning import STUDIES, agreement, ahead, higher_is_better
from lra.reports.tables.costs import significant
from lra.reports.tables.marks import absent
from lra.reports.tables.places import place_title
from lra.reports.tables.scores import Score, entry
from lra.reports.tables.searches import (
    PLACE,
    Arm,
    SearchChoice,
    Searches,
    log_options,
    near_best,
    nearness,
    of_trials,
    option_name,
    score_of,
    whole,
)
from lra.reports.tables.table import Column, Entry, Table, TableRow

_PERCENT = f"{100 * LEVEL:g} %"
_TOP = 4
"""Trials whose spread is compared with the error of one score."""
_TRAINED = {"ok", "diverged"}
"""Ends of trainings that took what they were given."""


def tuned_table(searches: Searches, metric: str) -> Table:
    """Build the table of every arm: tuned and untuned scores, choice, trials, costs, marks."""
    score, lines, arms = score_of(metric), [], searches.per_arm(metric)
    finished = {arm: _finished(trials) for arm, trials in arms}
    for arm, trials in arms:
        choices = searches.choices.get(arm, [])
        tuned, untuned = (_scored(searches, arm, score, tuned=each) for each in (True, False))
        there = whole(trials, untuned=True)
        best = float(searches.chosen(there, arm)["score"].mean())
        again = float(searches.final(arm, metric, "validation")["value"].mean())
        beside = {count for other, count in finished.items() if other[:-1] == arm[:-1]}
        lines.append(_line(
            arm, _marked(tuned, choices, beside), untuned, _difference(tuned, untuned, score),
            _with_error(_number(best, score), choices, score),
            _number(_fourth(there, score), score), _number(again, score),
            _number(best - again, score, sign="+"), _chosen_options(choices), *_costs(trials),
        ))  # fmt: skip
    columns = [
        Column(title=title, group=group, words=title == "chosen options")
        for group, titles in (
            ("test", ("tuned", "untuned", "gain")),
            ("validation", ("best trial (error)", "fourth", "its options again", "optimism")),
            ("", ("chosen options",)),
            ("search", ("trials (failed)", "steps", "hours", "multiply-adds")),
        )
        for title in titles
    ]
    return Table(
        title=f"{score.title} after tuning", caption=_caption(searches, metric),
        stub="model", columns=tuple(columns), rows=tuple(lines),
        brief=f"{score.unit}, test split; options chosen on validation.",
    )  # fmt: skip


def _line(arm: Arm, *entries: Entry, rung: str = "") -> TableRow:
    """Return a line of an arm, under the heading of its place."""
    title = f"{arm[-1]}, rung {rung}" if rung else str(arm[-1])
    return TableRow(title=title, section=place_title(arm, data=True), entries=entries)


def _caption(searches: Searches, metric: str) -> str:
    trials = searches.trials[searches.trials["metric"] == metric]
    samplers = ", ".join(sorted(set(trials["sampler"])))
    per = trials[trials["trial"] > 0].groupby([*PLACE, "model", "study"], dropna=False)["trial"]
    sizes = sorted(set(per.nunique()))
    count = "–".join(str(size) for size in dict.fromkeys((sizes[0], sizes[-1]))) if sizes else "no"
    seeds = searches.finals[metric, "test"]["seed"].nunique()
    text = (
        f"{score_of(metric).unit}. Options are chosen by the {metric.replace('_', ' ')} of the "
        f"validation split among {count} trials of each model and study (search={samplers}) and "
        "the untuned options; the chosen ones are trained again with other seeds and scored on "
        "test. "
    )
    if searches.studies >= STUDIES:
        text += f"Means over {searches.studies} searches with {_PERCENT} t intervals, which "
        text += "include tuning. "
    else:
        text += (
            f"Means over {seeds} final seed{'s' * (seeds != 1)} with {_PERCENT} intervals, which "
            f"do not include the variance of the search: search.studies={STUDIES} and more do. "
        )
    if score_of(metric).shares:
        text += (
            "In parentheses, the standard error of one score, by the number of validation "
            "examples: trials down to the fourth best that differ by less are not told apart. "
        )
    devices = sorted(set(trials["device"]))
    machine = devices[0] if len(devices) == 1 else f"{len(devices)} kinds of machine"
    return text + (
        "Optimism: the chosen trial's validation score minus that of its options trained again. "
        f"Steps, hours of training ({machine}) and multiply-adds are those of all trials."
    )


def _scored(searches: Searches, arm: Arm, score: Score, *, tuned: bool = True) -> Entry:
    """Return the mean final score on test, over seeds or, of several studies, over these."""
    result = entry(searches.final(arm, score.metric, "test", tuned=tuned), score)
    # the caption says over how many, unless some failed
    text = result.text.replace(f"; {result.facts.get('seeds')} seeds", "")
    if searches.studies < STUDIES or result.interval is None:
        return replace(result, text=text)
    interval = replace(result.interval, source=Uncertainty.studies)
    return replace(result, text=text.replace(" seeds", " studies"), interval=interval)


def _marked(result: Entry, choices: Sequence[SearchChoice], finished: Collection[int]) -> Entry:
    marks = [mark for choice in choices for mark in choice.marks]
    if len(finished) > 1:
        counts = ", ".join(map(str, sorted(finished)))
        marks.append(("unequal_budgets", f"models differ in finished trials ({counts})"))
    sentences = [text for _, text in marks]
    sentences += [choice.reason for choice in choices if choice.trial is None]
    facts = {**result.facts, "marks": " ".join(sorted({name for name, _ in marks}))}
    return replace(result, notes=(*result.notes, *dict.fromkeys(sentences)), facts=facts)


def _finished(trials: pd.DataFrame) -> int:
    """Return how many trials were trained as far as they were to be, or diverged before."""
    drawn = trials[trials["trial"] > 0].groupby(["study", "trial"])["status"]
    return sum({*statuses} <= _TRAINED for _, statuses in drawn)


def _known(value: float, text: str) -> Entry:
    return absent() if math.isnan(value) else Entry(text=text, value=value)


def _number(value: float, score: Score, sign: str = "") -> Entry:
    return _known(value, f"{score.factor * value:{sign}.{score.digits}f}")


def _with_error(best: Entry, choices: Sequence[SearchChoice], score: Score) -> Entry:
    """Return the score of a trial with the standard error that its examples leave it."""
    examples = min((choice.examples for choice in choices), default=0)
    if best.value is None or not score.shares or not examples:
        return best
    error = math.sqrt(best.value * (1 - best.value) / examples)
    text = f"{best.text} ({_number(error, score).text})"
    return replace(best, text=text, facts={"examples": examples, "standard_error": error})


def _fourth(trials: pd.DataFrame, score: Score) -> float:
    """Return the score of the fourth best trial, mean over studies; NaN of fewer."""
    ordered = trials.dropna(subset="score").sort_values("score", ascending=not score.higher)
    found = [*ordered.groupby("study")["score"].nth(_TOP - 1)]
    return fmean(found) if found else math.nan


def _difference(one: Entry, other: Entry, score: Score) -> Entry:
    """Return the mean difference of two scores, paired by seed or study."""
    shared = sorted({*one.by_seed} & {*other.by_seed})
    if not shared:
        return absent()
    result = mean_difference(*([each.by_seed[s] for s in shared] for each in (one, other)))
    shown, facts = _number(result.mean, score, "+"), {"pairs": result.pairs}
    if (ends := result.interval) is None:
        return replace(shown, facts=facts)
    low, high = (_number(end, score, "+").text for end in (ends.low, ends.high))
    return replace(shown, text=f"{shown.text} [{low}, {high}]", interval=ends, facts=facts)


def _chosen_options(choices: Sequence[SearchChoice]) -> Entry:
    texts = []
    for choice in choices:
        if choice.trial is not None:
            options = {option_name(name): str(value) for name, value in choice.options.items()}
            of_trial = "untuned" if choice.trial == 0 else f"trial {choice.trial}"
            texts.append(f"{', '.join(short_option_words(options))} ({of_trial})")
    facts = {f"words {choice.study}": choice.words for choice in choices}
    return Entry(text="; ".join(texts), facts=facts) if texts else absent("nothing was chosen")


def _costs(trials: pd.DataFrame) -> Iterator[Entry]:
    """Yield trials, steps, hours and multiply-adds of one arm's search."""
    drawn = trials[trials["trial"] > 0].groupby(["study", "trial"])["status"]
    failed = sum((statuses != "ok").any() for _, statuses in drawn)
    facts = {"failed": int(failed)}
    yield Entry(text=f"{len(drawn)} ({failed})", value=float(len(drawn)), facts=facts)
    taken = of_trials(trials).sum(min_count=1)
    for column, factor in (("steps", 1.0), ("time", 1 / 3600), ("multiply_adds", 1.0)):
        total = factor * float(taken[column])
        yield _known(total, _rounded(total))


def _rounded(number: float) -> str:
    return f"{number:.3g}".replace("e+", "e") if number >= 1e7 else significant(number)


def window_table(searches: Searches, metric: str) -> Table | None:
    """Build the table of the share of trials near the best, and of the decades that they span."""
    score, arms = score_of(metric), searches.per_arm(metric)
    logs = sorted({o for _, trials in arms for o in log_options(trials)})
    lines = []
    for arm, trials in arms:
        drawn = whole(trials)
        good = near_best(drawn, metric)
        if drawn.empty or good.empty:
            continue
        share = len(good) / len(drawn)
        ends = wilson_interval(share, len(drawn))
        entries = [Entry(
            text=f"{100 * share:.0f} [{100 * ends.low:.0f}, {100 * ends.high:.0f}]",
            value=share, interval=replace(ends, source=Uncertainty.trials),
            facts={"trials": len(drawn), "near": len(good)},
        )]  # fmt: skip
        for option in logs:
            found = [float(point[option]) for point in good["point"] if option in point]
            if not found:
                entries += [absent(), absent()]
                continue
            low, high = min(found), max(found)
            width = math.log10(high / low)
            entries += [Entry(text=f"{low:.3g}–{high:.3g}"), _known(width, f"{width:.2f}")]
        lines.append(_line(arm, *entries))
    if not lines:
        return None
    within, relative = nearness(metric)
    percent = relative or score.shares
    apart = f"{100 * within:g} {'percentage points' if score.shares else '%'}"
    apart = apart if percent else f"{within:g}"
    heads = [Column(title="trials near the best (%)")]
    for option in logs:
        name = short_option_words({option_name(option): ""})[0].strip()
        heads += [Column(title="from–to", group=name), Column(title="decades", group=name)]
    return Table(
        title=f"How wide the window of good options is ({score.title.lower()})",
        caption=f"Near the best: a validation score at most {apart} from the model's best trial. "
        f"Share of all trials, failed ones included, with Wilson's {_PERCENT} interval; of "
        "options with a logarithmic range, the outermost values near the best and the "
        "decades between them.",
        stub="model", columns=tuple(heads), rows=tuple(lines),
    )  # fmt: skip


def rung_table(searches: Searches, metric: str) -> Table | None:
    """Build the table of how far rungs and full length agree, and what rungs saved."""
    lines = []
    for arm, trials in searches.per_arm(metric):
        drawn = trials[trials["trial"] > 0]
        scores = drawn.pivot(index=["study", "trial"], columns="rung", values="score")
        for rung in sorted({*drawn["rung"]} - {""}, key=float):
            count = int((drawn["rung"] == rung).sum())
            both = scores.reindex(columns=[rung, ""]).dropna()
            tau = agreement([*both[rung]], [*both[""]]) if len(both) > 1 else math.nan
            lines.append(_line(
                arm, _known(count, f"{count}"), _known(len(both), f"{len(both)}"),
                _known(tau, f"{tau:.2f}"), _top_kept(both, metric), _saved(trials), rung=rung,
            ))  # fmt: skip
    if not lines:
        return None
    titles = ("trials", "of full length", "Kendall's τ", "top quarter", "steps saved (%)")
    return Table(
        title="Agreement of rungs with full length",
        caption="τ between the scores of a rung and those of full length, over the trials that "
        "have both: only the ones that were kept, so it says nothing about those that were left. "
        "Top quarter: how many of the best at full length were among as many best at the rung. "
        "Saved: of the steps that all trials would have taken at full length.",
        stub="model", columns=tuple(Column(title=title) for title in titles), rows=tuple(lines),
    )  # fmt: skip


def _top_kept(both: pd.DataFrame, metric: str) -> Entry:
    """Return how many of the best at full length were among as many best at a rung."""
    if not (count := math.ceil(len(both) / 4)):
        return absent()
    up = not higher_is_better(metric)
    early, best = (
        {*both[column].sort_values(ascending=up, kind="stable").index[:count]} for column in both
    )
    kept = len(best & early)
    return Entry(text=f"{kept} of {count}", value=kept / count)


def _saved(trials: pd.DataFrame) -> Entry:
    """Return the share of steps that rungs saved."""
    taken = of_trials(trials)["steps"]
    full = float(taken.max()) * len(taken)
    saved = 1 - float(taken.sum()) / full if full > 0 else math.nan
    return _known(saved, f"{100 * saved:.0f}")


def comparison_tables(searches: Searches, metric: str) -> Iterator[tuple[Arm, Table]]:
    """Yield, for each place of two arms and more, who is ahead at equal budgets."""
    by_place: dict[Arm, list[Curve]] = {}
    for curve in arm_curves(searches, metric):
        by_place.setdefault(curve.arm[:-1], []).append(curve)
    for place, curves in by_place.items():
        if len(curves) > 1:
            yield place, _comparison(searches, metric, curves)


def _comparison(searches: Searches, metric: str, curves: Sequence[Curve]) -> Table:
    score, studies, lines = score_of(metric), searches.studies, []
    for budget, (words, _) in COSTS.items():
        if any(math.isnan(curve.costs[budget]) for curve in curves):
            continue
        if budget == "trials" and studies >= STUDIES:
            found = [_scored(searches, curve.arm, score) for curve in curves]
            entries = [
                [Entry(text="") if a is b else _difference(a, b, score) for b in found]
                for a in found
            ]
        else:
            least = min(len(c.curve.best) * c.costs[budget] for c in curves)
            entries = [[_by_bands(a, b, metric, budget, least) for b in curves] for a in curves]
        lines += [
            TableRow(title=str(curve.arm[-1]), entries=tuple(line), section=f"at equal {words}")
            for curve, line in zip(curves, entries, strict=True)
        ]
    over = (
        f"At equal numbers of trials: difference of tuned test scores (row minus column), paired "
        f"by search, with {_PERCENT} t interval over {studies} searches. Else by the bands"
        if studies >= STUDIES
        else "By the bands"
    )
    return Table(
        title=f"Who is ahead on {place_title(curves[0].arm, data=True)}, by {score.title.lower()}",
        caption=f"{over} of the tuning curves on validation: ahead or behind where the {_PERCENT} "
        "bands are apart, with the numbers of trials, hours or multiply-adds at which they are. "
        "Near the end of a curve no band is bounded on its good side.",
        stub="model", columns=tuple(Column(title=str(curve.arm[-1])) for curve in curves),
        rows=tuple(lines),
    )  # fmt: skip


def _by_bands(first: Curve, second: Curve, metric: str, budget: str, least: float) -> Entry:
    """Return which of two arms is ahead where the bands of both are apart."""
    if first is second:
        return Entry(text="")
    if not (first.banded and second.banded):
        return absent("without bands nothing is told apart")
    step = max(first.costs[budget], second.costs[budget])
    costs = np.arange(1.0, int(least / step + 1e-9) + 1) * np.float64(step)
    one, other = (curve.at_costs(budget, costs) for curve in (first, second))
    for word, apart in (
        ("ahead", ahead(one, other, metric)),
        ("behind", ahead(other, one, metric)),
    ):
        if apart.any():
            low, high = (f"{costs[apart][end]:.3g}".replace("e+", "e") for end in (0, -1))
            return Entry(text=f"{word} at {low}" + (f"–{high}" if high != low else ""))
    return Entry(text=f"not told apart by {least:.3g}".replace("e+", "e"))
