"""Packages that are installed and bring choices of their own: entry points of the group `lra`.

    [project.entry-points.lra]
    acme = "acme_mixer:conf"

names a package and the folder in it that holds `model/`, `task/` and the like. Nothing of a
package is imported here: that takes a word that chooses something of it.
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
    """Return the folder of choices of each package that has one, by the package's name."""
    # To import what reads entry points takes longer than all of `lra --help`.
    files = (file for path in sys.path for file in Path(path).glob("*.*-info/entry_points.txt"))
    if not any(f"[{GROUP}]" in file.read_text(errors="replace") for file in files):
        return {}
    from importlib.metadata import entry_points

    found: dict[str, Path] = {}
    for point in sorted(entry_points(group=GROUP)):
        package, _, folder = point.value.partition(":")
        spec = find_spec(package) if package.isidentifier() else None
        if spec is not None and spec.origin is not None:
            found[package] = Path(spec.origin).parent / folder.replace(".", "/")
    return {package: folder for package, folder in found.items() if folder.is_dir()}


def package_of(file: Path) -> str:
    """Return the package whose choice a file is; "" for one of lra's or of a folder."""
    owners = (name for name, folder in extensions().items() if file.is_relative_to(folder))
    return next(owners, "")


def chosen_packages(config: Mapping[str, Any]) -> list[str]:
    """Return the packages that a composed configuration names in a `class_path` or a `section`."""
    paths = paths_in(config, "class_path", "section")
    return sorted({path.partition(".")[0] for path in paths} & {*extensions()})
