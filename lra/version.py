"""The version of lra: that of its wheel, and in a clone that of the commit which is checked out.

A tag is a version, and the commits after v0.2.0 are 0.2.1.devN+gCOMMIT, as the wheel is named.
"""

import subprocess
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent


@cache
def lra_version() -> str:
    """Return it; what is neither installed nor a clone is 0+unknown."""
    if (HERE.parent / ".git").exists() and (described := _described()):
        return described
    from importlib import metadata  # a fifth of the time of `lra list`

    try:
        return metadata.version("lra")
    except metadata.PackageNotFoundError:
        return "0+unknown"


def _described() -> str:
    text = _git("describe", "--tags", "--long", "--dirty", "--abbrev=9", "--match", "v*")
    if not text:  # no release yet
        count, commit = _git("rev-list", "--count", "HEAD"), _git("rev-parse", "--short=9", "HEAD")
        return f"0.1.dev{count}+g{commit}" if commit else ""
    tag, count, commit, *dirty = text.removeprefix("v").split("-")
    if count == "0" and not dirty:
        return tag
    *first, last = tag.split(".")
    return f"{'.'.join(first)}.{int(last) + 1}.dev{count}+{'.'.join((commit, *dirty))}"


def _git(*words: str) -> str:
    """Return what git says of the clone; "" where it does not answer."""
    try:
        done = subprocess.run(
            ["git", "-C", str(HERE.parent), *words],
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
