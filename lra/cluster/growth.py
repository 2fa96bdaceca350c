"""Extends the plan of a search: a worker without work adds the cells that follow from its rows."""

import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lra.cluster.engine import WorkerGroup
from lra.cluster.plan import StoredPlan, results_of
from lra.cluster.planning import write
from lra.composition.class_path import NotNamed
from lra.conf.short_values import number_of
from lra.errors import ConfigError
from lra.sweep.baselines import RUNNER as BASELINES
from lra.sweep.estimate import forecasts
from lra.sweep.forecast import Forecast
from lra.sweep.planned_cells import enter
from lra.tuning.growing_search import GrowingSearch
from lra.tuning.record import record_file

COUNTED_S = 1.0
"""Seconds for counting new cells, as a worker waits meanwhile."""


class PlanGrowth:
    """Extends the plan of a search for one worker. It does nothing for sweeps without a search."""

    def __init__(self, folder: Path) -> None:
        """Take the folder of a plan; its sweep is searched if the results have its record."""
        root = results_of(folder)
        self.searched = record_file(root, folder.name).is_file()
        self._left: tuple[str, frozenset[int]] | None = None

    def extend(self, plan: StoredPlan, left: Sequence[int], say: Callable[[str], None]) -> bool:
        """Add cells to the plan whose options are known now; return whether there were any.

        Two workers may do this at the same time, because both write the same.

        Args:
            plan: The plan as it was read last.
            left: Places of its cells that are not complete. If they are the same as in the last
                call, nothing is done, as nothing new can follow.
            say: Gets sentences for the log.

        Raises:
            BadPlan: another process has been writing it for long.
            NotNamed: the search names a package that this worker's command does not.
        """
        state = plan.version, frozenset(left)
        if not self.searched or state == self._left:
            return False
        self._left = state
        growing = GrowingSearch.stored(plan.root, plan.sweep)
        if growing is None:
            return False
        growing.kept = True  # `lra submit` has stored the record: changes are stored, too
        try:
            sweep = growing.sweep()
        except NotNamed:
            raise
        except ConfigError as error:
            say(f"the search cannot continue: {error}")
            return False
        if all(cell.key in plan.places for cell in sweep.cells):
            for line in growing.said() if not left else ():  # the search has ended
                say(line)
            return False
        # Failures that `runner.retry` names have been repeated before, and must not be again.
        sweep = replace(sweep, control=replace(sweep.control, retry=[]))
        enter(sweep.name, sweep.planned, sweep.store)
        new = [planned for planned in sweep.planned if planned.cell.key not in plan.places]
        estimates = forecasts(new, sweep.store, sweep.name, COUNTED_S)
        pairs = [(planned, held_forecast(guess, plan.groups)) for planned, guess in estimates]
        head_entries = {name: plan.head[name] for name in ("words", "report", "wait_s")}
        write(plan.root, sweep, pairs, groups=plan.groups, more=head_entries, say=say)
        say(f"the search continues with {number_of(len(new), 'more run')}")
        return True


def held_forecast(guess: Forecast, groups: Sequence[WorkerGroup]) -> Forecast:
    """Return a forecast with time and memory reduced to those of the largest worker.

    The workers were sized for earlier, smaller cells. A worker that reaches its time limit saves
    the cell, and its job is queued again.
    """
    seconds = [group.resources.seconds for group in groups]
    memory = [group.resources.memory_bytes for group in groups]
    longest = max((math.inf if limit is None else limit for limit in seconds), default=math.inf)
    largest = max((math.inf if limit is None else limit for limit in memory), default=math.inf)
    if guess.seconds is not None and guess.seconds > longest:
        guess = replace(guess, seconds=longest)
    if guess.whole_bytes is not None and guess.whole_bytes > largest:
        guess = replace(guess, need_bytes=int(largest), reference_need_bytes=None)
    return guess


def stage_lines(
    plan: StoredPlan, ended: Collection[int], running: Collection[str]
) -> Iterator[str]:
    """Yield for each arm of a search how many cells of each stage are done; else yield nothing.

    Args:
        plan: The plan of the sweep.
        ended: Places of the cells that are complete.
        running: Keys of the cells that run.
    """
    if not record_file(plan.root, plan.sweep).is_file():
        return
    arms: dict[str, dict[tuple[int, str], Counter[str]]] = {}
    for place, entry in enumerate(plan.entries):
        if entry.runner == BASELINES:
            continue
        config = plan.record(place)["config"]
        arm = f"{config['model']['name']} on {config['task']['name']}"
        state = "done" if place in ended else "running" if entry.key in running else "to do"
        stages = arms.setdefault(arm, {})
        stages.setdefault(_stage(entry.runner, config["runner"]), Counter())[state] += 1
    for arm, stages in arms.items():
        counted = [
            f"{name} {counts['done']:,} of {counts.total():,} done"
            + (f" ({counts['running']:,} running)" if counts["running"] else "")
            for (_, name), counts in sorted(stages.items())
        ]
        yield f"{arm}: {', '.join(counted)}"


def _stage(runner: str, options: Mapping[str, Any]) -> tuple[int, str]:
    """Return a number that sorts the stages of a search, and the name of a cell's stage.

    Rungs are sorted by their steps; whole trials, the choice and the final trainings come last.
    """
    if runner == "search":
        return sys.maxsize - 1, "choice"
    if options.get("tuned"):
        return sys.maxsize, "finals"
    until = options.get("until_step")
    return (until, f"rung of {until:,} steps") if until else (sys.maxsize - 2, "trials")
