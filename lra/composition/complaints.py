"""What Hydra says of words that it cannot compose, in a few lines that name the key."""

import errno
import re
import shlex
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import (
    GrammarParseError,
    InterpolationKeyError,
    InterpolationResolutionError,
    InterpolationToMissingValueError,
    OmegaConfBaseException,
    UnsupportedInterpolationType,
)

from conf.shown import short
from lra.composition.catalogue import names
from lra.composition.repository import hydra_of
from lra.composition.slips import AS_TEXT, Choices, slip
from lra.composition.unknown_key import unknown_key
from lra.composition.words import proposal, reading, refusal
from lra.composition.yaml_text import BadYaml
from lra.errors import ConfigError, near, unknown

MOST_LINES, MOST_CHARACTERS = 4, 800
OTHER_NAMES = {
    "transformer": "softmax", "vanilla": "softmax", "attention": "softmax", "full": "softmax",
    "flash": "sdpa", "flash_attention": "sdpa", "linear_transformer": "linear", "window": "local",
    "imdb": "text", "cifar": "image", "cifar10": "image", "aan": "retrieval",
    "wikitext": "wikitext2", "uniprot": "proteins", "cost": "scaling", "speed": "scaling",
    "fit": "train", "generate": "decode", "wandb": "wandb_offline", "off": "none", "false": "none",
}  # fmt: skip
"""What others call our models, tasks, runners and loggers."""
REFERENCES = (
    GrammarParseError, InterpolationKeyError, InterpolationResolutionError,
    InterpolationToMissingValueError, UnsupportedInterpolationType,
)  # fmt: skip
HYDRA_ONLY = (
    "object_type=",
    "See http",
    "reference_type=",
    "Set the environment variable",
    "full_key:",
    "Error merging override",
)
"""Lines of its messages that do not help to correct a command."""


