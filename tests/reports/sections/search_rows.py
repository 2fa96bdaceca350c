"""Rows as a search leaves them: trials, choices and trainings of what was chosen, invented."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.stats import qmc

from lra.runners.measures.search import SearchResult
from tests.reports.conftest import row

RATES = {"sdpa": (-2.6, 1.2, 0.96), "linear": (-2.4, 0.8, 0.85), "lstm": (-2.0, 0.25, 0.9)}
"""Of each family: log10 of its best rate, how wide its window is, and its best score."""


def drawn(study: int, trials: int) -> list[dict[str, Any]]:
    """The options of every trial of a study, trial 0 first."""
    points = qmc.Halton(2, scramble=True, rng=np.random.default_rng([0, study])).random(trials)
    found = [{"optim.peak_learning_rate": 1e-3, "optim.weight_decay": 0.0}]
    for rate, decay in points:
        found.append({
            "optim.peak_learning_rate": float(f"{1e-4 * 300**rate:.3g}"),
            "optim.weight_decay": (0.0, 0.01, 0.1)[int(3 * decay)],
        })  # fmt: skip
    return found


def level(family: str, options: dict[str, Any], metric: str = "accuracy") -> float | None:
    """The true score of options; None where training diverges."""
    best, width, top = RATES[family]
    rate = np.log10(options["optim.peak_learning_rate"])
    if rate > best + 1.3 * width:
        return None
    share = float(0.1 + (top - 0.1) * np.exp(-(((rate - best) / width) ** 2)))
    return share if metric == "accuracy" else float(-np.log(share))


def ended(
    trial: int, options: dict[str, Any], score: float | None, rung: str = ""
) -> dict[str, Any]:
    """A trial as the runner of a choice takes it; without a score it has diverged."""
    how = {"status": "diverged", "reason": "loss was nan"} if score is None else {}
    told = {"trial": trial, "rung": rung, "options": options, "score": score}
    return {**told, "status": "ok", "reason": "", **how}


def chosen_rows(family: str, result: SearchResult, **columns: Any) -> Iterator[dict[str, Any]]:
    """Rows of the choice of an arm and study, as its runner makes them."""
    cell = {"runner": "search", "mode": "search", "model": family, "family": family,
            "options": {}, "seed": result.study} | columns  # fmt: skip
    for found in result.run(None):
        how = {name: getattr(found, name) for name in ("status", "reason", "step")}
        yield row(found.metric, found.value, **cell, **how, labels={**found.labels})


def searched(
    family: str,
    *,
    study: int = 0,
    name: str = "demo",
    trials: int = 16,
    sampler: str = "halton",
    metric: str = "accuracy",
    rungs: Sequence[str] = (),
    final_seeds: Sequence[int] = (1, 2, 3),
    marks: Sequence[tuple[str, str]] = (),
    only: Sequence[str] = ("optim.peak_learning_rate", "optim.weight_decay"),
    **columns: Any,
) -> Iterator[dict[str, Any]]:
    """Rows of one arm and study: of its choice, and of the trainings after it."""
    noise = np.random.default_rng([len(family), study])

    def measured(value: float, spread: float) -> float:
        value += spread * float(noise.standard_normal())
        return min(1.0, max(0.0, value)) if metric == "accuracy" else max(0.01, value)

    whole = drawn(study, trials)
    points = [{name: options[name] for name in only} for options in whole]
    better = "higher" if metric == "accuracy" else "lower"
    kept = range(trials + 1)
    table: list[dict[str, Any]] = []
    costs: list[dict[str, float]] = []
    for rung in (*rungs, ""):
        early: dict[int, float] = {}
        for trial in kept:
            seen = level(family, whole[trial], metric)
            if seen is not None:
                early[trial] = seen = measured(seen, 0.02)
            table.append(ended(trial, points[trial], seen, rung))
            share = 0.25 if rung else 1.0
            work = 4e12 * share * (1 + len(family) / 10)
            costs.append({"steps": 400 * share, "time": 60 * share, "multiply_adds": work})
        best_first = sorted(early, key=lambda t: -early[t] if better == "higher" else early[t])
        kept = sorted({0, *best_first[: -(-trials // 4)]} & {*early})
    chosen = best_first[0]
    words = " ".join(f"{name}={value}" for name, value in points[chosen].items())
    result = SearchResult(
        search=name, sampler=sampler, study=study, metric=metric, better=better, trials=table,
        costs=costs, chosen=chosen, words=words, remarks=[*marks],
    )  # fmt: skip
    yield from chosen_rows(family, result, **columns)
    for trial in dict.fromkeys((chosen, 0)):
        true = level(family, whole[trial], metric)
        options = {name: str(whole[trial][name]) for name in only}
        model = f"{family} ({', '.join(f'{k}={v}' for k, v in options.items())})"
        place = {"tuned": name, "study": str(study), "trial": str(trial), "examples": "2000"}
        for seed in final_seeds:
            cell = f"final-{'' if name == 'demo' else name}{family}-{study}-{trial}-{seed}"
            told = {"model": model, "family": family, "options": options, "cell": cell}
            told |= {"seed": seed + 1000 * study}
            for split in ("test", "validation"):
                labels = {"split": split, **place}
                value = measured(true or 0.1, 0.015)
                yield row(metric, value, **(columns | told), labels=labels)


def search(families: Sequence[str] = tuple(RATES), **options: Any) -> list[dict[str, Any]]:
    """Rows of a whole search; `studies` says how many of each arm."""
    studies = options.pop("studies", 1)
    return [
        each
        for family in families
        for study in range(studies)
        for each in searched(family, study=study, **options)
    ]
