"""Arguments that several verbs have: numbers with their limits, files and packages of one's own."""

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
    """Prints examples before arguments, and refuses in one sentence."""

    def __init__(
        self, prog: str | None = None, *, description: str = "", epilog: str = "", **options: Any
    ) -> None:
        # A purpose in one line is wrapped; examples, and what has lines, are printed as written.
        if "\n" not in description:
            description = fill(" ".join(description.split()), get_terminal_size().columns - 2)
        super().__init__(
            prog,
            description="\n\n".join(filter(None, (description, epilog))) or None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **options,
        )

    def error(self, message: str) -> NoReturn:
        """Print what is wrong, and leave."""
        message = re.sub(rf"\S{{{2 * LONGEST},}}", lambda match: short(match[0]), message)
        flag = re.match(r"unrecognized arguments: (-[^\s=]+)", message)
        flags = [name.lstrip("-") for name in self._option_string_actions]
        meant = near(flag[1].lstrip("-"), flags, most=1) if flag else []
        message += "".join(f" (did you mean --{name}?)" for name in meant)
        self.exit(2, f"{self.prog}: {message}; run `{self.prog} --help` to see its arguments\n")


def parser_beside_words(prog: str, usage: str, about: str, examples: str) -> Parser:
    """Return the arguments of a verb whose other words are those of `lra run`.

    Its help is printed as it is written, and no flag is abbreviated: the words are looked at later.
    """
    return Parser(prog=prog, usage=usage, description=about, epilog=examples, allow_abbrev=False)


def file_name(word: str) -> str:
    """Return a word that a file is named after. Raises ArgumentTypeError for any other."""
    if not SWEEP_NAME.fullmatch(word):
        raise argparse.ArgumentTypeError(f"got {word[:40]!r}; wanted {SWEEP_WORDS}")
    return word


def add_results(parser: argparse.ArgumentParser, meaning: str = "") -> None:
    """Add --results: `results`."""
    parser.add_argument(
        "--results", type=path_word, default=Path("results"), metavar="DIR",
        help=f"{meaning or 'the results folder; '}default: results",
    )  # fmt: skip


def add_plugin_words(parser: argparse.ArgumentParser) -> None:
    """Add --config-dir and --plugin, which may be repeated: `config_dir` and `plugin`."""
    parser.add_argument(
        "--config-dir",
        "-cd",
        action="append",
        default=[],
        type=path_word,
        metavar="DIR",
        help="a folder with your YAML files: DIR/model, DIR/task …",
    )
    add_plugin(parser, "your package, which class_path in these files may name")


def add_plugin(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add --plugin, which may be repeated, and names what may be imported: `plugin`."""
    parser.add_argument("--plugin", action=_Plugin, default=[], metavar="PACKAGE", help=meaning)


class _Plugin(argparse.Action):
    """Appends a package, and lets it be imported."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        """Take one more."""
        name_plugins([values])
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), values])
