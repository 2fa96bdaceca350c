"""Refuses to start beside strangers.

The folders of this project are plain top-level packages with ordinary names, so a folder `tasks`
in the current directory or on PYTHONPATH would silently take the place of ours. `python -m lra`
puts the current directory first, which makes this likely.
"""

import importlib.util
from pathlib import Path

HOUSE = ("models", "tasks", "runners", "reports", "conf")


class Shadowed(RuntimeError):
    """Another folder answers to the name of one of ours."""


def check() -> None:
    """Raise `Shadowed` unless every package of the house is the sibling of `lra`.

    Looks only; imports nothing.
    """
    home = Path(__file__).resolve().parent.parent
    for name in HOUSE:
        found = _location(name)
        wanted = home / name
        if found is None:
            raise Shadowed(
                f"lra needs its folder {name!r} beside it, at {wanted}, and it is not there: "
                "the installation is incomplete. Way out: install again, "
                "`pip install --force-reinstall --no-deps` from the checkout or the wheel"
            )
        if found != wanted:
            raise Shadowed(
                f"{name!r} resolves to {found}, which is not a part of lra; its own is {wanted}. "
                "Python looks into the current directory (with `python -m lra`) and PYTHONPATH "
                "first. Way out: use the `lra` command or another current directory, take "
                f"{found.parent} off PYTHONPATH, or rename that {found.name!r}"
            )


def _location(name: str) -> Path | None:
    """Return the folder (or file, for a plain module) that `import name` would load."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin).resolve() if spec.origin else None
