"""Selective copying as MAD draws it (Poli et al., arXiv:2403.17844).

    3 . . 1 . 3 2 | . . . .      symbols behind blanks, the copy token, then a blank for each symbol
                    3 1 3 2      the answers are the symbols, in order

Unlike in Mamba's form, each blank stands before a random symbol, so the last symbol is always next
to the copy token, and one token asks for all symbols.
"""

from dataclasses import dataclass
from typing import ClassVar

from lra.conf.choices import by_name
from lra.tasks.diagnostics.selective_copy import Mark, Placement, SelectiveCopy


@by_name
@dataclass(kw_only=True, eq=False)
class MadCopy(SelectiveCopy):
    """Copy the symbols of a row in order, without the blanks before them."""

    name: ClassVar[str] = "mad_copy"
    scores: ClassVar[frozenset[str]] = frozenset({"macro_accuracy"})

    length: int = 256
    placement: Placement = Placement.gaps
    mark: Mark = Mark.once
    train_examples: int = 12_800
    validation_examples: int = 1280
    test_examples: int = 1280
