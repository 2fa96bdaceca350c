"""Write Python values as arguments of the command line."""

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
"""Words that Hydra does not read as text."""
_PARTS = ("mixer", "stack", "backbone")
"""Parts of a model that have options."""


def value_text(value: Any, where: str) -> str:
    """Return a Python value as a user types it on the command line.

    Args:
        value: A number, text, path, bool, None, enum member, or a list or mapping of these.
        where: The key, for the message.

    Raises:
        ConfigError: The value has another type.
    """
    text = None
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, Enum | str | Path):
        text = _quote_text(value.name if isinstance(value, Enum) else str(value))
    elif isinstance(value, Integral):
        text = str(int(value))
    elif isinstance(value, Real):
        text = repr(float(value))
    elif isinstance(value, Mapping):
        pairs = (
            f"{_quote_text(str(key))}:{value_text(item, where)}" for key, item in value.items()
        )
        text = "{" + ",".join(pairs) + "}"
    elif isinstance(value, list):
        text = "[" + ",".join(value_text(item, where) for item in value) + "]"
    if text is not None:
        return text
    raise ConfigError(
        f"{where}: got {quote(value)} ({type(value).__name__}); wanted a number, a text, True, "
        "False, None, or a list or mapping of such values"
    )


def _quote_text(value: str) -> str:
    """Return a text, in quotes unless Hydra reads it as the same text without them."""
    from hydra.core.override_parser.types import Quote, QuotedString

    if _BARE.fullmatch(value) and value.lower() not in _OTHER:
        return value
    return QuotedString(text=value, quote=Quote.single).with_quotes()


def word(key: str, value: Any) -> str:
    """Return the argument `key=value`; a tuple gives several values, as in key=1,2."""
    if isinstance(value, tuple):
        if not value:
            raise ConfigError(
                f"{key}: got an empty tuple; wanted a tuple with the values of the sweep"
            )
        return f"{key}=" + ",".join(value_text(item, key) for item in value)
    return f"{key}={value_text(value, key)}"


def words_of(options: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return options as arguments of the command line.

    Args:
        options: Values by key; `{"optim": {"steps": 5}}` is the same as `{"optim.steps": 5}`.
        prefix: The beginning of all keys, with a dot at its end.
    """
    words = []
    for key, value in options.items():
        if not isinstance(key, str):
            raise ConfigError(f"got the key {key!r}; wanted text, as in 'optim.steps'")
        full_key = prefix + key
        if isinstance(value, Mapping) and value and _holds_options(full_key):
            words += words_of(value, f"{full_key}.")
        else:
            words.append(word(full_key, value))
    return words


def _holds_options(key: str) -> bool:
    """Return whether a key is a group or a part of a model, so that its mapping holds options."""
    return key.lstrip("+") in (*GROUPS, *(f"model.{part}" for part in _PARTS))


def model_words(model: str, options: Mapping[str, Any], config_dirs: Sequence[Path]) -> list[str]:
    """Return the options of a model as arguments of the command line.

    Args:
        model: The name of the model.
        options: Values by key. A key without a dot is an option of the mixer, unless it names a
            group or a part of the model and has a mapping as its value.
        config_dirs: Folders with the user's YAML files.
    """
    from lra.composition.compose import group_file

    part = "stack" if "stack" in group_file("model", model, config_dirs) else "mixer"
    by_key: dict[str, Any] = {}
    for key, value in options.items():
        top = key.lstrip("+").partition(".")[0]
        has_inner_key = "." in key or isinstance(value, Mapping)
        if top in GROUPS and has_inner_key:
            by_key[key] = value
        elif (top in _PARTS and has_inner_key) or key in ("layers", "layer_options"):
            by_key[f"model.{key}"] = value
        else:
            by_key[f"model.{part}.{key}"] = value
    return words_of(by_key)


def flags(config_dir: str | Path | None, plugins: Sequence[str]) -> list[str]:
    """Return the arguments of `lra run` for the keywords `config_dir` and `plugins`."""
    if isinstance(plugins, str):
        raise ConfigError(f"plugins: got {plugins!r}; wanted a list of names, as in [{plugins!r}]")
    words = [] if config_dir is None else [f"--config-dir={config_dir}"]
    return words + ([f"plugins=[{','.join(plugins)}]"] if plugins else [])
