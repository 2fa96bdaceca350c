"""The report of a sweep that workers have completed, written once."""

import json
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import TextIO

from lra.cluster.plan import PlanTitles, StoredPlan
from lra.cluster.stored_planned import planned_at
from lra.sweep.cell_list import Sweep
from lra.sweep.planned import Planned
from runners.storage.atomic import write_whole
from runners.storage.claims import take

LOCK, DONE = ".reporting", "reported.json"
REPORT = "its report"


def report_once(plan: StoredPlan, say: Callable[[str], None], out: TextIO) -> None:
    """Write the report of a complete sweep, where nobody has and nobody does.

    A fault of it is said, and fails no worker: the rows are there, and `lra report` makes it again.
    """
    made = plan.head["made"]
    done = plan.folder / DONE
    try:
        claim = take(plan.folder / LOCK)
    except OSError as error:
        say(f"no report ({error.strerror}): lra report --sweep {plan.sweep}")
        return
    if claim is None:
        return
    with claim:
        try:
            if json.loads(done.read_bytes()).get("plan") == made:
                return
        except (OSError, ValueError, AttributeError, RecursionError):
            pass  # there is none
        what = " and ".join(_wanted(plan))
        say(f"the sweep is complete{f': writing {what}' if what else ''}")
        if not what:
            return
        begun = time.monotonic()
        try:
            _report(plan, out)
            write_whole(done, json.dumps({"plan": made}).encode())
        except Exception as error:  # noqa: BLE001  # as said above
            say(f"not written ({type(error).__name__}: {error}): lra report --sweep {plan.sweep}")
            return
        say(f"written: {what} ({time.monotonic() - begun:.0f} s)")


def _wanted(plan: StoredPlan) -> list[str]:
    """Return what is written of a complete sweep."""
    report = [REPORT] if plan.head["report"]["write"] is not False else []
    return report + (["its runs for W&B"] if plan.logger.for_wandb else [])


def _report(plan: StoredPlan, out: TextIO) -> None:
    from lra.commands.run import finish
    from lra.report_style import read_style

    choice = plan.head["report"]
    planned: list[Planned] = [planned_at(plan, place) for place in range(len(plan.entries))]
    sweep = Sweep(plan.sweep, plan.root, plan.control, plan.logger, planned, PlanTitles(plan))
    with redirect_stdout(out):
        finish(sweep, choice["write"], read_style(choice["style"])[0], multirun=True)
