"""Puts options that files set and that have no effect in a run back to their defaults.

The file of a family, a protocol or a preset is meant for many runs. In some of them an option that
it sets has no effect: `pooling` where every token has an answer, `qkv_bias` in a family without
queries, `betas` of another optimiser, `positions=rotary` in a family that does not apply them. It
is then put back to what the family's file says, or to its default. Where an argument of the command
sets such an option, it stays as it is, and the command is refused later.
"""

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

from lra.composition.binding import bind, defaults
from lra.composition.catalogue import names
from lra.composition.class_path import locate
from lra.composition.compose import (
    are_bundled,
    build_model,
    facts,
    group_file,
    idle_options,
    typed,
)
from lra.composition.own_options import Tree, merge_trees, tree_at
from lra.composition.run import Run
from lra.composition.warm_up import by_hand
from lra.errors import ConfigError
from lra.models import idle
from lra.runners.records import Memo
from lra.runners.runner import Direction
from lra.runners.training import optim
from lra.tasks.errors import NotPrepared

BACKBONE = "model.backbone"
OF_FAMILY = ("head_width", "qkv_bias", "output_bias", "memory", "evaluation_memory")
"""Options of the backbone that only some families read."""
OF_FILE = ("pooling", "positions")
"""Options of the backbone that are put back to the value of the family's file. Such a value has an
effect on numbers."""


def without_unread(config: Tree, words: Sequence[str], memo: Memo) -> Tree:
    """Return a configuration in which options without effect have their defaults again.

    Args:
        config: The configuration of one run; errors in it are reported later by what reads it.
        words: The arguments of the command, whose options stay as they are.
        memo: Objects that the runs of the sweep share, so that equal parts are examined once.
    """
    while found := _found(config, words, memo):
        config = reduce(merge_trees, (tree_at(key, value) for key, value in found.items()), config)
    return config


def notes(pairs: Sequence[tuple[Tree, Tree]]) -> list[str]:
    """Return a sentence for each option that was put to another value with an effect on numbers.

    Args:
        pairs: A configuration of each run, before and after `without_unread`.
    """
    families: dict[tuple[str, str, str], dict[str, None]] = {}
    for before, after in pairs:
        was, now = (tree["model"].get("backbone") or {} for tree in (before, after))
        for name in OF_FILE:
            if was.get(name) != now.get(name) and (name, now.get(name)) != ("pooling", "cls"):
                key = name, str(was.get(name)), str(now.get(name))
                families.setdefault(key, {})[str(after["model"]["name"])] = None
    return [
        f"{BACKBONE}.{name}={now} for {', '.join(models)}: they do not support {name}={was}, "
        "which a file sets"
        for (name, was, now), models in families.items()
    ]


def _found(config: Tree, words: Sequence[str], memo: Memo) -> Tree:
    """Return options by key that are to give way, each at its default; those of one kind."""
    beside = config["model"], config["optim"]
    parts = tuple(config[key] for key in ("model", "task", "runner", "plugins"))
    of_model = tuple(word for word in words if "model" in word)
    try:
        for what, objects, find in (
            ("with others", beside, partial(_beside_others, config)),
            ("of task", parts, partial(_of_task, config, memo)),
            (("of family", of_model), parts, partial(_of_family, config, memo, of_model)),
        ):
            everything: Tree = memo.of(("gives way", what), objects, find)
            if found := {k: v for k, v in everything.items() if not by_hand(k, words)}:
                return found
    except (ConfigError, NotPrepared):  # which whoever reads the options, or the data, explains
        pass
    return {}


def _run(config: Tree, memo: Memo) -> Run:
    return typed(config, memo.of("tasks", (), dict[str, Any]), memo)


def _beside_others(config: Tree) -> Tree:
    """Return options without effect because of another option of the same group, with defaults."""
    from lra.models.backbone.config import NEEDS, BackboneConfig

    found: Tree = {}
    for group, node, kind, needs in (
        (BACKBONE, config["model"].get("backbone"), BackboneConfig, NEEDS),
        ("optim", config["optim"], optim.OptimConfig, optim.NEEDS),
    ):
        options = {k: v for k, v in (node or {}).items() if k not in ("name", "about")}
        names = idle.idle(needs, bind(kind, options, group), idle.defaults(kind))
        found |= {f"{group}.{name}": defaults(kind)[name] for name in names}
    return found


def _of_task(config: Tree, memo: Memo) -> Tree:
    """Return options of the backbone that have no effect on this task, with their defaults."""
    from lra.models.backbone.assembly import OF_TASK
    from lra.models.backbone.config import BackboneConfig

    usual, node = defaults(BackboneConfig), config["model"].get("backbone") or {}
    suspects = {name for need in OF_TASK for name in need.options}
    if all(node.get(name, usual[name]) == usual[name] for name in suspects):
        return {}
    run = _run(config, memo)
    if run.runner.facing is not Direction.task:
        return {}
    names = idle_options(run, facts(run))
    return {f"{BACKBONE}.{name}": usual[name] for name in names}


def _of_family(config: Tree, memo: Memo, words: Sequence[str]) -> Tree:
    """Return options without effect in this family, with their defaults.

    The model is built without contents: a family raises `Idle` for an option that it does not read.
    """
    import torch

    from lra.models.backbone.config import BackboneConfig
    from lra.models.mixer import INSIDE, Idle, Positions

    model = config["model"]
    backbone = model.get("backbone") or {}
    usual: Tree = {
        f"{BACKBONE}.{name}": None for name in OF_FAMILY if backbone.get(name) is not None
    }
    name = model.get("name")  # none in a file of the user's that does not say it
    own = group_file("model", name).get("backbone", {}) if name in names("model") else {}
    if backbone.get("positions") in (*INSIDE, Positions.none):
        own = {"positions": Positions.learned.value, **own}
    usual |= {
        f"{BACKBONE}.{name}": own[name]
        for name in OF_FILE
        if name in own and backbone.get(name, own[name]) != own[name]
    }
    core = "stack" if "stack" in model else "mixer"
    options = model.get(core) or {}
    if core == "stack":
        own = {**defaults(BackboneConfig), **own}
        usual |= {f"{BACKBONE}.{k}": own[k] for k, v in backbone.items() if v != own.get(k, v)}
    if "class_path" in options:
        default = defaults(locate(options["class_path"], config["plugins"]))
        usual |= {
            f"model.{core}.{name}": default[name]
            for name, value in options.items()
            if name in default and value != default[name]
        }
    usual = {key: value for key, value in usual.items() if not by_hand(key, words)}
    if not usual or model.get("layers") or backbone.get("decoder_depth"):
        return {}  # of several families one may read what another does not
    run = _run(config, memo)
    if not are_bundled(run.mixers, run.stack):  # of a module of the user's own, positions alone
        usual = {key: value for key, value in usual.items() if key == f"{BACKBONE}.positions"}
        if not usual:
            return {}
    try:
        with torch.device("meta"):
            length = run.task.spec.max_length if run.runner.by_length else None
            build_model(run, max_length=length)
    except Idle as refused:
        keys = (f"model.{refused.option}", f"model.{core}.{refused.option}")
        return {key: usual[key] for key in keys if key in usual}
    except Exception as error:
        if not isinstance(error, ValueError) and are_bundled(run.mixers, run.stack):
            raise
        # refused for another reason; a module of the user's own may need contents
    return {}
