"""From the `class_path` of a configuration to the class, in lra or in a package of the user."""

import importlib
import inspect
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from lra.conf.rooms import ROOMS as OURS, TOP, imported_name, stored_name
from lra.errors import ConfigError, near, unknown
from lra.tasks.data.signals import StopSignal

ROOMS = ("models", "tasks", "runners")
_named: set[str] = set()
"""Packages of the user that the command of this process has named, and that may be imported."""


class NotNamed(ConfigError):
    """A stored configuration needs packages that this command does not name: not imported."""


def name_plugins(plugins: Collection[str]) -> None:
    """Let `locate` import these packages from now on, also from the current folder.

    Call it only for names that the user has typed: on the command line, in files of --config-dir,
    or in a call from Python. A name in the results must never come here, as it may be of anybody.
    """
    if plugins:
        see("")
        _named.update(plugins)


def see(folder: str) -> None:
    """Let packages in a folder be imported, after everything else; "" is the current one."""
    with suppress(FileNotFoundError):  # the current folder was removed
        place = folder or str(Path.cwd())
        if not {folder, place} & {*sys.path}:
            sys.path.append(place)


def named_plugins() -> list[str]:
    """Return the packages that were named here."""
    return sorted(_named)


def check_named(plugins: Collection[str]) -> None:
    """Raise `NotNamed` for packages that were not named here. Imports nothing."""
    if not isinstance(plugins, Sequence | set) or isinstance(plugins, str):
        raise ConfigError(f"plugins: got {plugins!r:.80}; wanted a list, as in [my_package]")
    missing = [str(plugin) for plugin in plugins if plugin not in _named]
    if missing:
        listed = ",".join(missing)
        raise NotNamed(
            f"a stored configuration names the plug-in {', '.join(map(repr, missing))}. The code "
            f"of a package runs only if your command names it: add plugins=[{listed}] to "
            f"`lra run`, --plugin {' --plugin '.join(missing)} to commands on a stored run or "
            "sweep, "
            f"or plugins={missing} in Python"
        )


def locate(class_path: str, plugins: Sequence[str] = (), rooms: Sequence[str] = ROOMS) -> Any:
    """Import what `class_path` names; only from packages of ours and the listed plug-ins.

    Args:
        class_path: package.module.Class.
        plugins: packages of the user.
        rooms: packages of ours.

    Raises:
        NotNamed: One of the plug-ins stands in a stored configuration alone.
        ConfigError: There is no such package, module or class, or importing it failed.
    """
    module_name, _, name = _present(stored_name(class_path)).rpartition(".")
    module = locate_module(module_name, plugins, rooms, f"class_path {class_path!r}")
    target = getattr(module, name, None)
    if target is None:
        if hasattr(module, "__path__") and find_spec(f"{module.__name__}.{name}"):
            raise ConfigError(
                f"class_path {class_path!r} is a module; wanted a class in it, as in "
                f"{class_path}.MyClass"
            )
        existing = [n for n, value in vars(module).items() if _is_choice(value, module.__name__)]
        message = unknown("class", name, existing, way_out=_ways_out(module_name).strip())
        raise ConfigError(f"class_path {class_path!r}: {message}")
    if not inspect.isclass(target) and not inspect.isfunction(target):
        raise ConfigError(
            f"class_path {class_path!r} is of type {type(target).__name__}; wanted a class or a "
            "function, as in package.module.MyClass"
        )
    return target


def locate_module(
    name: str, plugins: Sequence[str], rooms: Sequence[str], asked: str
) -> ModuleType:
    """Import a module; only from packages of ours and the listed plug-ins.

    Args:
        name: package.module.
        plugins: packages of the user.
        rooms: packages of ours.
        asked: the key and its value, as messages begin.

    Raises:
        NotNamed: One of the plug-ins stands in a stored configuration alone.
        ConfigError: There is no such package or module, or importing it failed.
    """
    check_place(name, plugins, rooms, asked)
    try:
        return importlib.import_module(imported_name(name))
    except ModuleNotFoundError as error:
        message = _missing(asked, imported_name(name), error)
        raise ConfigError(message + _ways_out(name)) from error
    except StopSignal:  # by a signal, while it was imported
        raise
    except (Exception, SystemExit) as error:  # a package of the user's may raise anything
        raise ConfigError(
            f"{asked}: importing {name} failed with {type(error).__name__}: {error}; set "
            "LRA_DEBUG=1 to see the traceback"
        ) from error


