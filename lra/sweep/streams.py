"""What each kind of runner is given, and the items that it yields. Runs in a cell's own process."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from lra.compose import Run, build_model, build_task, facts
from lra.sweep.attention_cores import FamilyCores
from lra.sweep.trainings import OWN, trainings
from models.backbone.model import Backbone
from runners.approximation import QK, approximate
from runners.attention.errors import random_heads, trained_heads
from runners.certify import certify
from runners.decode import Mode as DecodeMode, decode
from runners.extrapolate import extrapolate, fit
from runners.isolation.progress import phase
from runners.peers import compare
from runners.scaling import Mode, scale
from runners.span import span
from runners.train import train
from runners.training.checkpoint import Checkpoints
from runners.transfer import Pretrained, fine_tune
from tasks.task import Stretches


def of(run: Run, argument: Mapping[str, Any]) -> Iterator[object]:
    """Return the items of one cell; `argument` is what `lra.sweep.execution` says about it."""
    return _STREAMS[str(argument["runner"])](run, argument)


def trained(run: Run, argument: Mapping[str, Any], name: str = OWN) -> Backbone:
    """Return a model that the sweep trained before: see `lra.sweep.trainings`."""
    model = build_model(trainings(run)[name])
    model.load_state_dict(Checkpoints(Path(argument["trainings"][name])).weights())
    return model


def _certify(run: Run, argument: Mapping[str, Any]) -> Iterator[object]:
    del argument
    return certify(run.task, split=run.runner.split)


def _decode(run: Run, argument: Mapping[str, Any]) -> Iterator[object]:
    return decode(
        lambda longest: build_model(run, max_length=longest),
        length=int(argument["length"]),
        mode=DecodeMode[argument["mode"]],
        config=run.runner,
        hardware=run.hardware,
        seed=run.seed,
    )


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


def _approximation(run: Run, argument: Mapping[str, Any]) -> Iterator[object]:
    length, config, shape = int(argument["length"]), run.runner, run.backbone
    cores = FamilyCores(run, length)
    if config.qk is QK.trained:
        phase("preparing data")
        run.task.prepare()
        phase("reading heads")
        layers = trained_heads(
            trained(run, argument, "softmax"),
            run.task.batches("test", batch_size=32, seed=run.seed),
            sequences=config.sequences,
            length=length,
        )
    else:
        width = shape.head_width or shape.width // shape.heads
        layers = [
            random_heads(
                config.sequences, shape.heads, length, width,
                deviation=config.deviation, seed=run.seed,
            )
        ]  # fmt: skip
    return approximate(
        cores,
        layers,
        model=run.model,
        config=config,
        hardware=run.hardware,
        labels=cores.labels(),
    )


def _extrapolate(run: Run, argument: Mapping[str, Any]) -> Iterator[object]:
    own, weights = facts(run), Checkpoints(Path(argument["trainings"][OWN])).weights()

    def build(tokens: int) -> Backbone:
        longer = replace(own, max_length=max(own.max_length, tokens))
        model = Backbone(run.backbone, longer, run.mixers, stack=run.stack, seed=run.seed)
        return fit(model, weights)

    def stretch(options: Mapping[str, object]) -> Stretches:
        task = build_task({**run.config["task"], **options}, list(run.config["plugins"]))
        task.prepare()
        return cast(Stretches, task)

    return extrapolate(build, stretch, run.task, config=run.runner, hardware=run.hardware)


def _span(run: Run, argument: Mapping[str, Any]) -> Iterator[object]:
    model = trained(run, argument)
    return span(model, run.task, config=run.runner, hardware=run.hardware, seed=run.seed)


def _transfer(run: Run, argument: Mapping[str, Any]) -> Iterator[object]:
    source = None
    for name in run.runner.starts_from():
        source = Pretrained(trained(run, argument, name), trainings(run)[name].task)
        phase("preparing data of the source")
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
    "train": _train,
    "transfer": _transfer,
    "scaling": _scaling,
    "decode": _decode,
    "peers": _peers,
    "approximation": _approximation,
    "extrapolate": _extrapolate,
    "span": _span,
}
