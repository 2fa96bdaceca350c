"""Compare our runs under a protocol with the figures that the protocol's source prints."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

import pandas as pd

from lra.reports.arena.literature import published_name
from lra.reports.arena.rules import TASKS
from lra.reports.arena.runs import ProtocolRuns, protocol_runs
from lra.reports.labels import all_names
from lra.reports.literature.record import (
    FigureOrigin,
    PublishedFigure,
    PublishedRecord,
    published_record,
)
from lra.reports.statistics.intervals import Interval, mean_interval
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.scores import ACCURACY, CAVEAT, Score, entry, final_scores
from lra.reports.tables.table import Column, Entry, Table
from lra.runners.metrics import METRICS

_TRAINED = {
    FigureOrigin.own: "trained by the authors of the model", FigureOrigin.rerun: "re-run by others",
    FigureOrigin.quoted: "quoted",
}  # fmt: skip
_COLUMNS = [
    "line", "family", "task", "options", "metric", "split", "step", "cell", "seed", "value",
    "status", "reason", "baseline", "labels", "device", "precision", "runner", "shared", "start",
]  # fmt: skip
_ARM = ["line", "family", "arm"]
_Entries = dict[tuple[str, ...], list[Entry]]
TITLE = "Our scores and the published ones"


class MixedProtocols(ValueError):
    """One comparison has rows of several protocols or scales."""


class FigureVerdict(StrEnum):
    """What our interval says about a published figure."""

    within = "within the margin"
    above = "higher"
    below = "lower"
    uncertain = "too uncertain"
    incomparable = "not comparable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedScore:
    """One of our scores and the published figure of the same protocol, model and task."""

    line: str
    """The name of our model."""
    figure: PublishedFigure
    ours: Entry
    """Our mean with its interval, as stored, or why it is missing."""
    factor: float
    """What turns a stored number into the unit of the figure."""
    margin: float
    """In the unit of the figure."""
    scaled: bool
    """Whether our runs are smaller than those of the source."""
    deviations: Sequence[str]
    """Names of settings in which our runs differ from the source."""
    reasons: Sequence[str]
    """Why the two numbers are not comparable."""

    @property
    def difference(self) -> float | None:
        """Our mean minus the published figure, in its unit; None without both, or for a scale."""
        if self.scaled or self.ours.value is None or self.figure.value is None:
            return None
        return self.factor * self.ours.value - self.figure.value

    @property
    def relation(self) -> FigureVerdict:
        """What the numbers say, whatever differs in the settings."""
        if self.difference is None or self.ours.value is None:
            return FigureVerdict.incomparable
        if self.ours.interval is None:
            return FigureVerdict.uncertain
        published = self.difference - self.factor * self.ours.value  # with a minus
        low = self.factor * self.ours.interval.low + published
        high = self.factor * self.ours.interval.high + published
        if -self.margin <= low and high <= self.margin:
            return FigureVerdict.within
        if low <= 0 <= high:
            return FigureVerdict.uncertain
        return FigureVerdict.above if low > 0 else FigureVerdict.below

    @property
    def verdict(self) -> FigureVerdict:
        """What the numbers say; they are never comparable if there is a reason."""
        return FigureVerdict.incomparable if self.reasons else self.relation

    @property
    def words(self) -> str:
        """The verdict with its reasons, and what the numbers say in spite of them."""
        if not self.reasons:
            return str(self.verdict)
        numbers = "" if self.difference is None else f"; by the numbers: {self.relation}"
        return f"{self.verdict} ({'; '.join(self.reasons)}){numbers}"


def findings_of(runs: ProtocolRuns, record: PublishedRecord) -> Iterator[ComparedScore]:
    """Yield our scores under one protocol and scale with the published figures.

    Raises:
        MixedProtocols: the rows have several protocols or scales.
    """
    used = runs.rows[["protocol", "scale"]].drop_duplicates().to_numpy().tolist()
    if used != [[runs.protocol, runs.scale]]:
        names = " and ".join(" ".join(filter(None, pair)) or "no protocol" for pair in used)
        raise MixedProtocols(
            f"a comparison needs rows of one protocol and scale, but these have {names}: compare "
            "them separately"
        )
    wanted = {ACCURACY.metric, *(name for term in record.metrics.values() for name in term.ours)}
    # Failed runs have a row of accuracy. Frames with fewer columns are split faster.
    scores = runs.rows.loc[runs.rows["metric"].isin(wanted), _COLUMNS]
    options = scores["options"]
    scores = scores.assign(
        # Options of a task are settings of one model; other changed options make another model.
        arm=[
            str([k for k in all_names([m], "changed") if k[:5] != "task."])
            for m in scores["labels"]
        ],
        setting=[str(sorted(o for o in each.items() if o[0][:5] == "task.")) for each in options],
    )
    by_metric: dict[tuple[str, str], _Entries] = {}
    for (line, family, arm), rows in scores.groupby(_ARM, sort=True):
        for figure in record.of_model(published_name(str(family))):
            term, average = record.metrics[figure.metric], record.averages.get(figure.task)
            tasks = average.of if average else [figure.task]
            of_tasks = rows[rows["task"].isin([*tasks])]
            known = runs.protocol in figure.table.protocols and term.ours and not figure.at
            if not known or of_tasks.empty:
                continue
            for name in term.ours:
                if (name, figure.split) not in by_metric:
                    by_metric[name, figure.split] = _entries_of(scores, name, figure.split)
            key = (str(line), str(family), str(arm))
            maps = [by_metric[name, figure.split] for name in term.ours]
            ran = {t: next((e for m in maps if (e := m.get((*key, t)))), []) for t in tasks}
            ambiguous = any(record.tasks[t].settings == 1 < len(ran[t]) for t in tasks)
            means = [e for t in tasks for e in ran[t] or [absent()]]
            margin = term.margin or (term.relative or 0.0) * (figure.value or 0.0)
            is_fraction = (figure.unit, figure.metric) == ("fraction", "accuracy")
            yield ComparedScore(
                line=str(line), figure=figure, scaled=bool(runs.scale),
                ours=absent() if ambiguous else _mean(means),
                factor=100.0 if figure.unit == "%" else 1.0,
                margin=margin / 100.0 if is_fraction else margin,
                deviations=all_names(of_tasks["labels"], "deviations"),
                reasons=[*_reasons(of_tasks, figure, runs), *_gaps(ran, figure, record)],
            )  # fmt: skip


def _entries_of(scores: pd.DataFrame, metric: str, split: str) -> _Entries:
    """Return our score in each setting of each task, by the model; {} if no row has the metric."""
    score = Score(metric=metric, title=metric, unit=METRICS[metric].unit)
    score = ACCURACY if metric == ACCURACY.metric else score
    final, entries = final_scores(scores, split, score), _Entries()
    if final is not None:
        for (line, family, arm, task, _), part in final.groupby([*_ARM, "task", "setting"]):
            key = (str(line), str(family), str(arm), str(task))
            entries.setdefault(key, []).append(entry(part, score))
    return entries


def _gaps(
    ran: Mapping[str, Sequence[Entry]], figure: PublishedFigure, record: PublishedRecord
) -> Iterator[str]:
    """Yield what our scores lack, where `ran` has those of each task, one for each setting."""
    for task, entries in ran.items():
        count = record.tasks[task].settings
        if not entries:
            yield f"no {figure.metric} on the {figure.split} split of {task}"
        elif len(entries) != count:
            yield f"settings of {task}: ours {len(entries)}, the source {count}"
        for e in entries:
            if e.value is None:
                yield f"{task}: {', '.join(e.notes) or e.text}"


def _reasons(rows: pd.DataFrame, figure: PublishedFigure, runs: ProtocolRuns) -> Iterator[str]:
    """Yield why our runs are not those of the source."""
    if runs.scale:
        yield f"scale {runs.scale}"
    if changed := all_names(rows["labels"], "changed"):
        yield f"changed options: {', '.join(changed)}"
    if rows["shared"].any():
        yield "the source did not train this model"
    if (rows["start"] != "").any():
        yield "the training began from stored weights"
    if all_names(rows["labels"], "deviations"):
        yield "deviations"
    if figure.value is None:
        yield "the source reports a failure"


def _mean(entries: Sequence[Entry]) -> Entry:
    """Return the mean of entries, with its interval if all of them have the same seeds."""
    if len(entries) == 1:
        return entries[0]
    values = [e.value for e in entries if e.value is not None]
    if len(values) < len(entries):
        return absent()
    seeds = {frozenset(e.by_seed) for e in entries}
    common = sorted(seeds.pop()) if len(seeds) == 1 else []
    interval = mean_interval([fmean(e.by_seed[seed] for e in entries) for seed in common])
    return Entry(text="", value=fmean(values), interval=interval)


def published_table(frame: pd.DataFrame) -> Table | str:
    """Return the table of our scores and the published ones, or the reason why there is none.

    `frame` has rows from `lra.reports.rows.prepare`, under any protocols; each has a section.
    """
    groups = [runs for runs in protocol_runs(frame) if runs.protocol]
    if not groups:
        return (
            "no row has a protocol, so no published figure has the same settings; run with "
            "+protocol=NAME, where `lra list protocols` prints the names"
        )
    record = published_record()
    found = [(runs.title, f) for runs in groups for f in findings_of(runs, record)]
    if not found:
        models = ", ".join(sorted({str(f) for runs in groups for f in runs.rows["family"]}))
        names = ", ".join(dict.fromkeys(runs.protocol for runs in groups))
        return f"the published record has no figure of {models} under the protocol {names}"
    margins = {f.figure.metric: f"{f.figure.metric} {f.margin:.3g}" for _, f in found if f.margin}
    arena = any(f.figure.task in TASKS for _, f in found)
    caption = (
        "Ours is a mean over seeds [95 % interval over seeds; for one seed, over examples]. The "
        'verdict is "within the margin" if the whole interval is at most a margin from the '
        'published figure, "higher" or "lower" if the interval excludes the figure, and otherwise '
        '"too uncertain". Runs with deviations from the source, changed options or another scale '
        f"are not comparable. Margins: {', '.join(margins.values())}."
        f"{f' {CAVEAT}' if arena else ''}"
    )
    columns = [
        Column(title="ours"), Column(title="published"), Column(title="difference"),
        Column(title="deviations", words=True), Column(title="verdict", words=True),
    ]  # fmt: skip
    lines = [
        (title, f"{f.line}, {f.figure.task}, {f.figure.metric} ({f.figure.split})", _entries(f))
        for title, f in found
    ]
    return listed_table(lines, columns, title=TITLE, caption=caption, stub="model, task, metric")


def _entries(finding: ComparedScore) -> list[Entry]:
    """Return the entries of a line, in the unit and with the digits of the published figure."""
    figure, ours, difference = finding.figure, finding.ours, finding.difference
    digits = max(1, figure.digits)

    def text(value: float, sign: str = "") -> str:
        return f"{value:{sign}.{digits}f}".replace("-", "−")

    our_text = ours.text
    if ours.value is not None:
        our_text = text(finding.factor * ours.value) + _bounds(ours.interval, finding, digits)
    table = figure.table
    note = ", ".join(filter(None, (table.place, _TRAINED[figure.origin], table.remark)))
    note += f"; chosen on: {table.chosen_on}" + (f"; runs: {table.runs}" if table.runs else "")
    facts: dict[str, float | int | str] = {"margin": finding.margin, "unit": figure.unit}
    return [
        Entry(text=our_text, value=ours.value, interval=ours.interval, cells=ours.cells),
        Entry(text=figure.text, value=figure.value, facts=facts, notes=(note,)),
        absent() if difference is None else Entry(text=text(difference, "+"), value=difference),
        Entry(text=", ".join(finding.deviations) or "none"),
        Entry(text=finding.words),
    ]


def _bounds(interval: Interval | None, finding: ComparedScore, digits: int) -> str:
    """Return an interval as printed after its mean; "" for None."""
    if interval is None:
        return ""
    low, high = finding.factor * interval.low, finding.factor * interval.high
    return f" [{low:.{digits}f}, {high:.{digits}f}]"
