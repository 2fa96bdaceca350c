"""The one place where names and YAML become typed objects.

A constructor is the schema of its YAML node: its keyword-only parameters fix the keys and the
types. Nothing is read with a fallback, and every error names the key, the value seen, what was
wanted and the way out.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, cast, get_args, get_type_hints

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lra.kinds import kind_of
from lra.suggest import unknown

if TYPE_CHECKING:
    from models.backbone import Backbone, BackboneConfig, Facts, StackFactory
    from models.mixer import MixerFactory
    from runners.hardware import HardwareProfile
    from runners.optim import OptimConfig
    from tasks.task import Task

ROOMS = ("models", "tasks")
GIVEN = frozenset({"self", "site", "frame"})
PIXEL_VALUES = 256
"""Vocabulary of a language model that is measured on a task of real numbers."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Options of every runner that steer a sweep and never change a result."""

    dry_run: bool = False
    """List the cells, done and to do, and stop."""
    shard: str | None = None
    """`i/n`: run every n-th cell, starting with the i-th."""
    retry: list[str] = field(default_factory=list)
    """Statuses of complete cells that are to be repeated, e.g. [timeout]."""
    timeout_s: float | None = None
    """A cell that takes longer ends as a `timeout` row."""

    def part(self) -> tuple[int, int]:
        """Return shard as (i, n), 1 <= i <= n."""
        if self.shard is None:
            return 1, 1
        try:
            i, n = (int(word) for word in str(self.shard).split("/"))
        except ValueError:
            i, n = 0, 0
        if not 1 <= i <= n:
            raise ConfigError(
                f"runner.shard: got {self.shard!r}; wanted i/n with 1 <= i <= n, as in 2/8"
            )
        return i, n


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything one composed configuration says, typed."""

    config: Mapping[str, Any]
    """The resolved tree, plain JSON: a child process rebuilds this object from it."""
    model: str
    mixer_options: Mapping[str, Any]
    """Every option of the mixer (or of the stack), defaults included, plain JSON."""
    mixers: "Sequence[MixerFactory]"
    stack: "StackFactory | None"
    """For a model whose YAML has `stack` in place of `mixer`."""
    backbone: "BackboneConfig"
    task_name: str
    task: "Task"
    task_options: Mapping[str, Any]
    hardware: "HardwareProfile"
    optim: "OptimConfig"
    runner: Any
    """The dataclass of options that `lra.kinds` names for the runner."""
    control: Control
    seed: int
    sweep: str


def locate(class_path: str, plugins: Sequence[str] = ()) -> Any:
    """Import what `class_path` names; only from `models`, `tasks` and the listed plug-ins."""
    module_name, _, name = class_path.rpartition(".")
    allowed = (*ROOMS, *plugins)
    if module_name.split(".")[0] not in allowed:
        raise ConfigError(
            f"class_path {class_path!r} lies outside {', '.join(allowed)}; name your package in "
            "the configuration, as in plugins=[my_package]"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"class_path {class_path!r}: {error}") from error
    found = getattr(module, name, None)
    if found is None:
        raise ConfigError(unknown("class", name, [n for n in vars(module) if n[0].isupper()]))
    return found


def schema(target: Callable[..., Any]) -> type:
    """Return a dataclass with the keyword parameters of `target` as its fields."""
    if is_dataclass(target):
        hints = get_type_hints(target)
        return make_dataclass(
            "Options",
            [
                (f.name, hints[f.name], field(default=f.default, default_factory=f.default_factory))
                if f.default is not MISSING or f.default_factory is not MISSING
                else (f.name, hints[f.name])
                for f in fields(target)
            ],
            kw_only=True,
        )
    call = target.__init__ if inspect.isclass(target) else target
    hints = get_type_hints(call)
    specification: list[Any] = []
    for name, parameter in inspect.signature(call).parameters.items():
        if name in GIVEN:
            continue
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or name not in hints:
            raise ConfigError(
                f"{getattr(target, '__qualname__', target)}: parameter {name!r} must be "
                "keyword-only and annotated: the constructor is the schema of its YAML"
            )
        if parameter.default is inspect.Parameter.empty:
            specification.append((name, hints[name]))
        elif isinstance(parameter.default, list | dict):
            default = parameter.default
            specification.append(
                (name, hints[name], field(default_factory=partial(_copy, default)))
            )
        else:
            specification.append((name, hints[name], field(default=parameter.default)))
    return make_dataclass("Options", specification, kw_only=True)


def _copy(value: Any) -> Any:
    return value.copy()


def bind(target: Callable[..., Any], node: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    """Return the keyword arguments for `target` that `node` gives, typed and complete.

    Raises ConfigError for an unknown key (with near matches), a wrong type or a missing value.
    """
    wanted = schema(target)
    given = dict(node or {})
    names = [f.name for f in fields(wanted)]
    for key in given:
        if key not in names:
            raise ConfigError(f"{where}: " + unknown("option", str(key), names))
    try:
        merged = OmegaConf.merge(OmegaConf.structured(wanted), given)
        bound = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        key, reason = error.full_key or "?", _first_line(error)
        if "expected one of" not in reason:
            reason += f"; wanted {_type_of(wanted, key)}"
        raise ConfigError(f"{where}.{key}: {reason}") from error
    return {name: getattr(bound, name) for name in names}


def _first_line(error: OmegaConfBaseException) -> str:
    return str(error.msg or error).splitlines()[0]


def _type_of(wanted: type, key: str) -> str:
    for entry in fields(wanted):
        if entry.name == key.split("[", maxsplit=1)[0].split(".", maxsplit=1)[0]:
            kind = entry.type
            return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return "another value"


def make(target: Callable[..., Any], node: Mapping[str, Any] | None, where: str) -> Any:
    """Call `target` with what `node` gives; a refused value becomes a ConfigError."""
    arguments = bind(target, node, where)
    try:
        return target(**arguments)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def plain(value: Any) -> Any:
    """Return JSON values: enum members become their names, dataclasses dicts."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return str(value)
    return value


