"""Writes the report of a sweep that workers have completed, once."""

import json
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from typing import TextIO

from lra.cluster.plan import StoredPlan
from lra.composition.run import LoggerMode
from lra.conf.plain_files import read_json, typed_object
from lra.results.style import read_style
from lra.runners.storage.atomic import write_whole
from lra.runners.storage.claims import take_claim
from lra.sweep.sweep_logger import SweepLogger, name_of

LOCK, DONE = ".reporting", "reported.json"
REPORT = "the report"


def report_once(
    plan: StoredPlan, logger: SweepLogger, say: Callable[[str], None], out: TextIO
) -> None:
    """Write the report of a complete sweep, unless it is written or another worker writes it.

    An error is only logged, because the rows are stored and `lra report` can write the report.
    """
    try:
        claim = take_claim(plan.folder / LOCK)
    except OSError as error:
        say(f"the report fails ({error.strerror}): type lra report --sweep {plan.sweep}")
        return
    if claim is None:
        return
    with claim:
        if not (lacking := lacking_report(plan)):
            return
        say(f"the sweep is complete, and this worker writes {lacking}")
        begun = time.monotonic()
        try:
            _write_report(plan, logger, out)
            write_whole(plan.folder / DONE, json.dumps({"plan": plan.head["made"]}).encode())
        except Exception as error:  # noqa: BLE001  # see the docstring
            reason = f"{type(error).__name__}: {error}"
            say(f"the report fails ({reason}): type lra report --sweep {plan.sweep}")
            return
        say(f"this worker has written {lacking} ({time.monotonic() - begun:.0f} s)")


def lacking_report(plan: StoredPlan) -> str:
    """Return in words what is not yet written of a complete sweep; "" if everything is.

    The file `DONE` names the plan, by its time, of which everything was written.
    """
    with suppress(OSError, ValueError, KeyError):
        if typed_object(read_json(plan.folder / DONE), {})["plan"] == plan.head["made"]:
            return ""
    report = [REPORT] if plan.head["report"]["write"] is not False else []
    logged = plan.logger.mode is not LoggerMode.disabled
    return " and ".join(report + ([f"the runs for {name_of(plan.logger)}"] if logged else []))


def _write_report(plan: StoredPlan, logger: SweepLogger, out: TextIO) -> None:
    """Write the report and the runs of the dashboard; print the conclusions to `out`."""
    from lra.results.finish import finish, tell_runs  # pandas and matplotlib, at the end alone

    choice = plan.head["report"]
    sweep = plan.listed([plan.cell(place) for place in range(len(plan.entries))])
    logger.sweep = sweep
    style, _ = read_style(choice["style"])  # `lra submit` has printed the remarks on it
    with redirect_stdout(out):
        finish(sweep, choice["write"], style, multirun=True)
        tell_runs(logger, ran=True)
