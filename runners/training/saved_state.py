"""What a checkpoint holds of a training, and how one goes on from it."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from runners.parallel.state import restore_random
from runners.records import digest
from runners.training.prefetch import BatchPosition
from runners.training.resume import must_agree

if TYPE_CHECKING:
    from runners.training.loop import Trainer

_PLAIN = ("step", "since", "examples", "validated", "spent_s", "window_s", "waited_s")
"""Plain numbers of a trainer, by their names."""


def identity(trainer: "Trainer") -> str:
    """Return a hash of what must agree before a checkpoint may be continued."""
    shapes = {name: list(value.shape) for name, value in trainer.model.state_dict().items()}
    config = must_agree(trainer.config, but=trainer.config.incidental)
    options = [must_agree(trainer.optim), config, str(trainer.hardware.precision)]
    return digest([trainer.seed, trainer.task.spec.data_hash, options, shapes])


def saved_state(trainer: "Trainer") -> dict[str, Any]:
    """Return everything that decides how the run goes on."""
    cuda = trainer.device.type == "cuda"
    return {
        "identity": identity(trainer),
        "model": trainer.model.state_dict(),
        **trainer.updates.state(),
        "random": torch.get_rng_state(),
        "generator": trainer.generator.get_state(),
        "running": trainer.running,
        "streams": trainer.streams.state,
        "best": trainer.best,
        "rows": trainer.rows,
        "step_times": trainer.step_times,
        "place": [trainer.position.epoch, trainer.position.number],
        **({"gradients": gradients(trainer)} if trainer.stages.accumulates else {}),
        **{name: getattr(trainer, name) for name in _PLAIN},
        **({"cuda_random": torch.cuda.get_rng_state()} if cuda else {}),
    }


def restore(trainer: "Trainer", state: dict[str, Any]) -> None:
    """Continue from a state in which `misfit` found no fault."""
    if trainer.together is not None:
        state = trainer.together.own_state(state, trainer.model, trainer.updates, trainer.device)
    trainer.model.load_state_dict(state["model"])
    trainer.updates.restore(state)
    restore_random(state, trainer.ranks, trainer.device, trainer.seed)
    trainer.generator.set_state(state["generator"])
    trainer.running = state["running"].to(trainer.device)
    trainer.streams.restore(state["streams"])
    for name, gradient in state.get("gradients", {}).items():
        trainer.model.get_parameter(name).grad = gradient.to(trainer.device)
    trainer.best, trainer.rows = state["best"], state["rows"]
    trainer.step_times, trainer.position = state["step_times"], BatchPosition(*state["place"])
    for name in _PLAIN:
        setattr(trainer, name, state[name])


def gradients(trainer: "Trainer") -> dict[str, Tensor]:
    """Return what was accumulated since the last update, by parameter."""
    named = trainer.model.named_parameters()
    return {name: own.grad for name, own in named if own.grad is not None}
