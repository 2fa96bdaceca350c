"""The alphabet of DNA as stored numbers, and the reverse complement.

    0 A   1 C   2 G   3 T   4 N        with case=keep also  5 a   6 c   7 g   8 t   9 n

U, of RNA, is T. The codes of IUPAC for several possible bases (R, Y, …) become N and are counted.
All other letters, such as those of proteins, are refused.
"""

import logging
from enum import StrEnum, auto

import numpy as np
from jaxtyping import Integer, UInt8

from lra.tasks.errors import BadData

log = logging.getLogger(__name__)

LETTERS = "ACGTNacgtn"
BASES = 5
"""Number of letters of one case."""
UNKNOWN = 4
"""The number of N."""
AMBIGUOUS = b"RYSWKMBDHV"
COMPLEMENT = np.array([3, 2, 1, 0, 4, 8, 7, 6, 5, 9], np.uint8)
PLAIN = b"ACGTUN"


class LetterCase(StrEnum):
    """Treatment of lower case, by which genomes mark repeats (soft-masking)."""

    fold = auto()
    """Lower case counts as upper case."""
    keep = auto()
    """Letters of lower case have separate numbers."""


class BaseReader:
    """Turns letters into stored numbers, and counts the letters that become N.

    Args:
        case: Treatment of lower case.
    """

    def __init__(self, case: LetterCase) -> None:
        upper = np.full(256, UNKNOWN, np.uint8)
        for number, letter in enumerate(b"ACGT"):
            upper[letter] = number
        upper[ord("U")] = upper[ord("T")]
        for letter in range(ord("a"), ord("z") + 1):
            upper[letter] = upper[letter - 32] + BASES * (case is LetterCase.keep)
        self.table, self.replaced, self.read = upper.tobytes(), 0, 0

    def ids(self, letters: bytes, where: str) -> UInt8[np.ndarray, " l"]:
        """Return the number of each letter; `where` is the place of the sequence for messages.

        Raises:
            BadData: There are no letters, or one is no code of a nucleotide.
        """
        if not letters:
            raise BadData(
                f"{where}: the sequence is empty; wanted at least one base; restore the sequence, "
                "or remove it"
            )
        if other := letters.translate(None, PLAIN + PLAIN.lower()):
            if wrong := other.upper().translate(None, AMBIGUOUS):
                place = letters.upper().index(wrong[:1])
                raise BadData(
                    f"{where}: the letter at base {place + 1:,} is {chr(letters[place])!r}; wanted "
                    f"A, C, G, T, N or another of IUPAC's codes of nucleotides ({PLAIN.decode()}"
                    f"{AMBIGUOUS.decode()}); correct the sequence, or, for proteins, use "
                    "task=proteins"
                )
            self.replaced += len(other)
        self.read += len(letters)
        return np.frombuffer(letters.translate(self.table), np.uint8)

    def report(self, origin: str) -> str:
        """Return, and log, a sentence about the letters that became N; "" if there are none."""
        if not self.replaced:
            return ""
        said = (
            f"{self.replaced:,} of {self.read:,} letters are codes of several bases, such as R, "
            "and are read as N"
        )
        log.warning("%s: %s", origin, said)
        return said


def reverse_complement(ids: Integer[np.ndarray, " l"]) -> UInt8[np.ndarray, " l"]:
    """Return the other strand of a sequence, which is read in the opposite direction."""
    other: np.ndarray = COMPLEMENT[ids[::-1]]
    return other


def to_letters(ids: Integer[np.ndarray, " l"]) -> str:
    """Return stored numbers as letters."""
    return "".join(LETTERS[i] for i in ids.tolist())
