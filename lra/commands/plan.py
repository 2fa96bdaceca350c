"""`lra plan`: forecast the time and memory of each run of a command before it is started."""

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
"""The version of the JSON that `--json` prints."""
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
  lra plan -m model=all task=listops hardware=h100           how long would it take on an H100?
  lra plan model=softmax task=text optim.micro_batch_size=4  does a smaller batch fit?
  lra plan --against results                                 how good are the forecasts?

The forecast time is the number of operations and bytes divided by the speed of the machine.
`lra doctor --rates` measures that speed; without it, lra uses typical values. If the results folder
has similar runs, lra corrects the forecast by the time that these runs took.
"""
COLUMNS = (
    "cell", "runner", "mode", "model", "task", "protocol", "length", "seeds", "options", "done",
    "steps", "step_s", "hours", "hours_to_do", "gpu_hours_to_do", "parameters", "need_bytes",
    "room_bytes", "fits", "reference", "reference_need_bytes", "reference_fits", "basis",
    "correction", "reason",
)  # fmt: skip
"""The columns of `--csv`, which are also the keys of each run in `--json`."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of `lra plan`, which leaves arguments of `lra run` unparsed."""
    args = parser_beside_words("lra plan", USAGE, ABOUT, EXAMPLES)
    args.add_argument("--json", action="store_true", help="print one JSON object")
    args.add_argument("--csv", action="store_true", help="print CSV, with one line for each run")
    args.add_argument(
        "--against", type=path_word, metavar="RESULTS",
        help="compare how long the stored runs of a results folder took with their forecasts, "
        "which are uncorrected here",
    )  # fmt: skip
    add_plugin(args, "name of your package, if stored runs use it")
    return args


def main(argv: list[str]) -> int:
    """Print the plan that the arguments `argv` ask for; return the exit code."""
    flags, words = parser().parse_known_args(argv)
    if flags.json and flags.csv:
        raise ConfigError("got both --json and --csv; give only one of them")
    if flags.against is not None:
        from lra.results.against import against

        if words:
            raise ConfigError(
                "--against reads every stored run, so it takes no arguments of `lra run`; remove "
                f"{' '.join(words)}"
            )
        return against(flags.against, as_json=flags.json, as_csv=flags.csv)
    return _print_plan(words, as_json=flags.json, as_csv=flags.csv)


def _print_plan(words: list[str], *, as_json: bool, as_csv: bool) -> int:
    """Print the forecasts of a command, given by its arguments `words`; return the exit code."""
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
    totals = _sum_forecasts(sweep, waiting, lines, forecaster)
    # A search starts more runs once it has compared these.
    totals["total"]["later"] = growing.step.later if growing else 0
    if as_json:
        print(json.dumps({"schema": SCHEMA, **totals, "cells": lines}, indent=1))
    elif as_csv:
        _write_csv(lines)
    else:
        _print_text(lines, totals)
        for line in (*unprepared_tasks(waiting), *(growing.warned() if growing else ())):
            print(line)
    return 0


def _forecast_lines(
    sweep: "Sweep", waiting: "Sequence[PlannedCell]", forecaster: Any
) -> Iterable[dict[str, Any]]:
    """Yield a forecast for each group of runs that differ only in the seed.

    Args:
        sweep: All runs of the command.
        waiting: The runs that are not finished.
        forecaster: An `lra.sweep.forecast.Forecaster`.
    """
    waiting_keys = {planned.cell.key for planned in waiting}
    groups: dict[str, list[PlannedCell]] = {}
    for planned in sweep.planned:
        cell = planned.cell
        columns = {k: v for k, v in cell.columns.items() if k != "seed"}
        shape = {k: v for k, v in cell.described.items() if k not in ("seed", "trainings")}
        groups.setdefault(repr((columns, shape)), []).append(planned)
    for group in groups.values():
        to_do = [planned for planned in group if planned.cell.key in waiting_keys]
        forecast = forecaster.of((to_do or group)[0])  # the others have the same one
        yield _make_forecast_line(group, len(group) - len(to_do), forecast, sweep)


