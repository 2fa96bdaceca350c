"""Which proteins belong to families that are held out, from a table that UniProt exports.

    Entry <tab> … <tab> Pfam
    P12345      …       PF00001;PF00002;

Memory: about 150 bytes for each annotated entry, 90 MB for Swiss-Prot.
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
"""The families that arXiv:2009.14794 holds out."""


def check(path: Path) -> None:
    """Raise `NotPrepared` where the table is missing."""
    if not path.is_file():
        raise NotPrepared(
            f"task.families={path} is missing: export a table from UniProt with the columns Entry "
            "and Pfam (format TSV, packed or not) and name it"
        )


def read_accessions(path: Path, families: Sequence[str]) -> dict[str, bool]:
    """Return the annotated accessions, and whether each belongs to one of `families`.

    Raises:
        NotPrepared: The table is missing.
        BadData: It is damaged, a column is missing, a row is too short, or there is no row.
    """
    check(path)
    wanted, belongs, number = set(families), dict[str, bool](), 0
    with open_packed(path) as packed:
        plain = cast(Any, plain_text(packed, str(path)))
        text = TextIOWrapper(plain, encoding="utf-8", errors="replace")
        lines = whole_lines(text, str(path))
        heads = next(lines, "").rstrip("\n").split("\t")
        if not {"Entry", "Pfam"} <= set(heads):
            raise BadData(
                f"{path}: columns {short_repr(heads)}, wanted Entry and Pfam among them, separated "
                "by tabs"
            )
        entry, pfam = heads.index("Entry"), heads.index("Pfam")
        for number, line in enumerate(lines, 2):
            cells = line.rstrip("\n").split("\t")
            if len(cells) != len(heads):
                raise BadData(
                    f"{path}, line {number}: {len(cells)} columns, wanted {len(heads)} as in the "
                    "first line; export the table again"
                )
            accessions = {name.strip() for name in cells[pfam].split(";")} - {""}
            if accessions:
                belongs[cells[entry]] = not accessions.isdisjoint(wanted)
    if not number:
        raise BadData(f"{path} contains no row: export the table again")
    return belongs


def held_out(
    records: Iterable[ProteinRecord], annotated: Mapping[str, bool], *, origin: str
) -> frozenset[bytes]:
    """Return the hashes of the sequences that belong to held-out families.

    A sequence is held out wherever it stands, under whatever accession. An isoform, as in P12345-2,
    belongs where its entry does.

    Args:
        records: All sequences.
        annotated: By accession, whether it is held out.
        origin: Of the table, for messages.

    Raises:
        BadData: No sequence is annotated, or none is held out.
    """
    held: set[bytes] = set()
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
            held.add(digest(record.letters))
    if without == number:
        raise BadData(
            f"{origin} has none of the {number:,} sequences (the first is {short_repr(first)}): "
            "export the table for the entries of task.path"
        )
    log.info(
        "%s: %d of %d sequences have no Pfam family there and are split by their hash; %d belong "
        "to families that are held out",
        origin,
        without,
        number,
        members,
    )
    if not held:
        raise BadData(
            f"{origin}: none of {number - without:,} annotated sequences belongs to a family in "
            "task.held_out_families: choose other families, or remove task.families"
        )
    return frozenset(held)
