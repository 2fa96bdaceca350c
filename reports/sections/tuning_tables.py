"""Make the tables of a hyperparameter search: gains, costs, ranges of good options, comparisons."""

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
"""The table shows the best trial and the fourth, so that readers can compare their difference with
the standard deviation over seeds."""
_BEGAN = ("untuned", "gain")
"""Columns about the untuned options, which are omitted if the search did not train these."""
_TRAINED = {"ok", "diverged"}
"""Statuses of trials that count as finished."""


def tuned_table(searches: Searches, metric: str) -> Table:
    """Return the table with a line for each arm: tuned and untuned scores, choice and costs."""
    score, arms = score_of(metric), searches.per_arm(metric)
    finished = {arm: _count_finished(trials) for arm, trials in arms}
    tuned, marks = _rank_by_place(searches, score, [arm for arm, _ in arms])
    lines: list[tuple[Arm, list[Entry]]] = []
    for arm, trials in arms:
        choices = searches.choices.get(arm, [])
        untuned = _final_entry(searches, arm, score, tuned=False)
        full_trials = whole(trials, untuned=True)
        best = float(searches.chosen(full_trials, arm)["score"].mean())
        again = float(searches.final(arm, metric, "validation")["value"].mean())
        counts = {count for other, count in finished.items() if other[:-1] == arm[:-1]}
        lines.append((arm, [
            _add_marks(tuned[arm], choices, counts), untuned,
            _difference_entry(searches, tuned[arm], untuned, score),
            _with_deviation(_number(best, score), searches.deviation(arm, metric), score),
            _number(_fourth_score(full_trials, score), score), _number(again, score),
            _number(best - again, score, sign="+"), _chosen_options(choices),
            *_cost_entries(trials),
        ]))  # fmt: skip
    has_untuned = any(untuned.status == "ok" for _, (_, untuned, *_) in lines)
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
    shown = [has_untuned or column.title not in _BEGAN for column in columns]
    rows = [_line(arm, *compress(entries, shown)) for arm, entries in lines]
    for place in dict.fromkeys(arm[:-1] for arm, _ in lines):
        first = next(arm for arm, _ in lines if arm[:-1] == place)
        if (baseline := searches.best_baseline(first, metric, "test")) is not None:
            name, value = baseline
            rest = [Entry(text="")] * (sum(shown) - 1)
            entries = (_number(value, score), *rest)
            rows.append((place_title(first, data=True), f"best baseline: {name}", entries))
    rows.sort(key=lambda row: row[0])  # the sort is stable: baselines stay after their models
    return listed_table(
        rows, [*compress(columns, shown)], title=f"{score.title} after tuning",
        caption=_caption(searches, metric, marks),
        brief=f"Test scores are {score.unit}; options were chosen on the validation split.",
    )  # fmt: skip


def _rank_by_place(
    searches: Searches, score: Score, arms: Sequence[Arm]
) -> tuple[dict[Arm, Entry], str]:
    """Return the tuned score of each arm, ranked on each task, and sentences about the marks."""
    entries, sentences = dict[Arm, Entry](), dict[str, None]()
    for place in dict.fromkeys(arm[:-1] for arm in arms):
        same_place = [arm for arm in arms if arm[:-1] == place]
        floors = [*searches.baselines(same_place[0], score.metric, "test").values()]
        lines = [[_final_entry(searches, arm, score)] for arm in same_place]
        lines, marks = rank_columns(lines, score.decimals, higher=score.higher, floors=[floors])
        entries |= {arm: entry for arm, [entry] in zip(same_place, lines, strict=True)}
        sentences[marks] = None
    return entries, " ".join(filter(None, sentences))


def _line(arm: Arm, *entries: Entry, rung: str = "") -> tuple[str, str, tuple[Entry, ...]]:
    """Return a line of an arm: the heading of its place, its title and its entries."""
    title = f"{arm[-1]}, rung {rung}" if rung else str(arm[-1])
    return place_title(arm, data=True), title, entries


