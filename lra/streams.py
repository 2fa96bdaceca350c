"""What each kind of runner is given, and the items that it yields. Runs in a cell's own process."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lra.compose import Run, build_model, facts
from lra.trainings import OWN, trainings
from models.backbone import Backbone
from runners.certify import certify
from runners.checkpoint import Checkpoints
from runners.peers import compare
from runners.scaling import Mode, scale
from runners.train import train
from runners.transfer import Pretrained, fine_tune


def of(run: Run, argument: Mapping[str, Any]) -> Iterator[object]:
    """Return the items of one cell; `argument` is what `lra.sweep` says about it."""
    return _STREAMS[str(argument["runner"])](run, argument)


def trained(run: Run, argument: Mapping[str, Any], name: str = OWN) -> Backbone:
    """Return a model that the sweep trained before: see `lra.trainings`."""
    model = build_model(trainings(run)[name])
    model.load_state_dict(Checkpoints(Path(argument["trainings"][name])).weights())
    return model


def _certify(run: Run, argument: Mapping[str, Any]) -> Iterator[object]:
    del argument
    return certify(run.task, split=run.runner.split)


def _scaling(run: Run, argument: Mapping[str, Any]) -> Iterator[object]:
    length = int(argument["length"])
    return scale(
        lambda name: build_model(run, max_length=length, name=name),
        model=run.model,
        length=length,
        mode=Mode[argument["mode"]],
        config=run.runner,
        hardware=run.hardware,
        seed=run.seed,
        facts=facts(run, length),
    )


def _peers(run: Run, argument: Mapping[str, Any]) -> Iterator[object]:
    return compare(
        run.model,
        length=int(argument["length"]),
        mode=Mode[argument["mode"]],
        config=run.runner,
        hardware=run.hardware,
        seed=run.seed,
    )


def _train(run: Run, argument: Mapping[str, Any]) -> Iterator[object]:
    folder = argument["checkpoints"]
    return train(
        build_model(run),
        run.task,
        optim=run.optim,
        config=run.runner,
        hardware=run.hardware,
        seed=run.seed,
        checkpoints=Path(folder) if folder else None,
    )


def _transfer(run: Run, argument: Mapping[str, Any]) -> Iterator[object]:
    source = None
    for name in run.runner.starts_from():
        source = Pretrained(trained(run, argument, name), trainings(run)[name].task)
        source.task.prepare()  # the training may have been done on another machine
    folder = argument["checkpoints"]
    return fine_tune(
        build_model(run),
        run.task,
        source=source,
        optim=run.optim,
        config=run.runner,
        hardware=run.hardware,
        seed=run.seed,
        checkpoints=Path(folder) if folder else None,
    )


_STREAMS = {
    "certify": _certify,
    "peers": _peers,
    "scaling": _scaling,
    "train": _train,
    "transfer": _transfer,
}
