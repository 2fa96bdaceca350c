"""Read the published record: the figures that papers and repositories print, with their sources.

The files are in `data`: `tables.yaml` has the tables, `terms.yaml` the metrics, units, tasks and
averages, and the CSV files have one line for each figure. A figure that cannot be true is refused.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache, cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

import yaml

FAIL = "FAIL"
"""Printed in place of a number if a paper reports a failure."""
ABOUT = "~"
"""Begins a number that the source calls approximate."""


class BadRecord(ValueError):
    """A file of the record has an impossible or incomplete entry; the message says where."""


class FigureOrigin(StrEnum):
    """Who trained the model of a figure."""

    own = "own"  # the authors of the source, who propose it
    rerun = "rerun"  # the authors of the source; others proposed it
    quoted = "quoted"  # others, whom the source quotes


class ChosenOn(StrEnum):
    """What chose the training, or the step of it, whose figure is printed."""

    test = "test"
    validation = "validation"
    last = "last"
    unknown = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricTerm:
    """A metric of the record; `relative` is a margin as a fraction of the published figure."""

    units: Sequence[str]
    higher: bool
    least: float = -math.inf
    most: float = math.inf
    ours: Sequence[str] = ()
    """The metrics of our rows that measure the same."""
    margin: float | None = None
    relative: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTerm:
    """A task of the record; numbers are in percent."""

    chance: float | None = None
    ceiling: float | None = None
    settings: int = 1
    """The number of settings of the task over which a figure is the mean."""
    like: str = ""
    """An easier task that tables print under the name of this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageTerm:
    """A mean over tasks. Two means of one group are over different tasks."""

    group: str
    of: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """A table of a paper or repository."""

    label: str
    source: str
    table: str = ""
    via: str = ""
    """Who prints the figures, if the source itself was not read."""
    protocols: Sequence[str] = ()
    """The protocols that have the settings of the models named in its figures."""
    chosen_on: ChosenOn = ChosenOn.unknown
    runs: int | None = None
    """The number of trainings over which a figure is the mean."""
    hardware: str = ""
    failure: float | str | None = None
    """What a failed task counts in a mean of six: percent, or `chance`."""
    cells_of: str = ""
    """The table with the parts of its means; "" for this table."""
    ratio_of: str = ""
    """The system by which its ratios divide."""
    mean_row: str = ""
    """The line with the means over its models, whose deviation is in `at`."""
    mixes: bool = False
    """Whether the source prints means over different tasks in one column."""
    remark: str = ""

    @property
    def place(self) -> str:
        """Return the source in words, as in "arXiv:2011.04006, table 1"."""
        place = ", ".join(part for part in (self.source, self.table) if part)
        return f"{place}, as printed in {self.via}" if self.via else place


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigure:
    """A number that a table prints."""

    table: PublishedTable
    system: str
    model: str
    """The family that the table's protocols train as the source did; "" without one."""
    task: str
    """A task, or the name of an average."""
    metric: str
    split: str
    text: str
    """The number as printed, or FAIL."""
    unit: str
    parameters_m: float | None
    origin: FigureOrigin
    quoted_from: str
    """A label of a table, or a source; "" unless it is quoted."""
    at: str
    """The setting of this figure among several, as in `length=1000`."""
    remark: str

    @property
    def value(self) -> float | None:
        """The number; None for FAIL."""
        return None if self.text == FAIL else float(self.text.removeprefix(ABOUT))

    @property
    def digits(self) -> int:
        """The number of printed decimals."""
        return len(self.text.partition(".")[2])

    @property
    def half_unit(self) -> float:
        """Half a unit of the last printed digit, which is the largest error of rounding."""
        return 0.5 * 10.0**-self.digits

    @property
    def identity(self) -> tuple[str, ...]:
        """What no two figures of a table share."""
        return self.system, self.task, self.metric, self.split, self.at


@dataclass(frozen=True, kw_only=True)
class PublishedRecord:
    """All tables and figures, and the terms that they use."""

    tables: Mapping[str, PublishedTable]
    figures: list[PublishedFigure]
    metrics: Mapping[str, MetricTerm]
    tasks: Mapping[str, TaskTerm]
    averages: Mapping[str, AverageTerm]

    @cached_property
    def _indexed(self) -> Mapping[tuple[str, tuple[str, ...]], PublishedFigure]:
        return {(f.table.label, f.identity): f for f in self.figures}

    @cached_property
    def _by_model(self) -> Mapping[str, Sequence[PublishedFigure]]:
        by_model: dict[str, list[PublishedFigure]] = {}
        for figure in self.figures:
            by_model.setdefault(figure.model, []).append(figure)
        return by_model

    def of_model(self, family: str) -> Sequence[PublishedFigure]:
        """Return the figures that protocols reproduce with a family."""
        return self._by_model.get(family, ()) if family else ()

    def find(self, label: str, figure: PublishedFigure, **changes: str) -> PublishedFigure | None:
        """Return the figure of a table that has the identity of another one, with changes."""
        names = ("system", "task", "metric", "split", "at")
        pairs = zip(names, figure.identity, strict=True)
        identity = tuple(changes.get(name, value) for name, value in pairs)
        return self._indexed.get((label, identity))


@cache
def published_record() -> PublishedRecord:
    """Return the record that comes with lra."""
    return read_record(resources.files("lra.reports.literature").joinpath("data"))


