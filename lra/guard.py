"""Keeps modules of other projects from being imported in place of our packages.

The folders of this project are plain top-level packages with ordinary names, and many a repository
has a folder `models` or `tasks` too. Python looks into the current folder first with `python -m`,
and into those of PYTHONPATH before what is installed: any of them that holds such a name is moved
behind our own home. Child processes and the fork server inherit the order
(`runners.isolation.isolate`).
"""

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

HOUSE = ("models", "tasks", "runners", "reports", "conf")
HOME = Path(__file__).resolve().parent.parent


class Shadowed(RuntimeError):
    """Another folder answers to the name of one of ours."""


def settle() -> None:
    """Move every folder of `sys.path` that holds a name of ours behind our own home.

    What else such a folder holds is still found, as long as nothing installed has the same name.
    Called as soon as `lra` is imported, in whichever process: nothing else has a say before.
    """
    path = [entry or _here() for entry in sys.path]
    foreign = [entry for entry in path if _shadows_ours(entry)]
    if not foreign:
        return
    entries = [entry for entry in path if entry not in foreign]
    homes = [index for index, entry in enumerate(entries) if Path(entry).resolve() == HOME]
    if not homes:
        entries.insert(min(path.index(entry) for entry in foreign), str(HOME))
        homes = [entries.index(str(HOME))]
    entries[homes[0] + 1 : homes[0] + 1] = dict.fromkeys(foreign)
    sys.path[:] = entries


def _here() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:  # the current folder was removed
        return ""


def _shadows_ours(entry: str) -> bool:
    """Tell whether a folder, or an archive, holds a package or module with a name of ours.

    Folders without `__init__.py` lose against ours wherever they stand.
    """
    if not entry or Path(entry).resolve() == HOME:
        return False
    specs = (PathFinder.find_spec(name, [entry]) for name in HOUSE)
    return any(spec is not None and spec.origin is not None for spec in specs)


def see_current_folder() -> None:
    """Let packages in the current folder be imported, after everything else."""
    if "" not in sys.path:
        see(_here())


def see(folder: str) -> None:
    """Let packages in a folder be imported, after everything else."""
    if folder and folder not in sys.path:
        sys.path.append(folder)


def package_exists(name: str) -> bool:
    """Tell whether a top-level package or module can be imported. Imports nothing."""
    return name in sys.modules or importlib.util.find_spec(name) is not None


def check() -> None:
    """Raise `Shadowed` unless every package of the house is the sibling of `lra`.

    Looks only; imports nothing.
    """
    for name in HOUSE:
        place = _location(name)
        ours = HOME / name
        if place is None:
            raise Shadowed(
                f"lra needs its folder {name!r} beside it, at {ours}, and it is not there: "
                "the installation is incomplete. Way out: install again, "
                "`pip install --force-reinstall --no-deps` from the checkout or the wheel"
            )
        if place != ours:
            raise Shadowed(
                f"{name!r} is {place} in this process, which is not a part of lra; its own is "
                f"{ours}. Something imported it before lra was (sitecustomize, a .pth file), or "
                f"an import hook answers first. Way out: keep that from happening, or rename "
                f"that {place.name!r}"
            )


def _location(name: str) -> Path | None:
    """Return the folder (or file, for a plain module) that `import name` would load."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else None
