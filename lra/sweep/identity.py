"""Everything that decides a cell's numbers, as plain JSON: its hash is the cell's key.

The identity lists an option only where it differs from its default in the code, so that a new
option changes no key. Whoever changes a default has to raise the version of the class. The identity
has no Python path of a class that has a configuration file, no interval of logs or checkpoints, and
no place of a file.

`described` is the same with every option spelled out as it really runs: what reports compare.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from lra.composition.binding import bind, defaults, plain, schema
from lra.composition.class_path import locate
from lra.composition.compose import build_model, bundled_family, core_of, facts, group_file
from lra.composition.run import Run
from lra.errors import ConfigError
from lra.models.idle import fixed_in
from lra.models.transfer.files import files_of
from lra.runners.measurement.hardware import Device, HardwareProfile, KernelChoice
from lra.runners.records import SCHEMA, Memo
from lra.tasks.data.sources import remembered_sha256

Rate = float | list[float]
"""Rate of dropout: one for all layers, or one for each."""


class CellIdentity(NamedTuple):
    """Everything that decides a cell's numbers, in two forms."""

    decisive: dict[str, Any]
    """With only the options that differ from their defaults: the key is made of it."""
    described: dict[str, Any]
    """With every option."""


@lru_cache
def version(package: str) -> str:
    """Return the version of an installed package, as it was when first asked for."""
    return metadata.version(package)


def identity(
    run: Run,
    mode: str,
    length: int,
    started: Mapping[str, str],
    place: Mapping[str, str],
    *,
    device: str,
    rates: dict[str, Rate],
    memo: Memo | None = None,
) -> CellIdentity:
    """Return what decides the numbers of one cell of a run, in two forms.

    Cells share equal parts through `memo`, so that the returned mappings must not be changed.

    Args:
        run: the run.
        mode: the mode of the cell.
        length: the length of the cell, in tokens.
        started: keys of the trainings that the cell starts from, by their names.
        place: the folder of the user's files: see `lra.runners.records.Cell`.
        device: name of the CPU or GPU.
        rates: dropout rates found so far: see `attention_dropout`.
        memo: objects that the cells of the sweep share; None: shared with no other cell.
    """
    memo = memo or Memo()
    name, plugins = str(run.config["runner"]["name"]), list(run.config["plugins"])
    hardware, kind = run.hardware, run.runner
    options, options_changed = memo.of(name, (kind,), partial(_runner_parts, name, kind))
    task, task_changed = memo.of(
        ("task", run.task_name, kind.data),
        (run.task, run.task_options, place),
        partial(_task_parts, run, plugins, place),
    )
    axes = {"mode": mode, "length": length}
    described: dict[str, Any] = {"schema": SCHEMA, "runner": options, **axes, "task": task}
    changed: dict[str, Any] = {
        "schema": SCHEMA,
        "runner": options_changed,
        **axes,
        "task": task_changed,
    }
    if kind.models:
        shared = {
            "model": run.model,
            "seed": run.seed,
            "device": str(hardware.device),
            "precision": str(hardware.precision),
            "matmul_precision": str(hardware.matmul_precision),
            "compile": hardware.compile,
        }
        # Two patterns may be one model at some depth: each has its runs, under its name.
        if run.model_name != run.model:
            shared["pattern"] = run.model_name
        kernels = memo.of("kernels", (hardware,), partial(_describe_kernels, hardware))
        described["kernels"] = str(KernelChoice.own)
        described |= kernels
        changed |= kernels
        mixer, mixer_changed = memo.of(
            ("mixer", run.model),
            (run.mixer_options, place),
            partial(_mixer_parts, run, plugins, place),
        )
        rate = memo.of(
            ("rate", run.model, length),
            (run.mixer_options, run.backbone, run.task, kind),
            partial(attention_dropout, run, length, rates),
        )
        backbone, backbone_changed = memo.of(
            ("backbone", repr(rate)), (run.backbone,), partial(_backbone_parts, run.backbone, rate)
        )
        described |= {**shared, "mixer": mixer, "backbone": backbone}
        changed |= {**shared, "mixer": mixer_changed, "backbone": backbone_changed}
        if references := memo.of("references", (kind,), partial(_list_references, kind.beside)):
            described["references"] = changed["references"] = references
    if kind.timed:
        described["machine"] = changed["machine"] = memo.of(
            ("machine", device), (hardware,), partial(_describe_machine, hardware, device)
        )
        if kind.parallel:  # this runner measures how threads and processes speed up a training
            described["threads"] = changed["threads"] = hardware.training_threads
            if hardware.processes > 1:
                described["processes"] = changed["processes"] = hardware.labels()
    elif hardware.device is Device.cpu and kind.models:
        # Numbers are added in another order with more threads, so that sums differ by rounding.
        # The key has the count only where it is not 1, the default.
        described["threads"] = hardware.training_threads
        if hardware.training_threads != 1:
            changed["threads"] = hardware.training_threads
    if kind.trains:
        if hardware.processes > 1:  # several processes give the numbers of one, except rounding
            described["processes"] = hardware.labels()
        described["optim"], changed["optim"] = memo.of(
            "optim", (run.optim,), partial(_optim_parts, run.optim)
        )
    if started:
        described["trainings"] = changed["trainings"] = dict(started)
    return CellIdentity(changed, described)


