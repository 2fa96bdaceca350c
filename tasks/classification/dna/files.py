"""DNA sequences and their classes from files, in one of four forms.

    train/CLASS/*.txt          one sequence in each file, as GenomicBenchmarks unpacks; also in an
                               archive (.zip, .tar, .tar.gz, …)
    train/CLASS.fa             one FASTA file for each class, plain or compressed
    train/CLASS.csv.gz         intervals (id, region, start, end, strand) of a genome in FASTA
    train.csv                  a table with a column of sequences and one of labels; or .parquet, …

A FASTA file is one class, because headers have no agreed place for a label. A split `dev` is the
validation split. A folder without train/ has the classes of train itself.
"""

import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from lra.conf.short_values import short_list, short_repr
from lra.tasks.classification.dna.alphabet import BaseReader, reverse_complement
from lra.tasks.classification.table_files import (
    is_table,
    label_number,
    table_records,
    text_bytes,
)
from lra.tasks.data.archives import PACKED, open_member, opened_zip, tar_members
from lra.tasks.data.fasta import fasta_records
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.task import SPLITS

ENDINGS = tuple(name + packed for name in (".fa", ".fasta", ".fna", ".fas") for packed in PACKED)
TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
ARCHIVES = (".zip", ".tar", ".tgz", *(f".tar{packed}" for packed in PACKED if packed))
COLUMNS = ("region", "start", "end", "strand")
STRANDS = {"+": False, "-": True}
LONGEST = 1 << 33
"""Most letters of a record of a FASTA file."""
MOST_BYTES = 1 << 32
"""Most bytes of the sequences of an archive together."""
FORMS = (
    "train/CLASS/*.txt, train/CLASS.fa, train/CLASS.csv.gz with task.genome, or train.csv, and the "
    "same for test"
)


class DnaRow(NamedTuple):
    """One sequence with its class."""

    ids: UInt8[np.ndarray, " l"]
    """Stored numbers of the letters, see `lra.tasks.classification.dna.alphabet`."""
    label: int

    @property
    def key(self) -> tuple[bytes, int]:
        """The bytes by which copies are recognised, and the class."""
        return self.ids.tobytes(), self.label


class GenomeInterval(NamedTuple):
    """A piece of a genome: the bases `start` to `end` - 1 of a region, from 0."""

    where: str
    region: str
    start: int
    end: int
    reverse: bool
    split: str
    label: int


def split_places(path: Path) -> dict[str, Path]:
    """Return the folder or the table of each split, as the form of `path` says.

    Raises:
        NotPrepared: Nothing is there, or a split without train.
    """
    if not path.is_dir():
        if not path.exists():
            raise NotPrepared(f"task.path={path} is missing; wanted a folder with {FORMS}")
        return {"train": path}
    found: dict[str, Path] = {}
    for entry in sorted(path.iterdir()):
        name = entry.name.partition(".")[0]
        split = "validation" if name == "dev" else name
        if split in SPLITS and (entry.is_dir() or is_table(entry)):
            if split in found:
                raise BadData(f"{path}: {found[split].name} and {entry.name} are both {split}; "
                              "remove one of them")  # fmt: skip
            found[split] = entry
    if found and "train" not in found:
        raise NotPrepared(f"{path} has {short_list(found)}, but not train; wanted {FORMS}")
    return found or {"train": path}


def class_places(folder: Path) -> dict[str, Path]:
    """Return the folder, the FASTA file or the table of intervals of each class, sorted by name.

    Raises:
        BadData: A class is there twice.
    """
    found: dict[str, Path] = {}
    for entry in sorted(folder.iterdir()):
        named = entry.is_dir() or entry.name.lower().endswith(ENDINGS + TABLES)
        if named and not entry.name.startswith("."):
            name = class_name(entry)
            if name in found:
                raise BadData(
                    f"{folder}: {found[name].name} and {entry.name} are one class; remove one"
                )
            found[name] = entry
    return dict(sorted(found.items()))


def class_name(path: Path) -> str:
    """Return the name of the class of a folder, or of a file: its name without the ending."""
    endings = () if path.is_dir() else sorted(ENDINGS + TABLES, key=len, reverse=True)
    ending = next((each for each in endings if path.name.lower().endswith(each)), "")
    return path.name[: len(path.name) - len(ending)]


def read_texts(folder: Path, label: int, reader: BaseReader) -> Iterator[DnaRow]:
    """Yield the sequences of the files *.txt of a folder."""
    for file in sorted(folder.glob("*.txt")):
        yield DnaRow(reader.ids(b"".join(file.read_bytes().split()), str(file)), label)


def read_fasta_class(path: Path, label: int, reader: BaseReader) -> Iterator[DnaRow]:
    """Yield the sequences of the records of a FASTA file."""
    for number, (title, letters) in enumerate(fasta_records(path, LONGEST), 1):
        where = f"{path}, record {number:,} ({short_repr(title)})"
        yield DnaRow(reader.ids(letters.encode("latin-1"), where), label)


def read_table(
    path: Path, columns: tuple[str, str], labels: Mapping[str, int], reader: BaseReader
) -> Iterator[DnaRow]:
    """Yield the sequences of a table; `columns` are those of sequences and of labels."""
    for place, (text, label) in table_records(path, columns):
        where = f"{path}, {place}"
        ids = reader.ids(text_bytes(text, where), where)
        yield DnaRow(ids, label_number(label, labels, where))


