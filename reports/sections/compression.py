"""Compressed models after training: quality against its file and its operations, and all numbers.

Two panels for each model: its score against the bytes of the smaller of its two files, and against
the multiply-adds of a pass. A line joins the amounts of one method; hollow points are as they come
from it, filled ones are fine-tuned.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lra.reports.figures.drawing import PALETTE, style
from lra.reports.figures.layout import arrange, sheet
from lra.reports.labels import disturbed, labels_of, named
from lra.reports.rows import DAGGER, as_text, model_order, short, with_labels
from lra.reports.sections.section import PagesPart, Section, alike
from lra.reports.statistics.intervals import median_interval
from lra.reports.tables.marks import absent, failed
from lra.reports.tables.places import by_place
from lra.reports.tables.scores import TASK
from lra.reports.tables.table import Column, Entry, Table, TableRow

RUNNER = "compress"
OPTIONS = frozenset(
    f"runner.{name}"
    for name in (
        "weights", "method", "amounts", "importance_examples", "scope", "gradual", "prune_every",
        "form", "steps", "learning_rate",
        "student_layers", "temperature", "taught_share", "hidden_weight", "attention_weight",
        "evaluate_splits", "evaluation_batch", "batch_size", "warmup_steps",
        "timed_steps", "long_step_s", "long_timed_steps", "repeat_limit_s",
    )
)  # fmt: skip
"""Of the runner: variants differ in them, not models."""
WHOLE = ("heads", "magnitude", "shared_heads")
"""Methods of which amount 0 is the whole model."""
TRAINED, TUNED = "trained", "fine-tuned"
KEYS = (*TASK, "name", "method", "amount", "stage", "way", "what")
NUMBERS = ("parameters", "nonzero_parameters", "flops")
COLUMNS = (
    *TASK, "model", "method", "amount", "stage", "way", "what", "score", "metric", "dense",
    "sparse",
    *NUMBERS, "ratio", "low", "high", "disturbed", "seeds", "status", "reason",
)  # fmt: skip
_PLOT = (3.1, 2.3)
"""Inches."""
_MODELS = 4
"""Of one figure, each with two panels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionScore:
    """What a model is judged by: the first of these that a cell has."""

    metric: str
    title: str
    factor: float
    digits: int


SCORES = (
    CompressionScore(metric="bits_per_byte", title="bits per byte", factor=1.0, digits=3),
    CompressionScore(metric="bits_per_character", title="bits per character", factor=1.0, digits=3),
    CompressionScore(metric="word_perplexity", title="perplexity per word", factor=1.0, digits=2),
    CompressionScore(metric="perplexity", title="perplexity per token", factor=1.0, digits=2),
    CompressionScore(metric="accuracy", title="accuracy (%)", factor=100.0, digits=1),
)
_BY_METRIC = {score.metric: score for score in SCORES}


