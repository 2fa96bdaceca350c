"""Make the paper's table 1: scores of models by task, averages, and published scores."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from lra.reports.arena.literature import PublishedScore, published_scores
from lra.reports.arena.rules import AVERAGES, BEST_OF_LENGTHS, TASKS, AverageRule
from lra.reports.arena.scores import AT_CHANCE, REFUSED, ArenaLine, ArenaScores
from lra.reports.rows import DAGGER
from lra.reports.statistics.intervals import LEVEL, Uncertainty
from lra.reports.style import Spread, current_style
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.ranking import RANKS, TIES, above, rank_columns
from lra.reports.tables.scores import ACCURACY, BASELINES, CAVEAT, CHANCE, ORACLES, behind_means
from lra.reports.tables.table import Column, Entry, Table
from lra.runners.records import baseline_of, is_oracle

PUBLISHED = "published"


def score_table(scores: ArenaScores) -> Table:
    """Return the table with a line for each model; published scores of its family follow it."""
    rules = [*scores.averages.values()]
    heads = [
        Column(title=TASKS[c.task] + _column_number(scores, index), key=c.task)
        for index, c in enumerate(scores.columns)
    ]
    heads += [Column(group="average", title=rule.title, key=rule.name) for rule in rules]
    measured = {line.name: _score_entries(scores, line.name, rules) for line in scores.lines}
    all_entries = [entry for entries in measured.values() for entry in entries]
    bases = Counter(str(entry.facts["basis"]) for entry in all_entries if "basis" in entry.facts)
    usual_basis = max(bases, key=lambda basis: bases[basis], default="")
    ranked, marks = rank_columns(
        [measured[line.name] for line in scores.lines],
        ACCURACY.decimals,
        higher=True,
        floors=_floors(scores, rules),
    )
    lines: list[tuple[str, str, Sequence[Entry]]] = []
    used: list[PublishedScore] = []
    for line, line_entries in zip(scores.lines, ranked, strict=True):
        lines.append(("", line.name, [_with_basis(e, usual_basis) for e in line_entries]))
        published = published_scores(scores.runs.protocol, line.family)
        first = next(other for other in scores.lines if other.family == line.family)
        if published and line is first:
            columns = [column.task for column in scores.columns] + [rule.name for rule in rules]
            used += [published[key] for key in columns if key in published]
            entries = [
                _published_entry(
                    published.get(key),
                    _caveats(scores, line, e) or _suspicion(published.get(key), e),
                )
                for key, e in zip(columns, line_entries, strict=True)
            ]
            lines.append(("", f"{line.family} ({PUBLISHED})", entries))
    for name, title in scores.baselines:
        section = ORACLES if is_oracle(baseline_of(name) or "") else BASELINES
        entries = [scores.entries[name, column] for column in scores.columns]
        lines.append((section, title, entries + [absent()] * len(rules)))
    explained = "".join(words for words in (RANKS, TIES) if words in marks)
    return listed_table(
        lines, heads, title=f"Long Range Arena, table 1, {scores.runs.title}",
        caption=" ".join(_caption(scores, usual_basis, used, marks)),
        brief=f"Test accuracy in percent{behind_means(all_entries)}. {explained}".rstrip(),
    )  # fmt: skip


def _floors(scores: ArenaScores, rules: Sequence[AverageRule]) -> list[list[float]]:
    """Return for each column the scores that need no model: those of baselines, and chance."""
    names = [name for name, _ in scores.baselines if not is_oracle(baseline_of(name) or "")]
    chance = [[CHANCE[column.task]] for column in scores.columns] + [[] for _ in rules]
    by_column = zip(*(_score_entries(scores, name, rules) for name in names), strict=True)
    baselines = [*by_column] if names else [()] * len(chance)
    return [
        [entry.value for entry in column if entry.value is not None] + chance_of_column
        for column, chance_of_column in zip(baselines, chance, strict=True)
    ]


def _score_entries(scores: ArenaScores, name: str, rules: Sequence[AverageRule]) -> list[Entry]:
    """Return the scores of a model or baseline on each task, and its averages."""
    task_entries = [scores.entries[name, column] for column in scores.columns]
    return task_entries + [scores.average(name, rule) for rule in rules]


def _column_number(scores: ArenaScores, index: int) -> str:
    """Return the number of a column among those of its task, as " (2)"; "" for a single one."""
    current = scores.columns[index]
    same_task = [column for column in scores.columns if column.task == current.task]
    return f" ({same_task.index(current) + 1})" if len(same_task) > 1 else ""


def _with_basis(entry: Entry, usual: str) -> Entry:
    """Add a note about what an interval accounts for, if it differs from the `usual` basis."""
    basis = entry.facts.get("basis", usual)
    without_intervals = current_style().style.tables.spread in (Spread.deviation, Spread.none)
    return (
        entry
        if basis == usual or without_intervals
        else replace(entry, notes=(str(basis), *entry.notes))
    )


def _caveats(scores: ArenaScores, line: ArenaLine, measured: Entry) -> tuple[str, ...]:
    """Return notes about how our runs, in the line above, differ from a published run."""
    notes = []
    if scores.runs.scale:
        notes.append(f"our runs have scale {scores.runs.scale}; the published run has full size")
    elif line.changed:
        notes.append("our runs have changed options, which a note in the line above lists")
    if line.start:
        notes.append(f"our training began from {line.start}")
    if measured.facts.get("settings"):
        notes.append(
            "our runs have the protocol's settings for all models, because its source did not "
            "train this model"
        )
    return tuple(notes)


def _suspicion(score: PublishedScore | None, measured: Entry) -> tuple[str, ...]:
    """Return a note if our mean over seeds is significantly better than the published score."""
    if score is None or score.percent is None or measured.value is None:
        return ()
    interval = measured.interval
    if interval is None or interval.source is not Uncertainty.seeds:
        return ()
    if not above(measured.value, interval, [score.percent / 100], higher=True):
        return ()
    return (
        "our score is significantly better than the published one; before you trust it, look for "
        "test examples in training, easier data, or a choice by test scores",
    )


def _published_entry(score: PublishedScore | None, notes: tuple[str, ...]) -> Entry:
    """Return a published score with notes; a dash for None."""
    if score is None:
        return absent()
    if score.percent is None:
        return Entry(text=score.text, status=AT_CHANCE, notes=notes)
    return Entry(text=score.text, value=score.percent / 100, notes=notes)


def _caption(
    scores: ArenaScores, usual_basis: str, used: Sequence[PublishedScore], marks: str
) -> list[str]:
    """Return the sentences of the caption.

    `usual_basis` is what most intervals account for, for example "3 seeds"; `used` are the
    published scores of the table; `marks` are sentences about marks of ranks.
    """
    sentences = []
    if scores.runs.scale:
        sentences.append(
            f"These runs have scale {scores.runs.scale}: they are smaller than those of the "
            "protocol's source, so do not compare their scores with published ones."
        )
    sentences.append(
        f"A number is the accuracy on the test split in percent, as a mean over seeds "
        f"[{100 * LEVEL:g} % interval over seeds; for a single seed, Wilson's interval over test "
        f"examples]. It is from {usual_basis or 'no seed'}, unless a note states something else."
    )
    sentences += [marks] if marks else []
    sentences += [
        f"Lines with ({PUBLISHED}) are from {source} ({remark})."
        for source, remark in dict.fromkeys((score.source, score.remark) for score in used)
    ]
    lengths = ", ".join(f"{n:,}" for n in scores.lengths)
    if len(scores.lengths) > 1:
        paper_lengths = ", ".join(f"{n:,}" for n in BEST_OF_LENGTHS["text"])
        sentences.append(
            f"By the rule best_of_lengths, the score on Text is the best of the scores at lengths "
            f"{lengths} (in the paper: {paper_lengths}). A note names the best length. It was "
            "chosen on the test split, which is also the validation split if validation=test."
        )
    elif lengths:
        sentences.append(
            f"Text was run only at length {lengths}, so the rule best_of_lengths does not apply."
        )
    sentences += [_average_sentence(rule) for rule in AVERAGES if rule.name in scores.averages]
    sentences += _missing_averages(scores)
    sentences.append(
        f"{DAGGER}: the model has over 10 percent more parameters than exact attention (rule "
        "parameters_within_10_percent). FAIL: the accuracy is not significantly higher than that "
        "of always answering the most frequent class, or than chance if baselines are missing. "
        f"{REFUSED}: the model does not support this task."
    )
    # With a single length, Text has this length instead of "best of lengths".
    single = str(scores.lengths[0]) if len(scores.lengths) == 1 else ""
    data = [replace(column, length=column.length or single) for column in scores.columns]
    sentences.append(f"Data: {'; '.join(map(str, data))}.")
    return [*sentences, CAVEAT]


def _average_sentence(rule: AverageRule) -> str:
    """Return the sentence of the caption that explains an average."""
    counts = (
        "" if rule.failure is None else f", where FAIL on Path-X counts as {100 * rule.failure:g}"
    )
    return (
        f"The average {rule.name} ({rule.title}) is the mean over {len(rule.tasks)} tasks{counts}."
    )


def _missing_averages(scores: ArenaScores) -> list[str]:
    """Return a sentence about the averages that are missing, and why; [] if none is missing."""
    missing = [rule.name for rule in AVERAGES if rule.name not in scores.averages]
    if not missing:
        return []
    tasks = [column.task for column in scores.columns]
    counts = {title: tasks.count(task) for task, title in TASKS.items()}
    titles_by_reason = {
        "tasks that were not run": [title for title, count in counts.items() if not count],
        "tasks with several columns": [title for title, count in counts.items() if count > 1],
    }
    reasons = "; ".join(f"{why}: {', '.join(t)}" for why, t in titles_by_reason.items() if t)
    return [f"The table lacks the averages {', '.join(missing)} ({reasons})."]
