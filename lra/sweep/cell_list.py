"""The cells of a sweep: what a command line asks for, in the order in which it runs."""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from lra.composition.compose import typed
from lra.composition.parallel_check import check_one_number
from lra.composition.run import Composed, Logger, LoggerMode
from lra.errors import ConfigError
from lra.sweep.baselines import baselines
from lra.sweep.batch_check import check_batch
from lra.sweep.cells import Lookups, plan
from lra.sweep.places import check_places
from lra.sweep.sweep import PlannedCell, Sweep
from lra.sweep.titles import titles
from lra.sweep.trainings import trainings, words_of
from lra.sweep.trial_builds import refusal
from lra.terminal.progress import with_progress


def build(
    entries: Sequence[Composed],
    *,
    elsewhere: bool = False,
    several: bool = False,
    judged: Sequence[str] = (),
) -> Sweep:
    """Return the sweep of a command: its distinct cells, those of cheap runners first.

    If the command names a shard, only the cells of this shard are listed.

    Args:
        entries: The configurations that were composed from the command.
        elsewhere: Whether the cells are planned for another machine.
        several: Whether the command asks for a sweep, to which baselines are added.
        judged: Further splits on which later trainings are scored. The sweep has the baselines of
            these splits from the beginning.
    """
    _check_shared(entries)
    lookups = Lookups(place=entries[0].place, elsewhere=elsewhere)
    first = typed(entries[0].config, lookups.tasks, lookups.memo)
    _check_logger(first.logger, Path(first.config["results"]).absolute())
    distinct: dict[str, PlannedCell] = {}
    sources: dict[str, PlannedCell] = {}
    added: dict[str, PlannedCell] = {}
    retry: set[str] = set()
    of_words: dict[tuple[str, ...], str] = {}  # arguments, and the key of their first cell
    for config, words, *_ in with_progress(entries, "planning run"):
        run = typed(config, lookups.tasks, lookups.memo)
        try:
            run.runner.check_packages()
        except ValueError as error:
            raise ConfigError(str(error)) from error
        retry |= {*run.control.retry}
        started_from = {}
        # What a runner refuses needs no training: its cell ends with the reason.
        sources_of_run = {} if refusal(run) else trainings(run, lookups.tasks, lookups.memo)
        for name, source in sources_of_run.items():
            (cell,) = plan(source, words_of(name, source, words, run), lookups)
            started_from[name] = cell
            sources.setdefault(cell.key, PlannedCell(cell, source))
        if run.runner.trains:
            check_batch(run, loaded=False)
        for cell in plan(run, words, lookups):
            of_words.setdefault(words, cell.key)
            first_planned = distinct.setdefault(cell.key, PlannedCell(cell, run, started_from))
            check_one_number(first_planned.run, run)  # of processes, for equal keys
        if (split := run.runner.baseline_split(several=several)) is not None:
            for scored_split in dict.fromkeys((split, *judged)):
                baseline = lookups.memo.of(
                    ("baselines", scored_split),
                    (run.task, run.task_options),
                    partial(baselines, run, scored_split, words, lookups),
                )
                added.setdefault(baseline.cell.key, baseline)
    distinct = {**added, **distinct}  # baselines that the command itself names were not added
    if not elsewhere:
        check_places([*sources.values(), *distinct.values()])
    ordered = sorted(distinct.values(), key=turn_of)
    part, parts = first.control.part()  # this shard's number, from 1, and the number of shards
    of_shard = ordered[part - 1 :: parts]
    # Every shard lists the trainings that it needs; claims keep two shards from running one.
    needed = dict.fromkeys(cell.key for planned in of_shard for cell in planned.trainings.values())
    listed = {planned.cell.key for planned in of_shard}
    planned = [*(sources[key] for key in needed if key not in listed), *of_shard]
    return Sweep(
        name=first.sweep,
        root=Path(first.config["results"]),
        control=replace(first.control, retry=sorted(retry)),
        logger=first.logger,
        planned=planned,
        of_words=of_words,
        cells=[item.cell for item in planned],
        titles=titles([(item.cell, item.trainings) for item in {**sources, **distinct}.values()]),
    )


def turn_of(planned: PlannedCell) -> tuple[int, str]:
    """Return a key that sorts cells into the order in which a sweep runs them.

    Baselines run first, then trainings, then cells that are timed, then all others.
    """
    kind = planned.run.runner
    classes = (not kind.models, kind.trains, kind.timed)  # baselines have no model
    turn = next((number for number, is_member in enumerate(classes) if is_member), len(classes))
    return turn, str(planned.cell.columns["runner"])


def _check_shared(entries: Sequence[Composed]) -> None:
    """Raise ConfigError if `results`, `sweep`, `report` or `logger` differs between entries."""
    for key in ("results", "sweep", "report", "logger"):
        values = [entry.config[key] for entry in entries]
        if other := [value for value in values if value != values[0]]:
            raise ConfigError(
                f"{key}: got {values[0]!r} and {other[0]!r}; wanted one value for the whole sweep; "
                "type a separate command for each value"
            )


def _check_logger(logger: Logger, results: Path) -> None:
    """Raise ConfigError if a logger is not installed, or cannot write to the results folder."""
    try:
        os.fsencode(results).decode()
    except UnicodeDecodeError:
        if logger.mode in (LoggerMode.offline, LoggerMode.online):
            raise ConfigError(
                f"results: got {str(results)!a}; wanted a folder whose name is UTF-8, because W&B "
                "can write to no other: set results=DIR, or logger=none"
            ) from None
    if logger.mode is LoggerMode.tensorboard and find_spec("tensorboardX") is None:
        raise ConfigError(
            "logger=tensorboard: tensorboardX is not installed; type "
            "`pip install 'lra[tensorboard]'`, or set logger=wandb_offline, which is installed"
        )
