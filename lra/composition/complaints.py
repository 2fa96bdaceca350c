"""What is wrong with words that Hydra cannot compose, or would misread: a line with key and value.

Hydra, OmegaConf and their parser raise what they please at odd words. Of what they say stays what
helps to correct a command.
"""

import errno
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra.errors import HydraException
from omegaconf.errors import (
    GrammarParseError,
    InterpolationKeyError,
    InterpolationResolutionError,
    InterpolationToMissingValueError,
    OmegaConfBaseException,
    UnsupportedInterpolationType,
)

from lra.composition.catalogue import names, words as groups
from lra.composition.own_options import TABLES
from lra.composition.put import OF_KINDS
from lra.composition.words import FUNCTIONS, proposal, reading
from lra.composition.yaml_text import BadYaml
from lra.conf.shown import short
from lra.errors import ConfigError, unknown

MOST_LINES, MOST_CHARACTERS = 4, 800
AS_TEXT = "; as text it is "
SHAPE = "wanted KEY=VALUE or GROUP=NAME, as in optim.steps=500 or model=linear"
KEY = re.compile(r"(?:\+\+?|~)?[A-Za-z_$][\w$/@.-]*", re.ASCII)
MAPPINGS = (
    *TABLES, "runner.pretraining", "model.layer_options", "hardware.typical",
    "hydra.sweeper.params",
)  # fmt: skip
"""Empty by default: an entry may be taken away, as what holds elsewhere then holds there."""
REFERENCES = (
    GrammarParseError, InterpolationKeyError, InterpolationResolutionError,
    InterpolationToMissingValueError, UnsupportedInterpolationType,
)  # fmt: skip
PLUGINS = re.compile(
    r"[+~]*hydra[./](launcher\b|sweeper\b(?!\.params\b|\.max_batch_size\b))(?!=basic\b)"
)
WAYS_OUT = {
    "launcher": "lra runs its cells itself; `lra submit` hands them to workers in the background",
    "sweeper": "lra searches by a group of its own: search=NAME",
}
"""In the place of other people's plug-ins of Hydra."""
OWN = ("model", "task", "runner")
"""Groups whose files may name classes of the user's own."""
HYDRA_ONLY = (
    "object_type=",
    "See http",
    "reference_type=",
    "Set the environment variable",
    "full_key:",
)
"""Lines of its messages that do not help to correct a command."""


def misread(words: Sequence[str], config_dir: str | None) -> str | None:
    """Return what is wrong with the first word that Hydra would take for something else."""
    folders = [] if config_dir is None else [Path(config_dir)]
    for word in words:
        key, _, value = word.lstrip("+~").partition("=")
        said = f"{short(word)}: "
        if plugin := PLUGINS.match(word):
            return said + WAYS_OUT[plugin[1]]
        if word.startswith("~"):
            if f"{key}.".startswith(tuple(f"{mapping}." for mapping in MAPPINGS)):
                continue
            return said + (
                "nothing is taken away, for its default would come back; KEY=VALUE says what is to "
                "hold instead, and KEY=null switches off what can be off"
            )
        if not key.strip() and "=" in word:
            return unreadable(words)
        if key == "hydra.sweeper.params" and not re.fullmatch(r"\{\s*\}", value):
            return f"{said}what is swept stands as words of their own: KEY=1,2"
        if word.startswith(f"{key}=[") and key in groups(folders):
            return f"{said}wanted one of {', '.join(names(key, folders))}"
    return None


def unreadable(words: Sequence[str]) -> str | None:
    """Return what is wrong with the first word that has no key, or that Hydra cannot read."""
    for word in words:
        key, equals, value = word.partition("=")
        read = reading(word)
        no_key = not key.strip("+~") or (read is None and not KEY.fullmatch(key))
        if no_key or not (equals or word.startswith("~")):
            return f"{short(word) if word.strip() else repr(word)}: {SHAPE}"
        if read is None:
            return f"{short(word)}: {_grammar(value)}" + proposal(key, value, AS_TEXT)
    return None


