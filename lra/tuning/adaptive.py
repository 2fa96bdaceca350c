"""Proposals of Optuna's samplers by ask and tell, from stored trials alone.

Nothing of Optuna's is kept: its study is built anew for each round and seeded by it, so that equal
rows give equal proposals on any machine.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from lra.errors import ConfigError
from lra.tuning.advance import Step, Trial, scored_outcome
from lra.tuning.record import Record
from lra.tuning.space import Dimension

NEEDS = {"tpe": ("optuna",), "gp": ("optuna",), "cmaes": ("optuna", "cmaes")}


def check_installed(sampler: str) -> None:
    """Raise ConfigError where a package of a sampler is not there."""
    for package in NEEDS[sampler]:
        if find_spec(package) is None:
            brings = (
                "`pip install 'lra[search]'`" if package == "optuna" else f"`pip install {package}`"
            )
            raise ConfigError(
                f"search={sampler}: {package} is not installed; {brings} brings it, and "
                "search=halton needs nothing more"
            )


def propose(record: Record, step: Step) -> Record:
    """Return a search with the next points of each arm that waits for its sampler's word."""
    points, options = {**record.points}, record.options
    for arm, study, trials in step.asked:
        name = record.column(arm, study)
        there = points[name]
        before = [(there[trial.number - 1], trial) for trial in trials if trial.number]
        points[name] = there + _proposals(
            record.sampler, record.spaces[arm.model], before,
            number=min(options.parallel, options.trials - len(there)),
            seeds=(options.draw, study, len(there)),
        )  # fmt: skip
    return replace(record, points=points)


def _proposals(
    sampler: str,
    space: Sequence[Dimension],
    before: Sequence[tuple[Sequence[float], Trial]],
    *,
    number: int,
    seeds: Sequence[int],
) -> list[list[float]]:
    """Return the points of the next round of an arm, after the trials with points of their own."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    trials = [trial for _, trial in before]
    lower = scored_outcome(trials).better == "lower"
    study = optuna.create_study(
        direction="minimize" if lower else "maximize", sampler=_sampler(sampler, seeds)
    )
    scores = [trial.score for trial in trials if trial.score is not None]
    worst = (max(scores) if lower else min(scores)) if scores else 0.0
    over = {each.option: _distribution(each) for each in space}
    for point, trial in before:
        params = {e.option: _told(e, u) for e, u in zip(space, point, strict=False)}
        value = worst if trial.score is None else trial.score  # a failed one is the worst there is
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=dict(over), value=value)
        )
    asked = [study.ask(dict(over)) for _ in range(number)]
    return [[_place(each, one.params[each.option]) for each in space] for one in asked]


def _sampler(name: str, seeds: Sequence[int]) -> Any:
    import warnings

    import numpy as np
    import optuna

    seed = int(np.random.SeedSequence([*seeds]).generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "tpe":  # a round is proposed at once: its points are to lie apart
            return optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, constant_liar=True)
        if name == "gp":
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=0)
        return optuna.samplers.CmaEsSampler(seed=seed, n_startup_trials=0)


def _distribution(each: Dimension) -> Any:
    from optuna import distributions

    if not each.values:
        return distributions.FloatDistribution(0.0, 1.0)
    if each.numeric:
        return distributions.IntDistribution(0, len(each.values) - 1)
    return distributions.CategoricalDistribution([*range(len(each.values))])


def _told(each: Dimension, u: float) -> float | int:
    return min(math.floor(u * len(each.values)), len(each.values) - 1) if each.values else u


def _place(each: Dimension, proposed: float) -> float:
    """Return the place in [0, 1) of what was proposed."""
    return (proposed + 0.5) / len(each.values) if each.values else min(proposed, 1 - 1e-9)
