"""Language modelling over bytes or characters: enwik8 and text8 (Mahoney, Large Text Compression).

    enwik8   bytes of a Wikipedia dump, 256 ids                  <page>⏎    <title>AccessibleC …
    text8    only its text, 27 ids (blank, a … z)                 anarchism originated as a term …

The first 90 million bytes are train, the next 5 million validation, the last 5 million test. The
task refuses a file of another size unless `partial` is set; then it splits the file 90 : 5 : 5. The
metric is bits per character = mean loss in nats / ln 2; for enwik8 a character is a byte. The text
stays unchanged. `source=datasets` reads text8 by the `datasets` library, one row for each split.
`source=sample` is generated text for trials; its results say `sample`.
"""

import math
from enum import StrEnum, auto
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Integer

from lra.tasks.data import archives, hub
from lra.tasks.data.batching import Draw, random_words
from lra.tasks.data.published_data import check_partial, given_path, source_name
from lra.tasks.data.sources import data_root, download, folder_identity, remembered_sha256
from lra.tasks.data.storage import RaggedRows
from lra.tasks.data.stored_task import GENERATED, identity_of
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.language.base import LanguageTask, Regime
from lra.tasks.task import SPLITS, TaskSpec

VERSION = 1
OFFICIAL = {"train": 90_000_000, "validation": 5_000_000, "test": 5_000_000}
"""Number of bytes by split; together 10^8 (Mahoney, http://mattmahoney.net/dc/textdata.html)."""
SHARES = (0.9, 0.05, 0.05)
SAMPLE_BYTES = 60_000
HUB_NAME = "afmck/text8"
HUB_REVISION = "58c74e966ccc66eab2de6b52fad5b14ddb259fa4"
PACKED = (*archives.PACKED, ".zip")
LICENCE = "the licence of this text, Wikipedia of 2006, is GFDL"
ALPHABET = b" abcdefghijklmnopqrstuvwxyz"


class CharacterCorpus(StrEnum):
    """The text."""

    enwik8 = auto()
    text8 = auto()


class CharacterSource(StrEnum):
    """Where the text comes from."""

    files = auto()
    datasets = auto()
    """Only for text8."""
    sample = auto()


class _CharacterFacts(NamedTuple):
    """Facts about a text; `size` (bytes) and `sha256` are those of its public archive."""

    url: str
    size: int
    sha256: str
    vocabulary: int


CORPORA = {
    CharacterCorpus.enwik8: _CharacterFacts(
        "http://mattmahoney.net/dc/enwik8.zip",
        36_445_475,
        "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
        256,
    ),
    CharacterCorpus.text8: _CharacterFacts(
        "http://mattmahoney.net/dc/text8.zip",
        31_344_016,
        "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
        len(ALPHABET),
    ),
}