Parts = tuple[dict[str, Any], dict[str, Any]]
"""The same part of an identity twice: with every option, and with only the changed ones."""


def _runner_parts(name: str, options: Any) -> Parts:
    """Return the runner's name and its options that may change a number."""
    described = _runner_options(options)
    return {"name": name, **described}, {"name": name, **_changed_options(type(options), described)}


def _backbone_parts(backbone: Any, rate: Rate) -> Parts:
    """Return the backbone; described with the dropout `rate` of attention that really applies."""
    described = plain(backbone)
    return {**described, "attention_dropout": rate}, _changed_options(type(backbone), described)


def _optim_parts(optim: Any) -> Parts:
    """Return the options of the optimiser."""
    described = plain(optim)
    return described, _changed_options(type(optim), described)


def _task_parts(run: Run, plugins: list[str], place: Mapping[str, str]) -> Parts:
    """Return the task; for a runner that reads no data, only the sizes that shape the model."""
    spec = run.task.spec
    task = {"name": run.task_name, "version": spec.version, "source": spec.source}
    if not run.runner.data:
        task |= {"vocabulary": spec.vocabulary, "classes": spec.classes}
        return task, task
    options = dict(run.task_options)
    registered = _unregistered_class("task", run.task_name, options.pop("class_path"), place)
    target = locate(str(run.task_options["class_path"]), plugins)
    task |= {"data": spec.data_hash, **registered}
    return {**task, "options": options}, {**task, "options": decisive(target, options)}


def _mixer_parts(run: Run, plugins: list[str], place: Mapping[str, str]) -> Parts:
    """Return the options of the mixers as they run, and those that differ from their defaults."""
    return _mixer(run, plugins, place, as_run), _mixer(run, plugins, place, decisive)


def _describe_machine(hardware: HardwareProfile, device: str) -> dict[str, Any]:
    """Return what decides a timing, apart from model and data: machine, threads and PyTorch."""
    return {
        "name": device,
        "threads": hardware.timing_threads(),
        "torch": version("torch"),
        "token_budget": hardware.token_budget,
    }


def _describe_kernels(hardware: HardwareProfile) -> dict[str, Any]:
    """Return the choice of kernels and the versions of their packages; {} for our own forms."""
    if hardware.kernels is KernelChoice.own:
        return {}
    # Adapters of kernels are imported only where they are wanted.
    from lra.models.kernels.providers import installed_versions

    versions = installed_versions()
    named = {"kernel_versions": versions} if versions else {}
    return {"kernels": str(hardware.kernels), **named}


def _runner_options(options: Any) -> dict[str, Any]:
    """Return the options of a runner that may change a number; files as hashes of their content."""
    described = plain(options)
    # Weights of a stored training are no file here: the key of this training stands for them.
    file_options = {
        name for name in options.files if described[name] not in (None, options.stored_weights)
    }
    for name in file_options:  # the content of a file changes numbers, its path does not
        try:
            files = files_of(Path(described[name]))
        except ValueError as error:
            raise ConfigError(f"runner.{error}") from error
        described[name] = " ".join(map(remembered_sha256, files))
    # Each cell has one length and one mode, and `axes` in `identity` holds them.
    excluded = {"lengths", "modes", *options.incidental} - file_options
    return {name: value for name, value in described.items() if name not in excluded}


Choice = Callable[[Callable[..., Any], Mapping[str, Any]], dict[str, Any]]
"""Picks options of a class: `as_run` returns all of them, `decisive` the changed ones."""


