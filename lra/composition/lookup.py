"""Build a task or a mixer from its name and arguments, without a run."""

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
    """Return a task, given by its name and `option=value` arguments; see `task_node`."""
    return build_task(*task_node(name, overrides, config_dirs, plugins))


def task_node(
    name: str,
    overrides: Sequence[str] = (),
    config_dirs: Sequence[Path] = (),
    plugins: Sequence[str] = (),
) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration of a task and its plug-ins, composed as by `lra run`.

    Args:
        name: The name of the task.
        overrides: Arguments of `lra run`; an option of the task needs no prefix `task.`.
        config_dirs: At most one folder with the user's YAML files.
        plugins: Packages that these files may name.

    Raises:
        ConfigError: A name, option or value is wrong, as in `lra run`.
    """
    from lra.composition.hydra_entry import entries

    words = [f"task={name}", *map(_add_prefix, overrides)]
    if plugins:
        words.append(f"plugins=[{','.join(plugins)}]")
    if len(config_dirs) > 1:
        raise ConfigError(f"--config-dir: got {len(config_dirs)} folders; wanted one folder")
    flags = [f"--config-dir={folder}" for folder in config_dirs]
    (entry,) = entries([*flags, *words], models=False)
    return dict(entry.config["task"]), list(entry.config["plugins"])


def _add_prefix(word: str) -> str:
    """Return an argument with the prefix `task.`: `max_length=9` becomes `task.max_length=9`."""
    signs = word[: len(word) - len(word.lstrip("+~"))]  # the prefix belongs behind + or ~
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
    """Return a factory of the mixer, with its options already set.

    Args:
        mixer: A name of `lra list models`, or `package.module:Class`.
        options: Options by name; the constructor's annotations say how a value is read.
        config_dirs: Folders with the user's YAML files.
        plugins: Packages that these files may name.
        claims: Arguments of `lra.models.wrap.wrap`, for a class that is not a mixer; None if it is.

    Raises:
        UnknownName: There is no such mixer.
        ConfigError: An option is unknown, has the wrong type, or the class cannot be imported.
    """
    if ":" not in mixer and "." not in mixer:
        if claims is not None:
            raise ConfigError(
                f"--wrap: got the name {mixer!r}, which is a mixer of lra; wanted the module and "
                "class of another nn.Module, as in my_pkg.module:MyLayer"
            )
        return _make_named_mixer(mixer, options, config_dirs, plugins)
    class_path = mixer.replace(":", ".")
    if not all(part.isidentifier() for part in class_path.split(".")):
        as_module = re.sub(r"\.py\b", "", mixer).replace("/", ".").strip(".")
        example = as_module if "/" in mixer else "my_pkg.module:MyMixer"
        raise UnknownName(
            f"got {mixer!r}; wanted a name of `lra list models`, or a class as in {example}"
        )
    package = class_path.partition(".")[0]
    # A class outside lra is in a package of the user.
    packages = [*plugins] if package in (*ROOMS, TOP) else [*plugins, package]
    name_plugins(packages)  # the user typed the name of the package, so lra may import it
    mixer_class = locate(class_path, packages)
    if claims is not None:
        mixer_class = _wrap_class(mixer_class, claims, mixer)
    factory, _ = bound_mixer(mixer_class, options, class_path, class_path)
    return factory


def _make_named_mixer(
    name: str, options: Mapping[str, Any], config_dirs: Sequence[Path], plugins: Sequence[str]
) -> "MixerFactory":
    """Return a factory of the mixer in the YAML file of model `name`; see `resolve`.

    `options` replace the values of the file.
    """
    existing = names("model", config_dirs)
    if name not in existing:
        way_out = "Give your mixer by its module and class, as in my_pkg.module:MyMixer"
        raise UnknownName(unknown("model", name, existing, way_out=way_out))
    model = group_file("model", name, config_dirs)
    if "mixer" not in model:
        raise UnknownName(
            f"{name} is a whole stack of layers, but `lra verify` only checks a single mixer"
        )
    packages = [*plugins, *chosen_packages(model)]
    name_plugins(packages)
    factory, _ = mixer_factory({**model["mixer"], **options}, packages, name)
    return factory


def _wrap_class(module: Any, claims: Mapping[str, Any], name: str) -> Any:
    """Return a mixer made of a class of nn.Module.

    Args:
        module: The class.
        claims: Arguments of `lra.models.wrap.wrap`, by name.
        name: The class as the user gave it, for messages.
    """
    from lra.models.wrap import wrap

    _, *known = signature(wrap).parameters  # the first parameter is the class
    for claim in claims:
        if claim not in known:
            way_out = "Type arguments of the constructor before --wrap."
            raise ConfigError(f"--wrap: {unknown('claim', claim, known, way_out=way_out)}")
    try:
        return wrap(module, **bind(wrap, claims, "--wrap"))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
