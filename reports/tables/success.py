"""How many seeds of a model learned a task: a mean hides that some did and others did not."""

from collections.abc import Sequence

from lra.reports.statistics.intervals import wilson_interval
from lra.reports.tables.ranking import above


def learns(value: float, examples: int, floor: Sequence[float], *, higher: bool = True) -> bool:
    """Return whether the score of one training is better than chance and all baselines.

    Args:
        value: the score; infinite for a failed training, which did not learn the task.
        examples: the number of test examples of an accuracy, whose interval must be better as a
            whole; 0 if it is unknown.
        floor: the scores of chance and baselines.
        higher: whether higher scores are better.
    """
    known = examples > 0 and 0.0 <= value <= 1.0
    return above(value, wilson_interval(value, examples) if known else None, floor, higher=higher)


def success_notes(
    sides: Sequence[tuple[str, Sequence[float]]], examples: int, baseline: tuple[str, float]
) -> list[str]:
    """Return a note about how many seeds of each side learned a task, if some did not.

    Args:
        sides: the title and the accuracies of each side, minus infinity for a failed training.
        examples: the number of test examples; 0 if it is unknown.
        baseline: the name and the accuracy of the best baseline.
    """
    name, floor = baseline
    counts = [sum(learns(v, examples, [floor]) for v in values) for _, values in sides]
    if not any(0 < n < len(values) for n, (_, values) in zip(counts, sides, strict=True)):
        return []
    texts = [
        f"{count} of {len(values)} seeds of {title}"
        for count, (title, values) in zip(counts, sides, strict=True)
    ]
    return [f"better than the baseline {name} are {' and '.join(texts)}; failed runs are not"]