@contextmanager
def explained(words: Sequence[str], config_dir: str | None) -> Iterator[None]:
    """Turn whatever is raised while Hydra composes into a ConfigError.

    Its parser, OmegaConf and PyYAML raise what they please at odd words.

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
        raise ConfigError(_explain(error, words, config_dir)) from error


def _explain(error: Exception, words: Sequence[str], config_dir: str | None) -> str:
    """Return the complaint, with the words to type where they can be guessed."""
    return (
        slip(words, Choices.of(config_dir))
        or refusal(words)
        or _of_a_reference(error, words, config_dir)
        or _of_a_name(error)
        or _of_a_key(error, words)
        or _of_the_rest(error, words, config_dir)
    )


def _of_a_reference(error: Exception, words: Sequence[str], config_dir: str | None) -> str | None:
    """Return the answer to a `${...}` that leads nowhere, or None where it is about none."""
    of_choice = "Error resolving interpolation" in str(error)
    of_value = any(isinstance(cause, REFERENCES) for cause in (error, error.__cause__))
    if not of_choice and not of_value:
        return None
    key = str(getattr(error, "full_key", None) or "")
    word = next((w for w in words if "${" in w and w.lstrip("+").startswith(f"{key}=")), None)
    word = word or next((w for w in words if "${" in w), key)
    if not word:  # what cannot be parsed has no key yet
        return f"{_unclosed(config_dir)}: ${{...}} that is not closed, or holds no name of a key"
    match = re.search(r"(?:key|type|variable) (\S.*?)(?: not found|$)", str(error), re.MULTILINE)
    reason = f": there is no {short(match[1])}" if match else ""
    name, _, value = word.partition("=")
    read = reading(word)
    text = read.value() if read is not None else value
    answer = f"{short(word)}: ${{...}} stands for the value of another key, and this leads to none"
    return answer + reason + proposal(name, text if isinstance(text, str) else value, AS_TEXT)


def _unclosed(config_dir: str | None) -> str:
    """Return the place of the first `${` that its line does not close, as far as it is known."""
    for file in sorted(Path(config_dir).rglob("*.yaml")) if config_dir else ():
        for number, line in enumerate(file.read_text("utf-8", "replace").splitlines(), 1):
            if line.count("${") > line.count("}"):
                return f"{file}, line {number}"
    return f"a file below {config_dir}" if config_dir else "a file of the configuration"


def _of_a_name(error: Exception) -> str | None:
    """Return the near matches of a file that is not there, or None where none is wanted."""
    options = getattr(error, "options", None)
    group, _, name = str(getattr(error, "missing_cfg_file", None) or "").rpartition("/")
    if not group or options is None:
        return None
    existing = [str(option) for option in options]
    if group == "hardware":
        return unknown_hardware(name, existing)
    other = OTHER_NAMES.get(name.lower())
    meant = f"{group}={other} is what it is called here." if other in existing else ""
    return unknown(group, name, existing, way_out=meant)


def _of_a_key(error: Exception, words: Sequence[str]) -> str | None:
    """Return the near matches of a key that is not there, or None where none is wanted."""
    text = _text(error)
    there = re.search(r"An item is already at '([^']+)'", text)
    if there:
        word = f"{there[1]}={short(_value_of(there[1], words))}"
        return f"+{word}: it is there already; without the plus it changes: {shlex.quote(word)}"
    match = re.search(r"Could not override '([^']+)'|Key '([^']+)' is not in", text)
    if not match:
        return None
    key = match.group(1) or match.group(2)
    keys = keys_of(words)
    if key not in keys:
        return unknown_key(key, short(_value_of(key, words)), keys)
    return f"{key} cannot be set so: {_text(error.__cause__ or error)}. ++{key}=... adds keys to it"


def _of_the_rest(error: Exception, words: Sequence[str], config_dir: str | None) -> str:
    text = _text(error)
    if key := getattr(error, "full_key", None):
        return text if key in text else f"{key}: {text}"
    if any(word in text for word in words):
        return text
    return _of_a_word(text, words, config_dir)


def _value_of(key: str, words: Sequence[str]) -> str:
    """Return what the last word about a key gives it."""
    values = [
        value for name, _, value in (w.partition("=") for w in words) if name.lstrip("+~") == key
    ]
    return values[-1] if values else ""


def _of_a_word(text: str, words: Sequence[str], config_dir: str | None) -> str:
    """Return a complaint that names no word, with the word that it is about."""
    guilty = _guilty(words, config_dir)
    if guilty is None:
        return text
    group, _, choice = guilty.lstrip("+").partition("=")
    wrong_kind = text.startswith("Config group override must be") and group.isidentifier()
    if wrong_kind and (existing := names(group)):
        return f"{group}: got {short(choice)}; wanted one of {', '.join(existing)}"
    return f"{short(guilty)}: {text}"


def _text(error: BaseException) -> str:
    """Return the message of an error, or of what caused it, without what only Hydra knows."""
    text = str(error)
    if not text and error.__cause__ is not None:
        return _text(error.__cause__)
    if isinstance(error.__cause__, OmegaConfBaseException):
        text += f"\n{error.__cause__}"
    if not isinstance(error, HydraException | OmegaConfBaseException | ValueError):
        text = f"{type(error).__name__}: {text}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    kept = [line for line in dict.fromkeys(lines) if not line.startswith(HYDRA_ONLY)]
    return "\n".join(kept[:MOST_LINES])[:MOST_CHARACTERS]


def _guilty(words: Sequence[str], config_dir: str | None) -> str | None:
    """Return the first word with which composing fails, or None where it never does."""
    loader = hydra_of(config_dir).config_loader

    def fails(count: int) -> bool:
        try:
            some = OverridesParser.create().parse_overrides([*words[:count]])
            several = any(word.is_sweep_override() for word in some)
            mode = RunMode.MULTIRUN if several else RunMode.RUN
            loader.load_configuration("config", [*words[:count]], mode)
        except Exception:  # noqa: BLE001  only the place is asked, whatever it is
            return True
        return False

    count = bisect_left(range(len(words) + 1), True, key=fails)
    return words[count - 1] if 1 <= count <= len(words) else None


def tree_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the groups that `words` choose, composed; of a sweep, the first."""
    chosen = []
    for word in words:
        group, _, choice = word.partition("=")
        name = choice.split(",")[0]
        if group.isidentifier() and name in names(group):
            chosen.append(f"{group}={name}")
    composed = hydra_of(None).config_loader.load_configuration("config", chosen, RunMode.RUN)
    return cast(dict[str, Any], OmegaConf.to_container(composed, resolve=False))


def keys_of(words: Sequence[str]) -> list[str]:
    """Return every key, with dots, of the groups that `words` choose."""
    tree = tree_of(words)
    keys: list[str] = []

    def walk(node: Any, prefix: str) -> None:
        for key, value in node.items():
            keys.append(prefix + str(key))
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")

    walk({key: node for key, node in tree.items() if key != "hydra"}, "")
    return keys


GPU = frozenset({"gpu", "gpus", "cuda", "nvidia", "rtx", "geforce"})
ANY_GPU = "laptop_gpu"
"""The profile that fits a GPU without one of its own."""


def unknown_hardware(name: str, names: Sequence[str]) -> str:
    """Return the answer to a word for hardware that is no profile.

    Args:
        name: The word.
        names: The profiles.
    """
    gpus = [name for name in names if name != "cpu"]
    matches = near(name, names)
    if name.lower() in GPU:
        hint = f": a GPU is one of {', '.join(gpus)}."
    elif matches:
        hint = f": did you mean {' or '.join(map(repr, matches))}?"
    else:
        hint = "."
    return f"unknown hardware {name!r}{hint} Known hardware: {', '.join(names)}. {_here(names)}"


def _here(profiles: Sequence[str]) -> str:
    """Return which profile works on this machine."""
    import torch

    if not torch.cuda.is_available():
        return "PyTorch finds no GPU on this machine: hardware=cpu runs here."
    device = torch.cuda.get_device_name()
    profile = next((name for name in profiles if name in device.lower()), ANY_GPU)
    return f"PyTorch finds {device} on this machine: hardware={profile}."
