"""Errors that the user can mend, and messages for unknown names with similar names or a list."""

import difflib
import re
from collections.abc import Collection, Iterable

from lra.conf.short_values import short

MOST_NAMES = 16
LISTED = {
    **{
        kind: f"lra list {kind}s" for kind in ("model", "task", "experiment", "protocol", "pattern")
    },
    **dict.fromkeys(("name", "group"), "lra list"),
}
"""The command that prints all names of a kind."""
OTHER_NAMES = {
    "transformer": "softmax", "vanilla": "softmax", "attention": "softmax", "full": "softmax",
    "flash": "sdpa", "flash_attention": "sdpa", "flashattention": "sdpa", "mha": "softmax",
    "flash_attn": "sdpa", "flash_attention_2": "sdpa", "flashattention_2": "sdpa",
    "linear_attention": "linear",
    "gqa": "grouped_query", "mqa": "multi_query", "mla": "latent_attention",
    "hca": "compressed", "csa": "compressed",
    "linear_transformer": "linear", "window": "local", "swa": "sliding_window",
    "s4d": "s4", "dss": "s4", "ssm": "s4", "mamba_1": "mamba", "mamba1": "mamba", "ssd": "mamba2",
    "mamba_2": "mamba2", "mamba_3": "mamba3", "xlstm": "mlstm", "fox": "forgetting",
    "kda": "kimi_delta",
    "path_attention": "path",
    "imdb": "text", "cifar": "image", "cifar10": "image", "cifar_10": "image", "aan": "retrieval",
    "wikitext": "wikitext2", "uniprot": "proteins", "cost": "scaling", "speed": "scaling",
    "fit": "train", "generate": "decode", "wandb": "wandb_offline", "off": "none", "false": "none",
    "published": "full", "rope": "rotary", "recall": "mqar", "associative_recall": "mqar",
    "laptop": "cpu",
}  # fmt: skip
"""Common names of models, tasks, runners, loggers and machines, with the name in lra."""
OTHER_OPTIONS = {
    "lr": "peak_learning_rate", "wd": "weight_decay", "batch": "batch_size", "bs": "batch_size",
    "layers": "depth", "n_layers": "depth", "num_layers": "depth", "n_layer": "depth",
    "d_model": "width", "hidden": "width", "hidden_size": "width", "n_embd": "width",
    "n_heads": "heads", "num_heads": "heads", "n_head": "heads", "d_ff": "feed_forward_width",
}  # fmt: skip
"""Common names of options, with the name in lra."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key and the remedy."""


class CommandError(ValueError):
    """A command line that cannot be run; the message says how to correct it."""


class UnknownName(ValueError):
    """A name, given by the user, that does not exist; the message lists the names that do."""


def near(name: str, names: Iterable[str], *, most: int = 3) -> list[str]:
    """Return at most `most` of `names` that resemble `name`, best first; case is ignored."""
    by_lower = {candidate.lower(): candidate for candidate in names}
    cutoff = 0.6 if len(name) > 3 else 0.7  # so that `gpu` does not suggest `cpu`
    matches = difflib.get_close_matches(name.lower(), by_lower, n=most, cutoff=cutoff)
    return [by_lower[match] for match in matches]


def known_as(name: str, existing: Collection[str]) -> str | None:
    """Return the name in lra of what is elsewhere called `name`; None if not in `existing`."""
    other = OTHER_NAMES.get(_normalize_name(name))
    return other if other in existing else None


def respelt(name: str, existing: Iterable[str]) -> str | None:
    """Return the existing name that equals `name` except for case and separators, or None."""
    wanted = _normalize_name(name)
    return next((known for known in existing if _normalize_name(known) == wanted), None)


def _normalize_name(name: str) -> str:
    """Return a name in lower case, with `_` for everything between words."""
    return re.sub(r"[\W_]+", "_", name.lower())


def unknown(
    kind: str,
    name: str,
    existing: Iterable[str],
    *,
    way_out: str = "",
    listed: bool = True,
    saying: str = "",
) -> str:
    """Return the error message for a `name` that does not exist.

    Args:
        kind: The kind of thing that was asked for, in the singular: model, option of Performer.
        name: The name that the user gave.
        existing: Every valid name. If there are more than `MOST_NAMES`, some are not printed.
        way_out: One more sentence, for a user who did not simply mistype.
        listed: Whether `lra list` prints the valid names; it does not for names in results.
        saying: The beginning of the text; if empty, `unknown KIND NAME`.

    Returns:
        A text like: unknown model 'perfomer': did you mean 'performer'? Known models: ...
    """
    names = sorted(existing)
    same = respelt(name, names)
    # A respelt name wins: `S4D` is the protocol s4d, though OTHER_NAMES maps it to the model s4.
    other = None if same else known_as(name, names)
    candidates = [same] if same else [] if other else near(short(name), names)
    matches = [*map(repr, candidates)]
    message = saying or f"unknown {kind} {short(name)!r}"
    if other:
        message += f": lra calls it {other!r}."
    elif matches:
        message += f": did you mean {' or '.join(matches)}?"
    else:
        message += "."
    if len(names) > MOST_NAMES:
        place = LISTED.get(kind, "") if listed else ""
        if not matches and not other:
            message += f" Known {plural(kind)}: {', '.join(names[:MOST_NAMES])}, …"
            message += "" if place else f" ({len(names)} in all)."
        message += f" `{place}` prints all {len(names)}." if place else ""
    elif names:
        message += f" Known {plural(kind)}: {', '.join(names)}."
    else:
        message += f" There are no {plural(kind)} to choose from."
    return f"{message} {way_out}".rstrip()


def plural(kind: str) -> str:
    """Return the plural of the first word of `kind`: option of X becomes options of X."""
    head, space, rest = kind.partition(" of ")
    if head.endswith(("s", "x", "sh", "ch")):
        head += "es"
    elif head.endswith("y") and not head.endswith("ey"):
        head = head[:-1] + "ies"
    elif head != "hardware":
        head += "s"
    return head + space + rest
