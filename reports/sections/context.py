"""Loss against context length: a panel for each task, a table, and relative effective contexts."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lra.reports.figures.drawing import Look, looks as looks_of
from lra.reports.figures.findings import best_at
from lra.reports.figures.lines import LineDrawing
from lra.reports.rows import AMBIGUOUS, as_text, model_order, short
from lra.reports.sections.section import LeftOut, PagesPart, Part, TablePart, page_names
from lra.reports.statistics.intervals import Interval, Uncertainty, mean_interval
from lra.reports.statistics.recl import (
    SHARES,
    THRESHOLD,
    EffectiveContext,
    relative_effective_context,
)
from lra.reports.tables.marks import absent, failure_entry
from lra.reports.tables.pivot import table_of
from lra.reports.tables.places import by_place
from lra.reports.tables.scores import LANGUAGE, Score
from lra.reports.tables.table import Column, Entry, Table

PANEL = ("task", "task_version", "source", "tokenizer", "split")
"""Columns whose values share a panel. Regime and length may differ between its models."""
LOSS = Score(metric="loss", title="Loss", unit="Nats, lower is better")
PERPLEXITIES = ("word_perplexity", "perplexity")
"""Exponentials of the loss; the other scores are in proportion to it."""
COLUMNS = (
    *PANEL, "metric", "model", "context", "value", "low", "high", "interval", "seeds", "targets",
    "status", "reason",
)  # fmt: skip


def context_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of losses by context, with what their labels say as columns.

    Where models of one name differ in regime or length, these end the name.
    """
    part = rows[rows["runner"] == "context"].copy()
    labels = part["labels"]
    for name in ("context", "targets", "context_step"):
        part[name] = [float(entry.get(name, "nan")) for entry in labels]
    # A cell that failed as a whole names no split: it holds for what its task was judged on.
    judged = part[part["split"] != ""].groupby("task")["split"].first()
    none = part["split"] == ""
    part.loc[none, "split"] = part.loc[none, "task"].map(judged).fillna("test")
    part["drawn"] = [entry.get("drawn", "") for entry in labels]
    ways = part[["name", "regime", "length"]].drop_duplicates()
    several = set(ways["name"][ways["name"].duplicated()])
    part["model"] = [
        f"{name}, {regime}, length {as_text(length)}" if name in several else str(name)
        for name, regime, length in zip(part["name"], part["regime"], part["length"], strict=True)
    ]
    return part


