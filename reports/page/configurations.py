"""What a reader of the page may ask of one cell: its configuration, its command, its machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CellAccount:
    """What is known of one cell beside its rows."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """As resolved, or the options by dotted name."""
    command: str = ""
    """The line that computes the cell again; empty where none is known."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Packages and machine, by name."""
