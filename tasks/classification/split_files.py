"""The files of a user's data: a split has a file, or it is taken from the rows of train."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from lra.conf.short_values import short
from lra.tasks.classification.table_files import READERS, is_table
from lra.tasks.data.archives import PACKINGS
from lra.tasks.data.held_out import held_out
from lra.tasks.data.sources import remembered_sha256
from lra.tasks.errors import NotPrepared

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """Files by split, and shares of train for the splits without a file.

    Raises:
        ValueError: A share is out of range.
    """

    paths: Mapping[str, Path]
    shares: Mapping[str, float]
    """Share of train for `validation`, and for `test`."""
    salt: bytes = b""
    """Another salt moves other rows of train."""

    def __post_init__(self) -> None:
        """Check the shares."""
        for name, share in self.shares.items():
            if not 0 < share < 0.5:
                raise ValueError(f"task.{name}_fraction must lie in (0, 0.5): got {share}")

    @classmethod
    def resolve(cls, given: Mapping[str, str | None], shares: Mapping[str, float]) -> "SplitFiles":
        """Return the tables of `given` that are not None, with `~` replaced by the home folder.

        Raises:
            ValueError: The name of a file has an unknown ending.
        """
        paths = {k: Path(v).expanduser() for k, v in given.items() if v is not None}
        for split, path in paths.items():
            if not is_table(path):
                raise ValueError(
                    f"task.{split}: got {short(path)}; wanted a file name that ends in "
                    f"{', '.join(READERS)}; files other than parquet may be compressed as "
                    f"{', '.join(PACKINGS)}"
                )
        return cls(paths, shares)

    def hashes(self, kind: str) -> dict[str, str]:
        """Return the hash of each file's content, by split.

        Args:
            kind: Name of such a file in messages, for example table.

        Raises:
            NotPrepared: A file is missing.
        """
        by_split = {}
        for split, path in self.paths.items():
            if not path.is_file():
                raise NotPrepared(
                    f"task.{split}={path} is missing; set task.{split} to an existing {kind}"
                )
            by_split[split] = remembered_sha256(path)
        return by_split

    def hold_out(self, rows: dict[str, list[Row]], key: Callable[[Row], tuple[bytes, int]]) -> None:
        """Move rows of train to the splits without a file.

        Args:
            rows: Rows by split; changed in place.
            key: Returns the bytes by which copies of a row are recognised, and the row's label.

        Raises:
            BadData: A label has too few rows for all splits.
        """
        for split in ("test", "validation"):
            if split not in rows:
                train = rows["train"]
                keys = [key(row) for row in train]
                share = self._share(split)
                moved = held_out(keys, share, f"task.{split}_fraction", self.salt)
                rows[split] = [train[index] for index in np.flatnonzero(moved)]
                rows["train"] = [train[index] for index in np.flatnonzero(~moved)]

    def repeated(
        self, rows: Mapping[str, Sequence[Row]], key: Callable[[Row], bytes]
    ) -> dict[str, str]:
        """Return a sentence for each evaluation split that has `rows` of train.

        `key` returns the bytes by which copies are recognised. Only two files can share rows.
        """
        train_keys = set(map(key, rows["train"]))
        sentences = {}
        for split in ("validation", "test"):
            if number := sum(key(row) in train_keys for row in rows[split]):
                total = len(rows[split])
                sentences[split] = (
                    f"{number:,} of {total:,} {split} examples ({number / total:.2%}) are in "
                    "train as well, so their scores do not measure new texts"
                )
        return sentences

    def _share(self, split: str) -> float:
        """Return the share of the remaining rows of train that moves to `split`.

        The test split takes its rows first; shares are parts of the original train.
        """
        moved = self.shares["test"] if split == "validation" and "test" not in self.paths else 0.0
        return self.shares[split] / (1 - moved)
