"""How much `lra run` prints: `--quiet` and `--verbose`, anywhere on the line."""

from collections.abc import Sequence
from enum import StrEnum, auto

from lra.errors import ConfigError

FLAGS = {"--quiet": "quiet", "-q": "quiet", "--verbose": "verbose", "-v": "verbose"}
PRINTING = ("--cfg", "-c", "--info", "-i", "--hydra-help")
"""Flags that print something and run nothing."""


class Volume(StrEnum):
    """How much a sweep prints."""

    quiet = auto()
    """Cells that failed, and the final lines."""
    normal = auto()
    verbose = auto()
    """Every phase, keys, places of files, checkpoints."""


def volume_of(argv: Sequence[str]) -> tuple[Volume, list[str]]:
    """Return the volume that the words ask for, and the other words.

    Raises:
        ConfigError: they ask for two, or for one with a flag that only prints.
    """
    end = argv.index("--") if "--" in argv else len(argv)
    words = [word for word in argv[:end] if word in FLAGS]
    rest = [word for word in argv[:end] if word not in FLAGS] + list(argv[end:])
    volumes = dict.fromkeys(FLAGS[word] for word in words)
    if len(volumes) > 1:
        raise ConfigError(f"got {' and '.join(dict.fromkeys(words))}: give one of them")
    printing = [word for word in rest if word.partition("=")[0] in PRINTING]
    if words and printing:
        raise ConfigError(
            f"got {words[0]} together with {printing[0]}, which starts no run: remove one of them"
        )
    return Volume(next(iter(volumes), "normal")), rest
