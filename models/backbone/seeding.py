"""Seeds of the parts of a model, and the device on which parameters are drawn."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lra.models.backbone.choices import InitialMaps
from lra.models.backbone.heads import LanguageHead
from lra.models.linear_map import LinearMap
from lra.models.tuning import TunedModule

DRAWS = frozenset({
    nn.init.kaiming_uniform_, nn.init.normal_, nn.init.uniform_, Tensor.normal_, Tensor.uniform_,
})  # fmt: skip


def derive(seed: int, part: str) -> int:
    """Return a seed of 63 bits for the part named `part`, by hashing `seed` and the name."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{part}".encode()).digest()[:8], "big") >> 1


@contextmanager
def draw_on_cpu() -> Iterator[None]:
    """In this context, draw parameters on the CPU, and restore the global random state after it.

    If the default device is meta, parameters are meta tensors and nothing is drawn.
    """
    meta = torch.get_default_device().type == "meta"
    device = torch.device("meta" if meta else "cpu")
    with torch.random.fork_rng(devices=[]), device, _SkipDraws() if meta else nullcontext():
        yield


def redraw(model: nn.Module, deviation: float, seed: int) -> None:
    """Draw every matrix and table again, with standard deviation `deviation`.

    The numbers depend on `seed` and the parameter's name. Vectors (biases, gains of norms) stay
    unchanged, and so do parameters without weight decay, such as the decay rates of a state.
    """
    tuned = [module for module in model.modules() if isinstance(module, TunedModule)]
    undecayed = {
        id(module.get_parameter(name))
        for module in tuned
        for name, tuning in module.tuning().items()
        if tuning.weight_decay == 0.0
    }
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and id(parameter) not in undecayed:
            torch.default_generator.manual_seed(derive(seed, f"redrawn {name}"))
            nn.init.normal_(parameter, std=deviation)


def redraw_maps(model: nn.Module, kind: InitialMaps, seed: int, seedless: dict[str, int]) -> None:
    """Draw linear maps and untied heads again by PyTorch's default, and drop them of `seedless`.

    The numbers depend on `seed` and the parameter's name. Maps stay unchanged that a family draws
    by a rule of its own.
    """
    for prefix, module in model.named_modules():
        untied = isinstance(module, LanguageHead) and module.untied
        if not untied and not (isinstance(module, LinearMap) and module.drawn_here()):
            continue
        reach = module.weight.shape[1] ** -0.5
        for name, parameter in module.named_parameters(prefix, recurse=False):
            seedless.pop(name, None)
            if parameter.dim() > 1 or kind == InitialMaps.pytorch:
                torch.default_generator.manual_seed(derive(seed, f"redrawn {name}"))
                nn.init.uniform_(parameter, -reach, reach)


class SeedWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that finds tensors drawn with a seed other than those of the known generators.

    These are the default generator and `own`, with their seeds on entry. A layer that calls
    `torch.manual_seed`, or makes a generator, may start with equal weights at every seed of the
    model. Draws of NumPy are not found.
    """

    def __init__(self, own: torch.Generator) -> None:
        """Note the seeds of the default generator, which a model has just set, and of `own`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.seeds = {known.initial_seed() for known in (torch.default_generator, own)}
        self.drawn: dict[int, torch.UntypedStorage] = {}
        """Storages of such tensors by address; storing them prevents reuse of the address."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run `func`; record its results if it drew with another seed or read such a tensor."""
        given = kwargs or {}
        results = func(*args, **given)
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        generator = (given.get("generator") or torch.default_generator) if is_random else None
        other_seed = generator is not None and generator.initial_seed() not in self.seeds
        if other_seed or (self.drawn and any(map(self.has, tree_leaves((args, given))))):
            for result in tree_leaves(results):
                if isinstance(result, Tensor):
                    storage = result.untyped_storage()
                    self.drawn[storage.data_ptr()] = storage
        return results

    def has(self, value: object) -> bool:
        """Return whether `value` is a tensor that depends on a draw with another seed."""
        return isinstance(value, Tensor) and value.untyped_storage().data_ptr() in self.drawn

    def equal_in(self, made: nn.Module, other: nn.Module) -> dict[str, int]:
        """Return sizes, by name, of parameters of `made` with another seed that equal `other`'s."""
        other_parameters = dict(other.named_parameters())
        return {
            name: parameter.numel()
            for name, parameter in made.named_parameters()
            if self.has(parameter)
            and name in other_parameters
            and torch.equal(parameter, other_parameters[name])
        }


class _SkipDraws(TorchFunctionMode):
    """A context that skips random draws into meta tensors: PyTorch needs milliseconds for each."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the meta tensor that `func` would draw into; call any other function normally."""
        given = kwargs or {}
        if func in DRAWS:
            tensor = given["tensor"] if "tensor" in given else args[0]
            if tensor.is_meta:
                return tensor
        return func(*args, **given)
