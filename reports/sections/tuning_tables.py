"""Tables of a search: what tuning gave and cost, how wide the good options are, who is ahead."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, compress
from statistics import fmean

import numpy as np
import pandas as pd

from lra.reports.names import short_option_words
from lra.reports.sections.tuning_curves import COSTS, Curve, arm_curves
from lra.reports.statistics.intervals import LEVEL, Uncertainty, exact_interval
from lra.reports.statistics.paired_tests import (
    ALPHA,
    MeanDifference,
    holm,
    holm_levels,
    mean_difference,
)
from lra.reports.statistics.tuning import (
    BAND_TRIALS,
    STUDIES,
    agreement,
    ahead,
    bounds,
    higher_is_better,
)
from lra.reports.style import current_style
from lra.reports.tables.costs import significant
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.places import place_title
from lra.reports.tables.ranking import DIFFERS, rank_columns
from lra.reports.tables.scores import Score, entry, score_of
from lra.reports.tables.searches import (
    PLACE,
    Arm,
    SearchChoice,
    Searches,
    good_trials,
    independent,
    log_options,
    nearness,
    of_trials,
    option_name,
    whole,
)
from lra.reports.tables.table import Column, Entry, Table

_PERCENT = f"{100 * LEVEL:g} %"
_TOP = 4
"""Trials whose spread is compared with the error of one score."""
_BEGAN = ("untuned", "gain")
"""Columns of options that a search began from, which it may have left out."""
_TRAINED = {"ok", "diverged"}
"""Ends of trainings that took what they were given."""


def tuned_table(searches: Searches, metric: str) -> Table:
    """Build the table of every arm: tuned and untuned scores, choice, trials, costs, marks."""
    score, arms = score_of(metric), searches.per_arm(metric)
    finished = {arm: _finished(trials) for arm, trials in arms}
    tuned, marks = _ranked_by_place(searches, score, [arm for arm, _ in arms])
    lines: list[tuple[Arm, list[Entry]]] = []
    for arm, trials in arms:
        choices = searches.choices.get(arm, [])
        untuned = _scored(searches, arm, score, tuned=False)
        there = whole(trials, untuned=True)
        best = float(searches.chosen(there, arm)["score"].mean())
        again = float(searches.final(arm, metric, "validation")["value"].mean())
        beside = {count for other, count in finished.items() if other[:-1] == arm[:-1]}
        lines.append((arm, [
            _marked(tuned[arm], choices, beside), untuned,
            _difference(searches, tuned[arm], untuned, score),
            _with_deviation(_number(best, score), searches.deviation(arm, metric), score),
            _number(_fourth(there, score), score), _number(again, score),
            _number(best - again, score, sign="+"), _chosen_options(choices), *_costs(trials),
        ]))  # fmt: skip
    began = any(entries[1].status == "ok" for _, entries in lines)
    columns = [
        Column(title=title, group=group, words=title == "chosen options")
        for group, titles in (
            ("test", ("tuned", "untuned", "gain")),
            ("validation", ("best trial (SD)", "fourth", "its options again", "optimism")),
            ("", ("chosen options",)),
            ("search", ("trials (failed)", "steps", "hours", "multiply-adds")),
        )
        for title in titles
    ]
    shown = [began or column.title not in _BEGAN for column in columns]
    rows = [_line(arm, *compress(entries, shown)) for arm, entries in lines]
    for place in dict.fromkeys(arm[:-1] for arm, _ in lines):
        first = next(arm for arm, _ in lines if arm[:-1] == place)
        if (baseline := searches.best_baseline(first, metric, "test")) is not None:
            name, value = baseline
            rest = [Entry(text="")] * (sum(shown) - 1)
            entries = (_number(value, score), *rest)
            rows.append((place_title(first, data=True), f"best baseline: {name}", entries))
    rows.sort(key=lambda row: row[0])  # stable: baselines stay behind their models
    return listed_table(
        rows, [*compress(columns, shown)], title=f"{score.title} after tuning",
        caption=_caption(searches, metric, marks),
        brief=f"Numbers are {score.unit}, test split; options chosen on validation.",
    )  # fmt: skip


def _ranked_by_place(
    searches: Searches, score: Score, arms: Sequence[Arm]
) -> tuple[dict[Arm, Entry], str]:
    """Return the tuned scores of arms, ranked at each place, and what their marks mean."""
    found, said = dict[Arm, Entry](), dict[str, None]()
    for place in dict.fromkeys(arm[:-1] for arm in arms):
        here = [arm for arm in arms if arm[:-1] == place]
        floors = [*searches.baselines(here[0], score.metric, "test").values()]
        lines = [[_scored(searches, arm, score)] for arm in here]
        lines, marks = rank_columns(lines, score.decimals, higher=score.higher, floors=[floors])
        found |= {arm: line[0] for arm, line in zip(here, lines, strict=True)}
        said[marks] = None
    return found, " ".join(filter(None, said))


def _line(arm: Arm, *entries: Entry, rung: str = "") -> tuple[str, str, tuple[Entry, ...]]:
    """Return a line of an arm, under the heading of its place."""
    title = f"{arm[-1]}, rung {rung}" if rung else str(arm[-1])
    return place_title(arm, data=True), title, entries


def _caption(searches: Searches, metric: str, marks: str) -> str:
    trials = searches.trials[searches.trials["metric"] == metric]
    samplers = ", ".join(sorted(set(trials["sampler"])))
    per = trials[trials["trial"] > 0].groupby([*PLACE, "model", "study"], dropna=False)["trial"]
    sizes = sorted(set(per.nunique()))
    count = "–".join(str(size) for size in dict.fromkeys((sizes[0], sizes[-1]))) if sizes else "no"
    seeds = searches.finals[metric, "test"]["seed"].nunique()
    text = (
        f"Numbers are {score_of(metric).unit}. Options are chosen by the "
        f"{metric.replace('_', ' ')} of the validation split, among {count} trials of each model "
        f"and study (search={samplers})"
        f"{' and the untuned options' * bool((trials['trial'] == 0).any())}; the chosen ones are "
        "trained again with other seeds and scored on test. "
    )
    if searches.studies >= STUDIES:
        text += f"Means over {searches.studies} searches with {_PERCENT} t intervals, which "
        text += "include tuning. "
    else:
        text += (
            f"Means over {seeds} final seed{'s' * (seeds != 1)} with {_PERCENT} intervals, which "
            f"do not include the variance of the search: search.studies={STUDIES} and more do. "
        )
    text += (
        "A failed training or trial counts as the worst score. In parentheses, the standard "
        "deviation of the validation score over the final seeds of the chosen options: trials "
        "among the best four that differ by less are equally good. "
    )
    if (trials["trial"] == 0).any():
        text += (
            "The untuned options were not drawn by the search, so they do not count as a trial, "
            "here and in curves and windows. A drawn trial with the same options does count; "
            "among the four best, and in the costs, the two count once. "
        )
    devices = sorted(set(trials["device"]))
    machine = devices[0] if len(devices) == 1 else f"{len(devices)} kinds of machine"
    return f"{text}{marks} ".lstrip() + (
        "Optimism: the validation score of the chosen trial minus that of the same options "
        f"trained again. Steps, hours of training ({machine}) and multiply-adds are those of all "
        "trials, including the untuned one."
    )


def _scored(searches: Searches, arm: Arm, score: Score, *, tuned: bool = True) -> Entry:
    """Return the mean final score on test, over seeds or, of several studies, over these."""
    result = entry(searches.final(arm, score.metric, "test", tuned=tuned), score)
    many, interval = searches.studies >= STUDIES, result.interval
    count = searches.studies if many else searches.finals[score.metric, "test"]["seed"].nunique()
    text = result.text.replace(f"; {count} seeds", "")  # which the caption says
    if many and interval is not None and interval.source is Uncertainty.seeds:
        interval, text = (
            replace(interval, source=_over(searches)),
            text.replace(" seeds", " studies"),
        )
    return replace(result, text=text, interval=interval)


def _over(searches: Searches) -> Uncertainty:
    """Return what an interval of tuned scores accounts for."""
    return Uncertainty.studies if searches.studies >= STUDIES else Uncertainty.seeds


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
    return _known(value, score.text(value, sign))


def _with_deviation(best: Entry, deviation: float, score: Score) -> Entry:
    """Return the score of a trial with the deviation that another seed leaves it."""
    if best.value is None or math.isnan(deviation):
        return best
    text = f"{best.text} ({_number(deviation, score).text})"
    return replace(best, text=text, facts={"standard_deviation": deviation})


def _fourth(trials: pd.DataFrame, score: Score) -> float:
    """Return the score of the fourth best options, mean over studies; NaN of fewer."""
    ordered = trials.dropna(subset="score").sort_values("score", ascending=not score.higher)
    ordered = ordered.drop_duplicates(["study", "setting"])
    found = [*ordered.groupby("study")["score"].nth(_TOP - 1)]
    return fmean(found) if found else math.nan


def _mean_difference(
    searches: Searches, one: Entry, other: Entry, level: float = LEVEL
) -> MeanDifference | None:
    """Return the mean difference of two scores, paired by seed or study; None without a pair."""
    shared = sorted({*one.by_seed} & {*other.by_seed})
    if not shared:
        return None
    values = ([each.by_seed[s] for s in shared] for each in (one, other))
    return mean_difference(*values, level=level, source=_over(searches))


def _difference(
    searches: Searches, one: Entry, other: Entry, score: Score, level: float = LEVEL
) -> Entry:
    """Return the mean difference of two scores as an entry."""
    result = _mean_difference(searches, one, other, level)
    if result is None:
        return absent()
    shown = replace(_number(result.mean, score, "+"), facts={"pairs": result.pairs})
    if (ends := result.interval) is None:
        return replace(
            shown, notes=("no interval, because the difference is the same at every seed",)
        )
    low, high = (_number(end, score, "+").text for end in (ends.low, ends.high))
    return replace(shown, text=f"{shown.text} [{low}, {high}]", interval=ends)


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
    """Build the table of the share of good trials, and of the window that they span."""
    score, arms, bar = score_of(metric), searches.per_arm(metric), current_style().style.good_score
    logs = sorted({o for _, trials in arms for o in log_options(trials)})
    lines = []
    for arm, trials in arms:
        drawn = whole(trials)
        if drawn["score"].isna().all():
            continue
        baseline, floor = _to_beat(searches, arm, metric)
        beyond = drawn["score"] > floor if score.higher else drawn["score"] < floor
        if not beyond.any():
            text = _number(floor, score).text
            why = f"no trial is better than the baseline {baseline}, {text}: any is as good"
            lines.append(_line(arm, *[absent(why)] * (1 + 3 * len(logs))))
            continue
        good = good_trials(drawn, metric) & beyond
        entries = [_share(good, independent=bar is not None and independent(trials))]
        for option in logs:
            entries += _window(drawn["point"], good, option)
        lines.append(_line(arm, *entries))
    if not lines:
        return None
    name = score.title.lower()
    if bar is None:
        within, relative = nearness(metric)
        percent = relative or score.shares
        apart = f"{100 * within:g} {'percentage points' if score.shares else '%'}"
        apart = apart if percent else f"{within:g}"
        title = "trials near the best (%)"
        which = (
            f"Near the best: a validation score at most {apart} from the model's best trial. This "
            "percentage has no interval, because the best trial sets the limit. To get an "
            "interval, set good_score in the report's style before the search. "
        )
    else:
        title = "good trials (%)"
        which = (
            f"Good: a validation score of {_number(bar, score).text} or better, if this limit was "
            f"set before the search. In at least {_PERCENT} of searches with independent points, "
            "the interval covers the fraction of the ranges that is good; other searches have no "
            "interval. "
        )
    heads = [Column(title=title)]
    for option in logs:
        group = short_option_words({option_name(option): ""})[0].strip()
        heads += [Column(title=t, group=group) for t in ("from–to", "others beyond", "decades")]
    return listed_table(
        lines, heads, title=f"How wide the window of good options is ({name})",
        caption=f"{which}Trials that failed, or are no better than the best baseline, are not "
        "good. From–to: the outermost good values of an option with a logarithmic range. Each end "
        "of the window lies between such a value and the next value that was tried. Decades: the "
        "window spans at least the first number and at most the second; ≥: no trial lies beyond. "
        "Noise, and other options that are searched at the same time, can change both numbers.",
    )  # fmt: skip


def _to_beat(searches: Searches, arm: Arm, metric: str) -> tuple[str, float]:
    """Return the best baseline, on validation or else on test; without any, the worst score."""
    found = (searches.best_baseline(arm, metric, split) for split in ("validation", "test"))
    return next(filter(None, found), ("of the worst score", bounds(metric)[0]))


def _share(good: pd.Series, *, independent: bool) -> Entry:
    """Return the share of trials that are good, with an interval where they are draws."""
    share, facts = float(good.mean()), {"trials": len(good), "near": int(good.sum())}
    if not independent:
        return Entry(text=f"{100 * share:.0f}", value=share, facts=facts)
    ends = exact_interval(facts["near"], facts["trials"])
    text = f"{100 * share:.0f} [{100 * ends.low:.0f}, {100 * ends.high:.0f}]"
    return Entry(text=text, value=share, interval=ends, facts=facts)


def _window(points: pd.Series, good: pd.Series, option: str) -> list[Entry]:
    """Return the outermost good values of an option, the next beyond them, and the decades."""
    tried = [float(point[option]) for point in points if option in point]
    found = [float(point[option]) for point in points[good] if option in point]
    if not found:
        return [absent()] * 3
    low, high = min(found), max(found)
    below = max((value for value in tried if value < low), default=0.0)
    above = min((value for value in tried if value > high), default=math.inf)
    least, most = math.log10(high / low), math.log10(above / below) if below else math.inf
    beyond = (f"{end:.3g}" if 0 < end < math.inf else "–" for end in (below, above))
    text = f"≥ {least:.2f}" if math.isinf(most) else f"{least:.2f}–{most:.2f}"
    facts = {} if math.isinf(most) else {"at_most": most}
    return [
        Entry(text=f"{low:.3g}–{high:.3g}"),
        Entry(text=", ".join(beyond)),
        Entry(text=text, value=least, facts=facts),
    ]


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
    return listed_table(
        lines, [Column(title=t) for t in titles], title="Agreement of rungs with full length",
        caption="τ between the scores of a rung and those of full length, over the trials that "
        "continued to full length. Top quarter: how many of the best quarter at full length were "
        "also in the best quarter at the rung. Saved: the fraction of steps saved, compared with "
        "all trials at full length.",
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
    score, many, lines = score_of(metric), searches.studies >= STUDIES, []
    found = [_scored(searches, curve.arm, score) for curve in curves]
    blocks = [("tuned test score, row minus column", _differences(searches, found, score))]
    banded = all(curve.banded for curve in curves)
    for budget, (words, _) in COSTS.items() if banded else ():
        if not any(math.isnan(curve.costs[budget]) for curve in curves):
            least = min(len(c.curve.best) * c.costs[budget] for c in curves)
            bands = [[_by_bands(a, b, metric, budget, least) for b in curves] for a in curves]
            blocks.append((f"bands at equal {words}", bands))
    for section, entries in blocks:
        lines += [(section, str(c.arm[-1]), line) for c, line in zip(curves, entries, strict=True)]
    over = (
        f"paired by search, with t interval over {searches.studies} searches"
        if many
        else "paired by seed, with t interval over final seeds, which does not include "
        "the variance of the search"
    )
    pairs = len(found) * (len(found) - 1) // 2
    tested = "by a paired t test"
    if pairs > 1:
        tested += f" with Holm's correction for {pairs} pairs, whose levels the intervals have"
    of_bands = (
        f"Bands: a model is ahead or behind where the {_PERCENT} bands of the tuning curves on "
        "validation are apart, with the numbers of trials, hours or multiply-adds at which they "
        f"are. Bands usually overlap below {BAND_TRIALS} trials, even where the best scores of two "
        "models differ greatly."
        if banded
        else "There are no bands of the tuning curves, so there is no comparison by budget: bands "
        "need independent trials and the package opda (pip install 'lra[search]')."
    )
    best = searches.best_baseline(curves[0].arm, metric, "test")
    beside = f" Best baseline: {best[0]}, {_number(best[1], score).text}." if best else ""
    return listed_table(
        lines, [Column(title=str(curve.arm[-1])) for curve in curves],
        title=f"Who is ahead on {place_title(curves[0].arm, data=True)}, by {score.title.lower()}",
        caption=f"Difference of the tuned test scores, {over}; {DIFFERS}: p < {ALPHA:.2g} {tested}."
        f"{beside} {of_bands}",
    )  # fmt: skip


def _differences(searches: Searches, found: Sequence[Entry], score: Score) -> list[list[Entry]]:
    """Return the differences of tuned scores, row minus column, tested with Holm's correction."""
    pairs = [*combinations(range(len(found)), 2)]
    first = [_mean_difference(searches, found[i], found[j]) for i, j in pairs]
    tested = [at for at, each in enumerate(first) if each is not None and each.p is not None]
    p = [first[at].p or 0.0 for at in tested]  # type: ignore[union-attr]
    level = dict(zip(tested, holm_levels(p), strict=True))
    corrected = dict(zip(tested, holm(p), strict=True))
    entries = [[Entry(text="")] * len(found) for _ in found]
    for at, (i, j) in enumerate(pairs):
        for row, column in ((i, j), (j, i)):
            entry = _difference(searches, found[row], found[column], score, level.get(at, LEVEL))
            differs = corrected.get(at, 1.0) < ALPHA
            entries[row][column] = replace(entry, text=entry.text + DIFFERS * differs)
    return entries


def _by_bands(first: Curve, second: Curve, metric: str, budget: str, least: float) -> Entry:
    """Return which of two arms is ahead where the bands of both are apart."""
    if first is second:
        return Entry(text="")
    if not (first.banded and second.banded):
        return absent("there are no bands, so no difference is significant")
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
    return Entry(text=f"not significant by {least:.3g}".replace("e+", "e"))
