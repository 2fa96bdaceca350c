"""Records of FASTA files, plain or compressed (.gz, .xz, .bz2), one at a time.

    >NAME further words
    ACGTACGTNN
    acgt

A header begins with `>`; the lines below it are one sequence. Line ends, blank lines and spaces are
removed. A last line without a line end raises an error, because the record may be truncated.
"""

from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast

from Bio.SeqIO.FastaIO import SimpleFastaParser

from lra.conf.short_values import short_repr
from lra.tasks.data.archives import open_packed
from lra.tasks.data.bars import tqdm
from lra.tasks.data.lines import LONGEST_LINE, plain_text, too_long, whole_lines
from lra.tasks.errors import BadData


def fasta_records(path: Path, longest: int = LONGEST_LINE) -> Iterator[tuple[str, str]]:
    """Yield the header, without `>`, and the sequence of each record of a file, in order.

    `longest` is the largest number of characters of a record, line ends included.

    Raises:
        BadData: The file is damaged, truncated, no FASTA or without records.
    """
    number = 0
    with open_packed(path) as packed:
        # Headers may contain any bytes, so use an encoding that accepts all.
        text = TextIOWrapper(cast(Any, plain_text(packed, str(path))), encoding="latin-1")
        lines = _after_preamble(whole_lines(text, str(path)), path, longest)
        records = SimpleFastaParser(lines)
        for record in tqdm(records, desc=path.name, unit="sequence", disable=None):
            number += 1
            yield record
    if not number:
        raise BadData(
            f"{path} contains no record; use a FASTA file, in which a line that begins with '>' "
            "precedes each sequence"
        )


def _after_preamble(lines: Iterator[str], path: Path, longest: int) -> Iterator[str]:
    """Yield the lines; raise `BadData` for text before the first header, which the parser skips."""
    after_header, size = False, 0
    for number, line in enumerate(lines, 1):
        if line.startswith(">"):
            after_header, size = True, 0
        elif not after_header and line.strip():
            raise BadData(
                f"{path}, line {number}: got {short_repr(line.strip())} before the first header; "
                "wanted a line that begins with '>'; use a complete FASTA file"
            )
        size += len(line)
        if size > longest:
            raise too_long(str(path), number)
        if after_header:
            yield line
