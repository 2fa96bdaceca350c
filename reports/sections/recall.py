"""Show how trained language models use what they have read: copies of segments, recalled tokens."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lra.reports.figures.findings import at_end, model_list
from lra.reports.figures.lines import LineDrawing
from lra.reports.rows import model_order, with_labels
from lra.reports.sections.section import PagesPart, Part, TablePart
from lra.reports.statistics.intervals import (
    Interval,
    Uncertainty,
    bootstrap_interval,
    mean_interval,
)
from lra.reports.tables.marks import absent, missing_entry
from lra.reports.tables.pivot import ALL, Pivot, table_of
from lra.reports.tables.places import Place, by_place, place_words, summaries
from lra.reports.tables.scores import TASK
from lra.reports.tables.table import Column, Entry, Table

PANEL = (*TASK, "split", "copied", "control", "segment")
"""The rows of a panel agree in these columns, of which the last three are labels."""
KINDS = ("all", "recalled", "rare", "frequent", "other")
"""Classes of tokens."""


def _number(part: pd.DataFrame) -> dict[str, Any]:
    """Return the mean over the seeds of rows, and its interval: over seeds, or else samples."""
    values = [float(value) for value in part["value"]]
    interval = mean_interval(values) or bootstrap_interval(part["samples"].iloc[0])
    record: dict[str, Any] = {"value": float(np.mean(values)), "low": np.nan, "high": np.nan}
    if interval is not None:
        record |= {"low": interval.low, "high": interval.high, "interval": str(interval.source)}
    return record


def copy_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each panel, model and distance: the copy advantage and its interval."""
    labels = (*PANEL[-3:], "distance")
    chosen = rows[(rows["runner"] == "recall") & (rows["metric"] == "copy_advantage")]
    keys = (*PANEL, "name", "distance")
    records = summaries(with_labels(chosen, labels, ALL), keys, _number)
    columns = [*keys, "model", "value", "low", "high", "interval", "seeds", "status", "reason"]
    return pd.DataFrame(records, columns=columns)


def _panel_words(columns: Sequence[str], place: Place) -> tuple[str, str]:
    """Return the task of a panel, and what was copied and compared with, in words."""
    values = dict(zip(columns, place, strict=True))
    title, facts = place_words(TASK, tuple(values[c] for c in TASK), untold=["task_version"])
    title = f"{title}, {values['copied']} copy, {values['control']} control"
    return title, f"{facts}, segments of {values['segment']} tokens"


def _finding(parts: Sequence[pd.DataFrame]) -> str:
    """Return a title with the largest advantage at the largest distance; "" without intervals."""
    last = pd.concat([at_end(part, "length") for part in parts], ignore_index=True)
    if last.empty or last["length"].nunique() > 1 or last["low"].isna().any():
        return ""
    begin = f"A copy {int(last['length'].iloc[0]):,} tokens before"
    best = last.astype({"value": float}).nlargest(1, "value").iloc[0]
    if not best["low"] > 0:
        return f"{begin} lowers the loss of no model significantly"
    who = model_list([str(best["model"])])
    return f"{begin} lowers the loss by at most {float(best['value']):.3f} nats a token ({who})"


def _draw_zero(axes: Axes, _: pd.DataFrame) -> None:
    """Draw a dashed line at 0, where a copy gains nothing."""
    low, high = axes.get_ylim()
    margin = 0.05 * (max(high, 0) - min(low, 0))
    axes.set_ylim(min(low, -margin), max(high, margin))
    axes.axhline(0, color="0.55", linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)


def _subtitle(data: pd.DataFrame) -> str:
    """Return the subtitle, which says what the line at 0 and the bands mean."""
    sources = " and ".join(sorted({str(source) for source in data["interval"].dropna()}))
    bands = f"; bands: 95 % intervals over {sources}".replace("examples", "segments")
    return f"0: a copy gains nothing{bands if sources else ''}"


copy_figure = LineDrawing(
    title="How much a model gains from a copy", panel=PANEL, x="distance",
    across="tokens between copy and segment", along=lambda _: ("copy advantage (nat/token)", 1.0),
    words=_panel_words, guide=_draw_zero, subtitle=_subtitle, place="distance",
    finding=_finding,
)  # fmt: skip


