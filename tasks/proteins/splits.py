"""Division of protein sequences into splits, by the hash of each sequence.

The split of a sequence depends only on its residues and the shares, so identical sequences stay
together, even in different files. Sequences of excluded families form a separate split. Within a
block of 65,536 sequences, the order is that of the hashes, because neighbours in a file are often
related.

This takes the memory of a block and 9 bytes for each sequence, and, if duplicates are dropped,
about 100 bytes for each different sequence (60 MB for Swiss-Prot).
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from itertools import islice

import numpy as np

from lra.tasks.data.storage import RaggedRows
from lra.tasks.errors import BadData
from lra.tasks.proteins.alphabet import END, SYMBOLS, to_ids
from lra.tasks.proteins.fasta import ProteinRecord
from lra.tasks.task import SPLITS

log = logging.getLogger(__name__)

FAMILIES = "families"
"""Name of the split of excluded families."""
BLOCK = 1 << 16
SEPARATOR = SYMBOLS[END : END + 1]


def digest(letters: bytes) -> bytes:
    """Return the hash of a sequence, 16 bytes."""
    return hashlib.blake2b(letters, digest_size=16).digest()


class Splitter:
    """Decides the split of a sequence by its hash.

    Args:
        validation: Share of the sequences for validation.
        test: Share of the sequences for the test split.
        held_out: Hashes of the sequences of excluded families.
    """

    def __init__(self, *, validation: float, test: float, held_out: Container[bytes] = ()) -> None:
        # Ends of the test and of the validation split among the hashes' first 64 bits.
        self.edges = round(test * 2**64), round((test + validation) * 2**64)
        self.held_out = held_out

    def split(self, key: bytes) -> str:
        """Return the split of the sequence with this hash."""
        if key in self.held_out:
            return FAMILIES
        number = int.from_bytes(key[:8], "big")
        test_end, validation_end = self.edges
        if number < test_end:
            return "test"
        return "validation" if number < validation_end else "train"


def split_blocks(
    records: Iterable[ProteinRecord], splitter: Splitter, *, drop: bool, counts: Counter[str]
) -> Iterator[tuple[str, RaggedRows]]:
    """Yield (split, sequences) block by block; a sequence is an end token and ids of residues.

    Args:
        records: All sequences.
        splitter: Decides the split of each sequence.
        drop: Whether to skip a sequence that occurred before.
        counts: Receives the number of sequences of each split, and of dropped duplicates.

    Raises:
        BadData: A split remains empty.
    """
    keys: set[bytes] = set()
    remaining = iter(records)
    while block := list(islice(remaining, BLOCK)):
        rows: dict[str, list[tuple[bytes, bytes]]] = {}
        for record in block:
            key = digest(record.letters)
            if drop:
                if key in keys:
                    counts["duplicates"] += 1
                    continue
                keys.add(key)
            rows.setdefault(splitter.split(key), []).append((key, record.letters))
        for split in sorted(rows):
            counts[split] += len(rows[split])
            yield split, _stored([letters for _, letters in sorted(rows[split])])
    for split in SPLITS:
        if not counts[split]:
            number = sum(counts[other] for other in SPLITS)
            raise BadData(
                f"the {split} split has none of the {number:,} sequences, whose hashes decide "
                "their splits; add sequences, or change task.validation_fraction and "
                "task.test_fraction"
            )
    log.info("sequences: %s", ", ".join(f"{n:,} {name}" for name, n in sorted(counts.items())))


def _stored(sequences: list[bytes]) -> RaggedRows:
    """Return sequences as rows of ids, each with an end token before its residues."""
    joined = SEPARATOR + SEPARATOR.join(sequences)
    offsets = np.zeros(len(sequences) + 1, np.int64)
    np.cumsum([len(letters) + 1 for letters in sequences], out=offsets[1:])
    return RaggedRows(
        np.frombuffer(to_ids(joined), np.uint8), offsets, np.zeros(len(sequences), np.uint8)
    )
