"""`lra plan`: the time and memory that a command of `lra run` would take, run by run."""

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from lra.composition.arguments import add_plugin, parser_beside_words, path_word
from lra.conf.short_values import number_of
from lra.errors import ConfigError

if TYPE_CHECKING:
    from lra.sweep.forecast import Forecast
    from lra.sweep.sweep import PlannedCell, Sweep

SCHEMA = 2
"""Of what `--json` prints."""
HOUR, GIB = 3600.0, 2**30
USAGE = """lra plan [-m] [GROUP=NAME ...] [+experiment=NAME] [KEY=VALUE ...]
       lra plan --against RESULTS"""
ABOUT = """\
Forecast the steps, hours, GPU-hours and memory of every run of a command, before you start it. Give
it the arguments of `lra run`. This command counts operations; it starts no run and writes no file.
"""
EXAMPLES = """\
examples:
  lra plan +experiment=quickstart                            how long will it take here?
  lra plan -m model=all task=listops hardware=h100           the same for another machine
  lra plan model=softmax task=text optim.micro_batch_size=4  does a smaller batch fit?
  lra plan --against results                                 how good are the forecasts?

The forecast counts operations, bytes and peak memory, and divides them by the speed of the machine.
`lra doctor --rates` measures that speed; without it, typical values are used. If the results folder
has similar runs, the forecast is corrected by the time that they took.
"""
COLUMNS = (
    "cell", "runner", "mode", "model", "task", "protocol", "length", "seeds", "options", "done",
    "steps", "step_s", "hours", "hours_to_do", "gpu_hours_to_do", "parameters", "need_bytes",
    "room_bytes", "fits", "reference", "reference_need_bytes", "reference_fits", "basis",
    "correction", "reason",
)  # fmt: skip
"""Of `--csv`, and of the cells of `--json`."""


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra plan`; its other words are those of `lra run`."""
    args = parser_beside_words("lra plan", USAGE, ABOUT, EXAMPLES)
    args.add_argument("--json", action="store_true", help="print one JSON object")
    args.add_argument("--csv", action="store_true", help="print a line of CSV for each run")
    args.add_argument(
        "--against", type=path_word, metavar="RESULTS",
        help="compare the stored runs of a results folder with their uncorrected forecasts",
    )  # fmt: skip
    add_plugin(args, "your package, if stored runs use it")
    return args


def main(argv: list[str]) -> int:
    """Print the plan of the words after `lra plan`."""
    flags, words = parser().parse_known_args(argv)
    if flags.json and flags.csv:
        raise ConfigError("got --json and --csv: give one of them")
    if flags.against is not None:
        from lra.results.against import against

        if words:
            raise ConfigError(f"--against reads every stored run: remove {' '.join(words)}")
        return against(flags.against, as_json=flags.json, as_csv=flags.csv)
    return _plan(words, as_json=flags.json, as_csv=flags.csv)


def _plan(words: list[str], *, as_json: bool, as_csv: bool) -> int:
    from lra.composition.hydra_entry import entries
    from lra.sweep.costs import Costs
    from lra.sweep.forecast import Forecaster
    from lra.sweep.kept_counts import KeptCounts
    from lra.sweep.overview import unprepared_tasks
    from lra.sweep.past import past_cells
    from lra.sweep.planned_cells import not_done
    from lra.tuning.sweep_plan import plan_sweep

    configurations = entries(words)
    if not configurations:
        return 0  # Hydra printed a configuration or its help
    sweep, growing = plan_sweep(configurations, elsewhere=True)
    past = [*past_cells(sweep.planned, sweep.store, sweep.name)]
    waiting = not_done(sweep.planned, sweep.store)
    forecaster = Forecaster(past, Costs(kept=KeptCounts()), together=waiting)
    lines = [*_forecast_lines(sweep, waiting, forecaster)]
    forecaster.costs.keep()
    totals = _totals(sweep, waiting, lines, forecaster)
    totals["total"]["later"] = growing.step.later if growing else 0
    if as_json:
        print(json.dumps({"schema": SCHEMA, **totals, "cells": lines}, indent=1))
    elif as_csv:
        _write_csv(lines)
    else:
        _print(lines, totals)
        for line in (*unprepared_tasks(waiting), *(growing.warned() if growing else ())):
            print(line)
    return 0


def _forecast_lines(
    sweep: "Sweep", waiting: "Sequence[PlannedCell]", forecaster: Any
) -> Iterable[dict[str, Any]]:
    """Yield the forecasts of the cells, those that differ in the seed alone together."""
    left = {planned.cell.key for planned in waiting}
    groups: dict[str, list[PlannedCell]] = {}
    for planned in sweep.planned:
        cell = planned.cell
        columns = {k: v for k, v in cell.columns.items() if k != "seed"}
        shape = {k: v for k, v in cell.described.items() if k not in ("seed", "trainings")}
        groups.setdefault(repr((columns, shape)), []).append(planned)
    for group in groups.values():
        to_do = [planned for planned in group if planned.cell.key in left]
        forecast = forecaster.of((to_do or group)[0])
        yield _forecast_line(group, len(group) - len(to_do), forecast, sweep)


def _forecast_line(
    group: "Sequence[PlannedCell]", complete: int, forecast: "Forecast", sweep: "Sweep"
) -> dict[str, Any]:
    from lra.runners.measurement.hardware import Device
    from lra.sweep.titles import title

    first, left = group[0], len(group) - complete
    columns, seconds = first.cell.columns, forecast.seconds
    hours = None if seconds is None else seconds / HOUR
    to_do = 0.0 if not left else None if hours is None else left * hours
    gpu = first.run.hardware.device is Device.cuda
    named = sweep.titles[first.cell.key].removeprefix(title(first.cell)).lstrip(", ")
    return {
        "cell": first.cell.key,
        **{name: columns[name] for name in ("runner", "mode", "model", "task")},
        "protocol": str(first.run.config["protocol"]),
        "length": columns["length"],
        "seeds": [planned.run.seed for planned in group],
        "options": named,
        "done": complete,
        "steps": forecast.steps,
        "step_s": forecast.step_s,
        "hours": hours,
        "hours_to_do": to_do,
        "gpu_hours_to_do": to_do if gpu else 0.0,
        **{name: getattr(forecast, name) for name in COLUMNS[COLUMNS.index("parameters") :]},
    }


def _totals(
    sweep: "Sweep", waiting: "Sequence[PlannedCell]", lines: list[dict[str, Any]], forecaster: Any
) -> dict[str, Any]:
    from lra.sweep.estimate import elapsed_s

    pairs = [(planned, forecaster.of(planned)) for planned in waiting]
    timed = [pair for pair in pairs if pair[1].seconds is not None]
    machines = [
        {"hardware": hardware.name, "measured": machine.measured}
        for hardware, machine in forecaster.seen()
    ]
    return {
        "sweep": sweep.name,
        "results": str(sweep.root),
        "machines": machines,
        "total": {
            "cells": len(sweep.planned),
            "done": len(sweep.planned) - len(waiting),
            "to_do": len(waiting),
            "unknown": len(pairs) - len(timed),
            "does_not_fit": sum(guess.fits is False for _, guess in pairs),
            "reference_does_not_fit": sum(guess.reference_fits is False for _, guess in pairs),
            "cell_hours": sum(guess.seconds or 0.0 for _, guess in timed) / HOUR,
            "hours": elapsed_s(timed) / HOUR,
            "gpu_hours": sum(line["gpu_hours_to_do"] or 0.0 for line in lines),
        },
    }


def _write_csv(lines: list[dict[str, Any]]) -> None:
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        seeds = " ".join(map(str, line["seeds"]))
        writer.writerow({**{k: "" if v is None else v for k, v in line.items()}, "seeds": seeds})


def _print(lines: list[dict[str, Any]], totals: dict[str, Any]) -> None:
    """Print a table, what needs a word, and the totals."""
    notes = [*dict.fromkeys(line["reason"] for line in lines if line["reason"])]
    if lines:
        _print_table(lines, notes)
    if notes:
        print()
    for number, note in enumerate(notes, 1):
        print(f"[{number}] {note}")
    print()
    for sentence in _sentences(totals, lines):
        print(sentence)


FITS = {True: "yes", False: "NO", None: "?"}


def _gib(size: float | None) -> str:
    return "?" if size is None else f"{size / GIB:.2f} GiB"


def _print_table(lines: list[dict[str, Any]], notes: Sequence[str]) -> None:
    """Print the columns that tell anything."""
    from lra.composition.task_name import NONE
    from lra.terminal.console import print_table
    from lra.terminal.screen import flush_right

    rows = [_entries(line, notes) for line in lines]
    absent = {
        *(["protocol"] if all(line["protocol"] == NONE for line in lines) else []),
        *(["runner"] if len({line["runner"] for line in lines}) < 2 else []),
        *([] if any(line["gpu_hours_to_do"] for line in lines) else ["GPU-h"]),
        *([] if any(line["reference"] for line in lines) else OF_REFERENCES),
    }
    head = [title for title in rows[0] if title not in absent]
    words = {column for column, title in enumerate(head) if title in LEFT}
    table = [head, *([row[title] for title in head] for row in rows)]
    print_table(flush_right(table, but=words), indent="", header=True)


def _entries(line: dict[str, Any], notes: Sequence[str]) -> dict[str, str]:
    """Return what stands in a line of the table, by the titles of the columns."""
    beside = line["reference"]
    return {
        **{title: str(line[title]) for title in ("model", "task", "protocol", "runner", "mode")},
        "length": f"{line['length']:,}",
        "seeds": str(len(line["seeds"])),
        "done": str(line["done"]),
        "steps": "" if line["steps"] is None else f"{line['steps']:,}",
        "step": _short_time(line["step_s"], 1.0),
        "each": _short_time(line["hours"], HOUR),
        "to do": _short_time(line["hours_to_do"], HOUR),
        "GPU-h": f"{line['gpu_hours_to_do'] or 0.0:.2f}",
        "parameters": "?" if line["parameters"] is None else f"{line['parameters']:,}",
        "limit": _gib(line["room_bytes"]),
        "memory": _gib(line["need_bytes"]),
        "fits": FITS[line["fits"]],
        "reference": beside,
        "its memory": _gib(line["reference_need_bytes"]) if beside else "",
        "it fits": FITS[line["reference_fits"]] if beside else "",
        "options": line["options"]
        + (f" [{notes.index(line['reason']) + 1}]" if line["reason"] else ""),
    }


OF_REFERENCES = ("reference", "its memory", "it fits")
LEFT = frozenset({"model", "task", "protocol", "runner", "mode", "reference", "options"})
"""Columns of words."""


def _short_time(number: float | None, unit_s: float) -> str:
    """Return a time of any size in a few letters."""
    if number is None:
        return "?"
    seconds = number * unit_s
    if seconds <= 0:
        return "-"
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= size * (1 if unit == "s" else 1.5):
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds * 1e3:.3g} ms"


def _sentences(totals: dict[str, Any], lines: list[dict[str, Any]]) -> Iterable[str]:
    total = totals["total"]
    runs = "1 run" if total["cells"] == 1 else f"{total['cells']} runs"
    takes, in_turn = (_short_time(total[name], HOUR) for name in ("hours", "cell_hours"))
    yield (
        f"{runs} in {totals['results']}: {total['done']} done, {total['to_do']} to do"
        + (f", {takes}" if total["hours"] else "")
        + (f", {total['gpu_hours']:.2f} GPU-hours" if total["gpu_hours"] else "")
        + (f" ({in_turn} one after the other)" if in_turn != takes else "")
    )
    if total["later"]:
        later = number_of(total["later"], "more run")
        yield f"{later} will start after these have been compared on validation data"
    if total["unknown"]:
        yield (
            f"the time of {number_of(total['unknown'], 'run')} is unknown, and missing from the sum"
        )
    if total["does_not_fit"]:
        yield (
            f"too little memory for {number_of(total['does_not_fit'], 'run')}: set "
            "optim.micro_batch_size=N or model.backbone.activation_checkpointing=true"
        )
    if total["reference_does_not_fit"]:
        runs = number_of(total["reference_does_not_fit"], "run")
        yield (
            f"in {runs}, the reference needs more memory than there is: "
            "runner.reference_max_length.NAME=N is the longest length at which it is measured"
        )
    machines = [(machine["hardware"], machine["measured"]) for machine in totals["machines"]]
    for hardware, measured in dict.fromkeys(machines):
        rates = "measured by `lra doctor --rates`" if measured else (
            "typical values of conf/hardware; `lra doctor --rates` measures those of a machine"
        )  # fmt: skip
        yield f"speed of hardware={hardware}: {rates}"
    corrected = [line["correction"] for line in lines if line["basis"] == "corrected"]
    if corrected:
        factors = dict.fromkeys(f"{factor:.2f}" for factor in (min(corrected), max(corrected)))
        yield f"forecasts were multiplied by {' to '.join(factors)}, as stored runs suggest"
    yield "the time to prepare data is extra"
