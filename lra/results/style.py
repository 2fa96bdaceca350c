"""The style of a report, by name or file: `report.style=` and `--style`.

A YAML file holds the keys of `lra.reports.style.ReportStyle`; a file that ends in .mplstyle is a
style file of matplotlib. Each setting that is ignored gives a message.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from lra.composition.binding import make
from lra.composition.configuration import quote
from lra.composition.yaml_text import MOST_BYTES, load
from lra.conf.plain_files import read_bytes
from lra.errors import ConfigError, UnknownName, unknown
from lra.reports.style import (
    DEFAULT,
    FULL,
    LARGEST,
    NARROWEST,
    SMALLEST,
    WIDEST,
    Font,
    ModelStyle,
    ReportStyle,
    TableStyle,
)

ENDING = ".mplstyle"
NESTED: dict[str, type] = {"font": Font, "tables": TableStyle}
LAYOUT = "lra decides the place of every part of a figure"
BYTES = "lra embeds TrueType fonts, so that equal rows give equal files"
HELD = {
    "text.usetex": "names of models are printed as plain text",
    "text.parse_math": "names of models are printed as plain text",
    "text.latex.preamble": "names of models are printed as plain text",
    "figure.autolayout": LAYOUT, "figure.constrained_layout.use": LAYOUT, "savefig.bbox": LAYOUT,
    "savefig.pad_inches": LAYOUT, "figure.dpi": LAYOUT, "savefig.format": "set formats instead",
    "svg.hashsalt": BYTES, "svg.fonttype": BYTES, "pdf.fonttype": BYTES, "pdf.compression": BYTES,
    "pdf.use14corefonts": BYTES, "ps.fonttype": BYTES,
    "font.family": "set the option font.family of the style instead",
}  # fmt: skip
"""Settings of matplotlib that no style may change, and the reason."""
MOST_DPI, MOST_DOTS = 1200, 12_000
"""Limits of a figure, which takes some hundred megabytes while it is drawn."""
SIZED = ("savefig.dpi",)
"""Settings of a .mplstyle file that are judged together with the width."""
BOUNDS: dict[str, tuple[float, float]] = {
    r"\.dpi$": (10, MOST_DPI),
    r"^figure\.figsize$": (NARROWEST, WIDEST),
    r"^font\.size$|\.(font|title|label)size$": (SMALLEST, LARGEST),
    r"alpha$": (0, 1),
    r"pattern$": (0.01, 100),
    r"^(agg|animation|figure|pdf|ps|svg|webagg)\.|\.lut$": (-1, 1e6),  # no sizes in a figure
    r"^legend\..*(scale|length|height|points)$": (0, 20),  # in letters
    r"^legend\.": (-20, 20),
    r"(size|width|scale|bins)$": (0, 100),  # in points
    r"": (-100, 100),
}
"""Bounds of the numbers in settings of matplotlib; the first pattern found in a name counts."""
FONTS = {
    "title": "figure.titlesize", "panel_titles": "axes.titlesize", "labels": "axes.labelsize",
    "ticks": "xtick.labelsize", "legend": "legend.fontsize",
}  # fmt: skip
"""Font sizes of a style, and their names in matplotlib."""


def shipped_styles() -> dict[str, Path]:
    """Return the files of the styles that come with lra, by name."""
    folder = Path(str(resources.files("lra.reports.figures"))) / "styles"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def read_style(name: str | None) -> tuple[ReportStyle, list[str]]:
    """Return a style, and a sentence for each setting of a .mplstyle file that is ignored.

    Args:
        name: the name of a shipped style, or the path of a file; None: the default style.

    Raises:
        UnknownName: neither a shipped style nor a file.
        ConfigError: a key is unknown, or has a value of another kind than it takes.
        lra.composition.yaml_text.BadYaml: the file is no YAML.
    """
    if name is None:
        return DEFAULT, []
    names = shipped_styles()
    if name in names:
        return style_of(_on_base(load(names[name]), name), str(names[name])), []
    path = Path(name)
    if not path.is_file():
        way_out = "You can also give the path of a YAML file or of a matplotlib .mplstyle file."
        raise UnknownName(unknown("style", name, names, way_out=way_out))
    if path.suffix == ENDING:
        return _read_mplstyle(path)
    return style_of(_on_base(load(path), name), name), []


def _on_base(node: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the keys of a file together with those of the shipped style that it names as `base`.

    Raises:
        UnknownName: no style of this name comes with lra.
    """
    if "base" not in node:
        return node
    names, base = shipped_styles(), str(node["base"])
    if base not in names:
        raise UnknownName(f"{where}: " + unknown("base", base, names))
    merged = dict(_on_base(load(names[base]), base))
    for key, value in node.items():
        before = merged.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            merged[key] = {**before, **value}
        else:
            merged[key] = value
    del merged["base"]
    return merged


