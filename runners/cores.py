"""What a mixer computes between its projections: a function of queries, keys and values."""

from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from models.families.lsh import lsh_attention
from models.families.lsh_lists import hash_buckets
from models.families.performer import PerformerCore
from models.families.reformer import Reformer
from models.mixer import Layout, Unsupported
from models.multi_head import Core


class SharedCore(nn.Module):
    """Reformer's attention with queries that are keys as well: `k` is not looked at."""

    def __init__(self, mixer: Reformer) -> None:
        super().__init__()
        if mixer.lra:
            raise Unsupported(
                "variant=lra of Reformer computes another function at every length: choose "
                "variant=faithful"
            )
        self.rules, self.factors, self.traits = mixer.rules, mixer.factors, mixer.traits
        self.rotations = mixer.rotations

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Attend."""
        del k
        buckets = hash_buckets(q, self.rotations.expand(-1, q.shape[1], -1, -1), self.factors)
        return lsh_attention(q, v, buckets, self.rules, keep=layout.keep)


def core_of(mixer: nn.Module) -> Core:
    """Return the core of a mixer, in eval mode.

    Raises:
        Unsupported: It has none of its own, or one whose function was to be learned: parameters
            that nobody trained would be measured, and not the method.
    """
    name = type(mixer).__name__
    core: Any = SharedCore(mixer) if isinstance(mixer, Reformer) else getattr(mixer, "core", None)
    if core is None:
        raise Unsupported(f"{name} has no core that takes queries, keys and values")
    learned = [key for key, _ in cast(nn.Module, core).named_parameters()]
    if learned:
        raise Unsupported(
            f"the core of {name} has parameters of its own ({', '.join(learned)}), which belong "
            "to the training of a whole model: choose options without them, as in "
            "model.mixer.conv_kernel=0 or model.mixer.projection=frozen_jl"
        )
    if isinstance(core, PerformerCore) and core.options.kernel.generalised:
        raise Unsupported(
            f"kernel={core.options.kernel} is a kernel of its own and estimates no softmax: choose "
            "kernel=softmax, hyperbolic or trigonometric"
        )
    return cast(Core, core.eval().requires_grad_(False))


def placed(core: Core, device: torch.device, dtype: torch.dtype) -> Core:
    """Move a core's buffers; integers keep their type."""
    return cast(Core, cast(nn.Module, core).to(device=device, dtype=dtype))