def read_record(folder: Traversable) -> PublishedRecord:
    """Read and check the files of a record.

    Raises:
        BadRecord: an entry lacks its source or has an unknown name or an impossible number; the
            message names file and line.
    """
    terms, tables = _yaml(folder, "terms.yaml"), _yaml(folder, "tables.yaml")
    labelled = {label: {"label": label, **facts} for label, facts in tables.items()}
    record = PublishedRecord(
        tables=_typed(PublishedTable, labelled, "tables.yaml"),
        figures=[],
        metrics=_typed(MetricTerm, terms["metrics"], "terms.yaml"),
        tasks=_typed(TaskTerm, terms["tasks"], "terms.yaml"),
        averages=_typed(AverageTerm, terms["averages"], "terms.yaml"),
    )
    for file in sorted(folder.iterdir(), key=lambda f: f.name):
        if file.name.endswith(".csv"):
            record.figures.extend(_figures(file, record))
    _refuse_unlike_means(record)
    return record


def _yaml(folder: Traversable, name: str) -> Mapping[str, Any]:
    # The parser in C is ten times as fast; a build of PyYAML may lack it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    content: Mapping[str, Any] = yaml.load(folder.joinpath(name).read_text("utf-8"), loader)
    return content


def _typed(kind: type[Any], entries: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Return entries as dataclasses, or raise BadRecord that says which fact is wrong."""
    names = [f.name for f in fields(kind)]
    for name, facts in entries.items():
        where = f"{file}, {name}"
        if wrong := [fact for fact in facts if fact not in names]:
            raise BadRecord(f"{where}: no fact is called {wrong[0]!r}; use {', '.join(names)}")
        if kind is PublishedTable and not str(facts.get("source") or "").strip():
            raise BadRecord(
                f"{where}: the table has no source; name the paper or repository that prints it"
            )
        if "chosen_on" in facts:
            facts["chosen_on"] = _choice(ChosenOn, facts["chosen_on"], where)
    return {name: kind(**facts) for name, facts in entries.items()}


def _choice(kind: type[StrEnum], text: str, where: str) -> Any:
    if text not in [*kind]:
        raise BadRecord(f"{where}: {text!r} is none of {', '.join(kind)}")
    return kind(text)


def _figures(file: Traversable, record: PublishedRecord) -> Iterator[PublishedFigure]:
    """Yield the figures of one CSV file, each of them checked."""
    used: set[tuple[str, ...]] = set()
    reader = csv.DictReader(file.read_text("utf-8").splitlines(), strict=True)
    for line in reader:
        where = f"{file.name}, line {reader.line_num}"
        if None in line or None in line.values():
            columns = ", ".join(reader.fieldnames or ())
            raise BadRecord(f"{where}: the line must have exactly the columns {columns}")
        table = record.tables.get(line["table"])
        if table is None:
            raise BadRecord(
                f"{where}: the figure has no source, because tables.yaml has no table "
                f"{line['table']!r}; add the table, or correct its label"
            )
        figure = PublishedFigure(
            table=table, system=line["system"], model=line["model"], task=line["task"],
            metric=line["metric"], split=line["split"], text=line["value"], unit=line["unit"],
            parameters_m=float(line["parameters_m"]) if line["parameters_m"] else None,
            origin=_choice(FigureOrigin, line["origin"], where), quoted_from=line["quoted_from"],
            at=line["at"], remark=line["remark"],
        )  # fmt: skip
        _check(figure, record, where)
        key = (table.label, *figure.identity)
        if key in used:
            raise BadRecord(f"{where}: an earlier line has a figure of {' / '.join(key)}, too")
        used.add(key)
        yield figure


def _check(figure: PublishedFigure, record: PublishedRecord, where: str) -> None:
    """Raise BadRecord for an unknown name or an impossible number."""
    term = record.metrics.get(figure.metric)
    if term is None:
        known = ", ".join(record.metrics)
        raise BadRecord(f"{where}: the metric {figure.metric!r} is unknown; known are {known}")
    if figure.unit not in term.units:
        raise BadRecord(
            f"{where}: the unit of {figure.metric} is {figure.unit!r}, but must be "
            f"{' or '.join(term.units)}"
        )
    if figure.task not in record.tasks and figure.task not in record.averages:
        raise BadRecord(
            f"{where}: the task {figure.task!r} is unknown; correct it, or add it to terms.yaml"
        )
    if (figure.origin is FigureOrigin.quoted) != bool(figure.quoted_from):
        raise BadRecord(
            f"{where}: origin is {figure.origin} and quoted_from is {figure.quoted_from!r}; a "
            "quoted figure, and no other, needs the source that it is quoted from"
        )
    try:
        value = figure.value
    except ValueError:
        raise BadRecord(
            f"{where}: the value is {figure.text!r}; write a number, {ABOUT} and a number, or "
            f"{FAIL}; a figure that the source lacks has no line"
        ) from None
    most = 1.0 if figure.unit == "fraction" else term.most
    if value is not None and not term.least <= value <= most:
        raise BadRecord(
            f"{where}: {figure.metric} is {figure.text} {figure.unit}, but must be from "
            f"{term.least:g} to {most:g}; correct the value or its unit"
        )


def _refuse_unlike_means(record: PublishedRecord) -> None:
    """Raise BadRecord if a table has means over different tasks and does not say so."""
    by_table: dict[tuple[str, str], str] = {}
    for figure in record.figures:
        average = record.averages.get(figure.task)
        if average is None or figure.table.mixes:
            continue
        first = by_table.setdefault((figure.table.label, average.group), figure.task)
        if first != figure.task:
            raise BadRecord(
                f"tables.yaml, {figure.table.label}: the table has the means {first} and "
                f"{figure.task}, which are over different tasks; split it, or write `mixes: true` "
                "if the source prints both in one column"
            )
