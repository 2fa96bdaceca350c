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
from lra.terminal.progress import with_progress


def build(
    entries: Sequence[Composed],
    *,
    elsewhere: bool = False,
    several: bool = False,
    judged: Sequence[str] = (),
) -> Sweep:
    """List the distinct cells of this shard, cheap kinds first.

    Args:
        entries: What was composed of the command.
        elsewhere: Whether they are meant for another machine.
        several: Whether the command asks for a sweep, which has baselines beside its trainings.
        judged: Splits that trainings to come are scored on: their baselines are there from the
            beginning.
    """
    _check_shared(entries)
    lookups = Lookups(place=entries[0].place, elsewhere=elsewhere)
    first = typed(entries[0].config, lookups.tasks, lookups.memo)
    _check_logger(first.logger, Path(first.config["results"]).absolute())
    distinct: dict[str, PlannedCell] = {}
    sources: dict[str, PlannedCell] = {}
    beside: dict[str, PlannedCell] = {}
    retry: set[str] = set()
    of_words: dict[tuple[str, ...], str] = {}
    for config, words, *_ in with_progress(entries, "planning run"):
        run = typed(config, lookups.tasks, lookups.memo)
        try:
            run.runner.check_packages()
        except ValueError as error:
            raise ConfigError(str(error)) from error
        retry |= {*run.control.retry}
        begun = {}
        for name, source in trainings(run, lookups.tasks, lookups.memo).items():
            (cell,) = plan(source, words_of(name, source, words, run), lookups)
            begun[name] = cell
            sources.setdefault(cell.key, PlannedCell(cell, source))
        if run.runner.trains:
            check_batch(run, loaded=False)
        for cell in plan(run, words, lookups):
            of_words.setdefault(words, cell.key)
            check_one_number(distinct.setdefault(cell.key, PlannedCell(cell, run, begun)).run, run)
        if (split := run.runner.baseline_split(several=several)) is not None:
            for each in dict.fromkeys((split, *judged)):
                found = lookups.memo.of(
                    ("baselines", each),
                    (run.task, run.task_options),
                    partial(baselines, run, each, words, lookups),
                )
                beside.setdefault(found.cell.key, found)
    distinct = {**beside, **distinct}  # what words name is not beside
    if not elsewhere:
        check_places([*sources.values(), *distinct.values()])
    ordered = sorted(distinct.values(), key=turn_of)
    part, parts = first.control.part()
    of_shard = ordered[part - 1 :: parts]
    # A training goes with every shard that needs it; a claim keeps two from doing it at once.
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
    """Return when a sweep runs a cell: what is cheap first, and trainings before what is timed."""
    kind = planned.run.runner
    turns = (not kind.models, kind.trains, kind.timed)
    turn = next((at for at, now in enumerate(turns) if now), len(turns))
    return turn, str(planned.cell.columns["runner"])


def _check_shared(entries: Sequence[Composed]) -> None:
    """Refuse a sweep over what it has only one of. Raises ConfigError."""
    for key in ("results", "sweep", "report", "logger"):
        values = [entry.config[key] for entry in entries]
        if other := [value for value in values if value != values[0]]:
            raise ConfigError(
                f"{key}: got {values[0]!r} and {other[0]!r}; a sweep has one: give a command for "
                "each"
            )


def _check_logger(logger: Logger, results: Path) -> None:
    """Raise ConfigError where a logger cannot write: not installed, or not to such a folder."""
    try:
        os.fsencode(results).decode()
    except UnicodeDecodeError:
        if logger.mode in (LoggerMode.offline, LoggerMode.online):
            raise ConfigError(
                "results: W&B can only write to folders whose names are UTF-8, unlike "
                f"{str(results)!a}; choose another by results=DIR, or logger=none"
            ) from None
    if logger.mode is LoggerMode.tensorboard and find_spec("tensorboardX") is None:
        raise ConfigError(
            "logger=tensorboard: tensorboardX is not installed; `pip install 'lra[tensorboard]'` "
            "brings it, and logger=wandb_offline needs nothing more"
        )
