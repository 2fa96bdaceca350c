"""Protein sequences from FASTA files, plain or compressed (.gz, .xz, .bz2), one record at a time.

    >sp|P12345|NAME description        the accession is P12345; without "|" it is the first word
    MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ
    APILSRVGDGTQDNLSGAEKAVQVKVKALPDAQ*

Lower case counts as upper case. Line ends, blank lines and a `*` at the end (the stop) are removed.
B, O, U, X and Z stay; J (leucine or isoleucine) has no id and becomes X (unknown). Records without
residues are skipped with a warning. Any other character raises an error, and so does a last line
without a line end, because the record may be truncated.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lra.conf.short_values import short
from lra.tasks.data.archives import PACKED
from lra.tasks.data.fasta import fasta_records
from lra.tasks.errors import BadData
from lra.tasks.proteins.alphabet import LETTERS

log = logging.getLogger(__name__)

ENDINGS = tuple(
    name + packed for name in (".fasta", ".fa", ".faa", ".fas", ".fsa") for packed in PACKED
)
"""Endings of FASTA files."""
HINTS = {
    "-": "remove the gaps, which only alignments have",
    ".": "remove the gaps, which only alignments have",
    "*": "a stop ends a sequence: cut the record at this residue, or remove the record",
}


class ProteinRecord(NamedTuple):
    """One sequence."""

    accession: str
    letters: bytes
    """Codes of the residues in upper case, at least one."""


class Cleaning:
    """Turns texts into residues, and counts replaced letters and skipped records.

    Args:
        origin: Source of the texts, for messages.
    """

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.ambiguous = self.empty = 0
        self.first_empty = ""

    def letters(self, text: str, number: int, name: str) -> bytes:
        """Return the residues of a record's `text`; b"" if there are none.

        The record's `number` and `name` are for messages.

        Raises:
            BadData: A character is no code of a residue.
        """
        letters = text.encode("ascii", "replace").upper().rstrip(b"*")
        if b"J" in letters:
            self.ambiguous += letters.count(b"J")
            letters = letters.replace(b"J", b"X")
        if letters.translate(None, LETTERS):
            raise self._wrong_letter(text, number, name)
        if not letters:
            self.first_empty = self.first_empty or self._where(number, name)
            self.empty += 1
        return letters

    def _where(self, number: int, name: str) -> str:
        """Return the place of a record in messages."""
        return f"record {number:,} ({short(name) or 'without a name'})"

    def _wrong_letter(self, text: str, number: int, name: str) -> BadData:
        """Return the error for the first character of a record that is no residue."""
        wanted = LETTERS.decode() + "J"
        letters = wanted + wanted.lower()
        residue, letter = next(
            (i, c) for i, c in enumerate(text.rstrip("*"), 1) if c not in letters
        )
        hint = HINTS.get(letter, "correct the record, or remove it if it is no protein")
        return BadData(
            f"{self.origin}, {self._where(number, name)}: the character at residue {residue:,} is "
            f"{letter!r}; wanted one of {wanted}; {hint}"
        )

    def report(self) -> None:
        """Log the numbers of replaced letters and skipped records."""
        if self.ambiguous:
            log.info("%s: lra read %d J (leucine or isoleucine) as X", self.origin, self.ambiguous)
        if self.empty:
            log.warning(
                "%s: lra skips %d records without residues; the first is %s",
                self.origin,
                self.empty,
                self.first_empty,
            )


def read_fasta(path: Path) -> Iterator[ProteinRecord]:
    """Yield the sequences of a file in order.

    Raises:
        BadData: The file is damaged, truncated, no FASTA or without records, or a record has other
            characters than residues.
    """
    cleaning = Cleaning(str(path))
    # The longest known protein has 45,000 residues, fewer than the limit of a record.
    for number, (title, sequence) in enumerate(fasta_records(path), 1):
        name = accession(title)
        letters = cleaning.letters(sequence, number, name)
        if letters:
            yield ProteinRecord(name, letters)
    cleaning.report()


def accession(title: str) -> str:
    """Return the accession in a header: the middle of sp|P12345|NAME, or else the first word."""
    word = title.split(maxsplit=1)[0] if title.strip() else ""
    parts = word.split("|")
    return parts[1] if len(parts) > 1 and parts[1] else word
