"""`lra submit`: store the plan of a sweep, start workers through an engine, and return."""

import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.cluster.engine import (
    LOCAL,
    ChosenEngine,
    Resources,
    SizesWorkers,
    WorkerGroup,
    WritesScripts,
    engine_of,
    split_words,
    started_by,
)
from lra.composition.arguments import Parser, add_results
from lra.composition.configuration import ReportChoice
from lra.composition.run import Logger
from lra.composition.spelling import in_results
from lra.conf.short_values import number_of
from lra.errors import ConfigError
from lra.terminal.volume import Volume, volume_of

if TYPE_CHECKING:
    from lra.cluster.plan import StoredPlan
    from lra.runners.store import Store
    from lra.sweep.estimate import Forecasts
    from lra.sweep.sweep import PlannedCell, Sweep
    from lra.tuning.growing_search import GrowingSearch

COUNTED_S = 1.0
"""The most seconds for counting operations, because the user waits meanwhile."""
MOST_ELSEWHERE = 32
"""The most workers that a cluster starts by default."""
HELP = """\
lra submit: run a sweep in the background, here or on a cluster.

usage: lra submit [cluster=NAME] [cluster.KEY=VALUE ...] ARGUMENTS OF lra run ...
       lra submit --stop SWEEP [--results DIR]

examples:
  lra submit +experiment=quickstart                        start workers on this machine
  lra submit cluster.workers=4 model=linear,softmax seed=0,1,2 sweep=mine
  lra watch mine                                           show its progress, on any machine
  lra submit --stop mine                                   save running trainings, end the workers

clusters:
{clusters}

All other arguments have the same meaning as in `lra run -m`. Repeat the same command to resume a
sweep that was stopped, or to add workers to a running sweep. A command with other arguments and the
same sweep=NAME adds its runs to the sweep. `lra list local` and `lra list slurm` print the options
of a cluster.
"""


def main(argv: list[str]) -> int:
    """Submit the sweep that the arguments `argv` describe, or stop one; return the exit code."""
    if not argv or "-h" in argv or "--help" in argv:
        from lra.composition.catalogue import entries

        clusters = "\n".join(f"  {row.name:8} {row.summary}" for row in entries("cluster"))
        print(HELP.format(clusters=clusters), end="")
        return 0 if argv else 2
    if "--stop" in argv:
        return _stop_sweep(argv)
    from lra.terminal import progress

    begun = time.monotonic()
    volume, argv = volume_of(argv)
    progress.speaking = volume is not Volume.quiet
    cluster_words, words = split_words(argv)
    engine = engine_of(cluster_words)
    from lra.composition.hydra_entry import MULTIRUN, entries as composed

    asks_for_sweep = any(word in MULTIRUN for word in words)
    words = words if asks_for_sweep else ["-m", *words]
    configurations = composed(words)
    if not configurations:
        return 0  # Hydra printed a configuration or its help
    if len(configurations) == 1 and not asks_for_sweep:  # the same key as in `lra run` without -m
        configurations = [configurations[0]._replace(several=False)]
    from lra.results.style import read_style
    from lra.tuning.sweep_plan import plan_sweep

    choice = ReportChoice.of(configurations[0].config)
    _, unused_settings = read_style(choice.style)
    for line in unused_settings:
        print(line, file=sys.stderr)
    sweep, growing = plan_sweep(configurations, elsewhere=engine.name != LOCAL)
    if sweep.control.shard is not None:
        raise ConfigError(
            "runner.shard: workers divide the runs of a sweep among themselves; remove this option"
        )
    if sweep.control.dry_run:
        from lra.sweep.overview import overview

        for line in (*overview(sweep), *(growing.said() if growing else ())):
            print(line)
        _print_workers(sweep, engine)
        return 0
    _check_logger(sweep.logger)
    for line in growing.said() if growing else ():
        print(line)
    report = {"write": choice.write, "style": choice.style}
    return _submit_sweep(sweep, engine, words, report, growing=growing, begun=begun)


