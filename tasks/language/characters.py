"""Language modelling over bytes or characters: enwik8 and text8 (Mahoney, Large Text Compression).

    enwik8   bytes of a Wikipedia dump, 256 ids                  <page>⏎    <title>AccessibleC …
    text8    its text alone, 27 ids (blank, a … z)                anarchism originated as a term …

The first 90 million bytes are train, the next 5 million validation, the last 5 million test. A file
of another size is refused, unless `partial` says that it is a part, which is then split 90 : 5 : 5.
The metric is bits per character = mean loss in nats / ln 2; for enwik8 a character is a byte.
Nothing is tokenised or stripped. `source=datasets` reads text8 through the `datasets` library, one
row for each split. `source=sample` is generated text for trials, labelled so.
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
"""Bytes; both corpora have 10^8 (Mahoney, http://mattmahoney.net/dc/textdata.html)."""
SHARES = (0.9, 0.05, 0.05)
SAMPLE_BYTES = 60_000
HUB_NAME = "afmck/text8"
HUB_REVISION = "58c74e966ccc66eab2de6b52fad5b14ddb259fa4"
PACKED = (*archives.PACKED, ".zip")
LICENCE = "licence: GFDL (Wikipedia's text of 2006)"
ALPHABET = b" abcdefghijklmnopqrstuvwxyz"


class CharacterCorpus(StrEnum):
    """Which text."""

    enwik8 = auto()
    text8 = auto()


class CharacterSource(StrEnum):
    """Where the text comes from."""

    files = auto()
    datasets = auto()
    """text8 alone."""
    sample = auto()


class _CharacterFacts(NamedTuple):
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
    """The task; see the module's text.

    Args:
        corpus: enwik8 or text8.
        source: files, datasets (text8) or sample.
        path: The text or its archive (.zip, .gz, .xz, .bz2), or the folder of one; datasets: a
            folder of parquet files with the column `text`. Not given: the public data.
        partial: Whether the file is a part of the corpus, split 90 : 5 : 5.
    """

    holds_text = True
    incidental: ClassVar[frozenset[str]] = frozenset({"path"})
    """Options that change no number: not part of a result's identity."""

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
                f"source=datasets has text8 alone: got corpus={self.corpus}; set source=files"
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
        """The facts. With a `path` the file must be there: its hash is the identity."""
        return self.stream_spec(
            name=str(self.corpus),
            version=VERSION,
            vocabulary=self.facts.vocabulary,
            metric="bits_per_character",
            source=source_name(self.source, self.path, partial=self.partial),
            data_hash=self.content_hash(self._identity),
        )

    def _identity(self) -> str:
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
        """Where the prepared data lie; one store serves every length and regime."""
        return data_root() / f"{self.corpus}-{self.source}-{self.spec.data_hash}"

    def _hub_identity(self) -> str:
        if self.path is None:
            return f"{HUB_NAME}@{HUB_REVISION}"
        if not self.path.is_dir():
            raise NotPrepared(f"task.path={self.path} is missing; {_hub_instructions()}")
        return folder_identity(self.path)

    def _file(self) -> Path:
        """Return the file that `path` names; `NotPrepared` where there is none."""
        path = self.path or Path()
        candidates = [path] if path.is_file() else []
        if path.is_dir():
            names = [f"{self.corpus}{ending}" for ending in PACKED]
            candidates = [path / name for name in names if (path / name).is_file()]
        if not candidates:
            raise NotPrepared(
                f"{path}: no {self.corpus} there: put {self.facts.url} ({self.facts.size:,} bytes, "
                f"SHA-256 {self.facts.sha256}) there, unpacked or not; {LICENCE}"
            )
        return candidates[0]

    def make(self) -> None:
        """Read the text and store its ids."""
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
            path = self._file() if self.path is not None else self._fetched()
            content = read_text(path)
        ids = self.ids(content)
        return self._filled(np.split(ids, np.cumsum(self._sizes(len(ids)))[:-1]))

    def _filled(self, parts: list[np.ndarray]) -> list[np.ndarray]:
        """Return the parts; `BadData` where one has nothing to predict."""
        for split, ids in zip(SPLITS, parts, strict=True):
            if len(ids) < 2:
                raise BadData(
                    f"{self.spec.source}: {split} has {len(ids)} of {sum(map(len, parts)):,} "
                    "bytes, wanted 2 at least: fetch the text again, or take more of it"
                )
        return parts

    def _hub_parts(self) -> list[np.ndarray]:
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
                    f"{self.spec.source}: {split} has {len(parts[-1]):,} characters, wanted "
                    f"{OFFICIAL[split]:,}: fetch it again; if you want a part of it, set "
                    "task.partial=true"
                )
        return self._filled(parts)

    def _fetched(self) -> Path:
        target = data_root() / "downloads" / self.facts.url.rpartition("/")[2]
        return download(
            self.facts.url,
            target,
            size=self.facts.size,
            sha256=self.facts.sha256,
            instructions=f"download it elsewhere and put it at {target} ({self.facts.size:,} "
            f"bytes, SHA-256 {self.facts.sha256}), or name your copy by task.path; or set "
            f"task.source=sample for a trial; {LICENCE}",
        )

    def _sizes(self, number: int) -> list[int]:
        total = sum(OFFICIAL.values())
        if self.source is CharacterSource.files and not self.partial:
            if number != total:
                raise BadData(
                    f"{self.spec.source}: {number:,} bytes, wanted {total:,}: the file is "
                    "truncated or another file; if you want a part of it, set task.partial=true"
                )
            return list(OFFICIAL.values())
        held = [round(share * number) for share in SHARES[1:]]
        return [number - sum(held), *held]

    def ids(self, content: bytes) -> np.ndarray:
        """Return the id of each byte; `BadData` for one outside the alphabet of text8."""
        codes = np.frombuffer(content, np.uint8)
        if self.corpus is CharacterCorpus.enwik8:
            return codes
        table = np.full(256, 255, np.uint8)
        table[np.frombuffer(ALPHABET, np.uint8)] = np.arange(len(ALPHABET))
        ids = table[codes]
        wrong = ids == 255
        if wrong.any():
            first = int(wrong.argmax())
            raise BadData(
                f"{self.spec.source}: byte {first:,} is {content[first : first + 1]!r}, but "
                "text8 contains only a to z and blanks: is this another file?"
            )
        return ids

    def derived_metrics(self, split: str, loss: float) -> dict[str, float]:
        """Return bits per character from the mean loss in nats."""
        del split
        return {"bits_per_character": loss / math.log(2)}

    def encode(self, text: str) -> Integer[np.ndarray, " n"]:
        """Return the ids of a text. ValueError for what the alphabet of text8 does not have."""
        if self.corpus is CharacterCorpus.text8:
            wrong = sorted({letter for letter in text if letter not in ALPHABET.decode()})
            if wrong:
                raise ValueError(
                    "text8 contains only a to z and blanks: got "
                    f"{', '.join(map(repr, wrong[:8]))}; write in lower case, digits as words, "
                    "without other signs"
                )
        return self.ids(text.encode())

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return the text of some ids; bytes that are no UTF-8 show as �."""
        ids = ids.astype(np.uint8)
        content = (
            ids.tobytes()
            if self.corpus is CharacterCorpus.enwik8
            else bytes(ALPHABET[i] for i in ids)
        )
        return content.decode(errors="replace")

    def describe(self, split: str, index: int) -> str:
        """Return one window of text."""
        return self.decode(self.example(split, index))


def _hub_instructions() -> str:
    folder = data_root() / "text8-datasets"
    return (
        "on a machine with a network connection, download the parquet files of "
        f"https://huggingface.co/datasets/{HUB_NAME}/tree/{HUB_REVISION}/data, put them into "
        f"{folder} and set task.path={folder}; or use task.source=files or sample; {LICENCE}"
    )


def _one_text(rows: list[Any], where: str) -> bytes:
    """Return the only row of a split."""
    if len(rows) != 1 or not isinstance(rows[0], str):
        raise BadData(f"{where}: {len(rows)} rows, wanted one, which is the whole text")
    return rows[0].encode()


def read_text(path: Path) -> bytes:
    """Return the content of a text, packed or not.

    Raises:
        BadData: The archive is damaged, holds no or several files, or more than the whole corpus.
    """
    most = sum(OFFICIAL.values())
    if path.suffix.lower() == ".zip":
        with archives.opened_zip(path, most) as packed:
            names = packed.namelist()
            if len(names) != 1:
                raise BadData(f"{path} contains {len(names)} files, wanted one: fetch it again")
            with archives.open_member(packed, names[0]) as member:
                return member.read()
    with archives.open_packed(path, most) as file:
        return file.read()


def sample_text(size: int) -> bytes:
    """Write `size` bytes of made-up words, some of which come back. They are not Wikipedia."""
    words = iter(random_words(Draw.sample, 0, size).tolist())
    syllables = ("ba", "do", "ki", "lu", "me", "no", "ra", "si", "tu", "ve")
    recent: list[str] = []
    written: list[str] = []
    total = 0
    while total < size:
        if recent and next(words) % 4:
            word = recent[next(words) % len(recent)]
        else:
            word = "".join(syllables[next(words) % 10] for _ in range(1 + next(words) % 4))
            recent = [*recent[-40:], word]
        written.append(word)
        total += len(word) + 1
    return " ".join(written).encode()[:size]
