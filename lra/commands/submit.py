"""`lra submit`: store the plan of a sweep, have an engine start workers, and return."""

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
"""Seconds in which cells are counted: somebody waits."""
MOST_ELSEWHERE = 32
"""Workers by default."""
HELP = """\
lra submit: run a sweep in the background, here or on a cluster.

usage: lra submit [cluster=NAME] [cluster.KEY=VALUE ...] ARGUMENTS OF lra run ...
       lra submit --stop SWEEP [--results DIR]

examples:
  lra submit +experiment=quickstart                        start workers on this machine
  lra submit cluster.workers=4 model=linear,softmax seed=0,1,2 sweep=mine
  lra watch mine                                           how far it is, from any machine
  lra submit --stop mine                                   save running trainings, end the workers

clusters:
{clusters}

Other arguments are those of `lra run -m`. Give the same command again to resume a sweep that was
stopped, or to add workers to one that is running. Other arguments with the same sweep=NAME add
their runs to the sweep. `lra list local` and `lra list slurm` print the options of a cluster.
"""


def main(argv: list[str]) -> int:
    """Submit, or stop."""
    if not argv or "-h" in argv or "--help" in argv:
        from lra.composition.catalogue import entries

        clusters = "\n".join(f"  {row.name:8} {row.summary}" for row in entries("cluster"))
        print(HELP.format(clusters=clusters), end="")
        return 0 if argv else 2
    if "--stop" in argv:
        return _stop(argv)
    from lra.terminal import progress

    begun = time.monotonic()
    volume, argv = volume_of(argv)
    progress.speaking = volume is not Volume.quiet
    cluster_words, words = split_words(argv)
    engine = engine_of(cluster_words)
    from lra.composition.hydra_entry import MULTIRUN, entries as composed

    asked = any(word in MULTIRUN for word in words)
    words = words if asked else ["-m", *words]
    configurations = composed(words)
    if not configurations:
        return 0  # Hydra printed a configuration or its help
    if len(configurations) == 1 and not asked:  # as of `lra run` with these words
        configurations = [configurations[0]._replace(several=False)]
    from lra.results.style import read_style
    from lra.tuning.sweep_plan import plan_sweep

    choice = ReportChoice.of(configurations[0].config)
    for line in read_style(choice.style)[1]:
        print(line, file=sys.stderr)
    sweep, growing = plan_sweep(configurations, elsewhere=engine.name != LOCAL)
    if sweep.control.shard is not None:
        raise ConfigError("runner.shard: workers share a sweep by themselves; remove this option")
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
    return _submit(sweep, engine, words, report, growing=growing, begun=begun)


def _print_workers(sweep: "Sweep", engine: ChosenEngine) -> None:
    """Print how many workers of each size would start, how, and where their logs go.

    Raises ConfigError where the engine would start none, once the rest is told.
    """
    from lra.cluster.plan import plan_folder
    from lra.sweep.estimate import forecasts
    from lra.sweep.planned_cells import not_done

    waiting = not_done(sweep.planned, sweep.store)
    groups = _groups(forecasts(waiting, sweep.store, sweep.name, COUNTED_S), engine)
    plan = plan_folder(sweep.root, sweep.name).resolve()
    objection = None
    try:
        engine.engine.check(groups, plan)
    except ConfigError as error:
        objection = error
    for line in _beside(sweep):
        print(line)
    for group in groups if waiting else ():
        cores = group.resources.cpus
        many = f"{group.count} worker{'s' if group.count > 1 else ''} ({group.name})"
        if isinstance(engine.engine, WritesScripts):
            print(f"\n{many}, each by")
            print(engine.engine.script(plan, group))
        else:
            print(f"{many}, {cores} thread{'s' if cores > 1 else ''} each; logs in {plan / 'logs'}")
    if objection is not None:
        raise objection


