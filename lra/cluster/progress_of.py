"""How far a sweep is: from its plan, its rows, its claims and what workers say of themselves."""

from pathlib import Path

from lra.cluster.plan import PlanEntry, StoredPlan
from runners.store import Store


def rows_file(plan: StoredPlan, entry: PlanEntry) -> Path:
    """Return the file of a cell's rows, present or not."""
    return Store(plan.root).cell_folder(entry.key) / f"rows-{entry.fingerprint}.jsonl"
