"""Searches over options as figures and tables take them: trials, choices, and trainings chosen.

An arm is what is compared: a family on a task, with the options that set it apart but without those
that were searched, so that its trials, its choice and its trainings have one name.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lra.reports.names import TUNED, UNTUNED
from lra.reports.rows import MARKS, as_text, short, values, with_labels
from lra.reports.statistics.tuning import STUDIES, bounds, higher_is_better
from lra.reports.style import current_style
from lra.reports.tables.scores import CHANCE, final_scores, score_of
from lra.runners.metrics import METRICS
from lra.runners.records import is_oracle

RUNNER = "search"
PLACE = ("task", "task_version", "source", "length")
ARM = (*PLACE, "model")
INDEPENDENT = ("halton", "random")
"""Samplers whose trials are draws, whatever came out before."""
LOG = 10
"""Times the least value of an option: from here on its axis is logarithmic."""
_COSTS = {"trial_steps": "steps", "trial_time": "time", "trial_multiply_adds": "multiply_adds"}
_KEY = ["cell", "study", "trial", "rung"]
"""Columns of which a trial has a line each."""
_STEERING = ("runner.", "search.", "trainings.", "trials.")
"""Beginnings of names that set no arm apart."""
_LED = ("changed: ", TUNED, UNTUNED)
"""Beginnings of words that a search leads to."""


Arm = tuple[Any, ...]
"""The values of `ARM`."""


class SearchChoice(NamedTuple):
    """What one search of an arm chose."""

    search: str
    """Its name; "" in rows of an earlier lra, which have none."""
    study: str
    trial: int | None
    """None: nothing could be chosen."""
    options: Mapping[str, Any]
    words: str
    marks: tuple[tuple[str, str], ...]
    """Names and sentences."""
    reason: str
    """Why nothing could be chosen."""


def as_number(value: Any) -> float | None:
    """Return the number that an option's value is; None for a word or a switch."""
    return None if isinstance(value, bool | str | list) or value is None else float(value)


def option_name(word: str) -> str:
    """Return an option as rows name it, from the word of the command line."""
    return word.removeprefix("model.")


