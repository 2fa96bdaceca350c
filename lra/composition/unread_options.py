"""Put options that a file sets, but that have no effect in a run, back to their defaults.

The file of a family, a protocol or a preset is meant for many runs. In some runs, an option of the
file has no effect: `pooling` if every token has an answer, `qkv_bias` in a family without queries,
`betas` of another optimiser, `positions=rotary` in a family that does not apply rotary positions.
Such an option gets the value of the family's file, or its default. If an argument of the command
sets such an option, the option keeps its value, and lra refuses the command later.
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
"""Options of the backbone that get the value of the family's file, which changes numbers."""


def without_unread(config: Tree, words: Sequence[str], memo: Memo) -> Tree:
    """Return a configuration in which options without effect have their defaults again.

    Args:
        config: The configuration of one run; errors in it are reported later by what reads it.
        words: The arguments of the command, whose options stay as they are.
        memo: Objects that the runs of the sweep share, so that equal parts are examined once.
    """
    while unread := _find_next(config, words, memo):
        config = reduce(merge_trees, (tree_at(key, value) for key, value in unread.items()), config)
    return config


def notes(pairs: Sequence[tuple[Tree, Tree]]) -> list[str]:
    """Return a sentence for each option of `OF_FILE` that has got another value.

    Args:
        pairs: A configuration of each run, before and after `without_unread`.
    """
    families: dict[tuple[str, str, str], dict[str, None]] = {}
    for before, after in pairs:
        was, now = (tree["model"].get("backbone") or {} for tree in (before, after))
        for name in OF_FILE:
            # pooling=cls is the default where every token has an answer: no number changes.
            if was.get(name) != now.get(name) and (name, now.get(name)) != ("pooling", "cls"):
                key = name, str(was.get(name)), str(now.get(name))
                families.setdefault(key, {})[str(after["model"]["name"])] = None
    return [
        f"{', '.join(models)} cannot use {name}={was}, which a file sets, so lra sets "
        f"{BACKBONE}.{name}={now} instead"
        for (name, was, now), models in families.items()
    ]


def _find_next(config: Tree, words: Sequence[str], memo: Memo) -> Tree:
    """Return the defaults, by key, of options without effect; {} if every option has an effect.

    There are three reasons why an option has no effect: another option, the task, or the family.
    Options with the first reason that applies are returned; the caller then asks again.
    """
    groups = config["model"], config["optim"]
    parts = tuple(config[key] for key in ("model", "task", "runner", "plugins"))
    of_model = tuple(word for word in words if "model" in word)
    try:
        for reason, objects, find in (
            ("with others", groups, partial(_find_by_options, config)),
            ("of task", parts, partial(_find_by_task, config, memo)),
            (("of family", of_model), parts, partial(_find_by_family, config, memo, of_model)),
        ):
            everything: Tree = memo.of(("gives way", reason), objects, find)
            if unread := {k: v for k, v in everything.items() if not by_hand(k, words)}:
                return unread
    except (
        ConfigError,
        NotPrepared,
    ):  # the code that reads the options or the data raises it again
        pass
    return {}


def _make_run(config: Tree, memo: Memo) -> Run:
    """Return the typed run of a configuration; runs of a sweep share their tasks."""
    return typed(config, memo.of("tasks", (), dict[str, Any]), memo)


def _find_by_options(config: Tree) -> Tree:
    """Return the defaults of options without effect because of another option of their group."""
    from lra.models.backbone.config import NEEDS, BackboneConfig

    unread: Tree = {}
    for group, node, kind, needs in (
        (BACKBONE, config["model"].get("backbone"), BackboneConfig, NEEDS),
        ("optim", config["optim"], optim.OptimConfig, optim.NEEDS),
    ):
        options = {k: v for k, v in (node or {}).items() if k not in ("name", "about")}
        names = idle.idle(needs, bind(kind, options, group), idle.defaults(kind))
        unread |= {f"{group}.{name}": defaults(kind)[name] for name in names}
    return unread


def _find_by_task(config: Tree, memo: Memo) -> Tree:
    """Return the defaults of backbone options that have no effect on this task."""
    from lra.models.backbone.assembly import OF_TASK
    from lra.models.backbone.config import BackboneConfig

    default, node = defaults(BackboneConfig), config["model"].get("backbone") or {}
    candidates = {name for need in OF_TASK for name in need.options}
    if all(node.get(name, default[name]) == default[name] for name in candidates):
        return {}
    run = _make_run(config, memo)
    if run.runner.facing is not Direction.task:
        return {}
    names = idle_options(run, facts(run))
    return {f"{BACKBONE}.{name}": default[name] for name in names}


def _find_by_family(config: Tree, memo: Memo, words: Sequence[str]) -> Tree:
    """Return the defaults of options that this family does not read.

    Collects options that differ from their defaults, then builds the model on the meta device: a
    family raises `Idle` for an option that it does not read.

    Args:
        config: The configuration of the run.
        memo: Objects that the runs of the sweep share.
        words: The arguments of the command about the model; their options are not returned.
    """
    import torch

    from lra.models.backbone.config import BackboneConfig
    from lra.models.mixer import INSIDE, Idle, Positions

    model = config["model"]
    backbone = model.get("backbone") or {}
    candidates: Tree = {
        f"{BACKBONE}.{name}": None for name in OF_FAMILY if backbone.get(name) is not None
    }
    model_name = model.get("name")  # None if a file of the user does not set it
    known = model_name in names("model")
    own = group_file("model", model_name).get("backbone", {}) if known else {}
    # A family that cannot have these positions gets learned ones, if its file names no others.
    if backbone.get("positions") in (*INSIDE, Positions.none):
        own = {"positions": Positions.learned.value, **own}
    candidates |= {
        f"{BACKBONE}.{name}": own[name]
        for name in OF_FILE
        if name in own and backbone.get(name, own[name]) != own[name]
    }
    core = "stack" if "stack" in model else "mixer"
    options = model.get(core) or {}
    if core == "stack":
        own = {**defaults(BackboneConfig), **own}
        candidates |= {f"{BACKBONE}.{k}": own[k] for k, v in backbone.items() if v != own.get(k, v)}
    if "class_path" in options:
        default = defaults(locate(options["class_path"], config["plugins"]))
        candidates |= {
            f"model.{core}.{name}": default[name]
            for name, value in options.items()
            if name in default and value != default[name]
        }
    candidates = {key: value for key, value in candidates.items() if not by_hand(key, words)}
    if not candidates or model.get("layers") or backbone.get("decoder_depth"):
        return {}  # a model of several families may read an option in one layer only
    run = _make_run(config, memo)
    if not are_bundled(
        run.mixers, run.stack
    ):  # for a module of the user, only positions may change
        positions = f"{BACKBONE}.positions"
        candidates = {key: value for key, value in candidates.items() if key == positions}
        if not candidates:
            return {}
    try:
        with torch.device("meta"):
            length = run.task.spec.max_length if run.runner.by_length else None
            build_model(run, max_length=length)
    except Idle as refused:
        keys = (f"model.{refused.option}", f"model.{core}.{refused.option}")
        return {key: candidates[key] for key in keys if key in candidates}
    except Exception as error:
        # A ValueError is another refusal, which is reported later. A module of the user may fail on
        # the meta device, because it needs values.
        if not isinstance(error, ValueError) and are_bundled(run.mixers, run.stack):
            raise
    return {}
