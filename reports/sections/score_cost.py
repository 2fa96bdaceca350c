"""Scores of language models against multiply-adds of one example, as in Lite Transformer's paper.

A score is that of a training, the cost that of a forward pass at the same length, which
`runner=scaling` counts: both must be among the rows.
"""

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from reports.figures.drawing import Look, legend_name, style
from reports.figures.layout import arrange, sheet
from reports.rows import as_text, model_order
from reports.sections.section import PagesPart, SimpleSection
from reports.tables.scores import LANGUAGE

TASK = ("task", "task_version", "source", "length")
PANEL = (*TASK, "regime", "tokenizer", "metric")
TITLES = {score.metric: score.title for score in LANGUAGE}
_PLOT = (3.0, 2.3)
"""Inches."""


def score_cost_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return score and multiply-adds of every model that has both; scores are means over seeds.

    Args:
        rows: as `reports.rows.prepare` returns them.
    """
    final = rows[
        (rows["runner"] == "train") & rows["step"].isna() & (rows["split"] == "test")
        & (rows["status"] == "ok") & (rows["baseline"] == "") & rows["metric"].isin(TITLES)
    ]  # fmt: skip
    keys = [*PANEL, "name"]
    scores = final.groupby(keys, dropna=False)["value"].agg(["mean", "min", "max"]).reset_index()
    scores = scores.rename(columns={"mean": "score", "min": "low", "max": "high"})
    passes = rows[
        (rows["runner"] == "scaling") & (rows["mode"] == "forward") & (rows["reference"] == "")
        & (rows["status"] == "ok")
    ]  # fmt: skip
    places = ["cell", *TASK, "name"]
    parts = [
        passes[passes["metric"] == metric].groupby(places)["value"].first()
        for metric in ("flops", "batch_size")
    ]
    counted = (parts[0] / parts[1] / 2).rename("multiply_adds").dropna()
    costs = counted.groupby([*TASK, "name"]).mean().reset_index()
    data = scores.merge(costs, on=[*TASK, "name"]).rename(columns={"name": "model"})
    return data.sort_values([*PANEL, "multiply_adds"], ignore_index=True)


def score_cost_figure(data: pd.DataFrame, looks: dict[str, Look]) -> Figure:
    """Draw what `score_cost_data` returned: one panel per task and score."""
    keys = list(dict.fromkeys(data[list(PANEL)].itertuples(index=False, name=None)))
    with style():
        grid = sheet(len(keys), plot=_PLOT)
        handles: dict[str, Line2D] = {}
        for axes, key in zip(grid.axes, keys, strict=True):
            points = data[(data[list(PANEL)] == list(key)).all(axis=1)]
            for point in points.to_dict("records"):
                look = looks[point["model"]]
                bars = [[point["score"] - point["low"]], [point["high"] - point["score"]]]
                axes.errorbar(
                    [point["multiply_adds"]], [point["score"]], yerr=bars, linestyle="none",
                    marker=look.marker, color=look.color,
                )  # fmt: skip
                handles[point["model"]] = Line2D(
                    [], [], linestyle="none", marker=look.marker, color=look.color,
                    label=legend_name(point["model"]),
                )  # fmt: skip
            task, _, source, length, *marks, metric = key
            facts = [str(source), f"length {as_text(length)}", *(str(m) for m in marks if m)]
            axes.set_title(f"{task} ({', '.join(facts)})", size=8.5)
            low, high = points["multiply_adds"].min(), points["multiply_adds"].max()
            if high > 10 * low:
                axes.set_xscale("log")
                axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1e6:,g}"))
            axes.set_xlabel("multiply-adds of one example (millions)")
            axes.set_ylabel(TITLES[metric].lower())
        return arrange(
            grid,
            title="Score against multiply-adds",
            subtitle="test split, mean over seeds, bars: their extremes; counted, of a forward "
            "pass at the training length",
            handles=[handles[name] for name in model_order([*handles])],
        )


score_costs = SimpleSection(
    name="score-by-multiply-adds",
    heading="Score against multiply-adds",
    data=score_cost_data,
    figure=PagesPart(
        "score-by-multiply-adds", "Score against multiply-adds",
        "score against multiply-adds of one example", score_cost_figure, panel=PANEL,
        number="score",
    ),
)  # fmt: skip
