"""The report of a sweep that workers have completed, written once."""

import json
import time
from collections.abc import Callable, Collection
from contextlib import redirect_stdout
from typing import TextIO

from lra.cluster.plan import StoredPlan
from lra.composition.run import LoggerMode
from lra.conf.plain_files import read_json, typed
from lra.runners.storage.atomic import write_whole
from lra.runners.storage.claims import take
from lra.sweep.live import dashboard_folder, name_of

LOCK, DONE = ".reporting", "reported.json"
REPORT = "its report"
OTHERS_S = 60.0
"""For workers that have the runs of their last cells to end."""


def report_once(plan: StoredPlan, say: Callable[[str], None], out: TextIO) -> None:
    """Write the report of a complete sweep, where nobody has and nobody does.

    A fault of it is printed, and fails no worker: the rows are there, and `lra report` writes it.
    """
    planned_at = plan.head["made"]
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
            if typed(read_json(done), {})["plan"] == planned_at:
                return
        except (OSError, ValueError, KeyError):
            pass  # there is none
        what = " and ".join(_outputs(plan))
        say(f"the sweep is complete{f': writing {what}' if what else ''}")
        if not what:
            return
        begun = time.monotonic()
        try:
            _report(plan, out, _being_written(plan, say) if _logged(plan) else set())
            write_whole(done, json.dumps({"plan": planned_at}).encode())
        except Exception as error:  # noqa: BLE001  # see the docstring
            say(f"not written ({type(error).__name__}: {error}): lra report --sweep {plan.sweep}")
            return
        say(f"written: {what} ({time.monotonic() - begun:.0f} s)")


def _being_written(plan: StoredPlan, say: Callable[[str], None]) -> set[str]:
    """Wait for workers that still write the runs of their last cells; return what stays so."""
    from lra.reports.dashboard.state import being_written

    folder = dashboard_folder(plan.root, plan.logger)
    until, noted = time.monotonic() + OTHERS_S, False
    while (busy := being_written(folder, plan.sweep)) and time.monotonic() < until:
        if not noted:
            say(f"waiting for the runs of {len(busy):,} cells, which other workers write")
            noted = True
        time.sleep(0.5)
    if busy:
        say(f"the runs of {len(busy):,} cells are left to the workers that write them")
    return busy


def _outputs(plan: StoredPlan) -> list[str]:
    """Return what is written of a complete sweep."""
    report = [REPORT] if plan.head["report"]["write"] is not False else []
    return report + ([f"its runs for {name_of(plan.logger)}"] if _logged(plan) else [])


def _logged(plan: StoredPlan) -> bool:
    return plan.logger.mode is not LoggerMode.disabled


def _report(plan: StoredPlan, out: TextIO, busy: Collection[str]) -> None:
    from lra.results.finish import finish
    from lra.results.style import read_style

    choice = plan.head["report"]
    places = [place for place, entry in enumerate(plan.entries) if entry.key not in busy]
    sweep = plan.listed([plan.cell(place) for place in places])
    with redirect_stdout(out):
        finish(sweep, choice["write"], read_style(choice["style"])[0], multirun=True)
