"""Sequences of different lengths on disk: flat arrays of tokens, offsets and targets.

A store is a folder with three `.npy` files for each split and a `manifest.json`. All appear in one
step, so a folder that exists is complete. A split is written at once, or block by block if it does
not fit into memory; blocks of several splits may alternate.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
from jaxtyping import Int, Shaped

from lra.conf.plain_files import NoFile, NoJson, read_json, typed_object
from lra.conf.system_errors import is_file, persistent
from lra.tasks.data.sources import place_folder, sha256
from lra.tasks.errors import BadData, NotPrepared

FORMAT = 1
PARTS = ("tokens", "offsets", "targets")


class RaggedRows(NamedTuple):
    """Sequence i is `tokens[offsets[i]:offsets[i + 1]]`; example i has the class `targets[i]`.

    An example has p successive sequences: one, or two if examples are pairs.
    """

    tokens: Shaped[np.ndarray, " t"]
    offsets: Int[np.ndarray, " s_plus_1"]
    targets: Shaped[np.ndarray, " n"]

    @property
    def parts(self) -> int:
        """Number of sequences in an example."""
        return max(1, (len(self.offsets) - 1) // max(1, len(self.targets)))

    @property
    def lengths(self) -> Int[np.ndarray, " n"]:
        """Number of tokens in the longest sequence of every example."""
        lengths = np.diff(self.offsets)
        return lengths if self.parts == 1 else lengths.reshape(-1, self.parts).max(1)

    def sequences(self, examples: Int[np.ndarray, " m"]) -> Int[np.ndarray, " _"]:
        """Return the numbers of the sequences of `examples`."""
        if self.parts == 1:
            return examples
        return (examples[:, None] * self.parts + np.arange(self.parts)).ravel()

    def rows(self, order: Int[np.ndarray, " m"]) -> list[Shaped[np.ndarray, " _"]]:
        """Return views of the sequences of the examples in `order`."""
        order = self.sequences(order)
        starts, ends = self.offsets[order].tolist(), self.offsets[order + 1].tolist()
        return [self.tokens[start:end] for start, end in zip(starts, ends, strict=True)]

    def take(self, order: Int[np.ndarray, " m"]) -> "RaggedRows":
        """Return a copy of some examples, in the given order."""
        return from_rows(self.rows(order), self.targets[order], self.tokens.dtype)


def from_rows(
    rows: list[Shaped[np.ndarray, " _"]], targets: Shaped[np.ndarray, " n"], dtype: Any = np.uint8
) -> RaggedRows:
    """Return sequences joined, with one target for every p of them; `dtype` is for no rows."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    tokens = np.concatenate(rows) if rows else np.empty(0, dtype)
    return RaggedRows(tokens, offsets, targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedStore:
    """A folder of prepared splits, opened for reading."""

    folder: Path
    splits: Mapping[str, RaggedRows]
    about: Mapping[str, Any]
    """What the writer recorded: task, version, options."""


def write_store(
    final: Path,
    splits: Mapping[str, RaggedRows | Iterable[RaggedRows]] | Iterable[tuple[str, RaggedRows]],
    about: Mapping[str, Any],
    found: Callable[[Mapping[str, RaggedRows]], Mapping[str, Any]] = lambda _: {},
) -> None:
    """Write the splits and the manifest; the folder `final` appears when all are complete.

    Args:
        final: Folder of the store.
        splits: By name, a whole split or its blocks; or the blocks of all splits in any order, each
            with the name of its split. Blocks need not fit into memory together.
        about: Further facts for the manifest.
        found: Returns facts for the manifest from the written splits.
    """
    with place_folder(final) as folder:
        files: dict[str, dict[str, Any]] = {}
        if isinstance(splits, Mapping):
            names = list(splits)
            for split, content in splits.items():
                if isinstance(content, RaggedRows):
                    for part in PARTS:
                        path = folder / f"{split}.{part}.npy"
                        _save(path, getattr(content, part))
                else:
                    _write_blocks(folder, ((split, block) for block in content), [split])
        else:
            names = _write_blocks(folder, splits)
        for split in names:
            for part in PARTS:
                path = folder / f"{split}.{part}.npy"
                files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
        manifest = {
            "format": FORMAT,
            "about": {**about, **found(_mapped(folder, names))},
            "splits": names,
            "files": files,
        }
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True))


class _Growing:
    """A split that is written block by block, and whose size is unknown until its end.

    The header of the tokens is written for 0 tokens at first, and overwritten by `finish`.
    """

    def __init__(self, folder: Path, split: str) -> None:
        self.folder, self.split, self.total = folder, split, 0
        self.dtype = np.dtype(np.uint8)
        self.offsets, self.targets = [np.zeros(1, np.int64)], [np.empty(0, np.uint8)]
        self.file = (folder / f"{split}.tokens.npy").open("wb")
        _write_header(self.file, self.dtype, 0)

    def add(self, block: RaggedRows) -> None:
        """Append the tokens of a block to the file; keep its offsets and targets in memory."""
        self.dtype = block.tokens.dtype
        self.file.write(np.ascontiguousarray(block.tokens).data)
        self.offsets.append(block.offsets[1:] + self.total)
        self.targets.append(block.targets)
        self.total += len(block.tokens)

    def finish(self) -> None:
        """Write the true header of the tokens, and the files of offsets and targets."""
        self.file.seek(0)
        _write_header(self.file, self.dtype, self.total)
        # The empty first array is only for a split without blocks; its type would change others.
        targets = np.concatenate(self.targets[1:] or self.targets)
        for part, array in (("offsets", np.concatenate(self.offsets)), ("targets", targets)):
            _save(self.folder / f"{self.split}.{part}.npy", array)


