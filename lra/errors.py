"""What is wrong with what a person gave, and answers to an unknown name: near matches, a list."""

import difflib
import re
from collections.abc import Collection, Iterable

from lra.conf.short_values import short

MOST_NAMES = 16
LISTED = {
    **{kind: f"lra list {kind}s" for kind in ("model", "task", "experiment", "protocol")},
    **dict.fromkeys(("name", "group"), "lra list"),
}
"""What prints all names of a kind."""
OTHER_NAMES = {
    "transformer": "softmax", "vanilla": "softmax", "attention": "softmax", "full": "softmax",
    "flash": "sdpa", "flash_attention": "sdpa", "flashattention": "sdpa", "mha": "softmax",
    "flash_attn": "sdpa", "flash_attention_2": "sdpa", "flashattention_2": "sdpa",
    "linear_attention": "linear",
    "gqa": "grouped_query", "mqa": "multi_query", "mla": "latent_attention",
    "linear_transformer": "linear", "window": "local", "swa": "sliding_window",
    "s4d": "s4", "dss": "s4", "ssm": "s4", "mamba_1": "mamba", "mamba1": "mamba", "ssd": "mamba2",
    "mamba_2": "mamba2", "xlstm": "mlstm", "fox": "forgetting", "kda": "kimi_delta",
    "imdb": "text", "cifar": "image", "cifar10": "image", "cifar_10": "image", "aan": "retrieval",
    "wikitext": "wikitext2", "uniprot": "proteins", "cost": "scaling", "speed": "scaling",
    "fit": "train", "generate": "decode", "wandb": "wandb_offline", "off": "none", "false": "none",
    "published": "full", "rope": "rotary", "recall": "mqar", "associative_recall": "mqar",
    "laptop": "cpu",
}  # fmt: skip
"""What others call our models, tasks, runners, loggers and machines."""
OTHER_OPTIONS = {
    "lr": "peak_learning_rate", "wd": "weight_decay", "batch": "batch_size", "bs": "batch_size",
    "layers": "depth", "n_layers": "depth", "num_layers": "depth", "n_layer": "depth",
    "d_model": "width", "hidden": "width", "hidden_size": "width", "n_embd": "width",
    "n_heads": "heads", "num_heads": "heads", "n_head": "heads", "d_ff": "feed_forward_width",
}  # fmt: skip
"""What others call our options."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key and the way out."""


class CommandError(ValueError):
    """A command line that cannot be run; the message names what could."""


class UnknownName(ValueError):
    """A user's name that stands for nothing; the message lists what would."""


def near(name: str, names: Iterable[str], *, most: int = 3) -> list[str]:
    """Return the known names that resemble `name`, best first, whatever their case."""
    by_lower = {candidate.lower(): candidate for candidate in names}
    cutoff = 0.6 if len(name) > 3 else 0.7  # gpu is not near to cpu
    matches = difflib.get_close_matches(name.lower(), by_lower, n=most, cutoff=cutoff)
    return [by_lower[match] for match in matches]


def known_as(name: str, existing: Collection[str]) -> str | None:
    """Return which of the names is ours for what others call `name`, if any."""
    other = OTHER_NAMES.get(_plain(name))
    return other if other in existing else None


def respelt(name: str, existing: Iterable[str]) -> str | None:
    """Return which of the names is this one but for case and separators, if any."""
    return next((each for each in existing if _plain(each) == _plain(name)), None)


def _plain(name: str) -> str:
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
    """Return the message of the error to raise for `name`.

    Args:
        kind: What was asked for, in the singular: model, task, option of Performer.
        name: The value seen.
        existing: Every value that would have done; of more than `MOST_NAMES` not all are listed.
        way_out: One more sentence, for what is not a slip of the pen.
        listed: Whether `lra list` prints them: of results it does not.
        saying: How the text begins, where it is not with `unknown KIND NAME`.

    Returns:
        A text like: unknown model 'perfomer': did you mean 'performer'? Known models: ...
    """
    names = sorted(existing)
    same = respelt(name, names)
    # S4D is a protocol of ours, and what others call the model s4.
    other = None if same else known_as(name, names)
    found = [same] if same else [] if other else near(short(name), names)
    matches = [*map(repr, found)]
    message = saying or f"unknown {kind} {short(name)!r}"
    if other:
        message += f": it is called {other!r} here."
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