def check_place(name: str, plugins: Sequence[str], rooms: Sequence[str], asked: str) -> None:
    """Raise what `locate_module` raises for a module of another package. Imports nothing."""
    check_named(plugins)
    for plugin in plugins:
        _check_plugin(plugin)
    allowed = (*rooms, *plugins)
    top = name.partition(".")[0]
    if top not in allowed:
        theirs = top or "my_package"
        way_out = f"; name your package: plugins=[{theirs}] with lra run, --plugin {theirs} with "
        way_out = "" if top in (*OURS, TOP) else f"{way_out}other verbs"
        outside = f"{asked} lies outside {', '.join(allowed)}{way_out}"
        raise ConfigError(outside + _ways_out(name))


def paths_in(node: Any, *keys: str) -> Iterator[str]:
    """Yield the text under each of these keys, wherever it stands in a configuration."""
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if key in keys:
            yield str(value)
        else:
            yield from paths_in(value, *keys)


def _present(class_path: str) -> str:
    """Return the present path of a class: older files name runners without `measures`."""
    room, _, rest = class_path.partition(".")
    if room != "runners" or find_spec(f"lra.{room}.{rest.partition('.')[0]}"):
        return class_path
    return f"{room}.measures.{rest}"


def _check_plugin(name: str) -> None:
    if name in OURS or name == TOP:
        raise ConfigError(
            f"plugins: {name!r} is the name of a package of lra, which cannot be replaced."
            + _ways_out(f"{name}.my_module")
        )
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"plugins: got {name!r}; wanted the name of a package, as in my_package")
    if name in sys.modules or find_spec(name) is not None:
        return
    matches = near(name, _packages_here())
    hint = f": did you mean {' or '.join(map(repr, matches))}?" if matches else "."
    raise ConfigError(
        f"plugins: there is no package {name!r}{hint} Looked in the current folder ({Path.cwd()}), "
        "on PYTHONPATH and among the installed packages. Run lra in the folder that contains "
        "it, or "
        "install it"
    )


def _packages_here() -> Iterator[str]:
    for path in Path.cwd().iterdir():
        if path.name.isidentifier() and path.is_dir():
            yield path.name
        elif path.suffix == ".py" and path.stem.isidentifier():
            yield path.stem


def _ways_out(module: str) -> str:
    """Return what to do with a package of the user's own that has a name of ours; "" for others."""
    room = module.partition(".")[0]
    return (
        ""
        if room not in OURS
        else (
            f" {room!r} always means the package of lra. Export your module again under another "
            f"name, as in own_mixers.py next to it, with `from {module} import *`. Then write "
            f"own_mixers for {module}, and set PYTHONPATH=. in the environment"
        )
    )


def _missing(asked: str, module_name: str, error: ModuleNotFoundError) -> str:
    """Return what is missing: the package, a module in it, or something that it imports."""
    absent = error.name or ""
    if not f"{module_name}.".startswith(f"{absent}."):
        whose = ""
        if absent.split(".")[0] in OURS:
            whose = f"; modules of lra are imported as {imported_name(absent)}"
        return f"{asked}: {module_name} imports {absent!r}, which is not installed{whose} ({error})"
    parent, _, last = absent.rpartition(".")
    if not parent:
        return (
            f"{asked}: {error}; run lra in the folder that contains the package "
            f"(this is {Path.cwd()}), or install it"
        )
    package = importlib.import_module(parent)
    files = [Path(folder) for folder in getattr(package, "__path__", ())]
    names = [path.stem for folder in files for path in folder.glob("*.py") if path.stem[0] != "_"]
    return f"{asked}: {error}: {unknown('module', last, names)}"


def _is_choice(value: Any, module_name: str) -> bool:
    return inspect.isclass(value) and _package(value.__module__) == _package(module_name)


def _package(name: str) -> str:
    """Return the package of a module: of ours, one of those within `lra`."""
    return stored_name(name).partition(".")[0]