def _write_blocks(
    folder: Path, blocks: Iterable[tuple[str, RaggedRows]], names: Iterable[str] = ()
) -> list[str]:
    """Write blocks to their splits; return the names of all splits.

    Splits of `names` are written even if they have no block.
    """
    with ExitStack() as files:
        splits: dict[str, _Growing] = {}

        def growing(name: str) -> _Growing:
            """Return the split of this name, opened at its first block."""
            if name not in splits:
                splits[name] = _Growing(folder, name)
                files.enter_context(splits[name].file)
            return splits[name]

        for name in names:
            growing(name)
        for name, block in blocks:
            growing(name).add(block)
        for split in splits.values():
            split.finish()
        return list(splits)


def _save(path: Path, array: Shaped[np.ndarray, " n"]) -> None:
    """Write the file that `np.save` would; unlike it, raise a clear error on a full disk."""
    with path.open("wb") as file:
        _write_header(file, array.dtype, len(array))
        file.write(np.ascontiguousarray(array).data)


def _write_header(file: BinaryIO, dtype: np.dtype[Any], number: int) -> None:
    """Write the header of a .npy file; it has the same size for any `number` of items."""
    header = {"descr": dtype.str, "fortran_order": False, "shape": (number,)}
    np.lib.format.write_array_header_1_0(file, header)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a store; raise `NotPrepared` if there is none."""
    path = folder / "manifest.json"
    try:
        manifest = typed_object(read_json(path), {"format": int})
        if manifest["format"] == FORMAT:
            typed_object(manifest, {"files": dict, "splits": list, "about": dict})
            for facts in manifest["files"].values():
                typed_object(facts, {"bytes": int, "sha256": str})
            names = {f"{split}.{part}.npy" for split in manifest["splits"] for part in PARTS}
            if not names <= manifest["files"].keys():
                raise NoJson(f"the splits {manifest['splits']!r:.60} are not those of the files")
    except (FileNotFoundError, NotADirectoryError):
        raise NotPrepared(
            f"{folder} is missing, because the data are not prepared on this machine; run "
            "`lra data prepare TASK`, or call the task's prepare()"
        ) from None
    except NoJson as error:
        raise _damage(folder, f"lra cannot read manifest.json ({error})") from error
    except NoFile as error:
        raise _damage(folder, f"manifest.json is {error.strerror}") from error
    if manifest["format"] != FORMAT:
        raise _damage(folder, f"its format is {manifest['format']}; wanted {FORMAT}")
    return manifest


def open_store(folder: Path) -> PreparedStore:
    """Map a store into memory; check the sizes of its files, but not their contents.

    Raises:
        NotPrepared: The store does not exist.
        BadData: A file is missing, or its size differs from the manifest.
    """
    manifest = read_manifest(folder)
    for name, facts in manifest["files"].items():
        path = folder / name
        size = persistent(path.stat).st_size if is_file(path) else 0
        if size != facts["bytes"]:
            raise _damage(folder, f"{name} has {size} bytes; wanted {facts['bytes']}")
    try:
        splits = _mapped(folder, manifest["splits"])
    except (ValueError, EOFError, SyntaxError, TypeError, FileNotFoundError) as error:
        # NumPy raises these errors for a file of the right size with a damaged header.
        raise _damage(folder, f"{error}") from error
    return PreparedStore(folder=folder, splits=splits, about=manifest["about"])


def verify_store(folder: Path) -> None:
    """Compare every file with its hash in the manifest; raise `BadData` if one differs."""
    manifest = read_manifest(folder)
    for name, facts in manifest["files"].items():
        path = folder / name
        digest = persistent(sha256, path) if is_file(path) else "missing"
        if digest != facts["sha256"]:
            raise _damage(folder, f"the SHA-256 of {name} is {digest}; wanted {facts['sha256']}")


def _mapped(folder: Path, splits: Iterable[str]) -> dict[str, RaggedRows]:
    """Return the arrays of each split in a folder."""
    return {
        split: RaggedRows(*(_load(folder / f"{split}.{part}.npy", part) for part in PARTS))
        for split in splits
    }


def _load(path: Path, part: str) -> np.ndarray:
    """Return an array from a file: tokens as a memory map, offsets and targets in memory."""
    # Every batch reads the small offsets and targets, so plain memory is faster for them.
    mapped: Literal["r"] | None = "r" if part == "tokens" else None
    loaded: np.ndarray = persistent(lambda: np.load(path, mmap_mode=mapped, allow_pickle=False))
    return loaded.view(np.ndarray)  # a plain array is faster to index than np.memmap


def _damage(folder: Path, fault: str) -> BadData:
    return BadData(f"{folder} is damaged: {fault}; delete this folder and prepare again")
