"""Tables of a search: what tuning gave and cost, how wide the good options are, who is ahead."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from lra.reports.names import short_option_words
from lra.reports.rows import as_text
from lra.reports.sections.tuning_curves import COSTS, Curve, arm_curves
from lra.reports.statistics.intervals import LEVEL, Uncertainty, wilson_interval
from lra.reports.statistics.paired import mean_difference
from lra.reports.statistics.tuning import STUDIES, agreement, ahead, higher_is_better
from lra.reports.tables.costs import significant
from lra.reports.tables.marks import absent
from lra.reports.tables.scores import Score, entry
from lra.reports.tables.searches import (
    PLACE,
    SearchChoice,
    Searches,
    kept_rows,
    log_options,
    near_best,
    nearness,
    of_trials,
    option_name,
    score_of,
    whole,
)
from lra.reports.tables.table import Column, Entry, Table, TableRow

Arm = tuple[Any, ...]
_PERCENT = f"{100 * LEVEL:g} %"


def tuned_table(searches: Searches, metric: str) -> Table:
    """Build the table of every arm: tuned and untuned scores, choice, trials, costs, marks."""
    score, lines = score_of(metric), []
    studies = int(searches.trials["study"].nunique())
    for arm, trials in searches.per_arm(metric):
        choices = searches.choices.get(arm, [])
        tuned = _finals(searches, arm, metric, "test", choices)
        untuned = _finals(searches, arm, metric, "test", None)
        best, again = _validated(searches, arm, metric, choices, trials)
        lines.append(
            TableRow(
                title=str(arm[-1]),
                section=_where(arm),
                entries=(
                    _marked(_scored(tuned, score, studies), choices),
                    _scored(untuned, score, studies),
                    _difference(_by_seed(tuned, studies), _by_seed(untuned, studies), score),
                    _number(best, score), _number(again, score),
                    _number(best - again, score, signed=True),
                    _chosen_options(choices),
                    *_costs(trials),
                ),
            )
        )  # fmt: skip
    columns = [
        Column(title=title, group=group, words=title == "chosen options")
        for group, titles in (
            ("test", ("tuned", "untuned", "gain")),
            ("validation", ("best trial", "its options again", "optimism")),
            ("", ("chosen options",)),
            ("search", ("trials (failed)", "steps", "hours", "multiply-adds")),
        )
        for title in titles
    ]
    return Table(
        title=f"{score.title} after tuning", caption=_caption(searches, metric, studies),
        stub="model", columns=tuple(columns), rows=tuple(lines),
        brief=f"{score.unit}, test split; options chosen on validation.",
    )  # fmt: skip


def _caption(searches: Searches, metric: str, studies: int) -> str:
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
    if studies >= STUDIES:
        text += f"Means over {studies} searches with {_PERCENT} t intervals, which include tuning. "
    else:
        text += (
            f"Means over {seeds} final seed{'s' * (seeds != 1)} with {_PERCENT} intervals, which "
            f"do not include the variance of the search: search.studies={STUDIES} and more do. "
        )
    devices = sorted(set(trials["device"]))
    machine = devices[0] if len(devices) == 1 else f"{len(devices)} kinds of machine"
    return text + (
        "Optimism: the chosen trial's validation score minus that of its options trained again. "
        f"Steps, hours of training ({machine}) and multiply-adds are those of all trials."
    )


def _where(arm: Arm) -> str:
    task, version, source, length = arm[:-1]
    return f"{task}, length {as_text(length)} ({source}, version {as_text(version)})"


def _finals(
    searches: Searches, arm: Arm, metric: str, split: str, choices: Sequence[SearchChoice] | None
) -> pd.DataFrame:
    """Return the final scores of the chosen trials, or of the untuned options."""
    final = searches.final(arm, metric, split)
    if choices is None:
        return final[final["trial"] == 0]
    return _chosen(final, choices)


def _chosen(rows: pd.DataFrame, choices: Sequence[SearchChoice]) -> pd.DataFrame:
    """Return the rows of the trials that were chosen."""
    wanted = {(choice.study, choice.trial) for choice in choices}
    pairs = zip(rows["study"], rows["trial"], strict=True)
    return kept_rows(rows, (pair in wanted for pair in pairs))


def by_study(final: pd.DataFrame, studies: int) -> pd.DataFrame:
    """Return one score for each study, their numbers as seeds; of too few studies as it is."""
    if studies < STUDIES or final.empty:
        return final
    good = final[final["status"] == "ok"]
    means = good.groupby("study")["value"].mean()
    first = good.drop_duplicates("study").set_index("study")
    joined = first.assign(value=means, seed=[int(study) for study in first.index])
    return pd.concat([joined.reset_index(), final[final["status"] != "ok"]])


def _scored(final: pd.DataFrame, score: Score, studies: int) -> Entry:
    """Return a mean over seeds or, of several studies, over these."""
    result = entry(by_study(final, studies), score)
    # the caption says over how many, unless some failed
    text = result.text.replace(f"; {result.facts.get('seeds')} seeds", "")
    if studies < STUDIES or result.interval is None:
        return replace(result, text=text)
    interval = replace(result.interval, source=Uncertainty.studies)
    return replace(result, text=text.replace(" seeds", " studies"), interval=interval)


def _marked(result: Entry, choices: Sequence[SearchChoice]) -> Entry:
    sentences = [text for choice in choices for _, text in choice.marks]
    sentences += [choice.reason for choice in choices if choice.trial is None]
    names = sorted({name for choice in choices for name, _ in choice.marks})
    facts = {**result.facts, "marks": " ".join(names)}
    return replace(result, notes=(*result.notes, *dict.fromkeys(sentences)), facts=facts)


def _number(value: float, score: Score, *, signed: bool = False) -> Entry:
    if math.isnan(value):
        return absent()
    text = f"{score.factor * value:{'+' if signed else ''}.{score.digits}f}"
    return Entry(text=text, value=value)


def _by_seed(final: pd.DataFrame, studies: int) -> dict[int, float]:
    """Return final scores by seed or, of several studies, by study."""
    good = by_study(final[final["status"] == "ok"], studies)
    return dict(zip(good["seed"], good["value"], strict=True))


def _difference(one: Mapping[int, float], other: Mapping[int, float], score: Score) -> Entry:
    """Return the mean difference of two arms or settings, paired by seed or study."""
    shared = sorted({*one} & {*other})
    if not shared:
        return absent()
    result = mean_difference([one[s] for s in shared], [other[s] for s in shared])
    text = f"{score.factor * result.mean:+.{score.digits}f}"
    if (ends := result.interval) is not None:
        low, high = (f"{score.factor * end:+.{score.digits}f}" for end in (ends.low, ends.high))
        text += f" [{low}, {high}]"
    return Entry(text=text, value=result.mean, interval=ends, facts={"pairs": result.pairs})


def _validated(
    searches: Searches, arm: Arm, metric: str, choices: Sequence[SearchChoice], trials: pd.DataFrame
) -> tuple[float, float]:
    """Return the validation scores of the chosen trials and of their options trained again."""
    kept = _chosen(whole(trials, untuned=True), choices)
    again = _finals(searches, arm, metric, "validation", choices)["value"]
    return float(kept["score"].mean()), float(again.mean())


def _chosen_options(choices: Sequence[SearchChoice]) -> Entry:
    texts = []
    for choice in choices:
        if choice.trial is not None:
            options = {option_name(name): str(value) for name, value in choice.options.items()}
            of_trial = "untuned" if choice.trial == 0 else f"trial {choice.trial}"
            texts.append(f"{', '.join(short_option_words(options))} ({of_trial})")
    facts = {f"words {choice.study}": choice.words for choice in choices}
    return Entry(text="; ".join(texts), facts=facts) if texts else absent("nothing was chosen")


def _costs(trials: pd.DataFrame) -> tuple[Entry, ...]:
    """Return trials, steps, hours and multiply-adds of one arm's search."""
    drawn = trials[trials["trial"] > 0].groupby(["study", "trial"])["status"]
    failed = int(sum((statuses != "ok").any() for _, statuses in drawn))
    facts = {"failed": failed}
    found = [Entry(text=f"{len(drawn)} ({failed})", value=float(len(drawn)), facts=facts)]
    taken = of_trials(trials).sum(min_count=1)
    for column, factor in (("steps", 1.0), ("time", 1 / 3600), ("multiply_adds", 1.0)):
        total = factor * float(taken[column])
        text = f"{total:.3g}".replace("e+", "e") if total >= 1e7 else significant(total)
        found.append(absent() if math.isnan(total) else Entry(text=text, value=total))
    return tuple(found)


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
        entries = [
            Entry(
                text=f"{100 * share:.0f} [{100 * ends.low:.0f}, {100 * ends.high:.0f}]",
                value=share, interval=replace(ends, source=Uncertainty.trials),
                facts={"trials": len(drawn), "near": len(good)},
            )
        ]  # fmt: skip
        for option in logs:
            found = [float(point[option]) for point in good["point"] if option in point]
            if not found:
                entries += [absent(), absent()]
                continue
            low, high = min(found), max(found)
            width = math.log10(high / low)
            entries += [
                Entry(text=f"{low:.3g}–{high:.3g}"), Entry(text=f"{width:.2f}", value=width)
            ]  # fmt: skip
        lines.append(TableRow(title=str(arm[-1]), section=_where(arm), entries=tuple(entries)))
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
        full = whole(trials).set_index(["study", "trial"])
        for rung in sorted(set(trials["rung"]) - {""}, key=float):
            early = trials[(trials["rung"] == rung) & (trials["trial"] > 0)]
            early = early.set_index(["study", "trial"])
            both = early[["score"]].join(full["score"].rename("score_full"), how="inner").dropna()
            tau = agreement([*both["score"]], [*both["score_full"]]) if len(both) > 1 else math.nan
            lines.append(
                TableRow(
                    title=f"{arm[-1]}, rung {rung}", section=_where(arm),
                    entries=(
                        Entry(text=f"{len(early)}", value=float(len(early))),
                        Entry(text=f"{len(both)}", value=float(len(both))),
                        absent() if math.isnan(tau) else Entry(text=f"{tau:.2f}", value=tau),
                        _top_kept(both, metric), _saved(trials),
                    ),
                )
            )  # fmt: skip
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
    count = math.ceil(len(both) / 4)
    if not count:
        return absent()
    up = not higher_is_better(metric)
    best, early = (
        {*both.sort_values(column, ascending=up, kind="stable").index[:count]}
        for column in ("score_full", "score")
    )
    kept = len(best & early)
    return Entry(text=f"{kept} of {count}", value=kept / count)


