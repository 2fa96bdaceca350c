"""From the name of a runner to its class, ours or one of a package of the user's own."""

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
"""Our packages that hold sections of reports."""
MODES = {"modes": "[{}]", "qk": "{}"}
"""Options of our runners that choose a mode, and how one mode is written."""


def runner_class(node: Mapping[str, Any], plugins: Sequence[str] = ()) -> type[Runner]:
    """Return the class of a runner.

    Args:
        node: The `runner` of a configuration; without a `class_path`, one of lra's own is meant.
        plugins: Packages of the user's own.

    Raises:
        UnknownName: There is no such runner; with near matches.
        ConfigError: The class is no runner.
    """
    class_path = str(node.get("class_path") or _class_path(str(node.get("name"))))
    # A sweep asks five times a cell. Packages of the user's own may change, ours do not.
    return _located(class_path, plugins) if plugins else _bundled_class(class_path)


@cache
def _bundled_class(class_path: str) -> type[Runner]:
    return _located(class_path, ())


def _located(class_path: str, plugins: Sequence[str]) -> type[Runner]:
    kind = locate(class_path, plugins)
    if not isinstance(kind, type) or not issubclass(kind, Runner):
        raise ConfigError(
            f"runner.class_path: {class_path} is not a runner; wanted a dataclass that derives "
            "from lra.runners.runner.Runner"
        )
    if isabstract(kind):
        raise ConfigError(
            f"runner.class_path: {class_path} has no method run(work), which yields the rows of "
            "a run"
        )
    for metric in (kind.outcome, *kind.tabled):
        if metric not in METRICS:
            raise ConfigError(
                f"runner.class_path: {class_path}: `outcome` and `tabled` are metrics of "
                f"runners/metrics.py: got {metric!r}; add a new metric as a line there; a "
                "runner of another "
                "package uses one that is there"
            )
    return kind


def runner_of(cell: Cell) -> type[Runner]:
    """Return the class of a cell's runner."""
    node = cell.config.get("runner") or {"name": cell.columns["runner"]}
    return runner_class(node, cell.config.get("plugins") or ())


def mode_word(cell: Cell) -> str:
    """Return the word of the command line that leads to a cell's mode; "" where nobody says.

    Of our own runners it is known by their options: to import one brings torch. One of a package
    that was not named here is taken for a runner as most are.
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
    """Return the metrics that come first in the table of each runner of the user's own.

    Args:
        cells: cell.json of each, by key. A runner whose package was not named, or is not here, is
            left out.
    """
    metrics: dict[str, tuple[str, ...]] = {}
    for name, node, plugins in _runners(cells):
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
    """Return what shows the rows of each runner whose file names a section, by the runner's name.

    Args:
        cells: cell.json of each, by key, for runners of the user's own. One whose package was not
            named is left out; of one whose section is not to be had, a sentence says why.
        config_dirs: Folders of the user's own choices, for rows without a cell.json.
        plugins: Packages that their runners may name.

    Raises:
        ConfigError: A section that one of the folders names is not to be had.
    """
    located: dict[str, SectionOf | str] = {}
    for file in choices("runner", config_dirs):
        if path := load(file).get("section"):
            located[file.stem] = _section(path, plugins)
    for name, node, packages in _runners(cells):
        if name not in located and node.get("section"):
            try:
                located[name] = _section(node["section"], packages)
            except NotNamed:
                continue
            except ConfigError as error:
                located[name] = str(error)
    return located


def check_section(path: str, plugins: Sequence[str]) -> None:
    """Raise ConfigError where no module has this path. Imports nothing but what it lies in."""
    check_place(path, plugins, REPORTS, asked := f"runner.section {path!r}")
    with suppress(ModuleNotFoundError):
        if find_spec(imported_name(path)) is not None:
            return
    raise ConfigError(f"{asked}: there is no such module")


def _section(path: str, plugins: Sequence[str]) -> "SectionOf":
    asked = f"runner.section {path!r}"
    section = getattr(locate_module(str(path), plugins, REPORTS, asked), "section", None)
    if not callable(section):
        raise ConfigError(
            f"{asked}: the module has no function `section`, from rows to the parts of a report"
        )
    return cast("SectionOf", section)


def _runners(
    cells: Mapping[str, Mapping[str, Any]],
) -> Iterator[tuple[str, Mapping[str, Any], Sequence[str]]]:
    """Yield name, node and plug-ins of each cell's runner."""
    for cell in cells.values():
        name, config = str(cell["columns"]["runner"]), cell["config"]
        yield name, config.get("runner") or {"name": name}, config.get("plugins") or ()


def our_runners() -> dict[str, type[Runner]]:
    """Return lra's own runners by name."""
    return {name: runner_class({"name": name}) for name in catalogue.our_names("runner")}


def _class_path(name: str) -> str:
    if not (options := our_file(f"runner/{name}")):
        raise UnknownName(unknown("runner", name, names("runner")))
    return str(options["class_path"])
