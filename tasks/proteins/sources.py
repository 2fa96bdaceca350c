"""Sources of protein sequences: FASTA files, a data set of the hub, or a generated sample."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from lra.conf.short_values import short_repr
from lra.tasks.data import hub
from lra.tasks.data.batching import Draw, random_words
from lra.tasks.data.sources import data_root, remembered_sha256
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.proteins.alphabet import LETTERS
from lra.tasks.proteins.fasta import ENDINGS, Cleaning, ProteinRecord, read_fasta

PUBLIC_URL = (
    "https://ftp.uniprot.org/pub/databases/uniprot/current_release/knowledgebase/complete/"
    "uniprot_sprot.fasta.gz"
)
PUBLIC_DATASET = "khairi/uniprot-swissprot"
LICENCE = "the licence of UniProt's data is CC BY 4.0 (UniProt Consortium)"
SAMPLE_SEQUENCES = 900
SAMPLE_MODULES = 12
ROWS_AT_ONCE = 1000


def fasta_files(path: Path | None) -> list[Path]:
    """Return the FASTA files that `path` names, in the order of their names; None: Swiss-Prot.

    Raises:
        NotPrepared: There is no FASTA file.
    """
    root = path or data_root() / "downloads" / PUBLIC_URL.rpartition("/")[2]
    files = [root] if root.is_file() else []
    if root.is_dir():
        files = sorted(
            f for f in root.iterdir() if f.name.lower().endswith(ENDINGS) and f.is_file()
        )
    if not files:
        raise NotPrepared(
            f"{root} contains no FASTA file (.fasta, .fa, .faa, .fas or .fsa, also compressed as "
            f".gz, .xz or .bz2); download Swiss-Prot from {PUBLIC_URL} to this path (about 570,000 "
            "sequences; releases differ, so lra knows no hash), or set task.path to your file or "
            f"folder, or task.source=sample for a trial; {LICENCE}"
        )
    return files


def content(files: Sequence[Path]) -> list[str]:
    """Return the hash of each file, in order."""
    return [remembered_sha256(file) for file in files]


def from_files(files: Sequence[Path]) -> Iterator[ProteinRecord]:
    """Yield the sequences of FASTA files, one file after another."""
    for file in files:
        yield from read_fasta(file)


def from_datasets(
    name: str, revision: str | None, path: Path | None, column: str
) -> Iterator[ProteinRecord]:
    """Yield the sequences in the column `column` of all splits of a data set, without accessions.

    Raises:
        NotPrepared: The data set cannot be reached.
        BadData: The data set cannot be read, lacks the column, or has a row without a sequence.
    """
    loaded = hub.load(
        name,
        revision or "",
        path,
        columns=[column],
        splits=["train"],
        instructions="download its files on another machine and set task.path to their folder, or "
        "set task.source=files to read FASTA files",
    )
    for split in sorted(loaded):
        origin = f"{path or name}, {split}"
        table, cleaning, number = loaded[split], Cleaning(origin), 0
        if column not in table.column_names:
            raise BadData(
                f"{origin}: the columns are {short_repr(table.column_names)}, without {column}"
            )
        for rows in table.select_columns([column]).iter(batch_size=ROWS_AT_ONCE):
            for text in rows[column]:
                number += 1
                if not isinstance(text, str):
                    raise BadData(
                        f"{origin}, record {number:,}: {column} is {short_repr(text)}; wanted a "
                        "text; set task.column to the column of sequences"
                    )
                letters = cleaning.letters(text, number, column)
                if letters:
                    yield ProteinRecord("", letters)
        cleaning.report()


def sample() -> Iterator[ProteinRecord]:
    """Yield made-up chains of a few modules, no real proteins.

    A module is a fixed sequence of 8 to 15 residues; about every eighth residue of a chain is
    changed. A model can learn frequent residues, and to predict residues from the ones before.
    """
    numbers = iter(random_words(Draw.sample, 0, 400 * SAMPLE_SEQUENCES).tolist())

    def residues(number: int) -> bytes:
        """Return `number` random residues."""
        # The smaller of two random numbers makes early letters frequent, and the last five rare.
        return bytes(LETTERS[min(next(numbers) % 25, next(numbers) % 25)] for _ in range(number))

    modules = [residues(8 + next(numbers) % 8) for _ in range(SAMPLE_MODULES)]
    for index in range(SAMPLE_SEQUENCES):
        chain = b"".join(
            modules[next(numbers) % SAMPLE_MODULES] for _ in range(2 + next(numbers) % 8)
        )
        letters = bytes(c if next(numbers) % 8 else residues(1)[0] for c in chain)
        yield ProteinRecord(f"SAMPLE{index}", letters)
