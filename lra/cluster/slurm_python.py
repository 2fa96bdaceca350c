"""Whether a Python can start workers, as far as it can be asked from here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from lra.errors import ConfigError

WAY_OUT = "wanted one with lra[slurm], or cluster.setup with the lines that make it one"
ASKED_S = 20.0
"""A network folder may be slow to give its first files."""
_LOOK = """
import importlib.util, sys
print(*(name for name in ("lra", "submitit") if importlib.util.find_spec(name) is None))
print(*sys.version_info[:2], sep=".")
"""


def check_python(python: str, *, prepared: bool) -> None:
    """Refuse a Python that is here and cannot start workers; say where it is not here.

    Args:
        python: a path, or a name on PATH.
        prepared: whether shell lines come before it, which may make it what it is.

    Raises:
        ConfigError: it is no program, or has no lra.
    """
    if prepared:
        return
    path = shutil.which(python)
    if path is None:
        if os.path.lexists(python):
            raise ConfigError(f"cluster.python: {python} is no program; {WAY_OUT}")
        print(f"cluster.python: {python} is not on this machine; nodes must have it",
              file=sys.stderr)  # fmt: skip
        return
    try:
        asked = subprocess.run(
            [Path(path).absolute(), "-c", _LOOK], cwd="/", stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=ASKED_S, check=True,
        )  # fmt: skip
        lacking, version = asked.stdout.splitlines()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ConfigError(
            f"cluster.python: {python} does not answer as a Python does ({error}); {WAY_OUT}"
        ) from error
    if lacking:
        raise ConfigError(
            f"cluster.python: {python} is Python {version} without {lacking}; {WAY_OUT}"
        )