def _caption(searches: Searches, metric: str, marks: str) -> str:
    """Return the caption of the table of tuned scores; `marks` are sentences about ranks."""
    trials = searches.trials[searches.trials["metric"] == metric]
    samplers = ", ".join(sorted(set(trials["sampler"])))
    drawn = trials[trials["trial"] > 0].groupby([*PLACE, "model", "study"], dropna=False)
    sizes = sorted(set(drawn["trial"].nunique()))
    count = "–".join(str(size) for size in dict.fromkeys((sizes[0], sizes[-1]))) if sizes else "no"
    seeds = searches.finals[metric, "test"]["seed"].nunique()
    text = (
        f"Numbers are {score_of(metric).unit}. The search (search={samplers}) chose the options of "
        f"a model by the {metric.replace('_', ' ')} on the validation split, in each study among "
        f"{count} trials{' and the untuned options' * bool((trials['trial'] == 0).any())}. The "
        "chosen options were trained again with other seeds and scored on the test split. "
    )
    if searches.studies >= STUDIES:
        text += f"Test scores are means over {searches.studies} searches with {_PERCENT} t "
        text += "intervals, which include the variance of the search. "
    else:
        text += (
            f"Test scores are means over {seeds} final seed{'s' * (seeds != 1)} with {_PERCENT} "
            "intervals, which exclude the variance of the search; "
            f"search.studies={STUDIES} or more would include it. "
        )
    text += (
        "A failed training or trial counts as the worst score. Parentheses after the best trial "
        "hold the standard deviation of the validation score over the final seeds of the chosen "
        "options. If the best and the fourth trial differ by less, they are equally good. "
    )
    if (trials["trial"] == 0).any():
        text += (
            "The untuned options were not drawn by the search, so this table, the curves and the "
            "windows do not count them as a trial. If the search also drew these options, that "
            "trial counts, and the costs count both as one. "
        )
    devices = sorted(set(trials["device"]))
    machine = devices[0] if len(devices) == 1 else f"{len(devices)} kinds of machine"
    return f"{text}{marks} ".lstrip() + (
        "Optimism: the validation score of the chosen trial minus the validation score of the same "
        f"options trained again. Steps, hours of training ({machine}) and multiply-adds are sums "
        "over all trials, including the one with the untuned options."
    )


def _final_entry(searches: Searches, arm: Arm, score: Score, *, tuned: bool = True) -> Entry:
    """Return the mean final test score over seeds or, with several studies, over studies."""
    result = entry(searches.final(arm, score.metric, "test", tuned=tuned), score)
    several, interval = searches.studies >= STUDIES, result.interval
    seeds = searches.finals[score.metric, "test"]["seed"].nunique()
    usual_count = searches.studies if several else seeds
    text = result.text.replace(f"; {usual_count} seeds", "")  # the caption has this number
    if several and interval is not None and interval.source is Uncertainty.seeds:
        interval = replace(interval, source=_interval_source(searches))
        text = text.replace(" seeds", " studies")
    return replace(result, text=text, interval=interval)


def _interval_source(searches: Searches) -> Uncertainty:
    """Return what an interval of tuned scores accounts for: studies if there are enough of them."""
    return Uncertainty.studies if searches.studies >= STUDIES else Uncertainty.seeds


def _add_marks(result: Entry, choices: Sequence[SearchChoice], finished: Collection[int]) -> Entry:
    """Return an entry with the warnings of its searches; `finished` are counts of trials."""
    marks = [mark for choice in choices for mark in choice.marks]
    if len(finished) > 1:
        counts = ", ".join(map(str, sorted(finished)))
        text = f"the models of this task have different numbers of finished trials ({counts})"
        marks.append(("unequal_budgets", text))
    sentences = [text for _, text in marks]
    sentences += [choice.reason for choice in choices if choice.trial is None]
    facts = {**result.facts, "marks": " ".join(sorted({name for name, _ in marks}))}
    return replace(result, notes=(*result.notes, *dict.fromkeys(sentences)), facts=facts)


def _count_finished(trials: pd.DataFrame) -> int:
    """Return how many trials were trained as long as planned, or diverged before."""
    drawn = trials[trials["trial"] > 0].groupby(["study", "trial"])["status"]
    return sum({*statuses} <= _TRAINED for _, statuses in drawn)