def _grammar(value: str) -> str:
    """Return what Hydra's grammar wants in the place of a value that it cannot read."""
    call = re.search(rf"\b({'|'.join(FUNCTIONS)})\s*\(", value)
    other = re.fullmatch(r"\s*([A-Za-z_][\w-]*)\s*\(.*\)\s*", value, re.ASCII | re.DOTALL)
    if call:
        return f"wanted {FUNCTIONS[call[1]]}" + ("" if other else ", which stands alone")
    if other:
        return unknown("function", other[1], FUNCTIONS).rstrip(".")
    return "commas, brackets, quotation marks, \\ and ${ have a meaning of their own"


@contextmanager
def explained(words: Sequence[str], config_dir: str | None) -> Iterator[None]:
    """Turn whatever is raised while Hydra composes into a ConfigError.

    Args:
        words: The overrides.
        config_dir: A folder of configuration files beside ours.
    """
    try:
        yield
    except (ConfigError, BadYaml, BrokenPipeError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            word = max(words, key=len, default="")
            raise ConfigError(f"{short(word)}: longer than any name of a file or a key") from error
        if isinstance(error, OSError) and not isinstance(error, HydraException):
            raise
        complaint = (
            unreadable(words)
            or _of_a_sign(words, config_dir)
            or _of_a_reference(error, words)
            or _of_a_name(error, config_dir)
            or _of_the_rest(error)
        )
        raise ConfigError(complaint) from error


def _of_a_sign(words: Sequence[str], config_dir: str | None) -> str | None:
    """Return the answer to a choice of files with a plus too many or too few, or None."""
    signed = groups([] if config_dir is None else [Path(config_dir)])
    for word in words:
        key, _, value = word.partition("=")
        wanted = signed.get(key.lstrip("+"), key)
        if key != wanted and not value.startswith("{"):
            return f"{short(word)}: wanted {wanted}={short(value)}"
    return None


def _of_a_reference(error: Exception, words: Sequence[str]) -> str | None:
    """Return the answer to a `${...}` that leads nowhere, or None where it is about none."""
    of_value = any(isinstance(cause, REFERENCES) for cause in (error, error.__cause__))
    if "Error resolving interpolation" not in str(error) and not of_value:
        return None
    key = str(getattr(error, "full_key", None) or "")
    written = [word for word in words if "${" in word]
    word = next((w for w in written if w.lstrip("+").startswith(f"{key}=")), None)
    word = word or next(iter(written), key)
    if not word:  # what cannot be parsed has no key yet
        return f"a ${{...}} of a file is not closed, or names no key: {_error_message(error)}"
    name, _, value = word.partition("=")
    read = reading(word)
    text = None if read is None else read.value()
    complaint = f"{short(word)}: ${{...}} stands for the value of another key, and leads to none"
    return complaint + proposal(name, text if isinstance(text, str) else value, AS_TEXT)


def _of_a_name(error: Exception, config_dir: str | None) -> str | None:
    """Return the near matches of a file that is not there, or None where none is wanted."""
    options = getattr(error, "options", None)
    group, _, name = str(getattr(error, "missing_cfg_file", None) or "").rpartition("/")
    if not group or options is None:
        return None
    own = "One of your own: --config-dir DIR, with plugins=PACKAGE where its class is in a package."
    card = "Another card: one of these with hardware.memory_limit_bytes=…; lra choose takes gib=…."
    way_out = own if group in OWN and config_dir is None else ""
    way_out = card if group == "hardware" else way_out
    return unknown(group, name, map(str, options), way_out=way_out)


def _of_the_rest(error: Exception) -> str:
    text = _error_message(error)
    if text.startswith("Cannot merge"):
        text = OF_KINDS
    elif key := getattr(error, "full_key", None):
        return text if key in text else f"{key}: {text}"
    return text


def _error_message(error: BaseException) -> str:
    """Return the message of an error, or of what caused it, without what only Hydra knows."""
    text = str(error)
    if not text and error.__cause__ is not None:
        return _error_message(error.__cause__)
    if isinstance(error.__cause__, OmegaConfBaseException):
        text += f"\n{error.__cause__}"
    if not isinstance(error, HydraException | OmegaConfBaseException | ValueError):
        text = f"{type(error).__name__}: {text}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [line for line in dict.fromkeys(lines) if not line.startswith(HYDRA_ONLY)]
    text = " ".join(kept[:MOST_LINES])[:MOST_CHARACTERS]
    return re.sub(r"^Error merging override (\S+)", r"\1:", text)
