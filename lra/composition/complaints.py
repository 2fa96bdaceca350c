"""Refuse arguments that Hydra cannot read or would misread, with a message that names the key."""

import errno
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from lra.composition.catalogue import words as groups
from lra.composition.own_options import TABLES
from lra.composition.words import as_text, read_word
from lra.composition.yaml_text import BadYaml
from lra.conf.short_values import LONGEST_REASON, short
from lra.errors import ConfigError

SHAPE = "wanted KEY=VALUE or GROUP=NAME, as in optim.steps=500 or model=linear"
KEY = re.compile(r"(?:\+\+?|~)?[A-Za-z_$][\w$/@.-]*", re.ASCII)
MAPPINGS = (
    *TABLES, "runner.pretraining", "model.layer_options", "hardware.typical",
    "hydra.sweeper.params",
)  # fmt: skip
"""Mappings that are empty by default, so that `~KEY` may delete an entry of them."""
TAKEN = (
    "options cannot be deleted, because each has a default; set another value by KEY=VALUE, "
    "or switch the option off by KEY=null if it allows that"
)
PLUGINS = re.compile(
    r"[+~]*hydra[./](launcher\b|sweeper\b(?!\.params\b|\.max_batch_size\b))(?!=basic\b)"
)
NO_PLUGINS = (
    "lra does not use the launchers of Hydra: use `lra submit` to start workers, and search=NAME "
    "to search"
)
"""The message for an argument that chooses a launcher or a sweeper of another package."""
HYDRA_ONLY = ("object_type=", "See http", "reference_type=", "Set the environment", "full_key:")
"""Beginnings of lines in Hydra's messages that do not help to correct a command."""


def check_words(words: Sequence[str], config_dirs: Sequence[Path]) -> None:
    """Raise ConfigError for the first argument that Hydra cannot read, or would misread.

    Args:
        words: The arguments of the command.
        config_dirs: Folders with the user's YAML files.
    """
    spelt = groups(config_dirs)
    if any(word.startswith("+experiment=") for word in words):
        # If the preset chooses a protocol, protocol=NAME must replace it; otherwise +protocol=NAME.
        spelt = {**spelt, "protocol": ""}
    for word in words:
        if fault := _find_fault(word, spelt.get(word.lstrip("+").partition("=")[0], "")):
            raise ConfigError(f"{short(word) if word.strip() else repr(word)}: {fault}")


def _find_fault(word: str, group: str) -> str:
    """Return the message about a wrong argument; "" if the argument is right.

    Args:
        word: The argument.
        group: The spelling of the group that it chooses from, with a plus if the group needs one;
            "" if it chooses from no group.
    """
    key, equals, value = word.partition("=")
    name = key.lstrip("+~")
    if PLUGINS.match(word):
        return NO_PLUGINS
    if word.startswith("~") and name:
        return "" if f"{name}.".startswith(tuple(f"{path}." for path in MAPPINGS)) else TAKEN
    read = read_word(word)
    if not name.strip() or not equals or (read is None and not KEY.fullmatch(key)):
        return SHAPE
    if read is None:
        text = shlex.quote(short(f"{key}={as_text(value)}", LONGEST_REASON))
        return (
            "commas, brackets, quotation marks, \\ and ${ have a special meaning; for plain "
            f"text write {text}"
        )
    if name == "hydra.sweeper.params" and not re.fullmatch(r"\{\s*\}", value):
        return "give the values of each option as a separate argument: KEY=1,2"
    misspelt = group and key != group and not value.startswith("{")
    return f"wanted {group}={short(value)}" if misspelt else ""


@contextmanager
def refusing_by_word(words: Sequence[str]) -> Iterator[None]:
    """Turn every error of Hydra in the `with` block into a ConfigError that names an argument.

    `words` are the arguments that Hydra composes.
    """
    try:
        yield
    except (ConfigError, BadYaml, BrokenPipeError):
        raise
    except Exception as error:
        # Hydra looks for a file with the name of an argument, which the system may find too long.
        if isinstance(error, OSError) and not isinstance(error, HydraException):
            if error.errno != errno.ENAMETOOLONG:
                raise
            longest = short(max(words, key=len, default=""))
            raise ConfigError(
                f"{longest}: this argument is longer than the name of a file or a key may be"
            ) from error
        cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
        key = str(getattr(cause, "full_key", None) or "")
        faulty = next((word for word in words if word.lstrip("+").startswith(f"{key}=")), key)
        lines = [line.strip() for line in str(cause).splitlines()]
        reason = " ".join(line for line in lines if not line.startswith(HYDRA_ONLY))
        way_out = "; write \\${ if the text shall contain ${" if "${" in faulty else ""
        raise ConfigError(f"{short(faulty)}: {short(reason, LONGEST_REASON)}{way_out}") from error
