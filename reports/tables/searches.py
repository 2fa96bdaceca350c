"""Read hyperparameter searches from rows: trials, choices, and the trainings of chosen options.

An arm is a model on a task. Its name excludes the options that were searched, so that its trials,
its choices and its final trainings have the same name.
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
"""Samplers whose trials do not depend on the results of earlier trials."""
LOG = 10
"""The axis of an option is logarithmic if its largest value is this many times the smallest."""
_COSTS = {"trial_steps": "steps", "trial_time": "time", "trial_multiply_adds": "multiply_adds"}
_KEY = ["cell", "study", "trial", "rung"]
"""The columns that identify a trial at one rung."""
_STEERING = ("runner.", "search.", "trainings.", "trials.")
"""Beginnings of the names of options that do not distinguish arms."""
_LED = ("changed: ", TUNED, UNTUNED)
"""Beginnings of words in model names that come from a search."""


Arm = tuple[Any, ...]
"""The values of the columns `ARM`."""


class SearchChoice(NamedTuple):
    """The options that one search chose for an arm."""

    search: str
    """The name of the search; "" in rows of an earlier version of lra."""
    study: str
    trial: int | None
    """The number of the chosen trial; None if nothing could be chosen."""
    options: Mapping[str, Any]
    words: str
    marks: tuple[tuple[str, str], ...]
    """Names and sentences of the warnings of the search."""
    reason: str
    """Why nothing could be chosen."""


def as_number(value: Any) -> float | None:
    """Return the value of an option as a number; None for words, switches, lists and None."""
    return None if isinstance(value, bool | str | list) or value is None else float(value)


def option_name(word: str) -> str:
    """Return the name of an option in rows, from its name on the command line."""
    return word.removeprefix("model.")


class Searches:
    """All searches among the rows of a report."""

    def __init__(self, rows: pd.DataFrame) -> None:
        """Read the trials and the choices of all searches from prepared rows of a report."""
        self.rows = rows
        of_searches = rows[(rows["runner"] == RUNNER) & (rows["baseline"] == "")]
        in_study = ("study" in labels for labels in of_searches["labels"])
        of_searches = kept_rows(of_searches, in_study)
        self.trials = _trials(of_searches)
        self.searched = {option_name(word) for point in self.trials["point"] for word in point}
        self.trials["model"] = self._arm_names(self.trials)
        used = self._largest_searches(self.trials)
        self.trials = self.trials[self.trials["cell"].isin(used)].reset_index(drop=True)
        is_choice = of_searches["metric"] == "chosen_trial"
        choices = of_searches[is_choice & of_searches["cell"].isin(used)]
        choices = choices.assign(model=self._arm_names(choices))
        self.studies = int(self.trials["study"].nunique() or self.led["study"].nunique())
        self.choices: dict[Arm, list[SearchChoice]] = {}
        for row in choices.to_dict("records"):
            key = tuple(row[column] for column in ARM)
            self.choices.setdefault(key, []).append(_read_choice(row))

    def _arm_names(self, rows: pd.DataFrame) -> list[str]:
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
    def _largest_searches(trials: pd.DataFrame) -> set[str]:
        """Return, for each arm and study, the run with the most trials; of equal ones the last."""
        cells = trials.groupby([*ARM, "study", "cell"], dropna=False)
        sizes = cells.agg(count=("trial", "size"), made=("created", "max")).reset_index()
        sizes = sizes.sort_values(["count", "made"])
        return {*sizes.drop_duplicates([*ARM, "study"], keep="last")["cell"]}

    @cached_property
    def led(self) -> pd.DataFrame:
        """The rows of the final trainings after searches.

        Their column `model` is the arm; `search`, `study` and `trial` say where the options are
        from.
        """
        led = self.rows[self.rows["runner"] == "train"]
        # A training whose data were missing is excluded, because lra will start it again.
        led = kept_rows(led, ("tuned" in of and "missing" not in of for of in led["labels"]))
        return led.assign(
            search=[labels["tuned"] for labels in led["labels"]],
            study=[labels["study"] for labels in led["labels"]],
            trial=[int(labels["trial"]) for labels in led["labels"]],
            model=self._arm_names(led),
        )

    @cached_property
    def finals(self) -> dict[tuple[str, str], pd.DataFrame]:
        """The final scores of the trainings `led`, by metric and split."""
        return self._final_scores(self.led)

    @cached_property
    def _of_baselines(self) -> dict[tuple[str, str], pd.DataFrame]:
        """The final scores of baselines, by metric and split."""
        return self._final_scores(self.rows[self.rows["baseline"] != ""])

    def _final_scores(self, rows: pd.DataFrame) -> dict[tuple[str, str], pd.DataFrame]:
        """Return the final scores among `rows` by metric and split; without any, no rows."""
        pairs = ((m, s) for m in self.trials["metric"].unique() for s in ("test", "validation"))
        no_rows = rows.iloc[:0]
        scores = {(m, s): final_scores(rows, s, score_of(m)) for m, s in pairs}
        return {pair: no_rows if found is None else found for pair, found in scores.items()}

    def baselines(self, arm: Arm, metric: str, split: str) -> dict[str, float]:
        """Return the scores of baselines and of chance on the data of an arm, by name.

        Oracles are excluded, because they know the rule of the task.
        """
        rows = self._of_baselines[metric, split]
        task, *_ = place = [as_text(value) for value in arm[:-1]]
        scores = {
            row["baseline"].replace("_", " "): float(row["value"])
            for row in rows[rows["status"] == "ok"].to_dict("records")
            if not is_oracle(row["baseline"]) and [as_text(row[c]) for c in PLACE] == place
        }
        if score_of(metric).shares and task in CHANCE:
            scores["chance"] = CHANCE[task]
        return scores

    def best_baseline(self, arm: Arm, metric: str, split: str) -> tuple[str, float] | None:
        """Return the name and score of the best of `baselines`; None if there is none."""
        scores = self.baselines(arm, metric, split)
        best = max if score_of(metric).higher else min
        return best(scores.items(), key=lambda item: item[1]) if scores else None

    def led_to(self, *, tuned: bool) -> dict[str, str]:
        """Return the study of each final training with tuned (or untuned) options, by run key."""
        arms_here = {arm for arm, _ in self.trials.groupby([*ARM], dropna=False)}
        parts = [self.led.iloc[:0]]
        for arm, rows in self.led.groupby([*ARM], dropna=False):
            if arm in arms_here:
                parts.append(self.chosen(rows, arm, tuned=tuned))
            else:  # The search was in another sweep; here, the trial that is not 0 is the choice.
                last = rows.groupby(["search", "study"])["trial"].transform("max")
                parts.append(rows[rows["trial"] == (last if tuned else 0)])
        led = pd.concat(parts)
        return dict(zip(led["cell"], led["study"], strict=True))

    def final(self, arm: Arm, metric: str, split: str, *, tuned: bool = True) -> pd.DataFrame:
        """Return final scores of an arm with its tuned or its untuned options.

        There is a row for each seed; with `STUDIES` studies or more, a row for each study, whose
        column `seed` is the number of the study. A failed training counts as the worst score and
        has a remark. If the metric has no worst score, or all trainings failed, only the failed
        rows are returned.
        """
        final = self._scores_of_trainings(arm, metric, split, tuned=tuned)
        if self.studies < STUDIES or final.empty or (final["status"] != "ok").any():
            return final
        first = final.drop_duplicates("study").set_index("study")
        means = final.groupby("study")["value"].mean()
        by_study = first.assign(value=means, seed=[int(study) for study in first.index])
        return by_study.reset_index()

    def _scores_of_trainings(
        self, arm: Arm, metric: str, split: str, *, tuned: bool
    ) -> pd.DataFrame:
        """Return the final scores of an arm, with a row for each training; see `final`."""
        final = self.chosen(_of_arm(self.finals[metric, split], arm), arm, tuned=tuned)
        failed, (worst, _) = final["status"] != "ok", bounds(metric)
        if not failed.any():
            return final
        if failed.all() or not np.isfinite(worst):
            return final[failed]
        first = final[failed].iloc[0]
        remark = (
            f"{failed.sum()} of {len(final)} trainings failed ({MARKS[first['status']]}: "
            f"{short(str(first['reason']))}) and count as a score of {worst:g}"
        )
        labels = final["labels"].map(lambda labels: {**labels, "remark": remark})
        values = final["value"].where(~failed, worst)
        return final.assign(value=values, status="ok", labels=labels)

    def deviation(self, arm: Arm, metric: str) -> float:
        """Return the standard deviation over seeds of an arm's validation score, after tuning.

        It is pooled over studies; NaN if no study has two seeds.
        """
        final = self._scores_of_trainings(arm, metric, "validation", tuned=True)
        by_study = final.groupby("study")["value"]
        degrees = by_study.count() - 1
        return float(np.sqrt((by_study.var() * degrees).sum() / (degrees.sum() or np.nan)))

    def chosen(self, rows: pd.DataFrame, arm: Arm, *, tuned: bool = True) -> pd.DataFrame:
        """Return the rows from the chosen trials of an arm, or from its untuned trials."""
        wanted = {(c.search, c.study, c.trial if tuned else 0) for c in self.choices.get(arm, ())}
        keys = zip(rows["search"], rows["study"], rows["trial"], strict=True)
        # rows of an earlier version of lra have no name of a search
        return kept_rows(
            rows, (bool(wanted & {(s, study, t), ("", study, t)}) for s, study, t in keys)
        )

    def per_arm(self, metric: str) -> list[tuple[Arm, pd.DataFrame]]:
        """Return each arm whose search used this metric, and its trials, sorted by place."""
        of_metric = self.trials[self.trials["metric"] == metric]
        return [*of_metric.groupby([*ARM], dropna=False, sort=True)]


def kept_rows(rows: pd.DataFrame, wanted: Iterable[bool]) -> pd.DataFrame:
    """Return the rows for which `wanted` is true; an empty frame has all columns, too."""
    return rows.loc[np.fromiter(wanted, bool, len(rows))]


def _of_arm(rows: pd.DataFrame, arm: Arm) -> pd.DataFrame:
    """Return the rows of one arm."""
    same = pd.Series(True, index=rows.index)
    for column, value in zip(ARM, arm, strict=True):
        same &= rows[column].isna() if pd.isna(value) else rows[column] == value
    return rows[same]


def whole(trials: pd.DataFrame, *, untuned: bool = False) -> pd.DataFrame:
    """Return the trials of full length, by study and number; trial 0 only if `untuned`."""
    full = trials[(trials["rung"] == "") & (untuned | (trials["trial"] > 0))]
    return full.sort_values(["study", "trial"])


def of_trials(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the steps, time and multiply-adds of each trial, by study and trial.

    The numbers of a rung include those of earlier rungs, so the largest counts. A trial that drew
    the untuned options counts together with trial 0, because both are one training.
    """
    unique = trials.drop_duplicates(["study", "rung", "setting"])
    costs: pd.DataFrame = unique.groupby(["study", "trial"])[[*_COSTS.values()]].max()
    return costs


