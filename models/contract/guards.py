"""What no call may change: guards around every call of the kit, in one place."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn


class Violation(Exception):
    """A call changed what it must not change.

    Args:
        what: The sentence of the finding.
        cause: Its likely cause.
    """

    def __init__(self, what: str, cause: str) -> None:
        super().__init__(f"{what}; likely cause: {cause}")


def random_states() -> dict[str, bytes]:
    """Return the global random states of torch, CUDA and numpy by name.

    Python's is not among them, because type checkers draw from it.
    """
    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    kind, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": np.asarray(keys).tobytes() + repr((kind, rest)).encode(),
        **({"cuda": torch.cuda.get_rng_state().numpy().tobytes()} if in_use else {}),
    }


def switches() -> dict[str, object]:
    """Return PyTorch's global settings by name."""
    return {
        "torch.is_grad_enabled": torch.is_grad_enabled(),
        "torch.get_default_dtype": torch.get_default_dtype(),
        "torch.get_num_threads": torch.get_num_threads(),
        "torch.is_autocast_enabled": torch.is_autocast_enabled("cpu"),
        "torch.get_autocast_dtype": torch.get_autocast_dtype("cpu"),
        "torch.get_float32_matmul_precision": torch.get_float32_matmul_precision(),
        "torch.are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled(),
        "torch.is_anomaly_enabled": torch.is_anomaly_enabled(),
        "torch.backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
        "torch.backends.cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        "torch.backends.cuda.matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "torch.backends.mkldnn.enabled": torch.backends.mkldnn.enabled,
        "the global module hooks": len(nn.modules.module._global_forward_hooks),
    }


def weights_of(mixer: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name."""
    return {**dict(mixer.named_parameters()), **dict(mixer.named_buffers())}


@contextmanager
def guard(mixer: nn.Module, given: Mapping[str, Tensor]) -> Iterator[None]:
    """Raise `Violation` if the block changes the caller's tensors, the mixer or global settings.

    Args:
        mixer: Whose parameters and buffers stay the same objects with the same values.
        given: Tensors of the caller by name: input, masks, state, incoming gradient.
    """
    weights = weights_of(mixer)
    before = {name: each.detach().clone() for name, each in {**given, **weights}.items()}
    training, settings = [each.training for each in mixer.modules()], switches()
    states = random_states()
    yield
    for name, tensor in given.items():
        if not _same(tensor, before[name]):
            raise Violation(
                f"{name} has changed after a call",
                "an operation in place (masked_fill_, mul_) on a tensor of the caller",
            )
    after = weights_of(mixer)
    for name in weights.keys() | after.keys():
        if after.get(name) is not weights.get(name):
            raise Violation(f"{name} is another tensor after a call", "forward assigns it anew")
        if not _same(after[name], before[name]):
            raise Violation(
                f"{name} has changed after a call",
                "forward writes to it; what changes between steps belongs in after_step",
            )
    if training != [each.training for each in mixer.modules()]:
        raise Violation("a call changed the mode (training or evaluation) of a module", "train()")
    for name, value in switches().items():
        if value != settings[name]:
            raise Violation(f"{name} is {value} after a call, before {settings[name]}", "a setter")
    if not mixer.training:
        drawn = [name for name, state in random_states().items() if state != states[name]]
        if drawn:
            raise Violation(
                f"a call in evaluation draws from the random state of {drawn[0]}",
                "dropout or noise that ignores self.training",
            )


def _same(here: Tensor, there: Tensor) -> bool:
    """Tell whether two tensors hold the same numbers; NaN equals NaN."""
    if here.shape != there.shape or here.dtype != there.dtype:
        return False
    return torch.equal(here, there) or bool(
        torch.equal(here.isnan(), there.isnan()) and (here.nan_to_num() == there.nan_to_num()).all()
    )
