"""Show models that were compressed after training: scores against file size and multiply-adds.

A figure has two panels for each model: its score against the bytes of the smaller of its two files,
and against the multiply-adds of a pass. A line joins the amounts of one method. Hollow points are
models right after compression, and filled points are fine-tuned models.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lra.reports.figures.drawing import PALETTE
from lra.reports.figures.small_multiples import draw_panels
from lra.reports.labels import disturbance_of, labels_of, name_with
from lra.reports.rows import DAGGER, as_text, model_order, short, with_labels
from lra.reports.sections.section import PagesPart, Section, alike
from lra.reports.statistics.intervals import median_interval
from lra.reports.tables.marks import absent, failure_entry
from lra.reports.tables.pivot import table_of
from lra.reports.tables.places import Place, by_place
from lra.reports.tables.scores import ACCURACY, LANGUAGE, TASK, score_of
from lra.reports.tables.table import Column, Entry, Table

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
"""Options of the runner, which distinguish variants of one model and not models."""
WHOLE = ("heads", "magnitude", "shared_heads")
"""Methods whose amount 0 leaves the model as it was trained."""
TRAINED, TUNED = "trained", "fine-tuned"
KEYS = (*TASK, "name", "method", "amount", "stage", "way", "what")
NUMBERS = ("parameters", "nonzero_parameters", "flops")
COLUMNS = (
    *TASK, "model", "method", "amount", "stage", "way", "what", "score", "metric", "dense",
    "sparse",
    *NUMBERS, "ratio", "low", "high", "disturbed", "seeds", "status", "reason",
)  # fmt: skip
_NEARLY = 0.99
"""The title counts compressed models with at least this fraction of the trained model's score."""
_MODELS = 4
"""The most models of one figure; a model has two panels."""


JUDGED = (*LANGUAGE, ACCURACY)
"""The score of a model is the first of these metrics that its run has."""