def nearness(metric: str) -> tuple[float, bool]:
    """Return the distance from the best score that counts as near, and whether it is relative.

    A relative distance is multiplied by the best score.
    """
    given, unit = current_style().style.near_best, METRICS[metric].unit
    if given is not None:
        return given, False
    return (0.05 if unit == "fraction" else 0.1), unit == "1"


def good_trials(trials: pd.DataFrame, metric: str) -> pd.Series:
    """Return for each trial whether it reaches `good_score` of the style, or is near the best."""
    (distance, relative), scores = nearness(metric), trials["score"]
    higher = higher_is_better(metric)
    best = scores.max() if higher else scores.min()
    distance *= best if relative else 1.0
    limit = current_style().style.good_score
    if limit is None:
        limit = best - distance if higher else best + distance
    return scores >= limit if higher else scores <= limit


def log_options(trials: pd.DataFrame) -> list[str]:
    """Return the options whose axis is logarithmic, because their values span a factor of `LOG`."""
    by_option: dict[str, list[float | None]] = {}
    for point in trials["point"]:
        for name, value in point.items():
            by_option.setdefault(name, []).append(as_number(value))
    numbers = {name: [v for v in given if v is not None] for name, given in by_option.items()}
    return [
        name
        for name, given in by_option.items()
        if None not in given and 0 < LOG * min(numbers[name]) <= max(numbers[name])
    ]


