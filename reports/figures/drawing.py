"""Give models their looks, and save figures: the same data always give the same bytes.

Figures are made without pyplot, so they need no display or global state, and work in any thread.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from io import BytesIO
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from matplotlib import rc_context, rc_params_from_file, rcParams, rcParamsDefault
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from lra.reports.figures.captions import Caption
from lra.reports.figures.processes import submit
from lra.reports.figures.titles import title_points
from lra.reports.rows import model_order
from lra.reports.stems import fit_stem
from lra.reports.style import Format, current_style
from lra.reports.tables.table import csv_text

FORMATS = (*Format,)
_PIXELS = 60_000
"""The most pixels of the longer side of a picture; matplotlib refuses 65,536."""


class Look(NamedTuple):
    """How one model is drawn: its colour, marker and dashes. Each of these distinguishes it."""

    color: str
    marker: str
    dashes: tuple[float, ...]
    """Empty for a solid line."""


# The palette of Okabe and Ito with a darker yellow, then darker and lighter colours. In this order,
# neighbours also differ in lightness.
PALETTE = (
    "#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00",
    "#56B4E9", "#7F7F7F", "#882255", "#B5A300", "#332288", "#5C3A00",
)  # fmt: skip
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "p", ">", "h", "*")
_DASHES: tuple[tuple[float, ...], ...] = (
    (), (6, 2), (1.5, 1.5), (6, 1.5, 1.5, 1.5), (3, 1.2, 3, 4), (3, 1.5),
    (6, 1.5, 1.5, 1.5, 1.5, 1.5), (4, 4), (9, 2, 2, 2), (1, 3), (8, 2, 4, 2), (2, 2, 6, 2),
)  # fmt: skip
_SLOTS = len(PALETTE)
_STRONG = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#882255")
"""Colours of highlighted models, in this order."""
_PALE, _SHARE = 0.62, 0.7
"""The lightness of the grey that is mixed into the colours of other models, and its fraction."""
_UNTUNED = (4, 2)
"""Dashes of models with untuned options."""
_FIXED = ("softmax", "sdpa", "linear", "performer", "sliding_window", "identity")


def looks(models: Sequence[str]) -> dict[str, Look]:
    """Return the look of each model, which depends on its name and little on the other models.

    - The models of `_FIXED` have fixed looks. Any other model gets the look to which its name
      hashes, or the next free one. Up to twelve models differ in colour, marker and dashes.
    - Models from a search have the colour of their family: a solid line if they are tuned, and a
      lighter, dashed line if they are untuned.
    - Highlighted models have strong colours and solid lines; all others are then pale.
    - The style in force of a model takes precedence over all of this.
    """
    plain = {name: current_style().plain(name) for name in models}
    from_search = {name: pair for name in models if (pair := current_style().led_to(name))}
    colored_as = plain | {name: family for name, (family, _) in from_search.items()}
    numbers = _look_numbers([*dict.fromkeys([*plain.values(), *colored_as.values()])])
    result = {
        name: _look(numbers[plain[name]])._replace(color=_look(numbers[colored_as[name]]).color)
        for name in models
    }
    strong = [name for name in model_order([*result]) if current_style().highlighted(name)]
    if strong:
        result = {name: look._replace(color=_mix_grey(look.color)) for name, look in result.items()}
    slots = [*dict.fromkeys(colored_as[name] for name in strong)]
    for name in strong:
        turn, slot = divmod(slots.index(colored_as[name]), len(_STRONG))
        result[name] = result[name]._replace(color=_STRONG[slot], dashes=_DASHES[turn % _SLOTS])
    for name, (_, tuned) in from_search.items():
        color = result[name].color
        result[name] = result[name]._replace(
            color=color if tuned else _mix_white(color), dashes=() if tuned else _UNTUNED
        )
    return {name: _apply_style(look, name) for name, look in result.items()}


OTHERS = Look("#C8C8C8", ".", ())
"""The look of models that a legend does not name."""


def named_looks(looks: dict[str, Look], names: Sequence[str], *, lines: bool) -> dict[str, Look]:
    """Return the looks, in which models that the legend has no room for are light grey.

    Args:
        looks: the look of each model.
        names: the models of a figure; the legend names the first ones.
        lines: whether the figure has lines, which the style may name at their ends.
    """
    most, ordered = current_style().style.legend_entries, sorted(names, key=current_style().rank)
    if len(ordered) <= most or (lines and current_style().style.direct_labels):
        return looks
    return looks | dict.fromkeys(ordered[most - 1 :], OTHERS)


def _mix_white(color: str) -> str:
    """Return a colour mixed with the same amount of white."""
    red, green, blue = ((1 + part) / 2 for part in to_rgb(color))
    return to_hex((red, green, blue))


def _mix_grey(color: str) -> str:
    """Return a colour mixed with the fraction `_SHARE` of grey."""
    red, green, blue = ((1 - _SHARE) * part + _SHARE * _PALE for part in to_rgb(color))
    return to_hex((red, green, blue))


def _look_numbers(models: Sequence[str]) -> dict[str, int]:
    """Return a different number of a look for each model, by hashing the names."""
    numbers = {name: number for number, name in enumerate(_FIXED) if name in models}
    for name in sorted(set(models) - set(_FIXED)):
        start = int(hashlib.sha256(name.encode()).hexdigest(), 16)
        slots = range(len(_FIXED), _SLOTS)
        rotated = [slots[(start + i) % len(slots)] for i in range(len(slots))]
        # then the numbers of absent fixed models, and then new combinations of colour and marker
        candidates = chain(rotated, range(len(_FIXED)), count(_SLOTS))
        numbers[name] = next(n for n in candidates if n not in numbers.values())
    return numbers


def _look(number: int) -> Look:
    """Return the look with a number; from `_SLOTS` on, markers and dashes are shifted.

    The shifts 5 and 7 have no common divisor with the 12 slots, so combinations repeat late.
    """
    turn, slot = divmod(number, _SLOTS)
    colors = current_style().style.palette or PALETTE
    return Look(
        colors[slot % len(colors)],
        _MARKERS[(slot + 5 * turn) % _SLOTS],
        _DASHES[(slot + 7 * turn) % _SLOTS],
    )


def _apply_style(look: Look, name: str) -> Look:
    """Return a look with the settings of the style in force for this model."""
    model_style = current_style().look(name)
    return Look(
        look.color if model_style.color is None else model_style.color,
        look.marker if model_style.marker is None else model_style.marker,
        look.dashes if model_style.dashes is None else tuple(model_style.dashes),
    )


@contextmanager
def style() -> Iterator[None]:
    """Set matplotlib's parameters from the style in force, and ignore the user's matplotlibrc."""
    in_force = current_style().style
    fixed = {"font.family": in_force.font.family, "backend": "agg"}
    settings: dict[Any, Any] = dict(rcParamsDefault)
    settings |= _default_parameters() | in_force.matplotlib | fixed
    with rc_context(settings):
        yield


@cache
def _default_parameters() -> dict[Any, Any]:
    """Return the parameters of matplotlib in the file `lra.mplstyle`."""
    with resources.as_file(resources.files("lra.reports.figures") / "lra.mplstyle") as path:
        return dict(rc_params_from_file(path, use_default_template=False))


def legend_name(name: str) -> str:
    """Return a name as a label; legends of matplotlib would omit one with a leading underscore."""
    return f" {name}" if name.startswith("_") else name


class ReportFigure(Figure):
    """A figure with the parts that its style removes from the picture; notebooks display it."""

    finding = ""
    """The title, which is in the picture or in the caption."""
    caption: Caption | None = None
    """Title, subtitle and notes for a file next to the picture; None if the picture has them."""
    separate_legend: Figure | None = None
    """The legend as a separate picture; None if the picture has it."""

    def _repr_png_(self) -> bytes:
        """Return the picture as PNG; notebooks call this."""
        data = BytesIO()
        with style():
            self.savefig(data, format="png", metadata={"Software": None})
        return data.getvalue()


def new_figure(width: float = 6.6, height: float = 3.7) -> ReportFigure:
    """Return an empty figure of this width and height in inches."""
    figure = ReportFigure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, folder: Path, stem: str, data: pd.DataFrame) -> list[Path]:
    """Write a figure as `stem`.pdf, .svg and .png, and its data as .csv; return the paths.

    The style in force may omit .pdf or .png, and write caption and legend to separate files. The
    files have no date and no version, so that the same rows give the same bytes.
    """
    stem = fit_stem(stem)
    paths = _save_pictures(figure, folder, stem)
    if isinstance(figure, ReportFigure):
        if figure.separate_legend is not None:
            paths += _save_pictures(figure.separate_legend, folder, f"{stem}.legend")
        if figure.caption is not None:
            paths += figure.caption.write(folder, stem)
    return [*paths, save_numbers(folder, stem, data)]


def save_numbers(folder: Path, stem: str, data: pd.DataFrame) -> Path:
    """Write the data of a figure as `stem`.csv; return the path."""
    table = folder / f"{fit_stem(stem)}.csv"
    data.map(csv_text).to_csv(table, index=False, lineterminator="\n")
    return table


_METADATA: dict[Format, dict[str, str | None]] = {
    Format.pdf: {"CreationDate": None, "Creator": None, "Producer": None},
    Format.svg: {"Date": None, "Creator": None},
    Format.png: {"Software": None},
}


def _save_pictures(figure: Figure, folder: Path, stem: str) -> list[Path]:
    """Save a figure in the formats of the style, and always as SVG for the report's page."""
    forms = [f for f in FORMATS if f in current_style().style.formats or f is Format.svg]
    paths = {form: folder / f"{stem}.{form}" for form in forms}

    def draw() -> None:
        """Write all formats, and add titles of points to the SVG; may run in another process."""
        with style():
            dpi = min(rcParams["savefig.dpi"], _PIXELS / max(figure.get_size_inches()))
            for form, path in paths.items():
                figure.savefig(path, format=form, metadata=_METADATA[form], dpi=dpi)
            title_points(figure, paths[Format.svg])

    submit(draw)
    return [*paths.values()]
