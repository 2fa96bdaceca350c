"""Decides what a search trains next: a pure function of its record and of the stored results.

All trials come first, rung by rung (a rung is a share of the steps, after which only the better
trials go on). Then the best trial of each arm is chosen, and trained with other seeds. Nothing here
reads a clock, or a training that has not ended.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lra.composition.python_words import word
from lra.runners.records import Status
from lra.tuning.record import ADAPTIVE, STUDY_SEEDS, Arm, Record, SearchOptions, Values
from lra.tuning.space import Dimension

Words = tuple[str, ...]
VALIDATION = "runner.evaluate_splits=[validation]"
BOTH = "runner.evaluate_splits=[validation,test]"
"""Of final trainings: their validation score shows how much too good that of the best trial was."""
FAILED = 0.25
"""If more than this share of an arm's trials fails, a warning says so."""
WIDER = 10.0
"""The factor by which a warning proposes to widen a logarithmic range."""


class TrialOutcome(NamedTuple):
    """The stored result of one training of a trial."""

    cell: str
    """Its key and the fingerprint of its code."""
    status: str = str(Status.ok)
    reason: str = ""
    score: float | None = None
    """The metric on validation data; None: the training failed."""
    loss: float = math.inf
    """On validation."""
    metric: str = "accuracy"
    better: str = "higher"
    seconds: float | None = None
    """Of training."""


class Trial(NamedTuple):
    """A trial at one rung: the trainings of its seeds together."""

    number: int
    rung: str
    """"" for the full length."""
    values: Values
    trainings: tuple[Words, ...]
    outcomes: tuple[TrialOutcome, ...] = ()

    @property
    def failure(self) -> TrialOutcome | None:
        """The first training that has failed."""
        return next((outcome for outcome in self.outcomes if outcome.score is None), None)

    @property
    def score(self) -> float | None:
        """Mean over seeds; None where one has failed."""
        if self.failure is not None:
            return None
        return math.fsum(outcome.score or 0.0 for outcome in self.outcomes) / len(self.outcomes)

    @property
    def rank(self) -> tuple[float, float, int]:
        """A key to sort trials by, the best first: by score, then by loss, then by number."""
        score, loss = self.score, math.fsum(outcome.loss for outcome in self.outcomes)
        turned = -1.0 if self.outcomes[0].better == "higher" else 1.0
        return (math.inf if score is None else turned * score), loss, self.number


class ArmChoice(NamedTuple):
    """The choice of one arm in one study."""

    arm: Arm
    study: int
    trials: tuple[Trial, ...]
    """In the order of rungs and numbers."""
    trial: Trial | None
    """None: all have failed."""
    marks: Sequence[tuple[str, str]]

    @property
    def words(self) -> Words:
        """The arguments that train with the chosen options."""
        return (*self.arm.words, *trial_words(self.trial.values if self.trial else {}))


@dataclass(slots=True)
class Step:
    """Everything that a search should have trained or chosen by now, finished or not."""

    trainings: list[Words] = field(default_factory=list)
    trials: dict[Words, str] = field(default_factory=dict)
    """The trainings of trials, by their arguments: the label SEARCH/STUDY/TRIAL/RUNG of each."""
    choices: list[ArmChoice] = field(default_factory=list)
    asked: list[tuple[Arm, int, tuple[Trial, ...]]] = field(default_factory=list)
    """Arm, study and trials so far, wherever an adaptive sampler has to propose the next trial."""
    later: int = 0
    """How many cells will follow whose options are not known yet."""


def advance(record: Record, ended: Mapping[Words, TrialOutcome]) -> Step:
    """Return what the search should have trained or chosen by now.

    Args:
        record: The search.
        ended: The results of its finished trainings, by their arguments.
    """
    step = Step()
    for arm in record.arms:
        for study in range(record.options.studies):
            cells, choices = len(step.trainings), len(step.choices)
            _advance(record, arm, study, ended, step)
            if len(step.choices) == choices:  # the arm has made no choice yet
                step.later += size_of(record, arm, study) - (len(step.trainings) - cells)
    return step