def group_file(group: str, name: str) -> dict[str, Any]:
    """Read conf/GROUP/NAME.yaml; an unknown name answers with near matches."""
    folder = files("conf") / group
    known = sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".yaml"))
    if name not in known:
        raise ConfigError(unknown(group, name, known))
    loaded = yaml.safe_load((folder / f"{name}.yaml").read_text())
    return dict(loaded)


def _split(node: Mapping[str, Any], *drop: str) -> tuple[str, dict[str, Any]]:
    """Return the class path of a node and its options."""
    options = {k: v for k, v in node.items() if k not in {"class_path", "name", "about", *drop}}
    if "class_path" not in node:
        raise ConfigError(f"a class_path is missing beside {sorted(map(str, node))}")
    return str(node["class_path"]), options


def mixer_factory(
    node: Mapping[str, Any], plugins: Sequence[str], where: str = "model.mixer"
) -> "tuple[MixerFactory, dict[str, Any]]":
    """Return a mixer's class with its options bound, and these options in plain JSON."""
    class_path, options = _split(node)
    family = locate(class_path, plugins)
    bound = bind(family, options, where)
    return partial(family, **bound), {"class_path": class_path, **plain(bound)}


def core_of(
    model: Mapping[str, Any], plugins: Sequence[str], where: str = "model"
) -> "tuple[list[MixerFactory], StackFactory | None, dict[str, Any]]":
    """Return a model's mixers, or its own stack, with options bound, and the options.

    `layers` names a family for each layer, the model's own or another with its default options.
    """
    if "stack" in model:
        if model.get("layers"):
            raise ConfigError(f"{where}.layers: {model.get('name')} has a stack of its own")
        stack, options = mixer_factory(model["stack"], plugins, f"{where}.stack")
        return [], cast("StackFactory", stack), options
    if "mixer" not in model:
        raise ConfigError(f"{where}: a model needs a `mixer` or a `stack` beside {sorted(model)}")
    mixer, options = mixer_factory(model["mixer"], plugins, f"{where}.mixer")
    names = [str(name) for name in model.get("layers") or ()]
    foreign = sorted({*names} - {model.get("name")})
    if not foreign:
        return [mixer], None, options
    others = {name: other_family(name, f"{where}.layers") for name in foreign}
    mixers = [others[name][0] if name in others else mixer for name in names]
    added = {name: bound for name, (_, bound) in others.items()}
    return mixers, None, {**options, "layers": names, "others": added}


def other_family(name: str, where: str) -> "tuple[MixerFactory, dict[str, Any]]":
    """Return the mixer of another family with its default options, for some layers of a model."""
    node = group_file("model", name)
    if "mixer" not in node:
        raise ConfigError(f"{where}: {name} is a stack of its own and no layer of another model")
    return mixer_factory(node["mixer"], (), f"{where}: {name}")