def _mixer(
    run: Run, plugins: list[str], place: Mapping[str, str], choice: Choice
) -> dict[str, Any]:
    """Return the options of a model's mixers, each family with its version."""
    main_options = dict(run.mixer_options)
    others, layers = main_options.pop("others", {}), main_options.pop("layers", None)
    frames = main_options.pop("layer_backbone", {})
    described = _family(run.model, main_options, plugins, place, choice)
    if layers is not None:
        described["layers"] = layers
        described["others"] = {
            name: _family(name, options, [], {}, choice) for name, options in others.items()
        }
        if frames:
            described["layer_backbone"] = frames
    return described


def _family(
    name: str,
    options: Mapping[str, Any],
    plugins: list[str],
    place: Mapping[str, str],
    choice: Choice,
) -> dict[str, Any]:
    """Return the version of a family, and the options of it that `choice` picks."""
    class_path = str(options["class_path"])
    family = locate(class_path, plugins)
    # A class has a second version number for its variant `lra`: other variants keep their keys.
    variant_version = getattr(family, "lra_version", 0) if options.get("variant") == "lra" else 0
    return {
        "version": getattr(family, "version", 1) + variant_version,
        **_unregistered_class("model", name, class_path, place),
        **choice(family, {k: v for k, v in options.items() if k != "class_path"}),
    }


def _list_references(names: Iterable[str]) -> dict[str, int]:
    """Return the versions above 1 of the families that a runner measures with the model."""
    versions = {}
    for name in names:
        _, _, options = core_of(bundled_family(name, "runner.references"), ())
        versions[name] = int(getattr(locate(str(options["class_path"])), "version", 1))
    return {name: version for name, version in versions.items() if version != 1}


def _unregistered_class(
    group: str, name: str, class_path: str, place: Mapping[str, str]
) -> dict[str, str]:
    """Return {"class": class_path}, or {} if a configuration file has this class under `name`.

    With such a file, the name is enough for the identity, and the class may move.
    """
    folders = [Path(place["folder"], place["config_dir"])] if "config_dir" in place else []
    try:
        node = group_file(group, name, folders)
    except ConfigError:
        node = {}
    if group == "model":
        node = node.get("mixer") or node.get("stack") or {}
    return {} if node.get("class_path") == class_path else {"class": class_path}


def _changed_options(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `decisive` options of a class; also its version where that is above 1."""
    version = getattr(kind, "version", 1)
    return {**({} if version == 1 else {"version": version}), **decisive(kind, options)}


def as_run(family: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return every option of a family; those that its variant fixes have the fixed value."""
    typed = bind(family, options, "model.mixer")
    return {**options, **plain(fixed_in(family, typed))}


def is_reference(run: Run, name: str) -> bool:
    """Tell whether a run's model is the reference `name`."""
    if run.model != name or run.backbone != run.backbone.at_full_length():
        return False
    _, _, options = core_of(bundled_family(name, "runner.references"), ())
    return bool(run.mixer_options == options)


def attention_dropout(run: Run, length: int, rates: dict[str, Rate]) -> Rate:
    """Return the dropout rate of attention weights: 0 for a mixer that has no such weights.

    For a model that cannot be built, returns the rate of the configuration: the cell's rows will
    give the reason.

    Args:
        run: the run.
        length: of the cell, in tokens.
        rates: the rates found so far, by model; the new one is added. Seeds share an entry.
    """
    if not run.backbone.attention_dropout:
        return 0.0
    longest = length if run.runner.by_length else None
    model = (run.model, run.mixer_options, run.backbone, facts(run, longest), run.runner.facing)
    if (key := repr(model)) not in rates:
        rates[key] = _built_rate(run, longest)
    return rates[key]


def _built_rate(run: Run, max_length: int | None) -> Rate:
    """Build the model without contents, and ask it for the rate of each layer."""
    import torch

    try:
        with torch.device("meta"):
            model = build_model(run, max_length=max_length)
    except Exception:  # noqa: BLE001 - refused, or needs contents: the cell itself reports it
        return run.backbone.attention_dropout
    layer_rates = model.effective_attention_dropout
    return layer_rates[0] if len({*layer_rates}) == 1 else [*layer_rates]


def decisive(target: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that differ from their defaults in the code.

    Args:
        target: the class or function whose options they are.
        options: as plain JSON, by name; names that `target` does not have are ignored.
    """
    usual = defaults(target)
    changed = {}
    for name in schema(target):
        if name not in options:
            continue
        value = options[name]
        # 1 == 1.0 == True in Python, and the three are different options: types count, too.
        if name not in usual or value != usual[name] or type(value) is not type(usual[name]):
            changed[name] = value
    return changed
