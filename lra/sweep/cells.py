"""From a typed run to its cells, and from a cell to its rows, in a separate process."""

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from lra.composition import protocol
from lra.composition.class_path import name_plugins
from lra.composition.compose import bundled_family, core_of, facts, typed
from lra.composition.pattern_name import pattern_of
from lra.composition.run import Run
from lra.conf.processors import SPIN, cpu_quota
from lra.reports.names import LAYERS
from lra.runners.isolation.progress import listen, phase
from lra.runners.measurement.device import set_matmul_precision
from lra.runners.measurement.gpus import gpus
from lra.runners.measurement.hardware import (
    NO_GPU,
    Device,
    HardwareProfile,
    KernelChoice,
    device_name,
)
from lra.runners.records import Cell, Memo
from lra.runners.storage.fingerprint import Seen, digests, summary
from lra.sweep.cell_logger import logging_cell
from lra.sweep.identity import Rate, identity, version
from lra.sweep.stored_weights import stored_training
from lra.sweep.sweep import WEIGHTS
from lra.sweep.trainings import trainings
from lra.sweep.trial_builds import without_weights
from lra.sweep.work import CellWork
from lra.tasks.task import Task
from lra.version import lra_version


@dataclass(slots=True)
class Lookups:
    """What the runs of one sweep share: each is found once, when the sweep is planned."""

    tasks: dict[str, Task] = field(default_factory=dict)
    """By configuration: see `lra.composition.compose.typed`."""
    sources: dict[frozenset[str], Mapping[str, str]] = field(default_factory=dict)
    """Hashes of sources, by the modules that reach them."""
    read: Seen = field(default_factory=dict)
    """See `lra.runners.storage.fingerprint.digests`."""
    place: Mapping[str, str] = field(default_factory=dict)
    """See `lra.runners.records.Cell`."""
    elsewhere: bool = False
    """Whether the cells are only planned here, and run on another machine with its device."""
    rates: dict[str, Rate] = field(default_factory=dict)
    """Dropout of attention weights, by model: see `lra.sweep.identity.attention_dropout`."""
    memo: Memo = field(default_factory=Memo)
    """What runs share: see `lra.composition.compose.typed`."""

    def device_of(self, hardware: HardwareProfile) -> str:
        """Return the name of the device that a hardware profile means.

        Raises ValueError if the profile needs a GPU and this machine has none. Where the cells are
        planned for another machine (`elsewhere`), a name that no device has is returned in its
        place, so that a timed cell never has the same key as one of a real device.
        """
        if hardware.device is not Device.cuda:
            return device_name(hardware.device)
        if devices := gpus():
            return devices[0].name
        if not self.elsewhere:
            raise ValueError(NO_GPU)
        return f"{hardware.name}, not here"

    def sources_of(self, modules: set[str]) -> Mapping[str, str]:
        """Return the hash of every source file that `modules` import, directly or not."""
        key = frozenset(modules)
        if key not in self.sources:
            self.sources[key] = digests(key, self.read)
        return self.sources[key]


def plan(run: Run, overrides: tuple[str, ...] = (), lookups: Lookups | None = None) -> list[Cell]:
    """Return the cells of a run, in order: one for each mode and length that the runner measures.

    Args:
        run: The run.
        overrides: The arguments that it was composed of.
        lookups: What the runs of the sweep share; None: shared with no other run.
    """
    lookups = lookups or Lookups()
    runner = str(run.config["runner"]["name"])
    pairs = run.runner.cells(runner, run.task.spec.max_length)  # (mode, length in tokens)
    started, modules = {}, {*_find_modules(run, lookups.memo)}
    for name, source in trainings(run, lookups.tasks, lookups.memo).items():
        started[name] = plan(source, lookups=lookups)[0].key  # a training is a single cell
        modules.update(_find_modules(source, lookups.memo))
    if (stored := stored_training(run)) is not None:
        started[WEIGHTS] = stored.key
        modules.update(_find_modules(stored.run(lookups.tasks), lookups.memo))
    sources = lookups.sources_of(modules)
    shared = {
        "config": run.config,
        "overrides": overrides,
        "fingerprint": lookups.memo.of("fingerprint", (sources,), partial(summary, sources)),
        "sources": sources,
        "place": lookups.place,
        "checked": lookups.memo,
    }
    return [_plan_cell(run, pair, started, shared, lookups) for pair in pairs]


def _plan_cell(
    run: Run,
    pair: tuple[str, int],
    started: Mapping[str, str],
    shared: Mapping[str, Any],
    lookups: Lookups,
) -> Cell:
    """Return the cell of one mode at one length.

    Args:
        run: the run.
        pair: mode, and length in tokens.
        started: keys of the trainings that it starts from, by name.
        shared: the fields that all cells of the run have in common.
        lookups: what the runs of the sweep share.
    """
    mode, length = pair
    runner = str(run.config["runner"]["name"])
    spec, hardware, kind, memo = run.task.spec, run.hardware, run.runner, lookups.memo
    device = memo.of("device", (hardware,), partial(lookups.device_of, hardware))
    decided = identity(
        run, mode, length, started, lookups.place, device=device, rates=lookups.rates, memo=memo
    )
    head = memo.of(("head", length), (run.task, kind), lambda: str(facts(run, length).head))
    columns = {
        "runner": runner,
        "mode": mode,
        "model": run.model_name if kind.models else "baseline",
        "task": run.task_name,
        "task_version": spec.version,
        "source": spec.source,
        "length": length,
        "seed": run.seed if kind.models else 0,  # baselines depend on no seed
        "causal": head == "language_modelling",  # only this head predicts the next token
        "hardware": hardware.name,
        "device": device,
        "precision": str(hardware.precision),
        "threads": _count_threads(run),
    }
    return Cell(identity=decided.decisive, described=decided.described, columns=columns, **shared)