def _make_forecast_line(
    group: "Sequence[PlannedCell]", complete: int, forecast: "Forecast", sweep: "Sweep"
) -> dict[str, Any]:
    """Return the values of `COLUMNS` for runs that differ only in the seed.

    Args:
        group: The runs.
        complete: How many of them are finished.
        forecast: The time and memory of one of them.
        sweep: All runs of the command.
    """
    from lra.runners.measurement.hardware import Device
    from lra.sweep.titles import title

    first, runs_left = group[0], len(group) - complete
    columns, seconds = first.cell.columns, forecast.seconds
    hours = None if seconds is None else seconds / HOUR
    # None: the time of the runs that are left is unknown.
    hours_to_do = 0.0 if not runs_left else None if hours is None else runs_left * hours
    on_gpu = first.run.hardware.device is Device.cuda
    # The title of a run in its sweep is the general title, then the options that differ.
    options = sweep.titles[first.cell.key].removeprefix(title(first.cell)).lstrip(", ")
    return {
        "cell": first.cell.key,
        **{name: columns[name] for name in ("runner", "mode", "model", "task")},
        "protocol": str(first.run.config["protocol"]),
        "length": columns["length"],
        "seeds": [planned.run.seed for planned in group],
        "options": options,
        "done": complete,
        "steps": forecast.steps,
        "step_s": forecast.step_s,
        "hours": hours,
        "hours_to_do": hours_to_do,
        "gpu_hours_to_do": hours_to_do if on_gpu else 0.0,
        **{name: getattr(forecast, name) for name in COLUMNS[COLUMNS.index("parameters") :]},
    }


def _sum_forecasts(
    sweep: "Sweep", waiting: "Sequence[PlannedCell]", lines: list[dict[str, Any]], forecaster: Any
) -> dict[str, Any]:
    """Return the sums over the runs that are not finished, and the speeds that were assumed.

    Args:
        sweep: All runs of the command.
        waiting: The runs that are not finished.
        lines: What `_forecast_lines` yields.
        forecaster: An `lra.sweep.forecast.Forecaster`.
    """
    from lra.sweep.estimate import elapsed_s

    pairs = [(planned, forecaster.of(planned)) for planned in waiting]
    timed = [(planned, guess) for planned, guess in pairs if guess.seconds is not None]
    machines = [
        {"hardware": hardware.name, "measured": machine.measured, "kernels": hardware.kernels}
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
    """Print the forecasts as CSV, with seeds separated by blanks and None as an empty field."""
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in lines:
        seeds = " ".join(map(str, line["seeds"]))
        writer.writerow({**{k: "" if v is None else v for k, v in line.items()}, "seeds": seeds})


def _print_text(lines: list[dict[str, Any]], totals: dict[str, Any]) -> None:
    """Print the table of forecasts, its numbered notes, and the totals."""
    notes = [*dict.fromkeys(line["reason"] for line in lines if line["reason"])]
    if lines:
        _print_table(lines, notes)
    if notes:
        print()
    for number, note in enumerate(notes, 1):
        print(f"[{number}] {note}")
    print()
    for sentence in _describe_totals(totals, lines):
        print(sentence)


FITS = {True: "yes", False: "NO", None: "?"}


def _format_gib(size: float | None) -> str:
    """Return a number of bytes in GiB; "?" for None."""
    return "?" if size is None else f"{size / GIB:.2f} GiB"


def _print_table(lines: list[dict[str, Any]], notes: Sequence[str]) -> None:
    """Print the table of forecasts without the columns that say nothing about these runs."""
    from lra.composition.task_name import NONE
    from lra.terminal.console import print_table
    from lra.terminal.screen import flush_right

    rows = [_format_entries(line, notes) for line in lines]
    absent = {
        *(["protocol"] if all(line["protocol"] == NONE for line in lines) else []),
        *(["runner"] if len({line["runner"] for line in lines}) < 2 else []),
        *([] if any(line["gpu_hours_to_do"] for line in lines) else ["GPU-h"]),
        *([] if any(line["reference"] for line in lines) else OF_REFERENCES),
    }
    head = [title for title in rows[0] if title not in absent]
    text_columns = {column for column, title in enumerate(head) if title in LEFT}
    table = [head, *([row[title] for title in head] for row in rows)]
    print_table(flush_right(table, but=text_columns), indent="", header=True)


def _format_entries(line: dict[str, Any], notes: Sequence[str]) -> dict[str, str]:
    """Return the printed entries of one line of the table by the title of the column.

    Args:
        line: A dictionary with the keys `COLUMNS`.
        notes: The reasons printed below the table; the entry has the number of its reason.
    """
    reference = line["reference"]
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
        "limit": _format_gib(line["room_bytes"]),
        "memory": _format_gib(line["need_bytes"]),
        "fits": FITS[line["fits"]],
        "reference": reference,
        "its memory": _format_gib(line["reference_need_bytes"]) if reference else "",
        "it fits": FITS[line["reference_fits"]] if reference else "",
        "options": line["options"]
        + (f" [{notes.index(line['reason']) + 1}]" if line["reason"] else ""),
    }


