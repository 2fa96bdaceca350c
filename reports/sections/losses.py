"""Draw losses as lines: during training, and on each split by classes of tokens."""

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

_NOTICED = 0.05
"""The smallest relative change of a loss that a title mentions."""


def _subtitle(data: pd.DataFrame) -> str:
    """Return the subtitle, which explains bands; "" if there is a single seed."""
    several = (data["seeds"] > 1).any()
    return "lines: means over seeds; bands: lowest to highest seed" if several else ""


def _trend_title(parts: list[pd.DataFrame]) -> str:
    """Return a title that says for which models the loss falls, or rises, along the window."""
    lines = [line.sort_values("length") for p in parts for _, line in p.groupby("model")]
    moves: dict[str, list[str]] = {"falls": [], "rises": []}
    for line in lines:
        (_, first), (_, last) = line.iloc[[0, -1]].iterrows()
        bands_disjoint = last["high"] < first["low"] or last["low"] > first["high"]
        if bands_disjoint and abs(last["value"] / first["value"] - 1) > _NOTICED:
            moves["falls" if last["value"] < first["value"] else "rises"].append(first["model"])
    verb = max(moves, key=lambda v: len(moves[v]))
    one_line_per_model = len({*pd.concat(lines)["model"]}) == len(lines)
    title = f"The loss {verb} along the window for {who(moves[verb], len(lines))}"
    return title if one_line_per_model and moves[verb] else ""


loss_figure = LineDrawing(
    title="Training loss", panel=TASK, x="step", across="optimiser step", y="loss",
    along=lambda _: ("training loss (nat)", 1.0), scale=step_axis, subtitle=_subtitle,
    finding=partial(best_at, when="After {:,} steps"),
)  # fmt: skip
class_figures = {
    kind: LineDrawing(
        title=title, panel=TASK, x="place", across=across, y="loss",
        along=lambda _: ("loss (nat)", 1.0), scale=partial(class_axis, base=base),
        subtitle=_subtitle, finding=finding,
    )
    for kind, title, across, base, finding in (
        ("position", "Loss by position in the window",
         "position in the window", 2, _trend_title),
        ("document_position", "Loss by position in the document",
         "position in the document", 2, lambda _: ""),
        ("frequency", "Loss by token frequency",
         "occurrences in the training data", 10,
         partial(best_at, when="On the rarest tokens", sign=-1)),
    )
}  # fmt: skip
"""How the losses of the metrics `loss_by_KEY` are drawn, by KEY."""


def loss_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return training losses with columns for task, model, step, mean, extremes and seeds.

    The length of a task that is trained at one length alone is left out.
    """
    curve = rows[(rows["metric"] == "train_loss") & rows["step"].notna() & (rows["status"] == "ok")]
    several = curve.groupby([*TASK[:3]], dropna=False)["length"].transform("nunique") > 1
    texts = curve["length"].where(several, None).map(as_text)
    return _means(curve.assign(length=texts), "step")


def class_data(rows: pd.DataFrame, split: str, kind: str) -> pd.DataFrame:
    """Return the losses of a split by classes of tokens; `kind` is a key of `class_figures`.

    The column `place` is the beginning of a class, which ends where the next class begins.
    """
    parts = rows[
        (rows["metric"] == f"loss_by_{kind}") & (rows["split"] == split) & (rows["status"] == "ok")
    ]
    parts = parts[parts["baseline"] == ""]
    first = [first_position({"labels": labels}) for labels in parts["labels"]]
    texts = [as_text(value) for value in parts["length"]]
    return _means(parts.assign(place=first, length=texts), "place")


def _means(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return means and extremes over seeds, for each task, model and value of `column`."""
    keys = [*TASK, "name", column]
    groups: dict[tuple[Any, ...], list[tuple[float, Any]]] = {}
    complete = rows.dropna(subset=keys)
    measured = complete[[*keys, "value", "seed"]].itertuples(index=False, name=None)
    for *key, value, seed in measured:  # this loop is ten times as fast as DataFrame.groupby
        groups.setdefault(tuple(key), []).append((value, seed))
    records = []
    for group, pairs in sorted(groups.items()):
        values = np.array([value for value, _ in pairs])
        seeds = len({seed for _, seed in pairs if not pd.isna(seed)})
        records.append((*group, values.mean(), values.min(), values.max(), seeds))
    columns = [*TASK, "model", column, "loss", "low", "high", "seeds"]
    data = pd.DataFrame(records, columns=columns)
    return data.astype({column: int}) if len(data) else data


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the figure of training losses, and figures of losses by classes for each split."""
    data = loss_data(rows)
    if data.empty:
        yield LeftOut("training loss", "the rows contain no loss curve of a training")
        return
    yield _figure_part("training-loss", "training loss against optimiser step", loss_figure, data)
    for split in splits(rows):
        for kind, drawing in class_figures.items():
            name = f"loss-by-{'place' if kind == 'position' else kind.replace('_', '-')}"
            name = name if split == "test" else f"{name}-{stem(split)}"
            text = f"{drawing.title.lower()}, {split} split"
            yield _figure_part(name, text, drawing, class_data(rows, split, kind))


def _figure_part(name: str, text: str, drawing: LineDrawing, data: pd.DataFrame) -> PagesPart:
    return PagesPart(
        name, f"{text[0].upper()}{text[1:]}", text, drawing, panel=TASK, along=drawing.x,
        number="loss", data=data,
    )  # fmt: skip
