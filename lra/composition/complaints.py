"""What is wrong with words that Hydra cannot compose, or misreads: a line with key and value."""

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
"""Empty by default: an entry may be taken away, as what holds elsewhere then holds there."""
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
"""In the place of other people's launchers and sweepers of Hydra."""
HYDRA_ONLY = ("object_type=", "See http", "reference_type=", "Set the environment", "full_key:")
"""Lines of its messages that do not help to correct a command."""


def check_words(words: Sequence[str], config_dirs: Sequence[Path]) -> None:
    """Raise ConfigError for the first word that Hydra cannot read, or takes for something else."""
    signed = groups(config_dirs)
    if any(word.startswith("+experiment=") for word in words):
        signed = {**signed, "protocol": ""}  # a preset may have chosen one, which a word replaces
    for word in words:
        if wanted := _wanted(word, signed.get(word.lstrip("+").partition("=")[0], "")):
            raise ConfigError(f"{short(word) if word.strip() else repr(word)}: {wanted}")


def _wanted(word: str, group: str) -> str:
    """Return what is wanted in the place of a word; "" where it is good.

    Args:
        word: The word.
        group: How the group that it chooses from is spelt, with its plus; "" where it does not.
    """
    key, equals, value = word.partition("=")
    name = key.lstrip("+~")
    if PLUGINS.match(word):
        return NO_PLUGINS
    if word.startswith("~") and name:
        return "" if f"{name}.".startswith(tuple(f"{each}." for each in MAPPINGS)) else TAKEN
    read = read_word(word)
    if not name.strip() or not equals or (read is None and not KEY.fullmatch(key)):
        return SHAPE
    if read is None:
        text = shlex.quote(short(f"{key}={as_text(value)}", LONGEST_REASON))
        return (
            f"commas, brackets, quotation marks, \\ and ${{ have a special meaning; for plain text "
            f"write {text}"
        )
    if name == "hydra.sweeper.params" and not re.fullmatch(r"\{\s*\}", value):
        return "give the values of a sweep as separate arguments: KEY=1,2"
    misspelt = group and key != group and not value.startswith("{")
    return f"wanted {group}={short(value)}" if misspelt else ""


@contextmanager
def refusing_by_word(words: Sequence[str]) -> Iterator[None]:
    """Turn whatever is raised while Hydra composes words into a ConfigError."""
    try:
        yield
    except (ConfigError, BadYaml, BrokenPipeError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and not isinstance(error, HydraException):
            if error.errno != errno.ENAMETOOLONG:
                raise
            longest = short(max(words, key=len, default=""))
            raise ConfigError(
                f"{longest}: this is longer than a file name or a key may be"
            ) from error
        cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
        key = str(getattr(cause, "full_key", None) or "")
        about = next((word for word in words if word.lstrip("+").startswith(f"{key}=")), key)
        lines = [line.strip() for line in str(cause).splitlines()]
        said = " ".join(line for line in lines if not line.startswith(HYDRA_ONLY))
        way_out = "; in a text, ${ is written \\${" if "${" in about else ""
        raise ConfigError(f"{short(about)}: {short(said, LONGEST_REASON)}{way_out}") from error