OF_REFERENCES = ("reference", "its memory", "it fits")
LEFT = frozenset({"model", "task", "protocol", "runner", "mode", "reference", "options"})
"""The columns that contain text, and are therefore flush left."""


def _short_time(number: float | None, unit_s: float) -> str:
    """Return `number` times `unit_s` seconds as a short text, such as 1.2 h or 35 ms."""
    if number is None:
        return "?"
    seconds = number * unit_s
    if seconds <= 0:
        return "-"
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= size * (1 if unit == "s" else 1.5):  # 80 min rather than 1.3 h
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds * 1e3:.3g} ms"


def _describe_totals(totals: dict[str, Any], lines: list[dict[str, Any]]) -> Iterable[str]:
    """Yield sentences on the number of runs, their time and memory, and what was assumed."""
    total = totals["total"]
    runs = "1 run" if total["cells"] == 1 else f"{total['cells']} runs"
    elapsed, sequential = (_short_time(total[name], HOUR) for name in ("hours", "cell_hours"))
    yield (
        f"{runs} in {totals['results']}: {total['done']} done, {total['to_do']} to do"
        + (f", {elapsed}" if total["hours"] else "")
        + (f", {total['gpu_hours']:.2f} GPU-hours" if total["gpu_hours"] else "")
        + (
            f" ({sequential} if only one run is executed at a time)"
            if sequential != elapsed
            else ""
        )
    )
    if total["later"]:
        later = number_of(total["later"], "more run")
        yield f"The search starts {later} after it has compared these runs on validation data"
    if total["unknown"]:
        yield (
            f"The time of {number_of(total['unknown'], 'run')} is unknown, so the sum excludes it"
        )
    if total["does_not_fit"]:
        yield (
            f"{number_of(total['does_not_fit'], 'run')} will lack memory. To save memory, set "
            "optim.micro_batch_size=N or model.backbone.activation_checkpointing=true"
        )
    if total["reference_does_not_fit"]:
        runs = number_of(total["reference_does_not_fit"], "run")
        yield (
            f"In {runs}, the reference needs more memory than the machine has. Set "
            "runner.reference_max_length.NAME=N to measure it only up to length N"
        )
    machines = [(machine["hardware"], machine["measured"]) for machine in totals["machines"]]
    for hardware, measured in dict.fromkeys(machines):
        rates = "was measured by `lra doctor --rates`" if measured else (
            "is a typical value; `lra doctor --rates` measures the speed of your machine"
        )  # fmt: skip
        yield f"The speed of hardware={hardware} {rates}"
    if kernels := {machine["kernels"] for machine in totals["machines"]} - {"own"}:
        yield (
            "Operations are counted in our PyTorch forms. Public kernels (hardware.kernels="
            f"{min(kernels)}) can be faster and need less memory"
        )
    factors = [line["correction"] for line in lines if line["basis"] == "corrected"]
    if factors:
        extremes = dict.fromkeys(f"{factor:.2f}" for factor in (min(factors), max(factors)))
        yield (
            f"lra multiplied the forecasts by {' to '.join(extremes)}, because similar stored runs "
            "differed from their forecasts by this factor"
        )
    yield "The forecasts exclude the time to prepare data"
