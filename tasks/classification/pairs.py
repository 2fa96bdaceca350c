"""Pairs of texts from TSV files as the Long Range Arena publishes them, read without any quoting.

    1.0 <tab> id1 <tab> id2 <tab> first text <tab> second text

One line is one pair. Quotation marks are ordinary characters: a CSV reader would join lines after a
stray one. Bytes are stored unchanged, valid UTF-8 or not.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from lra.conf.short_values import short_list, short_repr
from lra.tasks.data import arena
from lra.tasks.data.archives import PACKED, open_packed
from lra.tasks.data.bars import tqdm
from lra.tasks.data.batching import Draw, random_words
from lra.tasks.data.lines import plain_text, whole_lines
from lra.tasks.errors import BadData, NotPrepared

FILES = {
    "train": "new_aan_pairs.train.tsv",
    "validation": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
FOLDER = "tsv_data"
"""Folder with the files in the archive of the Long Range Arena."""
PUBLIC_SIZES = {"train": 147_086, "validation": 18_090, "test": 17_437}
"""Number of pairs in each of the archive's three files (arXiv:2011.04006, appendix)."""
LICENCE = (
    "the publishers of AAN state no licence and provide it for research; please cite Radev et al. "
    "2013"
)
LABELS = {b"0": 0, b"1": 1, b"0.0": 0, b"1.0": 1}
COLUMNS = ("label", "id1", "id2", "text1", "text2")
LONGEST_ID = 40
"""Most bytes of a paper's id; texts are longer."""
SAMPLE_SIZES = {"train": 400, "validation": 100, "test": 200}
TOPICS = (
    ("parsing", "treebank", "grammar", "constituent", "chart"),
    ("translation", "alignment", "phrase", "decoder", "bilingual"),
    ("speech", "acoustic", "phoneme", "recogniser", "utterance"),
    ("sentiment", "opinion", "review", "polarity", "lexicon"),
)
"""Words of the synthetic texts, by topic."""


class CitationPair(NamedTuple):
    """Two texts, and whether one cites the other."""

    first: bytes
    second: bytes
    label: int


def present(folder: Path) -> bool:
    """Return whether `folder` has the file of at least one split."""
    return any(_packed_file(folder, split) for split in FILES)


def _packed_file(folder: Path, split: str) -> Path | None:
    """Return the file of `split` in `folder`, compressed or not; None if it is missing."""
    paths = (folder / (FILES[split] + ending) for ending in PACKED)
    return next((path for path in paths if path.is_file()), None)


def find_split(folder: Path, split: str) -> Path:
    """Return the file of `split` in `folder`, compressed or not.

    Raises:
        NotPrepared: The file is missing.
    """
    if (path := _packed_file(folder, split)) is not None:
        return path
    hint = ""
    if folder.is_file():
        hint = f"; task.path={folder} is a file, but it must be the folder of the three files"
    elif folder.is_dir() and (
        others := sorted(file.name for file in folder.glob("*.[tT][sS][vV]*"))
    ):
        hint = f"; the folder has {short_list(others)}, but the task reads only these three names"
    rows = ", ".join(f"{FILES[name]} ({size:,} rows)" for name, size in PUBLIC_SIZES.items())
    raise NotPrepared(
        f"{folder / FILES[split]} is missing: unpack {arena.ABOUT}, and set task.path to the "
        f"unpacked folder or to its subfolder {FOLDER} with {rows}, which may be compressed as "
        f".gz, .xz or .bz2{hint}; or set task.source=sample for a trial; {LICENCE}"
    )


def read_pairs(path: Path, *, longest: int) -> Iterator[CitationPair]:
    """Yield the pairs of a file, each text cut to its first `longest` bytes.

    Raises:
        BadData: A line lacks one of five columns or its end, or has an empty text or a label other
            than 0 and 1; or the file is damaged or empty.
    """
    number = 0
    with open_packed(path) as file:
        lines = whole_lines(plain_text(file, str(path)), str(path))
        for number, line in enumerate(tqdm(lines, desc=path.name, unit="pair", disable=None), 1):
            yield _parse_pair(line.rstrip(b"\r\n"), f"{path}, line {number}", longest)
    if not number:
        raise BadData(f"{path} contains no pair of texts; fetch this file again")


def _parse_pair(line: bytes, where: str, longest: int) -> CitationPair:
    """Return the pair of a `line`, each text cut to `longest` bytes; `where` opens messages."""
    columns = line.split(b"\t")
    if len(columns) in (2, 3) and max(map(len, columns)) <= LONGEST_ID:
        raise BadData(
            f"{where}: the line {short_repr(line)} has the ids of two texts, but not the texts; "
            f"use the files {', '.join(FILES.values())} of the folder {FOLDER} in {arena.ABOUT}, "
            f"which have the columns {', '.join(COLUMNS)}"
        )
    if len(columns) != len(COLUMNS):
        raise BadData(
            f"{where}: the line has {len(columns)} columns; wanted {len(COLUMNS)} columns "
            f"separated by tabs: {', '.join(COLUMNS)}; remove tabs and line ends inside texts"
        )
    label, _, _, first, second = columns
    if label not in LABELS:
        raise BadData(f"{where}: the label is {short_repr(label)}; wanted 0, 1, 0.0 or 1.0")
    for name, text in (("text1", first), ("text2", second)):
        if not text:
            raise BadData(f"{where}: {name} is empty; remove this line")
    return CitationPair(first[:longest], second[:longest], LABELS[label])


def sample_pairs(split: str) -> Iterator[CitationPair]:
    """Yield pairs of short synthetic texts, not from AAN; a pair of one topic has the label 1."""
    number = SAMPLE_SIZES[split]
    # 64 random numbers for each pair, more than any pair needs; the split's place is the seed.
    numbers = iter(random_words(Draw.sample, list(SAMPLE_SIZES).index(split), 64 * number).tolist())

    def text(topic: int) -> bytes:
        """Return 6 to 13 random words of a topic."""
        vocabulary, length = TOPICS[topic], 6 + next(numbers) % 8
        return " ".join(vocabulary[next(numbers) % len(vocabulary)] for _ in range(length)).encode()

    for index in range(number):
        label, first = index % 2, next(numbers) % len(TOPICS)
        # With the label 0, the second topic is one of the others.
        second = first if label else (first + 1 + next(numbers) % (len(TOPICS) - 1)) % len(TOPICS)
        yield CitationPair(text(first), text(second), label)
