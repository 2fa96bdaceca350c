"""Families of proteins from a table that UniProt exports, to exclude some from training.

    Entry <tab> … <tab> Pfam
    P12345      …       PF00001;PF00002;

Reading takes about 150 bytes of memory for each annotated entry, 90 MB for Swiss-Prot.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast

from lra.conf.short_values import short_repr
from lra.tasks.data.archives import open_packed
from lra.tasks.data.lines import plain_text, whole_lines
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.proteins.fasta import ProteinRecord
from lra.tasks.proteins.splits import digest

log = logging.getLogger(__name__)

PUBLISHED = (
    "PF18369", "PF04680", "PF17988", "PF12325", "PF03272", "PF03938", "PF17724", "PF10696",
    "PF11968", "PF04153", "PF06173", "PF12378", "PF04420", "PF10841", "PF06917", "PF03492",
    "PF06905", "PF15340", "PF17055", "PF05318",
)  # fmt: skip
"""The families that arXiv:2009.14794 excludes from training."""


def check(path: Path) -> None:
    """Raise `NotPrepared` if the table is missing."""
    if not path.is_file():
        raise NotPrepared(
            f"task.families={path} is missing; export a table from UniProt with the columns Entry "
            "and Pfam (format TSV, compressed or not), and set task.families to it"
        )


def read_accessions(path: Path, families: Sequence[str]) -> dict[str, bool]:
    """Return, for each accession with a family in the table, whether it belongs to `families`.

    Raises:
        NotPrepared: The table is missing.
        BadData: The table is damaged, lacks a column or all rows, or has a short row.
    """
    check(path)
    wanted, belongs, number = set(families), dict[str, bool](), 0
    with open_packed(path) as packed:
        plain = cast(Any, plain_text(packed, str(path)))
        text = TextIOWrapper(plain, encoding="utf-8", errors="replace")
        lines = whole_lines(text, str(path))
        header = next(lines, "").rstrip("\n").split("\t")
        if not {"Entry", "Pfam"} <= set(header):
            raise BadData(
                f"{path}: the columns are {short_repr(header)}; wanted Entry and Pfam among them, "
                "separated by tabs"
            )
        entry, pfam = header.index("Entry"), header.index("Pfam")
        for number, line in enumerate(lines, 2):
            fields = line.rstrip("\n").split("\t")
            if len(fields) != len(header):
                raise BadData(
                    f"{path}, line {number}: the row has {len(fields)} columns; wanted "
                    f"{len(header)}, as in the first line; export the table again"
                )
            accessions = {name.strip() for name in fields[pfam].split(";")} - {""}
            if accessions:
                belongs[fields[entry]] = not accessions.isdisjoint(wanted)
    if not number:
        raise BadData(f"{path} contains no rows; export the table again")
    return belongs


def held_out(
    records: Iterable[ProteinRecord], annotated: Mapping[str, bool], *, origin: str
) -> frozenset[bytes]:
    """Return the hashes of the sequences to exclude from training, those of certain families.

    The hash excludes a sequence under every accession. An isoform such as P12345-2 belongs to the
    families of its entry.

    Args:
        records: All sequences.
        annotated: Whether each accession belongs to a family to exclude.
        origin: Path of the table, for messages.

    Raises:
        BadData: No sequence is in the table, or none is excluded.
    """
    excluded: set[bytes] = set()
    number = without = members = 0
    first = ""
    for record in records:
        number += 1
        first = first or record.accession
        member = annotated.get(record.accession.partition("-")[0])
        if member is None:
            without += 1
        elif member:
            members += 1
            excluded.add(digest(record.letters))
    if without == number:
        raise BadData(
            f"{origin} has none of the {number:,} sequences (the first is {short_repr(first)}); "
            "export the table for the entries of task.path"
        )
    log.info(
        "%s: %d of %d sequences have no Pfam family in this table, so their hashes decide their "
        "splits; %d sequences belong to the families of task.held_out_families",
        origin,
        without,
        number,
        members,
    )
    if not excluded:
        raise BadData(
            f"{origin}: none of the {number - without:,} annotated sequences belongs to a family "
            "in task.held_out_families; set other families, or remove task.families"
        )
    return frozenset(excluded)
