"""Losses as lines: along a training, and on each split by classes of tokens."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from lra.reports.figures.findings import best_at, who
from lra.reports.figures.lines import LineDrawing
from lra.reports.figures.ticks import class_axis, step_axis
from lra.reports.labels import first_position
from lra.reports.rows import as_text
from lra.reports.sections.section import LeftOut, PagesPart, Part
from lra.reports.stems import stem
from lra.reports.tables.scores import TASK, splits

TRAINING = TASK[:3]
_NOTICED = 0.05
"""Of a loss: the least change that a title mentions."""


def _bands(data: pd.DataFrame) -> str:
    several = (data["seeds"] > 1).any()
    return "means over seeds; bands: extremes over seeds" if several else ""


def _along_window(parts: list[pd.DataFrame]) -> str:
    """Return for which models the loss falls, or rises, from the first position to the last."""
    lines = [line.sort_values("length") for p in parts for _, line in p.groupby("model")]
    moves: dict[str, list[str]] = {"falls": [], "rises": []}
    for line in lines:
        (_, first), (_, last) = line.iloc[[0, -1]].iterrows()
        apart = last["high"] < first["low"] or last["low"] > first["high"]
        if apart and abs(last["value"] / first["value"] - 1) > _NOTICED:
            moves["falls" if last["value"] < first["value"] else "rises"].append(first["model"])
    verb = max(moves, key=lambda each: len(moves[each]))
    alone = len({*pd.concat(lines)["model"]}) == len(lines)
    found = f"The loss {verb} along the window for {who(moves[verb], len(lines))}"
    return found if alone and moves[verb] else ""


loss_figure = LineDrawing(
    title="Training loss", panel=TRAINING, x="step", across="optimiser step", y="loss",
    along=lambda _: ("training loss (nat)", 1.0), scale=step_axis, subtitle=_bands,
    finding=partial(best_at, when="After {:,} steps"),
)  # fmt: skip
class_figures = {
    kind: LineDrawing(
        title=title, panel=TASK, x="place", across=across, y="loss",
        along=lambda _: ("loss (nat)", 1.0), scale=partial(class_axis, base=base), subtitle=_bands,
        finding=finding,
    )
    for kind, title, across, base, finding in (
        ("position", "Loss by position in the window", "tokens read in the window, from", 2,
         _along_window),
        ("document_position", "Loss by position in the document",
         "tokens read in the document, from", 2, lambda _: ""),
        ("frequency", "Loss by token frequency", "occurrences in train, from", 10,
         partial(best_at, when="On the rarest tokens", sign=-1)),
    )
}  # fmt: skip
"""By what losses are summed, `loss_by_…`, and how they are drawn."""


def loss_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the training losses by step: task, model, step, mean, extremes, number of seeds."""
    curve = rows[(rows["metric"] == "train_loss") & rows["step"].notna() & (rows["status"] == "ok")]
    return _means(curve, TRAINING, "step")


def class_data(rows: pd.DataFrame, split: str, kind: str) -> pd.DataFrame:
    """Return the losses of a split by classes, a key of `class_figures`; each ends at the next."""
    parts = rows[
        (rows["metric"] == f"loss_by_{kind}") & (rows["split"] == split) & (rows["status"] == "ok")
    ]
    parts = parts[parts["baseline"] == ""]
    first = [first_position({"labels": labels}) for labels in parts["labels"]]
    texts = [as_text(value) for value in parts["length"]]
    return _means(parts.assign(place=first, length=texts), TASK, "place")


def _means(rows: pd.DataFrame, panel: tuple[str, ...], column: str) -> pd.DataFrame:
    keys = [*panel, "name", column]
    groups: dict[tuple[Any, ...], list[tuple[float, Any]]] = {}
    complete = rows.dropna(subset=keys)
    measured = complete[[*keys, "value", "seed"]].itertuples(index=False, name=None)
    for *key, value, seed in measured:  # ten times as fast as a frame for each group
        groups.setdefault(tuple(key), []).append((value, seed))
    records = []
    for group, pairs in sorted(groups.items()):
        values = np.array([value for value, _ in pairs])
        seeds = len({seed for _, seed in pairs if not pd.isna(seed)})
        records.append((*group, values.mean(), values.min(), values.max(), seeds))
    columns = [*panel, "model", column, "loss", "low", "high", "seeds"]
    data = pd.DataFrame(records, columns=columns)
    return data.astype({column: int}) if len(data) else data


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the curve of trainings, and of every split the losses by classes."""
    data = loss_data(rows)
    if data.empty:
        yield LeftOut("training loss", "the rows contain no loss curves")
        return
    yield _figure("training-loss", "training loss against optimiser step", loss_figure, data)
    for split in splits(rows):
        for kind, drawing in class_figures.items():
            name = f"loss-by-{'place' if kind == 'position' else kind.replace('_', '-')}"
            name = name if split == "test" else f"{name}-{stem(split)}"
            text = f"{drawing.title.lower()}, {split} split"
            yield _figure(name, text, drawing, class_data(rows, split, kind))


def _figure(name: str, text: str, drawing: LineDrawing, data: pd.DataFrame) -> PagesPart:
    return PagesPart(
        name, f"{text[0].upper()}{text[1:]}", text, drawing, panel=TASK, along=drawing.x,
        number="loss", data=data,
    )  # fmt: skip
