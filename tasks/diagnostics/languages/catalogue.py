"""The names of the languages, and which ones the two forms of rows have."""

from collections.abc import Mapping
from enum import StrEnum, auto

from lra.tasks.diagnostics.languages.binary_numbers import BINARY_NUMBERS
from lra.tasks.diagnostics.languages.context_free import CONTEXT_FREE, SUMS_IN_BRACKETS
from lra.tasks.diagnostics.languages.language import FormalLanguage
from lra.tasks.diagnostics.languages.regular import REGULAR
from lra.tasks.diagnostics.languages.strings import STRINGS


class Language(StrEnum):
    """The formal language."""

    even_pairs = auto()
    parity = auto()
    modular = auto()
    cycle = auto()
    brackets = auto()
    equation = auto()
    stack = auto()
    reverse = auto()
    missing_duplicate = auto()
    duplicate = auto()
    odds_first = auto()
    addition = auto()
    multiplication = auto()
    sqrt = auto()
    bucket_sort = auto()


PLACES: Mapping[str, FormalLanguage] = REGULAR | CONTEXT_FREE | STRINGS | BINARY_NUMBERS
NEXT: Mapping[str, tuple[FormalLanguage, int]] = {
    "parity": (REGULAR["parity"], 1),
    "modular": (REGULAR["modular"], 2),
    "brackets": (SUMS_IN_BRACKETS, 3),
}
"""The languages of form=next, and how many tokens of a row are not the input."""