def independent(trials: pd.DataFrame) -> bool:
    """Return whether the options of no trial depend on the results of earlier trials."""
    return set(trials["rung"]) == {""} and set(trials["sampler"]) <= {*INDEPENDENT}


def _trials(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each trial and rung, with its score and costs, from rows of searches."""
    rows = with_labels(rows, _KEY[1:])
    costs = rows[rows["metric"].isin(_COSTS) & (rows["status"] == "ok")]
    costs = costs.drop_duplicates([*_KEY, "metric"], keep="last")
    costs = costs.pivot(index=_KEY, columns="metric", values="value").reindex(columns=[*_COSTS])
    scored = rows[rows["metric"] == "trial_score"]
    scored = scored.rename(columns={"value": "score"}).join(costs.rename(columns=_COSTS), on=_KEY)
    points = [json.loads(labels["options"]) for labels in scored["labels"]]
    scored = scored.assign(
        trial=scored["trial"].astype(int), point=points, setting=[*map(_setting_key, points)]
    )
    # Several draws may give the same options. They are one training, so they count as one trial.
    drawn = scored[scored["trial"] > 0].sort_values("trial")
    repeats = drawn[drawn.duplicated(["cell", "study", "rung", "setting"])]
    scored = scored.drop(repeats.index)
    return scored.assign(
        sampler=[labels["search"] for labels in scored["labels"]],
        search=[labels.get("search_name", "") for labels in scored["labels"]],
        metric=[labels["metric"] for labels in scored["labels"]],
        device=scored["hardware"] + ", " + scored["device"],
    )


def _setting_key(point: Mapping[str, Any]) -> str:
    """Return options as a text that is the same for equal options, although 0 and 0.0 differ."""
    plain = {name: value if (x := as_number(value)) is None else x for name, value in point.items()}
    return json.dumps(plain, sort_keys=True)


def _read_choice(row: Mapping[Any, Any]) -> SearchChoice:
    """Return the choice of a search from its row of the metric `chosen_trial`."""
    labels = row["labels"]
    return SearchChoice(
        labels.get("search_name", ""), labels["study"],
        None if row["status"] != "ok" else int(row["value"]),
        json.loads(labels.get("options", "{}")), labels.get("words", ""),
        tuple((name, text) for name, text in json.loads(labels.get("marks", "[]"))),
        str(row["reason"]),
    )  # fmt: skip
