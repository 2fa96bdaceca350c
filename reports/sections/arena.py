"""Show the tables and the figure of the Long Range Arena for each protocol of the rows."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pandas as pd

from lra.reports.arena.bubbles import bubble_data
from lra.reports.arena.costs import arena_points, best_reference, cost_table
from lra.reports.arena.deviations import Sentences, deviation_table
from lra.reports.arena.literature import cost_source
from lra.reports.arena.protocols_table import protocols_tables
from lra.reports.arena.rules import LENGTHS, TASKS
from lra.reports.arena.runs import ProtocolRuns, protocol_runs
from lra.reports.arena.score_table import score_table
from lra.reports.arena.scores import ArenaScores, arena_scores
from lra.reports.figures.bubbles import bubble_figure, complete
from lra.reports.rows import ComparableRows, CostPoint
from lra.reports.sections.section import LeftOut, PagesPart, Part, TablePart, alike
from lra.reports.stems import stem
from lra.reports.tables.costs import reference_name
from lra.reports.tables.scores import CAVEAT


def section(
    frame: pd.DataFrame, *, kinds: Mapping[str, Sequence[str]], sentences: Sentences
) -> Iterator[Part]:
    """Yield the tables and the figure of each protocol.

    Args:
        frame: rows from `lra.reports.rows.prepare`.
        kinds: families by kind.
        sentences: for each run, how its settings differ from the source of its protocol.
    """
    groups = protocol_runs(frame)
    scored = [arena_scores(runs, frame) for runs in groups]
    for scale, table in protocols_tables([scores for scores in scored if scores is not None]):
        yield TablePart(
            "-".join(("lra-protocols", *([stem(scale)] if scale else []))), table.title, table
        )
    for runs, scores in zip(groups, scored, strict=True):
        if scores is not None:
            heading, table = _heading("table 1", runs), score_table(scores)
            yield TablePart(f"lra-table1-{runs.file}", heading, table)
        for part, points in arena_points(runs):
            file = "-".join(filter(None, ("lra-table2", runs.file))) + part.suffix
            yield TablePart(file, _heading("table 2", runs), cost_table(runs, part, points))
            if runs.protocol:
                yield _bubble_part(runs, scores, part, points, kinds)
    deviations = deviation_table(groups, sentences)
    if deviations is not None:
        heading = "Settings that differ from the sources of the protocols"
        yield TablePart("lra-deviations", heading, deviations)


def _heading(what: str, runs: ProtocolRuns) -> str:
    return f"Long Range Arena, {what}, {runs.title}"


def undrawn(frame: pd.DataFrame) -> Iterator[str]:
    """Yield, for the terminal, the reason why figure 3 is missing although costs were measured."""
    for runs in protocol_runs(frame):
        scores = arena_scores(runs, frame)
        for part, points in arena_points(runs) if runs.protocol else ():
            outcome = _bubbles_or_reason(runs, scores, points, {})
            if isinstance(outcome, str):
                figure = f"{_heading('figure 3', runs)} ({part.title})"
                yield f"the figure {figure} is missing, because {outcome}"


def _bubbles_or_reason(
    runs: ProtocolRuns,
    scores: ArenaScores | None,
    points: Sequence[CostPoint],
    kinds: Mapping[str, Sequence[str]],
) -> pd.DataFrame | str:
    """Return the data of the figure, or the reason why it cannot be drawn."""
    if scores is None:
        tasks = ",".join(list(TASKS)[:5])
        return (
            f"the rows have no scores under +protocol={runs.protocol}; to add them, run "
            f"+experiment=lra_table1 task={tasks} with the sweep= of these rows"
        )
    data = bubble_data(scores, points, kinds)
    measured = data[data["published"].isna()]
    if complete(measured).empty:
        reasons = "; ".join(f"{row.model}: {row.reason}" for row in measured.itertuples())
        return f"no model has all three numbers, speed, memory and average score ({reasons})"
    return data


def _bubble_part(
    runs: ProtocolRuns,
    scores: ArenaScores | None,
    part: ComparableRows,
    points: Sequence[CostPoint],
    kinds: Mapping[str, Sequence[str]],
) -> Part:
    """Return the figure of speed, score and memory, or the reason why it is missing."""
    file = f"lra-figure3-{runs.file}{part.suffix}"
    data = _bubbles_or_reason(runs, scores, points, kinds)
    if isinstance(data, str):
        return LeftOut(file, data)
    length = int(data["length"].iloc[0])
    reference = reference_name(best_reference(points), {})
    against = f"; the CSV also has speeds relative to {reference}" if reference else ""
    disturbed = data["model"][data["disturbed"].notna()]
    notes = []
    if len(disturbed):
        notes.append(f"another process disturbed the times of {', '.join(disturbed)}")
    if data["published"].notna().any():
        source, remark = cost_source()
        notes.append(
            f"hollow circles are published numbers ({source} and the scores of its table 1; "
            f"{remark}); their machine differs, so compare their speeds and memory only with each "
            "other"
        )
    draw = partial(
        bubble_figure,
        title=_heading("figure 3", runs),
        subtitle=f"score: mean accuracy on five tasks, without Path-X; speed and peak tensor "
        f"memory: one training step on {LENGTHS.get(length, f'{length:,}')} bytes "
        f"({part.title}){against}",
        notes=[CAVEAT, *notes],
    )
    text = "average score against speed; the area of a bubble is the memory"
    return PagesPart(
        file, _heading("figure 3", runs), text, alike(draw), panels=1, lines=None,
        number="model", data=data,
    )  # fmt: skip
