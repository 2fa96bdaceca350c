"""Readers of WikiText: from files, archives or the hub, and a sample of the same form."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum, auto
from functools import cache
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple

from lra.conf.short_values import short_list, short_repr
from lra.tasks.data import archives, hub
from lra.tasks.data.lines import LineBlock, file_blocks, is_plain
from lra.tasks.data.sources import data_root, remembered_sha256
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.language.characters import sample_text
from lra.tasks.language.words import UNKNOWN
from lra.tasks.task import SPLITS

HUB_NAME = "Salesforce/wikitext"
HUB_REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"
HUB_ROWS = 20_000
LICENCE = "the licence of WikiText is CC BY-SA 3.0 and GFDL; please cite Merity et al. 2016"
FILES = {"train": "wiki.train", "validation": "wiki.valid", "test": "wiki.test"}
SAMPLE_BYTES = 300_000
SAMPLE_WORDS = 12
"""Number of words in a line of the sample."""


class WikiTextCorpus(StrEnum):
    """The two texts, which have the same validation and test articles."""

    wikitext103 = auto()
    wikitext2 = auto()


class WikiTextForm(StrEnum):
    """The two forms of the text."""

    tokens = auto()
    """Rare words are replaced by `<unk>`."""
    raw = auto()
    """The text has all words."""


class CorpusFacts(NamedTuple):
    """Published facts about a text."""

    name: str
    vocabulary: int
    train_words: int
    unverified: int
    """Allowed difference of the number of words in train, whose published number is unchecked."""
    sha256: Mapping[WikiTextForm, str]
    """Hash of the archive of each form."""

    @property
    def words(self) -> dict[str, int]:
        """Number of words by split, including `<eos>` for every line.

        Merity et al. 2016, table 1 (103,227,021; 2,088,628; 217,646; 245,569).
        """
        return {"train": self.train_words, "validation": 217_646, "test": 245_569}


CORPORA = {
    WikiTextCorpus.wikitext103: CorpusFacts(
        "wikitext-103",
        267_735,
        103_227_021,
        1000,
        {
            WikiTextForm.tokens: "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
            WikiTextForm.raw: "91c00ae287f0d699e18605c84afc9e45c192bc6b7797ff8837e5474655a33794",
        },
    ),
    WikiTextCorpus.wikitext2: CorpusFacts(
        "wikitext-2",
        33_278,
        2_088_628,
        0,
        {
            WikiTextForm.tokens: "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
            WikiTextForm.raw: "ef7edb566e3e2b2d31b29c1fdb0c89a4cc683597484c3dc2517919c615435a11",
        },
    ),
}


class TextFile(NamedTuple):
    """A text file, or a member of an archive."""

    path: Path
    member: str | None
    """Name of the member; None: `path` is the text itself."""


def archive_name(corpus: WikiTextCorpus, form: WikiTextForm) -> str:
    """Return the name of the public archive."""
    return f"{CORPORA[corpus].name}{'-raw' if form is WikiTextForm.raw else ''}-v1.zip"


def find_splits(
    path: Path | None, corpus: WikiTextCorpus, form: WikiTextForm
) -> dict[str, TextFile]:
    """Return the file of each split: a member of an archive, or a file, compressed or not.

    Args:
        path: An archive, or a folder with the archive or with the files. None: the folder downloads
            of the cache, into which the user puts the public archive.
        corpus: Name of the text, which decides the name of the archive and of its folder.
        form: tokens or raw, the ending of the files.

    Raises:
        NotPrepared: The files are missing.
        BadData: The archive is damaged, lacks a file, or (if `path` is None) is not the public one.
    """
    root = data_root() / "downloads" if path is None else path
    archive = root if root.is_file() else root / archive_name(corpus, form)
    if archive.is_file():
        if path is None:
            _check_public(archive, CORPORA[corpus].sha256[form])
        return _members(archive, form)
    corpus_name = CORPORA[corpus].name
    for folder in (root, root / corpus_name, root / f"{corpus_name}-raw"):
        by_split = {split: _packed_file(folder, f"{name}.{form}") for split, name in FILES.items()}
        present = {
            split: TextFile(file, None) for split, file in by_split.items() if file is not None
        }
        if len(present) == len(SPLITS):
            return present
        if present:
            absent = ", ".join(f"{FILES[s]}.{form}" for s in SPLITS if s not in present)
            raise NotPrepared(f"{folder} lacks {absent}; {_instructions(root, corpus, form)}")
    raise NotPrepared(f"{root} contains no WikiText; {_instructions(root, corpus, form)}")


def _packed_file(folder: Path, name: str) -> Path | None:
    """Return the file in `folder`, compressed or not; None if it is missing."""
    paths = (folder / f"{name}{ending}" for ending in archives.PACKED)
    return next((path for path in paths if path.is_file()), None)


def _instructions(root: Path, corpus: WikiTextCorpus, form: WikiTextForm) -> str:
    """Return advice for a user without the files: which files to put where."""
    names = ", ".join(f"{name}.{form}" for name in FILES.values())
    return (
        f"put {archive_name(corpus, form)} (SHA-256 {CORPORA[corpus].sha256[form]}), or its files "
        f"{names} (plain, .gz, .xz or .bz2), into {root}, or set task.path to them; or set "
        "task.source=datasets to use the `datasets` library, or task.source=sample for a trial; "
        f"{LICENCE}"
    )


def _check_public(archive: Path, wanted: str) -> None:
    """Raise `BadData` unless the archive has the hash `wanted`."""
    digest = remembered_sha256(archive)
    if digest != wanted:
        raise BadData(
            f"{archive}: the SHA-256 of the file is {digest}; wanted {wanted}; fetch the file "
            "again, or set task.path to this file to use it as it is"
        )


def _members(archive: Path, form: WikiTextForm) -> dict[str, TextFile]:
    """Return the member of an archive for each split."""
    with archives.opened_zip(archive) as packed:
        names = {name.rpartition("/")[2]: name for name in packed.namelist()}
    absent = [f"{name}.{form}" for name in FILES.values() if f"{name}.{form}" not in names]
    if absent:
        raise BadData(
            f"{archive} contains {short_list(sorted(names)) or 'nothing'}, but not "
            f"{', '.join(absent)}; fetch the archive of form={form}"
        )
    return {split: TextFile(archive, names[f"{name}.{form}"]) for split, name in FILES.items()}


def identities(sources: Mapping[str, TextFile]) -> dict[str, str]:
    """Return the hash of each split's file, or of the archive that contains it.

    If `plain_text` changes a text, for example by removing a byte order mark, " plain" is added.
    Earlier versions read such a text unchanged, so their prepared data differ.
    """
    by_split = {}
    for split, source in sources.items():
        by_split[split] = remembered_sha256(source.path)
        with suppress(BadData), _opened(source) as file:  # reading the text reports damage later
            if not is_plain(file):
                by_split[split] += " plain"
    return by_split


def _where(source: TextFile) -> str:
    """Return the path of a text, and its name in an archive, for messages."""
    return f"{source.path}{f', {source.member}' if source.member else ''}"


def read_split(source: TextFile) -> Iterator[LineBlock]:
    """Yield the lines of a split.

    Raises:
        BadData: The file is damaged, empty or no UTF-8.
    """
    with _opened(source) as file:
        yield from file_blocks(file, _where(source))


@contextmanager
def _opened(source: TextFile) -> Iterator[BufferedIOBase]:
    """Open a text file or a member of an archive for reading bytes."""
    if source.member is None:
        with archives.open_packed(source.path) as file:
            yield file
    else:
        with (
            archives.opened_zip(source.path) as packed,
            archives.open_member(packed, source.member) as member,
        ):
            yield member


def hub_config(corpus: WikiTextCorpus, form: WikiTextForm) -> str:
    """Return the name of the data set's configuration on the hub."""
    return archive_name(corpus, form).removesuffix(".zip")


