"""Values of Python as words of the command line."""

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from lra.composition.configuration import GROUPS, quote
from lra.errors import ConfigError

_BARE = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_OTHER = frozenset({"true", "false", "null", "nan", "inf"})
"""Words that Hydra reads as something else than text."""
_PARTS = ("mixer", "stack", "backbone")
"""Of a model, each with options of its own."""


def value_text(value: Any, where: str) -> str:
    """Return a value as the command line spells it.

    Args:
        value: a number, text, path, truth value, None, a choice, or a list or mapping of these.
        where: the key, for the message.

    Raises:
        ConfigError: it is something else.
    """
    text = None
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, Enum | str | Path):
        text = _quoted(value.name if isinstance(value, Enum) else str(value))
    elif isinstance(value, Integral):
        text = str(int(value))
    elif isinstance(value, Real):
        text = repr(float(value))
    elif isinstance(value, Mapping):
        pairs = (f"{_quoted(str(key))}:{value_text(item, where)}" for key, item in value.items())
        text = "{" + ",".join(pairs) + "}"
    elif isinstance(value, list):
        text = "[" + ",".join(value_text(item, where) for item in value) + "]"
    if text is not None:
        return text
    raise ConfigError(
        f"{where}: got {quote(value)} ({type(value).__name__}); wanted a number, text, true or "
        "false, None, or a list or mapping of these"
    )


def _quoted(value: str) -> str:
    from hydra.core.override_parser.types import Quote, QuotedString

    if _BARE.fullmatch(value) and value.lower() not in _OTHER:
        return value
    return QuotedString(text=value, quote=Quote.single).with_quotes()


def word(key: str, value: Any) -> str:
    """Return `key=value` as the command line has it; a tuple stands for several values."""
    if isinstance(value, tuple):
        if not value:
            raise ConfigError(f"{key}: got an empty tuple; wanted the values to sweep over")
        return f"{key}=" + ",".join(value_text(item, key) for item in value)
    return f"{key}={value_text(value, key)}"


def words_of(options: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return options as words, mappings of the groups written with dots.

    Args:
        options: values by key; `{"optim": {"steps": 5}}` is `{"optim.steps": 5}`.
        prefix: what all keys begin with, its dot included.
    """
    words = []
    for key, value in options.items():
        if not isinstance(key, str):
            raise ConfigError(f"got the key {key!r}; wanted text, as in 'optim.steps'")
        whole = prefix + key
        if isinstance(value, Mapping) and value and _holds_options(whole):
            words += words_of(value, f"{whole}.")
        else:
            words.append(word(whole, value))
    return words


def _holds_options(key: str) -> bool:
    return key.lstrip("+") in (*GROUPS, *(f"model.{part}" for part in _PARTS))


def model_words(model: str, options: Mapping[str, Any], config_dirs: Sequence[Path]) -> list[str]:
    """Return the options of a model as words.

    A plain key is one of the mixer's; others begin with a part of the model, or with a group.
    """
    from lra.composition.compose import group_file

    part = "stack" if "stack" in group_file("model", model, config_dirs) else "mixer"
    by_key: dict[str, Any] = {}
    for key, value in options.items():
        top = key.lstrip("+").partition(".")[0]
        within = "." in key or isinstance(value, Mapping)
        if top in GROUPS and within:
            by_key[key] = value
        elif (top in _PARTS and within) or key in ("layers", "layer_options"):
            by_key[f"model.{key}"] = value
        else:
            by_key[f"model.{part}.{key}"] = value
    return words_of(by_key)


def flags(config_dir: str | Path | None, plugins: Sequence[str]) -> list[str]:
    """Return the words that name files and packages of one's own."""
    if isinstance(plugins, str):
        raise ConfigError(f"plugins: got {plugins!r}; wanted a list of names, as in [{plugins!r}]")
    words = [] if config_dir is None else [f"--config-dir={config_dir}"]
    return words + ([f"plugins=[{','.join(plugins)}]"] if plugins else [])
