"""How a report may look: widths, fonts, models, parts of figures, tables.

Nothing here draws. `using` makes a style the one in force for a report; figures and tables ask
`chosen()` for it, and without any it is the default, in which everything looks as documented.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum, auto
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from lra.reports.names import LAYERS, TUNED, UNTUNED, display_name

if TYPE_CHECKING:
    import pandas as pd

COLUMN, FULL = 3.25, 6.75
"""Inches of one column and of a whole page, in the usual templates of conferences."""
NARROWEST, WIDEST = 2.0, 40.0
"""Inches of a figure."""
SMALLEST, LARGEST = 3.0, 60.0
"""Points of a letter."""
LONGEST_DASH = 100
AGAINST_LENGTH = ("scaling", "decode", "approximation")
"""Runners that measure one model at several lengths, of which a style may choose."""


class StyleError(ValueError):
    """A style that cannot be used; the message names the key and the way out."""


class Surrounding(StrEnum):
    """What may be kept out of a picture."""

    title = auto()  # type: ignore[assignment]  # a method of texts, which nobody calls here
    subtitle = auto()
    notes = auto()
    legend = auto()


class Format(StrEnum):
    """Files of a figure."""

    pdf = auto()
    svg = auto()
    png = auto()


class Captions(StrEnum):
    """Of a table."""

    long = auto()
    """Title and how to read the numbers; the list of tables has the title."""
    short = auto()
    """The title; a file next to the table says how to read the numbers."""


class Spread(StrEnum):
    """What stands behind a mean over seeds in a table."""

    long = auto()
    """The interval, and what it accounts for."""
    interval = auto()
    """The interval; the caption says what it accounts for."""
    deviation = auto()
    """± the standard deviation over seeds."""
    none = auto()


class Names(StrEnum):
    """Of models."""

    full = auto()
    """Options as they are typed, and every departure from the paper."""
    short = auto()
    """Options in words; what all runs of a model share is left out."""


class TableSpan(StrEnum):
    """What a table may be as wide as."""

    page = auto()
    """The text of a page with one column."""
    column = auto()
    """One of two columns."""
    full = auto()
    """Both columns: the environment `table*`."""


@dataclass(frozen=True, kw_only=True)
class Font:
    """Letters of figures. Sizes are in points; null: as every figure has it by default."""

    family: list[str] = field(default_factory=lambda: ["DejaVu Sans"])
    """The first one that is installed; letters that it lacks come from the next."""
    title: float | None = None
    subtitle: float | None = None
    panel_titles: float | None = None
    labels: float | None = None
    """Of the axes."""
    ticks: float | None = None
    legend: float | None = None
    """And direct labels."""
    notes: float | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that nobody reads, and no font at all."""
        if not self.family:
            raise ValueError("family: got []; wanted at least one font, as in [DejaVu Sans]")
        for name, size in vars(self).items():
            if name != "family" and size is not None and not SMALLEST <= size <= LARGEST:
                raise ValueError(
                    f"{name}: got {size}; wanted points from {SMALLEST:g} to {LARGEST:g}, or null"
                )


@dataclass(frozen=True, kw_only=True)
class ModelStyle:
    """How one model is named and drawn; null: as by default."""

    name: str | None = None
    color: str | None = None
    marker: str | None = None
    dashes: list[float] | None = None
    """Lengths of dashes and gaps in turn, in widths of the line; []: solid."""

    def __post_init__(self) -> None:
        """Refuse a name of nothing, and dashes without gaps."""
        if self.name is not None and not (self.name.strip() and self.name.isprintable()):
            raise ValueError(f"name: got {self.name!r}; wanted printable characters")
        if self.dashes and (
            len(self.dashes) % 2 or min(self.dashes) <= 0 or max(self.dashes) > LONGEST_DASH
        ):
            raise ValueError(
                f"dashes: got {self.dashes}; wanted dashes and gaps in turn, all above 0 and "
                f"at most {LONGEST_DASH}, as in [6, 2], or [] for a solid line"
            )


