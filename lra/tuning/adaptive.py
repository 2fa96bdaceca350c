"""Proposals of Optuna's samplers by ask and tell, from stored trials alone.

Optuna's study is built again for each round from the stored trials, with a seed that follows from
the round, so that equal rows give equal proposals on any machine.
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
    """Raise ConfigError if a package that a sampler needs is not installed."""
    for package in NEEDS[sampler]:
        if find_spec(package) is None:
            command = (
                "`pip install 'lra[search]'`" if package == "optuna" else f"`pip install {package}`"
            )
            raise ConfigError(
                f"search={sampler}: {package} is not installed; type {command}, or set "
                "search=halton, which needs no package"
            )


def propose(record: Record, step: Step) -> Record:
    """Return the record with new points for each arm in `step.asked`, as its sampler proposes."""
    points, options = {**record.points}, record.options
    for arm, study, trials in step.asked:
        name = record.column(arm, study)
        known = points[name]
        # Trial n has the point n - 1, and trial 0, with the untuned options, has none.
        finished = [(known[trial.number - 1], trial) for trial in trials if trial.number]
        points[name] = known + _proposals(
            record.sampler, record.spaces[arm.model], finished,
            number=min(options.parallel, options.trials - len(known)),
            seeds=(options.draw, study, len(known)),
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
    """Return `number` new points of an arm; `before` has its finished trials with their points."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    trials = [trial for _, trial in before]
    lower_is_better = scored_outcome(trials).better == "lower"
    study = optuna.create_study(
        direction="minimize" if lower_is_better else "maximize", sampler=_sampler(sampler, seeds)
    )
    scores = [trial.score for trial in trials if trial.score is not None]
    worst = (max(scores) if lower_is_better else min(scores)) if scores else 0.0
    distributions = {dimension.option: _distribution(dimension) for dimension in space}
    for point, trial in before:
        params = {
            dimension.option: _optuna_value(dimension, u)
            for dimension, u in zip(space, point, strict=False)  # a point may have more coordinates
        }
        # A failed trial counts as the worst one.
        value = worst if trial.score is None else trial.score
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=dict(distributions), value=value)
        )
    new_trials = [study.ask(dict(distributions)) for _ in range(number)]
    return [
        [_place(dimension, proposal.params[dimension.option]) for dimension in space]
        for proposal in new_trials
    ]


def _sampler(name: str, seeds: Sequence[int]) -> Any:
    """Return Optuna's sampler `name`, seeded, which draws no random points at its start."""
    import warnings

    import numpy as np
    import optuna

    seed = int(np.random.SeedSequence([*seeds]).generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "tpe":  # `constant_liar` spreads the points of a round
            return optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, constant_liar=True)
        if name == "gp":
            return optuna.samplers.GPSampler(seed=seed, n_startup_trials=0)
        return optuna.samplers.CmaEsSampler(seed=seed, n_startup_trials=0)


def _distribution(dimension: Dimension) -> Any:
    """Return the values of a dimension for Optuna: [0, 1] for an interval, else indices."""
    from optuna import distributions

    if not dimension.values:
        return distributions.FloatDistribution(0.0, 1.0)
    if dimension.numeric:
        return distributions.IntDistribution(0, len(dimension.values) - 1)
    return distributions.CategoricalDistribution([*range(len(dimension.values))])


def _optuna_value(dimension: Dimension, u: float) -> float | int:
    """Return what Optuna gets for the coordinate `u`: the index of a value, or `u` itself."""
    count = len(dimension.values)
    return min(math.floor(u * count), count - 1) if count else u


def _place(dimension: Dimension, proposed: float) -> float:
    """Return the coordinate in [0, 1) of a proposed number or index (the middle of its part)."""
    return (proposed + 0.5) / len(dimension.values) if dimension.values else min(proposed, 1 - 1e-9)