def _print_workers(sweep: "Sweep", engine: ChosenEngine) -> None:
    """Print how many workers `lra submit` would start for `sweep`, and how, but start none.

    Raises ConfigError, after printing, if the engine cannot start these workers.
    """
    from lra.cluster.plan import plan_folder
    from lra.sweep.estimate import forecasts
    from lra.sweep.planned_cells import not_done

    waiting = not_done(sweep.planned, sweep.store)
    groups = _choose_groups(forecasts(waiting, sweep.store, sweep.name, COUNTED_S), engine)
    plan = plan_folder(sweep.root, sweep.name).resolve()
    objection = None  # raised at the end, so that the user sees the workers all the same
    try:
        engine.engine.check(groups, plan)
    except ConfigError as error:
        objection = error
    for line in _describe_stored_plan(sweep):
        print(line)
    for group in groups if waiting else ():
        cores = group.resources.cpus
        workers = f"{group.count} worker{'s' if group.count > 1 else ''} ({group.name})"
        if isinstance(engine.engine, WritesScripts):
            print(f"\n{workers}; the cluster starts each of them by this script:")
            print(engine.engine.script(plan, group))
        else:
            print(
                f"{workers} with {cores} thread{'s' if cores > 1 else ''} each; their logs are in "
                f"{plan / 'logs'}"
            )
    if objection is not None:
        raise objection


def _describe_stored_plan(sweep: "Sweep") -> Iterator[str]:
    """Yield how many runs `sweep` adds to a stored plan of its name, and how many workers run."""
    from lra.cluster.plan import HEAD, BadPlan, StoredPlan, plan_folder
    from lra.cluster.state import is_killed, is_over, read_states

    folder = plan_folder(sweep.root, sweep.name)
    try:
        plan = StoredPlan(folder) if (folder / HEAD).is_file() else None
    except BadPlan:  # `_submit_sweep` writes a new plan and says so
        plan = None
    if plan is None:
        return
    new = sum(cell.key not in plan.places for cell in sweep.cells)
    states = read_states(folder).values()
    running = sum(not is_over(state) and not is_killed(state) for state in states)
    plan.close()
    if new:
        yield (
            f"{number_of(new, 'new run')} added to the {number_of(len(plan.entries), 'run')} of "
            f"sweep {sweep.name}"
        )
    if running:
        verb = "s of this sweep are" if running > 1 else " of this sweep is"
        yield f"{running} worker{verb} already running"


def _check_logger(logger: Logger) -> None:
    """Say which rows an experiment logger such as W&B gets only when the sweep is finished."""
    from lra.composition.run import LoggerMode
    from lra.sweep.sweep_logger import name_of

    if logger.mode is not LoggerMode.disabled:
        print(f"{name_of(logger)} shows trainings while they run, and all other results when the "
              "sweep is finished")  # fmt: skip


