"""Pairs of texts from TSV files as the Long Range Arena publishes them, read without any quoting.

    1.0 <tab> id1 <tab> id2 <tab> first text <tab> second text

One line is one pair: a reader that honours quotes merges lines on a stray quotation mark. Bytes are
kept as they are, valid UTF-8 or not.
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
"""In the archive of the Long Range Arena."""
PUBLIC_SIZES = {"train": 147_086, "validation": 18_090, "test": 17_437}
"""arXiv:2011.04006, appendix: the pairs of the archive's three files."""
LICENCE = "licence: none stated; AAN is for research, cite Radev et al. 2013"
LABELS = {b"0": 0, b"1": 1, b"0.0": 0, b"1.0": 1}
COLUMNS = ("label", "id1", "id2", "text1", "text2")
LONGEST_ID = 40
"""Bytes of what names a paper; texts are longer."""
SAMPLE_SIZES = {"train": 400, "validation": 100, "test": 200}
TOPICS = (
    "parsing treebank grammar constituent chart",
    "translation alignment phrase decoder bilingual",
    "speech acoustic phoneme recogniser utterance",
    "sentiment opinion review polarity lexicon",
)


class CitationPair(NamedTuple):
    """Two texts, and whether one cites the other."""

    first: bytes
    second: bytes
    label: int


def present(folder: Path) -> bool:
    """Tell whether a folder holds the file of any split."""
    return any(_packed_file(folder, split) for split in FILES)


def _packed_file(folder: Path, split: str) -> Path | None:
    paths = (folder / (FILES[split] + ending) for ending in PACKED)
    return next((path for path in paths if path.is_file()), None)


def find_split(folder: Path, split: str) -> Path:
    """Return the file of a split, packed or not.

    Raises:
        NotPrepared: It is missing.
    """
    if (path := _packed_file(folder, split)) is not None:
        return path
    there = ""
    if folder.is_file():
        there = f"; task.path={folder} is a file, wanted the folder of all three"
    elif folder.is_dir() and (
        others := sorted(file.name for file in folder.glob("*.[tT][sS][vV]*"))
    ):
        there = f"; there is {short_list(others)}, but only these names are read"
    rows = ", ".join(f"{FILES[name]} ({size:,} rows)" for name, size in PUBLIC_SIZES.items())
    raise NotPrepared(
        f"{folder / FILES[split]} is missing: unpack {arena.ABOUT} and name it, or its folder "
        f"{FOLDER}, by task.path, which holds {rows}; files packed as .gz, .xz or .bz2 are read "
        f"as well{there}; or set task.source=sample for a trial; {LICENCE}"
    )


def read_pairs(path: Path, *, longest: int) -> Iterator[CitationPair]:
    """Yield the pairs of a file, each text cut to its first `longest` bytes.

    Raises:
        BadData: A line has not five columns, another label than 0 or 1, an empty text or no end; or
            the file is damaged or empty.
    """
    number = 0
    with open_packed(path) as file:
        lines = whole_lines(plain_text(file, str(path)), str(path))
        for number, line in enumerate(tqdm(lines, desc=path.name, unit="pair", disable=None), 1):
            yield _pair(line.rstrip(b"\r\n"), f"{path}, line {number}", longest)
    if not number:
        raise BadData(f"{path} contains no pair; fetch it again")


def _pair(line: bytes, where: str, longest: int) -> CitationPair:
    columns = line.split(b"\t")
    if len(columns) in (2, 3) and max(map(len, columns)) <= LONGEST_ID:
        raise BadData(
            f"{where}: {short_repr(line)} names a pair by its ids, without the texts; wanted "
            f"{', '.join(COLUMNS)}, as in {', '.join(FILES.values())} of the folder {FOLDER} of "
            f"{arena.ABOUT}"
        )
    if len(columns) != len(COLUMNS):
        raise BadData(
            f"{where}: {len(columns)} columns, wanted {len(COLUMNS)} separated by tabs: "
            f"{', '.join(COLUMNS)}; a tab or a line end inside a text splits it"
        )
    label, _, _, first, second = columns
    if label not in LABELS:
        raise BadData(f"{where}: label {short_repr(label)}, wanted 0 or 1 (or 0.0, 1.0)")
    for name, text in (("text1", first), ("text2", second)):
        if not text:
            raise BadData(f"{where}: {name} is empty; drop the line")
    return CitationPair(first[:longest], second[:longest], LABELS[label])


def sample_pairs(split: str) -> Iterator[CitationPair]:
    """Write short synthetic texts; those of one topic cite each other. They are not AAN."""
    number = SAMPLE_SIZES[split]
    words = iter(random_words(Draw.sample, list(SAMPLE_SIZES).index(split), 64 * number).tolist())

    def text(topic: int) -> bytes:
        vocabulary, length = TOPICS[topic].split(), 6 + next(words) % 8
        return " ".join(vocabulary[next(words) % len(vocabulary)] for _ in range(length)).encode()

    for index in range(number):
        label, first = index % 2, next(words) % len(TOPICS)
        second = first if label else (first + 1 + next(words) % (len(TOPICS) - 1)) % len(TOPICS)
        yield CitationPair(text(first), text(second), label)
