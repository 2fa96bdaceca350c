"""The report of a sweep that workers have completed, written once."""

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
REPORT = "its report"


def report_once(
    plan: StoredPlan, logger: SweepLogger, say: Callable[[str], None], out: TextIO
) -> None:
    """Write the report of a complete sweep, where nobody has and nobody does.

    A fault of it is printed, and fails no worker: the rows are there, and `lra report` writes it.
    """
    try:
        claim = take_claim(plan.folder / LOCK)
    except OSError as error:
        say(f"no report ({error.strerror}): lra report --sweep {plan.sweep}")
        return
    if claim is None:
        return
    with claim:
        if not (what := lacking_report(plan)):
            return
        say(f"the sweep is complete: writing {what}")
        begun = time.monotonic()
        try:
            _report(plan, logger, out)
            write_whole(plan.folder / DONE, json.dumps({"plan": plan.head["made"]}).encode())
        except Exception as error:  # noqa: BLE001  # see the docstring
            say(f"not written ({type(error).__name__}: {error}): lra report --sweep {plan.sweep}")
            return
        say(f"written: {what} ({time.monotonic() - begun:.0f} s)")


def lacking_report(plan: StoredPlan) -> str:
    """Return what is to be written of a complete sweep, in words; "" where there is nothing."""
    with suppress(OSError, ValueError, KeyError):
        if typed_object(read_json(plan.folder / DONE), {})["plan"] == plan.head["made"]:
            return ""
    report = [REPORT] if plan.head["report"]["write"] is not False else []
    logged = plan.logger.mode is not LoggerMode.disabled
    return " and ".join(report + ([f"its runs for {name_of(plan.logger)}"] if logged else []))


def _report(plan: StoredPlan, logger: SweepLogger, out: TextIO) -> None:
    from lra.results.finish import finish, tell_runs  # pandas and matplotlib, at the end alone

    choice = plan.head["report"]
    sweep = plan.listed([plan.cell(place) for place in range(len(plan.entries))])
    logger.sweep = sweep
    with redirect_stdout(out):
        finish(sweep, choice["write"], read_style(choice["style"])[0], multirun=True)
        tell_runs(logger, ran=True)
