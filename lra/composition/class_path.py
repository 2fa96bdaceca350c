"""Import the class that `class_path` names, from lra or from a package that the user named."""

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
"""The packages that the command of this process named, which lra may therefore import."""


class NotNamed(ConfigError):
    """A stored configuration needs a package that this command does not name."""


def name_plugins(plugins: Collection[str]) -> None:
    """Let `locate` import these packages from now on, also from the current folder.

    Call it only with names that the user has typed: on the command line, in files of --config-dir,
    or in a call from Python. Results may come from anybody, so never call it with a name from them.
    """
    if plugins:
        see("")  # the current folder
        _named.update(plugins)


def see(folder: str) -> None:
    """Add a folder at the end of Python's search path; "" means the current folder."""
    with suppress(FileNotFoundError):  # the current folder may have been removed
        path = folder or str(Path.cwd())
        if not {folder, path} & {*sys.path}:
            sys.path.append(path)


def named_plugins() -> list[str]:
    """Return the packages that the command of this process named."""
    return sorted(_named)


def check_named(plugins: Collection[str]) -> None:
    """Raise `NotNamed` if the command of this process did not name all `plugins`."""
    if not isinstance(plugins, Sequence | set) or isinstance(plugins, str):
        raise ConfigError(f"plugins: got {plugins!r:.80}; wanted a list, as in [my_package]")
    missing = [str(plugin) for plugin in plugins if plugin not in _named]
    if missing:
        listed = ",".join(missing)
        raise NotNamed(
            f"a stored configuration uses the package {', '.join(map(repr, missing))}. lra runs "
            "the code of a package only if your command names it. Add "
            f"plugins=[{listed}] to `lra run`, --plugin {' --plugin '.join(missing)} to a "
            f"command on a stored run or sweep, or plugins={missing} to a call in Python"
        )


def locate(class_path: str, plugins: Sequence[str] = (), rooms: Sequence[str] = ROOMS) -> Any:
    """Import and return the class or function that `class_path` names.

    Args:
        class_path: The path, as package.module.Class.
        plugins: Packages of the user from which lra may import.
        rooms: Packages of lra from which lra may import.

    Raises:
        NotNamed: The command did not name one of the plug-ins.
        ConfigError: There is no such package, module or class, or importing it failed.
    """
    module_name, _, name = _update_path(stored_name(class_path)).rpartition(".")
    module = locate_module(module_name, plugins, rooms, f"class_path {class_path!r}")
    target = getattr(module, name, None)
    if target is None:
        if hasattr(module, "__path__") and find_spec(f"{module.__name__}.{name}"):
            raise ConfigError(
                f"class_path: got {class_path!r}, which is a module; wanted a class of the module, "
                f"as in {class_path}.MyClass"
            )
        existing = [n for n, value in vars(module).items() if _is_choice(value, module.__name__)]
        message = unknown("class", name, existing, way_out=_advise_renaming(module_name).strip())
        raise ConfigError(f"class_path {class_path!r}: {message}")
    if not inspect.isclass(target) and not inspect.isfunction(target):
        raise ConfigError(
            f"class_path: got {class_path!r}, which has the type {type(target).__name__}; wanted a "
            "class or a function, as in package.module.MyClass"
        )
    return target


def locate_module(
    name: str, plugins: Sequence[str], rooms: Sequence[str], asked: str
) -> ModuleType:
    """Import and return a module.

    Args:
        name: The path of the module, as package.module.
        plugins: Packages of the user from which lra may import.
        rooms: Packages of lra from which lra may import.
        asked: The key and its value, with which messages begin.

    Raises:
        NotNamed: The command did not name one of the plug-ins.
        ConfigError: There is no such package or module, or importing it failed.
    """
    check_place(name, plugins, rooms, asked)
    try:
        return importlib.import_module(imported_name(name))
    except ModuleNotFoundError as error:
        message = _describe_missing(asked, imported_name(name), error)
        raise ConfigError(message + _advise_renaming(name)) from error
    except StopSignal:  # a signal arrived during the import
        raise
    except (Exception, SystemExit) as error:  # a package of the user may raise any error
        raise ConfigError(
            f"{asked}: importing {name} failed with {type(error).__name__}: {error}; set "
            "LRA_DEBUG=1 to see the traceback"
        ) from error


