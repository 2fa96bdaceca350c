"""Make typed objects, such as models and tasks, from names and configurations.

lra never guesses a missing value. Every error names the key, its value, the allowed values and a
remedy. `lra.composition.binding` converts the options to their types.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lra.composition import layer_list
from lra.composition.binding import GIVEN, bind, make, parameters, plain
from lra.composition.catalogue import names, our_names, roots
from lra.composition.class_path import (
    ROOMS,
    locate as locate,  # noqa: PLC0414  # handed on
)
from lra.composition.configuration import check
from lra.composition.parallel_check import check_processes
from lra.composition.run import Control, Logger, Run
from lra.composition.runner_class import check_section, runner_class
from lra.composition.task_name import check_name
from lra.composition.yaml_text import load
from lra.conf.rooms import stored_name
from lra.errors import ConfigError, unknown
from lra.models.backbone.choices import CAUSAL_HEADS, TOKEN_HEADS, Head
from lra.models.backbone.layer_factory import PER_LAYER, layer_factory
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.records import Memo
from lra.runners.runner import Direction, Runner
from lra.runners.training.optim import OptimConfig

if TYPE_CHECKING:
    from lra.models.backbone.model import Backbone, BackboneConfig, StackFactory, TaskFacts
    from lra.models.mixer import MixerFactory
    from lra.tasks.task import Task

NO_OPTIONS = frozenset({"name", "about", "class_path", "section"})
"""Keys of a runner's configuration that are not options of its class."""
NO_MIXER = "models.backbone.layers.NoMixer"
"""Class of a layer without a mixer."""
TASK = ("spec", "prepare", "batches", "tally", "incidental")
"""Attributes that every task has: see `lra.tasks.task.Task`."""


