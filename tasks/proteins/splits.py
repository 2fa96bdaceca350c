"""From sequences in any order to blocks of ids, each of the split that the sequence's hash says.

A sequence's split depends on its residues and the shares alone: identical sequences stay together,
whatever file they stand in. Those of held-out families are a split of their own. Within a block of
65,536 sequences they come in the order of their hashes, so that neighbours of a file, which are
often related, do not stand side by side in a stream.

Memory: a block, and about 100 bytes for each different sequence where duplicates are dropped (60 MB
for Swiss-Prot), besides 9 bytes for each sequence.
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
"""Name of the split of held-out families."""
BLOCK = 1 << 16
SEPARATOR = SYMBOLS[END : END + 1]


def digest(letters: bytes) -> bytes:
    """Return the 16 bytes that stand for a sequence."""
    return hashlib.blake2b(letters, digest_size=16).digest()


class Splitter:
    """Says which split a sequence belongs to.

    Args:
        validation: Share of the sequences, by the hash.
        test: The same.
        held_out: Hashes of the sequences of held-out families.
    """

    def __init__(self, *, validation: float, test: float, held_out: Container[bytes] = ()) -> None:
        self.edges = round(test * 2**64), round((test + validation) * 2**64)
        self.held_out = held_out

    def split(self, key: bytes) -> str:
        """Return the split of the sequence with this hash."""
        if key in self.held_out:
            return FAMILIES
        share = int.from_bytes(key[:8], "big")
        if share < self.edges[0]:
            return "test"
        return "validation" if share < self.edges[1] else "train"


def split_blocks(
    records: Iterable[ProteinRecord], splitter: Splitter, *, drop: bool, counts: Counter[str]
) -> Iterator[tuple[str, RaggedRows]]:
    """Yield the sequences of every split, block by block: a separator and the residues' ids each.

    Args:
        records: All sequences.
        splitter: Says where each goes.
        drop: Leave out a sequence that came before.
        counts: Filled on the way: sequences by split, and duplicates that were dropped.

    Raises:
        BadData: A split remains empty.
    """
    keys: set[bytes] = set()
    every = iter(records)
    while block := list(islice(every, BLOCK)):
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
                f"no sequence falls into the {split} split, which the hashes of {number:,} "
                "sequences decide: add sequences, or change task.validation_fraction and "
                "task.test_fraction"
            )
    log.info("sequences: %s", ", ".join(f"{n:,} {name}" for name, n in sorted(counts.items())))


def _stored(sequences: list[bytes]) -> RaggedRows:
    joined = SEPARATOR + SEPARATOR.join(sequences)
    offsets = np.zeros(len(sequences) + 1, np.int64)
    np.cumsum([len(letters) + 1 for letters in sequences], out=offsets[1:])
    return RaggedRows(
        np.frombuffer(to_ids(joined), np.uint8), offsets, np.zeros(len(sequences), np.uint8)
    )