def compression_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each variant: means over seeds; a cell that failed has its reason."""
    variants = with_labels(rows[rows["runner"] == RUNNER], ("method", "stage", "way", "storage"))
    labels = [labels_of(value) for value in variants["labels"]]
    variants["name"] = [named(row, without=OPTIONS) for row in variants.to_dict("records")]
    variants["amount"] = [float(entry.get("amount", "nan")) for entry in labels]
    variants["what"] = [named_variant(entry) for entry in labels]
    bad = variants[(variants["status"] != "ok") & (variants["stage"] == "")]
    records = [
        {**{key: row[key] for key in TASK}, "model": row["name"], "status": row["status"],
         "reason": short(str(row["reason"])), "seeds": 0, "what": "no result"}
        for row in bad.to_dict("records")
    ]  # fmt: skip
    good = variants[(variants["status"] == "ok") & (variants["stage"] != "")]
    for key, part in good.groupby(list(KEYS), sort=False, dropna=False):
        record: dict[str, Any] = dict(zip(KEYS, key, strict=True))
        record["model"] = record.pop("name")
        records.append({**record, **_numbers(part), "status": "ok", "reason": ""})
    data = pd.DataFrame(records, columns=list(COLUMNS))
    # The model as trained is the same in the cells of all methods, before and after fine-tuning.
    same = (data["amount"] == 0) & data.duplicated([*TASK, "model", "what"])
    data = data[~same].assign(after=data["stage"] != TRAINED)
    order = ["after", "method", "amount", "stage"]
    return data.sort_values(order, kind="stable").drop(columns="after").reset_index(drop=True)


def named_variant(labels: Mapping[str, str]) -> str:
    """Return what a table calls a variant, from its labels."""
    method, stage = labels.get("method", ""), labels.get("stage", "")
    if stage == TRAINED:
        return "as trained"
    words = [method]
    if labels.get("amount") == "0" and method in WHOLE:
        words = ["as trained"]
    elif "heads" in labels:
        words = [f"{labels['heads']} heads"]
    elif "sparsity" in labels:
        words = [f"{100 * float(labels['amount']):g} % zeros", labels.get("scope", "")]
    elif "form" in labels:
        words = [method, labels["form"] if labels["form"] != method else ""]
        words.append(labels["library"] if labels.get("library", "own") != "own" else "")
    elif "rank" in labels:
        words = [f"{labels['rank']} shared columns"]
    elif "kept_layers" in labels:
        words = [f"{labels['kept_layers']} layers"]
    words += [labels.get("way", ""), stage if stage == TUNED else ""]
    return ", ".join(filter(None, words))


def _numbers(part: pd.DataFrame) -> dict[str, Any]:
    def mean(rows: pd.DataFrame) -> float | None:
        return float(rows["value"].astype(float).mean()) if len(rows) else None

    split = "test" if (part["split"] == "test").any() else "validation"
    judged = part[part["split"] == split]
    scores = [s for s in SCORES if (judged["metric"] == s.metric).any()]
    means: dict[str, Any] = {"seeds": part["seed"].nunique(), "disturbed": ""}
    if scores:
        means["metric"] = scores[0].metric
        means["score"] = mean(judged[judged["metric"] == scores[0].metric])
    for storage in ("dense", "sparse"):
        means[storage] = mean(part[(part["metric"] == "disk_bytes") & (part["storage"] == storage)])
    means |= {metric: mean(part[part["metric"] == metric]) for metric in NUMBERS}
    ratios = part[part["metric"] == "compressed_time_ratio"]
    means["ratio"] = mean(ratios)
    if len(ratios) == 1:
        interval = median_interval(list(ratios["samples"].iloc[0]))
        means |= {"low": interval.low, "high": interval.high} if interval else {}
    marks = [disturbed({"labels": entry}) for entry in ratios["labels"]]
    means["disturbed"] = next(filter(None, marks), "")
    return means


def compression_table(data: pd.DataFrame) -> Table:
    """Build the table of every variant, by task and model."""
    columns = tuple(
        Column(group=group, title=title, key=key)
        for group, title, key in (
            ("", "score", "score"),
            ("file (KiB)", "dense", "dense"),
            ("file (KiB)", "without zeros", "sparse"),
            ("numbers (thousand)", "all", "parameters"),
            ("numbers (thousand)", "not 0", "nonzero"),
            ("", "multiply-adds (million)", "multiply_adds"),
            ("", "time / uncompressed", "ratio"),
        )
    )
    rows = []
    for task, of_task in by_place(data):
        for name in model_order([str(n) for n in of_task["model"]]):
            for _, variant in of_task[of_task["model"] == name].iterrows():
                section = f"{name}, {task[0]} (length {as_text(task[3])})"
                rows.append(
                    TableRow(
                        title=str(variant["what"]),
                        entries=_variant_entries(variant),
                        section=section,
                    )
                )
    return Table(
        title="Trained models made smaller",
        caption="Scores on the test split, means over seeds: percent of accuracy, or what a "
        "footnote says. Both files hold the same model, the second one without its zeros. "
        "Operations are counted and not skipped where a weight is 0. Times are medians of paired "
        "samples with their intervals; that of the trained model beside itself shows what the "
        "machine adds.",
        stub="variant",
        columns=columns,
        rows=tuple(rows),
    )


def _variant_entries(variant: "pd.Series[Any]") -> tuple[Entry, ...]:
    if variant["status"] != "ok":
        return (failed(variant), *(absent() for _ in range(6)))
    score = _BY_METRIC.get(str(variant["metric"]))
    first = absent()
    if score is not None:
        value = float(variant["score"])
        notes = () if score.metric == "accuracy" else (score.title,)
        text = f"{score.factor * value:.{score.digits}f}"
        first = Entry(text=text, value=value, notes=notes)
    return (
        first,
        _scaled(variant["dense"], 1024, 1),
        _scaled(variant["sparse"], 1024, 1),
        _scaled(variant["parameters"], 1e3, 1),
        _scaled(variant["nonzero_parameters"], 1e3, 1),
        _scaled(variant["flops"], 2e6, 2),
        _ratio(variant),
    )


def _scaled(value: Any, by: float, digits: int) -> Entry:
    if pd.isna(value):
        return absent()
    return Entry(text=f"{float(value) / by:,.{digits}f}", value=float(value))


def _ratio(variant: "pd.Series[Any]") -> Entry:
    if pd.isna(variant["ratio"]):
        return absent()
    text, notes = f"{variant['ratio']:.2f}", tuple[str, ...]()
    if not pd.isna(variant["low"]):
        text += f" [{variant['low']:.2f}, {variant['high']:.2f}]"
    if variant["disturbed"]:
        text, notes = f"{text} {DAGGER}", (f"{DAGGER} disturbed: {variant['disturbed']}",)
    return Entry(text=text, value=float(variant["ratio"]), notes=notes)


def compression_figure(data: pd.DataFrame) -> Figure:
    """Draw what `compression_data` returned: two panels for each task and model."""
    places = by_place(data, (*TASK, "model"))
    methods = sorted({str(m) for m in data["method"][data["stage"] != TRAINED]})
    colors = {method: PALETTE[1 + i % (len(PALETTE) - 1)] for i, method in enumerate(methods)}
    with style():
        grid = sheet(2 * len(places), plot=_PLOT)
        for number, (place, of_model) in enumerate(places):
            part = of_model.assign(
                file=of_model[["dense", "sparse"]].astype(float).min(axis=1) / 1024
            )
            part = part.assign(products=part["flops"].astype(float) / 2e6)
            title = f"{place[-1]}, {place[0]} (length {as_text(place[3])})"
            score = _BY_METRIC[str(part["metric"].iloc[0])]
            for axes, column, label in zip(
                grid.axes[2 * number : 2 * number + 2],
                ("file", "products"),
                ("file (KiB)", "multiply-adds (million)"),
                strict=True,
            ):
                _draw_variants(axes, part, column, score, colors)
                axes.set_title(title, size=8.5)
                axes.set_xlabel(label)
                axes.set_ylabel(score.title)
        handles = [
            Line2D([], [], color=colors[method], marker="o", linewidth=1.1, label=method)
            for method in methods
        ]
        handles += [
            Line2D([], [], linestyle="none", marker="*", markersize=9, color="black",
                   label="as trained"),
            Line2D([], [], linestyle="none", marker="o", color="0.3", markerfacecolor="white",
                   label="compressed"),
            Line2D([], [], linestyle="none", marker="o", color="0.3", label="then fine-tuned"),
        ]  # fmt: skip
        return arrange(
            grid,
            title="Trained models made smaller",
            subtitle="of two files that hold the same model, the smaller one; operations with "
            "zeros count",
            handles=handles,
        )


def _draw_variants(
    axes: Axes, data: pd.DataFrame, column: str, score: CompressionScore, colors: dict[str, str]
) -> None:
    drawn = data[data[column].notna() & data["score"].notna()]
    drawn = drawn.assign(y=score.factor * drawn["score"].astype(float))
    compressed = drawn[drawn["stage"] != TRAINED]
    for (method, *_), line in compressed.groupby(["method", "stage", "way"]):
        tuned = str(line["stage"].iloc[0]) == TUNED
        ordered = line.sort_values("amount")
        color = colors[str(method)]
        axes.plot(
            ordered[column], ordered["y"], color=color, linewidth=1.1, marker="o", markersize=4.5,
            linestyle="-" if tuned else (0, (3, 1.5)), markerfacecolor=color if tuned else "white",
        )  # fmt: skip
    for _, row in drawn[drawn["stage"] == TRAINED].iterrows():
        axes.axhline(row["y"], color="0.75", linewidth=0.8, zorder=1)
        axes.plot([row[column]], [row["y"]], marker="*", markersize=9, color="black", zorder=5)
    axes.set_xlim(left=0)


section = Section(
    name="compression",
    heading="Trained models made smaller",
    data=compression_data,
    table=compression_table,
    figure=PagesPart(
        "compression-trade-off", "Quality against file and operations",
        "score against the bytes of the file, and against multiply-adds", alike(compression_figure),
        panel=(*TASK, "model"), panels=_MODELS, lines=None, number="score", absent=False,
    ),
)  # fmt: skip
