"""The style of a report: widths, fonts, names and colours of models, parts of figures, tables.

`using` puts a style in force while a report is written. Figures and tables read it with
`current_style()`, which returns the default style if none is in force.
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
"""Width in inches of one column and of a whole page, in the usual templates of conferences."""
NARROWEST, WIDEST = 2.0, 40.0
"""Limits of the width of a figure in inches."""
SMALLEST, LARGEST = 3.0, 60.0
"""Limits of the size of letters in points."""
LONGEST_DASH = 100
AGAINST_LENGTH = ("scaling", "decode", "approximation")
"""Runners that measure a model at several lengths, from which a style may choose some."""


class StyleError(ValueError):
    """A style that cannot be used; the message names the key and says how to mend it."""


class Surrounding(StrEnum):
    """Parts of a figure that a style can omit."""

    title = auto()  # type: ignore[assignment]  # a method of texts, which nobody calls here
    subtitle = auto()
    notes = auto()
    legend = auto()


class Format(StrEnum):
    """File formats of a figure."""

    pdf = auto()
    svg = auto()
    png = auto()


class Captions(StrEnum):
    """How long the caption of a table is."""

    long = auto()
    """The caption has the title and explains the numbers; the list of tables has the title."""
    short = auto()
    """The caption is the title; a file next to the table explains the numbers."""


class Spread(StrEnum):
    """What a table prints after a mean over seeds."""

    long = auto()
    """The table prints the interval, and what it accounts for."""
    interval = auto()
    """The table prints the interval; the caption says what it accounts for."""
    deviation = auto()
    """The table prints ± and the standard deviation over seeds."""
    none = auto()


class Names(StrEnum):
    """How long the names of models are."""

    full = auto()
    """A name has options as they are typed, and every difference from the paper."""
    short = auto()
    """A name has options in words, and omits what all runs of the model share."""


class TableSpan(StrEnum):
    """The width of a table."""

    page = auto()
    """The table is as wide as the text of a page with one column."""
    column = auto()
    """The table is as wide as one of two columns."""
    full = auto()
    """The table spans both columns, in the environment `table*`."""


@dataclass(frozen=True, kw_only=True)
class Font:
    """Fonts and sizes of letters in figures. Sizes are in points; null is the default size."""

    family: list[str] = field(default_factory=lambda: ["DejaVu Sans"])
    """Figures use the first font that is installed, and the next ones for letters that it lacks."""
    title: float | None = None
    subtitle: float | None = None
    panel_titles: float | None = None
    labels: float | None = None
    """The size of the labels of axes."""
    ticks: float | None = None
    legend: float | None = None
    """The size of the names in legends and at the ends of lines."""
    notes: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for an empty list of fonts and for sizes outside the limits."""
        if not self.family:
            raise ValueError(
                "family: got []; wanted the name of at least one font, for example [DejaVu Sans]"
            )
        for name, size in vars(self).items():
            if name != "family" and size is not None and not SMALLEST <= size <= LARGEST:
                raise ValueError(
                    f"{name}: got {size}; wanted a size from {SMALLEST:g} to {LARGEST:g} points, "
                    "or null for the default"
                )


@dataclass(frozen=True, kw_only=True)
class ModelStyle:
    """How one model is named and drawn; null is the default."""

    name: str | None = None
    color: str | None = None
    marker: str | None = None
    dashes: list[float] | None = None
    """Lengths of dashes and gaps, alternately, in widths of the line; [] is a solid line."""

    def __post_init__(self) -> None:
        """Raise ValueError for a name without printable letters and for dashes without gaps."""
        if self.name is not None and not (self.name.strip() and self.name.isprintable()):
            raise ValueError(
                f"name: got {self.name!r}; wanted a name of printable characters, not only blanks"
            )
        if self.dashes and (
            len(self.dashes) % 2 or min(self.dashes) <= 0 or max(self.dashes) > LONGEST_DASH
        ):
            raise ValueError(
                f"dashes: got {self.dashes}; wanted lengths of dashes and gaps, alternately, all "
                f"above 0 and at most {LONGEST_DASH}, as in [6, 2], or [] for a solid line"
            )