def _entry_unless_nan(value: float, text: str) -> Entry:
    """Return the entry of a number, printed as `text`; a dash for NaN."""
    return absent() if math.isnan(value) else Entry(text=text, value=value)


def _number(value: float, score: Score, sign: str = "") -> Entry:
    """Return the entry of a score as its metric is printed; a dash for NaN."""
    return _entry_unless_nan(value, score.text(value, sign))


def _with_deviation(best: Entry, deviation: float, score: Score) -> Entry:
    """Return the score of a trial followed by its standard deviation over seeds, if known."""
    if best.value is None or math.isnan(deviation):
        return best
    text = f"{best.text} ({_number(deviation, score).text})"
    return replace(best, text=text, facts={"standard_deviation": deviation})


def _fourth_score(trials: pd.DataFrame, score: Score) -> float:
    """Return the score of the fourth best options, as a mean over studies; NaN if there is none."""
    ordered = trials.dropna(subset="score").sort_values("score", ascending=not score.higher)
    ordered = ordered.drop_duplicates(["study", "setting"])
    scores = [*ordered.groupby("study")["score"].nth(_TOP - 1)]
    return fmean(scores) if scores else math.nan


def _paired_difference(
    searches: Searches, first: Entry, second: Entry, level: float = LEVEL
) -> MeanDifference | None:
    """Return the mean of first minus second, paired by seed or study; None without a pair."""
    shared = sorted({*first.by_seed} & {*second.by_seed})
    if not shared:
        return None
    values = ([entry.by_seed[s] for s in shared] for entry in (first, second))
    return mean_difference(*values, level=level, source=_interval_source(searches))


def _difference_entry(
    searches: Searches, first: Entry, second: Entry, score: Score, level: float = LEVEL
) -> Entry:
    """Return the mean of first minus second as an entry, with its interval of `level`."""
    result = _paired_difference(searches, first, second, level)
    if result is None:
        return absent()
    shown = replace(_number(result.mean, score, "+"), facts={"pairs": result.pairs})
    if (interval := result.interval) is None:
        note = "there is no interval, because the difference is the same for every seed"
        return replace(shown, notes=(note,))
    low, high = (_number(end, score, "+").text for end in (interval.low, interval.high))
    return replace(shown, text=f"{shown.text} [{low}, {high}]", interval=interval)


def _chosen_options(choices: Sequence[SearchChoice]) -> Entry:
    """Return the chosen options of each study in words, as in "lr 0.003 (trial 4)"."""
    texts = []
    for choice in choices:
        if choice.trial is not None:
            options = {option_name(name): str(value) for name, value in choice.options.items()}
            of_trial = "untuned" if choice.trial == 0 else f"trial {choice.trial}"
            texts.append(f"{', '.join(short_option_words(options))} ({of_trial})")
    facts = {f"words {choice.study}": choice.words for choice in choices}
    return Entry(text="; ".join(texts), facts=facts) if texts else absent("nothing was chosen")


def _cost_entries(trials: pd.DataFrame) -> Iterator[Entry]:
    """Yield the number of trials, and the total steps, hours and multiply-adds of an arm."""
    drawn = trials[trials["trial"] > 0].groupby(["study", "trial"])["status"]
    failed = sum((statuses != "ok").any() for _, statuses in drawn)
    facts = {"failed": int(failed)}
    yield Entry(text=f"{len(drawn)} ({failed})", value=float(len(drawn)), facts=facts)
    totals = of_trials(trials).sum(min_count=1)
    for column, factor in (("steps", 1.0), ("time", 1 / 3600), ("multiply_adds", 1.0)):
        total = factor * float(totals[column])
        text = f"{total:.3g}".replace("e+", "e") if total >= 1e7 else significant(total)
        yield _entry_unless_nan(total, text)