def _submit_sweep(
    sweep: "Sweep",
    engine: ChosenEngine,
    words: Sequence[str],
    report: dict[str, Any],
    *,
    growing: "GrowingSearch | None",
    begun: float,
) -> int:
    """Store the plan of `sweep`, start its workers, and print how to watch and stop them.

    Args:
        sweep: The runs to execute.
        engine: What starts the workers, with its options.
        words: The arguments of the command, as of `lra run -m`.
        report: Whether workers write a report at the end, and in which style.
        growing: The search that adds runs later, if the sweep is one.
        begun: `time.monotonic()` at the start of the command.
    """
    from lra.cluster.plan import plan_folder
    from lra.cluster.planning import write
    from lra.cluster.submissions import Note, check_place
    from lra.sweep.estimate import announcement, forecasts
    from lra.sweep.overview import refusals
    from lra.sweep.planned_cells import clear_leftovers, enter, not_done

    store = sweep.store
    waiting = not_done(sweep.planned, store)
    _prepare_data(sweep, waiting)
    pairs = forecasts(waiting, store, sweep.name, COUNTED_S)
    groups = _choose_groups(pairs, engine)
    engine.engine.check(groups, plan_folder(sweep.root, sweep.name))
    store.check_writable()
    stored_plan_lines = [*_describe_stored_plan(sweep)]
    if growing is not None:
        growing.keep()
    enter(sweep.name, sweep.planned, store)  # stores which runs belong to the sweep
    complete = clear_leftovers(sweep.planned, waiting, store)
    more = {"words": list(words), "report": report, "wait_s": engine.engine.wait_s}
    plan = write(
        sweep.root, sweep, pairs, groups=groups, more=more, say=partial(print, file=sys.stderr)
    )
    check_place(plan.folder)  # before a worker starts: `--stop` finds workers by files in it
    if complete:
        print(f"{complete:,} of {len(sweep.planned):,} runs are finished already and are skipped")
    flag = in_results(sweep.root)
    if not waiting and not _count_unfinished(plan, store):
        print(f"every run is finished; `lra report --sweep {sweep.name}{flag}` writes their report")
        return 0
    if waiting:
        for line in stored_plan_lines:
            print(line)
        print(f"sweep {sweep.name}: {announcement(pairs)}")
        for line in refusals(pairs, sweep.titles):
            print(line)
    flags = _name_plugins(sweep)
    command = [sys.executable, "-m", "lra", "work", str(plan.folder.resolve()), *flags]
    # The note comes first, so that --stop finds the workers even if an error follows.
    note = Note(plan.folder, engine, groups)
    ids = engine.engine.submit(plan.folder.resolve(), groups, command, note.mark)
    try:
        note.add(ids)
    except OSError as error:
        print("the workers run, and `lra submit --stop` can end them, but their ids could not be "
              f"stored: {error}", file=sys.stderr)  # fmt: skip
    count = sum(group.count for group in groups)
    took = time.monotonic() - begun
    print(f"{count} worker{'s' if count > 1 else ''} submitted to {engine.name} in {took:.1f} s")
    print(f"watch         lra watch {sweep.name}{flag}")
    print(f"stop          lra submit --stop {sweep.name}{flag}")
    print("resume        repeat this command; on a running sweep, it adds workers")
    print(f"logs          {plan.folder / 'logs'}")
    if ids and (output := engine.engine.output(plan.folder, ids[0])) is not None:
        print(f"job output    {output.parent}")
    return 0


def _name_plugins(sweep: "Sweep") -> list[str]:
    """Return the flags of `lra work` that name the user's packages and the folder to find them."""
    packages = {name for planned in sweep.planned for name in planned.cell.config["plugins"]}
    flags = [f"--plugin={name}" for name in sorted(packages)]
    return [*flags, f"--plugin-folder={Path.cwd()}"] if flags else []


def _count_unfinished(plan: "StoredPlan", store: "Store") -> int:
    """Return how many runs of `plan` have no rows; earlier commands may have planned them."""
    files = (store.rows_file(entry.key, entry.fingerprint) for entry in plan.entries)
    return sum(not file.exists() for file in files)


def _prepare_data(sweep: "Sweep", waiting: "Sequence[PlannedCell]") -> None:
    """Download or convert data here, because workers may have no network; generated data can wait.

    Prints which data are missing. Raises the error if every run of the sweep lacks its data.

    Args:
        sweep: All runs.
        waiting: The runs that are not finished.
    """
    from lra.execution.in_memory import prepare_data
    from lra.sweep.overview import unready
    from lra.terminal.board import ProgressBoard

    with ProgressBoard([], sweep.titles) as board:
        lacking = [
            planned for planned in waiting if getattr(planned.run.task, "lacking", None) is not None
        ]
        unprepared = [planned for planned in waiting if unready(planned) is not None]
        candidates = [*lacking, *unprepared]
        prepare_data(candidates, sweep.planned, board)
    faults = {planned.run.task_name: planned.no_data for planned in candidates if planned.no_data}
    for task, fault in faults.items():
        print(f"task={task} has no data, so its runs are skipped: {fault}")


