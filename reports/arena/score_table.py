"""The paper's table 1: models by task with averages, and published numbers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from lra.reports.arena.literature import PublishedScore, published_scores
from lra.reports.arena.rules import AVERAGES, BEST_OF_LENGTHS, TASKS, AverageRule
from lra.reports.arena.scores import AT_CHANCE, REFUSED, ArenaLine, ArenaScores
from lra.reports.rows import DAGGER
from lra.reports.statistics.intervals import LEVEL
from lra.reports.style import Spread, current_style
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.ranking import RANKS, rank_columns
from lra.reports.tables.scores import ACCURACY, BASELINES, CAVEAT, CHANCE, ORACLES, behind_means
from lra.reports.tables.table import Column, Entry, Table
from lra.runners.records import baseline_of, is_oracle

PUBLISHED = "published"


def score_table(scores: ArenaScores) -> Table:
    """Build the table: a line for each model, the published numbers of its family below."""
    rules = [scores.averages[name] for name in scores.averages]
    heads = [
        Column(title=TASKS[c.task] + _column_number(scores, index), key=c.task)
        for index, c in enumerate(scores.columns)
    ]
    heads += [Column(group="average", title=rule.title, key=rule.name) for rule in rules]
    measured = {line.name: _score_entries(scores, line.name, rules) for line in scores.lines}
    every = [entry for entries in measured.values() for entry in entries]
    bases = Counter(str(entry.facts["basis"]) for entry in every if "basis" in entry.facts)
    usual = max(bases, key=lambda basis: bases[basis], default="")
    ranks, marks = rank_columns(
        [measured[line.name] for line in scores.lines],
        ACCURACY.decimals,
        higher=True,
        floors=_floors(scores, rules),
    )
    lines: list[tuple[str, str, Sequence[Entry]]] = []
    used: list[PublishedScore] = []
    for line, line_entries in zip(scores.lines, ranks, strict=True):
        lines.append(("", line.name, [_with_basis(e, usual) for e in line_entries]))
        printed = published_scores(scores.runs.protocol, line.family)
        first = next(other for other in scores.lines if other.family == line.family)
        if printed and line is first:
            columns = [column.task for column in scores.columns] + [rule.name for rule in rules]
            used += [printed[key] for key in columns if key in printed]
            entries = [
                _paper_entry(printed.get(key), _caveats(scores, line, e))
                for key, e in zip(columns, line_entries, strict=True)
            ]
            lines.append(("", f"{line.family} ({PUBLISHED})", entries))
    for name, title in scores.baselines:
        section = ORACLES if is_oracle(baseline_of(name) or "") else BASELINES
        entries = [scores.entries[name, column] for column in scores.columns]
        lines.append((section, title, entries + [absent()] * len(rules)))
    explained = RANKS if RANKS in marks else ""
    return listed_table(
        lines, heads, title=f"Long Range Arena, table 1, {scores.runs.title}",
        caption=" ".join(_caption(scores, usual, used, marks)),
        brief=f"Percent of the test split{behind_means(every)}. {explained}".rstrip(),
    )  # fmt: skip


def _floors(scores: ArenaScores, rules: Sequence[AverageRule]) -> list[list[float]]:
    """Return what needs no model, of every column: chance, and baselines."""
    names = [name for name, _ in scores.baselines if not is_oracle(baseline_of(name) or "")]
    chance = [[CHANCE[column.task]] for column in scores.columns] + [[] for _ in rules]
    reached = zip(*(_score_entries(scores, name, rules) for name in names), strict=True)
    rivals = [*reached] if names else [()] * len(chance)
    return [
        [entry.value for entry in column if entry.value is not None] + guessed
        for column, guessed in zip(rivals, chance, strict=True)
    ]


def _score_entries(scores: ArenaScores, name: str, rules: Sequence[AverageRule]) -> list[Entry]:
    task_entries = [scores.entries[name, column] for column in scores.columns]
    return task_entries + [scores.average(name, rule) for rule in rules]


def _column_number(scores: ArenaScores, index: int) -> str:
    """Return the number of a column among those of its task; nothing where there is one."""
    current = scores.columns[index]
    several = [column for column in scores.columns if column.task == current.task]
    return f" ({several.index(current) + 1})" if len(several) > 1 else ""


def _with_basis(entry: Entry, usual: str) -> Entry:
    """Add what the interval of a score accounts for, where that is unusual."""
    basis = entry.facts.get("basis", usual)
    without_intervals = current_style().style.tables.spread in (Spread.deviation, Spread.none)
    return (
        entry
        if basis == usual or without_intervals
        else replace(entry, notes=(str(basis), *entry.notes))
    )


def _caveats(scores: ArenaScores, line: ArenaLine, measured: Entry) -> tuple[str, ...]:
    """Return how the run above a published number differs from it."""
    notes = []
    if scores.runs.scale:
        notes.append(f"the runs here are {scores.runs.scale}, the published one is not")
    elif line.changed:
        notes.append("the run above has changed options, see its note")
    if line.start:
        notes.append(f"the run above began from {line.start}")
    if measured.facts.get("settings"):
        notes.append(
            "the run above had the general settings of the protocol, because its source "
            "did not train this model"
        )
    return tuple(notes)


def _paper_entry(score: PublishedScore | None, notes: tuple[str, ...]) -> Entry:
    if score is None:
        return absent()
    if score.percent is None:
        return Entry(text=score.text, status=AT_CHANCE, notes=notes)
    return Entry(text=score.text, value=score.percent / 100, notes=notes)


def _caption(
    scores: ArenaScores, usual: str, used: Sequence[PublishedScore], marks: str
) -> list[str]:
    sentences = []
    if scores.runs.scale:
        sentences.append(
            f"Scale {scores.runs.scale}: smaller than what the protocol's source trained. Do not "
            "compare these numbers with published ones."
        )
    sentences.append(
        f"Percent of the test split, mean over seeds [{100 * LEVEL:g} % interval: over seeds, or, "
        f"of one seed, Wilson's over examples]; {usual or 'no score'} unless a note states another "
        "number."
    )
    sentences += [marks] if marks else []
    sentences += [
        f"Lines ({PUBLISHED}): {source} ({remark})."
        for source, remark in dict.fromkeys((score.source, score.remark) for score in used)
    ]
    ran = ", ".join(f"{n:,}" for n in scores.lengths)
    if len(scores.lengths) > 1:
        paper_lengths = ", ".join(f"{n:,}" for n in BEST_OF_LENGTHS["text"])
        sentences.append(
            f"Rule best_of_lengths: of Text the best of the lengths run ({ran}; the paper has "
            f"{paper_lengths}); notes say which won; it was chosen by the test split, which is the "
            "validation split as well where validation=test."
        )
    elif ran:
        sentences.append(f"Text at length {ran} alone, so not by the rule best_of_lengths.")
    sentences += [_of_average(rule) for rule in AVERAGES if rule.name in scores.averages]
    sentences += _no_average(scores)
    sentences.append(
        f"{DAGGER}: breaks the rule parameters_within_10_percent of exact attention's. FAIL: no "
        "significant difference from the majority class, or from chance where baselines are "
        f"missing. {REFUSED}: the model does not support this task."
    )
    # Of one length there is no best.
    alone = str(scores.lengths[0]) if len(scores.lengths) == 1 else ""
    data = [replace(column, length=column.length or alone) for column in scores.columns]
    sentences.append(f"Data: {'; '.join(map(str, data))}.")
    return [*sentences, CAVEAT]


def _of_average(rule: AverageRule) -> str:
    counts = "" if rule.failure is None else f", a failed Path-X as {100 * rule.failure:g}"
    return f"Average {rule.name} ({rule.title}): mean of {len(rule.tasks)} tasks{counts}."


def _no_average(scores: ArenaScores) -> list[str]:
    """Say which averages are absent, and why."""
    absent = [rule for rule in AVERAGES if rule.name not in scores.averages]
    if not absent:
        return []
    tasks = [column.task for column in scores.columns]
    counts = {title: tasks.count(task) for task, title in TASKS.items()}
    why = {
        "not run": [title for title, count in counts.items() if not count],
        "in several columns": [title for title, count in counts.items() if count > 1],
    }
    reasons = "; ".join(f"{words}: {', '.join(titles)}" for words, titles in why.items() if titles)
    return [f"No average {', '.join(rule.name for rule in absent)} ({reasons})."]
