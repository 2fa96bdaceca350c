"""The fingerprint of the code of a result: a hash of all sources that some modules import.

Sources are parsed and not imported, so a fingerprint takes milliseconds and needs no torch. Imports
are followed into the packages of lra, into the packages of the given modules, and into packages of
the user that have the name of a package of lra. Versions of other packages belong to the
environment. Comments and blank lines do not change a fingerprint, but docstrings do.
Imports by a computed name (`importlib.import_module(name)`) are not found: name these modules.
"""

import hashlib
import importlib.machinery
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from lra.conf.rooms import ROOMS, stored_name
from lra.runners.storage.parsed_sources import ParsedSource, Statement, keep_parsed, parse_source

FOLLOWED = ("models", "tasks", "runners", "conf")
"""The packages of lra that decide results; those that compose runs and write reports do not."""
THEIRS = "own:"
"""Prefix for a user's package that has the name of a package of lra, such as `own:models`."""
_HERE = Path(__file__).resolve().parents[2]
"""The folder that contains lra's packages, `ROOMS`."""


class Source(NamedTuple):
    """The source of a module."""

    path: Path
    digest: str
    imports: tuple[str, ...]
    """Dotted names of imported modules, and of names that are imported from modules."""


Seen = dict[str, Source | None]
"""Sources by dotted name; None for a name that is not a module."""


def fingerprint(modules: Iterable[str]) -> str:
    """Return the first 12 hexadecimal digits of the hash of all sources that `modules` import.

    Args:
        modules: dotted module names, e.g. the modules of a mixer, a task and a runner.

    Raises:
        ModuleNotFoundError: one of the modules has no source file on the path.
    """
    return summary(digests(modules))


def digests(modules: Iterable[str], seen: Seen | None = None) -> dict[str, str]:
    """Return the hash of each source that `modules` import, by dotted name, in sorted order.

    Args:
        modules: dotted module names.
        seen: a cache of sources from earlier calls, to which this call adds; None: every source is
            read.

    Raises:
        ModuleNotFoundError: one of the modules has no source file on the path.
    """
    return {name: source.digest for name, source in sorted(_follow_imports(modules, seen).items())}


def summary(hashes: Mapping[str, str]) -> str:
    """Return 12 hexadecimal digits of the hash of all `hashes`, which `digests` returned."""
    text = hashlib.sha256()
    for name, digest in hashes.items():
        text.update(f"{name}\0{digest}\n".encode())
    return text.hexdigest()[:12]


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the modules with different hashes; "(new)" or "(gone)" marks those on one side."""
    names = [name for name in now if name in before and before[name] != now[name]]
    names += [f"{name} (new)" for name in now if name not in before]
    names += [f"{name} (gone)" for name in before if name not in now]
    return sorted(names)


def sources(modules: Iterable[str]) -> dict[str, Path]:
    """Return the source file of every module that `modules` reach by imports, by dotted name.

    Raises:
        ModuleNotFoundError: one of the modules has no source file on the path.
    """
    return {name: source.path for name, source in _follow_imports(modules, None).items()}


def _follow_imports(modules: Iterable[str], seen: Seen | None) -> dict[str, Source]:
    """Return all sources that `modules` import, directly or not; `seen` is as in `digests`."""
    names, seen = list(map(stored_name, modules)), {} if seen is None else seen
    packages = {*FOLLOWED, *(name.partition(".")[0] for name in names)}
    # If some modules are a user's, the user may also have packages that are named as lra's are.
    packages |= {f"{THEIRS}{package}" for package in ROOMS} if packages - {*ROOMS} else set()
    tops = {package: _find_top_level(package) for package in packages}

    def read(name: str) -> Source | None:
        """Return the source of a dotted name, found through its package, or None."""
        if name not in seen:  # a top-level name is in `tops`, any other is inside its package
            parent, _, part = name.rpartition(".")
            package = read(parent) if parent else None
            path = tops[name] if not parent else package and _find_inside(package.path, part)
            seen[name] = None if path is None else _read_source(name, path)
        return seen[name]

    for name in names:
        if read(name) is None:
            message = f"the import path has no source file for the module {name!r}"
            raise ModuleNotFoundError(message, name=name)
    reached: dict[str, Source] = {}
    while names:
        name = names.pop()
        if name in reached or name.partition(".")[0] not in packages:
            continue
        source = read(name)
        if source is None:
            continue  # a name inside a module, not a module
        reached[name] = source
        names.append(name.rpartition(".")[0])  # importing a module runs its package, too
        names.extend(source.imports)
    keep_parsed()
    return reached


def _read_source(name: str, path: Path) -> Source:
    read = _parse_if_present(path)
    return Source(
        path, read.digest, _list_imports(read.statements, name, path.name == "__init__.py")
    )


def source_digest(module: str) -> str | None:
    """Return the hash of a module's source, as in `digests`; None if there is no source."""
    path = _find_source(module)
    return None if path is None else _parse_if_present(path).digest


def _find_source(module: str) -> Path | None:
    """Return a module's source file; for a package, its `__init__.py`, which may be absent."""
    top, *rest = stored_name(module).split(".")
    path = _find_top_level(top)
    for part in rest:
        path = path and _find_inside(path, part)
    return path


def _parse_if_present(path: Path) -> ParsedSource:
    """Return the parsed source; an empty one if a package has no `__init__.py`."""
    return parse_source(path) if path.is_file() else ParsedSource("", ())


def _find_top_level(package: str) -> Path | None:
    """Return the source file of a top-level package or module; None if it is not found."""
    if package in ROOMS:
        return _HERE / package / "__init__.py"
    name = package.removeprefix(THEIRS)
    spec = importlib.machinery.PathFinder.find_spec(name) if name else None
    # A folder without `__init__.py` has locations but no origin.
    if spec is not None and spec.origin is None and spec.submodule_search_locations:
        return Path(spec.submodule_search_locations[0]) / "__init__.py"
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    return Path(spec.origin)


def _find_inside(path: Path, part: str) -> Path | None:
    """Return the source file of the module `part` in the package whose `__init__.py` is `path`.

    None if there is no such module, or if `path` is not a package.
    """
    if path.name != "__init__.py":
        return None
    folder = path.parent / part
    if folder.is_dir():
        return folder / "__init__.py" if next(folder.rglob("*.py"), None) else None
    source = folder.with_suffix(".py")
    return source if source.is_file() else None


@lru_cache(maxsize=4096)
def _list_imports(
    statements: tuple[Statement, ...], name: str, is_package: bool
) -> tuple[str, ...]:
    """Return all dotted names that a source imports, and the packages from which it imports them.

    Args:
        statements: the imports in the source.
        name: dotted name of its module.
        is_package: whether the source is an `__init__.py`.
    """
    package = name if is_package else name.rpartition(".")[0]
    imported_names: list[str] = []
    for level, module, names in statements:
        base = module
        if level:
            parents = package.split(".")
            start = ".".join(parents[: len(parents) - level + 1])  # one dot: the package itself
            base = f"{start}.{module}" if module else start
        # The code of lra writes `lra.models`. If other code imports `models`, it is a user's.
        foreign = not level and name.partition(".")[0] not in ROOMS
        theirs = THEIRS if foreign and base.partition(".")[0] in ROOMS else ""
        imported_names += [theirs + base, *(f"{theirs}{base}.{name_in}" for name_in in names)]
    return tuple(dict.fromkeys(map(stored_name, imported_names)))