class Searches:
    """The searches among the rows of a report: those with the same metric, all arms."""

    def __init__(self, rows: pd.DataFrame) -> None:
        """Read rows.

        Args:
            rows: as `lra.reports.rows.prepare` returns them.
        """
        self.rows = rows
        found = rows[(rows["runner"] == RUNNER) & (rows["baseline"] == "")]
        found = kept_rows(found, ("study" in labels for labels in found["labels"]))
        self.trials = _trials(found)
        self.searched = {option_name(word) for point in self.trials["point"] for word in point}
        self.trials["model"] = self._arms(self.trials)
        newest = self._newest(self.trials)
        self.trials = self.trials[self.trials["cell"].isin(newest)].reset_index(drop=True)
        told = found[(found["metric"] == "chosen_trial") & found["cell"].isin(newest)]
        told = told.assign(model=self._arms(told))
        self.studies = int(self.trials["study"].nunique() or self.led["study"].nunique())
        self.choices: dict[Arm, list[SearchChoice]] = {}
        for row in told.to_dict("records"):
            key = tuple(row[column] for column in ARM)
            self.choices.setdefault(key, []).append(_choice(row))

    def _arms(self, rows: pd.DataFrame) -> list[str]:
        """Return the name of the arm of each row."""
        parts = (values(rows, column) for column in ("family", "options", "departures"))
        return [
            current_style().name(
                family,
                {k: v for k, v in options.items()
                 if k not in self.searched and not k.startswith(_STEERING)},
                [words for words in departures if not words.startswith(_LED)],
            )
            for family, options, departures in zip(*parts, strict=True)
        ]  # fmt: skip

    @staticmethod
    def _newest(trials: pd.DataFrame) -> set[str]:
        """Return the cells of the largest search of each arm and study, of equal ones the last."""
        cells = trials.groupby([*ARM, "study", "cell"], dropna=False)
        sizes = cells.agg(count=("trial", "size"), made=("created", "max")).reset_index()
        sizes = sizes.sort_values(["count", "made"])
        return {*sizes.drop_duplicates([*ARM, "study"], keep="last")["cell"]}

    @cached_property
    def led(self) -> pd.DataFrame:
        """Rows of trainings that searches led to: `model` is the arm, `search` says which one.

        They have the columns `study` and `trial`, too.
        """
        led = self.rows[self.rows["runner"] == "train"]
        # one whose data were not there is no failure: it is tried again
        led = kept_rows(led, ("tuned" in each and "missing" not in each for each in led["labels"]))
        return led.assign(
            search=[each["tuned"] for each in led["labels"]],
            study=[each["study"] for each in led["labels"]],
            trial=[int(each["trial"]) for each in led["labels"]],
            model=self._arms(led),
        )

    @cached_property
    def finals(self) -> dict[tuple[str, str], pd.DataFrame]:
        """Final scores of the rows of `led`, by metric and split."""
        return self._final_scores(self.led)

    @cached_property
    def _of_baselines(self) -> dict[tuple[str, str], pd.DataFrame]:
        """Final scores of baselines, by metric and split."""
        return self._final_scores(self.rows[self.rows["baseline"] != ""])

    def _final_scores(self, rows: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
        pairs = ((m, s) for m in self.trials["metric"].unique() for s in ("test", "validation"))
        scores = {pair: final_scores(rows, pair[1], score_of(pair[0])) for pair in pairs}
        nothing = rows.iloc[:0]
        return {pair: nothing if found is None else found for pair, found in scores.items()}

    def baselines(self, arm: Arm, metric: str, split: str) -> dict[str, float]:
        """Return the scores on a split, at an arm's place, that need no model; chance among them.

        Oracles, which know the rule of the task, are none of these.
        """
        rows, here = self._of_baselines[metric, split], [as_text(value) for value in arm[:-1]]
        found = {
            row["baseline"].replace("_", " "): float(row["value"])
            for row in rows[rows["status"] == "ok"].to_dict("records")
            if not is_oracle(row["baseline"]) and [as_text(row[c]) for c in PLACE] == here
        }
        if score_of(metric).shares and str(arm[0]) in CHANCE:
            found["chance"] = CHANCE[str(arm[0])]
        return found

    def best_baseline(self, arm: Arm, metric: str, split: str) -> tuple[str, float] | None:
        """Return the best of `baselines`; None where there is none."""
        found = self.baselines(arm, metric, split)
        best = max if score_of(metric).higher else min
        return best(found.items(), key=lambda item: item[1]) if found else None

    def led_to(self, *, tuned: bool) -> dict[str, str]:
        """Return the cells of trainings with chosen options, or untuned ones, with their study."""
        here = {arm for arm, _ in self.trials.groupby([*ARM], dropna=False)}
        parts = [self.led.iloc[:0]]
        for arm, rows in self.led.groupby([*ARM], dropna=False):
            if arm in here:
                parts.append(self.chosen(rows, arm, tuned=tuned))
            else:  # its options were chosen in another sweep
                last = rows.groupby(["search", "study"])["trial"].transform("max")
                parts.append(rows[rows["trial"] == (last if tuned else 0)])
        led = pd.concat(parts)
        return dict(zip(led["cell"], led["study"], strict=True))

    def final(self, arm: Arm, metric: str, split: str, *, tuned: bool = True) -> pd.DataFrame:
        """Return final scores of an arm's chosen options, or of its untuned ones.

        One for each seed or, of `STUDIES` studies and more, for each study, its number as seed. A
        training that failed has the worst score there is, as a trial has, and a remark; where the
        metric has no worst score, or all failed, there are the failures alone.
        """
        final = self._trained(arm, metric, split, tuned=tuned)
        if self.studies < STUDIES or final.empty or (final["status"] != "ok").any():
            return final
        first = final.drop_duplicates("study").set_index("study")
        means = final.groupby("study")["value"].mean()
        joined = first.assign(value=means, seed=[int(study) for study in first.index])
        return joined.reset_index()

    def _trained(self, arm: Arm, metric: str, split: str, *, tuned: bool) -> pd.DataFrame:
        """Return the final scores of an arm, one for each training."""
        final = self.chosen(_of_arm(self.finals[metric, split], arm), arm, tuned=tuned)
        lost, worst = final["status"] != "ok", bounds(metric)[0]
        if not lost.any():
            return final
        if lost.all() or not np.isfinite(worst):
            return final[lost]
        first = final[lost].iloc[0]
        remark = (
            f"{lost.sum()} of {len(final)} trainings failed ({MARKS[first['status']]}: "
            f"{short(str(first['reason']))}) and count as {worst:g}"
        )
        labels = final["labels"].map(lambda labels: {**labels, "remark": remark})
        values = final["value"].where(~lost, worst)
        return final.assign(value=values, status="ok", labels=labels)

    def deviation(self, arm: Arm, metric: str) -> float:
        """Return how far scores of an arm's chosen options lie apart from seed to seed.

        The standard deviation on validation, pooled over studies; NaN below two seeds.
        """
        final = self._trained(arm, metric, "validation", tuned=True).groupby("study")["value"]
        degrees = final.count() - 1
        return float(np.sqrt((final.var() * degrees).sum() / (degrees.sum() or np.nan)))

    def chosen(self, rows: pd.DataFrame, arm: Arm, *, tuned: bool = True) -> pd.DataFrame:
        """Return the rows of an arm's chosen trials, or of the untuned ones of these searches."""
        wanted = {(c.search, c.study, c.trial if tuned else 0) for c in self.choices.get(arm, ())}
        places = zip(rows["search"], rows["study"], rows["trial"], strict=True)
        return kept_rows(rows, (not wanted.isdisjoint({p, ("", *p[1:])}) for p in places))

    def per_arm(self, metric: str) -> list[tuple[Arm, pd.DataFrame]]:
        """Return every arm that was searched by a metric, with its trials, place by place."""
        mine = self.trials[self.trials["metric"] == metric]
        return [*mine.groupby([*ARM], dropna=False, sort=True)]


def kept_rows(rows: pd.DataFrame, wanted: Iterable[bool]) -> pd.DataFrame:
    """Return the rows that are wanted; of none, none, with all columns."""
    return rows.loc[np.fromiter(wanted, bool, len(rows))]


def _of_arm(rows: pd.DataFrame, arm: Arm) -> pd.DataFrame:
    """Return the rows of one arm."""
    kept = pd.Series(True, index=rows.index)
    for column, value in zip(ARM, arm, strict=True):
        kept &= rows[column].isna() if pd.isna(value) else rows[column] == value
    return rows[kept]


def whole(trials: pd.DataFrame, *, untuned: bool = False) -> pd.DataFrame:
    """Return the trials of full length, by study and number; without the untuned one, no draw."""
    kept = trials[(trials["rung"] == "") & (untuned | (trials["trial"] > 0))]
    return kept.sort_values(["study", "trial"])


def of_trials(trials: pd.DataFrame) -> pd.DataFrame:
    """Return what each trial took, rungs included: a later one has the steps of the earlier.

    A trial of the untuned options is the untuned one.
    """
    once = trials.drop_duplicates(["study", "rung", "setting"])
    taken: pd.DataFrame = once.groupby(["study", "trial"])[[*_COSTS.values()]].max()
    return taken


def nearness(metric: str) -> tuple[float, bool]:
    """Return how far from the best a score may be to count as near it, and whether as a share."""
    given, unit = current_style().style.near_best, METRICS[metric].unit
    if given is not None:
        return given, False
    return (0.05 if unit == "fraction" else 0.1), unit == "1"


def good_trials(trials: pd.DataFrame, metric: str) -> pd.Series:
    """Return which trials reach the style's threshold or, without any, are near the best."""
    (within, relative), scores = nearness(metric), trials["score"]
    higher = higher_is_better(metric)
    best = scores.max() if higher else scores.min()
    within *= best if relative else 1.0
    bar = current_style().style.good_score
    if bar is None:
        bar = best - within if higher else best + within
    return scores >= bar if higher else scores <= bar


def log_options(trials: pd.DataFrame) -> list[str]:
    """Return the options whose values span so much that an axis of them is logarithmic."""
    found: dict[str, list[float | None]] = {}
    for point in trials["point"]:
        for name, value in point.items():
            found.setdefault(name, []).append(as_number(value))
    numbers = {name: [v for v in each if v is not None] for name, each in found.items()}
    return [
        name
        for name, each in found.items()
        if None not in each and 0 < LOG * min(numbers[name]) <= max(numbers[name])
    ]


def independent(trials: pd.DataFrame) -> bool:
    """Return whether the trials of an arm are draws, whatever came out before."""
    return set(trials["rung"]) == {""} and set(trials["sampler"]) <= {*INDEPENDENT}


def _trials(found: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each trial and rung, with its score and costs."""
    found = with_labels(found, _KEY[1:])
    costs = found[found["metric"].isin(_COSTS) & (found["status"] == "ok")]
    costs = costs.drop_duplicates([*_KEY, "metric"], keep="last")
    costs = costs.pivot(index=_KEY, columns="metric", values="value").reindex(columns=[*_COSTS])
    scored = found[found["metric"] == "trial_score"]
    scored = scored.rename(columns={"value": "score"}).join(costs.rename(columns=_COSTS), on=_KEY)
    points = [json.loads(each["options"]) for each in scored["labels"]]
    scored = scored.assign(
        trial=scored["trial"].astype(int), point=points, setting=[*map(_setting, points)]
    )
    # points that a choice maps to the same options are one training, and one trial
    drawn = scored[scored["trial"] > 0].sort_values("trial")
    repeats = drawn[drawn.duplicated(["cell", "study", "rung", "setting"])]
    scored = scored.drop(repeats.index)
    return scored.assign(
        sampler=[each["search"] for each in scored["labels"]],
        search=[each.get("search_name", "") for each in scored["labels"]],
        metric=[each["metric"] for each in scored["labels"]],
        device=scored["hardware"] + ", " + scored["device"],
    )


def _setting(point: Mapping[str, Any]) -> str:
    """Return options as a text that is equal where they are: 0 is 0.0."""
    plain = {name: value if (x := as_number(value)) is None else x for name, value in point.items()}
    return json.dumps(plain, sort_keys=True)


def _choice(row: Mapping[Any, Any]) -> SearchChoice:
    labels = row["labels"]
    return SearchChoice(
        labels.get("search_name", ""), labels["study"],
        None if row["status"] != "ok" else int(row["value"]),
        json.loads(labels.get("options", "{}")), labels.get("words", ""),
        tuple((name, text) for name, text in json.loads(labels.get("marks", "[]"))),
        str(row["reason"]),
    )  # fmt: skip