@dataclass(frozen=True, kw_only=True)
class TableStyle:
    """How LaTeX tables look."""

    width: TableSpan = TableSpan.page
    captions: Captions = Captions.long
    spread: Spread = Spread.long
    bold_best: bool = True
    """Whether the best number of a column is bold, and the second underlined."""
    label_prefix: str = "tab"
    """The part before the colon in `\\label{tab:NAME}`; NAME is the name of the file. A table with
    an empty prefix has no label."""

    def __post_init__(self) -> None:
        """Raise ValueError for a prefix with characters that LaTeX gives another meaning."""
        if not all(letter.isascii() and (letter.isalnum() or letter in "-._") for letter in
                   self.label_prefix):  # fmt: skip
            raise ValueError(
                f"label_prefix: got {self.label_prefix!r}; wanted ASCII letters, digits and the "
                "characters - . _"
            )


@dataclass(frozen=True, kw_only=True)
class ReportStyle:
    """All settings of a style file. The defaults give the usual look of a report."""

    width: str | float | None = None
    """The width of every figure: column, full, or inches. null: each figure fits its plots."""
    aspect: float | None = None
    """The height of a plot divided by its width; null: each figure uses its default."""
    font: Font = field(default_factory=Font)
    beside: list[Surrounding] = field(default_factory=list)
    """The parts that figures omit: title, subtitle, notes, legend."""
    direct_labels: bool = False
    """Whether lines are named at their ends instead of in a legend."""
    legend_entries: int = 7
    """The most models that a legend names. Further models are light grey, as "N others"."""
    exponents: bool = True
    """Whether figures of cost print the fitted exponent of length after the name of a model."""
    formats: list[Format] = field(default_factory=lambda: [*Format])
    palette: list[str] = field(default_factory=list)
    """Colours of models without a colour in `models`; if it is empty, the usual colours."""
    models: dict[str, ModelStyle] = field(default_factory=dict)
    """Styles of models. A key is a family, or the whole name as figures and tables print it."""
    order: list[str] = field(default_factory=list)
    """Names of models that come first in legends and tables; the others follow."""
    highlight: list[str] | None = None
    """Names of models that are drawn strongly and listed before all others, which become pale.
    null: families that do not come with lra."""
    names: Names = Names.full
    """How models without a name in `models` are named."""
    only: list[str] = field(default_factory=list)
    """Names of the models that are shown; if it is empty, all. Baselines are always shown."""
    lengths: list[int] = field(default_factory=list)
    """The lengths that are shown of measurements at several lengths; if it is empty, all."""
    good_score: float | None = None
    """A trial of a search is good from this validation score on, in the metric as stored. Set it
    before the search. null: trials near the best are good, and their percentage has no interval."""
    near_best: float | None = None
    """The largest distance of a trial from a model's best trial that counts as near, in the metric
    as stored. null: 0.05 for accuracies, 0.1 for losses, a tenth for perplexities."""
    tables: TableStyle = field(default_factory=TableStyle)
    matplotlib: dict[str, Any] = field(default_factory=dict)
    """Further settings of matplotlib, as in a matplotlibrc."""

    def __post_init__(self) -> None:
        """Raise ValueError for settings that no figure can have."""
        self.inches()
        if self.aspect is not None and not 0.1 <= self.aspect <= 5:
            raise ValueError(
                f"aspect: got {self.aspect}; wanted a ratio from 0.1 to 5, or null for the default"
            )
        if not self.formats:
            raise ValueError(f"formats: got []; wanted at least one of {', '.join(Format)}")
        if self.near_best is not None and not self.near_best > 0:
            raise ValueError(
                f"near_best: got {self.near_best}; wanted a number above 0, or null for the default"
            )
        if self.legend_entries < 2:
            raise ValueError(
                f"legend_entries: got {self.legend_entries}; wanted at least 2 models in a legend"
            )
        if wrong := [n for n in self.lengths if n < 1]:
            raise ValueError(f"lengths: got {wrong[0]}; wanted lengths of at least 1 token")
        for key in ("beside", "formats", "order", "highlight", "only", "lengths"):
            values = getattr(self, key) or []
            if twice := [v for v in values if values.count(v) > 1]:
                raise ValueError(f"{key}: {twice[0]} occurs twice in the list; name it once")
        names = [model.name for model in self.models.values() if model.name]
        if twice := [name for name in names if names.count(name) > 1]:
            keys = [key for key, model in self.models.items() if model.name == twice[0]]
            raise ValueError(
                f"models: {' and '.join(keys)} have the same name {twice[0]!r}; give each model "
                "another name"
            )

    def inches(self) -> float | None:
        """Return the width of every figure in inches; None if each figure fits its plots."""
        named_widths = {"column": COLUMN, "full": FULL}
        if self.width is None or self.width in named_widths:
            return None if self.width is None else named_widths[str(self.width)]
        if isinstance(self.width, str) or not NARROWEST <= self.width <= WIDEST:
            raise ValueError(
                f"width: got {self.width!r}; wanted column ({COLUMN} inches), full ({FULL} "
                f"inches), or a number of inches from {NARROWEST:g} to {WIDEST:g}"
            )
        return float(self.width)