def _choose_groups(pairs: "Forecasts", engine: ChosenEngine) -> list[WorkerGroup]:
    """Return the workers to start: equal ones on this machine, groups of a few sizes on a cluster.

    Args:
        pairs: The unfinished runs, each with the forecast of its time and memory.
        engine: What starts the workers, with its options.
    """
    from lra.cluster.planning import needs_of
    from lra.cluster.resources import worker_groups
    from lra.sweep.estimate import lanes_of

    needs = [needs_of(planned, guess.seconds, guess.whole_bytes) for planned, guess in pairs]
    if isinstance(engine.engine, SizesWorkers):
        timed = [planned.run.runner.timed for planned, _ in pairs]
        return engine.engine.grouped(list(zip(needs, timed, strict=True)))
    needs = needs or [Resources()]  # without unfinished runs, one smallest worker is described
    if engine.name != LOCAL:
        return worker_groups(needs, engine.engine.workers or min(MOST_ELSEWHERE, len(needs)))
    runs = [planned.run for planned, _ in pairs]
    lanes = max((lanes_of(run) for run in runs), default=1)
    resources = Resources(
        gpus=max(need.gpus for need in needs), cpus=max(need.cpus for need in needs)
    )
    count = min(engine.engine.workers or lanes, len(needs))
    return [WorkerGroup(name="all", count=count, resources=resources)]


def _stop_sweep(argv: Sequence[str]) -> int:
    """Stop the workers of the sweep that `--stop` names; return the exit code."""
    parser = Parser(prog="lra submit", usage="lra submit --stop SWEEP [--results DIR]")
    parser.add_argument("--stop", required=True, metavar="SWEEP")
    add_results(parser)
    arguments = parser.parse_args(argv)
    from lra.cluster.local import ELSEWHERE
    from lra.cluster.plan import locate_plan
    from lra.cluster.submissions import damaged_files, jobs_of, submissions

    folder = locate_plan(arguments.stop, arguments.results)
    for line in _describe_copied_jobs(folder):
        print(line, file=sys.stderr)
    stopped, faults = 0, dict[str, None]()
    for submission in submissions(folder):
        try:
            engine = started_by(submission)
            states = engine.states([jobs_of(submission)])
            active = [job for job, job_state in states.items() if job_state.active]
            engine.stop(active)
        except ConfigError as error:
            faults[str(error)] = None
            continue
        for job, job_state in states.items():
            if job_state.state == ELSEWHERE:
                print(
                    f"{job} was started on another machine; repeat this command on that machine",
                    file=sys.stderr,
                )
        stopped += len(active)
    for fault in faults:
        print(f"lra: {fault}", file=sys.stderr)
    torn = damaged_files(folder)
    for path in torn:
        print(
            f"{path} is damaged, so the workers that it named are still running. `lra watch "
            f"{folder.name} --workers` prints the host and the process of each worker; type `kill "
            "PROCESS` on that host to save its run and end it",
            file=sys.stderr,
        )
    if (torn or faults) and not stopped:
        return 2
    if not stopped:
        print(f"sweep {folder.name} has no running worker on this machine")
        return 0
    print(
        f"the workers of sweep {folder.name} will save their runs and end; `lra watch "
        f"{folder.name}` shows when they have ended"
    )
    return 2 if faults else 0


def _describe_copied_jobs(folder: Path) -> Iterator[str]:
    """Yield a warning for running jobs of the original, if the plan in `folder` is a copy of it."""
    from lra.cluster.jobs import active
    from lra.cluster.plan import HEAD, results_of
    from lra.cluster.submissions import strange_submissions
    from lra.runners.storage.homes import COPIED

    for path, notes in strange_submissions(folder).items():
        if jobs := active(notes):
            home = Path(path)
            if (home / HEAD).is_file():
                way_out = f"lra submit --stop {home.name}{in_results(results_of(home))}"
            else:
                way_out = f"their ids, for example {', '.join(jobs[:5])}"
            yield (
                f"{len(jobs):,} jobs belong to {results_of(home)}, {COPIED}. They are still "
                f"running; to stop them, use {way_out}"
            )