def copy_table(data: pd.DataFrame) -> Table:
    """Return a table of data from `copy_data`: a line for each model, a column by distance."""
    measured = data[data["distance"] != ALL]
    places = by_place(measured.assign(tokens=measured["distance"].astype(int)), PANEL)
    columns = [
        (
            Column(group=", ".join(_panel_words(PANEL, place)), title=f"{tokens:,}",
                   key=f"{'-'.join(map(str, place))}-{tokens}"),
            partial(_copy_entry, part[part["tokens"] == tokens], data),
        )
        for place, part in places for tokens in sorted({*part["tokens"]})
    ] or [(Column(title="copy advantage"), partial(_copy_entry, data, data))]  # fmt: skip
    return table_of(
        [("", name, name) for name in model_order([str(name) for name in data["model"]])], columns,
        title="Copy advantage by distance", stub="model, by distance",
        caption="Numbers are in nats a token, as means over segments and seeds: the mean loss of a "
        "segment of text without a copy before it, minus that with a copy. Columns are the tokens "
        "between copy and segment. Control native: the text that really precedes stands in the "
        "place of the copy; foreign: an unrelated segment. The CSV has 95 % intervals, by a "
        "bootstrap over segments for a single seed.",
    )  # fmt: skip


def _copy_entry(here: pd.DataFrame, data: pd.DataFrame, name: str) -> Entry:
    """Return the advantage of a model from the rows of a column, or why there is none."""
    rows = here[here["model"] == name]
    measured = rows[rows["value"].notna()]
    if measured.empty:
        failed = data[(data["model"] == name) & (data["status"] != "ok")]
        return missing_entry(rows if len(rows) else failed, "not measured")
    return _entry(measured.iloc[0], 3)


def _entry(row: Any, digits: int, factor: float = 1.0) -> Entry:
    """Return the entry of a record with `value` and the ends of its interval, if it has one."""
    interval = None
    if isinstance(source := row.get("interval"), str):
        interval = Interval(float(row["low"]), float(row["high"]), Uncertainty(source))
    value = float(row["value"])
    facts = {"seeds": int(row["seeds"])} if "seeds" in row else {}
    return Entry(text=f"{factor * value:.{digits}f}", value=value, interval=interval, facts=facts)


# ---------------------------------------------------------------- recalled tokens


def token_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows about classes of tokens, with the labels `kind` and `drawn` as columns."""
    metrics = ("recalled_loss", "recalled_share", "loss_part")
    chosen = rows[(rows["runner"] == "recall") & rows["metric"].isin(metrics)]
    return with_labels(chosen, ("kind", "drawn"), ALL).assign(model=chosen["name"])


def gap(data: pd.DataFrame, best: pd.DataFrame, kind: str) -> dict[str, Any] | None:
    """Return how much more loss a model has on a class of tokens than the best model.

    Args:
        data: the rows of the model from `token_data`, at one place.
        best: the rows of the best model.
        kind: the class of tokens; `all` for the whole gap.

    Returns:
        The mean over seeds that both models have, and its interval over seeds, or for a single seed
        over blocks of windows; None if they share no seed on the same tokens.
    """
    parts = []
    for rows in (data, best):
        ok = rows[(rows["metric"] == "loss_part") & (rows["kind"] == kind)]
        parts.append(ok[ok["status"] == "ok"].set_index(["seed", "drawn"]))
    shared = parts[0].index.intersection(parts[1].index)
    if shared.empty or not all(part.index.is_unique for part in parts):
        return None
    first, second = (part.loc[shared] for part in parts)
    differences = [float(value) for value in first["value"] - second["value"]]
    samples = np.subtract(first["samples"].iloc[0], second["samples"].iloc[0])
    interval = mean_interval(differences) or bootstrap_interval([float(s) for s in samples])
    record: dict[str, Any] = {"value": float(np.mean(differences)), "seeds": len(differences)}
    if interval is not None:
        record |= {"low": interval.low, "high": interval.high, "interval": str(interval.source)}
    return record


def _best(data: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the model with the lowest mean loss at a place."""
    whole = data[(data["metric"] == "loss_part") & (data["kind"] == "all")]
    means = whole[whole["status"] == "ok"].groupby("model")["value"].mean()
    return data[data["model"] == means.idxmin()] if len(means) else data[:0]