def _saved(trials: pd.DataFrame) -> Entry:
    """Return the share of steps that rungs saved."""
    taken = of_trials(trials)["steps"]
    full = float(taken.max()) * len(taken)
    if not full > 0:
        return absent()
    saved = 1 - float(taken.sum()) / full
    return Entry(text=f"{100 * saved:.0f}", value=saved)


def comparison_tables(searches: Searches, metric: str) -> Iterator[tuple[Arm, Table]]:
    """Yield, for each place of two arms and more, who is ahead at equal budgets."""
    by_place: dict[Arm, list[Curve]] = {}
    for curve in arm_curves(searches, metric):
        by_place.setdefault(curve.arm[:-1], []).append(curve)
    for place, curves in by_place.items():
        if len(curves) > 1:
            yield place, _comparison(searches, metric, curves)


def _comparison(searches: Searches, metric: str, curves: Sequence[Curve]) -> Table:
    score, studies = score_of(metric), int(searches.trials["study"].nunique())
    lines = []
    for budget in COSTS:
        if any(math.isnan(curve.costs[budget]) for curve in curves):
            continue
        if budget == "trials" and studies >= STUDIES:
            found = [_tuned_by_seed(searches, metric, curve.arm, studies) for curve in curves]
            entries = [
                [Entry(text="") if a is b else _difference(a, b, score) for b in found]
                for a in found
            ]
        else:
            least = min(len(c.curve.best) * c.costs[budget] for c in curves)
            entries = [[_by_bands(a, b, metric, budget, least) for b in curves] for a in curves]
        lines += [
            TableRow(
                title=str(curve.arm[-1]), entries=tuple(line), section=f"at equal {COSTS[budget]}"
            )
            for curve, line in zip(curves, entries, strict=True)
        ]
    over = (
        f"At equal numbers of trials: difference of tuned test scores (row minus column), paired "
        f"by search, with {_PERCENT} t interval over {studies} searches. Else by the bands"
        if studies >= STUDIES
        else "By the bands"
    )
    return Table(
        title=f"Who is ahead on {_where(curves[0].arm)}, by {score.title.lower()}",
        caption=f"{over} of the tuning curves on validation: ahead or behind where the {_PERCENT} "
        "bands are apart, with the numbers of trials, hours or multiply-adds at which they are. "
        "Near the end of a curve no band is bounded on its good side.",
        stub="model", columns=tuple(Column(title=str(curve.arm[-1])) for curve in curves),
        rows=tuple(lines),
    )  # fmt: skip


def _tuned_by_seed(searches: Searches, metric: str, arm: Arm, studies: int) -> dict[int, float]:
    tuned = _finals(searches, arm, metric, "test", searches.choices.get(arm, []))
    return _by_seed(tuned, studies)


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
