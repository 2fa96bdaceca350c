"""How figures look and how they are saved: one style, one look per model, the same bytes each time.

Figures are made without pyplot: no global state, no display, safe in any thread.
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
"""Of the longer side of a picture; matplotlib refuses 65,536."""


class Look(NamedTuple):
    """How one model is drawn: colour, marker and dashes, each enough to recognise it."""

    color: str
    marker: str
    dashes: tuple[float, ...]
    """Empty for a solid line."""


# Okabe and Ito's palette (yellow, too pale on paper, made darker), then darker and lighter kin, in
# an order in which neighbours differ in lightness too.
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
"""Of highlighted models, in turn."""
_PALE, _SHARE = 0.62, 0.7
"""The lightness of the grey that is mixed into the colours of all others, and its share."""
_UNTUNED = (4, 2)
"""Dashes of what is trained with the options that a search began from."""
_FIXED = ("softmax", "sdpa", "linear", "performer", "sliding_window", "identity")


def looks(models: Sequence[str]) -> dict[str, Look]:
    """Give every model its look: the same in every figure, whatever else is drawn.

    The foundation's models have fixed places; any other takes the place its name hashes to, or the
    next free one. Up to twelve models share neither colour, marker nor dashes; beyond, colour and
    marker get new combinations. Trainings that a search led to have the colour of their family: a
    solid line with the chosen options, a lighter and dashed one with the untuned. Highlighted
    models have strong colours and solid lines, and all others next to them pale ones. What the
    style in force says of a model takes precedence.
    """
    plain = {name: current_style().plain(name) for name in models}
    led = {name: found for name in models if (found := current_style().led_to(name))}
    colored = plain | {name: family for name, (family, _) in led.items()}
    places = _places([*dict.fromkeys([*plain.values(), *colored.values()])])
    every = {
        name: _look(places[plain[name]])._replace(color=_look(places[colored[name]]).color)
        for name in models
    }
    strong = [name for name in model_order([*every]) if current_style().highlighted(name)]
    if strong:
        every = {name: look._replace(color=_pale(look.color)) for name, look in every.items()}
    slots = [*dict.fromkeys(colored[name] for name in strong)]
    for name in strong:
        turn, slot = divmod(slots.index(colored[name]), len(_STRONG))
        every[name] = every[name]._replace(color=_STRONG[slot], dashes=_DASHES[turn % _SLOTS])
    for name, (_, tuned) in led.items():
        color = every[name].color
        every[name] = every[name]._replace(
            color=color if tuned else _light(color), dashes=() if tuned else _UNTUNED
        )
    return {name: _styled(look, name) for name, look in every.items()}


OTHERS = Look("#C8C8C8", ".", ())
"""Of the models that a legend does not name."""


def named_looks(looks: dict[str, Look], names: Sequence[str], *, lines: bool) -> dict[str, Look]:
    """Return looks in which the last of more names than a legend may hold are light grey.

    Args:
        looks: of every model.
        names: of those in a figure, those to be named first in front.
        lines: whether the style in force may name them at their ends instead.
    """
    most, chosen = current_style().style.legend_entries, sorted(names, key=current_style().rank)
    if len(chosen) <= most or (lines and current_style().style.direct_labels):
        return looks
    return looks | dict.fromkeys(chosen[most - 1 :], OTHERS)


def _light(color: str) -> str:
    """Return a colour with as much white in it."""
    red, green, blue = ((1 + part) / 2 for part in to_rgb(color))
    return to_hex((red, green, blue))


def _pale(color: str) -> str:
    """Return a colour with much grey in it."""
    red, green, blue = ((1 - _SHARE) * part + _SHARE * _PALE for part in to_rgb(color))
    return to_hex((red, green, blue))


def _places(models: Sequence[str]) -> dict[str, int]:
    taken = {name: number for number, name in enumerate(_FIXED) if name in models}
    for name in sorted(set(models) - set(_FIXED)):
        start = int(hashlib.sha256(name.encode()).hexdigest(), 16)
        slots = range(len(_FIXED), _SLOTS)
        turned = [slots[(start + i) % len(slots)] for i in range(len(slots))]
        # the places of absent fixed models come next, then second turns through the list
        numbers = chain(turned, range(len(_FIXED)), count(_SLOTS))
        taken[name] = next(p for p in numbers if p not in taken.values())
    return taken


def _look(number: int) -> Look:
    turn, slot = divmod(number, _SLOTS)
    colors = current_style().style.palette or PALETTE
    return Look(
        colors[slot % len(colors)],
        _MARKERS[(slot + 5 * turn) % _SLOTS],
        _DASHES[(slot + 7 * turn) % _SLOTS],
    )


def _styled(look: Look, name: str) -> Look:
    model_style = current_style().look(name)
    return Look(
        look.color if model_style.color is None else model_style.color,
        look.marker if model_style.marker is None else model_style.marker,
        look.dashes if model_style.dashes is None else tuple(model_style.dashes),
    )


@contextmanager
def style() -> Iterator[None]:
    """Draw and save in the style in force, on any machine, whatever the user's matplotlibrc."""
    look = current_style().style
    settings: dict[Any, Any] = dict(rcParamsDefault)
    settings |= _house() | look.matplotlib | {"font.family": look.font.family, "backend": "agg"}
    with rc_context(settings):
        yield