def group_file(group: str, name: str, config_dirs: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the content of GROUP/NAME.yaml, from one of `config_dirs` or else from lra itself.

    Raises ConfigError for an unknown name, with similar names.
    """
    return copy.deepcopy(_group_file(group, name, tuple(config_dirs)))


@lru_cache(maxsize=256)
def _group_file(group: str, name: str, config_dirs: tuple[Path, ...]) -> dict[str, Any]:
    """Return what `group_file` returns, read once; nothing may change it."""
    existing = names(group, config_dirs)
    if name not in existing:
        raise ConfigError(unknown(group, name, existing))
    files = [root / group / f"{name}.yaml" for root in roots(config_dirs)]
    return load(next(file for file in files if file.exists()))


def _split_class_path(node: Mapping[str, Any], *drop: str) -> tuple[str, dict[str, Any]]:
    """Return the class path of a node, and its options without those that `drop` names."""
    options = {k: v for k, v in node.items() if k not in {"class_path", "name", "about", *drop}}
    if "class_path" not in node:
        raise ConfigError(
            f"the key class_path is missing; the configuration has only the keys "
            f"{', '.join(sorted(map(str, node)))}"
        )
    return stored_name(str(node["class_path"])), options


def mixer_factory(
    node: Mapping[str, Any], plugins: Sequence[str], where: str = "model.mixer"
) -> "tuple[MixerFactory, dict[str, Any]]":
    """Return a mixer's class with its options bound, and its class path and options as plain JSON.

    Args:
        node: The `mixer` or `stack` of a model's configuration.
        plugins: Packages of the user that may hold the class.
        where: The key of the node, for messages.
    """
    class_path, options = _split_class_path(node)
    family = locate(class_path, plugins)
    factory, bound = bound_mixer(family, options, where, f"{where}.class_path: {class_path}")
    return factory, {"class_path": class_path, **bound}


def bound_mixer(
    family: Callable[..., Any], options: Mapping[str, Any], where: str, name: str
) -> "tuple[MixerFactory, dict[str, Any]]":
    """Return a mixer's class with its options bound, and these options in plain JSON.

    Args:
        family: The class, or a function that returns a mixer.
        options: By name.
        where: The key of the options, for messages.
        name: Of the class, for messages.
    """
    if not GIVEN & parameters(family):
        raise ConfigError(
            f"{name} has no parameter `site`; wanted a class or a function with the parameters "
            "(site, *, option: type = default). For any other nn.Module, use `lra verify --wrap`, "
            "or lra.wrap in Python"
        )
    bound = bind(family, options, where)
    return partial(family, **bound), plain(bound)


def core_of(
    model: Mapping[str, Any], plugins: Sequence[str], where: str = "model"
) -> "tuple[list[MixerFactory], StackFactory | None, dict[str, Any]]":
    """Return what makes the layers of a model: (mixers, stack, options as plain JSON).

    One mixer serves all layers, or there is one for each layer; a model with a `stack` has no
    mixers. The key `layers` names a family for each layer: the model itself or another family.
    Another family has its default options, except for those that `layer_options` gives it.
    """
    if "stack" in model:
        if model.get("layers"):
            raise ConfigError(
                f"{where}.layers: {model.get('name')} is a whole stack of layers, so it cannot "
                "have layers of other models; remove this option"
            )
        stack, options = mixer_factory(model["stack"], plugins, f"{where}.stack")
        return [], cast("StackFactory", stack), options
    if "mixer" not in model:
        raise ConfigError(
            f"{where}: a model needs the key `mixer` or `stack`, but has only the keys "
            f"{', '.join(sorted(map(str, model)))}"
        )
    mixer, options = mixer_factory(model["mixer"], plugins, f"{where}.mixer")
    own, table = str(model.get("name")), model.get("layer_options") or {}
    depth = (model.get("backbone") or {}).get("depth")
    names = layer_list.expand(model.get("layers"), depth, [own, *table], f"{where}.layers")
    inside = [part for name in names for part in layer_list.parts_of(table.get(name))]
    foreign = sorted({*names, *inside} - ({own} if own not in table else set()))
    known = {*foreign, *({own} if own in names else ())}
    for name in sorted({*table} - known):
        raise ConfigError(
            f"{where}.layer_options: {unknown('layer', name, foreign)} This mapping sets options "
            f"of the other families in {where}.layers; set options of the model itself in "
            f"{where}.mixer"
        )
    if not foreign:
        return [mixer], None, options
    layers: dict[str, tuple[MixerFactory, dict[str, Any]]] = {own: (mixer, {})}
    for name in sorted(foreign, key=lambda name: bool(layer_list.parts_of(table.get(name)))):
        made = layer_of(name, where, table.get(name) or {}, layers)
        layers[name] = made if name != own else (made[0], {})
    mixers = [layers[name][0] for name in names]
    used = {name: layers[name] for name in foreign}
    frames = {name: dict(frame) for name, (made, _) in used.items()
              if (frame := getattr(made, "backbone", {}))}  # fmt: skip
    described = {**options, "layers": names, "others": {
        name: bound for name, (_, bound) in used.items() if name != own}}  # fmt: skip
    return mixers, None, described | ({"layer_backbone": frames} if frames else {})


def bundled_family(name: str, where: str) -> dict[str, Any]:
    """Return the content of the file of one of lra's own families. Raises ConfigError for others.

    The key of a cell holds only the name of a reference. A file of the user can change while its
    name stays the same, so that the key would then stand for two different models.
    """
    if name not in (existing := our_names("model")):
        way_out = (
            "Only families that come with lra can be layers of another model, or references. To "
            "run your model alone, use model=NAME"
        )
        raise ConfigError(f"{where}: {unknown('model', name, existing, way_out=way_out)}")
    return group_file("model", name)


def layer_of(
    name: str,
    where: str,
    entry: Mapping[str, Any],
    made: "Mapping[str, tuple[MixerFactory, dict[str, Any]]]",
) -> "tuple[MixerFactory, dict[str, Any]]":
    """Return the mixer of a layer: of another family, of an alias, of `none`, or of several.

    Args:
        name: The name in `layers`.
        where: The key of the model, for messages.
        entry: The layer's entry in `layer_options`.
        made: The layers made before, with which several mixers side by side are built; the first
            is the model's own.
    """
    key = f"{where}.layer_options"
    options, frame = layer_list.split_entry(name, entry, key, PER_LAYER)
    own = next(iter(made))
    if parts := layer_list.parts_of(options):
        joint = "parallel" if "parallel" in options else "shared"
        if missing := sorted({*parts} - {*made}):
            raise ConfigError(f"{key}.{name}.{joint}: " + unknown("layer", missing[0], made))
        if joint == "shared" and len(parts) != 2:
            raise ConfigError(
                f"{key}.{name}.shared: got {parts}; wanted two layers, first the attention that "
                "layers share, then a separate mixer, as in [sdpa, mamba2]"
            )
        path = layer_list.JOINTS[joint]
        kind, named = locate(path, ()), {} if joint == "parallel" else {"name": name}
        rest = {k: v for k, v in options.items() if k != joint}
        bound = bind(kind, {**rest, **named, "parts": {}}, f"{key}.{name}")
        mixer: Any = partial(kind, **{**bound, "parts": {part: made[part][0] for part in parts}})
        described = plain(bound) | {"parts": parts, "class_path": path}
    elif name == own:
        if options:
            raise ConfigError(
                f"{key}.{name}: got options of the model itself ({', '.join(sorted(options))}); "
                f"set these in {where}.mixer, and only `backbone` here"
            )
        mixer, described = made[own]
    elif (family := str(options.pop("family", name))) == layer_list.NONE:
        empty = locate(NO_MIXER, ())
        bind(empty, options, f"{key}.{name}")
        mixer, described = partial(empty), {"class_path": NO_MIXER}
    else:
        if family != name and name in our_names("model"):
            raise ConfigError(
                f"{key}.{name}: got family={family}, but {name} is itself a family; choose a name "
                "that no family has"
            )
        mixer, described = other_family(family, where, options, name)
    return layer_factory(mixer, frame), described


def other_family(
    name: str, where: str, options: Mapping[str, Any], alias: str = ""
) -> "tuple[MixerFactory, dict[str, Any]]":
    """Return the mixer of another family with its defaults and `options`, for layers of a model."""
    node = bundled_family(name, f"{where}.layers")
    if "mixer" not in node:
        raise ConfigError(
            f"{where}.layers: {name} is a whole stack of layers, so it cannot be a layer of "
            "another model"
        )
    key = f"{where}.layer_options.{alias or name}"
    return mixer_factory({**node["mixer"], **options}, (), key)


def build_task(node: Mapping[str, Any], plugins: Sequence[str] = ()) -> "Task":
    """Build the task that a resolved `task` node describes."""
    class_path, options = _split_class_path(node)
    kind = locate(class_path, plugins)
    # A stored run may name any class of lra, so the class is checked before it is called.
    if class_path.partition(".")[0] in ROOMS:
        _check_task(kind, class_path)
    task: Task = make(kind, options, "task")
    _check_task(type(task), class_path)
    return task


def _check_task(kind: Any, class_path: str) -> None:
    """Raise ConfigError if a class lacks an attribute that every task has."""
    if missing := [name for name in TASK if not hasattr(kind, name)]:
        raise ConfigError(
            f"task.class_path: got {class_path}, which lacks {', '.join(missing)}; wanted a class "
            "with the attributes of lra.tasks.task.Task"
        )


def _make_control_and_runner(
    node: Mapping[str, Any], model: Mapping[str, Any], plugins: Sequence[str]
) -> tuple[Control, Runner]:
    """Return the two parts of a `runner` node: what steers the sweep, and the runner itself.

    The runner may change its options for a model, by what the model's file says under `about`.
    """
    options = runner_class(node, plugins)
    steering = {f.name for f in fields(Control)}
    if node.get("section"):
        check_section(node["section"], plugins)
    control = make(Control, {k: v for k, v in node.items() if k in steering}, "runner")
    rest = {k: v for k, v in node.items() if k not in steering | NO_OPTIONS}
    runner: Runner = make(options, rest, "runner")
    about = model.get("about")
    try:
        changed = runner.of_model(str(model["name"]), about if isinstance(about, Mapping) else {})
    except ValueError as error:
        raise ConfigError(f"model.about.{error}") from error
    return control, make(options, {**rest, **changed}, "runner") if changed else runner


def typed(
    config: Mapping[str, Any],
    tasks: "dict[str, Task] | None" = None,
    memo: Memo | None = None,
) -> Run:
    """Turn a resolved configuration tree into typed objects. Raises ConfigError.

    Args:
        config: The tree; nothing may change it where there is a memo.
        tasks: Tasks that were built before, by their configuration; a new one is added.
        memo: Objects that the runs of the sweep share, each of which is made once.
    """
    from lra.models.backbone.model import BackboneConfig, layer_config

    tasks, memo = {} if tasks is None else tasks, memo or Memo()
    check(config, memo)
    # `memo` recognises an object by its identity, so it gets `named` instead of the copy.
    plugins, named = list(config["plugins"]), config["plugins"]
    model, task_node, runner_node = config["model"], config["task"], config["runner"]

    def from_node(kind: Callable[..., Any], node: Any, where: str, *drop: str) -> Any:
        """Return an object with the options of a node except `drop`, made once for equal nodes."""
        return memo.of(where, (node,), lambda: make(kind, _drop_keys(node, *drop), where))

    mixers, stack, mixer_options = memo.of("core", (model, named), partial(core_of, model, plugins))
    backbone = from_node(BackboneConfig, model.get("backbone"), "model.backbone")
    for made in dict.fromkeys(mixers):
        try:
            layer_config(backbone, made)
        except ValueError as error:
            raise ConfigError(f"model.layer_options: {error}") from error
    task, task_options = memo.of(
        "task", (task_node, named), partial(_make_task_and_options, task_node, plugins, tasks)
    )
    check_name(config, task)
    control, runner = memo.of(
        "runner",
        (runner_node, model, named),
        partial(_make_control_and_runner, runner_node, model, plugins),
    )
    optim = from_node(OptimConfig, config["optim"], "optim", "name", "about")
    hardware = from_node(HardwareProfile, config["hardware"], "hardware", "about")
    parts = (hardware, runner, optim, backbone)
    # Both calls only check options that must go together, once for equal parts.
    memo.of("processes", parts[:3], partial(check_processes, *parts[:3], runner_node["name"]))
    memo.of("training", (*parts, task), partial(_check_training, *parts[1:], task))
    return Run(
        config=config,
        model=model["name"],
        mixer_options=mixer_options,
        mixers=mixers,
        stack=stack,
        backbone=backbone,
        task_name=task_node["name"],
        task=task,
        task_options=task_options,
        hardware=hardware,
        optim=optim,
        runner=runner,
        control=control,
        logger=from_node(Logger, config["logger"], "logger", "name", "about"),
        seed=config["seed"],
        sweep=config["sweep"],
    )


def _make_task_and_options(
    node: Mapping[str, Any], plugins: Sequence[str], tasks: "dict[str, Task]"
) -> "tuple[Task, dict[str, Any]]":
    """Return a task, and those of its options that can change a result, as plain JSON."""
    class_path, options = _split_class_path(node)
    remaining = plain(bind(locate(class_path, plugins), options, "task"))
    if (task_key := repr((node, plugins))) not in tasks:
        tasks[task_key] = build_task(node, plugins)
    for key in tasks[task_key].incidental:
        remaining.pop(key, None)
    return tasks[task_key], {"class_path": class_path, **remaining}


def _check_training(
    runner: Runner, optim: OptimConfig, backbone: "BackboneConfig", task: "Task"
) -> None:
    """Raise ConfigError for options of a training that do not go together."""
    from lra.runners.training.config import TrainConfig, check_together
    from lra.runners.training.stages import TrainingStages

    if isinstance(runner, TrainConfig):
        try:
            TrainingStages(runner.stages, optim).check_windows(task)
            runner.check_scores(task, prepared=False)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        try:
            check_together(optim, runner, backbone)
        except ValueError as error:
            raise ConfigError(f"optim: {error}") from error


def _drop_keys(node: Mapping[str, Any] | None, *drop: str) -> Mapping[str, Any] | None:
    """Return a node without some keys; an empty one, or None, as it is."""
    return node and {key: value for key, value in node.items() if key not in drop}


def are_bundled(mixers: "Sequence[MixerFactory]", stack: "StackFactory | None") -> bool:
    """Return whether every class of a model comes with lra, and none from the user."""
    parts: list[Any] = [*mixers, *([stack] if stack else [])]
    return all(part.func.__module__.startswith("lra.models.") for part in parts)


def idle_options(run: Run, task_facts: "TaskFacts") -> dict[str, str]:
    """Return options of the backbone that have no effect in this run: a sentence for each name.

    The run may start from a training with another objective. An option that this training reads
    has an effect, so it is not among them.
    """
    from lra.models.backbone.assembly import idle_for_task

    sentences = idle_for_task(run.backbone, task_facts)
    if sentences and (changed := run.runner.training_changes().get("task")):
        source = typed({**run.config, "task": {**run.config["task"], **changed}})
        idle_in_source = idle_for_task(source.backbone, facts(source))
        sentences = {name: text for name, text in sentences.items() if name in idle_in_source}
    return sentences


def build_model(
    run: Run,
    *,
    max_length: int | None = None,
    name: str = "model",
    given_facts: "TaskFacts | None" = None,
) -> "Backbone":
    """Build the run's model, or the reference family `name` in the same backbone.

    Args:
        run: The run.
        max_length: Longest input of a cost measurement; None: the longest of the task.
        name: "model" for the run's model, or the name of a reference. A reference reads the input
            at its full length, without the backbone's shortening of it.
        given_facts: Used in place of what `facts` returns.

    Raises:
        Unsupported: An option of the model has a value that it refuses, the model cannot serve the
            task, or the task never reads one of its options.
    """
    from lra.models.backbone.model import Backbone
    from lra.models.backbone.requirements import check_order
    from lra.models.mixer import Idle, Unsupported
    from lra.runners.training.stages import TrainingStages, check_batch_parts

    mixers, stack, backbone = run.mixers, run.stack, run.backbone
    if name != "model":
        mixers, stack, _ = core_of(
            bundled_family(name, "runner.references"), (), f"reference {name}"
        )
        backbone = backbone.at_full_length()
    task_facts = given_facts or facts(run, max_length)
    if backbone.decoder_depth and name == "model":
        exact, _ = other_family("sdpa", "model", {})
        stack, mixers = decoder_stack(mixers, task_facts, exact), []
    try:
        model = Backbone(backbone, task_facts, mixers, stack=stack, seed=run.seed)
    except ValueError as error:
        if isinstance(error, Unsupported) or not are_bundled(mixers, stack):
            raise  # also a fault of somebody else's code, which its traceback shows
        raise Unsupported(str(error)) from error
    if run.runner.trains:
        check_batch_parts(
            model.by_batch,
            TrainingStages(getattr(run.runner, "stages", ()), run.optim),
            run.hardware.processes,
        )
    # A measurement that chooses its direction itself reads no option that depends on the task.
    if run.runner.facing is Direction.task:
        for option, sentence in idle_options(run, task_facts).items():
            raise Idle(f"model.backbone.{sentence}", f"backbone.{option}")
        if name == "model" and max_length is None:  # costs are the same without an order
            check_order(model.stack, run.backbone, task_facts)
    return model


PIXEL_VALUES = 256
"""Size of the vocabulary of a language model that is measured on a task of real numbers."""
MEASURED = {
    "sequence_to_sequence": "language_modelling",
    "permutation_modelling": "masked_modelling",
    "replaced_detection": "masked_modelling",
}
"""The head that a measurement of cost uses in place of another: its inputs have no source sequence,
no ranks and no samples."""


def facts(run: Run, max_length: int | None = None) -> "TaskFacts":
    """Return what a model has to know of its task: head, vocabulary, lengths and masks.

    Args:
        run: The run.
        max_length: None for the task itself. A number for a measurement of cost, whose rows all
            have one length (so there is no padding), and which may choose causal or bidirectional.
    """
    from lra.models.backbone.config import TaskFacts

    spec = run.task.spec
    direction = run.runner.facing
    head = Head[spec.kind.name]
    if max_length is not None:
        head = Head[MEASURED.get(head.name, head.name)]
    if direction is Direction.causal:
        head = Head.language_modelling
    elif direction is Direction.bidirectional and head in CAUSAL_HEADS:
        head = Head.classification
    answers_tokens = head in TOKEN_HEADS
    return TaskFacts(
        head=head,
        vocabulary=spec.vocabulary or PIXEL_VALUES,
        # A language-modelling task has no classes, but may be measured with a classifier.
        classes=spec.classes if answers_tokens else max(spec.classes, 2),
        max_length=max_length or spec.max_length,
        padded=spec.padded and max_length is None,
        scalars=spec.scalars and not answers_tokens,
        channels=1 if answers_tokens else spec.channels,
        memory=0 if max_length else spec.memory,
        added_ids=spec.added_ids,
        source_length=spec.source_length,
        target_length=spec.target_length,
        sources_vary=spec.sources_vary,
        masks=spec.masks if answers_tokens and max_length is None else frozenset(),
        conditions=spec.conditions if answers_tokens and max_length is None else 0,
    )


def decoder_stack(
    mixers: "Sequence[MixerFactory]", task_facts: "TaskFacts", exact: "MixerFactory"
) -> "StackFactory":
    """Return a function that builds an encoder-decoder model.

    Args:
        mixers: Those of the encoder's layers.
        task_facts: What the model has to know of its task.
        exact: Exact attention, with which the decoder attends to the encoder's output.

    Raises:
        Unsupported: The task is not one of sequence to sequence.
    """
    from lra.models.backbone.encoder_decoder import encoder_decoder
    from lra.models.mixer import Unsupported

    if task_facts.head is not Head.sequence_to_sequence:
        raise Unsupported(
            "model.backbone.decoder_depth: got a number above 0, but only a sequence-to-sequence "
            "task needs a decoder. Choose such a task (reversal, sorting, text_pairs, or "
            "task.objective=prefix) and a runner that trains a model, or set "
            "model.backbone.decoder_depth=0"
        )
    return partial(encoder_decoder, mixers=mixers, exact=exact, facts=task_facts)
