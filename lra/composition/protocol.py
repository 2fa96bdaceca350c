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
from lra.composition.pattern_name import name_of
from lra.composition.task_name import NONE
from lra.composition.unread_options import without_unread
from lra.models.idle import defaults
from lra.runners.records import Memo
from lra.runners.training.optim import OptimConfig, Statistics

ADHOC = "adhoc"
FULL = "full"
"""The scale at which nothing is reduced; until 0.1, `published`."""
FIRST_LOOK = {"depth": 2, "width": 64, "heads": 2, "feed_forward_width": 128}
"""The size of a model if neither an argument nor a file chooses a size."""
COMPARED = ("model", "task", "optim")
"""In these groups, all options are compared; in other groups, only options that a protocol sets."""
MICRO = "optim.micro_batch_size"
PASSED_OVER = frozenset(
    {
        "name", "about", "class_path", "runner.section", MICRO,
        "model.backbone.activation_checkpointing", "model.backbone.feed_forward_chunks",
    }
)  # fmt: skip
"""Options that change no number (except MICRO, if statistics are computed for each micro-batch)."""
MOST = 6
"""The most changes that a note lists."""


def marks(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels that a protocol gives every row of a run; none without a protocol.

    Args:
        config: The composed configuration, resolved.
    """
    if config.get("protocol", NONE) == NONE:
        return {}
    labels = {"protocol": str(config["protocol"])}
    name = name_of(config)
    if published_name := by_option(config, (config.get("called") or {}).get(name)):
        labels["called"] = published_name
    if name not in config.get("published_models", ()):
        labels["settings"] = "shared"
    if deviating := deviations(config):
        labels["deviations"] = ", ".join(deviating)
    if changed := changes(config):
        labels["changed"] = ", ".join(changed)
    return labels


def scale(config: Mapping[str, Any]) -> str:
    """Return the scale of a run; `FULL` if nothing is reduced."""
    name = str(config.get("scale", FULL))
    return FULL if name == "published" else name  # its name until version 0.1


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
    if name not in _cached_names("protocol"):
        return {}  # no protocol, or one of the user, whose file may have changed since the run
    chosen = {group: str(config[group]["name"]) for group in TABLES.values()}
    published, protocol_alone = _compose_published(name, scale(config), *chosen.values())
    changed = {}
    for group, node in config.items():
        if group not in (*COMPARED, "runner", "hardware") or not isinstance(node, Mapping):
            continue
        theirs = flat(published.get(group, {}), group)
        ours = flat(node, group)
        if group == "optim":  # a file omits options that its optimiser lacks: add the defaults
            theirs, ours = ({**_DEFAULTS, **options} for options in (theirs, ours))
            if ours["optim.statistics"] == Statistics.micro_batch:
                for options, source in ((theirs, published), (ours, config)):
                    options[MICRO] = source["optim"].get("micro_batch_size")
        set_by_protocol = flat(protocol_alone.get(group, {}), group)
        compared = {*ours, *theirs} if group in COMPARED else {*set_by_protocol}
        for key in sorted(compared):
            if ours.get(key) != theirs.get(key) and not _is_incidental(key, config):
                changed[key] = (theirs.get(key), ours.get(key))
    unread = _find_unread(config, changed)
    return {key: values for key, values in changed.items() if key not in unread}


def _find_unread(config: Mapping[str, Any], changed: Mapping[str, tuple[Any, Any]]) -> set[str]:
    """Return the changed options that have no effect in this run, and so are at their defaults.

    The test: put the protocol's values back, and see which of them `without_unread` replaces by
    defaults again. The option `positions` is never returned: if a family cannot have the positions
    of the protocol, it gets others, and these change numbers.

    Args:
        config: The configuration of the run.
        changed: (the protocol's value, the run's value) by key.
    """
    whole, own = our_file("config"), our_file(f"model/{config['model']['name']}")
    default = {f"model.backbone.{k}": v for k, v in whole["model"]["backbone"].items()} | _DEFAULTS
    del default["model.backbone.positions"]
    default |= flat({k: own[k] for k in ("mixer", "stack") if k in own}, "model")
    candidates = {
        key: theirs
        for key, (theirs, ours) in changed.items()
        if key in default and ours == default[key]
    }
    if not candidates:
        return set()
    restored = (tree_at(key, value) for key, value in candidates.items())
    tree = without_unread(reduce(merge_trees, restored, dict(config)), (), Memo())
    now = flat(tree["model"], "model") | flat(tree["optim"], "optim")
    return {key for key in candidates if now.get(key) == default[key]}


def notes(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the sentences to print before runs begin that use a protocol or a smaller scale."""
    lines = [
        f"scale={name} makes tasks, models and trainings smaller than in the publication; every "
        "row lists the differences"
        for name in dict.fromkeys(map(scale, configs))
        if name != FULL
    ]
    for protocol in dict.fromkeys(str(config.get("protocol", NONE)) for config in configs):
        if protocol != NONE:
            runs = [config for config in configs if config["protocol"] == protocol]
            lines += [
                f"+protocol={protocol}: {line}"
                for line in _describe_models(runs) + _describe_changes(runs)
            ]
    return lines


def first_look(config: Mapping[str, Any]) -> str | None:
    """Return a sentence of warning for a training of the small default size; None for any other.

    With a protocol or a preset (which sets `sweep`) somebody has chosen the size: no warning.
    """
    backbone, steps = config["model"].get("backbone", {}), config["optim"].get("steps")
    if (
        not isinstance(steps, int)  # lra refuses such a value later
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


def _describe_models(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence on the models that the paper of a protocol did not train; [] if none.

    `configs` are the configurations of all runs with this protocol.
    """
    trained = {name for config in configs for name in config.get("published_models", ())}
    models = dict.fromkeys(map(name_of, configs))
    others = ", ".join(name for name in models if name not in trained)
    if not others:
        return []
    if not trained:
        return [
            f"lra does not have the model that this paper trained. The settings of the paper are "
            f"used for {others}, so the paper has no score to compare with"
        ]
    return [
        f"the paper did not train {others}, so lra uses the paper's settings for all models; the "
        f"paper trained {', '.join(f'model={name}' for name in sorted(trained))}"
    ]


def _describe_changes(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence with the options that differ from a protocol; [] if none differs."""
    values_by_key: dict[str, set[str]] = {}
    for config in configs:
        for key, (_, value) in changes(config).items():
            values_by_key.setdefault(key, set()).add(str(value))
    if not values_by_key:
        return []
    words = [f"{key}={'|'.join(sorted(values))}" for key, values in values_by_key.items()]
    more = f" and {len(words) - MOST} more" if len(words) > MOST else ""
    return [
        "these options differ from the paper, and every row lists them: "
        f"{', '.join(words[:MOST])}{more}"
    ]


@lru_cache(maxsize=512)
def _compose_published(
    protocol: str, scale: str, task: str, model: str, runner: str
) -> tuple[Any, Any]:
    """Return the configuration of a protocol at a scale, and the part that the protocol sets.

    Both are nested mappings, for the given task, model and runner, without arguments of a command.
    """
    whole = our_file("config")
    # The default choice of each group.
    first = {k: v for part in whole["defaults"] if isinstance(part, dict) for k, v in part.items()}
    chosen = {"task": task, "model": model, "runner": runner}
    layers, protocol_alone = dict[str, Any](), dict[str, Any]()
    for group, name in (("protocol", protocol), ("scale", scale)):
        layer = our_file(f"{group}/{name}")
        source = f"+protocol={name}" if group == "protocol" else f"scale={name}"
        layers = merge_trees(
            layers, merge_trees(layer, matching_options(layer, chosen, _cached_names, source))
        )
        protocol_alone = layers if group == "protocol" else protocol_alone  # before the scale
    tree: dict[str, Any] = {group: whole[group] for group in COMPARED if group in whole}
    for part in (
        {"model": our_file(f"model/{model}"), "task": our_file(f"task/{task}")},
        {
            "model": {"backbone": our_file(f"size/{first['size']}")},
            "optim": our_file(f"optim/{first['optim']}"),
        },
        layers,
    ):
        tree = merge_trees(tree, part)
    return tree, protocol_alone


@cache
def _cached_names(group: str) -> list[str]:
    """Return the choices of a group that come with lra; they stay the same in one process."""
    return names(group)


_DEFAULTS = {f"optim.{name}": value for name, value in defaults(OptimConfig).items()}
"""The defaults of the optimiser by key."""


def flat(node: Any, above: str) -> dict[str, Any]:
    """Return the values of a nested mapping by dotted key, without `PASSED_OVER`.

    `above` is the key of `node` itself, which all returned keys begin with.
    """
    options: dict[str, Any] = {}
    for key, value in node.items():
        path = f"{above}.{key}"
        if key in PASSED_OVER or path in PASSED_OVER:
            continue
        if isinstance(value, Mapping) and value:
            options |= flat(value, path)
        else:
            options[path] = value
    return options


def _is_incidental(key: str, config: Mapping[str, Any]) -> bool:
    """Return whether a key is an option of the task that changes no number."""
    group, _, option = key.partition(".")
    if group != "task":
        return False
    return option in locate(str(config["task"]["class_path"]), list(config["plugins"])).incidental