def _advance(
    record: Record, arm: Arm, study: int, ended: Mapping[Words, TrialOutcome], step: Step
) -> None:
    """Add to `step` what one arm of the search needs in one study.

    Returns as soon as a rung has trainings that have not ended: what follows depends on them.
    """
    options, done = record.options, list[Trial]()
    trials = [Trial(n, "", values, ()) for n, values in record.trials(arm, study).items()]
    for share in [*options.rungs, None]:  # None: the full length
        trials = [_at_rung(share, trial, arm, record.seeds(study)) for trial in trials]
        labels = {
            words: f"{record.name}/{study}/{trial.number}/{trial.rung}"
            for trial in trials
            for words in trial.trainings
        }
        step.trials |= labels
        step.trainings.extend(labels)
        if not labels.keys() <= ended.keys():
            return
        trials = [
            trial._replace(outcomes=tuple(ended[words] for words in trial.trainings))
            for trial in trials
        ]
        done += trials
        if share is not None:  # trial 0, with the untuned options, always goes on
            ranked = sorted((t for t in trials if t.number), key=lambda trial: trial.rank)
            survivors = {t.number for t in ranked[: math.ceil(options.keep * len(ranked))]}
            trials = [trial for trial in trials if not trial.number or trial.number in survivors]
    if record.sampler in ADAPTIVE and len(record.points_of(arm, study)) < options.trials:
        step.asked.append((arm, study, tuple(done)))
        return
    best = min(trials, key=lambda trial: trial.rank)
    chosen = ArmChoice(arm, study, tuple(done), None if best.score is None else best, ())
    chosen = chosen._replace(marks=[*warnings(record, arm, study, done, chosen.trial)])
    step.choices.append(chosen)
    step.trainings.extend(finals(record, chosen, arm.words, options))


def finals(
    record: Record, chosen: ArmChoice, words: Words, options: SearchOptions
) -> Iterator[Words]:
    """Yield the final trainings: of the chosen and of the untuned options, with new seeds.

    Args:
        record: The search.
        chosen: The choice of an arm.
        words: The arguments of the arm, or of another training that uses the chosen options.
        options: Its final seeds, and whether the untuned options are trained, too.
    """
    trials: dict[int, Values] = {}
    if chosen.trial is not None:
        trials[chosen.trial.number] = chosen.trial.values
    if options.untuned:
        trials[0] = {}
    for number, values in trials.items():
        tuned = word("runner.tuned", f"{record.name}/{chosen.study}/{number}")
        for seed in options.final_seeds:
            of_study = f"seed={seed + STUDY_SEEDS * chosen.study}"
            yield (*words, *trial_words(values), of_study, BOTH, tuned)


def trial_words(values: Values) -> Words:
    """Return the values of a trial as arguments of a command."""
    return tuple(f"{option}={text}" for option, (text, _) in values.items())


def _at_rung(share: float | None, trial: Trial, arm: Arm, seeds: Sequence[int]) -> Trial:
    """Return a trial at its next rung, with the trainings that it needs there.

    Args:
        share: The rung, as a share of all steps; None: the full length.
        trial: The trial at the rung before, whose trainings are continued.
        arm: The arm of the trial.
        seeds: One training for each.
    """
    values = trial.values
    steps = int(values["optim.steps"][1]) if "optim.steps" in values else arm.steps
    until: Words = ()
    if share is not None:
        steps = max(1, round(share * steps))
        until = (f"runner.until_step={steps}",)
    keys = [outcome.cell.partition("-")[0] for outcome in trial.outcomes]  # without fingerprints
    continued: list[Words] = [(f"runner.continues={key}",) for key in keys]
    continued = continued or [()] * len(seeds)
    trainings = tuple(
        (*arm.words, *trial_words(values), f"seed={seed}", VALIDATION, *until, *continuation)
        for seed, continuation in zip(seeds, continued, strict=True)
    )
    rung = "" if share is None else f"{share:g}"
    return Trial(trial.number, rung, values, trainings)


def size_of(record: Record, arm: Arm, study: int = 0) -> int:
    """Return how many cells an arm will have in a study once the search is finished.

    These are the trials that are alive at each rung and at full length, for each seed; the choice;
    and the final trainings of the chosen and perhaps of the untuned options.
    """
    options, cells = record.options, 0
    distinct = len(record.trials(arm, study)) - options.untuned
    # Points with equal values make one trial; points that are not drawn yet count as distinct.
    alive = record.number(arm) - (len(record.points_of(arm, study)) - distinct)
    for _ in options.rungs:
        cells += alive + options.untuned
        alive = math.ceil(options.keep * alive)
    cells += alive + options.untuned
    return cells * len(options.seeds) + 1 + (1 + options.untuned) * len(options.final_seeds)


def scored_outcome(trials: Sequence[Trial]) -> TrialOutcome:
    """Return the first outcome with a score, or any if all trainings failed: it has the metric."""
    outcomes = [outcome for trial in trials for outcome in trial.outcomes]
    return next((outcome for outcome in outcomes if outcome.score is not None), outcomes[0])


def table(chosen: ArmChoice) -> list[dict[str, Any]]:
    """Return the trials of a choice as plain JSON."""
    return [
        {
            "trial": trial.number,
            "rung": trial.rung,
            "options": dict(chosen.arm.untuned) | {o: v for o, (_, v) in trial.values.items()},
            "score": trial.score,
            "status": failed.status if (failed := trial.failure) else str(Status.ok),
            "reason": failed.reason if failed else "",
            "cells": [outcome.cell for outcome in trial.outcomes],
        }
        for trial in chosen.trials
    ]


