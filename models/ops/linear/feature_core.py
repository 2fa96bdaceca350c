"""The core of attention by features, causal or bidirectional; a family supplies the feature maps.

For short sequences, weights of all pairs can take fewer operations than features. If the family
knows a formula for them, they are used instead; only lengths and widths decide this.
"""

from abc import ABC, abstractmethod
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn

from lra.models.mixer import Layout, State, Traits, Unsupported
from lra.models.ops.linear.causal_product import Memory, causal_product, empty_memory
from lra.models.ops.linear.feature_product import feature_product
from lra.models.ops.linear.features import FeatureMaps
from lra.models.ops.linear.pair_product import is_cheaper, pair_product


class FeatureCore(nn.Module, ABC):
    """Attention by features, in either direction; when causal, running sums are its state."""

    def __init__(self, traits: Traits, chunk: int) -> None:
        super().__init__()
        if chunk < 1:
            raise ValueError(
                f"chunk is the number of tokens in one block: got {chunk}; use 1 or more"
            )
        self.traits, self.chunk = traits, chunk

    @abstractmethod
    def maps(
        self, q: Float[Tensor, "b h l k"], k: Float[Tensor, "b h s k"], layout: Layout
    ) -> FeatureMaps:
        """Return the feature maps for these queries and keys."""

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Return attention by features of each query to all real keys; if causal, up to itself.

        Keys and values at padding must be finite: they are computed from zeros
        (`lra.models.mixer.blanked`).
        """
        if "keep" not in self.traits.supports:  # the family attends to padding
            layout = layout._replace(keep=None)
        maps = self.maps(q, k, layout)
        causal = self.traits.causal
        if is_cheaper(q, k, v, maps, self.chunk if causal else None):
            return pair_product(q, k, v, maps, causal=causal, keep=layout.keep)
        if not causal:
            return feature_product(q, k, v, maps, layout.keep, blank=True)
        o, _ = causal_product(q, k, v, maps, chunk=self.chunk, keep=layout.keep, blank=True)
        return o

    def initial_state(self, shape: tuple[int, ...], like: Tensor) -> State:
        """Return zero sums, for `shape` = (b, h, memory, k, v), of one size for any memory."""
        if self.traits.selection_leak:
            raise Unsupported(
                f"with these options, {type(self).__name__} has no state that continues from "
                "token to token, because its features depend on the whole sequence"
            )
        token = like.new_zeros(*shape[:2], 1, shape[3])
        return empty_memory(shape, self.maps(token, token, Layout()), like)

    def extend(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
        state: tuple[Tensor, ...],
    ) -> tuple[Float[Tensor, "b h l v"], tuple[Tensor, ...]]:
        """Return the outputs of new queries, and the sums with the new keys added to `state`."""
        o, memory = causal_product(
            q, k, v, self.maps(q, k, layout),
            chunk=self.chunk, keep=layout.keep, memory=Memory(*state),
        )  # fmt: skip
        return o, cast(Memory, memory)
