"""What Hydra says of words that it cannot compose, in a few lines that name the key."""

import errno
import re
import shlex
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.resources import files
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

from lra.composition.answers import AS_TEXT, Choices, answer
from lra.composition.catalogue import OF_SUBMIT, choices, names
from lra.composition.own_options import TABLES
from lra.composition.repository import hydra_of
from lra.composition.words import proposal, reading
from lra.composition.yaml_text import BadYaml, load
from lra.conf.shown import short
from lra.errors import ConfigError, near, unknown

MOST_LINES, MOST_CHARACTERS, MOST_KEYS = 4, 800, 12
OTHER_KEYS = {
    "lr": "peak_learning_rate", "learning_rate": "peak_learning_rate", "rate": "peak_learning_rate",
    "epochs": "steps", "epoch": "steps", "iterations": "steps", "max_steps": "steps",
    "batch": "batch_size", "bs": "batch_size", "warmup": "warmup_steps", "wd": "weight_decay",
    "optimizer": "optimiser", "ema": "ema_decay", "smoothing": "label_smoothing",
    "grad_clip": "clip", "max_grad_norm": "clip",
    "d_model": "width", "dim": "width", "hidden": "width", "hidden_size": "width",
    "layers": "depth", "n_layers": "depth", "num_layers": "depth", "n_heads": "heads",
    "num_heads": "heads", "ff": "feed_forward_width", "d_ff": "feed_forward_width",
    "length": "max_length", "seq_len": "max_length", "sequence_length": "max_length",
    "max_len": "max_length", "window_size": "window", "data": "path", "results_dir": "results",
    "out": "results", "gpu": "hardware", "gpus": "hardware", "random_seed": "seed",
}  # fmt: skip
"""What other programs call our keys."""
GPU = frozenset({"gpu", "gpus", "cuda", "nvidia", "rtx", "geforce"})
"""Near to cpu in letters alone."""
OF_MODELS = ("mixer", "stack", "backbone", "layers", "layer_options")
"""What a model has besides the options of its mixer."""
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
        complaint = (
            answer(words, Choices.of(config_dir))
            or _of_a_reference(error, words)
            or _of_a_name(error)
            or _of_a_key(error, words)
            or _of_a_merge(error, words, config_dir)
            or _of_the_rest(error, words, config_dir)
        )
        raise ConfigError(complaint) from error


def _of_a_reference(error: Exception, words: Sequence[str]) -> str | None:
    """Return the answer to a `${...}` that leads nowhere, or None where it is about none."""
    of_choice = "Error resolving interpolation" in str(error)
    of_value = any(isinstance(cause, REFERENCES) for cause in (error, error.__cause__))
    if not of_choice and not of_value:
        return None
    key = str(getattr(error, "full_key", None) or "")
    word = next((w for w in words if "${" in w and w.lstrip("+").startswith(f"{key}=")), None)
    word = word or next((w for w in words if "${" in w), key)
    if not word:  # what cannot be parsed has no key yet
        return (
            "a file of the configuration has a ${...} that is not closed, or holds no name of a "
            f"key: {_error_message(error)}"
        )
    match = re.search(r"(?:key|type|variable) (\S.*?)(?: not found|$)", str(error), re.MULTILINE)
    reason = f": there is no {short(match[1])}" if match else ""
    name, _, value = word.partition("=")
    read = reading(word)
    text = read.value() if read is not None else value
    complaint = (
        f"{short(word)}: ${{...}} stands for the value of another key, and this leads to none"
    )
    return complaint + reason + proposal(name, text if isinstance(text, str) else value, AS_TEXT)


def _of_a_name(error: Exception) -> str | None:
    """Return the near matches of a file that is not there, or None where none is wanted."""
    options = getattr(error, "options", None)
    group, _, name = str(getattr(error, "missing_cfg_file", None) or "").rpartition("/")
    if not group or options is None:
        return None
    existing = [str(option) for option in options]
    if group == "hardware":
        if name.lower() not in GPU:
            return unknown(group, name, existing, way_out=_here(existing))
        gpus = ", ".join(profile for profile in existing if profile != "cpu")
        return f"unknown hardware {name!r}: a GPU is one of {gpus}. {_here(existing)}"
    return unknown(group, name, existing)


def _here(profiles: Sequence[str]) -> str:
    """Return which profile of hardware works on this machine."""
    import torch

    if not torch.cuda.is_available():
        return "PyTorch finds no GPU on this machine: hardware=cpu runs here."
    device = torch.cuda.get_device_name()
    profile = next((name for name in profiles if name in device.lower()), "laptop_gpu")
    return f"PyTorch finds {device} on this machine: hardware={profile}."


def _of_a_key(error: Exception, words: Sequence[str]) -> str | None:
    """Return the near matches of a key that is not there, or None where none is wanted."""
    text = _error_message(error)
    values = {w.lstrip("+~").partition("=")[0]: short(w.partition("=")[2]) for w in words}
    there = re.search(r"An item is already at '([^']+)'", text)
    if there:
        word = f"{there[1]}={values.get(there[1], '')}"
        return f"+{word}: it is there already; without the plus it changes: {shlex.quote(word)}"
    match = re.search(r"Could not override '([^']+)'|Key '([^']+)' is not in", text)
    if not match:
        return None
    key = match[1] or match[2]
    keys = keys_of(words)
    if key not in keys:
        return unknown_key(key, values.get(key, ""), keys)
    message = _error_message(error.__cause__ or error)
    return f"{key} cannot be set so: {message}. ++{key}=... adds keys to it"