def warnings(
    record: Record, arm: Arm, study: int, trials: Sequence[Trial], chosen: Trial | None
) -> Iterator[tuple[str, str]]:
    """Yield warnings about the choice of an arm: a name, and a sentence that says what to do.

    Args:
        record: The search.
        arm: The arm.
        study: The number of the study.
        trials: The trials of the arm at all rungs.
        chosen: The best trial; None: all have failed.
    """
    space = record.spaces[arm.model]
    drawn = {trial.number: trial for trial in trials if trial.number}
    for dimension in space:
        if chosen is not None and chosen.number:
            yield from _edge(dimension, [*drawn.values()], chosen)
    yield from foreseen(record, study)
    failed = [trial.number for trial in trials if trial.number and trial.failure is not None]
    if len(failed) > FAILED * len(drawn):
        yield (
            "trials_failed",
            f"{len(failed)} of {len(drawn)} trials failed: with a narrower range, you have "
            "more trials to choose from",
        )
    for dimension in space:
        if dimension.linear_range:
            option, low, high = dimension.option, dimension.low, dimension.high
            yield (
                "linear_range",
                f"{option} is searched on a linear scale from {low:g} to {high:g}, "
                "so that nearly all trials are within a factor of ten of the upper end; set "
                f"{option}=tag(log, interval({low:g}, {high:g}))",
            )


def foreseen(record: Record, study: int) -> Iterator[tuple[str, str]]:
    """Yield the warnings that are known before any trial is trained."""
    if reused := sorted({*record.seeds(study)} & {*record.final_seeds(study)}):
        high = max(*record.seeds(study), *record.final_seeds(study)) % STUDY_SEEDS + 1
        fresh = [high + n for n in range(len(record.options.final_seeds))]
        yield (
            "seeds_reused",
            f"seed {reused[0]} was used both to choose and to score options, so their score is too "
            f"good; set search.final_seeds={fresh}".replace(" ,", ","),
        )
    unequal = {
        "trials": {record.number(arm) for arm in record.arms},
        "searched options": {len(record.spaces[arm.model]) for arm in record.arms},
        "steps": {arm.steps for arm in record.arms},
    }
    if differing := [name for name, counts in unequal.items() if len(counts) > 1]:
        counts_text = " and ".join(
            f"{name} ({', '.join(map(str, sorted(unequal[name])))})" for name in differing
        )
        of_options = differing == ["searched options"]
        spent = "; an arm with more options has no more trials" if of_options else ""
        yield "unequal_budgets", f"the compared arms differ in {counts_text}{spent}"


def finished_count(trials: Sequence[Trial]) -> int:
    """Return how many trials have ended by themselves; one that diverged counts, too."""
    failed = {t.number for t in trials if t.failure and t.failure.status != Status.diverged}
    return len({trial.number for trial in trials if trial.number} - failed)


def _edge(dimension: Dimension, drawn: Sequence[Trial], chosen: Trial) -> Iterator[tuple[str, str]]:
    """Yield a warning if the chosen value of an option is the lowest or highest that was tried.

    The sentence proposes a wider range, and says how often chance alone has this result: if the
    option has no effect, every trial that has not failed is the best one equally often. Failed
    trials count as tried, so that a value next to failed ones is not at the edge. A lower end of 0
    counts as the limit of the option itself.
    """
    if not dimension.numeric or 0 < len(dimension.values) < 3:  # each of two values is at an edge
        return
    text, value = chosen.values[dimension.option]
    tried = [trial.values[dimension.option][1] for trial in drawn]
    sound = [trial.values[dimension.option][1] for trial in drawn if trial.failure is None]
    low, high = dimension.ends
    edges = {max(tried)} | ({min(tried)} if low != 0 else set())
    if value not in edges:
        return
    if value == max(tried):
        wider = f"choice(…, {high:g}, {2 * high:g})"
        high = high * WIDER if dimension.log else high + (high - low)
    else:
        wider = f"choice({low / 2:g}, {low:g}, …)"
        low = low / WIDER if dimension.log else max(0.0, low - (high - low))
    if not dimension.values:
        wider = f"interval({low:g}, {high:g})"
        wider = f"{dimension.option}=" + (f"tag(log, {wider})" if dimension.log else wider)
    chance = sum(tried_value in edges for tried_value in sound) / len(sound)
    yield (
        "at_the_edge",
        f"{dimension.option}={text} of the best trial is at the edge of the tried values. In "
        f"{100 * chance:.0f} % of searches, this happens although the option has no effect. Search "
        f"a wider range in a new sweep (sweep=NAME): {wider}",
    )