def window_table(searches: Searches, metric: str) -> Table | None:
    """Return the table of the percentage of good trials, and the range of their options.

    Return None if no trial has a score.
    """
    score, arms = score_of(metric), searches.per_arm(metric)
    limit = current_style().style.good_score
    logs = sorted({o for _, trials in arms for o in log_options(trials)})
    lines = []
    for arm, trials in arms:
        drawn = whole(trials)
        if drawn["score"].isna().all():
            continue
        baseline, floor = _baseline_to_beat(searches, arm, metric)
        better = drawn["score"] > floor if score.higher else drawn["score"] < floor
        if not better.any():
            text = _number(floor, score).text
            why = f"no trial is better than the baseline {baseline}, {text}, so no trial is good"
            # One column for the percentage, and three for each option.
            lines.append(_line(arm, *[absent(why)] * (1 + 3 * len(logs))))
            continue
        good = good_trials(drawn, metric) & better
        with_interval = limit is not None and independent(trials)
        entries = [_percent_good(good, with_interval=with_interval)]
        for option in logs:
            entries += _window_entries(drawn["point"], good, option)
        lines.append(_line(arm, *entries))
    if not lines:
        return None
    name = score.title.lower()
    if limit is None:
        distance, relative = nearness(metric)
        percent = relative or score.shares
        words = f"{100 * distance:g} {'percentage points' if score.shares else '%'}"
        words = words if percent else f"{distance:g}"
        title = "trials near the best (%)"
        definition = (
            f"A trial is near the best, and good, if its validation score is at most {words} from "
            "that of the model's best trial. The percentage of these trials has no interval, "
            "because the best trial sets the limit. To get an interval, set good_score in the "
            "report's style before the search. "
        )
    else:
        title = "good trials (%)"
        definition = (
            f"A trial is good if its validation score is {_number(limit, score).text} or better. "
            "If this limit was set before the search and the trials are independent draws, at "
            f"least {_PERCENT} of such intervals contain the percentage of all possible options "
            "that are good; other searches have no interval. "
        )
    heads = [Column(title=title)]
    for option in logs:
        group = short_option_words({option_name(option): ""})[0].strip()
        heads += [Column(title=t, group=group) for t in ("from–to", "others beyond", "decades")]
    return listed_table(
        lines, heads, title=f"How wide the window of good options is ({name})",
        caption=f"{definition}Failed trials, and trials that are no better than the best baseline, "
        "are not good. From–to: the smallest and the largest good value of an option with a "
        "logarithmic range. Others beyond: the next smaller and the next larger value that were "
        "tried; the true ends of the good range lie between these and the good values. Decades: "
        "the least and the most decades that the good range can span; ≥: there is no trial beyond "
        "one end. Noise, and options that are searched at the same time, can change both numbers.",
    )  # fmt: skip


def _baseline_to_beat(searches: Searches, arm: Arm, metric: str) -> tuple[str, float]:
    """Return the name and the score of the best baseline on validation, or else on test.

    Without any baseline, return the worst possible score.
    """
    found = (searches.best_baseline(arm, metric, split) for split in ("validation", "test"))
    return next(filter(None, found), ("of the worst score", bounds(metric)[0]))


def _percent_good(good: pd.Series, *, with_interval: bool) -> Entry:
    """Return the percentage of good trials; an exact interval if the trials are independent."""
    fraction, facts = float(good.mean()), {"trials": len(good), "near": int(good.sum())}
    if not with_interval:
        return Entry(text=f"{100 * fraction:.0f}", value=fraction, facts=facts)
    interval = exact_interval(facts["near"], facts["trials"])
    text = f"{100 * fraction:.0f} [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"
    return Entry(text=text, value=fraction, interval=interval, facts=facts)