def _class_entry(data: pd.DataFrame, metric: str, kind: str) -> Entry:
    """Return the mean over seeds of a metric of one class of tokens, or why there is none."""
    rows = data[(data["metric"] == metric) & (data["kind"] == kind) & (data["status"] == "ok")]
    if rows.empty:
        return missing_entry(data[data["status"] != "ok"], "no token is of this class")
    value, share = float(rows["value"].mean()), metric == "recalled_share"
    facts = {"seeds": int(rows["seed"].nunique())}
    return Entry(text=f"{100 * value:.1f}" if share else f"{value:.3f}", value=value, facts=facts)


def _gap_entry(data: pd.DataFrame, of: pd.DataFrame, kind: str, *, share: bool = False) -> Entry:
    """Return the gap of a model to the best one on a class of tokens, or its share of the gap.

    Args:
        data: the rows of the model at one place.
        of: the rows of all models and places, from `token_data`.
        kind: the class of tokens.
        share: whether to divide by the whole gap.
    """
    keys = [*TASK, "split"]
    best = _best(of.merge(data[keys].drop_duplicates(), on=keys))
    if {*data["model"]} == {*best["model"]}:
        return Entry(text="–" if share or kind != "all" else "best")
    record, whole = gap(data, best, kind), gap(data, best, "all")
    if record is None or whole is None:
        note = "this model and the best one share no seed with the same tokens"
        return missing_entry(data[data["status"] != "ok"], note)
    if not share:
        return _entry(record, 3)
    if not whole.get("low", 0.0) > 0:
        return absent("the interval of the whole gap includes 0, so it has no parts in percent")
    return _entry({"value": record["value"] / whole["value"]}, 0, 100.0)


def token_table(data: pd.DataFrame) -> Table:
    """Return a table of data from `token_data`: losses by class, and gaps to the best model."""
    columns = [
        (Column(title="loss"), partial(_class_entry, metric="recalled_loss", kind="all")),
        (Column(title="recalled (%)"), partial(_class_entry, metric="recalled_share",
                                               kind="recalled")),
        *((Column(title=f"loss, {kind}"), partial(_class_entry, metric="recalled_loss", kind=kind))
          for kind in KINDS[1:]),
    ]  # fmt: skip
    gaps = [
        (Column(title="gap"), partial(_gap_entry, of=data, kind="all")),
        *((Column(title=f"gap, {kind}"), partial(_gap_entry, of=data, kind=kind))
          for kind in ("recalled", "other")),
        (Column(title="gap, recalled (%)"), partial(_gap_entry, of=data, kind="recalled",
                                                    share=True)),
    ]  # fmt: skip
    return Pivot(
        title="Loss on recalled and other tokens",
        caption="Losses are in nats a token, as means over seeds. Recalled tokens complete a pair "
        "of tokens that their window had before; the pair is rare or frequent in train. Gap: how "
        "much higher the loss is than that of the best model; its parts on recalled and other "
        "tokens add up to it. The CSV has 95 % intervals of gaps, over seeds or, for a single "
        "seed, by a bootstrap over blocks of windows.",
        columns=(*columns, *gaps), places=(*TASK, "split"), marks=True,
    )(data)  # fmt: skip


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield a table and a figure of copy advantages, and a table of recalled tokens."""
    copies, tokens = copy_data(rows), token_data(rows)
    if len(copies):
        heading = "Copy advantage by distance"
        yield TablePart("copy-advantage", heading, copy_table(copies))
        drawn = copies[copies["distance"] != ALL]
        drawn = drawn.astype({"distance": float}).sort_values([*PANEL, "model", "distance"])
        yield PagesPart(
            "copy-advantage-by-distance", heading,
            "how much a copy of a segment lowers its loss, by the tokens between them",
            copy_figure, panel=PANEL, along="distance", data=drawn,
        )  # fmt: skip
    if len(tokens):
        yield TablePart("recalled-tokens", "Recalled tokens", token_table(tokens))
