"""Files of DNA sequences for tests, in each form that the task reads."""

import gzip
from pathlib import Path
from random import Random


def sequence(seed: int, length: int, letters: str = "ACGT") -> str:
    return "".join(Random(seed).choices(letters, k=length))


def fasta(path: Path, records: dict[str, str], width: int = 60) -> Path:
    """Write records by name, in lines of `width` letters; compressed if the name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, letters in records.items():
        lines += [f">{name}", *(letters[i : i + width] for i in range(0, len(letters), width))]
    text = ("\n".join(lines) + "\n").encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def table(path: Path, rows: list[str], header: str = "id,region,start,end,strand") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = ("\n".join([header, *rows]) + "\n").encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def folders(root: Path, number: int = 30) -> Path:
    """Write train and test folders of the classes neg and pos, with a sequence in each file."""
    for part, split in enumerate(("train", "test")):
        for label, name in enumerate(("neg", "pos")):
            folder = root / split / name
            folder.mkdir(parents=True)
            for n in range(number):
                letters = "AACGT" if label else "ACGTT"
                text = sequence(1000 * part + 100 * label + n, 8 + n, letters)
                (folder / f"{n}.txt").write_text(f"{text}\n")
    return root


def genomes(root: Path) -> Path:
    """Write the genomes of two species, which differ in the share of G and C."""
    fasta(root / "poor.fa.gz", {"p1 first": sequence(1, 900, "AATTCG"), "p2": sequence(2, 650)})
    fasta(root / "rich.fna", {"r1": sequence(3, 1330, "ATCGCG")}, width=71)
    return root
