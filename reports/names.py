"""Make the printed name of a model from its family, its options and its labels.

`lra.reports.rows.prepare` stores the parts of a name as columns: `family` is the registered name,
`options` are the options in which runs of one family differ, and `departures` are words from
labels. Code that needs another name of the same model makes it from these columns.
"""

from collections.abc import Mapping, Sequence

from lra.runners.records import digest

FAITHFUL = "faithful"
"""The variant of the paper, which a name does not mention."""
UNTUNED, TUNED = "untuned", "tuned: "
"""Words in the name of a model after a hyperparameter search: UNTUNED marks training with the
options before the search, and TUNED precedes the names of the options that the search chose."""
LAYERS = " + "
"""Separates the families of a model with several kinds of layers."""
BEGINNINGS = ("mixer.", "backbone.", "processes.")
"""Beginnings of options' names that a model's name omits."""
_LONGEST, _LONGEST_VALUE = 160, 60
"""The most characters of all options together, and of one value, in a name."""
_ABBREVIATIONS = {"peak_learning_rate": "lr", "learning_rate": "lr"}
"""Short forms for the last part of an option's name, as papers write them."""


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
        options: the options that distinguish it from others of its family, by dotted name.
        departures: how it differs from the paper's model, for example its variant.
        further: words that one figure or table adds; they join the last brackets.
        in_words: whether options are printed as words, as in `performer (features 64)`.
    """
    brackets = []
    if options:
        words_of = short_option_words if in_words else option_words
        brackets.append(fit_value(", ".join(words_of(options)), _LONGEST))
    if departures:
        brackets.append(", ".join(departures))
    if further:
        brackets[-1:] = [", ".join([*brackets[-1:], *further])]
    return " ".join([family, *(f"({words})" for words in brackets)])


def option_words(options: Mapping[str, str], beginnings: Sequence[str] = BEGINNINGS) -> list[str]:
    """Return options as in `features=64`, with `beginnings` removed from their names."""
    return [f"{_without(name, beginnings)}={fit_value(v)}" for name, v in options.items()]


def short_option_words(options: Mapping[str, str]) -> list[str]:
    """Return options as the last part of the name and the value, as in `lr 0.003`."""
    return [f"{last_words(name)} {fit_value(value)}" for name, value in options.items()]


def last_words(name: str) -> str:
    """Return the last part of an option's dotted name in words: `state size` of `x.state_size`."""
    last = name.rpartition(".")[2]
    return _ABBREVIATIONS.get(last, last.replace("_", " "))


def _without(name: str, beginnings: Sequence[str]) -> str:
    """Return a name without each of `beginnings` that it starts with, in their order."""
    for beginning in beginnings:
        name = name.removeprefix(beginning)
    return name


def fit_value(value: str, longest: int = _LONGEST_VALUE) -> str:
    """Return a value as a name prints it: a long value is cut, and a hash keeps it unique."""
    if len(value) <= longest and value.isprintable():
        return value
    printable = "".join(letter if letter.isprintable() else "?" for letter in value[: longest - 12])
    return f"{printable}… {digest(value, digits=8)}"
