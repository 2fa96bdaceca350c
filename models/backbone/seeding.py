"""Seeds of the parts of a model, and where parameters are drawn."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lra.models.tuning import TunedModule

DRAWS = frozenset({
    nn.init.kaiming_uniform_, nn.init.normal_, nn.init.uniform_, Tensor.normal_, Tensor.uniform_,
})  # fmt: skip


def derive(seed: int, part: str) -> int:
    """Return the seed of one part of the model, which is independent of other parts."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{part}".encode()).digest()[:8], "big") >> 1


@contextmanager
def draw_on_cpu() -> Iterator[None]:
    """Draw parameters on the CPU (or the meta device) without changing the global random state."""
    meta = torch.get_default_device().type == "meta"
    device = torch.device("meta" if meta else "cpu")
    with torch.random.fork_rng(devices=[]), device, _Undrawn() if meta else nullcontext():
        yield


def redraw(model: nn.Module, deviation: float, seed: int) -> None:
    """Draw every matrix and table again from N(0, deviation), by its name and the seed.

    Vectors (biases, gains of norms) stay as they are, and so do parameters that never decay, such
    as decays by channel and state, which are no weights; a shared parameter is drawn once.
    """
    tuned = [module for module in model.modules() if isinstance(module, TunedModule)]
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


class SeedWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tracks draws with another seed than the one that generators have on entry.

    A layer that calls `torch.manual_seed`, or has a generator of its own, may begin with the same
    weights at every seed. Draws of NumPy are not seen.
    """

    def __init__(self, own: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seeds = {each.initial_seed() for each in (torch.default_generator, own)}
        self.drawn: dict[int, torch.UntypedStorage] = {}
        """By address, which is none of another tensor while the storage is held."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation; record its outputs if it used numbers from another seed."""
        given = kwargs or {}
        found = func(*args, **given)
        random = torch.Tag.nondeterministic_seeded in func.tags
        used = (given.get("generator") or torch.default_generator) if random else None
        foreign = used is not None and used.initial_seed() not in self.seeds
        if foreign or (self.drawn and any(map(self.has, tree_leaves((args, given))))):
            for each in tree_leaves(found):
                if isinstance(each, Tensor):
                    storage = each.untyped_storage()
                    self.drawn[storage.data_ptr()] = storage
        return found

    def has(self, value: object) -> bool:
        """Tell whether a draw with another seed has reached the tensor `value`."""
        return isinstance(value, Tensor) and value.untyped_storage().data_ptr() in self.drawn

    def equal_in(self, made: nn.Module, other: nn.Module) -> dict[str, int]:
        """Return the sizes of parameters drawn so that equal those of another module, by name."""
        there = dict(other.named_parameters())
        return {
            name: here.numel()
            for name, here in made.named_parameters()
            if self.has(here) and name in there and torch.equal(here, there[name])
        }


class _Undrawn(TorchFunctionMode):
    """Skip draws into tensors without contents, because PyTorch takes milliseconds for each."""

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
