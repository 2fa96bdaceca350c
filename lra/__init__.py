"""Long-sequence models, compared: train, measure and report from Python as from the command line.

    import lra

    rows = lra.rows("results", sweep="quickstart")  # measured numbers, as a pandas frame
    lra.table(rows, "accuracy")
    lra.figure(rows, "time")

`import lra` takes milliseconds: torch and pandas are loaded when a function first needs them.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lra.api.building import model, task
    from lra.api.choosing import choose
    from lra.api.comparing import ComparisonTable, compare
    from lra.api.drawing import figure
    from lra.api.prepared_rows import LeftOutOfStyle
    from lra.api.reporting import report
    from lra.api.results import DamagedCell, rows
    from lra.api.running import CompletedSweep, run
    from lra.api.searching import Search, search
    from lra.api.tabling import ResultTable, table
    from lra.api.verifying import Findings, verify
    from lra.errors import ConfigError
    from lra.models.backbone.model import Backbone
    from lra.models.contract.case import Finding
    from lra.models.wrap import wrap
    from lra.runners.records import Row, Status
    from lra.runners.store import BadStore, MixedSources
    from lra.tasks.errors import BadData, NotPrepared
    from lra.tasks.task import Task

__all__ = [
    "Backbone", "BadData", "BadStore", "ComparisonTable", "CompletedSweep", "ConfigError",
    "DamagedCell", "Finding", "Findings", "LeftOutOfStyle", "MixedSources", "NotPrepared",
    "ResultTable", "Row", "Search", "Status", "Task", "choose", "compare", "figure", "model",
    "report", "rows", "run", "search", "table", "task", "verify", "wrap",
]  # fmt: skip

_MODULES = {
    "choose": "lra.api.choosing", "compare": "lra.api.comparing", "figure": "lra.api.drawing",
    "model": "lra.api.building", "report": "lra.api.reporting", "rows": "lra.api.results",
    "run": "lra.api.running", "search": "lra.api.searching", "table": "lra.api.tabling",
    "task": "lra.api.building", "verify": "lra.api.verifying", "wrap": "lra.models.wrap",
    # What these return.
    "Backbone": "lra.models.backbone.model", "ComparisonTable": "lra.api.comparing",
    "CompletedSweep": "lra.api.running", "Finding": "lra.models.contract.case",
    "Findings": "lra.api.verifying", "ResultTable": "lra.api.tabling",
    "Row": "lra.runners.records", "Search": "lra.api.searching", "Status": "lra.runners.records",
    "Task": "lra.tasks.task",
    # What they raise, and the categories of their warnings.
    "BadData": "lra.tasks.errors", "BadStore": "lra.runners.store", "ConfigError": "lra.errors",
    "NotPrepared": "lra.tasks.errors", "DamagedCell": "lra.api.results",
    "LeftOutOfStyle": "lra.api.prepared_rows", "MixedSources": "lra.runners.store",
}  # fmt: skip

_HERE = Path(__file__).parent
if not (_HERE / "models").is_dir():  # in a clone, the other folders are next to this one
    __path__.append(str(_HERE.parent))


if not TYPE_CHECKING:  # a type checker would accept every name because of __getattr__

    def __getattr__(name: str) -> Any:
        """Import a public name at its first use (Python calls this for an unknown attribute)."""
        if name == "__version__":
            return import_module("lra.version").lra_version()
        if name not in _MODULES:
            raise AttributeError(
                f"module 'lra' has no attribute {name!r}; it has {', '.join(__all__)}"
            )
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return all public names, whether or not they have been imported yet."""
    return sorted({*globals(), *__all__})
