"""What tests of mixers share: inputs, padding, a builder, comparisons with literal forms."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lra.models.mixer import Flow, Layout, Site, State
from lra.models.state import detach, size_bytes

DIRECTIONS = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Return N(0, scale) in float64, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale


def heads(length: int, width: int = 4, *, number: int = 3, scale: float = 1.0) -> list[Tensor]:
    """Return q, k and v of two rows, all heads of a token side by side as projections give them."""
    shape = 2, length, number, width
    return [
        drawn(*shape, seed=seed, scale=scale).transpose(1, 2).requires_grad_() for seed in range(3)
    ]


def holes(length: int, *, real: float = 0.6, end: int | None = None) -> Tensor:
    """Return padding of two rows at random places; from `end` on all of the second is padding."""
    keep = torch.rand(2, length, generator=torch.Generator().manual_seed(5)) < real
    if end is not None:
        keep[1, end:] = False
    return keep


def site(**facts: Any) -> Site:
    """Return one of 12 channels, 3 heads and 64 tokens where nothing else is said."""
    return Site(**({"width": 12, "heads": 3, "max_length": 64} | facts))


def builder(family: Callable[..., Any], **usual: Any) -> Callable[..., Any]:
    """Return what builds a mixer in float64, in evaluation mode, of `usual` values but those given.

    What a `site` has a name for goes there. All draws are of `seed`, 3; parameters stand `moved`
    normal numbers away from where they start.
    """

    def built(**given: Any) -> Any:
        values = {"seed": 3, "moved": 0.0} | usual | given
        seed, moved = values.pop("seed"), values.pop("moved")
        facts = {name: values.pop(name) for name in [*values] if name in Site.__slots__}
        torch.manual_seed(seed)
        place = site(**{"generator": torch.Generator().manual_seed(seed)} | facts)
        mixer = family(place, **values).double().eval()
        for parameter in mixer.parameters() if moved else ():
            parameter.data += moved * torch.randn_like(parameter)
        return mixer

    return built


def compare(
    found: Tensor,
    wanted: Tensor,
    inputs: Iterable[Tensor],
    keep: Tensor | None = None,
    *,
    atol: float = 1e-12,
    rtol: float = 0.0,
    looser: float = 1.0,
) -> None:
    """Compare outputs and gradients, of heads at real tokens where `keep` is given.

    Gradients may differ by `looser` times as much.
    """
    direction = drawn(*wanted.shape, seed=9).to(wanted)
    if keep is not None:
        found, wanted, direction = (x * keep[:, None, :, None] for x in (found, wanted, direction))
    torch.testing.assert_close(found, wanted, atol=atol, rtol=rtol)
    leaves = [x for x in inputs if x.requires_grad]
    here, there = (
        torch.autograd.grad(o, leaves, direction, materialize_grads=True, retain_graph=True)
        for o in (found, wanted)
    )
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(one, other, atol=looser * atol, rtol=looser * rtol)


def joined(*parts: Tensor) -> Tensor:
    """Return all numbers of several results, to be compared as one."""
    return torch.cat([part.flatten() for part in parts])


def streamed(
    mixer: Any, x: Tensor, cuts: list[int] | int, memory: int, *, detached: bool = False
) -> tuple[Tensor, State]:
    """Return what a stream of rows gives, so cut, and its state, whose size stays the same.

    With `detached`, gradients end where it is cut.
    """
    state, outputs = mixer.initial_state(len(x), memory), []
    size = size_bytes(state)
    for piece in x.split(cuts, dim=1):
        flow = mixer.extend(Flow(piece, state), Layout())
        outputs, state = [*outputs, flow.x], detach(flow.state) if detached else flow.state
        assert size_bytes(state) == size
    return torch.cat(outputs, dim=1), state


class Largest(TorchDispatchMode):
    """Watches for the largest tensor that any operator returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = self.nbytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        made = func(*args, **(kwargs or {}))
        for part in made if isinstance(made, tuple | list) else [made]:
            if isinstance(part, Tensor):
                self.elements = max(self.elements, part.numel())
                self.nbytes = max(self.nbytes, part.untyped_storage().nbytes())
        return made


class Calls(TorchDispatchMode):
    """Notes the names of the operators that run, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if not func.is_view:
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))