def _beside(sweep: "Sweep") -> Iterator[str]:
    """Yield what there is already of a sweep whose cells these are to join."""
    from lra.cluster.plan import HEAD, BadPlan, StoredPlan, plan_folder
    from lra.cluster.state import is_killed, is_over, read_states

    folder = plan_folder(sweep.root, sweep.name)
    try:
        plan = StoredPlan(folder) if (folder / HEAD).is_file() else None
    except BadPlan:  # it is written anew, which is said
        plan = None
    if plan is None:
        return
    new = sum(cell.key not in plan.places for cell in sweep.cells)
    states = read_states(folder).values()
    running = sum(not is_over(state) and not is_killed(state) for state in states)
    plan.close()
    if new:
        yield f"{number_of(new, 'new run')} added to the {len(plan.entries):,} of {sweep.name}"
    if running:
        yield f"{running} worker{'s' if running > 1 else ''} of {sweep.name} already running"


def _check_logger(logger: Logger) -> None:
    """Say what workers do not write while cells run."""
    from lra.composition.run import LoggerMode
    from lra.sweep.sweep_logger import name_of

    if logger.mode is not LoggerMode.disabled:
        print(f"{name_of(logger)} shows trainings while they run, and the rest when the sweep is "
              "finished")  # fmt: skip


def _submit(
    sweep: "Sweep",
    engine: ChosenEngine,
    words: Sequence[str],
    report: dict[str, Any],
    *,
    growing: "GrowingSearch | None",
    begun: float,
) -> int:
    from lra.cluster.plan import plan_folder
    from lra.cluster.planning import write
    from lra.cluster.submissions import Note, check_place
    from lra.sweep.estimate import announcement, forecasts
    from lra.sweep.overview import refusals
    from lra.sweep.planned_cells import clear_leftovers, enter, not_done

    store = sweep.store
    waiting = not_done(sweep.planned, store)
    _prepare(sweep, waiting)
    pairs = forecasts(waiting, store, sweep.name, COUNTED_S)
    groups = _groups(pairs, engine)
    engine.engine.check(groups, plan_folder(sweep.root, sweep.name))
    store.check_writable()
    beside = [*_beside(sweep)]
    if growing is not None:
        growing.keep()
    enter(sweep.name, sweep.planned, store)
    complete = clear_leftovers(sweep.planned, waiting, store)
    more = {"words": list(words), "report": report, "wait_s": engine.engine.wait_s}
    plan = write(
        sweep.root, sweep, pairs, groups=groups, more=more, say=partial(print, file=sys.stderr)
    )
    check_place(plan.folder)  # of what stops them, before any is started
    if complete:
        print(f"{complete:,} of {len(sweep.planned):,} runs are finished already and are skipped")
    where = in_results(sweep.root)
    if not waiting and not _unfinished(plan, store):
        print(f"nothing to submit: see lra report --sweep {sweep.name}{where}")
        return 0
    if waiting:
        for line in beside:
            print(line)
        print(f"sweep {sweep.name}: {announcement(pairs)}")
        for line in refusals(pairs, sweep.titles):
            print(line)
    command = [sys.executable, "-m", "lra", "work", str(plan.folder.resolve()), *_flags(sweep)]
    note = Note(plan.folder, engine, groups)  # first: what runs can be stopped, whatever follows
    ids = engine.engine.submit(plan.folder.resolve(), groups, command, note.mark)
    try:
        note.add(ids)
    except OSError as error:
        print(f"the workers run, and --stop finds them, but their ids could not be stored: {error}",
              file=sys.stderr)  # fmt: skip
    count = sum(group.count for group in groups)
    took = time.monotonic() - begun
    print(f"{count} worker{'s' if count > 1 else ''} submitted to {engine.name} in {took:.1f} s")
    print(f"watch         lra watch {sweep.name}{where}")
    print(f"stop          lra submit --stop {sweep.name}{where}")
    print("resume        the same command again; it also adds workers to a running sweep")
    print(f"logs          {plan.folder / 'logs'}")
    if ids and (output := engine.engine.output(plan.folder, ids[0])) is not None:
        print(f"job output    {output.parent}")
    return 0


def _flags(sweep: "Sweep") -> list[str]:
    """Return the flags that name the packages of this command, and its working folder."""
    named = {name for planned in sweep.planned for name in planned.cell.config["plugins"]}
    flags = [f"--plugin={name}" for name in sorted(named)]
    return [*flags, f"--plugin-folder={Path.cwd()}"] if flags else []


def _unfinished(plan: "StoredPlan", store: "Store") -> int:
    """Return how many cells of the plan have no rows: others than those that were asked for now."""
    files = (store.rows_file(entry.key, entry.fingerprint) for entry in plan.entries)
    return sum(not file.exists() for file in files)


