"""Answers to a key that no chosen file has: what was meant, or whose option it is."""

from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from lra.composition.catalogue import names
from lra.composition.configuration import FORMER
from lra.composition.own_options import TABLES
from lra.composition.yaml_text import load
from lra.errors import near

SYNONYMS = {
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
OWN_KEYS = ("mixer", "stack", "backbone", "layers", "layer_options")
"""What a model has besides the options of its mixer."""
COUNTED = ("epoch", "epochs")
MOST = 12


def unknown_key(key: str, value: str, keys: Sequence[str]) -> str:
    """Return the answer to a key that is none.

    Args:
        key: With dots.
        value: As typed.
        keys: Every key of the chosen files.
    """
    answer = f"unknown key {key!r}"
    answer_of_choice = _of_one_choice(key, value)
    if answer_of_choice:
        return f"{answer}: {answer_of_choice}"
    above, _, leaf = key.rpartition(".")
    group = key.partition(".")[0]
    owners = _owners(group, leaf)
    matches = _meant(above, leaf, keys) or ([] if owners else near(key, keys))
    if matches:
        answer += f": did you mean {' or '.join(map(repr, matches[:3]))}?"
        if leaf.lower() in COUNTED and matches == ["optim.steps"]:
            answer += " Training is counted in steps, each of optim.batch_size examples."
        elif len(matches) == 1 and value:
            answer += f" Then type {matches[0]}={value}."
    else:
        answer += "."
    if owners:
        answer += f" {leaf} is an option of {', '.join(f'{group}={name}' for name in owners[:8])}."
    siblings = [k for k in keys if k.rpartition(".")[0] == above and above]
    if siblings:
        more = "" if len(siblings) <= MOST else ", …"
        answer += f" Known here: {', '.join(sorted(siblings)[:MOST])}{more}."
    return f"{answer} `lra run --cfg job` prints every key of the composed configuration."


def _meant(above: str, leaf: str, keys: Sequence[str]) -> list[str]:
    """Return the keys that end alike, or as what other programs call so; the nearest first."""
    group, other = above.partition(".")[0], SYNONYMS.get(leaf.lower())
    if f"{above}.{other}" in keys:
        return [f"{above}.{other}"]
    for end in (leaf, other):
        alike = [key for key in keys if key.rpartition(".")[2] == end]
        inside = [key for key in alike if key.startswith(f"{group}.")]
        if alike:
            return inside or alike
    return []


def _of_one_choice(key: str, value: str) -> str | None:
    """Answer an option of one model, task or runner that is put below its name."""
    parts = key.split(".")
    if parts[0] in TABLES:
        return f"the files have no such entry; two plus signs add it: ++{key}={value}"
    if parts[0] in FORMER:
        of = parts[0].removeprefix("per_")
        entry = ".".join((f"for_{of}", *parts[1:2], of, *parts[2:]))
        return f"{FORMER[parts[0]]}: ++{entry}={value}"
    group = parts.pop(0) if parts[0] in ("model", "task", "runner") else None
    for owner in ("model", "task", "runner"):
        if group in (owner, None) and len(parts) > 1 and parts[0] in names(owner):
            name, rest = parts[0], ".".join(parts[1:])
            if owner == "model" and parts[1] not in OWN_KEYS:
                rest = f"mixer.{rest}"
            return (
                f"its options stand without its name: {owner}={name} {owner}.{rest}={value}; in a "
                f"sweep, for it alone: ++for_{owner}.{name}.{owner}.{rest}={value}"
            )
    return None


def _owners(group: str, leaf: str) -> list[str]:
    """Return the choices of a group that have an option of this name."""
    return [
        name
        for name in names(group)
        if group in ("model", "task", "runner", "hardware", "optim")
        and leaf in _options(group, name)
    ]


@lru_cache(maxsize=256)
def _options(group: str, name: str) -> tuple[str, ...]:
    node: dict[str, Any] = load(Path(str(files("conf"))) / group / f"{name}.yaml")
    names_of_options = {*node}
    for part in ("mixer", "stack"):
        if isinstance(node.get(part), dict):
            names_of_options |= {*node[part]}
    return tuple(map(str, names_of_options))
