"""The files of a user's own data: some splits have one, the others are held out of train."""

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
    """Files by split, and the shares of train that stand for splits without one.

    Raises:
        ValueError: A share is out of range, or a file of no known kind.
    """

    paths: Mapping[str, Path]
    shares: Mapping[str, float]
    """Of `validation` and of `test`."""

    def __post_init__(self) -> None:
        """Refuse what cannot be read or held out."""
        for name, share in self.shares.items():
            if not 0 < share < 0.5:
                raise ValueError(f"task.{name}_fraction must be from 0 to 0.5: got {share}")
        for split, path in self.paths.items():
            if not is_table(path):
                raise ValueError(
                    f"task.{split}={short(path)}: wanted a file that ends in {', '.join(READERS)}; "
                    f"texts, not parquet, may be packed as {', '.join(PACKINGS)}"
                )

    @classmethod
    def resolve(cls, given: Mapping[str, str | None], shares: Mapping[str, float]) -> "SplitFiles":
        """Return the files that are named, with `~` in their names resolved."""
        return cls({k: Path(v).expanduser() for k, v in given.items() if v is not None}, shares)

    def hashes(self, kind: str) -> dict[str, str]:
        """Return the hash of each file's content, by split.

        Args:
            kind: What a message calls such a file.

        Raises:
            NotPrepared: One is missing.
        """
        by_split = {}
        for split, path in self.paths.items():
            if not path.is_file():
                raise NotPrepared(f"task.{split}={path} is missing: name a {kind} that exists")
            by_split[split] = remembered_sha256(path)
        return by_split

    def hold_out(self, rows: dict[str, list[Row]], key: Callable[[Row], tuple[bytes, int]]) -> None:
        """Move rows of train to the splits that have none.

        Args:
            rows: By split; changed.
            key: What copies of a row have in common, and its label.

        Raises:
            BadData: A label has too few rows for all splits.
        """
        for split in ("test", "validation"):
            if split not in rows:
                whole = rows["train"]
                keys = [key(row) for row in whole]
                taken = held_out(keys, self._share(split), f"task.{split}_fraction")
                rows[split] = [whole[index] for index in np.flatnonzero(taken)]
                rows["train"] = [whole[index] for index in np.flatnonzero(~taken)]

    def repeated(
        self, rows: Mapping[str, Sequence[Row]], key: Callable[[Row], bytes]
    ) -> dict[str, str]:
        """Say which splits hold what train holds as well: copies stay together, but files may not.

        Args:
            rows: Of every split.
            key: What copies of a row have in common.
        """
        train_keys = set(map(key, rows["train"]))
        sentences = {}
        for split in ("validation", "test"):
            if number := sum(key(row) in train_keys for row in rows[split]):
                total = len(rows[split])
                sentences[split] = (
                    f"{number:,} of {total:,} examples of {split} ({number / total:.2%}) are in "
                    "train as well: their scores do not measure new texts"
                )
        return sentences

    def _share(self, split: str) -> float:
        """Return the part of what is left of train that a split takes."""
        taken = self.shares["test"] if split == "validation" and "test" not in self.paths else 0.0
        return self.shares[split] / (1 - taken)
