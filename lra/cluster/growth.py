"""The plan of a search, which whoever finds nothing to take extends by what follows of its rows."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from lra.cluster.plan import StoredPlan, results_of
from lra.cluster.planning import write
from lra.errors import ConfigError
from lra.search.growing import Growing
from lra.search.record import record_file
from lra.sweep.estimate import forecasts
from lra.sweep.planned import enter

COUNTED_S = 1.0
"""Seconds in which new cells are counted: a worker waits."""


class Growth:
    """What one worker knows of the search whose plan it works on; of other sweeps, nothing."""

    def __init__(self, folder: Path) -> None:
        root = results_of(folder)
        self.searched = record_file(root, folder.name).is_file()
        self._left: tuple[str, frozenset[int]] | None = None

    def extend(self, plan: StoredPlan, left: Sequence[int], say: Callable[[str], None]) -> bool:
        """Add the cells that are known by now to the plan; return whether there were any.

        Two workers that do it at once write the same.

        Args:
            plan: As it was read last.
            left: Places of its cells that are not complete: where they are those of the call
                before, nothing new can follow.
            say: Gets what is to be said.

        Raises:
            BadPlan: another process has been writing it for long.
        """
        seen = plan.version, frozenset(left)
        if not self.searched or seen == self._left:
            return False
        self._left = seen
        growing = Growing.stored(plan.root, plan.sweep)
        if growing is None:
            return False
        try:
            sweep = growing.sweep()
        except ConfigError as error:
            say(f"the search cannot go on: {error}")
            return False
        if all(cell.key in plan.places for cell in sweep.cells):
            for line in growing.said() if not left else ():
                say(line)
            return False
        # What somebody asked to try again was tried by now.
        sweep = replace(sweep, control=replace(sweep.control, retry=[]))
        enter(sweep.name, sweep.planned, sweep.store)
        new = [one for one in sweep.planned if one.cell.key not in plan.places]
        pairs = forecasts(new, sweep.store, sweep.name, COUNTED_S)
        more = {name: plan.head[name] for name in ("words", "report", "wait_s")}
        write(plan.root, sweep, pairs, groups=plan.groups, more=more, say=say)
        say(f"the search goes on: {len(new):,} more cells")
        return True