def _window_entries(points: pd.Series, good: pd.Series, option: str) -> list[Entry]:
    """Return the range of good values of an option, the next values beyond, and the decades."""
    tried = [float(point[option]) for point in points if option in point]
    good_values = [float(point[option]) for point in points[good] if option in point]
    if not good_values:
        return [absent()] * 3
    low, high = min(good_values), max(good_values)
    below = max((value for value in tried if value < low), default=0.0)
    above = min((value for value in tried if value > high), default=math.inf)
    least, most = math.log10(high / low), math.log10(above / below) if below else math.inf
    beyond = (f"{end:.3g}" if 0 < end < math.inf else "–" for end in (below, above))
    text = f"≥ {least:.2f}" if math.isinf(most) else f"{least:.2f}–{most:.2f}"
    facts = {} if math.isinf(most) else {"at_most": most}
    good_range, others = Entry(text=f"{low:.3g}–{high:.3g}"), Entry(text=", ".join(beyond))
    return [good_range, others, Entry(text=text, value=least, facts=facts)]


def rung_table(searches: Searches, metric: str) -> Table | None:
    """Return the table of how well scores of rungs agree with full length, and the steps saved."""
    lines = []
    for arm, trials in searches.per_arm(metric):
        drawn = trials[trials["trial"] > 0]
        scores = drawn.pivot(index=["study", "trial"], columns="rung", values="score")
        for rung in sorted({*drawn["rung"]} - {""}, key=float):
            count = int((drawn["rung"] == rung).sum())
            both = scores.reindex(columns=[rung, ""]).dropna()
            tau = agreement([*both[rung]], [*both[""]]) if len(both) > 1 else math.nan
            lines.append(_line(
                arm, Entry(text=f"{count}", value=count),
                Entry(text=f"{len(both)}", value=len(both)),
                _entry_unless_nan(tau, f"{tau:.2f}"), _top_in_both(both, metric),
                _steps_saved(trials), rung=rung,
            ))  # fmt: skip
    if not lines:
        return None
    titles = ("trials", "of full length", "Kendall's τ", "top quarter", "steps saved (%)")
    return listed_table(
        lines, [Column(title=t) for t in titles], title="Agreement of rungs with full length",
        caption="A rung is a shorter training, after which the search stops the worst trials. "
        "Kendall's τ compares the order of scores at the rung with that at full length, over the "
        "trials that reached full length. Top quarter: how many of the best quarter at full length "
        "were in the best quarter at the rung, too. Steps saved are compared with training all "
        "trials at full length.",
    )  # fmt: skip


def _top_in_both(both: pd.DataFrame, metric: str) -> Entry:
    """Return how many of the best quarter at full length are in the best quarter at a rung.

    `both` has a row for each trial, and the columns of the rung and of full length.
    """
    if not (count := math.ceil(len(both) / 4)):
        return absent()
    up = not higher_is_better(metric)
    best_at_rung, best_at_end = (
        {*both[column].sort_values(ascending=up, kind="stable").index[:count]} for column in both
    )
    shared = len(best_at_end & best_at_rung)
    return Entry(text=f"{shared} of {count}", value=shared / count)


def _steps_saved(trials: pd.DataFrame) -> Entry:
    """Return the fraction of steps that rungs saved, compared with all trials at full length."""
    steps = of_trials(trials)["steps"]
    full = float(steps.max()) * len(steps)
    saved = 1 - float(steps.sum()) / full if full > 0 else math.nan
    return _entry_unless_nan(saved, f"{100 * saved:.0f}")


def comparison_tables(searches: Searches, metric: str) -> Iterator[tuple[Arm, Table]]:
    """Yield each place with at least two arms, and the table that compares these arms."""
    by_place: dict[Arm, list[Curve]] = {}
    for curve in arm_curves(searches, metric):
        by_place.setdefault(curve.arm[:-1], []).append(curve)
    for place, curves in by_place.items():
        if len(curves) > 1:
            yield place, _comparison_table(searches, metric, curves)