@cache
def _house() -> dict[Any, Any]:
    with resources.as_file(resources.files("lra.reports.figures") / "lra.mplstyle") as path:
        return dict(rc_params_from_file(path, use_default_template=False))


def legend_name(name: str) -> str:
    """Return a name for a legend, which leaves out what begins with an underscore."""
    return f" {name}" if name.startswith("_") else name


class ReportFigure(Figure):
    """A figure that knows what its style keeps out of the picture.

    A notebook shows it by itself, though pyplot knows nothing of it.
    """

    finding = ""
    """The title, be it in the picture or in the caption."""
    caption: Caption | None = None
    """Title, subtitle and notes that are saved in files next to it."""
    separate_legend: Figure | None = None
    """The legend as a separate picture."""

    def _repr_png_(self) -> bytes:
        data = BytesIO()
        with style():
            self.savefig(data, format="png", metadata={"Software": None})
        return data.getvalue()


def new_figure(width: float = 6.6, height: float = 3.7) -> ReportFigure:
    """Return an empty figure, inches."""
    figure = ReportFigure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, folder: Path, stem: str, data: pd.DataFrame) -> list[Path]:
    """Write `stem`.pdf, .svg, .png and the plotted numbers as .csv; return the paths.

    The style in force may leave out .pdf or .png, and put caption and legend in separate files. No
    file holds a date or a version, so the same rows give the same bytes.
    """
    stem = fit_stem(stem)
    paths = _pictures(figure, folder, stem)
    if isinstance(figure, ReportFigure):
        if figure.separate_legend is not None:
            paths += _pictures(figure.separate_legend, folder, f"{stem}.legend")
        if figure.caption is not None:
            paths += figure.caption.write(folder, stem)
    return [*paths, save_numbers(folder, stem, data)]


def save_numbers(folder: Path, stem: str, data: pd.DataFrame) -> Path:
    """Write the numbers of a figure as `stem`.csv; return the path."""
    table = folder / f"{fit_stem(stem)}.csv"
    data.map(csv_text).to_csv(table, index=False, lineterminator="\n")
    return table


_METADATA: dict[Format, dict[str, str | None]] = {
    Format.pdf: {"CreationDate": None, "Creator": None, "Producer": None},
    Format.svg: {"Date": None, "Creator": None},
    Format.png: {"Software": None},
}


def _pictures(figure: Figure, folder: Path, stem: str) -> list[Path]:
    # the report's page shows the SVG
    forms = [f for f in FORMATS if f in current_style().style.formats or f is Format.svg]
    paths = {form: folder / f"{stem}.{form}" for form in forms}

    def draw() -> None:
        with style():
            dpi = min(rcParams["savefig.dpi"], _PIXELS / max(figure.get_size_inches()))
            for form, path in paths.items():
                figure.savefig(path, format=form, metadata=_METADATA[form], dpi=dpi)
            title_points(figure, paths[Format.svg])

    submit(draw)
    return [*paths.values()]
