"""Vocabularies learnt from a train split, stored in the cache.

    vocabularies/words-1a2b…/vocabulary.txt    the content
                            /manifest.json     its hash, and the recipe that decides the content

The folder appears in one step. Every reading compares the hash, because ids have a meaning only
with the file that made them.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from lra.conf.plain_files import NoFile, NoJson, read_bytes, read_json, typed_object
from lra.tasks.data.sources import data_root, lock, place_folder
from lra.tasks.data.stored_task import identity_of
from lra.tasks.errors import BadData, NotPrepared

FORMAT = 1


class CachedFile(NamedTuple):
    """The place of a stored file, and the recipe of its content."""

    folder: Path
    name: str
    """Name of the file inside the folder."""
    recipe: Mapping[str, object]
    """Everything that decides the content, as JSON values."""


def cached_file(kind: str, name: str, recipe: Mapping[str, object]) -> CachedFile:
    """Return the place of the result of `recipe`: a folder with the recipe's hash in its name."""
    return CachedFile(data_root() / "vocabularies" / f"{kind}-{identity_of(recipe)}", name, recipe)


def is_stored(at: CachedFile) -> bool:
    """Return whether the file is stored."""
    return (at.folder / "manifest.json").is_file()


def read_verified(at: CachedFile) -> bytes:
    """Return the content of the stored file, after comparing its hash.

    Raises:
        NotPrepared: The file is missing.
        BadData: The file was changed, or is the result of another recipe.
    """
    path = at.folder / at.name
    try:
        manifest = typed_object(read_json(at.folder / "manifest.json"), {})
        content = read_bytes(path)
    except FileNotFoundError as error:
        raise NotPrepared(
            f"{path} is missing; to make this file from the train split, run `lra data prepare "
            "TASK`, or call the task's prepare()"
        ) from error
    except NoJson as error:
        raise _damage(at, f"lra cannot read manifest.json ({error})") from error
    except NoFile as error:
        raise _damage(at, f"{error.filename} is {error.strerror}") from error
    if manifest.get("format") != FORMAT:
        raise _damage(at, f"its format is {manifest.get('format')}; wanted {FORMAT}")
    # As JSON, a recipe has lists in place of tuples.
    if manifest.get("recipe") != json.loads(json.dumps(at.recipe)):
        raise _damage(at, f"its recipe is {manifest.get('recipe')}; wanted {dict(at.recipe)}")
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != manifest.get("sha256"):
        raise _damage(
            at, f"the file was changed: its SHA-256 is {sha256}; wanted {manifest.get('sha256')}"
        )
    return content


def stored_or_built(at: CachedFile, make: Callable[[], bytes]) -> bytes:
    """Return the stored content; if it is missing, one process calls `make()` and stores it."""
    if not is_stored(at):
        with lock(at.folder.name):
            if not is_stored(at):
                content = make()
                with place_folder(at.folder) as folder:
                    (folder / at.name).write_bytes(content)
                    manifest = {
                        "format": FORMAT,
                        "recipe": dict(at.recipe),
                        "sha256": hashlib.sha256(content).hexdigest(),
                    }
                    text = json.dumps(manifest, indent=1, sort_keys=True)
                    (folder / "manifest.json").write_text(text)
    return read_verified(at)


def _damage(at: CachedFile, fault: str) -> BadData:
    return BadData(f"{at.folder / at.name}: {fault}; delete this folder and prepare again")
