"""What a model is called: put together from columns here, and parsed nowhere.

`lra.reports.rows.prepare` keeps the parts as columns: `family`, the registered name; `options`,
those by which runs of one family differ; `departures`, what labels say in addition. Who wants
another name of the same model makes it from these.
"""

from collections.abc import Mapping, Sequence

from lra.runners.records import digest

FAITHFUL = "faithful"
"""The variant that needs no mention: the paper's."""
UNTUNED, TUNED = "untuned", "tuned: "
"""Stands behind the name of a model trained with the options that a search began from; begins what
stands behind one trained with those that it chose."""
LAYERS = " + "
"""Between the families of a model's layers."""
BEGINNINGS = ("mixer.", "backbone.", "processes.")
"""Of the names of options; display names leave them out."""
_LONGEST, _LONGEST_VALUE = 160, 60
"""Characters of all options, and of the value of one."""
_ABBREVIATIONS = {"peak_learning_rate": "lr", "learning_rate": "lr"}
"""Of the last parts of options' names, as papers write them."""


def display_name(
    family: str,
    options: Mapping[str, str],
    departures: Sequence[str] = (),
    further: Sequence[str] = (),
    *,
    in_words: bool = False,
) -> str:
    """Return a model's name, as in `performer (features=64) (lra)`.

    Args:
        family: its registered name.
        options: those that tell it from others of its family, by dotted name.
        departures: its variant, where that is not the paper's, and the like.
        further: words of one figure or table; they stand in the last brackets.
        in_words: whether options are words, as in `performer (features 64)`.
    """
    brackets = []
    if options:
        words_of = short_option_words if in_words else option_words
        brackets.append(fit_value(", ".join(words_of(options)), _LONGEST))
    if departures:
        brackets.append(", ".join(departures))
    if further:
        brackets.append(", ".join([*brackets[-1:], *further]))
        del brackets[-2:-1]
    return " ".join([family, *(f"({words})" for words in brackets)])


def option_words(options: Mapping[str, str], beginnings: Sequence[str] = BEGINNINGS) -> list[str]:
    """Return options as words, `features=64`, their names without any of `beginnings`."""
    return [f"{_without(name, beginnings)}={fit_value(v)}" for name, v in options.items()]


def short_option_words(options: Mapping[str, str]) -> list[str]:
    """Return options by the last parts of their names, as in `lr 0.003`."""
    return [f"{last_words(name)} {fit_value(value)}" for name, value in options.items()]


def last_words(name: str) -> str:
    """Return the last part of an option's name in words."""
    last = name.rpartition(".")[2]
    return _ABBREVIATIONS.get(last, last.replace("_", " "))


def _without(name: str, beginnings: Sequence[str]) -> str:
    for beginning in beginnings:
        name = name.removeprefix(beginning)
    return name


def fit_value(value: str, longest: int = _LONGEST_VALUE) -> str:
    """Return a value that fits a name; what does not is cut, and a hash keeps it unique."""
    if len(value) <= longest and value.isprintable():
        return value
    printable = "".join(letter if letter.isprintable() else "?" for letter in value[: longest - 12])
    return f"{printable}… {digest(value, digits=8)}"