def _prepare(sweep: "Sweep", waiting: "Sequence[PlannedCell]") -> None:
    """Fetch the data that want files, for nodes may have no network; others are made there.

    Raises what is wrong with them where no cell of the sweep can have its own.
    """
    from lra.execution.in_memory import prepare_data
    from lra.sweep.overview import unready
    from lra.terminal.board import ProgressBoard

    with ProgressBoard([], sweep.titles) as board:
        lacking = [one for one in waiting if getattr(one.run.task, "lacking", None) is not None]
        fetched = [one for one in waiting if unready(one) is not None]
        prepare_data([*lacking, *fetched], sweep.planned, board)
    faults = {one.run.task_name: one.no_data for one in [*lacking, *fetched] if one.no_data}
    for task, fault in faults.items():
        print(f"the data of {task} are missing, so its runs are skipped: {fault}")


def _groups(pairs: "Forecasts", engine: ChosenEngine) -> list[WorkerGroup]:
    """Return the workers to start: of one kind on this machine, elsewhere of a few sizes."""
    from lra.cluster.planning import needs_of
    from lra.cluster.resources import worker_groups
    from lra.sweep.estimate import lanes_of

    needs = [needs_of(planned, guess.seconds, guess.whole_bytes) for planned, guess in pairs]
    if isinstance(engine.engine, SizesWorkers):
        timed = [planned.run.runner.timed for planned, _ in pairs]
        return engine.engine.grouped(list(zip(needs, timed, strict=True)))
    needs = needs or [Resources()]
    if engine.name != LOCAL:
        return worker_groups(needs, engine.engine.workers or min(MOST_ELSEWHERE, len(needs)))
    runs = [planned.run for planned, _ in pairs]
    lanes = max((lanes_of(run) for run in runs), default=1)
    resources = Resources(
        gpus=max(need.gpus for need in needs), cpus=max(need.cpus for need in needs)
    )
    count = min(engine.engine.workers or lanes, len(needs))
    return [WorkerGroup(name="all", count=count, resources=resources)]


def _stop(argv: Sequence[str]) -> int:
    parser = Parser(prog="lra submit", usage="lra submit --stop SWEEP [--results DIR]")
    parser.add_argument("--stop", required=True, metavar="SWEEP")
    add_results(parser)
    arguments = parser.parse_args(argv)
    from lra.cluster.local import ELSEWHERE
    from lra.cluster.plan import locate_plan
    from lra.cluster.submissions import damaged_files, jobs_of, submissions

    folder = locate_plan(arguments.stop, arguments.results)
    for line in _left_alone(folder):
        print(line, file=sys.stderr)
    stopped, faults = 0, dict[str, None]()
    for submission in submissions(folder):
        try:
            engine = started_by(submission)
            states = engine.states([jobs_of(submission)])
            active = [job for job, seen in states.items() if seen.active]
            engine.stop(active)
        except ConfigError as error:
            faults[str(error)] = None
            continue
        for job, seen in states.items():
            if seen.state == ELSEWHERE:
                print(
                    f"{job} was started on another machine: give this command there",
                    file=sys.stderr,
                )
        stopped += len(active)
    for fault in faults:
        print(f"lra: {fault}", file=sys.stderr)
    torn = damaged_files(folder)
    for path in torn:
        print(
            f"{path} is damaged, so the workers that it named still run. lra watch {folder.name} "
            "--workers prints the host and process of each; `kill PROCESS` there saves its run",
            file=sys.stderr,
        )
    if (torn or faults) and not stopped:
        return 2
    if not stopped:
        print(f"no worker of {folder.name} runs here")
        return 0
    print(
        f"the workers of {folder.name} will save their runs and stop: see lra watch {folder.name}"
    )
    return 2 if faults else 0


def _left_alone(folder: Path) -> Iterator[str]:
    """Yield what to say of workers of a plan that was copied or moved here."""
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
                way_out = f"their ids: {', '.join(jobs[:5])}"
            yield (
                f"{len(jobs):,} jobs belong to {results_of(home)}, {COPIED}. They still run; "
                f"to stop them, use {way_out}"
            )
