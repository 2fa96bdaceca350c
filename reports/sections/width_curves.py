"""Draw scores against the width of models, and against the bytes of their state.

A line joins the widths of one model. After a search, the scores are those of its chosen options,
which it trained again with other seeds; the tables of tuning have all trials.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from lra.reports.figures.drawing import looks as looks_of
from lra.reports.figures.findings import clause
from lra.reports.figures.lines import LineDrawing
from lra.reports.figures.ticks import length_axis
from lra.reports.names import UNTUNED
from lra.reports.sections.section import Looks, PagesPart, Part, TablePart
from lra.reports.style import current_style
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import Pivot
from lra.reports.tables.places import place_words
from lra.reports.tables.scores import SCORES, TASK, Score, entry, final_scores
from lra.reports.tables.searches import Searches
from lra.reports.tables.table import Column, Entry

WIDTH = "backbone.width"
COLUMNS = (*TASK, "metric", "model", "width", "value", "low", "high", "seeds", "state_bytes",
           "status", "reason")  # fmt: skip


def width_data(rows: pd.DataFrame, score: Score) -> pd.DataFrame:
    """Return the score, its interval and the bytes of the state by task, model and width.

    Only models with several widths are included, and no trainings with untuned options.
    """
    trained = rows[(rows["runner"] == "train") & (rows["baseline"] == "")]
    trained = trained[~trained["name"].str.contains(UNTUNED, regex=False)]
    scores = final_scores(trained, "test", score)
    if scores is None:
        return pd.DataFrame(columns=list(COLUMNS))
    bytes_of = state_bytes(trained)
    widths = [options.get(WIDTH, "") for options in scores["options"]]
    scores = scores.assign(width=[float(w) if w.isdigit() else math.nan for w in widths])
    scores = scores.assign(line=_names(scores, Searches(rows).searched))
    records: list[dict[str, Any]] = []
    for key, part in scores.groupby([*TASK, "line"], sort=False, dropna=False):
        if part["width"].nunique() < 2:
            continue
        *place, line = key
        for _, of_width in part.groupby("width"):
            found = entry(of_width, score)
            low, high = (found.value, found.value) if found.interval is None else (
                found.interval.low, found.interval.high
            )  # fmt: skip
            size = bytes_of.reindex(of_width["cell"]).max()  # nan: the model has no state
            records.append(dict(zip(TASK, place, strict=True)) | {
                "metric": score.metric, "model": line, "width": int(of_width["width"].iloc[0]),
                "value": found.value,
                "low": low, "high": high, "seeds": of_width["seed"].nunique(), "state_bytes": size,
                "status": found.status, "reason": "; ".join(found.notes),
            })  # fmt: skip
    return pd.DataFrame(records, columns=list(COLUMNS))


def state_bytes(trained: pd.DataFrame) -> "pd.Series[float]":
    """Return the bytes of the state of one text by cell, of models that have one."""
    sizes = trained[(trained["metric"] == "state_bytes") & trained["step"].isna()]
    return sizes.groupby("cell")["value"].first()


def _names(rows: pd.DataFrame, searched: set[str]) -> list[str]:
    """Return the models' names without width, and after a search without the searched options."""
    names = []
    for family, options, departures in zip(
        rows["family"], rows["options"], rows["departures"], strict=True
    ):
        told = {key: value for key, value in options.items() if key not in {WIDTH, *searched}}
        words = [word for word in departures if "tuned" not in word and "changed" not in word]
        names.append(current_style().name(family, told, words))
    return names


def _score_entry(data: pd.DataFrame, width: int) -> Entry:
    """Return the score of a model with a width, and its interval."""
    point = data[data["width"] == width]
    if point.empty or point["value"].isna().all():
        return absent("not run")
    row = point.iloc[0]
    score = SCORES[str(row["metric"])]
    text = f"{score.text(row['value'])} [{score.text(row['low'])}, {score.text(row['high'])}]"
    if pd.notna(row["state_bytes"]):
        text += f", {row['state_bytes']:,.0f} B"
    return Entry(text=text, value=float(row["value"]), facts={"state_bytes": row["state_bytes"]})


def _finding(parts: list[pd.DataFrame]) -> str:
    """Return a title: which models reach 99 % at their narrowest width."""
    if len(parts) != 1 or str(parts[0]["metric"].iloc[0]) != "accuracy":
        return ""
    narrow = parts[0].sort_values("width").groupby("model", sort=False).first()
    reached = [str(name) for name in narrow.index[narrow["value"] >= 0.99]]
    one, many = "reaches 99 % at its smallest width", "reach 99 % at their smallest widths"
    return clause(reached, len(narrow), one, many)


def width_figure(data: pd.DataFrame, looks: Looks, *, x: str, across: str, title: str) -> Figure:
    """Return the figure of scores against one number of a model; lines get looks by name."""
    names = [*dict.fromkeys(str(name) for name in data["model"])]
    drawing = LineDrawing(
        title=title, panel=(*TASK, "metric"), x=x, across=across, place=x.replace("_", " "),
        words=lambda columns, key: place_words(columns[:-1], key[:-1]), scale=length_axis,
        finding=_finding if x == "width" else lambda _: "",
        subtitle=lambda _: "bands: 95 % intervals over seeds, on the test split",
    )  # fmt: skip
    return drawing(data, looks_of(names) | {n: looks[n] for n in names if n in looks})


def width_curves(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield a table and two figures for each score of models with several widths."""
    for score in SCORES.values():
        data = width_data(rows, score)
        if data.empty:
            continue
        stem = score.metric.replace("_", "-")
        widths = sorted(set(data["width"]))
        table = Pivot(
            title=f"{score.title} by width",
            caption=f"Numbers are {score.unit}, as means over seeds on the test split with "
            "intervals over seeds, and the measured bytes of the state of one text. After a "
            "search, a number belongs to the options that were best on validation.",
            columns=[(Column(title=f"width {w}"), partial(_score_entry, width=w)) for w in widths],
        )  # fmt: skip
        yield TablePart(f"width-{stem}-table", f"{score.title} by width", table(data))
        for x, across, heading in (
            ("width", "width of the model", f"{score.title} by width"),
            ("state_bytes", "state of one text (bytes)", f"{score.title} by size of the state"),
        ):
            drawn = data[data[x].notna()]
            if len(drawn):
                yield PagesPart(
                    f"{'width' if x == 'width' else 'state'}-{stem}", heading,
                    f"{score.title.lower()} against the {across}",
                    partial(width_figure, x=x, across=across, title=heading),
                    panel=(*TASK, "metric"), along=x, data=drawn,
                )  # fmt: skip