def unknown_key(key: str, value: str, keys: Sequence[str]) -> str:
    """Return the answer to a key that is none: what was meant, or whose option it is.

    Args:
        key: With dots.
        value: As typed.
        keys: Every key of the chosen files.
    """
    complaint = f"unknown key {key!r}"
    if of_choice := _of_one_choice(key, value):
        return f"{complaint}: {of_choice}"
    above, _, leaf = key.rpartition(".")
    group = key.partition(".")[0]
    owners = [f"{group}={name}" for name in names(group) if leaf in _options(group, name)]
    top = [name for name in keys if "." not in name]
    matches = _meant(above, leaf, keys) or ([] if owners else near(key, keys) or near(group, top))
    complaint += f": did you mean {' or '.join(map(repr, matches[:3]))}?" if matches else "."
    if leaf.lower() in ("epoch", "epochs"):
        complaint += " Training is counted in steps, each of optim.batch_size examples."
    elif len(matches) == 1 and value and not (above and matches[0] in top):
        complaint += f" Then type {matches[0]}={value}."
    if owners:
        complaint += f" {leaf} is an option of {', '.join(owners[:8])}."
    if not above and any(leaf in load(file) for file in choices(OF_SUBMIT)):
        complaint += f" lra submit takes it as cluster.{leaf}={value}."
    siblings = sorted(k for k in keys if k.rpartition(".")[0] == above and above)
    if siblings:
        more = "" if len(siblings) <= MOST_KEYS else ", …"
        complaint += f" Known here: {', '.join(siblings[:MOST_KEYS])}{more}."
    return f"{complaint} `lra run --cfg job` prints every key of the composed configuration."


def _meant(above: str, leaf: str, keys: Sequence[str]) -> list[str]:
    """Return the keys that end alike, or as what other programs call so; the nearest first."""
    group, other = above.partition(".")[0], OTHER_KEYS.get(leaf.lower())
    if f"{above}.{other}" in keys:
        return [f"{above}.{other}"]
    for end in (leaf, other):
        alike = [key for key in keys if key.rpartition(".")[2] == end]
        if alike:
            return [key for key in alike if key.startswith(f"{group}.")] or alike
    return []


def _of_one_choice(key: str, value: str) -> str | None:
    """Answer an option of one model, task or runner that is put below its name."""
    head, *parts = key.split(".")
    if head in TABLES:
        return f"the files have no such entry; two plus signs add it: ++{key}={value}"
    groups = [head] if head in TABLES.values() else [*TABLES.values()]
    name, *rest = parts if head in TABLES.values() else (head, *parts)
    for group in groups:
        if rest and name in names(group) and name != "search":
            inside = ["mixer"] if group == "model" and rest[0] not in OF_MODELS else []
            option = ".".join((group, *inside, *rest))
            return (
                f"its options stand without its name: {group}={name} {option}={value}; in a "
                f"sweep, for it alone: ++for_{group}.{name}.{option}={value}"
            )
    return None


@lru_cache(maxsize=256)
def _options(group: str, name: str) -> frozenset[str]:
    """Return the options in the file of a choice, those of its mixer or stack among them."""
    node: dict[str, Any] = load(Path(str(files("lra.conf"))) / group / f"{name}.yaml")
    inside = [node.get(part) or {} for part in ("mixer", "stack")]
    return frozenset(map(str, (*node, *inside[0], *inside[1])))


def _of_a_merge(error: Exception, words: Sequence[str], config_dir: str | None) -> str | None:
    """Answer a list where the files have a mapping, or a mapping where they have a list."""
    if not _error_message(error).startswith("Cannot merge"):
        return None
    loader, before = hydra_of(config_dir).config_loader, list[str]()
    for word in words:
        read = reading(word)
        if read is None or read.is_sweep_override():
            continue
        try:
            loader.load_configuration("config", [*before, word], RunMode.RUN)
        except Exception as again:  # noqa: BLE001  only the place is asked
            if _error_message(again) == _error_message(error):
                kinds = ("a list", "a mapping of options")
                got, wanted = kinds if isinstance(read.value(), list) else kinds[::-1]
                return f"{short(word)}: got {got}; wanted {wanted}"
        else:
            before.append(word)
    return None


def _of_the_rest(error: Exception, words: Sequence[str], config_dir: str | None) -> str:
    text = _error_message(error)
    if key := getattr(error, "full_key", None):
        return text if key in text else f"{key}: {text}"
    guilty = None if any(word in text for word in words) else _guilty(words, config_dir)
    if guilty is None:
        return text
    group, _, choice = guilty.lstrip("+").partition("=")
    wrong_kind = text.startswith("Config group override must be") and group.isidentifier()
    if wrong_kind and (existing := names(group)):
        return f"{group}: got {short(choice)}; wanted one of {', '.join(existing)}"
    return f"{short(guilty)}: {text}"


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


def keys_of(words: Sequence[str]) -> list[str]:
    """Return every key, with dots, of the groups that `words` choose; of a sweep, the first."""
    chosen = []
    for word in words:
        group, _, choice = word.partition("=")
        name = choice.split(",")[0]
        if group.isidentifier() and name in names(group):
            chosen.append(f"{group}={name}")
    composed = hydra_of(None).config_loader.load_configuration("config", chosen, RunMode.RUN)
    tree = cast(dict[str, Any], OmegaConf.to_container(composed, resolve=False))
    keys: list[str] = []

    def walk(node: Any, prefix: str) -> None:
        for key, value in node.items():
            keys.append(prefix + str(key))
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")

    walk({key: node for key, node in tree.items() if key != "hydra"}, "")
    return keys
