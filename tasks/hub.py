"""Data sets through the `datasets` library: from the hub, its cache, or a local folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.errors import BadData, NotPrepared
from tasks.sources import data_root, folder_identity


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
    if path is not None and not path.is_dir():
        raise NotPrepared(
            f"{path} is no folder: task.path must name one that `datasets.load_dataset` reads, "
            f"e.g. with {wanted} (columns {', '.join(columns)})"
        )
    cache, origin = data_root() / "huggingface", str(path or name)
    try:
        if path is None:
            loaded = datasets.load_dataset(name, config, revision=revision, cache_dir=str(cache))
        else:
            # The library knows local files by their dates, which stay when content is put in place.
            own = cache / f"folder-{folder_identity(path)[:16]}"
            loaded = datasets.load_dataset(str(path), cache_dir=str(own))
    except (ConnectionError, datasets.exceptions.DatasetNotFoundError) as error:
        raise NotPrepared(
            f"{name} cannot be reached and is not in the cache ({error}); {instructions}"
        ) from error
    except (
        datasets.exceptions.DatasetGenerationError,
        datasets.data_files.EmptyDatasetError,
        pyarrow.ArrowException,
    ) as error:
        cause = error.__cause__ or error
        raise BadData(
            f"{origin} cannot be loaded: {type(cause).__name__}: {cause}; wanted {facts}"
        ) from error
    for split in splits:
        if split not in loaded:
            raise BadData(f"{origin}: splits {sorted(loaded)}, wanted {', '.join(splits)}")
        if set(columns) - set(loaded[split].column_names):
            raise BadData(
                f"{origin}, {split}: columns {loaded[split].column_names}, wanted "
                f"{' and '.join(columns)}"
            )
    return loaded
