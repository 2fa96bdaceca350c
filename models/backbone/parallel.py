"""Two or more mixers on one input, side by side in one layer.

    y = sum_i s_i M_i(x)                        Falcon-H1: fixed multipliers s_i
    y = 1/m sum_i w_i * M_i(x) / rms(M_i(x))    `norm`, as in Hymba: learned weights w_i, m mixers

Cost     The sum of the costs of the mixers. The state holds the states of all.
Source   Zuo et al. 2025, arXiv:2507.22448 (Falcon-H1); Dong et al. 2024, arXiv:2411.13676 (Hymba).
Differs  Hymba norms the outputs before one common output projection; here each mixer has a
         projection of its own, and the norm comes after it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor, nn

from lra.models.backbone.layers import site_with
from lra.models.backbone.norms import NORM_EPSILON, PreciseRMSNorm
from lra.models.backbone.requirements import checked_mixer
from lra.models.mixer import (
    FACTS,
    INSIDE,
    SITE_OPTIONS,
    Extends,
    Flow,
    Layout,
    MixerFactory,
    Remembers,
    Site,
    State,
    Traits,
    Unsupported,
)
from lra.models.state import size_bytes


class Parallel(nn.Module):
    """Mixers side by side.

    Args:
        parts: What makes each mixer, by name.
        scales: A factor for the output of each; None: 1.
        norm: Whether each output is normed, and their mean is taken.

    Raises:
        ValueError: There are fewer than two mixers, another number of scales, or scales and norms.
    """

    def __init__(
        self,
        site: Site,
        *,
        parts: Any,
        scales: list[float] | None = None,
        norm: bool = False,
    ) -> None:
        """Make the mixers one after the other, and join their traits."""
        super().__init__()
        makers, factors = cast(Mapping[str, MixerFactory], parts), scales or []
        if len(factors) not in (0, len(parts)) or (factors and norm):
            raise ValueError(
                "parallel takes two or more different layers, and either one number of `scales` "
                f"for each or norm=true: got parallel={[*parts]}, scales={factors}, norm="
                f"{str(norm).lower()}"
            )
        self.scales = factors or [1 / len(parts) if norm else 1.0] * len(parts)
        owns = [getattr(make, "backbone", {}) for make in makers.values()]
        self.mixers = nn.ModuleList(
            mixer_at(make, site_with(site, own))
            for make, own in zip(makers.values(), owns, strict=True)
        )
        self.norms = nn.ModuleList(
            PreciseRMSNorm(site.width, NORM_EPSILON) if norm else nn.Identity() for _ in parts
        )
        joint = common_traits([cast(Any, mixer).traits for mixer in self.mixers], owns)
        self.traits = replace(joint, summarises=joint.summarises or keeps_more(self.mixers))

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Return the sum of the outputs of all mixers."""
        return self.extend(Flow(x), layout).x

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Return the sum of the outputs, and the states of all mixers."""
        states = cast(tuple[State, ...], flow.state or (None,) * len(self.mixers))
        total, after, x = None, [], flow.x
        for mixer, norm, scale, state in zip(
            self.mixers, self.norms, self.scales, states, strict=True
        ):
            flow = run_mixer(mixer, flow._replace(x=x, state=state), layout)
            output = norm(flow.x) * scale
            total = output if total is None else total + output
            after.append(flow.state)
        assert total is not None
        return flow._replace(x=total, state=None if states[0] is None else tuple(after))

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return the empty states of all mixers; `Unsupported` if one of them has none."""
        return joint_state(self.mixers, batch_size, memory)


def mixer_at(make: MixerFactory, site: Site) -> nn.Module:
    """Return the mixer that `make` builds at `site`, if it fits there; else raise an error."""
    return checked_mixer(
        make(site), site=site, positions=site.positions, causal=site.causal,
        max_length=site.max_length,
    )  # fmt: skip


def run_mixer(mixer: nn.Module, flow: Flow, layout: Layout) -> Flow:
    """Return what one of several mixers makes of `flow`."""
    if isinstance(mixer, Extends):
        return mixer.extend(flow, layout)
    return flow.with_x(mixer(flow.x, layout))


def joint_state(mixers: Iterable[nn.Module], batch_size: int, memory: int) -> State:
    """Return the empty states of all mixers; `Unsupported` if one of them has none."""
    states = []
    for mixer in mixers:
        if not isinstance(mixer, Remembers):
            raise Unsupported(
                f"{type(mixer).__name__} has no state that continues from token to token: "
                "choose another family for this layer"
            )
        states.append(mixer.initial_state(batch_size, memory))
    return tuple(states)


def keeps_more(mixers: Iterable[nn.Module]) -> bool:
    """Return whether the state of one mixer grows with its memory, and that of another does not."""

    def size(mixer: Any, memory: int) -> int:
        return size_bytes(mixer.initial_state(1, memory))

    try:
        return len({size(mixer, 2) > size(mixer, 1) for mixer in mixers}) == 2
    except (Unsupported, AttributeError):  # one has no state, and so the layer has none
        return False


def common_traits(
    traits: Sequence[Traits], owns: Sequence[Mapping[str, Any]], *, reversible: bool = True
) -> Traits:
    """Return what mixers guarantee together.

    Args:
        traits: Of each mixer.
        owns: The options of the backbone that each mixer has for itself.
        reversible: Whether they pass on nothing but tokens.
    """

    def some(name: str) -> Any:
        return any(getattr(each, name) for each in traits)

    pairs = [*zip(traits, owns, strict=True)]
    encodings = frozenset(each.value for each in INSIDE)
    positions = [encodings if "positions" in own else each.positions for each, own in pairs]
    shared = [each.options | {*own} for each, own in pairs]
    longest = [each.max_length for each in traits if each.max_length is not None]
    reaches = [each.reach for each in traits]
    return Traits(
        supports=frozenset(FACTS).intersection(*(each.supports for each in traits)),
        positions=encodings.intersection(*positions),
        options=frozenset(SITE_OPTIONS).intersection(*shared),
        causal=all(each.causal for each in traits),
        max_length=min(longest, default=None),
        operations=max(each.operations for each in traits),
        memory=max(each.memory for each in traits),
        reach=None if None in reaches else max(cast(list[int], reaches)),
        by_batch=next((each.by_batch for each in traits if each.by_batch), ""),
        in_streams=frozenset[str]().union(*(each.in_streams for each in traits)),
        reversible=reversible and all(each.reversible for each in traits),
        keeps_length=all(each.keeps_length for each in traits),
        **{
            name: some(name)
            for name in (
                "hides_others", "selection_leak", "weight_dropout", "surrogate_gradient",
                "training_noise", "random_draws", "simulated", "by_segment", "summarises",
                "sees_order",
            )
        },
    )  # fmt: skip
