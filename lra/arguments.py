"""Arguments that several verbs have: numbers with their limits, files and packages of one's own."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from lra.suggest import LONGEST, short


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return what reads a whole number from `least` to `most`, for `add_argument(type=...)`."""

    def read(word: str) -> int:
        try:
            number = int(word) if len(word) < 20 else most + 1
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f"got {word[:40]!r}; wanted a whole number from {least} to {most}"
            )
        return number

    return read


def path_word(word: str) -> Path:
    """Return the path that a word gives; a blank one would be the current folder."""
    if not word.strip() or "\0" in word:
        raise argparse.ArgumentTypeError(
            f"got {word!r}; wanted a path, as in results (the current folder is .)"
        )
    return Path(word)


class Parser(argparse.ArgumentParser):
    """Names no more than the beginning of very long words that it refuses."""

    def error(self, message: str) -> NoReturn:
        """Print a message in a few lines, and leave."""
        super().error(re.sub(rf"\S{{{2 * LONGEST},}}", lambda found: short(found[0]), message))


def add_own(parser: argparse.ArgumentParser) -> None:
    """Add --config-dir and --plugin, which may be repeated: `config_dir` and `plugin`."""
    parser.add_argument(
        "--config-dir",
        "-cd",
        action="append",
        default=[],
        type=path_word,
        metavar="DIR",
        help="also your own choices, under DIR/model, DIR/task …",
    )
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="a package of yours that the class_path of these may name",
    )
