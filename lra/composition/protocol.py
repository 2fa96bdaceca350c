"""Finds how a run differs from the protocol that it names, the settings of a paper.

The file of a protocol says which models its paper trained (`published_models`), in which settings
lra has to differ from the paper (`deviations`, a sentence by name), and what the paper calls a
model that some option makes (`called`). What arguments of a command or a preset have changed is
found by comparing. Every row has all of this in its labels. A smaller scale is one label of its
own, and does not count as a change.
"""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, reduce
from typing import Any

from lra.composition.catalogue import names, our_file
from lra.composition.class_path import locate
from lra.composition.own_options import TABLES, by_option, matching_options, merge_trees, tree_at
from lra.composition.task_name import NONE
from lra.composition.unread_options import without_unread
from lra.models.idle import defaults
from lra.runners.records import Memo
from lra.runners.training.optim import OptimConfig, Statistics

ADHOC = "adhoc"
FULL = "full"
"""The scale at which nothing is reduced; until 0.1, `published`."""
FIRST_LOOK = {"depth": 2, "width": 64, "heads": 2, "feed_forward_width": 128}
"""The size of a model where neither an argument nor a file chooses one."""
COMPARED = ("model", "task", "optim")
"""Groups of which all options are compared; of other groups, only those that the protocol sets."""
MICRO = "optim.micro_batch_size"
PASSED_OVER = frozenset(
    {
        "name", "about", "class_path", "runner.section", MICRO,
        "model.backbone.activation_checkpointing", "model.backbone.feed_forward_chunks",
    }
)  # fmt: skip
"""Options that change no number. Micro-batches do if statistics are computed over each of them."""
MOST = 6
"""How many changes a note lists."""


