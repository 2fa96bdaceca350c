"""Seeds of the parts of a model, and where parameters are drawn."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lra.models.tuning import Tuned

DRAWS = frozenset({
    nn.init.kaiming_uniform_, nn.init.normal_, nn.init.uniform_, Tensor.normal_, Tensor.uniform_,
})  # fmt: skip


def derive(seed: int, part: str) -> int:
    """Return the seed of one part of the model: parts draw alike whatever the others draw."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{part}".encode()).digest()[:8], "big") >> 1


@contextmanager
def drawing() -> Iterator[None]:
    """Draw parameters on the CPU (or the meta device), and leave the global random state alone."""
    meta = torch.get_default_device().type == "meta"
    device = torch.device("meta" if meta else "cpu")
    with torch.random.fork_rng(devices=[]), device, _Undrawn() if meta else nullcontext():
        yield


def redraw(model: nn.Module, deviation: float, seed: int) -> None:
    """Draw every matrix and table again from N(0, deviation), each by its name and the seed.

    Vectors (biases, gains of norms) stay as they are, and so do parameters that never decay, such
    as decays by channel and state, which are no weights; a shared parameter is drawn once.
    """
    tuned = [module for module in model.modules() if isinstance(module, Tuned)]
    kept = {
        id(module.get_parameter(name))
        for module in tuned
        for name, tuning in module.tuning().items()
        if tuning.weight_decay == 0.0
    }
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and id(parameter) not in kept:
            torch.default_generator.manual_seed(derive(seed, f"redrawn {name}"))
            nn.init.normal_(parameter, std=deviation)


class _Undrawn(TorchFunctionMode):
    """Leaves out draws into tensors without contents: PyTorch takes milliseconds for each."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the tensor that would be drawn into, or what the function returns."""
        given = kwargs or {}
        if func in DRAWS:
            tensor = given["tensor"] if "tensor" in given else args[0]
            if tensor.is_meta:
                return tensor
        return func(*args, **given)
