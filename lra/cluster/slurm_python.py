"""Checks whether a Python can start workers, as far as this machine can find out."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from lra.errors import ConfigError

WAY_OUT = "wanted a Python that has lra[slurm], or lines in cluster.setup that activate one"
ASKED_S = 20.0
"""A network folder may be slow to give its first files."""
_LOOK = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('lra', 'submitit'))))"


def check_python(python: str, *, prepared: bool) -> None:
    """Refuse a Python that cannot start workers; print a line if it is not on this machine.

    Args:
        python: a path, or a name on PATH.
        prepared: whether shell commands (cluster.setup) run before it; if so, nothing is checked.

    Raises:
        ConfigError: it is no program, or has no lra or submitit.
    """
    if prepared:
        return
    path = shutil.which(python)
    if path is None and not os.path.lexists(python):
        print(f"cluster.python: {python} is not on this machine; nodes must have it",
              file=sys.stderr)  # fmt: skip
        return
    try:
        subprocess.run(
            [Path(path or python).absolute(), "-c", _LOOK], cwd="/", stdin=subprocess.DEVNULL,
            capture_output=True, timeout=ASKED_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"cluster.python: {python} is not a Python with lra and submitit ({error}); {WAY_OUT}"
        ) from error