def check_place(name: str, plugins: Sequence[str], rooms: Sequence[str], asked: str) -> None:
    """Raise ConfigError if lra may not import the module `name`; see `locate_module`."""
    check_named(plugins)
    for plugin in plugins:
        _check_plugin(plugin)
    allowed = (*rooms, *plugins)
    top = name.partition(".")[0]
    if top not in allowed:
        package = top or "my_package"
        way_out = (
            f"; to use your package, add plugins=[{package}] to lra run, or --plugin {package} to "
            "other commands"
        )
        way_out = "" if top in (*OURS, TOP) else way_out
        outside = f"{asked} lies outside {', '.join(allowed)}{way_out}"
        raise ConfigError(outside + _advise_renaming(name))


def paths_in(node: Any, *keys: str) -> Iterator[str]:
    """Yield the value of each of `keys`, as text, at every depth of a nested mapping."""
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if key in keys:
            yield str(value)
        else:
            yield from paths_in(value, *keys)


def _update_path(class_path: str) -> str:
    """Return today's path of a class; older files name runners without the folder `measures`."""
    room, _, rest = class_path.partition(".")
    if room != "runners" or find_spec(f"lra.{room}.{rest.partition('.')[0]}"):
        return class_path
    return f"{room}.measures.{rest}"


def _check_plugin(name: str) -> None:
    """Raise ConfigError if there is no package `name`, or if it has the name of one of lra."""
    if name in OURS or name == TOP:
        raise ConfigError(
            f"plugins: got {name!r}, the name of a package of lra; wanted another name, because "
            "your package cannot replace it." + _advise_renaming(f"{name}.my_module")
        )
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"plugins: got {name!r}; wanted the name of a package, as in my_package")
    if name in sys.modules or find_spec(name) is not None:
        return
    matches = near(name, _list_packages())
    hint = f": did you mean {' or '.join(map(repr, matches))}?" if matches else "."
    raise ConfigError(
        f"plugins: there is no package {name!r}{hint} lra looked in the current folder "
        f"({Path.cwd()}), on PYTHONPATH and among the installed packages. Run lra in the folder "
        "that contains the package, or install it"
    )


def _list_packages() -> Iterator[str]:
    """Yield the names of the packages and modules in the current folder."""
    for path in Path.cwd().iterdir():
        if path.name.isidentifier() and path.is_dir():
            yield path.name
        elif path.suffix == ".py" and path.stem.isidentifier():
            yield path.stem


def _advise_renaming(module: str) -> str:
    """Return advice for a module of the user in a package with a name of lra's; else ""."""
    room = module.partition(".")[0]
    if room not in OURS:
        return ""
    return (
        f" The name {room!r} always means the package of lra. To use your own module {module}, "
        f"write a file own_mixers.py next to its package with the line `from {module} import *`. "
        f"Then give own_mixers instead of {module}, and set PYTHONPATH=. in the environment"
    )


def _describe_missing(asked: str, module_name: str, error: ModuleNotFoundError) -> str:
    """Return a message that says what is missing: the package, its module, or a dependency.

    Args:
        asked: The key and its value, with which the message begins.
        module_name: The module that lra tried to import.
        error: The error of the import.
    """
    absent = error.name or ""
    if not f"{module_name}.".startswith(f"{absent}."):  # another module, which this one imports
        hint = ""
        if absent.split(".")[0] in OURS:
            hint = f"; a module of lra is imported as {imported_name(absent)}"
        return f"{asked}: {module_name} imports {absent!r}, which is not installed{hint} ({error})"
    parent, _, last = absent.rpartition(".")
    if not parent:
        return (
            f"{asked}: {error}; install the package, or run lra in the folder that contains it "
            f"(the current folder is {Path.cwd()})"
        )
    package = importlib.import_module(parent)
    files = [Path(folder) for folder in getattr(package, "__path__", ())]
    names = [path.stem for folder in files for path in folder.glob("*.py") if path.stem[0] != "_"]
    return f"{asked}: {error}: {unknown('module', last, names)}"


def _is_choice(value: Any, module_name: str) -> bool:
    """Return whether a value of a module is a class that its own package defines."""
    return inspect.isclass(value) and _find_package(value.__module__) == _find_package(module_name)


def _find_package(name: str) -> str:
    """Return the package of a module; for lra.models.s4, that is `models`."""
    return stored_name(name).partition(".")[0]
