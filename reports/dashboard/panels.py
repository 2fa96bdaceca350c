"""The parts of a dashboard, as plain data: sections of panels over the keys that runs carry."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum, auto
from typing import Any

from reports.dashboard.plan import Scalar


class Place(StrEnum):
    """Where a run carries a value."""

    history = auto()
    """A line over one of `keys.AXES`."""
    summary = auto()
    """One value."""
    config = auto()
    """One value that was chosen, not measured."""


class Form(StrEnum):
    """How a panel is drawn."""

    lines = auto()
    """History against an axis, both logarithmic where `log` says so."""
    scatter = auto()
    """One point for each run, or group of runs."""
    parallel = auto()
    """Parallel coordinates: one line for each run, one axis for each key."""
    bars = auto()
    """One bar for each run, or group of runs."""
    table = auto()
    """The tables that runs logged under one key, below each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A value that runs carry, and what is printed beside it."""

    place: Place
    name: str
    title: str
    log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture."""

    form: Form
    title: str
    values: tuple[Key, ...]
    """What is drawn: several lines or coordinates, one of any other form."""
    along: Key | None = None
    """The horizontal axis of lines and of a scatter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelSection:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...] = ()
    text: str = ""
    """Markdown above the panels; a report alone has it."""
    where: Mapping[str, Scalar] = field(default_factory=dict)
    """The configuration that the runs of a report's section share."""
    group_by: tuple[str, ...] = ()
    """Keys of the configuration by which the runs of a report's section become lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A workspace and a report over the same runs."""

    title: str
    sweep: str | None
    """Group of the runs that it shows; None: all of the project."""
    group_by: tuple[str, ...]
    """Keys of the configuration that make lines of the workspace's runs: those of one line differ
    in nothing but their seed."""
    columns: tuple[Key, ...]
    """First columns of the list of runs."""
    workspace: tuple[PanelSection, ...]
    report: tuple[PanelSection, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON for the process that makes W&B's specification of it."""
        return asdict(self)
