"""Show losses against context length in a figure and tables, and relative effective contexts."""

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
"""The rows of a panel agree in these columns; its models may differ in regime and length."""
LOSS = Score(metric="loss", title="Loss", unit="in nats (lower is better)")
PERPLEXITIES = ("word_perplexity", "perplexity")
"""Metrics that are exponentials of the loss; the other metrics are proportional to the loss."""
COLUMNS = (
    *PANEL, "metric", "model", "context", "value", "low", "high", "interval", "seeds", "targets",
    "status", "reason",
)  # fmt: skip


def context_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of losses by context, with several labels as columns, and `model`.

    If models with the same name differ in regime or length, `model` ends with these.
    """
    part = rows[rows["runner"] == "context"].copy()
    labels = part["labels"]
    for name in ("context", "targets", "context_step"):
        part[name] = [float(entry.get(name, "nan")) for entry in labels]
    # A failed run has no split, so it gets the split of the other runs on its task.
    split_of_task = part[part["split"] != ""].groupby("task")["split"].first()
    no_split = part["split"] == ""
    part.loc[no_split, "split"] = part.loc[no_split, "task"].map(split_of_task).fillna("test")
    part["drawn"] = [entry.get("drawn", "") for entry in labels]
    variants = part[["name", "regime", "length"]].drop_duplicates()
    shared_names = set(variants["name"][variants["name"].duplicated()])
    part["model"] = [
        f"{name}, {regime}, length {as_text(length)}" if name in shared_names else str(name)
        for name, regime, length in zip(part["name"], part["regime"], part["length"], strict=True)
    ]
    return part


def context_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each task, model and context, with mean and interval, of `context_rows`."""
    records: list[dict[str, Any]] = []
    for key, part in rows.groupby(list(PANEL), sort=True, dropna=False):
        metrics = set(part["metric"][part["status"] == "ok"])
        metric = next((score.metric for score in LANGUAGE if score.metric in metrics), "loss")
        contexts = sorted({int(c) for c in part["context"].dropna()})
        for name in model_order([str(n) for n in part["model"]]):
            of_model = part[part["model"] == name]
            for context in contexts:
                # a failed run has no context, and counts at each one
                at_context = of_model[of_model["context"].isin((context, np.nan))]
                if at_context.empty:  # only other models were measured at this context
                    continue
                record = dict(zip(PANEL, key, strict=True)) | _mean_columns(at_context, metric)
                records.append(record | {"metric": metric, "model": name, "context": context})
    return pd.DataFrame(records, columns=list(COLUMNS))


def _mean_columns(rows: pd.DataFrame, metric: str) -> dict[str, Any]:
    """Return the mean of a metric over the seeds of one model at one context, or the reason."""
    scores = rows[(rows["status"] == "ok") & (rows["metric"] == metric)]
    losses = rows[(rows["status"] == "ok") & (rows["metric"] == "loss")]
    if scores.empty:
        failed = rows[rows["status"] != "ok"]
        first = failed.iloc[0] if len(failed) else {"status": "skipped", "reason": f"no {metric}"}
        return {"status": str(first["status"]), "reason": short(str(first["reason"])), "seeds": 0}
    if scores["seed"].duplicated().any():
        reason = f"{len(scores)} runs share this name and seed: report one sweep at a time"
        return {"status": AMBIGUOUS, "reason": reason, "seeds": 0}
    values = [float(value) for value in scores["value"]]
    record: dict[str, Any] = {"value": float(np.mean(values)), "seeds": len(values)}
    interval = mean_interval(values) or _interval_over_tokens(values[0], metric, losses)
    if interval is not None:
        record |= {"low": interval.low, "high": interval.high, "interval": str(interval.source)}
    return record | {"targets": int(scores["targets"].iloc[0]), "status": "ok", "reason": ""}


def _interval_over_tokens(value: float, metric: str, losses: pd.DataFrame) -> Interval | None:
    """Return the interval of a single seed's score `value`, from the losses of single tokens.

    The score is proportional to the loss, or an exponential of it. `losses` is the row of the mean
    loss; unless there is exactly one, the result is None.
    """
    if len(losses) != 1:
        return None
    interval = mean_interval(losses["samples"].iloc[0], Uncertainty.examples)
    loss = float(losses["value"].iloc[0])
    if interval is None or not loss > 0:
        return None

    def score_at(other_loss: float) -> float:
        """Return the score that belongs to another loss."""
        ratio = other_loss / loss
        return value**ratio if metric in PERPLEXITIES else value * ratio

    return Interval(score_at(interval.low), score_at(interval.high), Uncertainty.examples)