def context_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line per task, model and context: mean, interval and where it comes from.

    Args:
        rows: as `context_rows` returns them.
    """
    records: list[dict[str, Any]] = []
    for key, part in rows.groupby(list(PANEL), sort=True, dropna=False):
        metrics = set(part["metric"][part["status"] == "ok"])
        metric = next((score.metric for score in LANGUAGE if score.metric in metrics), "loss")
        points = sorted({int(c) for c in part["context"].dropna()})
        for name in model_order([str(n) for n in part["model"]]):
            of_model = part[part["model"] == name]
            for context in points:
                at = of_model[of_model["context"].isin((context, np.nan))]
                if at.empty:  # only other models have it
                    continue
                record = dict(zip(PANEL, key, strict=True)) | _point(at, metric)
                records.append(record | {"metric": metric, "model": name, "context": context})
    return pd.DataFrame(records, columns=list(COLUMNS))


def _point(rows: pd.DataFrame, metric: str) -> dict[str, Any]:
    good = rows[(rows["status"] == "ok") & (rows["metric"] == metric)]
    losses = rows[(rows["status"] == "ok") & (rows["metric"] == "loss")]
    if good.empty:
        bad = rows[rows["status"] != "ok"]
        lost = bad.iloc[0] if len(bad) else {"status": "skipped", "reason": f"no {metric}"}
        return {"status": str(lost["status"]), "reason": short(str(lost["reason"])), "seeds": 0}
    if good["seed"].duplicated().any():
        reason = f"{len(good)} results share this name and seed: report one sweep at a time"
        return {"status": AMBIGUOUS, "reason": reason, "seeds": 0}
    values = [float(value) for value in good["value"]]
    record: dict[str, Any] = {"value": float(np.mean(values)), "seeds": len(values)}
    interval = mean_interval(values) or _over_tokens(values[0], metric, losses)
    if interval is not None:
        record |= {"low": interval.low, "high": interval.high, "interval": str(interval.source)}
    return record | {"targets": int(good["targets"].iloc[0]), "status": "ok", "reason": ""}


def _over_tokens(value: float, metric: str, losses: pd.DataFrame) -> Interval | None:
    """Return the interval of a score that rises with the mean loss, from that of single tokens."""
    if len(losses) != 1:
        return None
    interval = mean_interval(losses["samples"].iloc[0], Uncertainty.examples)
    loss = float(losses["value"].iloc[0])
    if interval is None or not loss > 0:
        return None

    def at(other: float) -> float:
        share = other / loss
        return value**share if metric in PERPLEXITIES else value * share

    return Interval(at(interval.low), at(interval.high), Uncertainty.examples)


def _over(data: pd.DataFrame) -> str:
    over = " and ".join(sorted({str(s) for s in data["interval"].dropna()}))
    bands = f"; bands: 95 % over {over.replace('examples', 'tokens')}" if over else ""
    return f"the same tokens, predicted from this many tokens before them{bands}"


context_figure = LineDrawing(
    title="Loss against context length", panel=PANEL, x="context",
    across="context (tokens before)", subtitle=_over,
    finding=partial(best_at, when="With {:,} tokens of context"),
)  # fmt: skip


def context_tables(data: pd.DataFrame) -> Iterator[tuple[str, Table]]:
    """Yield the metric and the table of each score: models by context, tasks side by side."""
    for score in (*LANGUAGE, LOSS):
        scored = data[data["metric"] == score.metric]
        if scored.empty:
            continue
        columns = [
            (
                Column(group=str(key[0]), title=f"{key[-1]:,}", key=f"{key[0]}-{key[-1]}"),
                partial(_score_entry, at.set_index("model"), score),
            )
            for key, at in by_place(scored, (*PANEL, "context"))
        ]
        yield score.metric, table_of(
            [("", name, name) for name in model_order([str(name) for name in scored["model"]])],
            columns, title=f"{score.title} by context length",
            caption=f"{score.unit}, mean over seeds, of the same tokens by the number of tokens "
            "before them. Intervals are in the CSV.", stub="model, by context",
        )  # fmt: skip


def _score_entry(at: pd.DataFrame, score: Score, name: str) -> Entry:
    if name not in at.index:
        return absent()
    row = at.loc[[name]].iloc[0]
    if row["status"] != "ok":
        return failure_entry(row)
    interval = None
    if not pd.isna(row["low"]):
        source = Uncertainty(row["interval"])
        interval = Interval(float(row["low"]), float(row["high"]), source)
    facts = {"seeds": int(row["seeds"]), "tokens": int(row["targets"])}
    value = float(row["value"])
    return Entry(text=score.text(value), value=value, interval=interval, facts=facts)


# ---------------------------------------------------------------- relative effective contexts

Group = dict[str, dict[int, Sequence[float]]]
"""By model and context, the losses of single tokens."""


def recl_groups(rows: pd.DataFrame) -> dict[tuple[Any, ...], dict[str, Group]]:
    """Return by panel and step the losses of each group: models that predict the same tokens.

    Several groups of one panel have tokens of other seeds.

    Args:
        rows: as `context_rows` returns them.
    """
    ok = rows[(rows["metric"] == "loss") & (rows["status"] == "ok") & rows["context_step"].notna()]
    groups: dict[tuple[Any, ...], dict[str, Group]] = {}
    keys = [*PANEL, "context_step", "drawn", "model"]
    for (*key, drawn, name), part in ok.groupby(keys, sort=True, dropna=False):
        if part["context"].duplicated().any():
            continue  # ambiguous: the table of losses says so
        losses = {
            int(c): s for c, s in zip(part["context"], part["samples"], strict=True) if len(s)
        }
        groups.setdefault(tuple(key), {}).setdefault(str(drawn), {})[str(name)] = losses
    return groups


def recl_table(step: int, groups: Mapping[str, Group]) -> Table | str:
    """Return the table of relative effective context lengths, or why there is none.

    Args:
        step: Tokens.
        groups: By the tokens that were drawn, as `recl_groups` returns them.
    """
    names = model_order([name for group in groups.values() for name in group])
    if max(len(group) for group in groups.values()) < 2:
        return (
            "the relative effective context length (RECL) compares the models of a group, and "
            f"{', '.join(names)} is alone: measure another one on the same tokens (task, "
            "runner.split, runner.targets, seed)"
        )
    lengths: dict[str, dict[float, list[EffectiveContext]]] = {}
    reasons: list[str] = []
    members = set()
    for group in groups.values():
        for share in SHARES:
            try:
                effective = relative_effective_context(group, step=step, share=share)
            except ValueError as error:
                reasons.append(str(error))
                continue
            members.add(tuple(model_order(list(effective))))
            for name, length in effective.items():
                lengths.setdefault(name, {}).setdefault(share, []).append(length)
    if not lengths:
        return reasons[0]
    named = " or ".join("{" + ", ".join(group) + "}" for group in sorted(members))
    return table_of(
        [("", name, lengths[name]) for name in names if name in lengths],
        [(Column(title=f"r = {share:g}"), partial(_length, share)) for share in SHARES],
        title="Relative effective context length",
        caption=f"Tokens, in steps of {step:,}, mean over seeds; it depends on the group {named}, "
        "so other models in it change the numbers. The context beyond which the next step gains "
        f"less than {100 * THRESHOLD:g} % of perplexity on the share r of tokens that are hardest "
        "for all. ≥: longer contexts were not measured.",
        stub="model, by r",
    )


def _length(share: float, by_share: Mapping[float, Sequence[EffectiveContext]]) -> Entry:
    lengths = by_share.get(share, ())
    if not lengths:
        return absent("not compared")
    mean = math.fsum(length.tokens for length in lengths) / len(lengths)
    bound = "≥ " if any(length.at_least for length in lengths) else ""
    facts = {"seeds": len(lengths), "at_least": int(bool(bound))}
    return Entry(text=f"{bound}{mean:,.0f}", value=mean, facts=facts)


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield tables and figure of losses, and a table for each group of models."""
    measured = context_rows(rows)
    data = context_data(measured)
    if data.empty:
        return
    heading = "Loss against context length"
    for metric, table in context_tables(data):
        name, words = f"context-{metric.replace('_', '-')}", metric.replace("_", " ")
        yield TablePart(name, f"{heading}, {words}", table)
    lines = sorted(set(data["model"]))

    def draw(page: pd.DataFrame, looks: dict[str, Look]) -> Figure:
        return context_figure(page, looks if set(lines) <= set(looks) else looks_of(lines))

    text = "scores of the same tokens against the number of tokens before them"
    yield PagesPart("context", heading, text, draw, panel=PANEL, along="context", data=data)
    by_group = recl_groups(measured)
    names = page_names("recl", "Relative effective context length", len(by_group))
    for (key, groups), (name, title) in zip(by_group.items(), names, strict=True):
        compared = recl_table(int(key[-1]), groups)
        if isinstance(compared, Table):
            yield TablePart(name, f"{title}, {key[0]}", compared)
        else:
            yield LeftOut(name, compared)