def build_task(node: Mapping[str, Any], plugins: Sequence[str] = ()) -> "Task":
    """Build the task that a resolved `task` node describes."""
    class_path, options = _split(node)
    task: Task = make(locate(class_path, plugins), options, "task")
    return task


def build_task_by_name(name: str, overrides: Sequence[str] = ()) -> "Task":
    """Build a task from conf/task/NAME.yaml and `option=value` words."""
    node = group_file("task", name)
    for word in overrides:
        key, separator, value = word.partition("=")
        if not separator:
            raise ConfigError(f"got {word!r}; wanted option=value, as in max_length=1000")
        node[key.removeprefix("task.")] = yaml.safe_load(value)
    return build_task(node)


def _runner(node: Mapping[str, Any]) -> tuple[Control, Any]:
    name = str(node.get("name"))
    options = kind_of(name).options()
    steering = {f.name for f in fields(Control)}
    control = make(Control, {k: v for k, v in node.items() if k in steering}, "runner")
    control.part()
    rest = {k: v for k, v in node.items() if k not in steering | {"name", "about"}}
    return control, make(options, rest, "runner")


def typed(config: Mapping[str, Any]) -> Run:
    """Turn a resolved configuration tree into typed objects. Raises ConfigError."""
    from models.backbone import BackboneConfig
    from runners.hardware import HardwareProfile
    from runners.optim import OptimConfig

    plugins = list(config["plugins"])
    model, task_node = config["model"], config["task"]
    mixers, stack, mixer_options = core_of(model, plugins)
    backbone = make(BackboneConfig, model.get("backbone"), "model.backbone")
    names = model.get("layers") or []
    if names and len(names) != backbone.depth:
        raise ConfigError(
            f"model.layers: got {len(names)} names; wanted one for each layer, and "
            f"model.backbone.depth is {backbone.depth}"
        )
    class_path, options = _split(task_node)
    task_class = locate(class_path, plugins)
    task_options = plain(bind(task_class, options, "task"))
    for key in getattr(task_class, "incidental", ()):  # paths, process counts: change no number
        task_options.pop(key, None)
    hardware = {k: v for k, v in config["hardware"].items() if k != "about"}
    optim = {k: v for k, v in config["optim"].items() if k not in {"name", "about"}}
    control, runner = _runner(config["runner"])
    return Run(
        config=config,
        model=str(model["name"]),
        mixer_options=mixer_options,
        mixers=mixers,
        stack=stack,
        backbone=backbone,
        task_name=str(task_node["name"]),
        task=build_task(task_node, plugins),
        task_options={"class_path": class_path, **task_options},
        hardware=make(HardwareProfile, hardware, "hardware"),
        optim=make(OptimConfig, optim, "optim"),
        runner=runner,
        control=control,
        seed=int(config["seed"]),
        sweep=str(config["sweep"]),
    )


def facts(run: Run, max_length: int | None = None) -> "Facts":
    """Return what the task tells the model; with `max_length`, what a cost measurement does.

    A measurement of cost has rows of equal length, hence no padding, and may choose a direction.
    """
    from models.frame import TOKEN_HEADS, Facts, Head
    from runners.scaling import Direction

    spec = run.task.spec
    direction = getattr(run.runner, "direction", Direction.task)
    head = Head[spec.kind.name]
    if direction is Direction.causal:
        head = Head.language_modelling
    elif direction is Direction.bidirectional and head is Head.language_modelling:
        head = Head.classification
    answers_tokens = head in TOKEN_HEADS
    return Facts(
        head=head,
        vocabulary=spec.vocabulary or PIXEL_VALUES,
        classes=spec.classes if answers_tokens else max(spec.classes, 2),
        max_length=max_length or spec.max_length,
        padded=spec.padded and max_length is None,
        scalars=spec.scalars and not answers_tokens,
    )


def build_model(run: Run, *, max_length: int | None = None, name: str = "model") -> "Backbone":
    """Build the run's model, or the reference `name` in the same backbone, for `max_length`."""
    from models.backbone import Backbone

    mixers, stack = run.mixers, run.stack
    if name != "model":
        mixers, stack, _ = core_of(group_file("model", name), (), f"reference {name}")
    return Backbone(run.backbone, facts(run, max_length), mixers, stack=stack, seed=run.seed)
