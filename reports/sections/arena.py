"""Tables and figure of the Long Range Arena, for every protocol among the rows."""

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
    """Yield the tables and the figure of every protocol.

    Args:
        frame: prepared.
        kinds: families by kind.
        sentences: of the cells, what departs from the source of their protocol.
    """
    every = protocol_runs(frame)
    scored = [arena_scores(runs, frame) for runs in every]
    for scale, table in protocols_tables([scores for scores in scored if scores is not None]):
        yield TablePart(
            "-".join(("lra-protocols", *([stem(scale)] if scale else []))), table.title, table
        )
    for runs, scores in zip(every, scored, strict=True):
        if scores is not None:
            heading, table = _heading("table 1", runs), score_table(scores)
            yield TablePart(f"lra-table1-{runs.file}", heading, table)
        for part, points in arena_points(runs):
            file = "-".join(filter(None, ("lra-table2", runs.file))) + part.suffix
            yield TablePart(file, _heading("table 2", runs), cost_table(runs, part, points))
            if runs.protocol:
                yield _figure(runs, scores, part, points, kinds)
    deviations = deviation_table(every, sentences)
    if deviations is not None:
        heading = "Settings that differ from the protocols' sources"
        yield TablePart("lra-deviations", heading, deviations)


def _heading(what: str, runs: ProtocolRuns) -> str:
    return f"Long Range Arena, {what}, {runs.title}"


def undrawn(frame: pd.DataFrame) -> Iterator[str]:
    """Yield why there is no figure 3 of rows whose costs are those of one: for the terminal."""
    for runs in protocol_runs(frame):
        scores = arena_scores(runs, frame)
        for part, points in arena_points(runs) if runs.protocol else ():
            outcome = _data(runs, scores, points, {})
            if isinstance(outcome, str):
                yield f"{_heading('figure 3', runs)} ({part.title}), is not drawn: {outcome}"


def _data(
    runs: ProtocolRuns,
    scores: ArenaScores | None,
    points: Sequence[CostPoint],
    kinds: Mapping[str, Sequence[str]],
) -> pd.DataFrame | str:
    """Return what the figure shows, or why there is nothing to show."""
    if scores is None:
        tasks = ",".join(list(TASKS)[:5])
        return (
            f"no scores under +protocol={runs.protocol} are among the rows; those of {tasks} join "
            f"them by +experiment=lra_table1 task={tasks} with the sweep= of these rows"
        )
    data = bubble_data(scores, points, kinds)
    measured = data[data["published"].isna()]
    if complete(measured).empty:
        reasons = "; ".join(f"{row.model}: {row.reason}" for row in measured.itertuples())
        return f"no model has all of speed, memory and average ({reasons})"
    return data


def _figure(
    runs: ProtocolRuns,
    scores: ArenaScores | None,
    part: ComparableRows,
    points: Sequence[CostPoint],
    kinds: Mapping[str, Sequence[str]],
) -> Part:
    file = f"lra-figure3-{runs.file}{part.suffix}"
    data = _data(runs, scores, points, kinds)
    if isinstance(data, str):
        return LeftOut(file, data)
    length = int(data["length"].iloc[0])
    reference = reference_name(best_reference(points), {})
    against = f"; the CSV has speed relative to {reference}, too" if reference else ""
    shaken = data["model"][data["disturbed"].notna()]
    notes = [f"measured on a busy machine: {', '.join(shaken)}"] if len(shaken) else []
    if data["published"].notna().any():
        source, remark = cost_source()
        notes.append(
            f"hollow circles: as published ({source} and the scores of its table 1; {remark}); "
            "another machine, so that speeds and memory compare within each set alone"
        )
    draw = partial(
        bubble_figure,
        title=_heading("figure 3", runs),
        subtitle=f"score: mean of five tasks, without Path-X; speed and peak tensor memory of one "
        f"training step on {LENGTHS.get(length, f'{length:,}')} bytes ({part.title}){against}",
        notes=[CAVEAT, *notes],
    )
    text = "average score against speed, area: memory"
    return PagesPart(
        file, _heading("figure 3", runs), text, alike(draw), panels=1, lines=None,
        number="model", data=data,
    )  # fmt: skip
