"""Published results of the Long Range Arena, by protocol and model, from the published record."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lra.reports.arena.rules import EXACT, TASKS
from lra.reports.literature.findings import FAILURES
from lra.reports.literature.record import FAIL, PublishedFigure, PublishedRecord, published_record

COSTS = "arena_costs"
"""The table of the record with times and memories."""
_LENGTHS = (1000, 2000, 3000, 4000)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedScore:
    """A score that a paper reports."""

    percent: float | None
    """The score in percent; None if the paper reports a failure."""
    source: str
    remark: str

    @property
    def text(self) -> str:
        """The score as printed: a number, or FAIL."""
        return FAIL if self.percent is None else f"{self.percent:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCost:
    """Time and memory of a model in the paper, with entries for 1K, 2K, 3K and 4K bytes."""

    steps_per_second: Sequence[float | None]
    ratio: Sequence[float | None]
    """The speed divided by that of exact attention."""
    gigabytes: Sequence[float | None]


def published_tables() -> list[str]:
    """Return the names of the tables with accuracies of several models on several tasks."""
    found: dict[str, set[str]] = {}
    for figure in _accuracies():
        found.setdefault(figure.table.label, set()).add(figure.task)
    return [label for label, tasks in found.items() if len(tasks) > 1]


def published_accuracies(table: str) -> dict[str, dict[str, float | None]]:
    """Return the accuracies of a published table, from 0 to 1, by system and task.

    Averages are omitted, and so are tasks without any number. A failure is None.
    """
    figures = [figure for figure in _accuracies() if figure.table.label == table]
    tasks = {figure.task for figure in figures if figure.value is not None}
    numbers: dict[str, dict[str, float | None]] = {}
    for figure in figures:
        if figure.task in tasks:
            value = None if figure.value is None else figure.value / 100
            numbers.setdefault(figure.system, {})[figure.task] = value
    return numbers


def _accuracies() -> list[PublishedFigure]:
    """Return the test accuracies on single tasks of the Long Range Arena."""
    return [
        figure
        for figure in published_record().figures
        if (figure.metric, figure.split, figure.unit, figure.at) == ("accuracy", "test", "%", "")
        and figure.task in TASKS
    ]


def published_scores(protocol: str, family: str) -> dict[str, PublishedScore]:
    """Return the scores of a model in the source of a protocol, by task or name of an average."""
    return {
        column: score for column, protocols, score in _scores_of(family) if protocol in protocols
    }


def printed_scores(family: str, column: str) -> list[PublishedScore]:
    """Return the scores of a model in all sources; `column` is a task or the name of an average."""
    return [score for name, _, score in _scores_of(family) if name == column]


def _scores_of(family: str) -> Iterator[tuple[str, Sequence[str], PublishedScore]]:
    """Yield (column, protocols of the table, score) for each published score of a model."""
    record = published_record()
    for figure in record.of_model(published_name(family)):
        if (figure.metric, figure.split, figure.at) != ("accuracy", "test", ""):
            continue
        score = PublishedScore(
            percent=figure.value, source=figure.table.place, remark=figure.table.remark
        )
        for column in _columns(figure, record):
            yield column, figure.table.protocols, score


def _columns(figure: PublishedFigure, record: PublishedRecord) -> Sequence[str]:
    """Return the task or the rules of the average of a figure; () if it is no score of the arena.

    Without a failed task, a mean of six tasks is the same by each rule.
    """
    if figure.task != "six_tasks":
        return (figure.task,) if figure.task in (*TASKS, "five_tasks") else ()
    label = figure.table.cells_of or figure.table.label
    parts = [record.find(label, figure, task=task) for task in TASKS]
    if all(part is not None and part.value is not None for part in parts):
        return [name for name, failure in FAILURES.items() if failure is not None]
    return [name for name, failure in FAILURES.items() if failure == figure.table.failure]


def published_cost(family: str) -> PublishedCost | None:
    """Return the costs of a model in the paper's table 2; None if the table lacks the model."""
    figures = {
        (figure.metric, figure.at): figure.value
        for figure in published_record().of_model(published_name(family))
        if figure.table.label == COSTS
    }
    columns = [
        [figures.get((metric, f"length={length}")) for length in _LENGTHS]
        for metric in ("steps_per_second", "speedup_vs_transformer", "peak_memory_per_device")
    ]
    steps, ratio, gigabytes = columns
    if not figures:
        return None
    return PublishedCost(steps_per_second=steps, ratio=ratio, gigabytes=gigabytes)


def published_bubble(
    protocol: str, family: str, rule: str
) -> tuple[PublishedScore, PublishedCost] | None:
    """Return the average score and the costs of a model from one paper; None if one is missing.

    Args:
        protocol: a protocol; its source must be the paper that has the costs.
        family: the family of the model.
        rule: the name of the average.
    """
    score, cost = published_scores(protocol, family).get(rule), published_cost(family)
    same_paper = protocol in published_record().tables[COSTS].protocols
    return (score, cost) if score and cost and same_paper else None


def cost_source() -> tuple[str, str]:
    """Return the source of the published costs, and a remark about their hardware."""
    table = published_record().tables[COSTS]
    return table.place, table.remark


def published_name(family: str) -> str:
    """Return the name of a family in the record, which has one entry for exact attention."""
    return EXACT[0] if family in EXACT else family
