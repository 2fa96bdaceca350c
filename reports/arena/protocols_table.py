"""Make a table of scores under several protocols, next to the scores that their sources print."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lra.reports.arena.literature import PublishedScore, published_scores
from lra.reports.arena.rules import AVERAGES, HARDEST, TASKS, AverageRule
from lra.reports.arena.scores import AT_CHANCE, ArenaLine, ArenaScores, bounds
from lra.reports.literature.record import FAIL
from lra.reports.statistics.intervals import LEVEL
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.scores import ACCURACY, CAVEAT
from lra.reports.tables.table import Column, Entry, Table

RULES = {rule.name: rule for rule in AVERAGES}


def protocols_tables(every: Sequence[ArenaScores]) -> Iterator[tuple[str, Table]]:
    """Yield (scale, table) for each scale with runs under several protocols."""
    for scale in dict.fromkeys(scores.runs.scale for scores in every):
        same_scale = [scores for scores in every if scores.runs.scale == scale]
        if len(same_scale) > 1:
            yield scale, protocols_table(same_scale)


def protocols_table(together: Sequence[ArenaScores]) -> Table:
    """Return a table with a line for each model under each protocol, all of one scale."""
    ran = {column.task for scores in together for column in scores.columns}
    tasks = [task for task in TASKS if task in ran]
    rule = RULES["six_tasks_failure_50" if HARDEST in ran else "five_tasks"]
    lines = []
    used: list[PublishedScore] = []
    for scores in together:
        for line in scores.lines:
            by_column = published_scores(scores.runs.protocol, line.family)
            ours = [_score_entry(scores, line, task) for task in tasks]
            ours.append(_average_entry(scores, line, rule))
            published = [by_column.get(name) for name in (*tasks, rule.name)]
            used += [score for score in published if score is not None]
            scaled = bool(scores.runs.scale)
            entries = [
                _with_published(our, their, scaled)
                for our, their in zip(ours, published, strict=True)
            ]
            lines.append(("", f"{line.name} ({scores.runs.protocol})", entries))
    heads = [Column(title=TASKS[task], key=task) for task in tasks]
    scale = together[0].runs.scale
    return listed_table(
        lines, [*heads, Column(title=f"mean of {len(rule.tasks)}", key=rule.name)],
        title="Long Range Arena, each model in the protocol of its paper"
        + (f", scale {scale}" * bool(scale)),
        caption=" ".join(_caption(together, rule, used)), stub="model (protocol)",
        brief="Accuracy on the test split in percent (the published score, and the difference).",
    )  # fmt: skip


def _score_entry(scores: ArenaScores, line: ArenaLine, task: str) -> Entry:
    """Return the score of a model on a task, with its interval if there are several seeds."""
    columns = [column for column in scores.columns if column.task == task]
    if len(columns) > 1:
        return absent(
            f"the runs of {TASKS[task]} used {len(columns)} kinds of data; the table "
            f'"Long Range Arena, table 1, {scores.runs.title}" has a column for each of them'
        )
    if not columns:
        return absent()
    entry = scores.entries[line.name, columns[0]]
    if int(entry.facts.get("seeds", 0)) > 1:
        return entry
    return replace(entry, text=entry.text.replace(bounds(entry.interval), ""))


def _average_entry(scores: ArenaScores, line: ArenaLine, rule: AverageRule) -> Entry:
    """Return the average of a model without notes; a dash if a task was not run."""
    if rule.name not in scores.averages:
        return absent()
    return replace(scores.average(line.name, rule), notes=())


def _with_published(ours: Entry, published: PublishedScore | None, scaled: bool) -> Entry:
    """Return our score with the published one in parentheses, as in `41.0 (39.16; +1.8)`.

    The difference is omitted if our runs are `scaled`, which means smaller than the published ones.
    """
    if published is None:
        return ours
    text, facts = published.text, dict(ours.facts)
    if published.percent is not None:
        facts["published"] = published.percent / 100
        if ours.value is not None and ours.text != FAIL and not scaled:
            difference = facts["difference"] = ours.value - published.percent / 100
            points = f"{ACCURACY.factor * difference:+.{ACCURACY.digits}f}"
            text += f"; {points.replace('-', '−')}"
    return replace(ours, text=f"{ours.text} ({text})", facts=facts)


def _caption(
    together: Sequence[ArenaScores], rule: AverageRule, used: Sequence[PublishedScore]
) -> list[str]:
    """Return the sentences of the caption; `used` are the published scores in the table."""
    scale = together[0].runs.scale
    difference = "" if scale else ", and our score minus the published one in percentage points"
    sentences = [
        "Each line uses the protocol of its paper, so sizes, trainings and lengths differ between "
        "lines. Compare a line with its published score only.",
        "A number is the accuracy on the test split in percent, as a mean over seeds "
        f"[{100 * LEVEL:g} % interval over seeds, if there are several]. In parentheses are the "
        f"published score{difference}.",
    ]
    if scale:
        sentences.append(
            f"These runs have scale {scale}: they are smaller than those of the papers, so do not "
            "compare their scores with published ones."
        )
    failed = "" if rule.failure is None else ", where FAIL on Path-X counts as 50"
    sentences.append(
        f"The last column is the mean over {len(rule.tasks)} tasks{failed}, or – if a task has no "
        "score."
    )
    if any(entry.status == AT_CHANCE for scores in together for entry in scores.entries.values()):
        sentences.append(
            "FAIL: the accuracy is not significantly higher than that of always answering the most "
            "frequent class, or than chance."
        )
    sources = dict.fromkeys(f"{score.source} ({score.remark})" for score in used)
    sentences += [f"Published: {'; '.join(sources)}."] if sources else []
    data = {
        task: {
            column.source for scores in together for column in scores.columns if column.task == task
        }
        for task in TASKS
    }
    texts = [f"{TASKS[task]}: {', '.join(sorted(names))}" for task, names in data.items() if names]
    return [*sentences, f"Data: {'; '.join(texts)}.", CAVEAT]
