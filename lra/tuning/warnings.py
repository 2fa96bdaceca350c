"""What a reader of a choice should know: pairs of a name and a sentence with the way out."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lra.runners.records import Status
from lra.tuning.record import STUDY_SEEDS, Arm, Record
from lra.tuning.space import Dimension

if TYPE_CHECKING:
    from lra.tuning.advance import Trial

FAILED = 0.25
"""Share of an arm's trials above which that they fail is said."""
WIDER = 10.0
"""Times by which a logarithmic range is widened."""


def warnings(
    record: Record, arm: Arm, study: int, trials: Sequence["Trial"], chosen: "Trial | None"
) -> Iterator[tuple[str, str]]:
    """Yield what is to be said of the choice of an arm.

    Args:
        record: The search.
        arm: Whose choice.
        study: Number of the study.
        trials: At all rungs.
        chosen: The best; None: all have failed.
    """
    space = record.spaces[arm.model]
    drawn = {trial.number: trial for trial in trials if trial.number}
    for each in space:
        if chosen is not None and chosen.number:
            yield from _edge(each, [*drawn.values()], chosen)
    if reused := sorted({*record.seeds(study)} & {*record.final_seeds(study)}):
        high = max(*record.seeds(study), *record.final_seeds(study)) % STUDY_SEEDS + 1
        fresh = [high + n for n in range(len(record.options.final_seeds))]
        yield (
            "seeds_reused",
            f"seed {reused[0]} chose and scores: its score is too good; other ones are "
            f"search.final_seeds={fresh}".replace(" ,", ","),
        )
    unequal = {
        "trials": {record.number(each) for each in record.arms},
        "searched options": {len(record.spaces[each.model]) for each in record.arms},
        "steps": {each.steps for each in record.arms},
    }
    if differing := [name for name, counts in unequal.items() if len(counts) > 1]:
        named = " and ".join(
            f"{name} ({', '.join(map(str, sorted(unequal[name])))})" for name in differing
        )
        yield "unequal_budgets", f"arms differ in {named}: the one with more is favoured"
    failed = [trial.number for trial in trials if trial.number and trial.failure is not None]
    if len(failed) > FAILED * len(drawn):
        yield (
            "trials_failed",
            f"{len(failed)} of {len(drawn)} trials failed: a range that reaches less far leaves "
            "more of them to choose from",
        )
    for each in space:
        if each.linear_range:
            yield (
                "linear_range",
                f"{each.option} is searched linearly from {each.low:g} to {each.high:g}, nearly "
                f"all of it in the upper tenth: {each.option}=tag(log, interval({each.low:g}, "
                f"{each.high:g}))",
            )


def finished(trials: Sequence["Trial"]) -> int:
    """Return how many trials were trained as far as they were to be, or diverged before."""
    cut = {t.number for t in trials if t.failure and t.failure.status != Status.diverged}
    return len({trial.number for trial in trials if trial.number} - cut)


def _edge(each: Dimension, drawn: Sequence["Trial"], chosen: "Trial") -> Iterator[tuple[str, str]]:
    """Yield the mark of a choice beyond which no trial lies, with the words of a wider range.

    Its sentence has the rate of chance: where the option has no effect, every trial that has not
    failed is the best one equally often. Failed trials count as tried: a range that is closed by
    them is no open one. An end at 0 is taken for the limit of the option itself.
    """
    if not each.numeric or 0 < len(each.values) < 3:
        return
    text, value = chosen.values[each.option]
    tried = [trial.values[each.option][1] for trial in drawn]
    sound = [trial.values[each.option][1] for trial in drawn if trial.failure is None]
    low, high = each.ends
    edges = {max(tried)} | ({min(tried)} if low != 0 else set())
    if value not in edges:
        return
    if value == max(tried):
        wider = f"choice(…, {high:g}, {2 * high:g})"
        high = high * WIDER if each.log else high + (high - low)
    else:
        wider = f"choice({low / 2:g}, {low:g}, …)"
        low = low / WIDER if each.log else max(0.0, low - (high - low))
    if not each.values:
        wider = f"interval({low:g}, {high:g})"
        wider = f"{each.option}=" + (f"tag(log, {wider})" if each.log else wider)
    chance = sum(one in edges for one in sound) / len(sound)
    yield (
        "at_the_edge",
        f"no trial lies beyond the chosen {each.option}={text}, which happens in "
        f"{100 * chance:.0f} % of searches where this option has no effect: search wider, under "
        f"another name (sweep=), as {wider}",
    )
