"""Data sets through the `datasets` library: from the hub, its cache, or a local folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lra.conf.short_values import reason, short_repr
from lra.tasks.data.archives import PACKINGS, Budget, open_packed
from lra.tasks.data.full_disk import StorageFull, full_disk_explained
from lra.tasks.data.sources import CHUNK_BYTES, data_root, folder_identity
from lra.tasks.errors import BadData, NotPrepared

ROWS_AT_ONCE = 64
"""Rows of a parquet file that are checked together; a row may be a whole book."""


def load(
    name: str,
    revision: str,
    path: Path | None,
    *,
    columns: Sequence[str],
    splits: Sequence[str],
    instructions: str,
    config: str | None = None,
) -> Any:
    """Return a data set as a `DatasetDict` with all `splits`, each with all `columns`.

    Args:
        name: Name of the data set on the hub, which is read if `path` is None.
        revision: Commit of the data set on the hub: 40 hexadecimal digits.
        path: A local folder of parquet, JSON or CSV files, instead of the hub.
        columns: Names of the columns that every split must have.
        splits: Names of the splits that the data set must have.
        instructions: Advice for a user without a network; ends the message of a failure.
        config: Name of the configuration of the data set on the hub; None: its only one.

    Raises:
        NotPrepared: Neither network nor cache has the data set, or the folder is missing.
        BadData: The data set cannot be read, or lacks a split or a column.
    """
    import datasets
    import pyarrow

    wanted = " and ".join(f"{split}.parquet" for split in splits)
    facts = f"{wanted} (columns {', '.join(columns)})"
    if path is not None:
        if not path.is_dir():
            raise NotPrepared(
                f"{path} is no folder; set task.path to a folder that `datasets.load_dataset` "
                f"reads, for example with {facts}"
            )
        check_folder(path)
    cache, origin = data_root() / "huggingface", str(path or name)
    try:
        with full_disk_explained(cache):
            if path is None:
                loaded = datasets.load_dataset(
                    name, config, revision=revision, cache_dir=str(cache)
                )
            else:
                # The library recognises files by their dates, so it would miss a new content.
                cache_folder = cache / f"folder-{folder_identity(path)[:16]}"
                loaded = datasets.load_dataset(str(path), cache_dir=str(cache_folder))
    except StorageFull:
        raise
    except (ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        raise NotPrepared(
            f"{name} cannot be reached on the hub, and the cache of lra does not have it "
            f"({reason(error)}); {instructions}"
        ) from error
    except (
        datasets.exceptions.DatasetsError,
        datasets.data_files.EmptyDatasetError,
        pyarrow.ArrowException,
        ValueError,
    ) as error:
        raise BadData(
            f"lra cannot load {origin}: {reason(error)}; wanted files such as {facts}"
        ) from error
    except OSError as error:  # an error of the hub, or an interrupted download
        if path is not None:
            raise
        raise NotPrepared(
            f"the download of {name} was interrupted: {reason(error)}; {instructions}"
        ) from error
    for split in splits:
        if split not in loaded:
            raise BadData(
                f"{origin}: the data set has the splits {short_repr(sorted(loaded))}; wanted "
                f"{', '.join(splits)}"
            )
        if set(columns) - set(loaded[split].column_names):
            raise BadData(
                f"{origin}, {split}: the columns are {short_repr(loaded[split].column_names)}; "
                f"wanted {' and '.join(columns)}"
            )
    return loaded


def check_folder(folder: Path) -> None:
    """Read every compressed file of a folder once, with the limits of `lra.tasks.data.archives`.

    The `datasets` library has no such limits, so a file could fill memory and disk.

    Raises:
        BadData: A file is damaged, unpacks to too many bytes, or is an archive of several files.
    """
    for file in sorted(folder.rglob("*")):
        if not file.is_file():
            continue
        ending = file.suffix.lower()
        if ending == ".parquet":
            _check_parquet(file)
        elif ending in (".zip", ".tar", ".tgz", ".zst", ".lz4", ".7z", ".rar"):
            raise BadData(f"{file} is an archive, which `datasets` does not read; unpack it first")
        elif ending in PACKINGS:
            with open_packed(file) as opened:
                while opened.read(CHUNK_BYTES):
                    pass


def _decoded_bytes(column: Any) -> int:
    """Return the bytes of a column after decoding; a repeated dictionary value counts each time."""
    from pyarrow import compute, types

    if not types.is_dictionary(column.type):
        return int(column.nbytes)
    values = column.dictionary
    if not (types.is_string(values.type) or types.is_binary(values.type)):
        # Values of a fixed width: their mean width times the number of rows.
        return int(values.nbytes * max(1, len(column)) // max(1, len(values)))
    lengths = compute.binary_length(values).take(column.indices)
    return int(compute.sum(lengths).as_py() or 0)


def _check_parquet(file: Path) -> None:
    """Read a parquet file in small batches; raise `BadData` if it has too many decoded bytes."""
    import pyarrow
    from pyarrow import parquet

    budget = Budget(file)
    try:
        with parquet.ParquetFile(file) as opened:
            facts = opened.metadata
            for number in range(facts.num_row_groups):
                group = facts.row_group(number)
                for column in range(group.num_columns):  # first check the sizes that it states
                    Budget(file).spend(group.column(column).total_uncompressed_size)
            for batch in opened.iter_batches(batch_size=ROWS_AT_ONCE):
                budget.spend(sum(_decoded_bytes(column) for column in batch.columns))
    except (pyarrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise BadData(
            f"{file} is no complete parquet file ({reason(error)}); fetch the file again"
        ) from error