class Characters(LanguageTask):
    """Predict the next byte of enwik8, or the next character of text8.

    Args:
        corpus: enwik8 or text8.
        source: files, datasets (only text8) or sample.
        path: With source=files, the text or its archive (.zip, .gz, .xz, .bz2), or a folder with
            it; with source=datasets, a folder of parquet files with the column `text`. Null: the
            public data.
        partial: Whether the file is a part of the text, to be split 90 : 5 : 5.
    """

    holds_text = True
    incidental: ClassVar[frozenset[str]] = frozenset({"path"})
    """Options that are no part of a result's identity."""

    def __init__(
        self,
        *,
        corpus: CharacterCorpus = CharacterCorpus.enwik8,
        source: CharacterSource = CharacterSource.files,
        path: str | None = None,
        partial: bool = False,
        length: int = 512,
        evaluation_length: int | None = None,
        regime: Regime = Regime.non_overlapping,
        stride: int | None = None,
        memory: int = 0,
        contiguous: bool = False,
    ) -> None:
        self.corpus, self.source = corpus, source
        self.path = given_path(path, source)
        if self.source is CharacterSource.datasets and self.corpus is not CharacterCorpus.text8:
            raise ValueError(
                "task.source=datasets needs task.corpus=text8: got "
                f"corpus={self.corpus}; set task.source=files"
            )
        self.facts = CORPORA[self.corpus]
        self.partial = partial
        check_partial(partial, path is not None)
        self.read_as(
            length=length,
            evaluation_length=evaluation_length,
            regime=regime,
            stride=stride,
            memory=memory,
            contiguous=contiguous,
        )

    @cached_property
    def spec(self) -> TaskSpec:
        """The facts about this task; with a `path`, the data hash is a hash of the file."""
        return self.stream_spec(
            name=str(self.corpus),
            version=VERSION,
            vocabulary=self.facts.vocabulary,
            metric="bits_per_character",
            source=source_name(self.source, self.path, partial=self.partial),
            data_hash=self.content_hash(self._identity),
        )

    def _identity(self) -> str:
        """Return the hash of everything that decides the prepared data."""
        facts: dict[str, object] = {
            "version": VERSION,
            "corpus": self.corpus.value,
            "source": self.source.value,
            "partial": self.partial,
        }
        if self.source is CharacterSource.files:
            given = self.path is not None
            facts["content"] = remembered_sha256(self._file()) if given else self.facts.sha256
        elif self.source is CharacterSource.datasets:
            facts["content"] = self._hub_identity()
        return identity_of(facts)

    @property
    def folder(self) -> Path:
        """Folder of the prepared data; every length and regime uses the same one."""
        return data_root() / f"{self.corpus}-{self.source}-{self.spec.data_hash}"

    def _hub_identity(self) -> str:
        """Return what decides the text by `datasets`: the public commit, or a hash of the files."""
        if self.path is None:
            return f"{HUB_NAME}@{HUB_REVISION}"
        if not self.path.is_dir():
            raise NotPrepared(f"task.path={self.path} is missing; {_hub_instructions()}")
        return folder_identity(self.path)

    def _file(self) -> Path:
        """Return the file that `path` names; raise `NotPrepared` if there is none."""
        path = self.path or Path()
        candidates = [path] if path.is_file() else []
        if path.is_dir():
            names = [f"{self.corpus}{ending}" for ending in PACKED]
            candidates = [path / name for name in names if (path / name).is_file()]
        if not candidates:
            raise NotPrepared(
                f"{path} does not contain {self.corpus}; download {self.facts.url} "
                f"({self.facts.size:,} bytes, SHA-256 {self.facts.sha256}) and put it at this "
                f"path, unpacked or not; {LICENCE}"
            )
        return candidates[0]

    def make(self) -> None:
        """Read the text, split it, and store its ids."""
        self.write(
            {
                split: RaggedRows(ids, np.array([0, len(ids)]), np.zeros(1, np.uint8))
                for split, ids in zip(SPLITS, self._parts(), strict=True)
            },
            vocabulary="bytes" if self.corpus is CharacterCorpus.enwik8 else ALPHABET.decode(),
            licence=GENERATED if self.source is CharacterSource.sample else LICENCE,
        )

    def _parts(self) -> list[np.ndarray]:
        """Return the ids of each split."""
        if self.source is CharacterSource.datasets:
            return self._hub_parts()
        if self.source is CharacterSource.sample:
            content = sample_text(SAMPLE_BYTES)
        else:
            path = self._file() if self.path is not None else self._fetch()
            content = read_text(path)
        ids = self.ids(content)
        return self._check_parts(np.split(ids, np.cumsum(self._sizes(len(ids)))[:-1]))

    def _check_parts(self, parts: list[np.ndarray]) -> list[np.ndarray]:
        """Return the parts, one for each split; raise `BadData` if one has nothing to predict."""
        for split, ids in zip(SPLITS, parts, strict=True):
            if len(ids) < 2:
                raise BadData(
                    f"{self.spec.source}: the {split} split has {len(ids)} of the "
                    f"{sum(map(len, parts)):,} bytes; wanted at least 2; fetch the text again, or "
                    "use a longer part"
                )
        return parts

    def _hub_parts(self) -> list[np.ndarray]:
        """Return the ids of each split, read by the `datasets` library."""
        loaded = hub.load(
            HUB_NAME,
            HUB_REVISION,
            self.path,
            columns=("text",),
            splits=SPLITS,
            instructions=_hub_instructions(),
        )
        parts = []
        for split in SPLITS:
            rows = loaded[split].with_format("arrow")[:].column("text").to_pylist()
            parts.append(self.ids(_one_text(rows, f"{self.spec.source}, {split}")))
            if not self.partial and len(parts[-1]) != OFFICIAL[split]:
                raise BadData(
                    f"{self.spec.source}: the {split} split has {len(parts[-1]):,} characters; "
                    f"wanted {OFFICIAL[split]:,}; fetch the data again, or, to use a part of them, "
                    "set task.partial=true"
                )
        return self._check_parts(parts)

    def _fetch(self) -> Path:
        """Return the path of the public archive; download it if it is missing."""
        target = data_root() / "downloads" / self.facts.url.rpartition("/")[2]
        return download(
            self.facts.url,
            target,
            size=self.facts.size,
            sha256=self.facts.sha256,
            instructions="download this file on another machine and put it at "
            f"{target} ({self.facts.size:,} bytes, SHA-256 {self.facts.sha256}), or set task.path "
            f"to your copy, or task.source=sample for a trial; {LICENCE}",
        )

    def _sizes(self, number: int) -> list[int]:
        """Return the sizes of the splits of a text of `number` bytes."""
        total = sum(OFFICIAL.values())
        if self.source is CharacterSource.files and not self.partial:
            if number != total:
                raise BadData(
                    f"{self.spec.source}: the file has {number:,} bytes; wanted {total:,}; fetch "
                    "it again, or, to use a part of it, set task.partial=true"
                )
            return list(OFFICIAL.values())
        _, *other_shares = SHARES
        others = [round(share * number) for share in other_shares]
        return [number - sum(others), *others]

    def ids(self, content: bytes) -> np.ndarray:
        """Return the id of each byte; raise `BadData` for a byte outside the alphabet of text8."""
        codes = np.frombuffer(content, np.uint8)
        if self.corpus is CharacterCorpus.enwik8:
            return codes
        table = np.full(256, 255, np.uint8)  # id of each byte; 255 outside the alphabet
        table[np.frombuffer(ALPHABET, np.uint8)] = np.arange(len(ALPHABET))
        ids = table[codes]
        wrong = ids == 255
        if wrong.any():
            first = int(wrong.argmax())
            raise BadData(
                f"{self.spec.source}: byte {first:,} is {content[first : first + 1]!r}, but "
                "text8 contains only a to z and blanks; use the published file"
            )
        return ids

    def derived_metrics(self, split: str, loss: float) -> dict[str, float]:
        """Return the bits per character for `loss`, the mean in nats."""
        del split
        return {"bits_per_character": loss / math.log(2)}

    def encode(self, text: str) -> Integer[np.ndarray, " n"]:
        """Return the ids of a text; raise ValueError for characters that text8 lacks."""
        if self.corpus is CharacterCorpus.text8:
            wrong = sorted({letter for letter in text if letter not in ALPHABET.decode()})
            if wrong:
                raise ValueError(
                    "a text for text8 may contain only a to z and blanks: got "
                    f"{', '.join(map(repr, wrong[:8]))}; write in lower case, write digits as "
                    "words, and remove other signs"
                )
        return self.ids(text.encode())

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return the text of some ids, with � for bytes that are no UTF-8."""
        ids = ids.astype(np.uint8)
        content = (
            ids.tobytes()
            if self.corpus is CharacterCorpus.enwik8
            else bytes(ALPHABET[i] for i in ids)
        )
        return content.decode(errors="replace")

    def describe(self, split: str, index: int) -> str:
        """Return the text of a window."""
        return self.decode(self.example(split, index))


def _hub_instructions() -> str:
    """Return advice for a user without a connection to the hub: which files to put where."""
    folder = data_root() / "text8-datasets"
    return (
        "on a machine with a network connection, download the parquet files of "
        f"https://huggingface.co/datasets/{HUB_NAME}/tree/{HUB_REVISION}/data, put them into "
        f"{folder} and set task.path={folder}; or set task.source=files or sample; {LICENCE}"
    )


def _one_text(rows: list[Any], where: str) -> bytes:
    """Return the only row of a split, which is the whole text."""
    if len(rows) != 1 or not isinstance(rows[0], str):
        raise BadData(
            f"{where}: the split has {len(rows)} rows; wanted one row with the whole text"
        )
    return rows[0].encode()


def read_text(path: Path) -> bytes:
    """Return the content of a text file, compressed or not.

    Raises:
        BadData: The archive is damaged, has no file or several, or more bytes than the corpus.
    """
    most = sum(OFFICIAL.values())
    if path.suffix.lower() == ".zip":
        with archives.opened_zip(path, most) as packed:
            names = packed.namelist()
            if len(names) != 1:
                raise BadData(f"{path} contains {len(names)} files; wanted one; fetch it again")
            with archives.open_member(packed, names[0]) as member:
                return member.read()
    with archives.open_packed(path, most) as file:
        return file.read()


def sample_text(size: int) -> bytes:
    """Return `size` bytes of made-up words, not from Wikipedia; recent words are often repeated."""
    # One random number for each byte is enough, even if all words have one syllable.
    numbers = iter(random_words(Draw.sample, 0, size).tolist())
    syllables = ("ba", "do", "ki", "lu", "me", "no", "ra", "si", "tu", "ve")
    recent: list[str] = []
    written: list[str] = []
    total = 0
    while total < size:
        if recent and next(numbers) % 4:  # three of four words repeat a recent one
            word = recent[next(numbers) % len(recent)]
        else:
            word = "".join(syllables[next(numbers) % 10] for _ in range(1 + next(numbers) % 4))
            recent = [*recent[-40:], word]
        written.append(word)
        total += len(word) + 1
    return " ".join(written).encode()[:size]