@dataclass(frozen=True, kw_only=True)
class TableStyle:
    """How tables are written for LaTeX."""

    width: TableSpan = TableSpan.page
    captions: Captions = Captions.long
    spread: Spread = Spread.long
    bold_best: bool = True
    """Whether the best number of a column is bold, and the second underlined."""
    label_prefix: str = "tab"
    """Of `\\label{tab:NAME}`, NAME being the name of the file; empty: no label."""

    def __post_init__(self) -> None:
        """Refuse a prefix that LaTeX would read as something else."""
        if not all(letter.isascii() and (letter.isalnum() or letter in "-._") for letter in
                   self.label_prefix):  # fmt: skip
            raise ValueError(
                f"label_prefix: got {self.label_prefix!r}; wanted letters, digits and -._"
            )


@dataclass(frozen=True, kw_only=True)
class ReportStyle:
    """Everything that a style file may say. The defaults are the usual look."""

    width: str | float | None = None
    """Of every figure: column, full, or inches; null: as wide as its plots ask for."""
    aspect: float | None = None
    """Height of a plot over its width; null: that of each figure."""
    font: Font = field(default_factory=Font)
    beside: list[Surrounding] = field(default_factory=list)
    """Parts that stay out of the picture: title, subtitle, notes, legend."""
    direct_labels: bool = False
    """Whether lines are named at their ends instead of in a legend."""
    legend_entries: int = 7
    """The most models that a legend names: of more, the last are light grey, "N others"."""
    exponents: bool = True
    """Whether the fitted exponent of length stands behind a name in figures of cost."""
    formats: list[Format] = field(default_factory=lambda: [*Format])
    palette: list[str] = field(default_factory=list)
    """Colours of models without one in `models`; empty: the usual ones."""
    models: dict[str, ModelStyle] = field(default_factory=dict)
    """By name: a family's, or the whole name as figures and tables print it."""
    order: list[str] = field(default_factory=list)
    """Names of models that come first in legends and tables; the others follow."""
    highlight: list[str] | None = None
    """Names of the models that come before all others, drawn strongly; the others are then pale.
    null: families that do not come with lra."""
    names: Names = Names.full
    """Of models without one in `models`."""
    only: list[str] = field(default_factory=list)
    """Names of the models that are shown; empty: all. Baselines stay."""
    lengths: list[int] = field(default_factory=list)
    """Lengths that are shown of what is measured at several; empty: all."""
    good_score: float | None = None
    """The validation score from which a trial of a search is good, in the metric as stored; to be
    set before the search. null: those near the best are, and their share has no interval."""
    near_best: float | None = None
    """How far from an arm's best a trial of a search may lie to count as near it, in the metric as
    stored; null: 0.05 of shares of right answers, 0.1 of losses, a tenth of perplexities."""
    tables: TableStyle = field(default_factory=TableStyle)
    matplotlib: dict[str, Any] = field(default_factory=dict)
    """Further settings of matplotlib, as in a matplotlibrc."""

    def __post_init__(self) -> None:
        """Refuse what no figure can be."""
        self.inches()
        if self.aspect is not None and not 0.1 <= self.aspect <= 5:
            raise ValueError(f"aspect: got {self.aspect}; wanted 0.1 to 5, or null")
        if not self.formats:
            raise ValueError(f"formats: got []; wanted some of {', '.join(Format)}")
        if self.near_best is not None and not self.near_best > 0:
            raise ValueError(f"near_best: got {self.near_best}; wanted a number above 0, or null")
        if self.legend_entries < 2:
            raise ValueError(f"legend_entries: got {self.legend_entries}; wanted 2 or more")
        if wrong := [n for n in self.lengths if n < 1]:
            raise ValueError(f"lengths: got {wrong[0]}; wanted whole numbers above 0")
        for key in ("beside", "formats", "order", "highlight", "only", "lengths"):
            values = getattr(self, key) or []
            if twice := [v for v in values if values.count(v) > 1]:
                raise ValueError(f"{key}: {twice[0]} occurs twice; give it once")
        names = [model.name for model in self.models.values() if model.name]
        if twice := [name for name in names if names.count(name) > 1]:
            keys = [key for key, model in self.models.items() if model.name == twice[0]]
            raise ValueError(f"models: {' and '.join(keys)} have one name, {twice[0]!r}")

    def inches(self) -> float | None:
        """Return the width of every figure; None where they differ."""
        named = {"column": COLUMN, "full": FULL}
        if self.width is None or self.width in named:
            return None if self.width is None else named[str(self.width)]
        if isinstance(self.width, str) or not NARROWEST <= self.width <= WIDEST:
            raise ValueError(
                f"width: got {self.width!r}; wanted column ({COLUMN} inches), full ({FULL}), or "
                f"inches from {NARROWEST:g} to {WIDEST:g}"
            )
        return float(self.width)


