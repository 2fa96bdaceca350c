"""The plan of a search, which whoever finds nothing to take extends by what follows of its rows."""

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
"""Seconds in which new cells are counted: a worker waits."""


class PlanGrowth:
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
            NotNamed: the search names a package that this worker's command does not.
        """
        seen = plan.version, frozenset(left)
        if not self.searched or seen == self._left:
            return False
        self._left = seen
        growing = GrowingSearch.stored(plan.root, plan.sweep)
        if growing is None:
            return False
        growing.kept = True
        try:
            sweep = growing.sweep()
        except NotNamed:
            raise
        except ConfigError as error:
            say(f"the search cannot continue: {error}")
            return False
        if all(cell.key in plan.places for cell in sweep.cells):
            for line in growing.said() if not left else ():
                say(line)
            return False
        # What somebody asked to try again was tried by now.
        sweep = replace(sweep, control=replace(sweep.control, retry=[]))
        enter(sweep.name, sweep.planned, sweep.store)
        new = [one for one in sweep.planned if one.cell.key not in plan.places]
        estimates = forecasts(new, sweep.store, sweep.name, COUNTED_S)
        pairs = [(one, held_forecast(guess, plan.groups)) for one, guess in estimates]
        more = {name: plan.head[name] for name in ("words", "report", "wait_s")}
        write(plan.root, sweep, pairs, groups=plan.groups, more=more, say=say)
        say(f"the search continues with {number_of(len(new), 'more run')}")
        return True


def held_forecast(guess: Forecast, groups: Sequence[WorkerGroup]) -> Forecast:
    """Return a forecast of a cell that some worker holds.

    They were sized by the stage before, which took less. A job at its limit saves, and is queued
    again.
    """
    seconds = [group.resources.seconds for group in groups]
    memory = [group.resources.memory_bytes for group in groups]
    longest = max((math.inf if each is None else each for each in seconds), default=math.inf)
    largest = max((math.inf if each is None else each for each in memory), default=math.inf)
    if guess.seconds is not None and guess.seconds > longest:
        guess = replace(guess, seconds=longest)
    if guess.whole_bytes is not None and guess.whole_bytes > largest:
        guess = replace(guess, need_bytes=int(largest), reference_need_bytes=None)
    return guess


def stage_lines(
    plan: StoredPlan, ended: Collection[int], running: Collection[str]
) -> Iterator[str]:
    """Yield how far each arm of a search is, stage by stage; of another sweep nothing.

    Args:
        plan: Of the sweep.
        ended: Places of cells that are complete.
        running: Keys of those that run.
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
    """Return when a cell of a search comes, and what it is part of."""
    if runner == "search":
        return sys.maxsize - 1, "choice"
    if options.get("tuned"):
        return sys.maxsize, "finals"
    until = options.get("until_step")
    return (until, f"rung of {until:,} steps") if until else (sys.maxsize - 2, "trials")