def _subtitle(data: pd.DataFrame) -> str:
    """Return the subtitle, which says what the bands account for, if there are any."""
    sources = " and ".join(sorted({str(s) for s in data["interval"].dropna()}))
    over = sources.replace("examples", "tokens")
    bands = f"; bands: 95 % intervals over {over}" if sources else ""
    return f"the same tokens are predicted from every context{bands}"


context_figure = LineDrawing(
    title="Loss against context length", panel=PANEL, x="context",
    across="context (tokens before)", subtitle=_subtitle,
    finding=partial(best_at, when="With {:,} tokens of context"),
)  # fmt: skip


def context_tables(data: pd.DataFrame) -> Iterator[tuple[str, Table]]:
    """Yield (metric, table) for each score; a table has a line for each model."""
    for score in (*LANGUAGE, LOSS):
        scored = data[data["metric"] == score.metric]
        if scored.empty:
            continue
        columns = [
            (
                Column(group=str(key[0]), title=f"{key[-1]:,}", key=f"{key[0]}-{key[-1]}"),
                partial(_entry_of_model, at_context.set_index("model"), score),
            )
            for key, at_context in by_place(scored, (*PANEL, "context"))
        ]
        yield score.metric, table_of(
            [("", name, name) for name in model_order([str(name) for name in scored["model"]])],
            columns, title=f"{score.title} by context length",
            caption=f"Numbers are {score.unit}, as means over seeds. Columns are the numbers of "
            "tokens before each predicted token; all columns predict the same tokens. The CSV has "
            "intervals.", stub="model, by context",
        )  # fmt: skip


def _entry_of_model(data: pd.DataFrame, score: Score, name: str) -> Entry:
    """Return the entry of a model from data at one context, which are indexed by model."""
    if name not in data.index:
        return absent()
    row = data.loc[[name]].iloc[0]
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
"""The losses of single tokens, by model and context."""


def recl_groups(rows: pd.DataFrame) -> dict[tuple[Any, ...], dict[str, Group]]:
    """Return the losses of groups of models that predict the same tokens, from `context_rows`.

    The outer key is (columns of `PANEL`, step of contexts). The inner key names the tokens that
    were drawn, which differ between seeds.
    """
    ok = rows[(rows["metric"] == "loss") & (rows["status"] == "ok") & rows["context_step"].notna()]
    groups: dict[tuple[Any, ...], dict[str, Group]] = {}
    keys = [*PANEL, "context_step", "drawn", "model"]
    for (*key, drawn, name), part in ok.groupby(keys, sort=True, dropna=False):
        if part["context"].duplicated().any():
            continue  # several runs have this name, as the table of losses says
        losses = {
            int(c): s for c, s in zip(part["context"], part["samples"], strict=True) if len(s)
        }
        groups.setdefault(tuple(key), {}).setdefault(str(drawn), {})[str(name)] = losses
    return groups


def recl_table(step: int, groups: Mapping[str, Group]) -> Table | str:
    """Return the table of relative effective context lengths, or why there is none.

    Args:
        step: the difference of neighbouring contexts, in tokens.
        groups: groups of models from `recl_groups`, by the tokens that were drawn.
    """
    names = model_order([name for group in groups.values() for name in group])
    if max(len(group) for group in groups.values()) < 2:
        return (
            "the relative effective context length (RECL) compares several models on the same "
            f"tokens, but only {', '.join(names)} was measured on them: measure another model with "
            "the same task, runner.split, runner.targets and seed"
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
    groups_in_words = " or ".join("{" + ", ".join(group) + "}" for group in sorted(members))
    return table_of(
        [("", name, lengths[name]) for name in names if name in lengths],
        [(Column(title=f"r = {share:g}"), partial(_length_entry, share)) for share in SHARES],
        title="Relative effective context length",
        caption="A number is the context in tokens, as a mean over seeds, from which on a longer "
        f"context (by {step:,} tokens) reduces perplexity by less than {100 * THRESHOLD:g} %. Only "
        "the fraction r of tokens that are hardest for all models counts, so the numbers depend on "
        f"the compared models {groups_in_words}. ≥: no longer context was measured.",
        stub="model, by r",
    )


def _length_entry(share: float, by_share: Mapping[float, Sequence[EffectiveContext]]) -> Entry:
    """Return the mean length at a fraction r = `share` of the tokens; ≥ if one is a bound."""
    lengths = by_share.get(share, ())
    if not lengths:
        return absent("not compared")
    mean = math.fsum(length.tokens for length in lengths) / len(lengths)
    bound = "≥ " if any(length.at_least for length in lengths) else ""
    facts = {"seeds": len(lengths), "at_least": int(bool(bound))}
    return Entry(text=f"{bound}{mean:,.0f}", value=mean, facts=facts)


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield tables and a figure of losses, and a table for each group of compared models."""
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
        """Draw with the report's looks, or with new ones if lines have longer names than models."""
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
