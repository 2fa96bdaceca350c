"""The version of lra: the version of its wheel or, in a clone, of the commit that is checked out.

A tag v0.2.0 is version 0.2.0. The Nth commit after it is 0.2.1.devN+gCOMMIT, as its wheel is named.
"""

import subprocess
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent


@cache
def lra_version() -> str:
    """Return the version of lra; `0+unknown` if lra is neither installed nor a clone."""
    if (HERE.parent / ".git").exists() and (version := _read_git_version()):
        return version
    from importlib import metadata  # imported late: it takes a fifth of the time of `lra list`

    try:
        return metadata.version("lra")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def _read_git_version() -> str:
    """Return the version of the commit that is checked out; "" if git fails."""
    text = _run_git("describe", "--tags", "--long", "--dirty", "--abbrev=9", "--match", "v*")
    if not text:  # no tag exists yet
        count = _run_git("rev-list", "--count", "HEAD")
        commit = _run_git("rev-parse", "--short=9", "HEAD")
        return f"0.1.dev{count}+g{commit}" if commit else ""
    # For example v0.2.0-3-gCOMMIT-dirty: three commits after the tag, with uncommitted changes.
    tag, count, commit, *dirty = text.removeprefix("v").split("-")
    if count == "0" and not dirty:
        return tag
    *first, last = tag.split(".")
    return f"{'.'.join(first)}.{int(last) + 1}.dev{count}+{'.'.join((commit, *dirty))}"


def _run_git(*words: str) -> str:
    """Return what `git WORDS` prints in the clone; "" if git is missing, fails or hangs."""
    try:
        done = subprocess.run(
            ["git", "-C", str(HERE.parent), *words],
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
