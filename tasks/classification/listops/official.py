"""Prepared trees written as the official TSV files, with as many processes as there are cores."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tasks.classification.listops.text import FILES, HEADER, official_lines
from tasks.data.bars import tqdm
from tasks.data.sources import CHUNK_BYTES, placing
from tasks.data.storage import open_store
from tasks.data.workers import in_order

LINES_AT_ONCE = 500


def write_tsv(store: Path, target: Path, sizes: Mapping[str, int], processes: int) -> None:
    """Write the files of all splits, or nothing.

    Args:
        store: Folder of the prepared trees.
        target: Folder of the files.
        sizes: Trees of each split.
        processes: 0 = every core.
    """
    with placing(target) as folder:
        for split, name in FILES.items():
            number = sizes[split]
            jobs = (
                (
                    store,
                    split,
                    range(first, min(first + LINES_AT_ONCE, number)),
                    folder / f"{name}.{first}",
                )
                for first in range(0, number, LINES_AT_ONCE)
            )
            with (
                (folder / name).open("wb") as file,
                tqdm(desc=name, total=number, unit="line", disable=None) as bar,
            ):
                file.write(HEADER + b"\n")
                least = 4 * LINES_AT_ONCE
                for path in in_order(_write_lines, jobs, processes if number > least else 1):
                    with path.open("rb") as part:
                        shutil.copyfileobj(part, file, CHUNK_BYTES)
                    path.unlink()
                    bar.update(LINES_AT_ONCE)


def _write_lines(job: tuple[Path, str, range, Path]) -> Path:
    """Write some lines to a file of their own: cheaper than sending them to the parent."""
    folder, split, rows, path = job
    part = open_store(folder).splits[split].take(np.array(rows))
    path.write_bytes(official_lines(part.tokens, part.offsets, part.targets))
    return path