def marks(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels that a protocol gives every row of a run; none without a protocol.

    Args:
        config: The composed configuration, resolved.
    """
    if config.get("protocol", NONE) == NONE:
        return {}
    labels = {"protocol": str(config["protocol"])}
    name = config["model"]["name"]
    if called := by_option(config, (config.get("called") or {}).get(name)):
        labels["called"] = called
    if name not in config.get("published_models", ()):
        labels["settings"] = "shared"
    if named := deviations(config):
        labels["deviations"] = ", ".join(named)
    if changed := changes(config):
        labels["changed"] = ", ".join(changed)
    return labels


def scale(config: Mapping[str, Any]) -> str:
    """Return the scale of a run."""
    name = str(config.get("scale", FULL))
    return FULL if name == "published" else name


def deviations(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the sentences of the protocol about this run's deviations from its paper, by name."""
    sentences = config.get("deviations") or {}
    return {name: text for name, text in sorted(sentences.items()) if text is not None}


def changes(config: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the options that differ from the protocol: (its value, the run's value) by key.

    Only protocols that come with lra are compared. The options of one are those of its files at
    the same scale, and a default that nothing reads in this run does not count as a change.
    """
    name = str(config.get("protocol", NONE))
    if name not in _ours("protocol"):
        return {}  # no protocol, or one of the user, whose file may have changed since the run
    chosen = {group: str(config[group]["name"]) for group in TABLES.values()}
    published, layer = _published(name, scale(config), *chosen.values())
    changed = {}
    for group, node in config.items():
        if group not in (*COMPARED, "runner", "hardware") or not isinstance(node, Mapping):
            continue
        theirs = flat(published.get(group, {}), group)
        ours = flat(node, group)
        if group == "optim":  # its files omit what their optimiser lacks: compare with defaults
            theirs, ours = ({**_USUAL, **options} for options in (theirs, ours))
            if ours["optim.statistics"] == Statistics.micro_batch:
                for options, of in ((theirs, published), (ours, config)):
                    options[MICRO] = of["optim"].get("micro_batch_size")
        limits = {*ours, *theirs} if group in COMPARED else flat(layer.get(group, {}), group)
        for key in sorted(limits):
            if ours.get(key) != theirs.get(key) and not _incidental(key, config):
                changed[key] = (theirs.get(key), ours.get(key))
    unread = _unread_changes(config, changed)
    return {key: values for key, values in changed.items() if key not in unread}


def _unread_changes(config: Mapping[str, Any], changed: Mapping[str, tuple[Any, Any]]) -> set[str]:
    """Return the changed options that have no effect in this run, and so are at their defaults.

    The kind of positions is never among them: where a family cannot have those of the protocol,
    others take their place, and these change numbers.
    """
    whole, own = our_file("config"), our_file(f"model/{config['model']['name']}")
    usual = {f"model.backbone.{k}": v for k, v in whole["model"]["backbone"].items()} | _USUAL
    del usual["model.backbone.positions"]
    usual |= flat({k: own[k] for k in ("mixer", "stack") if k in own}, "model")
    unread = {k: theirs for k, (theirs, now) in changed.items() if k in usual and now == usual[k]}
    if not unread:
        return set()
    back = reduce(merge_trees, (tree_at(key, value) for key, value in unread.items()), dict(config))
    found = without_unread(back, (), Memo())
    now = flat(found["model"], "model") | flat(found["optim"], "optim")
    return {key for key in unread if now.get(key) == usual[key]}


def notes(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the sentences to print before runs begin that use a protocol or a smaller scale."""
    lines = [
        f"scale={name}: tasks, models and trainings differ from the publication; every row "
        "lists the differences"
        for name in dict.fromkeys(map(scale, configs))
        if name != FULL
    ]
    for protocol in dict.fromkeys(str(config.get("protocol", NONE)) for config in configs):
        if protocol != NONE:
            runs = [config for config in configs if config["protocol"] == protocol]
            lines += [
                f"+protocol={protocol}: {line}" for line in _of_models(runs) + _of_changes(runs)
            ]
    return lines


def first_look(config: Mapping[str, Any]) -> str | None:
    """Return a sentence of warning for a training of the small default size; None for any other.

    With a protocol or a preset (which sets `sweep`) somebody has chosen the size: no warning.
    """
    backbone, steps = config["model"].get("backbone", {}), config["optim"].get("steps")
    if (
        not isinstance(steps, int)  # which is refused later
        or config.get("protocol", NONE) != NONE
        or config.get("sweep", ADHOC) != ADHOC
        or config["runner"]["name"] != "train"
        or any(backbone.get(name) != value for name, value in FIRST_LOOK.items())
    ):
        return None
    return (
        f"This is a small test model ({backbone['depth']} layers, width {backbone['width']}). Do "
        "not compare its scores with papers; for that, use `+protocol=NAME`."
    )


def _of_models(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which models the source of a protocol did not train."""
    trained = {name for config in configs for name in config.get("published_models", ())}
    models = dict.fromkeys(str(config["model"]["name"]) for config in configs)
    others = ", ".join(name for name in models if name not in trained)
    if not others:
        return []
    if not trained:
        return [
            f"lra does not have the model of its source. Its settings are used for {others}, "
            "for which there is no published figure"
        ]
    return [
        f"its source did not train {others}, which use the settings for all models; it trained "
        f"{', '.join(f'model={name}' for name in sorted(trained))}"
    ]


def _of_changes(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say what is not as a protocol has it."""
    now: dict[str, set[str]] = {}
    for config in configs:
        for key, (_, value) in changes(config).items():
            now.setdefault(key, set()).add(str(value))
    if not now:
        return []
    words = [f"{key}={'|'.join(sorted(values))}" for key, values in now.items()]
    more = f" and {len(words) - MOST} more" if len(words) > MOST else ""
    return [f"differs from the publication, as each row lists: {', '.join(words[:MOST])}{more}"]


@lru_cache(maxsize=512)
def _published(protocol: str, scale: str, task: str, model: str, runner: str) -> tuple[Any, Any]:
    """Return two trees: what files, protocol and scale set together, and what the protocol sets."""
    whole = our_file("config")
    usual = {k: v for part in whole["defaults"] if isinstance(part, dict) for k, v in part.items()}
    chosen = {"task": task, "model": model, "runner": runner}
    layers, alone = dict[str, Any](), dict[str, Any]()
    for group, name in (("protocol", protocol), ("scale", scale)):
        layer = our_file(f"{group}/{name}")
        source = f"+protocol={name}" if group == "protocol" else f"scale={name}"
        layers = merge_trees(
            layers, merge_trees(layer, matching_options(layer, chosen, _ours, source))
        )
        alone = layers if group == "protocol" else alone
    tree: dict[str, Any] = {group: whole[group] for group in COMPARED if group in whole}
    for part in (
        {"model": our_file(f"model/{model}"), "task": our_file(f"task/{task}")},
        {
            "model": {"backbone": our_file(f"size/{usual['size']}")},
            "optim": our_file(f"optim/{usual['optim']}"),
        },
        layers,
    ):
        tree = merge_trees(tree, part)
    return tree, alone


@cache
def _ours(group: str) -> list[str]:
    """Return the choices of a group that come with lra; they stay the same in one process."""
    return names(group)


_USUAL = {f"optim.{name}": value for name, value in defaults(OptimConfig).items()}


def flat(node: Any, above: str) -> dict[str, Any]:
    """Return a nested mapping as one level with dotted keys, without what changes no number."""
    options: dict[str, Any] = {}
    for key, value in node.items():
        here = f"{above}.{key}"
        if key in PASSED_OVER or here in PASSED_OVER:
            continue
        if isinstance(value, Mapping) and value:
            options |= flat(value, here)
        else:
            options[here] = value
    return options


def _incidental(key: str, config: Mapping[str, Any]) -> bool:
    """Return whether a key is an option of the task that changes no number."""
    group, _, option = key.partition(".")
    if group != "task":
        return False
    return option in locate(str(config["task"]["class_path"]), list(config["plugins"])).incidental
