"""`lra run`: compose the configurations of a command, execute its runs, and print their results."""

import shlex
from collections.abc import Sequence

from lra import cli
from lra.composition.class_path import named_plugins
from lra.execution.preload import ready
from lra.runners.isolation import isolate
from lra.sweep.agent import check_words
from lra.sweep.sweep import Sweep
from lra.terminal.volume import volume_of


def main(argv: list[str]) -> int:
    """Execute the runs of the arguments after `lra run`; return the exit code."""
    from lra.composition.hydra_entry import entries

    volume, argv = volume_of(argv)
    ready(volume)
    check_words(argv)
    configurations = entries(argv)
    if not configurations:
        return 0  # Hydra printed a configuration or its help
    # This import loads PyTorch, so it must follow `ready`.
    from lra.execution.foreground import execute

    # Code of a plug-in may have started threads, and a fork would not have them.
    isolate.prepare(fork=cli.alone and not named_plugins())
    done = execute(configurations, volume=volume)
    if line := advice_if_disturbed(done.sweep, argv):
        print(line)
    return done.code


def advice_if_disturbed(sweep: Sweep, argv: Sequence[str]) -> str:
    """Return what to type if other processes disturbed runs of `sweep`; "" if none was disturbed.

    Args:
        sweep: The finished sweep.
        argv: The arguments that started it, which the advice repeats.
    """
    from lra.conf.processors import cpu_quota, processors
    from lra.runners.records import DISTURBED
    from lra.runners.storage.index import RowsIndex
    from lra.sweep.planned_cells import still_disturbed

    if sweep.control.dry_run or DISTURBED not in sweep.control.retry:
        return ""
    with RowsIndex(sweep.root) as index:
        disturbed = still_disturbed(sweep.planned, index)
    if not disturbed:
        return ""
    count = f"disturbed {len(disturbed)} of {len(sweep.planned)} runs, which are marked with †"
    quota, threads = cpu_quota(), max(int(item.cell.columns["threads"]) for item in disturbed)
    if quota is not None and quota < threads:
        fewer = f", or set hardware.threads={processors()}" if processors() < threads else ""
        return (
            f"the processor limit of this container {count}. The runs use "
            f"{threads} thread{'s' if threads > 1 else ''}, but this container may use "
            f"{quota:.3g} processors, so waiting does not help. Raise the limit to "
            f"{threads}{fewer}, and rerun: lra run {shlex.join(argv)}"
        )
    return (
        f"other processes {count}. When the machine is quiet, measure these runs again: "
        f"lra run {shlex.join(argv)}"
    )