def _count_threads(run: Run) -> int:
    """Return the CPU threads of each process of a cell: more if it is timed in one process."""
    timed_alone = run.runner.timed and not run.runner.parallel
    return run.hardware.timing_threads() if timed_alone else run.hardware.training_threads


def _find_modules(run: Run, memo: Memo) -> list[str]:
    """Return the modules whose sources decide the cell's numbers, found once for equal runs."""
    parts = (run.runner, run.task_options, run.mixer_options, run.hardware)
    return memo.of("modules", parts, partial(_list_modules, run))


def _list_modules(run: Run) -> list[str]:
    """Return the modules of the runner, the task, the mixers and the references."""
    modules = [type(run.runner).__module__, str(run.task_options["class_path"]).rpartition(".")[0]]
    if run.runner.models:
        families = [run.mixer_options, *run.mixer_options.get("others", {}).values()]
        modules += [
            "models.backbone.model",
            *(f["class_path"].rpartition(".")[0] for f in families),
        ]
    if run.runner.models and run.hardware.kernels is not KernelChoice.own:
        from lra.models.kernels.providers import sources

        modules += sources()
    for name in run.runner.beside:
        _, _, options = core_of(bundled_family(name, "runner.references"), ())
        modules.append(str(options["class_path"]).rpartition(".")[0])
    return modules


def marks(run: Run) -> dict[str, str]:
    """Return the labels of every row of a run: each names a difference from the plain family."""
    labels = run.hardware.labels()
    if run.task.spec.regime:
        labels["regime"] = run.task.spec.regime
    if run.task.spec.tokenizer:
        labels["tokenizer"] = run.task.spec.tokenizer
    if (scale := protocol.scale(run.config)) != protocol.FULL:
        labels["scale"] = scale
    if not run.runner.models:
        return labels
    if run.hardware.kernels is not KernelChoice.own:
        labels["hardware.kernels"] = str(run.hardware.kernels)
    labels |= run.runner.marks(run.task.spec.regime)
    if run.runner.started_from is not None:
        labels["start"] = run.runner.started_from
    elif (stored := stored_training(run)) is not None:
        labels["start"] = stored.key
    if "variant" in run.mixer_options:
        labels["variant"] = str(run.mixer_options["variant"])
    pattern, changed = pattern_of(run.config)
    if changed:
        labels["layers"] = changed
    elif not pattern and "layers" in run.mixer_options:
        labels["layers"] = LAYERS.join(run.mixer_options["layers"])
    labels |= protocol.marks(run.config)
    if run.backbone.padding != "masked":
        labels["padding"] = str(run.backbone.padding)
    return labels


def environment() -> dict[str, str]:
    """Return the versions of packages and the properties of this machine, stored with each cell."""
    names = ("torch", "numpy", "hydra-core")
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: version(name) for name in names},
        "lra": lra_version(),
        **({} if (quota := cpu_quota()) is None else {"quota": f"{quota:g} processors"}),
        **({SPIN: os.environ[SPIN]} if SPIN in os.environ else {}),
    }


def run_cell(argument: Mapping[str, Any], send: Callable[[object], None]) -> None:
    """Run one cell in this process, or only its `probe`, and send its rows and its progress.

    Called by `lra.runners.isolation.isolate`.

    Args:
        argument: What the process has to know of the cell: see `lra.execution.executor`.
        send: Sends an object to the process that started this one.

    Raises:
        Unsupported: The model refuses these options.
    """
    with (
        logging_cell(argument["logged"], send) as tell,
        listen(tell, log=sys.stderr),  # standard error of this process is the cell's log
    ):
        for item in _run_or_probe(argument):
            tell(item)


def compare_cells(argument: Mapping[str, Any], send: Callable[[object], None]) -> None:
    """Measure several probed cells together; send pairs of a cell's key and one of its rows.

    Called by `lra.runners.isolation.isolate`.
    """
    with listen(send, log=sys.stderr):
        phase("building")
        works = {key: _load_work(cell) for key, cell in argument["cells"].items()}
        run = next(iter(works.values())).run
        with _public_kernels(run):
            for item in run.runner.compare(works, argument["probed"]):
                send(item)


def _run_or_probe(argument: Mapping[str, Any]) -> Iterator[object]:
    """Yield the rows of a cell, or what its probe found."""
    phase("building")
    work = _load_work(argument)
    if work.run.runner.models:  # a model that refuses its options does so here, before any work
        without_weights(work.run, int(argument["length"]))
    runner = work.run.runner
    with _public_kernels(work.run):
        yield from runner.probe(work) if argument.get("probed") else runner.run(work)


def _public_kernels(run: Run) -> AbstractContextManager[object]:
    """Return a context in which the kernels that `hardware.kernels` wants compute operations."""
    kernels = run.hardware.kernels
    if kernels is KernelChoice.own or not run.runner.models:
        return nullcontext()
    # Adapters of kernels are imported only where they are wanted.
    from lra.models.kernels.session import public_kernels

    return public_kernels(required=kernels is KernelChoice.public)


def _load_work(argument: Mapping[str, Any]) -> CellWork:
    """Return the work of a cell, after setting precision and GPU memory limit of this process."""
    name_plugins(argument["plugins"])
    run = typed(argument["config"])
    set_matmul_precision(run.hardware.matmul_precision)
    if run.hardware.device is Device.cuda and run.hardware.memory_limit_bytes:
        device = int(os.environ.get("LOCAL_RANK", "0"))  # of one of several processes
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(
            min(1.0, run.hardware.memory_limit_bytes / total), device
        )
    return CellWork(run, argument)
