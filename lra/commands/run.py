"""`lra run`: compose, plan, execute, and write what a person wants to see."""

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
    """Run the words after `lra run`; return the exit code."""
    from lra.composition.hydra_entry import entries

    volume, argv = volume_of(argv)
    ready(volume)
    check_words(argv)
    configurations = entries(argv)
    if not configurations:
        return 0  # Hydra printed a configuration or its help
    from lra.execution.foreground import execute  # with PyTorch, for which all is settled now

    # Code of a plug-in may have started threads, which a fork loses.
    isolate.prepare(fork=cli.alone and not named_plugins())
    done = execute(configurations, volume=volume)
    if line := advice_if_disturbed(done.sweep, argv):
        print(line)
    return done.code


def advice_if_disturbed(sweep: Sweep, argv: Sequence[str]) -> str:
    """Return what to type where the machine disturbed runs of a sweep; "" where it did not."""
    from lra.conf.processors import cpu_quota, processors
    from lra.runners.records import DISTURBED
    from lra.runners.storage.index import RowsIndex
    from lra.sweep.planned_cells import still_disturbed

    if sweep.control.dry_run or DISTURBED not in sweep.control.retry:
        return ""
    with RowsIndex(sweep.root) as index:
        again = still_disturbed(sweep.planned, index)
    if not again:
        return ""
    count = f"other processes disturbed {len(again)} of {len(sweep.planned)} runs, which are marked"
    quota, threads = cpu_quota(), max(int(item.cell.columns["threads"]) for item in again)
    if quota is not None and quota < threads:
        fewer = f", or set hardware.threads={processors()}" if processors() < threads else ""
        return (
            f"{count}: they use {threads} thread{'s' if threads > 1 else ''}, and this container "
            f"may use {quota:.3g} processors. Waiting does not help: raise the quota to "
            f"{threads}{fewer}, and rerun: lra run {shlex.join(argv)}"
        )
    return (
        f"the machine was busy: {count}; once it is quiet, measure them again: "
        f"lra run {shlex.join(argv)}"
    )
