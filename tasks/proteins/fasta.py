"""Protein sequences from FASTA files, plain or packed (.gz, .xz, .bz2), one record at a time.

    >sp|P12345|NAME description        the accession is P12345; elsewhere it is the first word
    MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ
    APILSRVGDGTQDNLSGAEKAVQVKVKALPDAQ*

Lower case counts as upper case; line ends, blank lines and a `*` at the end (the stop) are no part
of the sequence. B, O, U, X and Z stay; J (leucine or isoleucine) has no id and becomes X, the
unknown one. Records without residues are left out with a warning. Everything else is refused, and
so is a last line without an end, for the record may be cut there.
"""

import logging
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple, cast

from Bio.SeqIO.FastaIO import SimpleFastaParser

from lra.conf.short_values import short, short_repr
from lra.tasks.data.archives import PACKED, open_packed
from lra.tasks.data.bars import tqdm
from lra.tasks.data.lines import LONGEST_LINE, plain_text, too_long, whole_lines
from lra.tasks.errors import BadData
from lra.tasks.proteins.alphabet import LETTERS

log = logging.getLogger(__name__)

ENDINGS = tuple(
    name + packed for name in (".fasta", ".fa", ".faa", ".fas", ".fsa") for packed in PACKED
)
"""Endings of the files that a folder is searched for."""
HINTS = {
    "-": "only alignments have gaps: give the sequences without them",
    ".": "only alignments have gaps: give the sequences without them",
    "*": "a stop inside a sequence ends it: cut the record, or remove it",
}


class ProteinRecord(NamedTuple):
    """One sequence."""

    accession: str
    letters: bytes
    """Upper-case codes of residues, at least one."""


class Cleaning:
    """Turns texts into residues, and counts what it changed or left out.

    Args:
        origin: Where the texts come from, for messages.
    """

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.ambiguous = self.empty = 0
        self.first_empty = ""

    def letters(self, text: str, number: int, name: str) -> bytes:
        """Return the residues of a text; none where it holds none.

        Args:
            text: Of one record.
            number: Of the record, for messages.
            name: The same.

        Raises:
            BadData: A character is no code of a residue.
        """
        letters = text.encode("ascii", "replace").upper().rstrip(b"*")
        if b"J" in letters:
            self.ambiguous += letters.count(b"J")
            letters = letters.replace(b"J", b"X")
        if letters.translate(None, LETTERS):
            raise self._strange(text, number, name)
        if not letters:
            self.first_empty = self.first_empty or self._where(number, name)
            self.empty += 1
        return letters

    def _where(self, number: int, name: str) -> str:
        return f"record {number:,} ({short(name) or 'without a name'})"

    def _strange(self, text: str, number: int, name: str) -> BadData:
        wanted = LETTERS.decode() + "J"
        letters = wanted + wanted.lower()
        residue, letter = next(
            (i, c) for i, c in enumerate(text.rstrip("*"), 1) if c not in letters
        )
        hint = HINTS.get(letter, "correct or drop the record; is this a protein?")
        return BadData(
            f"{self.origin}, {self._where(number, name)}: {letter!r} at residue {residue:,}, "
            f"wanted one of {wanted}; {hint}"
        )

    def report(self) -> None:
        """Log what was changed or left out."""
        if self.ambiguous:
            log.info("%s: %d J (L or I) read as X", self.origin, self.ambiguous)
        if self.empty:
            log.warning(
                "%s: %d records without residues are skipped, the first is %s",
                self.origin,
                self.empty,
                self.first_empty,
            )


def read_fasta(path: Path) -> Iterator[ProteinRecord]:
    """Yield the sequences of a file in its order.

    Raises:
        BadData: It is damaged or cut, is no FASTA, holds no record, or a record holds something
            else than residues.
    """
    cleaning, number = Cleaning(str(path)), 0
    with open_packed(path) as packed:
        # Headers may hold any bytes; those of sequences are compared with the alphabet.
        text = TextIOWrapper(cast(Any, plain_text(packed, str(path))), encoding="latin-1")
        lines = whole_lines(text, str(path))
        records = SimpleFastaParser(_after_preamble(lines, path))
        progress = tqdm(records, desc=path.name, unit="sequence", disable=None)
        for number, (title, sequence) in enumerate(progress, 1):
            name = accession(title)
            letters = cleaning.letters(sequence, number, name)
            if letters:
                yield ProteinRecord(name, letters)
    if not number:
        raise BadData(
            f"{path} contains no record: wanted FASTA, where a line that begins with "
            "'>' precedes each sequence"
        )
    cleaning.report()


def _after_preamble(lines: Iterator[str], path: Path) -> Iterator[str]:
    """Yield the lines; the parser would pass over what stands before the first header."""
    begun, size = False, 0
    for number, line in enumerate(lines, 1):
        if line.startswith(">"):
            begun, size = True, 0
        elif not begun and line.strip():
            raise BadData(
                f"{path}, line {number}: {short_repr(line.strip())} before the first header, "
                "wanted a line that begins with '>': is this a complete FASTA file?"
            )
        size += len(line)
        if size > LONGEST_LINE:  # the longest known protein has 45,000 residues
            raise too_long(str(path), number)
        if begun:
            yield line


def accession(title: str) -> str:
    """Return what names a sequence: the middle of sp|P12345|NAME, else the first word."""
    word = title.split(maxsplit=1)[0] if title.strip() else ""
    parts = word.split("|")
    return parts[1] if len(parts) > 1 and parts[1] else word
