"""Find the class of a runner by its name: one of lra, or one of the user's package."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from inspect import isabstract
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from lra.composition import catalogue
from lra.composition.catalogue import choices, names, our_file
from lra.composition.class_path import NotNamed, check_place, locate, locate_module
from lra.composition.yaml_text import load
from lra.conf.rooms import imported_name
from lra.errors import ConfigError, UnknownName, unknown
from lra.runners.metrics import METRICS
from lra.runners.records import Cell
from lra.runners.runner import Runner

if TYPE_CHECKING:
    from lra.reports.sections.section import SectionOf

REPORTS = ("reports",)
"""Packages of lra that contain sections of reports."""
MODES = {"modes": "[{}]", "qk": "{}"}
"""Options of lra's runners that choose a mode, with the form of a value."""


def runner_class(node: Mapping[str, Any], plugins: Sequence[str] = ()) -> type[Runner]:
    """Return the class of a runner.

    Args:
        node: The `runner` of a configuration; without a `class_path`, its name is a runner of lra.
        plugins: Packages of the user.

    Raises:
        UnknownName: There is no such runner; the message lists similar names.
        ConfigError: The class is not a runner.
    """
    class_path = str(node.get("class_path") or _read_class_path(str(node.get("name"))))
    # Only classes of lra are cached: a package of the user may change while the process runs.
    return _locate_class(class_path, plugins) if plugins else _locate_bundled(class_path)


@cache
def _locate_bundled(class_path: str) -> type[Runner]:
    return _locate_class(class_path, ())


def _locate_class(class_path: str, plugins: Sequence[str]) -> type[Runner]:
    """Return the class at `class_path`; raise ConfigError if it is not a complete runner."""
    kind = locate(class_path, plugins)
    if not isinstance(kind, type) or not issubclass(kind, Runner):
        raise ConfigError(
            f"runner.class_path: {class_path} is not a runner; wanted a dataclass that derives "
            "from lra.runners.runner.Runner"
        )
    if isabstract(kind):
        raise ConfigError(
            f"runner.class_path: {class_path} must have a method run(work) that yields the rows "
            "of a run"
        )
    for metric in (kind.outcome, *kind.tabled):
        if metric not in METRICS:
            raise ConfigError(
                f"runner.class_path: got the metric {metric!r} in `outcome` or `tabled` of "
                f"{class_path}; wanted a metric that runners/metrics.py defines. In a copy of lra, "
                "you can add a line for a new metric to that file"
            )
    return kind


def runner_of(cell: Cell) -> type[Runner]:
    """Return the class of the runner of the run `cell`."""
    node = cell.config.get("runner") or {"name": cell.columns["runner"]}
    return runner_class(node, cell.config.get("plugins") or ())


def mode_word(cell: Cell) -> str:
    """Return the argument of `lra run` that chooses the mode of a run, such as runner.modes=[step].

    Returns "" if no argument chooses it. For a runner of lra, the answer follows from its options,
    because importing its class would load torch. A runner of a package that the command did not
    name cannot be imported; it is assumed to have the option `modes`.
    """
    name, mode = str(cell.columns["runner"]), str(cell.columns["mode"])
    node = cell.config.get("runner") or {"name": name}
    options = our_file(f"runner/{node.get('name', name)}")
    if node.get("class_path", options.get("class_path")) == options.get("class_path"):
        for option, form in MODES.items():
            if option in options:
                return f"runner.{option}={form.format(mode)}"
    try:
        return runner_of(cell).word(mode)
    except NotNamed:
        return f"runner.modes=[{mode}]" if "modes" in node else ""


def first_metrics(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return, for each runner of the user, the metrics that come first in its table.

    Args:
        cells: The content of cell.json of each run, by key. A runner is omitted if its package is
            missing, or if the command did not name it.
    """
    metrics: dict[str, tuple[str, ...]] = {}
    for name, node, plugins in _list_runners(cells):
        if name not in metrics and not our_file(f"runner/{name}"):
            with suppress(ConfigError, UnknownName):
                kind = runner_class(node, plugins)
                metrics[name] = kind.tabled or (kind.outcome,)
    return metrics


def sections(
    cells: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    config_dirs: Sequence[Path] = (),
    plugins: Sequence[str] = (),
) -> "dict[str, SectionOf | str]":
    """Return, by the name of a runner, the function that makes its section of a report.

    Args:
        cells: The content of cell.json of each run, by key, which names the user's runners. A
            runner is omitted if the command did not name its package. If its section cannot be
            imported, the value is a sentence with the reason.
        config_dirs: Folders with the user's YAML files, for rows without a cell.json.
        plugins: Packages that the runners in these folders may name.

    Raises:
        ConfigError: A section that one of the folders names cannot be imported.
    """
    located: dict[str, SectionOf | str] = {}
    for file in choices("runner", config_dirs):
        if path := load(file).get("section"):
            located[file.stem] = _import_section(path, plugins)
    for name, node, packages in _list_runners(cells):
        if name not in located and node.get("section"):
            try:
                located[name] = _import_section(node["section"], packages)
            except NotNamed:
                continue
            except ConfigError as error:
                located[name] = str(error)
    return located


def check_section(path: str, plugins: Sequence[str]) -> None:
    """Raise ConfigError if there is no module `path`; only the packages around it are imported."""
    check_place(path, plugins, REPORTS, key := f"runner.section {path!r}")
    with suppress(ModuleNotFoundError):
        if find_spec(imported_name(path)) is not None:
            return
    raise ConfigError(f"{key}: there is no such module")


def _import_section(path: str, plugins: Sequence[str]) -> "SectionOf":
    """Return the function `section` of the module `path`; raise ConfigError if it has none."""
    key = f"runner.section {path!r}"
    section = getattr(locate_module(str(path), plugins, REPORTS, key), "section", None)
    if not callable(section):
        raise ConfigError(
            f"{key}: the module must have a function `section`, which makes the parts of a report "
            "from rows"
        )
    return cast("SectionOf", section)


def _list_runners(
    cells: Mapping[str, Mapping[str, Any]],
) -> Iterator[tuple[str, Mapping[str, Any], Sequence[str]]]:
    """Yield the name, the options and the plug-ins of the runner of each run in `cells`."""
    for cell in cells.values():
        name, config = str(cell["columns"]["runner"]), cell["config"]
        yield name, config.get("runner") or {"name": name}, config.get("plugins") or ()


def our_runners() -> dict[str, type[Runner]]:
    """Return the classes of lra's runners by name."""
    return {name: runner_class({"name": name}) for name in catalogue.our_names("runner")}


def _read_class_path(name: str) -> str:
    """Return the class path in the file of a runner of lra; raise UnknownName without a file."""
    if not (options := our_file(f"runner/{name}")):
        raise UnknownName(unknown("runner", name, names("runner")))
    return str(options["class_path"])
