"""Searches without trainings: records, and outcomes by words."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lra.tuning.advance import Step, TrialOutcome, Words, advance
from lra.tuning.record import Arm, Record, SearchOptions

RATE = "optim.peak_learning_rate"
RANGES = {RATE: "tag(log, interval(1e-4, 3e-2))", "optim.weight_decay": "choice(0, 0.01, 0.1)"}
Score = Callable[[Words], float | None]


def record(
    models: Sequence[str] = ("linear", "sdpa"),
    *,
    ranges: Mapping[str, str] = RANGES,
    own: Mapping[str, Mapping[str, str]] | None = None,
    sampler: str = "halton",
    **options: Any,
) -> Record:
    """Return a search with its points drawn."""
    arms = tuple(
        Arm((f"model={model}",), f"model={model}", model, 100, {RATE: 1e-3}) for model in models
    )
    return Record(
        name="s", sampler=sampler, options=SearchOptions(**options), fixed=(), arms=arms,
        params=ranges, for_model=own or {},
    ).complete()  # fmt: skip


def outcome(words: Words, score: float | None, *, better: str = "higher") -> TrialOutcome:
    """Return what a training has left; None: it has diverged."""
    cell = f"{abs(hash(words)):016x}-f"
    if score is None:
        return TrialOutcome(cell, "diverged", "the loss was inf")
    return TrialOutcome(cell, score=score, loss=1 - score, better=better)


def finished(searched: Record, score: Score, *, better: str = "higher") -> Step:
    """Return the last step of a search all of whose trainings end at once."""
    ended: dict[Words, TrialOutcome] = {}
    while True:
        step = advance(searched, ended)
        new = [w for w in step.trainings if w not in ended]
        if not new:
            return step
        ended |= {words: outcome(words, score(words), better=better) for words in new}


def value(words: Words, key: str) -> str:
    """Return the last value of a key among words; "" where there is none."""
    return next((w.partition("=")[2] for w in reversed(words) if w.startswith(f"{key}=")), "")
