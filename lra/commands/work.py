"""`lra work`: start one or more workers, which execute the runs of a stored plan."""

import argparse
import os
import sys
from pathlib import Path

from lra.cluster.engine import MOST_WORKERS
from lra.composition.arguments import Parser, add_plugin, add_results, file_name, whole
from lra.composition.class_path import see

LONGEST_WAIT_S = 10_000_000


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra work`."""
    args = Parser(
        prog="lra work",
        description="Execute the runs of a submitted sweep, one after the other, until none is "
        "left. Start as many workers as you like, on every machine that can read the results "
        "folder. On SIGTERM or SIGUSR1 a worker saves its runs, hands them back, and ends with 143 "
        "or 138.",
        epilog="""\
examples:
  lra work mysweep
  lra work results/plans/mysweep --workers 8""",
    )
    args.add_argument("plan", metavar="SWEEP", help="name of the sweep, or the folder of its plan")
    add_results(args)
    args.add_argument(
        "--workers", type=whole(1, MOST_WORKERS), default=1, metavar="N",
        help="number of worker processes; each executes one run at a time, and all of them share "
        "the loaded libraries in memory; default: 1, a worker that executes as many trainings at "
        "once as the hardware profile allows",
    )  # fmt: skip
    args.add_argument(
        "--group", metavar="NAME", help="execute only runs that fit the resources of this group"
    )
    args.add_argument(
        "--name", type=file_name, metavar="NAME", help="name of the worker; default: HOST-PID"
    )
    add_plugin(args, "name of your package, if the runs use it")
    args.add_argument(
        "--plugin-folder", action="append", default=[], type=Path, metavar="DIR",
        help="folder that contains your package; needed if the package is neither installed nor in "
        "the current folder",
    )  # fmt: skip
    args.add_argument(
        "--wait", type=whole(0, LONGEST_WAIT_S), metavar="SECONDS",
        help="how long to wait while other workers execute the last runs, in case one is handed "
        "back; default: the time that was set when the sweep was submitted",
    )  # fmt: skip
    return args


def main(argv: list[str]) -> int:
    """Execute runs until none is left; return the exit code of the worker."""
    try:
        return _start_workers(argv)
    except OSError as error:
        from lra.cluster.worker import storage_code

        return storage_code(error)


def _start_workers(argv: list[str]) -> int:
    """Execute the plan that `argv` names in this process, or in several with --workers N."""
    arguments = parser().parse_args(argv)
    for plugin_folder in arguments.plugin_folder:
        see(str(plugin_folder.absolute()))
    from lra.cluster.plan import locate_plan

    folder = locate_plan(arguments.plan, arguments.results)
    if arguments.workers > 1:
        return _fork_workers(folder, arguments)
    from lra.execution.preload import PRELOAD
    from lra.runners.isolation import isolate

    isolate.prepare(*PRELOAD)
    isolate.start_server()  # it imports torch while this process imports the rest
    from lra.cluster.cells import WorkerOptions
    from lra.cluster.worker import default_name, work

    options = WorkerOptions(
        name=arguments.name or default_name(), group=arguments.group, wait_s=arguments.wait,
        echo=sys.stdout,
    )  # fmt: skip
    return work(folder, options)


def _fork_workers(folder: Path, arguments: argparse.Namespace) -> int:
    """Execute the plan in `folder` by several forks of this process; return the exit code."""
    from lra.cluster import code
    from lra.cluster.cells import WorkerOptions
    from lra.cluster.fork_workers import run_in_forks
    from lra.cluster.plan import StoredPlan
    from lra.cluster.worker import default_name, work
    from lra.conf.system_errors import persistent

    plan = persistent(StoredPlan, folder)
    code.check(plan)  # checked once here: the forks inherit the hashes of the source files
    plan.close()

    def run_worker(number: int) -> int:
        """Run one worker in a fork; `number` counts forks from 0."""
        os.environ["LRA_WORKER"] = str(number)
        name = f"{arguments.name}-{number + 1}" if arguments.name else default_name()
        options = WorkerOptions(
            name=name, group=arguments.group, side_by_side=1, number=number,
            peers=arguments.workers, wait_s=arguments.wait,
        )  # fmt: skip
        return work(folder, options)

    return run_in_forks(arguments.workers, run_worker)
