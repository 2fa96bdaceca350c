"""What was learnt from a train split and lies in the cache: one file, and what it was made from.

    vocabularies/words-1a2b…/vocabulary.txt    the content
                            /manifest.json     its hash, and the recipe

The folder appears whole or not at all. The hash is compared whenever the content is read: ids mean
nothing without the very file that made them.
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
    """Where something is stored."""

    folder: Path
    name: str
    """Of the file inside the folder."""
    recipe: Mapping[str, object]
    """What decides the content, plain JSON."""


def cached_file(kind: str, name: str, recipe: Mapping[str, object]) -> CachedFile:
    """Return where the outcome of a recipe lies: in a folder that is named by its hash."""
    return CachedFile(data_root() / "vocabularies" / f"{kind}-{identity_of(recipe)}", name, recipe)


def is_stored(at: CachedFile) -> bool:
    """Return whether something is stored there."""
    return (at.folder / "manifest.json").is_file()


def read_verified(at: CachedFile) -> bytes:
    """Return what is stored, compared with its hash.

    Raises:
        NotPrepared: Nothing is there.
        BadData: It was changed, or is the outcome of another recipe.
    """
    path = at.folder / at.name
    try:
        manifest = typed_object(read_json(at.folder / "manifest.json"), {})
        content = read_bytes(path)
    except FileNotFoundError as error:
        raise NotPrepared(
            f"{path} is missing: it is made from the train split; run `lra data prepare TASK`, or "
            "call the task's prepare()"
        ) from error
    except NoJson as error:
        raise _bad(at, f"manifest.json cannot be read ({error})") from error
    except NoFile as error:
        raise _bad(at, f"{error.filename} is {error.strerror}") from error
    if manifest.get("format") != FORMAT:
        raise _bad(at, f"format {manifest.get('format')}, wanted {FORMAT}")
    if manifest.get("recipe") != json.loads(json.dumps(at.recipe)):
        raise _bad(at, f"made from {manifest.get('recipe')}, wanted {dict(at.recipe)}")
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != manifest.get("sha256"):
        raise _bad(at, f"SHA-256 {sha256}, wanted {manifest.get('sha256')}: it was changed")
    return content


def stored_or_built(at: CachedFile, make: Callable[[], bytes]) -> bytes:
    """Return what is stored; make and store it where it is missing, one process for all."""
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


def _bad(at: CachedFile, fault: str) -> BadData:
    return BadData(f"{at.folder / at.name}: {fault}; delete this folder and prepare again")
