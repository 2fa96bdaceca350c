"""Find installed packages that offer models, tasks and the like, through entry points.

    [project.entry-points.lra]
    acme = "acme_mixer:conf"

An entry point of the group `lra` names a package and a folder in it with `model/`, `task/` and the
like. This module imports no package; lra imports one only if an argument chooses something from it.
"""

import sys
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lra.composition.class_path import paths_in

GROUP = "lra"


@cache
def extensions() -> dict[str, Path]:
    """Return the folder of YAML files of each package that has an entry point, by its name."""
    # Importing importlib.metadata takes longer than all of `lra --help`, so it comes last.
    files = (file for path in sys.path for file in Path(path).glob("*.*-info/entry_points.txt"))
    if not any(f"[{GROUP}]" in file.read_text(errors="replace") for file in files):
        return {}
    from importlib.metadata import entry_points

    folders: dict[str, Path] = {}
    for point in sorted(entry_points(group=GROUP)):
        package, _, folder = point.value.partition(":")
        spec = find_spec(package) if package.isidentifier() else None
        if spec is not None and spec.origin is not None:
            folders[package] = Path(spec.origin).parent / folder.replace(".", "/")
    return {package: folder for package, folder in folders.items() if folder.is_dir()}


def package_of(file: Path) -> str:
    """Return the installed package that contains a YAML file; "" for a file of lra or the user."""
    owners = (name for name, folder in extensions().items() if file.is_relative_to(folder))
    return next(owners, "")


def chosen_packages(config: Mapping[str, Any]) -> list[str]:
    """Return the packages that a composed configuration names in a `class_path` or a `section`."""
    paths = paths_in(config, "class_path", "section")
    return sorted({path.partition(".")[0] for path in paths} & {*extensions()})
