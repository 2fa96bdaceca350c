"""Scores under several protocols in one table, each with the figure that its source prints."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lra.reports.arena.literature import FAIL, PublishedScore, published_scores
from lra.reports.arena.rules import AVERAGES, HARDEST, TASKS, AverageRule
from lra.reports.arena.scores import AT_CHANCE, ArenaLine, ArenaScores, bounds
from lra.reports.statistics.intervals import LEVEL
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.scores import ACCURACY, CAVEAT
from lra.reports.tables.table import Column, Entry, Table

RULES = {rule.name: rule for rule in AVERAGES}


def protocols_tables(every: Sequence[ArenaScores]) -> Iterator[tuple[str, Table]]:
    """Yield each scale under which there are several protocols, with their table.

    Args:
        every: scores of each protocol and scale.
    """
    for scale in dict.fromkeys(scores.runs.scale for scores in every):
        together = [scores for scores in every if scores.runs.scale == scale]
        if len(together) > 1:
            yield scale, protocols_table(together)


def protocols_table(together: Sequence[ArenaScores]) -> Table:
    """Build the table: a line for each model under each protocol, a column for each task.

    Args:
        together: scores of the protocols, of one scale.
    """
    ran = {column.task for scores in together for column in scores.columns}
    tasks = [task for task in TASKS if task in ran]
    rule = RULES["six_tasks_failure_50" if HARDEST in ran else "five_tasks"]
    lines = []
    used: list[PublishedScore] = []
    for scores in together:
        for line in scores.lines:
            printed = published_scores(scores.runs.protocol, line.family)
            here = [_score(scores, line, task) for task in tasks] + [_mean(scores, line, rule)]
            beside = [printed.get(name) for name in (*tasks, rule.name)]
            used += [score for score in beside if score is not None]
            entries = map(_beside, here, beside, [bool(scores.runs.scale)] * len(here))
            lines.append(("", f"{line.name} ({scores.runs.protocol})", [*entries]))
    heads = [Column(title=TASKS[task], key=task) for task in tasks]
    scale = together[0].runs.scale
    return listed_table(
        lines, [*heads, Column(title=f"mean of {len(rule.tasks)}", key=rule.name)],
        title="Long Range Arena, each model in the protocol of its paper"
        + (f", scale {scale}" * bool(scale)),
        caption=" ".join(_caption(together, rule, used)), stub="model (protocol)",
        brief="Percent of the test split (published, and the difference).",
    )  # fmt: skip


def _score(scores: ArenaScores, line: ArenaLine, task: str) -> Entry:
    """Return the score of a line at a task; its interval only where it is one over seeds."""
    columns = [column for column in scores.columns if column.task == task]
    if len(columns) > 1:
        return absent(f"{TASKS[task]} has {len(columns)} columns in table 1, {scores.runs.title}")
    if not columns:
        return absent()
    entry = scores.entries[line.name, columns[0]]
    several = int(entry.facts.get("seeds", 0)) > 1
    return entry if several else replace(entry, text=entry.text.replace(bounds(entry.interval), ""))


def _mean(scores: ArenaScores, line: ArenaLine, rule: AverageRule) -> Entry:
    if rule.name not in scores.averages:
        return absent()
    return replace(scores.average(line.name, rule), notes=())


def _beside(here: Entry, printed: PublishedScore | None, scaled: bool) -> Entry:
    """Return our number with the published one, and the difference of runs of the same size."""
    if printed is None:
        return here
    text, facts = printed.text, dict(here.facts)
    if printed.percent is not None:
        facts["published"] = printed.percent / 100
        if here.value is not None and here.text != FAIL and not scaled:
            difference = facts["difference"] = here.value - printed.percent / 100
            points = f"{ACCURACY.factor * difference:+.{ACCURACY.digits}f}"
            text += f"; {points.replace('-', '−')}"
    return replace(here, text=f"{here.text} ({text})", facts=facts)


def _caption(
    together: Sequence[ArenaScores], rule: AverageRule, used: Sequence[PublishedScore]
) -> list[str]:
    scale = together[0].runs.scale
    difference = "" if scale else ", and the difference of ours from it in points"
    sentences = [
        "Each line uses the protocol of its paper, so sizes, trainings and lengths differ between "
        "lines. Compare a line with its published score only.",
        f"Percent of the test split, mean over seeds [{100 * LEVEL:g} % interval over seeds, where "
        f"there are several]; in parentheses the published score{difference}.",
    ]
    if scale:
        sentences.append(
            f"Scale {scale}: smaller than what the sources trained. Do not compare these numbers "
            "with published ones."
        )
    failed = "" if rule.failure is None else ", a FAIL on Path-X counted as 50"
    sentences.append(f"Mean: of {len(rule.tasks)} tasks{failed}; – if a task lacks a number.")
    if any(entry.status == AT_CHANCE for scores in together for entry in scores.entries.values()):
        sentences.append("FAIL: no significant difference from the majority class, or from chance.")
    sources = dict.fromkeys(f"{score.source} ({score.remark})" for score in used)
    sentences += [f"Published: {'; '.join(sources)}."] if sources else []
    data = {
        task: {
            column.source for scores in together for column in scores.columns if column.task == task
        }
        for task in TASKS
    }
    said = [f"{TASKS[task]}: {', '.join(sorted(found))}" for task, found in data.items() if found]
    return [*sentences, f"Data: {'; '.join(said)}.", CAVEAT]