def read_archive(
    archive: Path, labels: Mapping[str, int], reader: BaseReader
) -> Iterator[tuple[str, DnaRow]]:
    """Yield split and sequence of each file …/SPLIT/CLASS/NAME.txt of an archive."""

    def wanted(path: PurePosixPath) -> bool:
        """Return whether a member is a sequence; refuse a name that leads out of the archive."""
        if path.is_absolute() or ".." in path.parts:
            raise BadData(
                f"{archive}: the member {short_repr(str(path))} lies outside the archive; wanted "
                "names such as train/CLASS/1.txt, without '..' and without '/' in front; make the "
                "archive again"
            )
        return path.suffix == ".txt" and len(path.parts) > 2 and path.parts[-3] in SPLITS

    for path, content in _members(archive, wanted):
        split, name = path.parts[-3:-1]
        where = f"{archive}: {path}"
        ids = reader.ids(b"".join(content.split()), where)
        yield split, DnaRow(ids, label_number(name, labels, where))


def _members(
    archive: Path, wanted: Callable[[PurePosixPath], bool]
) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield name and content of the wanted files of a zip or a tar, without unpacking it."""
    if not zipfile.is_zipfile(archive):
        yield from tar_members(archive, wanted, most=MOST_BYTES)
        return
    with opened_zip(archive, MOST_BYTES) as packed:
        for member in packed.infolist():
            if wanted(PurePosixPath(member.filename)) and not member.is_dir():
                with open_member(packed, member.filename) as file:
                    yield PurePosixPath(member.filename), file.read()


def read_intervals(path: Path, split: str, label: int) -> Iterator[GenomeInterval]:
    """Yield the intervals of a class from a table.

    Raises:
        BadData: A number is no whole number, a start is not below its end, or a strand is wrong.
    """
    for place, values in table_records(path, COLUMNS):
        where = f"{path}, {place}"
        region, start, end, strand = map(str, values)
        if not (start.isascii() and start.isdigit() and end.isascii() and end.isdigit()):
            raise BadData(
                f"{where}: start and end are {short_repr(start)} and {short_repr(end)}; wanted two "
                "whole numbers from 0 on; correct or remove this row"
            )
        if int(start) >= int(end):
            raise BadData(
                f"{where}: the interval has start={start} and end={end}; wanted a start below the "
                "end, since the bases are start to end - 1, from 0; correct or remove this row"
            )
        if strand not in STRANDS:
            raise BadData(
                f"{where}: the strand is {short_repr(strand)}; wanted + or -; correct this row"
            )
        yield GenomeInterval(where, region, int(start), int(end), STRANDS[strand], split, label)


def genome_files(genome: Path, classes: Sequence[str]) -> Mapping[str, list[Path]]:
    """Return the FASTA files of the genome of each class.

    A folder with a file for each class, CLASS.fa, has a genome for each; else all classes share it.

    Raises:
        NotPrepared: There is no FASTA file.
    """
    files = [genome] if genome.is_file() else []
    if genome.is_dir():
        files = sorted(file for file in genome.iterdir() if file.name.lower().endswith(ENDINGS))
    if not files:
        raise NotPrepared(
            f"task.genome={genome} has no FASTA file ({', '.join(ENDINGS[:: len(PACKED)])}, also "
            "compressed); set it to the file of the genome of the intervals, or to a folder of "
            "its chromosomes"
        )
    by_name = {class_name(file): [file] for file in files}
    return {name: by_name[name] if {*classes} <= {*by_name} else files for name in classes}


def cut(
    intervals: Sequence[GenomeInterval], files: Sequence[Path], reader: BaseReader
) -> Iterator[tuple[str, DnaRow]]:
    """Yield split and sequence of each interval, in the order of the genome's records.

    The minus strand is reverse-complemented. Names of regions may lack `chr`, as those of Ensembl.

    Raises:
        BadData: A region is not in the genome or twice, or an interval ends beyond its region.
    """
    by_region: dict[str, list[GenomeInterval]] = defaultdict(list)
    for interval in intervals:
        by_region[interval.region.removeprefix("chr")].append(interval)
    wanted, names, passed = {*by_region}, list[str](), set[str]()
    for title, letters in (record for file in files for record in fasta_records(file, LONGEST)):
        name = (title.split(maxsplit=1) or [""])[0]
        plain = name.removeprefix("chr")
        if plain in wanted & passed:
            raise BadData(
                f"{files[0].parent}: two records have the name {name!r}; wanted one genome; for a "
                "genome of each class, set task.genome to a folder with a file CLASS.fa for each"
            )
        names.append(name)
        passed.add(plain)
        for interval in by_region.pop(plain, ()):
            if interval.end > len(letters):
                raise BadData(
                    f"{interval.where}: the interval ends at base {interval.end:,}, but "
                    f"{interval.region} has {len(letters):,} bases; use the version of the genome "
                    "for which the intervals were made, or correct this row"
                )
            piece = letters[interval.start : interval.end].encode("latin-1")
            ids = reader.ids(piece, interval.where)
            ids = reverse_complement(ids) if interval.reverse else ids
            yield interval.split, DnaRow(ids, interval.label)
    if by_region:
        first = next(iter(by_region.values()))[0]
        raise BadData(
            f"{first.where}: the region {short_repr(first.region)} is not in the genome, which has "
            f"{short_list(map(short_repr, names))}; set task.genome to the genome of the "
            "intervals, or correct the name"
        )