def _comparison_table(searches: Searches, metric: str, curves: Sequence[Curve]) -> Table:
    """Return the table of differences of tuned scores, and of bands at equal budgets."""
    score, lines = score_of(metric), []
    tuned = [_final_entry(searches, curve.arm, score) for curve in curves]
    blocks = [("tuned test score, row minus column", _differences(searches, tuned, score))]
    banded = all(curve.banded for curve in curves)
    for budget, (words, _) in COSTS.items() if banded else ():
        if not any(math.isnan(curve.costs[budget]) for curve in curves):
            smallest = min(len(c.curve.best) * c.costs[budget] for c in curves)
            bands = [[_band_entry(a, b, metric, budget, smallest) for b in curves] for a in curves]
            blocks.append((f"bands at equal {words}", bands))
    for section, entries in blocks:
        lines += [(section, str(c.arm[-1]), line) for c, line in zip(curves, entries, strict=True)]
    pairing = (
        f"are paired by search and have t intervals over {searches.studies} searches"
        if searches.studies >= STUDIES
        else "are paired by seed and have t intervals over final seeds, which exclude the variance "
        "of the search"
    )
    pairs = len(tuned) * (len(tuned) - 1) // 2
    test = "by a paired t test"
    if pairs > 1:
        test += f" with Holm's correction for {pairs} pairs; the intervals have the same levels"
    of_bands = (
        f"Bands: a model is ahead or behind if the {_PERCENT} bands of the tuning curves on "
        "validation do not overlap; the numbers are the trials, hours or multiply-adds at which "
        f"this is so. Bands usually overlap below {BAND_TRIALS} trials, even if the best scores of "
        "two models differ greatly."
        if banded
        else "Models are not compared at equal budgets, because the tuning curves have no bands. "
        "Bands need independent trials and the package opda (pip install 'lra[search]')."
    )
    baseline = ""
    if (best := searches.best_baseline(curves[0].arm, metric, "test")) is not None:
        name, value = best
        baseline = f" The best baseline is {name}, with {_number(value, score).text}."
    return listed_table(
        lines, [Column(title=str(curve.arm[-1])) for curve in curves],
        title=f"Who is ahead on {place_title(curves[0].arm, data=True)}, by {score.title.lower()}",
        caption=f"Differences of the tuned test scores {pairing}. {DIFFERS}: p < {ALPHA:.2g} "
        f"{test}.{baseline} {of_bands}",
    )  # fmt: skip


def _differences(searches: Searches, tuned: Sequence[Entry], score: Score) -> list[list[Entry]]:
    """Return the differences of tuned scores, row minus column, tested with Holm's correction."""
    pairs = [*combinations(range(len(tuned)), 2)]
    uncorrected = [_paired_difference(searches, tuned[i], tuned[j]) for i, j in pairs]
    p_values = {
        pair: difference.p
        for pair, difference in zip(pairs, uncorrected, strict=True)
        if difference is not None and difference.p is not None
    }
    levels = dict(zip(p_values, holm_levels([*p_values.values()]), strict=True))
    corrected = dict(zip(p_values, holm([*p_values.values()]), strict=True))
    entries = [[Entry(text="")] * len(tuned) for _ in tuned]
    for pair in pairs:
        level, differs = levels.get(pair, LEVEL), corrected.get(pair, 1.0) < ALPHA
        for row, column in (pair, pair[::-1]):
            entry = _difference_entry(searches, tuned[row], tuned[column], score, level)
            entries[row][column] = replace(entry, text=entry.text + DIFFERS * differs)
    return entries


def _band_entry(first: Curve, second: Curve, metric: str, budget: str, largest: float) -> Entry:
    """Return whether the first arm is ahead or behind, and at which costs, up to `largest`."""
    if first is second:
        return Entry(text="")
    if not (first.banded and second.banded):
        return absent("there are no bands, so no difference is significant")
    step = max(first.costs[budget], second.costs[budget])  # of the arm with dearer trials
    costs = np.arange(1.0, int(largest / step + 1e-9) + 1) * np.float64(step)
    first_curve, second_curve = (curve.at_costs(budget, costs) for curve in (first, second))
    for word, disjoint in (
        ("ahead", ahead(first_curve, second_curve, metric)),
        ("behind", ahead(second_curve, first_curve, metric)),
    ):
        if disjoint.any():
            low, high = (f"{costs[disjoint][end]:.3g}".replace("e+", "e") for end in (0, -1))
            return Entry(text=f"{word} at {low}" + (f"–{high}" if high != low else ""))
    return Entry(text=f"not significant by {largest:.3g}".replace("e+", "e"))