def style_of(node: Mapping[str, Any], where: str) -> ReportStyle:
    """Return the style with the options in a mapping; errors (ConfigError) begin with `where`."""
    node = {str(key): value for key, value in node.items()}
    if type(node.get("width")) is int:  # not True, which is an int, too
        node["width"] = float(node["width"])
    parts: dict[str, Any] = {}
    for key, kind in NESTED.items():
        if node.get(key) is not None:
            parts[key] = _instance(kind, _mapping(node.pop(key), where, key), f"{where}: {key}")
    models = _mapping(node.pop("models", None) or {}, where, "models")
    parts["models"] = {
        str(name): _instance(
            ModelStyle, _mapping(given, where, f"models.{name}"), f"{where}: models.{name}"
        )
        for name, given in models.items()
    }
    settings = _mapping(node.pop("matplotlib", None) or {}, where, "matplotlib")
    for key in settings:
        if key in HELD:
            raise ConfigError(f"{where}: matplotlib.{key} is fixed: {HELD[key]}")
    parts["matplotlib"] = {
        key: _parse(str(key), value, f"{where}: matplotlib") for key, value in settings.items()
    }
    if unknown_keys := [key for key in node if key not in {f.name for f in fields(ReportStyle)}]:
        keys = [f.name for f in fields(ReportStyle)]
        raise ConfigError(f"{where}: " + unknown("option of a style", unknown_keys[0], keys))
    try:
        style: ReportStyle = replace(_instance(ReportStyle, node, where), **parts)
        dots = (style.inches() or FULL) * float(_read_dpi(style.matplotlib))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
    if dots > MOST_DOTS:
        raise ConfigError(
            f"{where}: got figures that are {dots:,.0f} dots wide; wanted at most "
            f"{MOST_DOTS:,} dots: set a smaller savefig.dpi or width"
        )
    _check_drawable(style, where)
    return style


def _read_dpi(settings: Mapping[str, Any]) -> float:
    """Return the dots per inch of saved figures."""
    dpi = settings.get("savefig.dpi", "figure")
    return 100.0 if isinstance(dpi, str) else float(dpi)  # "figure": matplotlib's own figure.dpi


def _mapping(value: Any, where: str, key: str) -> Mapping[Any, Any]:
    """Return `value` if it is a mapping. Raises ConfigError if it is not."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {key}: got {value!r}; wanted a mapping, as in {{key: value}}")
    return value


def _instance(kind: type, node: Mapping[Any, Any], where: str) -> Any:
    """Return an object of a class from its options. Raises ConfigError, which names a bad key."""
    try:
        return make(kind, {str(key): value for key, value in node.items()}, where)
    except ConfigError as error:
        # the message then names a key in the same way at the top of the file and in a part of it
        message = str(error).replace(f"{where}.", f"{where}{'.' if ': ' in where else ': '}", 1)
        raise ConfigError(
            re.sub(r"did you mean \S+=(\S+)\?", r"did you mean \1?", message)
        ) from error


def _parse(key: str, value: Any, where: str) -> Any:
    """Return the value of a matplotlib setting, parsed by matplotlib. Raises ConfigError."""
    from matplotlib import RcParams, rcParamsDefault

    if key not in rcParamsDefault:
        close = difflib.get_close_matches(key, list(rcParamsDefault), n=3)
        hint = f": did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise ConfigError(f"{where}: no setting of matplotlib.rcParams is called {key!r}{hint}")
    try:
        parsed = dict(RcParams({key: value}).items())[key]
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"{where}.{key}: got {quote(value)}: {reason}") from error
    least, most = _find_bounds(key)
    for number in _list_numbers(parsed):
        if not least <= number <= most:  # nan is in no bounds
            raise ConfigError(
                f"{where}.{key}: got {quote(value)}; wanted numbers from {least:g} to {most:g}"
            )
    return parsed


def _find_bounds(key: str) -> tuple[float, float]:
    """Return the least and largest number of a setting; matplotlib itself would accept any.

    The last pattern in `BOUNDS` is empty, so that it fits every name.
    """
    return next(bounds for name, bounds in BOUNDS.items() if re.search(name, key))


def _list_numbers(value: Any) -> Iterator[float]:
    """Yield all numbers in a value, which may be a nested list."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _list_numbers(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _check_drawable(style: ReportStyle, where: str) -> None:
    """Refuse colours, markers and fonts that matplotlib does not know. Raises ConfigError."""
    from matplotlib.colors import is_color_like
    from matplotlib.lines import Line2D

    colors = {
        f"models.{name}.color": model_style.color for name, model_style in style.models.items()
    }
    colors |= {f"palette[{number}]": color for number, color in enumerate(style.palette)}
    for key, color in colors.items():
        if color is not None and not is_color_like(color):
            raise ConfigError(
                f'{where}: {key}: got {color!r}; wanted a colour, as in "#0072B2" or black (a # '
                "needs quotes)"
            )
    markers = [str(mark) for mark in Line2D.markers if isinstance(mark, str) and mark.strip()]
    for name, model_style in style.models.items():
        if model_style.marker is not None and model_style.marker not in markers:
            raise ConfigError(
                f"{where}: models.{name}.marker: got {model_style.marker!r}; wanted one of "
                f"{' '.join(markers)}"
            )
    _check_fonts(style.font.family, where)


