"""Arguments that several verbs have: numbers with limits, paths, and packages of the user."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import Any, NoReturn

from lra.composition.class_path import name_plugins
from lra.composition.configuration import SWEEP_NAME, SWEEP_WORDS
from lra.conf.short_values import LONGEST, short
from lra.errors import near


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a function that reads a whole number from `least` to `most`, for `add_argument`."""

    def read(word: str) -> int:
        """Return the number in an argument. Raises ArgumentTypeError if it is out of range."""
        try:
            number = int(word) if len(word) < 20 else most + 1  # a longer number is too large
        except ValueError:
            number = least - 1  # out of range, so that the message below follows
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f"got {word[:40]!r}; wanted a whole number from {least} to {most}"
            )
        return number

    return read


def path_word(word: str) -> Path:
    """Return the path in an argument. Raises ArgumentTypeError for a blank argument."""
    if not word.strip() or "\0" in word:
        raise argparse.ArgumentTypeError(
            f"got {word!r}; wanted a path, for example results, or . for the current folder"
        )
    return Path(word)


class Parser(argparse.ArgumentParser):
    """A parser that prints examples before arguments, and every error in one sentence."""

    def __init__(
        self, prog: str | None = None, *, description: str = "", epilog: str = "", **options: Any
    ) -> None:
        # Only a description in one line is wrapped; examples keep their lines.
        if "\n" not in description:
            description = fill(" ".join(description.split()), get_terminal_size().columns - 2)
        super().__init__(
            prog,
            description="\n\n".join(filter(None, (description, epilog))) or None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **options,
        )

    def error(self, message: str) -> NoReturn:
        """Print the message with a similar flag, if there is one, and end with exit code 2."""
        # The message may quote an argument of any length.
        message = re.sub(rf"\S{{{2 * LONGEST},}}", lambda match: short(match[0]), message)
        flag = re.match(r"unrecognized arguments: (-[^\s=]+)", message)
        flags = [name.lstrip("-") for name in self._option_string_actions]
        similar = near(flag[1].lstrip("-"), flags, most=1) if flag else []
        message += "".join(f" (did you mean --{name}?)" for name in similar)
        self.exit(2, f"{self.prog}: {message}; run `{self.prog} --help` to see its arguments\n")


def parser_beside_words(prog: str, usage: str, about: str, examples: str) -> Parser:
    """Return a parser for a verb that also takes arguments of `lra run`, which it leaves unparsed.

    The help is printed as it is written. Flags cannot be abbreviated, because an abbreviation could
    be an argument of `lra run`.
    """
    return Parser(prog=prog, usage=usage, description=about, epilog=examples, allow_abbrev=False)


def file_name(word: str) -> str:
    """Return an argument that can be the name of a file. Raises ArgumentTypeError for others."""
    if not SWEEP_NAME.fullmatch(word):
        raise argparse.ArgumentTypeError(f"got {word[:40]!r}; wanted {SWEEP_WORDS}")
    return word


def add_results(parser: argparse.ArgumentParser, meaning: str = "") -> None:
    """Add the flag --results, whose value becomes `results`; `meaning` begins its help."""
    parser.add_argument(
        "--results", type=path_word, default=Path("results"), metavar="DIR",
        help=f"{meaning or 'the results folder; '}default: results",
    )  # fmt: skip


def add_plugin_words(parser: argparse.ArgumentParser) -> None:
    """Add the repeatable flags --config-dir and --plugin, as lists `config_dir` and `plugin`."""
    parser.add_argument(
        "--config-dir",
        "-cd",
        action="append",
        default=[],
        type=path_word,
        metavar="DIR",
        help="folder with your YAML files, which are in DIR/model, DIR/task and so on",
    )
    add_plugin(parser, "name of your package, if class_path in your YAML files names it")


def add_plugin(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add the repeatable flag --plugin, a list `plugin` of packages that lra may import."""
    parser.add_argument("--plugin", action=_Plugin, default=[], metavar="PACKAGE", help=meaning)


class _Plugin(argparse.Action):
    """Appends a package to a list, and allows lra to import it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        """Append the package `values`."""
        name_plugins([values])
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), values])