DEFAULT = ReportStyle()


@cache
def shipped_families() -> frozenset[str]:
    """Return the names of the families, and of the patterns of layers, that come with lra."""
    folders = (resources.files("lra.conf") / group for group in ("model", "pattern"))
    return frozenset(f.name.removesuffix(".yaml") for folder in folders for f in folder.iterdir())


class StyleInForce:
    """A style in force, and the names of models that it has printed so far."""

    def __init__(self, style: ReportStyle) -> None:
        self.style = style
        self._plain: dict[str, tuple[str, str]] = {}
        """The name without the style, and the family, by printed name."""
        self._short: dict[str, str] = {}
        """The short printed name, by the name without the style."""
        self._tuned: dict[str, bool] = {}
        """Names of models from a search: True if trained with the options that the search chose,
        False if trained with those from before the search."""

    def family_name(self, family: str) -> str:
        """Return the name that the style gives a family, or its registered name."""
        model_style = self.style.models.get(family)
        return model_style.name if model_style and model_style.name else family

    def _styled_departures(self, words: Sequence[str]) -> list[str]:
        """Return `words`, with the style's names of families in a list of layers (`a + b`)."""
        return [
            LAYERS.join(map(self.family_name, word.split(LAYERS))) if LAYERS in word else word
            for word in words
        ]

    def name(
        self,
        family: str,
        options: Mapping[str, str],
        departures: Sequence[str] = (),
        further: Sequence[str] = (),
    ) -> str:
        """Return the printed name of a model in this style, and remember it.

        The arguments are those of `lra.reports.names.display_name`.

        Raises:
            StyleError: the style gives two models the same name.
        """
        plain = display_name(family, options, departures, further)
        model_style = self.style.models.get(plain)
        short = self.style.names is Names.short
        if model_style and model_style.name:
            printed = model_style.name
        elif plain in self._short:
            printed = self._short[plain]
        elif short or self.style.models:
            name, words = self.family_name(family), self._styled_departures(departures)
            printed = display_name(name, options, words, further, in_words=short)
        else:
            printed = plain
        if tuning := [word for word in departures if word == UNTUNED or word.startswith(TUNED)]:
            self._tuned[printed] = tuning != [UNTUNED]
        earlier, _ = self._plain.setdefault(printed, (plain, family))
        if earlier != plain and not short:
            raise StyleError(
                f"models: the style names both {earlier!r} and {plain!r} as {printed!r}; give one "
                "of them another name"
            )
        return printed

    def shorten(self, models: Iterable[tuple[str, Mapping[str, str], Sequence[str]]]) -> None:
        """Choose the shortest distinct names of models, if the style asks for short names.

        Args:
            models: (family, options, departures) of each model of the report.
        """
        if self.style.names is not Names.short:
            return
        by_name = {display_name(*model): model for model in models}
        departures: dict[str, set[tuple[str, ...]]] = {}
        for family, options, words in by_name.values():
            departures.setdefault(display_name(family, options), set()).add((*words,))
        short = {}
        for plain, (family, options, words) in by_name.items():
            unique = len(departures[display_name(family, options)]) == 1
            shown_words = () if unique else self._styled_departures(words)
            name = self.family_name(family)
            short[plain] = display_name(name, options, shown_words, in_words=True)
        uses = Counter(short.values())
        for plain, (family, options, words) in by_name.items():
            styled_words = self._styled_departures(words)
            full = display_name(self.family_name(family), options, styled_words)
            self._short[plain] = short[plain] if uses[short[plain]] == 1 else full

    def plain(self, printed: str) -> str:
        """Return the name that a model with this printed name has without the style."""
        return self._keys(printed)[0]

    def led_to(self, printed: str) -> tuple[str, bool] | None:
        """Return the family of a model from a hyperparameter search, and whether it was tuned.

        It was tuned if it has the options that the search chose, and untuned if it has the options
        from before the search. Return None for a model without a search.
        """
        _, family = self._keys(printed)
        return (family, self._tuned[printed]) if printed in self._tuned else None

    def _keys(self, printed: str) -> tuple[str, str]:
        """Return the two keys of a model in a style file: its whole name, and its family."""
        return self._plain.get(printed, (printed, printed))

    def highlighted(self, printed: str) -> bool:
        """Return whether a model is drawn strongly: by default, if its family is the user's."""
        if printed not in self._plain:  # a baseline, or no model at all
            return False
        if self.style.highlight is None:
            return self._keys(printed)[1] not in shipped_families()
        return bool({*self._keys(printed), printed} & {*self.style.highlight})

    def rank(self, printed: str) -> int:
        """Return a model's index in `order`; other models follow, highlighted ones first."""
        order = self.style.order
        indices = (order.index(key) for key in (*self._keys(printed), printed) if key in order)
        return next(indices, len(order) + (not self.highlighted(printed)))

    def look(self, printed: str) -> ModelStyle:
        """Return how a model is drawn. The style of its whole name precedes that of its family."""
        candidates = [self.style.models.get(key) for key in self._keys(printed)]
        styles = [style for style in candidates if style is not None]
        settings = {
            key: next((v for style in styles if (v := getattr(style, key)) is not None), None)
            for key in ("color", "marker", "dashes")
        }
        return ModelStyle(**settings)

    def select(self, frame: "pd.DataFrame") -> "tuple[pd.DataFrame, list[str]]":
        """Return the rows that the style shows, and notes about what it hides.

        Args:
            frame: rows as `lra.reports.rows.prepare` returns them.

        Raises:
            StyleError: the style shows no model or no length of these rows.
        """
        style, notes = self.style, []
        models = frame["baseline"] == ""
        names = [str(name) for name in frame["name"][models].unique()]
        keys = {key for name in names for key in (*self._keys(name), name)}
        if style.only:
            shown = {n for n in names if {*self._keys(n), n} & {*style.only}}
            if not shown:
                raise StyleError(
                    f"only: got {', '.join(style.only)}; the rows have none of these models, but "
                    f"they have {', '.join(names)}{_suggest(style.only[0], keys)}"
                )
            if hidden := len(names) - len(shown):
                notes.append(f"the style hides {hidden} of {len(names)} models")
            frame = frame[~models | frame["name"].isin(shown)]
        if style.lengths:
            measured = frame["runner"].isin(AGAINST_LENGTH) & frame["length"].notna()
            lengths = sorted({int(n) for n in frame["length"][measured]})
            if lengths and not {*lengths} & {*style.lengths}:
                raise StyleError(
                    f"lengths: got {', '.join(map(str, style.lengths))}; none of these lengths was "
                    f"measured; the rows have lengths {', '.join(map(str, lengths))}"
                )
            frame = frame[~measured | frame["length"].isin(style.lengths)]
            if omitted := [n for n in lengths if n not in style.lengths]:
                notes.append(f"the style hides the lengths {', '.join(map(str, omitted))}")
        keys_of_style = [*style.only, *style.order, *(style.highlight or []), *style.models]
        notes += [
            f"the style names the model {key!r}, which has no rows here{_suggest(key, keys)}"
            for key in dict.fromkeys(keys_of_style)
            if key not in keys
        ]
        return frame.reset_index(drop=True), notes


def _suggest(name: str, names: Iterable[str]) -> str:
    """Return ": did you mean ...?" with similar names; "" if lra has a family of this name."""
    similar = [] if name in shipped_families() else get_close_matches(name, names, n=2)
    return f": did you mean {' or '.join(map(repr, similar))}?" if similar else ""


_IN_FORCE: ContextVar[StyleInForce | None] = ContextVar("style", default=None)


def current_style() -> StyleInForce:
    """Return the style in force; without one, the default style."""
    return _IN_FORCE.get() or StyleInForce(DEFAULT)


@contextmanager
def using(style: ReportStyle) -> Iterator[StyleInForce]:
    """Put a style in force for the `with` block, in this thread."""
    in_force = StyleInForce(style)
    token = _IN_FORCE.set(in_force)
    try:
        yield in_force
    finally:
        _IN_FORCE.reset(token)
