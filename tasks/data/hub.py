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
"""Of a parquet file that is looked at: a row may be a whole book."""


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
    """Return a `DatasetDict` that has all splits, each with all columns.

    Args:
        name: On the hub, read where `path` is None.
        revision: Of the hub's repository: 40 hexadecimal digits.
        path: A local folder of parquet, JSON or CSV files instead.
        columns: What every split must have.
        splits: What must be there.
        instructions: What a person can do without a network; ends the message of a failure.
        config: Which configuration of the data set on the hub.

    Raises:
        NotPrepared: Neither network nor cache has the data set, or the folder is missing.
        BadData: It cannot be read, or a split or a column is missing.
    """
    import datasets
    import pyarrow

    wanted = " and ".join(f"{split}.parquet" for split in splits)
    facts = f"files such as {wanted} with the columns {', '.join(columns)}"
    if path is not None:
        if not path.is_dir():
            raise NotPrepared(
                f"{path} is not a folder: task.path must name one that `datasets.load_dataset` "
                f"reads, for example with {wanted} (columns {', '.join(columns)})"
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
                # The library knows local files by their dates, which stay when content is put in
                # place.
                cache_folder = cache / f"folder-{folder_identity(path)[:16]}"
                loaded = datasets.load_dataset(str(path), cache_dir=str(cache_folder))
    except StorageFull:
        raise
    except (ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        raise NotPrepared(
            f"{name} cannot be reached and is not in the cache ({reason(error)}); {instructions}"
        ) from error
    except (
        datasets.exceptions.DatasetsError,
        datasets.data_files.EmptyDatasetError,
        pyarrow.ArrowException,
        ValueError,
    ) as error:
        raise BadData(f"{origin} cannot be loaded: {reason(error)}; wanted {facts}") from error
    except OSError as error:  # of the hub, or a file that broke off on its way
        if path is not None:
            raise
        raise NotPrepared(
            f"the download of {name} broke off: {reason(error)}; {instructions}"
        ) from error
    for split in splits:
        if split not in loaded:
            raise BadData(
                f"{origin}: splits {short_repr(sorted(loaded))}, wanted {', '.join(splits)}"
            )
        if set(columns) - set(loaded[split].column_names):
            raise BadData(
                f"{origin}, {split}: columns {short_repr(loaded[split].column_names)}, wanted "
                f"{' and '.join(columns)}"
            )
    return loaded


def check_folder(folder: Path) -> None:
    """Read every packed file of a folder once, within the bounds of `lra.tasks.data.archives`.

    The `datasets` library knows no bounds: what it unpacks fills memory and disk.

    Raises:
        BadData: A file is damaged or a bomb, or an archive of several.
    """
    for file in sorted(folder.rglob("*")):
        if not file.is_file():
            continue
        ending = file.suffix.lower()
        if ending == ".parquet":
            _check_parquet(file)
        elif ending in (".zip", ".tar", ".tgz", ".zst", ".lz4", ".7z", ".rar"):
            raise BadData(f"{file}: unpack it first; `datasets` cannot read it packed")
        elif ending in PACKINGS:
            with open_packed(file) as opened:
                while opened.read(CHUNK_BYTES):
                    pass


def _decoded_bytes(column: Any) -> int:
    """Return the bytes of a column; values of a dictionary count as often as they come."""
    from pyarrow import compute, types

    if not types.is_dictionary(column.type):
        return int(column.nbytes)
    values = column.dictionary
    if not (types.is_string(values.type) or types.is_binary(values.type)):
        return int(values.nbytes * max(1, len(column)) // max(1, len(values)))
    lengths = compute.binary_length(values).take(column.indices)
    return int(compute.sum(lengths).as_py() or 0)


def _check_parquet(file: Path) -> None:
    """Read a parquet file in small batches, and count what it becomes."""
    import pyarrow
    from pyarrow import parquet

    budget = Budget(file)
    try:
        with parquet.ParquetFile(file) as opened:
            facts = opened.metadata
            for number in range(facts.num_row_groups):
                group = facts.row_group(number)
                for column in range(group.num_columns):  # as it says of itself
                    Budget(file).spend(group.column(column).total_uncompressed_size)
            for batch in opened.iter_batches(batch_size=ROWS_AT_ONCE):
                budget.spend(sum(_decoded_bytes(column) for column in batch.columns))
    except (pyarrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise BadData(
            f"{file} is not a complete parquet file: {reason(error)}; fetch it again"
        ) from error