def _check_fonts(families: list[str], where: str) -> None:
    """Raise ConfigError for a font that is not installed, with similar names."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager

    for family in families:
        try:
            findfont(FontProperties(family=[family]), fallback_to_default=False)
        except ValueError as error:
            installed = sorted({font.name for font in fontManager.ttflist})
            close = difflib.get_close_matches(family, installed, n=3, cutoff=0.4)
            hint = f" Similar names: {', '.join(close)}." if close else ""
            raise ConfigError(
                f"{where}: font.family: {family!r} is not installed.{hint} matplotlib brings "
                "DejaVu Sans, DejaVu Serif and STIXGeneral (Times) to every machine"
            ) from error


def _read_mplstyle(path: Path) -> tuple[ReportStyle, list[str]]:
    """Return the style in a .mplstyle file, and a sentence for each setting that is ignored."""
    settings, remarks = {}, []
    for number, line in enumerate(_file_text(path).splitlines(), 1):
        # This removes a comment, and keeps a # inside quotation marks.
        without_comment = re.sub(r"""((?:"[^"]*"|'[^']*'|[^#"'])*)#.*""", r"\1", line).strip()
        if not without_comment:
            continue
        key, colon, value = (part.strip() for part in without_comment.partition(":"))
        where = f"{path}, line {number}"
        if not colon:
            raise ConfigError(
                f"{where}: got {without_comment!r}; wanted KEY: VALUE, as in font.size: 8"
            )
        if key in HELD and key != "font.family":
            remarks.append(f"{where}: {key} is ignored: {HELD[key]}")
            continue
        settings[key] = _parse(key, value.strip("\"'") if value[:1] in "\"'" else value, where)
    family = settings.pop("font.family", None)
    size = float(settings.get("font.size", 10.0))
    sizes = {ours: _points(settings[key], size) for ours, key in FONTS.items() if key in settings}
    if "font.size" in settings:
        # Without sizes of their own, texts are as large as these parts of font.size.
        shares = {"title": 1.1, "panel_titles": 1.0, "labels": 1.0, "ticks": 0.9, "legend": 0.85}
        sizes = {ours: round(share * size, 2) for ours, share in shares.items()} | sizes
        sizes |= {"subtitle": round(0.85 * size, 2), "notes": round(0.8 * size, 2)}
    options: dict[str, Any] = {"font": {**({"family": list(family)} if family else {}), **sizes}}
    if "figure.figsize" in settings:
        options["width"], height = settings.pop("figure.figsize")
        remarks.append(
            f"{path}: the width of figure.figsize is used, {options['width']:g} inches; its height"
            f", {height:g}, is ignored, because the content of a figure decides its height"
        )
    colors = [entry.get("color") for entry in settings.get("axes.prop_cycle", ())]
    options["palette"] = [color for color in colors if color]
    if "font.serif" in settings or "font.sans-serif" in settings:
        options["font"]["family"] = _first_installed(family or ["sans-serif"], settings)
    style = style_of(
        options | {"matplotlib": {k: settings[k] for k in SIZED if k in settings}}, str(path)
    )
    return replace(style, matplotlib=settings), remarks


def _file_text(path: Path) -> str:
    """Return the text of a style file. Raises ConfigError if it is not UTF-8."""
    try:
        return read_bytes(path, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: got {error}; save the file as UTF-8") from error


def _points(size: Any, base: float) -> float:
    """Return a font size in points; a word such as `small` is relative to `base`."""
    from matplotlib.font_manager import font_scalings

    return float(size) if isinstance(size, int | float) else round(base * font_scalings[size], 2)


def _first_installed(families: list[str], settings: Mapping[str, Any]) -> list[str]:
    """Replace serif and sans-serif by the first font of their lists that is installed."""
    from matplotlib.font_manager import FontProperties, findfont

    def installed(family: str) -> bool:
        try:
            findfont(FontProperties(family=[family]), fallback_to_default=False)
        except ValueError:
            return False
        return True

    return [
        next((font for font in settings.get(f"font.{family}", ()) if installed(font)), family)
        for family in families
    ]
