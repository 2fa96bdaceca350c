"""Reference without token mixing: y_i = W_o W_v x_i, an upper bound for the speed of mixers.

Use it to measure the time and memory of the rest of the architecture. It is "OPT" in the figures of
the Performer paper (Choromanski et al. 2020, arXiv:2009.14794): of attention, only the value and
the output projection remain. Since tokens never exchange information before the pooling, a model of
this family can only count tokens.

Cost: the layer takes 4 n D^2 operations. Differences from the paper: query and key projections are
omitted, since they would have no effect.
"""

from jaxtyping import Float
from torch import Tensor

from lra.models.linear_map import projection
from lra.models.mixer import Family, Flow, Layout, Site, State, Traits, blanked
from lra.models.multi_head import APPLIED, biases


class Identity(Family):
    """The value and the output projection, and nothing between them."""

    def __init__(self, site: Site, *, bias: bool = True) -> None:
        """Make both projections; every mask is supported, because no token reads another."""
        super().__init__()
        self.traits = Traits(
            supports=Traits().supports | {"document"},
            options=APPLIED,
            causal=site.causal,
            row_stochastic=True,
            sees_order=False,
        )
        with_biases = biases(site, bias)
        self.v_proj = projection(site.width, site.inner_width, bias=with_biases.qkv)
        self.out_proj = projection(site.inner_width, site.width, bias=with_biases.output)

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Apply both projections; no token depends on another."""
        x = blanked(x, layout, self.traits)
        y: Tensor = self.out_proj(self.v_proj(x))
        return y

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Return the same as `forward`, and the state unchanged."""
        return flow.with_x(self.forward(flow.x, layout))

    def initial_state(self, batch_size: int, memory: int) -> State:  # noqa: ARG002
        """Return an empty tuple, because the mixer remembers nothing."""
        return ()
