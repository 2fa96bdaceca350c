"""What trained attention looks like: curves by layer and head, and matrices as pictures.

A panel is a model on a task, or one layer of it; matrices share one scale of colours in a figure.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum, auto
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from lra.reports.figures.drawing import PALETTE, style
from lra.reports.figures.layout import Sheet, arrange, sheet
from lra.reports.rows import as_text
from lra.reports.tables.places import by_place
from lra.reports.tables.scores import TASK

MODEL = (*TASK, "model")
"""Columns whose values share a panel."""
LAYER = (*MODEL, "layer")
ALL = "all"
_CURVES, SQUARE, LETTERS = (2.7, 1.9), (1.75, 1.75), (2.7, 2.7)
"""Inches of plots: of curves, of pictures, and of those with twenty names."""
_STEPS = 4
"""Of the scale of colours in a legend."""


def panels(
    data: pd.DataFrame,
    keys: Sequence[str],
    plot: tuple[float, float],
    across: int,
    *,
    lines: bool = True,
) -> tuple[Sheet, list[tuple[Axes, pd.DataFrame]]]:
    """Return a figure with a titled plot for each value of the keys, and the data of each."""
    found, several = by_place(data, keys), not setting(data)
    grid = sheet(len(found), plot=plot, across=across, lines=lines)
    parts = []
    for axes, (key, part) in zip(grid.axes, found, strict=True):
        named = dict(zip(keys, key, strict=True))
        layer = f", layer {named['layer']}" if "layer" in named else ""
        kind = f": {named['kind']}" if named.get("kind") else ""
        where = f" ({_setting(named)})" if several else ""
        axes.set_title(f"{named['model']}{layer}{kind}{where}", size=8)
        parts.append((axes, part))
    return grid, parts


def setting(data: pd.DataFrame) -> str:
    """Return the task that all panels share; nothing where there are several."""
    tasks = data[list(TASK)].drop_duplicates().to_dict("records")
    return _setting(tasks[0]) if len(tasks) == 1 else ""


def _setting(task: dict[Any, Any]) -> str:
    marks = [task["regime"], task["tokenizer"]]
    facts = [task["task"], f"length {as_text(task['length'])}", *filter(None, marks)]
    return ", ".join(map(str, facts))


def _below(data: pd.DataFrame, words: str) -> str:
    return "; ".join(filter(None, [setting(data), words]))


def by_layer(number: int, layers: Sequence[int]) -> Any:
    """Return the colour of a layer: the first dark, the last light."""
    place = sorted(layers).index(number) / max(1, len(layers) - 1)
    return colormaps["viridis"](0.85 * place)


def _layer_handles(data: pd.DataFrame) -> list[Line2D]:
    layers = sorted({int(layer) for layer in data["layer"]})
    return [
        Line2D([], [], color=by_layer(layer, layers), label=f"layer {layer}") for layer in layers
    ]


def within_figure(data: pd.DataFrame) -> Figure:
    """Draw the mass near the diagonal: points are heads, lines their means.

    Args:
        data: with the columns of `MODEL`, layer, head, within and value.
    """
    reaches = sorted({int(reach) for reach in data["within"]})
    with style():
        grid, parts = panels(data, MODEL, _CURVES, 2)
        for axes, part in parts:
            for number, reach in enumerate(reaches):
                color = PALETTE[1 + number % (len(PALETTE) - 1)]
                here = part[part["within"].astype(int) == reach]
                layers = here["layer"].astype(int)
                axes.plot(layers, here["value"], linestyle="none", marker=".", color=color)
                means = here.groupby(layers)["value"].mean()
                axes.plot(means.index, means, color=color)
            axes.set_ylim(-0.02, 1.02)
            axes.set_xlabel("layer")
            axes.set_ylabel("share of attention")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles = [
            Line2D([], [], marker=".", color=PALETTE[1 + number % (len(PALETTE) - 1)],
                   label=f"at most {reach} away")
            for number, reach in enumerate(reaches)
        ]  # fmt: skip
        return arrange(
            grid,
            title="Attention near its query",
            subtitle=_below(data, "points: heads; lines: their means"),
            handles=handles,
        )


def spectrum_figure(data: pd.DataFrame) -> Figure:
    """Draw cumulated singular values: a line for each head, in the colour of its layer.

    Args:
        data: with the columns of `MODEL`, layer, head and samples.
    """
    with style():
        grid, parts = panels(data, MODEL, _CURVES, 2)
        for axes, part in parts:
            _curves(axes, part, part)
            axes.axvline(0.25, color="0.6", linewidth=0.7, linestyle=":")
            axes.set_ylim(0, 1.02)
            axes.set_xlabel("share of the singular values, largest first")
            axes.set_ylabel("share of their sum")
        return arrange(
            grid,
            title="Spectrum of attention matrices",
            subtitle=_below(
                data, "a line for each head, mean over examples; dotted: a quarter of them"
            ),
            handles=_layer_handles(data),
        )


def energy_figure(data: pd.DataFrame) -> Figure:
    """Draw captured energy of key-query products: heads left, all heads together right.

    Args:
        data: with the columns of `MODEL`, layer, head and samples.
    """
    kinds = {"each head": data["head"] != ALL, "all heads together": data["head"] == ALL}
    split = pd.concat([data[chosen].assign(kind=kind) for kind, chosen in kinds.items()])
    order = {key: n for n, key in enumerate(dict.fromkeys(_model_keys(data)))}
    split = split.iloc[np.argsort([order[key] for key in _model_keys(split)], kind="stable")]
    with style():
        grid, parts = panels(split, (*MODEL, "kind"), _CURVES, 2)
        for axes, part in parts:
            whole = data[(data[list(MODEL)] == list(part[list(MODEL)].iloc[0])).all(axis=1)]
            _curves(axes, part, whole, relative=False)
            axes.set_ylim(0, 1.02)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_xlabel("dimensions")
            axes.set_ylabel("captured energy")
        return arrange(
            grid,
            title="Key-query products by dimensions",
            subtitle=_below(
                data,
                "squared singular values of W_Q W_K^T, cumulated: of each head, and of all heads "
                "beside each other",
            ),
            handles=_layer_handles(data),
        )


def _curves(axes: Axes, part: pd.DataFrame, whole: pd.DataFrame, *, relative: bool = True) -> None:
    layers = sorted({int(layer) for layer in whole["layer"]})
    for layer, samples in zip(part["layer"], part["samples"], strict=True):
        count = len(samples)
        x = np.arange(1, count + 1) / (count if relative else 1)
        axes.plot(x, samples, color=by_layer(int(layer), layers), linewidth=1.0)


def _model_keys(data: pd.DataFrame) -> list[tuple[Any, ...]]:
    return list(data[list(MODEL)].itertuples(index=False, name=None))


def kernel_figure(data: pd.DataFrame) -> Figure:
    """Draw kernels by layer: a line for each head, a band of one deviation over tokens.

    Args:
        data: with the columns of `LAYER`, head, left, samples and deviation, of every tap.
    """
    heads = sorted({int(head) for head in data["head"]})
    colors = {head: PALETTE[n % len(PALETTE)] for n, head in enumerate(heads)}
    with style():
        grid, parts = panels(data, LAYER, _CURVES, 2)
        for axes, part in parts:
            for head, left, samples, band in zip(
                part["head"], part["left"], part["samples"], part["deviation"], strict=True
            ):
                mean, color = np.array(samples), colors[int(head)]
                x = np.arange(len(mean)) - int(left)
                axes.plot(x, mean, color=color, marker=".")
                low, high = np.maximum(0.0, mean - np.array(band)), mean + np.array(band)
                axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
            taps = max(len(samples) for samples in part["samples"])
            axes.set_title(f"{axes.get_title(loc='left')}: {taps} taps", size=8)
            axes.set_ylim(bottom=0)
            axes.set_xlabel("place of the tap beside its token")
            axes.set_ylabel("weight")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        handles = [Line2D([], [], color=colors[h], marker=".", label=f"head {h}") for h in heads]
        return arrange(
            grid,
            title="Kernels of convolutions",
            subtitle=_below(
                data,
                "behind the softmax over taps; of predicted kernels the mean over tokens, with a "
                "band of one standard deviation",
            ),
            handles=handles,
        )


class Picture(NamedTuple):
    """A matrix, and what its rows and columns are."""

    values: np.ndarray[Any, Any]
    """[rows, columns], NaN where there is none."""
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    positions: int = 1
    """Where they have no names: positions of each."""


class Colors(StrEnum):
    """How numbers become colours."""

    root = auto()
    """From 0 by the square root, so that small values can be distinguished."""
    between = auto()
    """From the smallest to the largest."""
    around = auto()
    """On both sides of 0."""
    parts = auto()
    """0 where nothing is seen, else one over how many are seen as one."""


def picture_figure(
    data: pd.DataFrame,
    keys: Sequence[str],
    picture: Callable[[pd.DataFrame], Picture],
    *,
    title: str,
    subtitle: str,
    labels: tuple[str, str],
    colors: Colors,
    words: str,
    across: int = 3,
    plot: tuple[float, float] = SQUARE,
) -> Figure:
    """Draw a matrix in each panel, all with one scale of colours.

    Args:
        data: of all panels.
        keys: columns whose values share a panel.
        picture: of the data of one panel.
        title: of the figure.
        subtitle: below it.
        labels: of the axes across and down.
        colors: how numbers become colours.
        words: what the colours mean.
        across: panels in a row.
        plot: width and height of each, inches.
    """
    with style():
        grid, parts = panels(data, keys, plot, across, lines=False)
        pictures = [picture(part) for _, part in parts]
        low = min(float(np.nanmin(matrix.values)) for matrix in pictures)
        high = max(float(np.nanmax(matrix.values)) for matrix in pictures)
        far = max(-low, high)
        norm, steps = {
            Colors.root: (PowerNorm(0.5, 0, high), high * np.linspace(0, 1, _STEPS) ** 2),
            Colors.between: (Normalize(low, high), np.linspace(low, high, _STEPS)),
            Colors.around: (Normalize(-far, far), np.linspace(-far, far, _STEPS)),
            Colors.parts: (PowerNorm(0.5, 0, 1), _parts(pictures)),
        }[colors]
        scale = colormaps["RdBu_r" if colors == Colors.around else "Blues"]
        for (axes, _), matrix in zip(parts, pictures, strict=True):
            down, along = matrix.values.shape
            edges = (0, along * matrix.positions, down * matrix.positions, 0)
            extent = None if matrix.rows else edges
            axes.imshow(
                matrix.values, norm=norm, cmap=scale, aspect="auto", interpolation="nearest",
                extent=extent,
            )  # fmt: skip
            axes.grid(visible=False)
            axes.minorticks_off()
            if matrix.rows:
                axes.set_yticks(range(down), matrix.rows)
                axes.set_xticks(range(along), matrix.columns)
                axes.tick_params(labelsize=5 if max(down, along) > 12 else 6)
            axes.set_xlabel(labels[0])
            axes.set_ylabel(labels[1])
        named = _share_text if colors == Colors.parts else "{:.3g}".format
        handles = [
            Patch(facecolor=scale(norm(step)), edgecolor="0.6", linewidth=0.4, label=named(step))
            for step in steps
        ]
        return arrange(
            grid,
            title=title,
            subtitle=_below(data, subtitle),
            handles=handles,
            legend_title=words,
        )


def _parts(pictures: Sequence[Picture]) -> np.ndarray[Any, Any]:
    """Return the largest values that occur, and 0."""
    values = np.unique(np.concatenate([matrix.values.ravel() for matrix in pictures]))[::-1]
    return np.unique([0.0, *values[:7]])[::-1]


def _share_text(value: float) -> str:
    if not value:
        return "not seen"
    return "seen" if value == 1 else f"one of {1 / value:.0f} seen alike"
