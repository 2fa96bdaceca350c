"""What the files of the store look like inside: rows, per-example outcomes. Torch-free."""

import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runners.records import COLUMNS, SCHEMA, Outcomes, Status

_COLUMNS = frozenset(COLUMNS)
_STATUSES = frozenset(status.value for status in Status)


class BadStore(ValueError):
    """A file in the store is torn, foreign or too new; the message names file and line."""


def row_line(stored: Mapping[str, Any]) -> str:
    """Return one row as a line of JSON."""
    return json.dumps(stored, allow_nan=False, ensure_ascii=False, separators=(",", ":")) + "\n"


def pretty(value: Mapping[str, Any]) -> bytes:
    """Return JSON for people."""
    return (json.dumps(value, allow_nan=False, ensure_ascii=False, indent=2) + "\n").encode()


def pack_outcomes(outcomes: Sequence[Outcomes]) -> bytes:
    """Return an npz file: hits as packed bits or shares, nll as float32.

    Raises:
        ValueError: Out of order, or of unlike lengths.
    """
    import numpy as np

    arrays: dict[str, Any] = {}
    for each in outcomes:
        index = np.asarray(each.index, dtype=np.int64)
        hit = np.asarray(each.hit)
        nll = np.asarray(each.nll, dtype=np.float32)
        if f"{each.split}.index" in arrays:
            raise ValueError(f"two outcomes for split {each.split!r}: keep those of the last")
        if not index.shape == hit.shape == nll.shape or index.ndim != 1:
            raise ValueError(
                f"outcomes of split {each.split!r} must be three vectors of one length: got index "
                f"{index.shape}, hit {hit.shape}, nll {nll.shape}"
            )
        if (np.diff(index) <= 0).any():
            raise ValueError(f"outcomes of split {each.split!r} must come in ascending index")
        arrays[f"{each.split}.index"] = index
        if hit.dtype == bool:
            arrays[f"{each.split}.hit"] = np.packbits(hit)
        else:
            arrays[f"{each.split}.share"] = hit.astype(np.float32)
        arrays[f"{each.split}.nll"] = nll
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def unpack_outcomes(path: Path) -> list[Outcomes]:
    """Return what `pack_outcomes` put into a file, by split name. Raises `BadStore`."""
    import numpy as np

    try:
        with path.open("rb") as file:
            return list(_unpacked(np.load(file, allow_pickle=False)))
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError) as error:
        raise BadStore(f"{path}: torn or foreign ({error}); remove it and its rows file") from error


def _unpacked(archive: Any) -> Iterator[Outcomes]:
    import numpy as np

    with archive as arrays:
        for split in sorted(name.removesuffix(".index") for name in arrays if ".index" in name):
            index = arrays[f"{split}.index"]
            if f"{split}.share" in arrays:
                hit = arrays[f"{split}.share"]
            else:
                hit = np.unpackbits(arrays[f"{split}.hit"], count=len(index)).astype(bool)
            nll = arrays[f"{split}.nll"]
            yield Outcomes(split=split, index=index, hit=hit, nll=nll)


def newest_rows(folder: Path) -> Path | None:
    """Return the rows file that was written last, by the time inside: copies keep it."""
    files = sorted(folder.glob("rows-*.jsonl"))
    if len(files) < 2:
        return files[0] if files else None
    return max(files, key=lambda path: str(read_rows_file(path, folder.name)[0]["created"]))


def fingerprint_of(rows: Path) -> str:
    """Return the fingerprint in the name of a rows file."""
    return rows.stem.removeprefix("rows-")


def read_rows_file(path: Path, key: str) -> list[dict[str, Any]]:
    """Return the rows of one cell. Raises `BadStore` with file and line."""
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        number = path.read_bytes()[: error.start].count(b"\n") + 1
        raise BadStore(f"{path}, line {number}: not UTF-8; remove the file") from error
    if not text.endswith("\n"):
        number = text.count("\n") + 1
        raise BadStore(f"{path}, line {number}: torn; remove the file, and its cell runs again")
    lines = text[:-1].split("\n")
    try:  # one call for the whole file takes two thirds of the time of one call for each line
        rows: list[dict[str, Any]] = json.loads(f"[{','.join(lines)}]")
    except ValueError:
        rows = []
    if len(rows) != len(lines):
        rows = [_parse(line, path, number) for number, line in enumerate(lines, start=1)]
    fingerprint = fingerprint_of(path)
    for number, each in enumerate(rows, start=1):
        _check(each, path, number, key, fingerprint)
    return rows


def _parse(line: str, path: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise BadStore(
            f"{path}, line {number}: torn, not JSON ({error}); remove the file, and its cell "
            "runs again"
        ) from error


def _check(found: Any, path: Path, number: int, key: str, fingerprint: str) -> None:
    schema = found.get("schema") if isinstance(found, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise BadStore(
            f"{path}, line {number}: written with schema {schema}, this version reads up to "
            f"{SCHEMA}; update lra"
        )
    if not isinstance(found, dict) or found.keys() != _COLUMNS or schema != SCHEMA:
        raise BadStore(
            f"{path}, line {number}: not a row of schema {SCHEMA}; move the file out of the "
            "results folder"
        )
    if found["cell"] != key or found["fingerprint"] != fingerprint:
        raise BadStore(
            f"{path}, line {number}: belongs to cell {found['cell']}, fingerprint "
            f"{found['fingerprint']}; move the file where it belongs"
        )
    if found["status"] not in _STATUSES:
        raise BadStore(
            f"{path}, line {number}: unknown status {found['status']!r}; known: {', '.join(Status)}"
        )
