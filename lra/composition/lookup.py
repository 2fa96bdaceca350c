"""A task, or a mixer, from its name and the words of a command line, without a run around it."""

import re
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.composition.binding import bind
from lra.composition.catalogue import names
from lra.composition.class_path import locate, name_plugins
from lra.composition.compose import bound_mixer, build_task, group_file, mixer_factory
from lra.composition.extensions import chosen_packages
from lra.conf.rooms import ROOMS, TOP
from lra.errors import ConfigError, UnknownName, unknown

if TYPE_CHECKING:
    from lra.models.mixer import MixerFactory
    from lra.tasks.task import Task


def named_task(
    name: str,
    overrides: Sequence[str] = (),
    config_dirs: Sequence[Path] = (),
    plugins: Sequence[str] = (),
) -> "Task":
    """Build a task from its name and `option=value` words; see `task_node`."""
    return build_task(*task_node(name, overrides, config_dirs, plugins))


def task_node(
    name: str,
    overrides: Sequence[str] = (),
    config_dirs: Sequence[Path] = (),
    plugins: Sequence[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Return the resolved `task` node and the plug-ins of a run, as `lra run` composes them.

    Args:
        name: Of the task.
        overrides: As after `lra run`; an option of the task may leave out `task.`.
        config_dirs: A folder of configuration files beside ours, or none.
        plugins: Packages that these files may name.

    Raises:
        ConfigError: As of `lra run`.
    """
    from lra.composition.hydra_entry import entries

    words = [f"task={name}", *map(_of_the_task, overrides)]
    if plugins:
        words.append(f"plugins=[{','.join(plugins)}]")
    if len(config_dirs) > 1:
        raise ConfigError(f"--config-dir: got {len(config_dirs)} folders; wanted one")
    flags = [f"--config-dir={folder}" for folder in config_dirs]
    (entry,) = entries([*flags, *words], models=False)
    return dict(entry.config["task"]), list(entry.config["plugins"])


def _of_the_task(word: str) -> str:
    """Return a word as after `lra run`: `+max_length=9` stands for `+task.max_length=9`."""
    signs = word[: len(word) - len(word.lstrip("+~"))]
    key = word[len(signs) :]
    name = key.partition("=")[0]
    if (not name.isidentifier() and "." not in name) or name in ("plugins", "scale"):
        return word
    return word if name.startswith("task.") else f"{signs}task.{key}"


def resolve(
    mixer: str,
    options: Mapping[str, Any],
    config_dirs: Sequence[Path] = (),
    plugins: Sequence[str] = (),
    claims: Mapping[str, Any] | None = None,
) -> "MixerFactory":
    """Return the mixer's class with its options bound.

    Args:
        mixer: A name of `conf/model`, or `package.module:Class`.
        options: Options by name; the constructor's annotations say how a value is read.
        config_dirs: Folders of the user's own choices.
        plugins: Packages that these may name.
        claims: Of a class that is no mixer: arguments of `lra.models.wrap.wrap`.

    Raises:
        UnknownName: for a name that is neither.
        ConfigError: for an unknown option, a wrong type or a class that cannot be imported.
    """
    if ":" not in mixer and "." not in mixer:
        if claims is not None:
            raise ConfigError(
                f"--wrap takes a class that is not a mixer of lra: got the name {mixer!r}; wanted "
                "module and class, as in my_pkg.module:MyLayer"
            )
        return _named_mixer(mixer, options, config_dirs, plugins)
    class_path = mixer.replace(":", ".")
    if not all(part.isidentifier() for part in class_path.split(".")):
        as_module = re.sub(r"\.py\b", "", mixer).replace("/", ".").strip(".")
        place = as_module if "/" in mixer else "my_pkg.module:MyMixer"
        raise UnknownName(f"got {mixer!r}; wanted a family of lra, or {place}")
    package = class_path.partition(".")[0]
    packages = [*plugins] if package in (*ROOMS, TOP) else [*plugins, package]  # not ours: named
    name_plugins(packages)
    mixer_class = locate(class_path, packages)
    if claims is not None:
        mixer_class = _wrapped(mixer_class, claims, mixer)
    factory, _ = bound_mixer(mixer_class, options, class_path, class_path)
    return factory


def _named_mixer(
    name: str, options: Mapping[str, Any], config_dirs: Sequence[Path], plugins: Sequence[str]
) -> "MixerFactory":
    """Return the mixer of a model's file, with options bound over those of the file."""
    existing = names("model", config_dirs)
    if name not in existing:
        way_out = "Name your mixer by its module and class: my_pkg.module:MyMixer"
        raise UnknownName(unknown("model", name, existing, way_out=way_out))
    model = group_file("model", name, config_dirs)
    if "mixer" not in model:
        raise UnknownName(f"{name} is a whole stack of layers; `lra verify` checks a single mixer")
    packages = [*plugins, *chosen_packages(model)]
    name_plugins(packages)
    factory, _ = mixer_factory({**model["mixer"], **options}, packages, name)
    return factory


def _wrapped(module: Any, claims: Mapping[str, Any], place: str) -> Any:
    """Return a mixer around a module's class that is none; `claims` are arguments of `wrap`."""
    from lra.models.wrap import wrap

    _, *known = signature(wrap).parameters  # the first is the class
    if foreign := [claim for claim in claims if claim not in known]:
        way_out = "Put arguments of the constructor before --wrap."
        raise ConfigError(f"--wrap: {unknown('claim', foreign[0], known, way_out=way_out)}")
    try:
        return wrap(module, **bind(wrap, claims, "--wrap"))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from error
