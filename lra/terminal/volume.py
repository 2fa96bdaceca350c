"""Read how much `lra run` prints from its flags `--quiet` and `--verbose`."""

from collections.abc import Sequence
from enum import StrEnum, auto

from lra.errors import ConfigError

FLAGS = {"--quiet": "quiet", "-q": "quiet", "--verbose": "verbose", "-v": "verbose"}
PRINTING = ("--cfg", "-c", "--info", "-i", "--hydra-help")
"""Flags that make `lra run` print something and start no run."""


class Volume(StrEnum):
    """How much a sweep prints."""

    quiet = auto()
    """Print failed runs and the final lines."""
    normal = auto()
    verbose = auto()
    """Print every phase of every run, its key, its files and its checkpoints."""


def volume_of(argv: Sequence[str]) -> tuple[Volume, list[str]]:
    """Return the volume that the arguments `argv` ask for, and the other arguments.

    Raises:
        ConfigError: The arguments ask for two volumes, or for one together with a printing flag.
    """
    end = argv.index("--") if "--" in argv else len(argv)  # behind `--`, nothing is a flag
    words = [word for word in argv[:end] if word in FLAGS]
    rest = [word for word in argv[:end] if word not in FLAGS] + list(argv[end:])
    volumes = dict.fromkeys(FLAGS[word] for word in words)
    if len(volumes) > 1:
        raise ConfigError(f"got {' and '.join(dict.fromkeys(words))}; give only one of them")
    printing = [word for word in rest if word.partition("=")[0] in PRINTING]
    if words and printing:
        raise ConfigError(
            f"got {words[0]}, which has no effect together with {printing[0]}, because "
            f"{printing[0]} starts no run; remove one of the two"
        )
    return Volume(next(iter(volumes), "normal")), rest