def compression_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each variant with means over seeds, or the reason of a failed run."""
    variants = with_labels(rows[rows["runner"] == RUNNER], ("method", "stage", "way", "storage"))
    labels = [labels_of(value) for value in variants["labels"]]
    variants["name"] = [name_with(row, without=OPTIONS) for row in variants.to_dict("records")]
    variants["amount"] = [float(entry.get("amount", "nan")) for entry in labels]
    variants["what"] = [named_variant(entry) for entry in labels]
    failed = variants[(variants["status"] != "ok") & (variants["stage"] == "")]
    records = [
        {**{key: row[key] for key in TASK}, "model": row["name"], "status": row["status"],
         "reason": short(str(row["reason"])), "seeds": 0, "what": "no result"}
        for row in failed.to_dict("records")
    ]  # fmt: skip
    ok = variants[(variants["status"] == "ok") & (variants["stage"] != "")]
    for key, part in ok.groupby(list(KEYS), sort=False, dropna=False):
        record: dict[str, Any] = dict(zip(KEYS, key, strict=True))
        record["model"] = record.pop("name")
        records.append({**record, **_means_of_variant(part), "status": "ok", "reason": ""})
    data = pd.DataFrame(records, columns=list(COLUMNS))
    # The runs of all methods measure the same trained model again; one of these lines is enough.
    repeated = (data["amount"] == 0) & data.duplicated([*TASK, "model", "what"])
    data = data[~repeated].assign(after=data["stage"] != TRAINED)
    order = ["after", "method", "amount", "stage"]
    return data.sort_values(order, kind="stable").drop(columns="after").reset_index(drop=True)


def named_variant(labels: Mapping[str, str]) -> str:
    """Return the name of a variant in the table, from its labels."""
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
        words[:0] = [f"int8, {labels['form']}"] if "form" in labels else []
    elif "form" in labels:
        words = [method, labels["form"] if labels["form"] != method else ""]
        words.append(labels["library"] if labels.get("library", "own") != "own" else "")
    elif "rank" in labels:
        words = [f"{labels['rank']} shared columns"]
    elif "kept_layers" in labels:
        words = [f"{labels['kept_layers']} layers"]
    words += [labels.get("way", ""), stage if stage == TUNED else ""]
    return ", ".join(filter(None, words))


def _means_of_variant(part: pd.DataFrame) -> dict[str, Any]:
    """Return the means over the seeds of one variant; None for what was not measured."""

    def mean(rows: pd.DataFrame) -> float | None:
        return float(rows["value"].astype(float).mean()) if len(rows) else None

    split = "test" if (part["split"] == "test").any() else "validation"
    of_split = part[part["split"] == split]
    means: dict[str, Any] = {"seeds": part["seed"].nunique(), "disturbed": ""}
    metrics = [score.metric for score in JUDGED if (of_split["metric"] == score.metric).any()]
    if metrics:
        means["metric"] = metrics[0]
        means["score"] = mean(of_split[of_split["metric"] == metrics[0]])
    for storage in ("dense", "sparse"):
        means[storage] = mean(part[(part["metric"] == "disk_bytes") & (part["storage"] == storage)])
    means |= {metric: mean(part[part["metric"] == metric]) for metric in NUMBERS}
    ratios = part[part["metric"] == "compressed_time_ratio"]
    means["ratio"] = mean(ratios)
    if len(ratios) == 1:
        interval = median_interval(list(ratios["samples"].iloc[0]))
        means |= {"low": interval.low, "high": interval.high} if interval else {}
    marks = [disturbance_of({"labels": entry}) for entry in ratios["labels"]]
    means["disturbed"] = next(filter(None, marks), "")
    return means


def compression_table(data: pd.DataFrame) -> Table:
    """Return the table of all variants, by task and model."""
    lines = [
        (f"{name}, {_task_words(task)}", str(variant["what"]), variant)
        for task, of_task in by_place(data)
        for name in model_order([str(n) for n in of_task["model"]])
        for _, variant in of_task[of_task["model"] == name].iterrows()
    ]
    file, numbers = "file (KiB)", "numbers (thousand)"
    heads = (
        (Column(title="score"), _variant_score),
        (Column(group=file, title="dense"), partial(_scaled_entry, "dense", 1024, 1)),
        (Column(group=file, title="without zeros", key="sparse"),
         partial(_scaled_entry, "sparse", 1024, 1)),
        (Column(group=numbers, title="all", key="parameters"),
         partial(_scaled_entry, "parameters", 1e3, 1)),
        (Column(group=numbers, title="not 0", key="nonzero"),
         partial(_scaled_entry, "nonzero_parameters", 1e3, 1)),
        (Column(title="multiply-adds (million)", key="multiply_adds"),
         partial(_scaled_entry, "flops", 2e6, 2)),
        (Column(title="time / uncompressed", key="ratio"), _time_ratio_entry),
    )  # fmt: skip
    return table_of(
        lines, heads, title="Trained models made smaller",
        caption="Scores are means over seeds on the test split: accuracies in percent, unless a "
        "footnote names another metric. Both files store the same model; the second file omits "
        "weights that are 0. Multiply-adds include those with weights that are 0. Times are "
        "medians of paired samples with their intervals; the ratio of the trained model to itself "
        "shows the noise of the machine.", stub="variant",
    )  # fmt: skip


def _task_words(place: Place) -> str:
    """Return the task and the length of a place."""
    task, _, _, length, *_ = place
    return f"{task} (length {as_text(length)})"


def _variant_score(variant: "pd.Series[Any]") -> Entry:
    """Return the score of a variant; a note names the metric unless it is accuracy."""
    if variant["status"] != "ok":
        return failure_entry(variant)
    if pd.isna(variant["metric"]):
        return absent()
    score, value = score_of(str(variant["metric"])), float(variant["score"])
    notes = () if score is ACCURACY else (score.title.lower(),)
    return Entry(text=score.text(value), value=value, notes=notes)


def _scaled_entry(column: str, by: float, digits: int, variant: "pd.Series[Any]") -> Entry:
    """Return a number of a variant, printed as number / `by` with `digits` decimals."""
    value = variant[column]
    if pd.isna(value):
        return absent()
    return Entry(text=f"{float(value) / by:,.{digits}f}", value=float(value))


def _time_ratio_entry(variant: "pd.Series[Any]") -> Entry:
    """Return the time of a variant divided by that of the trained model, with its interval."""
    if pd.isna(variant["ratio"]):
        return absent()
    text, notes = f"{variant['ratio']:.2f}", tuple[str, ...]()
    if not pd.isna(variant["low"]):
        text += f" [{variant['low']:.2f}, {variant['high']:.2f}]"
    if variant["disturbed"]:
        note = f"{DAGGER} something disturbed this time: {variant['disturbed']}"
        text, notes = f"{text} {DAGGER}", (note,)
    return Entry(text=text, value=float(variant["ratio"]), notes=notes)


def compression_figure(data: pd.DataFrame) -> Figure:
    """Return a figure of data from `compression_data`: two panels for each task and model."""
    methods = sorted({str(m) for m in data["method"][data["stage"] != TRAINED]})
    colors = {method: PALETTE[1 + i % (len(PALETTE) - 1)] for i, method in enumerate(methods)}
    smaller = data[["dense", "sparse"]].astype(float).min(axis=1) / 1024
    millions = data["flops"].astype(float) / 2e6  # a multiply-add is 2 operations
    panels = [
        ((f"{place[-1]}, {_task_words(place)}", ""), part.assign(x=part[label], along=label))
        for place, part in by_place(
            data.assign(**{"file (KiB)": smaller, "multiply-adds (million)": millions}),
            (*TASK, "model"),
        )
        for label in ("file (KiB)", "multiply-adds (million)")
    ]
    return draw_panels(
        panels, partial(_draw_variants, colors=colors), plot=(3.1, 2.3),
        title=_finding(data.assign(file=smaller)) or "Trained models made smaller",
        subtitle="hollow points: compressed; filled points: compressed and fine-tuned; the file is "
        "the smaller one of two that store the same model; multiply-adds include those with zeros",
        handles=partial(_handles, colors),
    )  # fmt: skip


def _finding(data: pd.DataFrame) -> str:
    """Return a title about the smallest file of a model with nearly the score of the training."""
    smallest = []
    for (*_, name), part in by_place(data, (*TASK, "model")):
        trained, score = part[part["stage"] == TRAINED].head(1), part["score"].astype(float)
        if len(trained) and pd.notna(trained["score"].iloc[0]):
            limit = float(trained["score"].iloc[0])
            higher = score_of(str(part["metric"].iloc[0])).higher
            good = part[score >= _NEARLY * limit if higher else score * _NEARLY <= limit]
            best = good.sort_values("file", kind="stable").iloc[0]
            ratio = best["file"] / trained["file"].iloc[0]
            smallest.append((ratio, str(best["method"]), str(name)))
    ratio, method, name = min(smallest, default=(1.0, "", ""))
    if ratio >= 1:
        return ""
    return (
        f"{method} shrinks the file of {name} to {ratio:.0%} of its size and saves at least "
        f"{_NEARLY:.0%} of its score"
    )


def _handles(colors: Mapping[str, str]) -> list[Line2D]:
    """Return the handles of the legend: a line for each method, and the star."""
    return [
        *(Line2D([], [], color=color, marker="o", linewidth=1.1, label=method)
          for method, color in colors.items()),
        Line2D([], [], linestyle="none", marker="*", markersize=9, color="black",
               label="as trained"),
    ]  # fmt: skip


def _draw_variants(axes: Axes, data: pd.DataFrame, colors: dict[str, str]) -> None:
    """Draw a line for each method, and a star for the trained model, in one panel."""
    score = score_of(str(data["metric"].iloc[0]))
    drawn = data[data["x"].notna() & data["score"].notna()]
    drawn = drawn.assign(y=score.factor * drawn["score"].astype(float))
    compressed = drawn[drawn["stage"] != TRAINED]
    for (method, *_), line in compressed.groupby(["method", "stage", "way"]):
        tuned = str(line["stage"].iloc[0]) == TUNED
        ordered = line.sort_values("amount")
        color = colors[str(method)]
        axes.plot(
            ordered["x"], ordered["y"], color=color, linewidth=1.1, marker="o", markersize=4.5,
            linestyle="-" if tuned else (0, (3, 1.5)), markerfacecolor=color if tuned else "white",
        )  # fmt: skip
    for _, row in drawn[drawn["stage"] == TRAINED].iterrows():
        axes.axhline(row["y"], color="0.75", linewidth=0.8, zorder=1)
        axes.plot([row["x"]], [row["y"]], marker="*", markersize=9, color="black", zorder=5)
    axes.set_xlim(left=0)
    axes.set_xlabel(str(data["along"].iloc[0]))
    axes.set_ylabel(score.axis)


section = Section(
    name="compression",
    heading="Trained models made smaller",
    data=compression_data,
    table=compression_table,
    figure=PagesPart(
        "compression-trade-off", "Scores against file size and multiply-adds",
        "score against the bytes of the file, and against multiply-adds", alike(compression_figure),
        panel=(*TASK, "model"), panels=_MODELS, lines=None, number="score", absent=False,
    ),
)  # fmt: skip
