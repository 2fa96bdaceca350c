"""Readers of IMDb's reviews: from its folder or archive, or by the `datasets` library.

Every reader returns a list of (bytes, label) by split. The order is that of the sorted file names,
or of the rows of a data set. Bytes are returned unchanged, valid UTF-8 or not.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from lra.conf.short_values import short_repr
from lra.tasks.classification.labels import whole_labels
from lra.tasks.data import hub
from lra.tasks.data.archives import tar_members
from lra.tasks.data.bars import tqdm
from lra.tasks.data.batching import Draw, random_words
from lra.tasks.data.sources import data_root
from lra.tasks.errors import BadData, NotPrepared

Labelled: TypeAlias = list[tuple[bytes, int]]
LABELS = {"neg": 0, "pos": 1}
PARTS = ("train", "test")
FOLDERS = tuple(f"{part}/{sentiment}" for part in PARTS for sentiment in LABELS)
REVIEW = re.compile(r"\d+_\d+\.txt")

PUBLIC_URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
PUBLIC_BYTES = 84_125_825
PUBLIC_SHA256 = "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe"
HUB_NAME = "stanfordnlp/imdb"
HUB_REVISION = "e6281661ce1c48d982bc483cf8a173c1bbeb5d31"
LICENCE = (
    "the publishers of IMDb's reviews state no licence and provide them for research; please cite "
    "Maas et al., ACL 2011; the texts belong to their authors"
)

MOST_BYTES = 1 << 28
"""Most bytes of all labelled reviews that are read; the published ones have 65,483,508."""
SAMPLE_WORDS = {
    0: [
        "awful", "boring", "clumsy", "dreadful", "dull", "flat", "hollow", "lifeless", "messy",
        "painful", "tedious", "weak",
    ],
    1: [
        "brilliant", "charming", "clever", "delightful", "gripping", "joyful", "lovely", "moving",
        "rich", "superb", "warm", "witty",
    ],
}  # fmt: skip
SAMPLE_FRAMES = (
    "The {noun} was {word}.",
    "I found the {noun} {word} from start to end.",
    "A {word} {noun}, if you ask me.",
    "My friends called the {noun} {word}.",
)
SAMPLE_NOUNS = ("acting", "camera", "cast", "dialogue", "ending", "film", "music", "plot", "story")
SAMPLE_SIZES = {"train": 400, "test": 200}


def read_folder(folder: Path) -> dict[str, Labelled]:
    """Read {train,test}/{pos,neg}/ID_RATING.txt below `folder`, or below its subfolder aclImdb.

    Raises:
        NotPrepared: A folder is missing.
        BadData: A folder has no review, or a text file with another name, or an empty one.
    """
    root = folder / "aclImdb" if (folder / "aclImdb").is_dir() else folder
    contents: dict[str, bytes] = {}
    for part in FOLDERS:
        if not (root / part).is_dir():
            archives = sorted(file.name for file in folder.glob("aclImdb*.tar*"))
            hint = f", or to the archive {folder / archives[0]}" if archives else ""
            raise NotPrepared(
                f"{root / part} is missing; set task.path to the unpacked {PUBLIC_URL}, a folder "
                f"with the subfolders {', '.join(FOLDERS)}{hint}"
            )
        with os.scandir(root / part) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".txt"))
        for name in tqdm(names, desc=part, unit="file", disable=None):
            contents[f"{part}/{name}"] = (root / part / name).read_bytes()
    return _label_by_folder(contents, root)


def read_archive(archive: Path) -> dict[str, Labelled]:
    """Read the files of `read_folder` from aclImdb_v1.tar.gz or a similar tar, without unpacking.

    Raises:
        BadData: The archive is truncated or damaged, or lacks reviews.
    """
    contents: dict[str, bytes] = {}

    def part(path: PurePosixPath) -> str:
        """Return the last two folders of a file, for example train/pos."""
        return "/".join(path.parts[-3:-1])

    members = tar_members(
        archive, lambda path: part(path) in FOLDERS and path.suffix == ".txt", most=MOST_BYTES
    )
    for path, content in tqdm(members, desc=archive.name, unit="file", disable=None):
        contents[f"{part(path)}/{path.name}"] = content
    return _label_by_folder(contents, archive)


def _label_by_folder(contents: Mapping[str, bytes], origin: Path) -> dict[str, Labelled]:
    """Return the reviews of train and test, sorted by name, with the labels of their folders.

    Args:
        contents: Bytes of each file by its name, for example train/pos/0_9.txt.
        origin: Folder or archive of the files, for messages.
    """
    labelled: dict[str, Labelled] = {part: [] for part in PARTS}
    present = set()
    for name in sorted(contents):
        part, sentiment, file = name.split("/")
        if not REVIEW.fullmatch(file):
            raise BadData(
                f"{origin}: the file {name} is no review, whose name is ID_RATING.txt, for example "
                "0_9.txt; move the file elsewhere"
            )
        if not contents[name]:
            raise empty_text(f"{origin}: {name}")
        present.add(f"{part}/{sentiment}")
        labelled[part].append((contents[name], LABELS[sentiment]))
    absent = [folder for folder in FOLDERS if folder not in present]
    if absent:
        raise BadData(
            f"{origin}: there is no review in {', '.join(absent)}; fetch {PUBLIC_URL} again, which "
            f"has reviews in {', '.join(FOLDERS)}"
        )
    return labelled


def empty_text(where: str) -> BadData:
    """Return the error for the text at `where`, which has 0 bytes."""
    return BadData(f"{where} is an empty text (0 bytes); delete it, or restore its content")


def read_datasets(path: Path | None) -> dict[str, Labelled]:
    """Read `stanfordnlp/imdb`, or a local folder of parquet, JSON or CSV files, by `datasets`.

    Raises:
        NotPrepared: Neither network nor cache has the data set, or the folder is missing.
        BadData: A column is missing, a text is empty or no string, or a label is neither 0 nor 1.
    """
    loaded = hub.load(
        HUB_NAME,
        HUB_REVISION,
        path,
        columns=("text", "label"),
        splits=PARTS,
        instructions=hub_instructions(),
    )
    return {part: _labelled_rows(loaded, part, str(path or HUB_NAME)) for part in PARTS}


def hub_instructions() -> str:
    """Return advice for a user without a connection to the hub: which files to put where."""
    folder = data_root() / "imdb-datasets"
    return (
        "on a machine with a network connection, download "
        f"https://huggingface.co/datasets/{HUB_NAME}/tree/{HUB_REVISION}/plain_text, put "
        f"train-00000-of-00001.parquet and test-00000-of-00001.parquet into {folder} and set "
        f"task.path={folder}; or set task.source=files or task.source=sample; {LICENCE}"
    )


def _labelled_rows(loaded: Any, part: str, origin: str) -> Labelled:
    """Return the rows of the split `part` of a loaded data set; `origin` opens messages."""
    table = loaded[part].with_format("arrow")[:]
    rows: Labelled = []
    labels = whole_labels(table.column("label").to_pylist(), len(LABELS), f"{origin}, {part}")
    pairs = zip(table.column("text").to_pylist(), labels.tolist(), strict=True)
    for number, (text, label) in enumerate(pairs):
        where = f"{origin}, {part}, row {number}"
        if not isinstance(text, str):
            raise BadData(
                f"{where}: the text is {short_repr(text)}; wanted a string; correct or remove this "
                "row"
            )
        if not text:
            raise empty_text(where)
        rows.append((text.encode(), label))
    return rows


def sample_reviews() -> dict[str, Labelled]:
    """Return short synthetic reviews, not from IMDb; words of sentiment show the label."""
    return {
        part: list(_compose_reviews(seed, number))
        for seed, (part, number) in enumerate(SAMPLE_SIZES.items())
    }


def _compose_reviews(seed: int, number: int) -> Iterator[tuple[bytes, int]]:
    """Yield `number` reviews of 3 to 8 sentences, with the labels 0 and 1 alternately."""
    # 64 random numbers for each review, more than any review needs.
    numbers = iter(random_words(Draw.sample, seed, 64 * number).tolist())

    def pick(options: Sequence[str]) -> str:
        """Return a random one of `options`."""
        chosen: str = options[next(numbers) % len(options)]
        return chosen

    for index in range(number):
        label = index % 2
        sentences = []
        for _ in range(3 + next(numbers) % 6):
            # One word in eight has the opposite sentiment, so that no single word decides.
            tone = 1 - label if next(numbers) % 8 == 0 else label
            frame, noun, word = pick(SAMPLE_FRAMES), pick(SAMPLE_NOUNS), pick(SAMPLE_WORDS[tone])
            sentences.append(frame.format(noun=noun, word=word))
        yield " ".join(sentences).encode(), label