DEFAULT = ReportStyle()


@cache
def shipped_families() -> frozenset[str]:
    """Return the families that come with lra."""
    files = (resources.files("lra.conf") / "model").iterdir()
    return frozenset(file.name.removesuffix(".yaml") for file in files)


class StyleInForce:
    """A style in force, and what it has named so far."""

    def __init__(self, style: ReportStyle) -> None:
        self.style = style
        self._plain: dict[str, tuple[str, str]] = {}
        """By the printed name: the name without the style, and the family."""
        self._short: dict[str, str] = {}
        """By the name without the style."""
        self._led: dict[str, bool] = {}
        """Whether the options of a training that a search led to are the chosen ones, by name."""

    def family_name(self, family: str) -> str:
        """Return what a family is called."""
        model_style = self.style.models.get(family)
        return model_style.name if model_style and model_style.name else family

    def _departures(self, words: Sequence[str]) -> list[str]:
        """Return what stands behind a name, with layers as their families are called."""
        return [
            LAYERS.join(map(self.family_name, each.split(LAYERS))) if LAYERS in each else each
            for each in words
        ]

    def name(
        self,
        family: str,
        options: Mapping[str, str],
        departures: Sequence[str] = (),
        further: Sequence[str] = (),
    ) -> str:
        """Return a model's name as `lra.reports.names.display_name` does, in the style's words.

        Raises:
            StyleError: the style gives two models one name.
        """
        plain = display_name(family, options, departures, further)
        look = self.style.models.get(plain)
        short = self.style.names is Names.short
        if look and look.name:
            printed = look.name
        elif plain in self._short:
            printed = self._short[plain]
        elif short or self.style.models:
            name, words = self.family_name(family), self._departures(departures)
            printed = display_name(name, options, words, further, in_words=short)
        else:
            printed = plain
        if led := [word for word in departures if word == UNTUNED or word.startswith(TUNED)]:
            self._led[printed] = led != [UNTUNED]
        before, _ = self._plain.setdefault(printed, (plain, family))
        if before != plain and not short:
            raise StyleError(
                f"models: {before!r} and {plain!r} would both be called {printed!r}: give one of "
                "them another name"
            )
        return printed

    def shorten(self, models: Iterable[tuple[str, Mapping[str, str], Sequence[str]]]) -> None:
        """Choose the shortest names that tell models from each other, where the style wants these.

        Args:
            models: family, options and departures of each that a report is about.
        """
        if self.style.names is not Names.short:
            return
        every = {display_name(*model): model for model in models}
        departures: dict[str, set[tuple[str, ...]]] = {}
        for family, options, words in every.values():
            departures.setdefault(display_name(family, options), set()).add((*words,))
        short = {}
        for plain, (family, options, words) in every.items():
            alone = len(departures[display_name(family, options)]) == 1
            kept = () if alone else self._departures(words)
            short[plain] = display_name(self.family_name(family), options, kept, in_words=True)
        uses = Counter(short.values())
        for plain, model in every.items():
            alone = uses[short[plain]] == 1
            full = display_name(self.family_name(model[0]), model[1], self._departures(model[2]))
            self._short[plain] = short[plain] if alone else full

    def plain(self, printed: str) -> str:
        """Return a model's name as it is without the style."""
        return self._keys(printed)[0]

    def led_to(self, printed: str) -> tuple[str, bool] | None:
        """Return the family of a training that a search led to, and whether it has chosen options.

        None of any other model.
        """
        return (self._keys(printed)[1], self._led[printed]) if printed in self._led else None

    def _keys(self, printed: str) -> tuple[str, str]:
        """Return what a style may call a model: its whole name, and its family's."""
        return self._plain.get(printed, (printed, printed))

    def highlighted(self, printed: str) -> bool:
        """Return whether a model is one of those that stand out: by default, the user's."""
        if printed not in self._plain:  # a baseline, or no model at all
            return False
        if self.style.highlight is None:
            return self._keys(printed)[1] not in shipped_families()
        return bool({*self._keys(printed), printed} & {*self.style.highlight})

    def rank(self, printed: str) -> int:
        """Return a model's place in `order`; of the rest, highlighted ones come first."""
        order = self.style.order
        places = (order.index(key) for key in (*self._keys(printed), printed) if key in order)
        return next(places, len(order) + (not self.highlighted(printed)))

    def look(self, printed: str) -> ModelStyle:
        """Return how a model is drawn: what its whole name says, then what its family says."""
        candidates = [self.style.models.get(key) for key in self._keys(printed)]
        styles = [look for look in candidates if look is not None]
        first = {
            key: next((v for look in styles if (v := getattr(look, key)) is not None), None)
            for key in ("color", "marker", "dashes")
        }
        return ModelStyle(**first)

    def select(self, frame: "pd.DataFrame") -> "tuple[pd.DataFrame, list[str]]":
        """Return the rows that the style shows, and sentences about the others.

        Args:
            frame: as `lra.reports.rows.prepare` returns it.

        Raises:
            StyleError: nothing is left.
        """
        style, notes = self.style, []
        models = frame["baseline"] == ""
        names = [str(name) for name in frame["name"][models].unique()]
        keys = {key for name in names for key in (*self._keys(name), name)}
        if style.only:
            kept = {n for n in names if {*self._keys(n), n} & {*style.only}}
            if not kept:
                raise StyleError(
                    f"only: got {', '.join(style.only)}; none of them is among the rows, which are "
                    f"of {', '.join(names)}{_meant(style.only[0], keys)}"
                )
            if gone := len(names) - len(kept):
                notes.append(f"style: {gone} of {len(names)} models are not shown")
            frame = frame[~models | frame["name"].isin(kept)]
        if style.lengths:
            measured = frame["runner"].isin(AGAINST_LENGTH) & frame["length"].notna()
            lengths = sorted({int(n) for n in frame["length"][measured]})
            if lengths and not {*lengths} & {*style.lengths}:
                raise StyleError(
                    f"lengths: got {', '.join(map(str, style.lengths))}; none of them was "
                    f"measured, but {', '.join(map(str, lengths))}"
                )
            frame = frame[~measured | frame["length"].isin(style.lengths)]
            if left := [n for n in lengths if n not in style.lengths]:
                notes.append(f"style: lengths {', '.join(map(str, left))} are not shown")
        named = dict.fromkeys([*style.only, *style.order, *(style.highlight or []), *style.models])
        notes += [
            f"style: no model {key!r} is among the rows{_meant(key, keys)}"
            for key in named
            if key not in keys
        ]
        return frame.reset_index(drop=True), notes


def _meant(name: str, names: Iterable[str]) -> str:
    """Say which names of models one may have been meant for; "" for a family that lra has."""
    near = [] if name in shipped_families() else get_close_matches(name, names, n=2)
    return f": did you mean {' or '.join(map(repr, near))}?" if near else ""


_IN_FORCE: ContextVar[StyleInForce | None] = ContextVar("style", default=None)


def current_style() -> StyleInForce:
    """Return the style in force."""
    return _IN_FORCE.get() or StyleInForce(DEFAULT)


@contextmanager
def using(style: ReportStyle) -> Iterator[StyleInForce]:
    """Put a style in force, for this thread."""
    current_style = StyleInForce(style)
    token = _IN_FORCE.set(current_style)
    try:
        yield current_style
    finally:
        _IN_FORCE.reset(token)