def load_hub(path: Path | None, corpus: WikiTextCorpus, form: WikiTextForm) -> Any:
    """Return the data set, from the hub or from a folder of parquet files.

    Raises:
        NotPrepared: Neither network nor cache has the data set, or the folder is missing.
        BadData: The data set cannot be read, or lacks a split or the column `text`.
    """
    folder = data_root() / f"{hub_config(corpus, form)}-datasets"
    return hub.load(
        HUB_NAME,
        HUB_REVISION,
        path,
        config=hub_config(corpus, form),
        columns=("text",),
        splits=SPLITS,
        instructions="on a machine with a network connection, download the parquet files of "
        f"https://huggingface.co/datasets/{HUB_NAME}/tree/{HUB_REVISION}/"
        f"{hub_config(corpus, form)}, put them into {folder} and set task.path={folder}; "
        f"or set task.source=files or sample; {LICENCE}",
    )


def read_hub(rows: Any, where: str) -> Iterator[LineBlock]:
    """Yield the rows of the hub as lines of the published file, where a blank line has a blank.

    Raises:
        BadData: A row is no text, or there is no row.
    """
    line = 1
    for table in rows.with_format("arrow").iter(batch_size=HUB_ROWS):
        texts = table.column("text").to_pylist()
        for number, text in enumerate(texts, line):
            if not isinstance(text, str):
                raise BadData(
                    f"{where}, row {number}: the text is {short_repr(text)}; wanted a string"
                )
        ended = (text.rstrip("\n") or " " for text in texts)
        yield LineBlock("".join(f"{text}\n" for text in ended).encode(), where, line)
        line += len(texts)
    if line == 1:
        raise BadData(f"{where} has no rows; fetch the data again")


@cache
def sample() -> dict[str, bytes]:
    """Return articles of made-up words by split, not from WikiText.

    As in form=tokens, a word that train lacks is `<unk>`.
    """
    words = sample_text(SAMPLE_BYTES).split()
    parts: dict[str, list[list[bytes]]] = {split: [] for split in SPLITS}
    for number, first in enumerate(range(0, len(words), SAMPLE_WORDS)):
        article = number // 10  # ten lines each; of ten articles, one is validation and one test
        lines = parts[{8: "validation", 9: "test"}.get(article % 10, "train")]
        if number % 10 == 0:
            lines += [[], [b"=", words[first], b"="], []]
        lines.append(words[first : first + SAMPLE_WORDS])
    vocabulary = {word for line in parts["train"] for word in line}
    return {
        split: b"".join(
            b" %s\n" % b"".join((word if word in vocabulary else UNKNOWN) + b" " for word in line)
            for line in part
        )
        for split, part in parts.items()
    }


def read_sample(split: str) -> Iterator[LineBlock]:
    """Yield the lines of a split of the sample."""
    return file_blocks(io.BytesIO(sample()[split]), f"sample, {split}")
