"""A delta rule by head as a mixer: projections, convolutions, unit keys, norm and gate.

    S_t = D_t S_(t-1) + beta_t k_t (v_t - (D_t S_(t-1))^T k_t)^T,   o_t = S_t^T q_t / sqrt(k)
    y = W_O (act(W_g x) * norm_h(o))

A family says what D_t is made of: `add_gates` and `log_decays`; here it is 1. It may also change
queries, keys and values: `add_rates` and `rule_inputs`. A token may write several times,
decaying the state once and reading it behind its last one.
One that writes once may weigh its past by levels, where a family calls `add_levels`.
"""

from enum import StrEnum, auto
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import Site
from lra.models.ops.gated.delta_product import delta_product
from lra.models.ops.gated.head_norm import Gate, unit_heads
from lra.models.ops.gated.layer import Borders, Parts, ShortConvolutions
from lra.models.ops.gated.log_linear_layer import LogLinearMixer
from lra.models.ops.gated.precondition import Preconditioner
from lra.models.ops.numerics import full_precision, sum_dtype


class StreamActivation(StrEnum):
    """Activation of queries, keys and values after their convolutions."""

    silu = auto()
    relu = auto()
    identity = auto()


class KeyNorm(StrEnum):
    """Norm by which queries and keys are divided."""

    l2 = auto()
    """Their Euclidean norm."""
    sum = auto()
    """The sum of their channels, as in fast weight programmers; with relu, channels become weights
    that sum to 1."""


ACTIVATIONS = {StreamActivation.silu: F.silu, StreamActivation.relu: F.relu}


class RuleInputs(NamedTuple):
    """What tokens read and write by the delta rule, m times for l tokens."""

    q: Float[Tensor, "b h l k"]
    k: Float[Tensor, "b h m k"]
    """Keys that read the state."""
    w: Float[Tensor, "b h m k"] | None
    """Keys that write the error; None: beta k."""
    v: Float[Tensor, "b h m v"]
    beta: Float[Tensor, "b h m"] | None = None
    """Learning rates, in place of `w`."""

    @property
    def writers(self) -> Float[Tensor, "b h m k"]:
        """The keys that write the error."""
        return cast(Tensor, self.beta)[..., None] * self.k if self.w is None else self.w


class DeltaRule(LogLinearMixer):
    """A delta rule by head, normed and perhaps gated.

    Options:
        convolution: Number of tokens that the short convolution of queries, keys and values reads;
            None: no convolution.
        householders: Number of times a token writes to the state; more than 1 gives DeltaProduct.
        negative_eigenvalues: Whether the learning rate beta reaches 2 instead of 1, which allows
            negative eigenvalues.
        activation: Activation of queries, keys and values.
        key_norm: Norm by which queries and keys are divided.
    """

    chunk: int
    value_expansion = 1
    gate: Gate
    convolution: int | None
    householders = 1
    negative_eigenvalues: bool
    activation = StreamActivation.silu
    key_norm = KeyNorm.l2
    early = False
    """Whether tokens read the state before they decay it."""
    preconditioner: Preconditioner | None
    """Of the keys that write, where a family calls `add_preconditioner`."""

    def build(self, site: Site) -> None:
        """Add the projections, convolutions, gates and the norm of the layer."""
        self.preconditioner = None
        keys, values = site.inner_width, self.value_expansion * site.inner_width
        written = self.householders * keys, self.householders * values
        self.q_proj, self.k_proj, self.v_proj = self.projections(site, keys, written[0], written[1])
        self.add_rates(site)
        self.convolutions = ShortConvolutions((keys, *written), self.convolution)
        self.add_gates(site)
        width = site.head_width
        self.finish(site, keys=width, values=self.value_expansion * width, gate=self.gate)

    def add_rates(self, site: Site) -> None:
        """Make the map to the learning rates beta."""
        self.beta_map = projection(site.width, self.householders * site.heads, bias=False)

    def add_gates(self, site: Site) -> None:
        """Make the parameters of the decays; this layer has none."""

    def log_decays(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b h l *k"]:
        """Return the logarithm of each token's decay: 0, because this layer decays nothing."""
        return x.new_zeros(len(x), self.heads, x.shape[1], dtype=sum_dtype(x))

    def add_preconditioner(self, site: Site, largest: float | None, *, slowest: float) -> None:
        """Make the factors of keys that write, between 1 / `largest` and `largest`; None: none.

        A family calls it after `build`. `slowest` is the lower bound of the initial rates of decay.
        """
        if largest is not None:
            self.preconditioner = Preconditioner(site, largest, slowest=slowest)

    def empty(self, batch_size: int) -> Parts:
        """Return zeros for the states, and for the second moments of a preconditioner."""
        parts = super().empty(batch_size)
        if self.preconditioner is None:
            return parts
        return *parts, self.preconditioner.empty(batch_size)

    def rule_inputs(
        self,
        x: Float[Tensor, "b l d"],
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h m k"],
        v: Float[Tensor, "b h m v"],
    ) -> RuleInputs:
        """Return what `delta_product` takes, for scaled queries and unit keys in float32 or 64."""
        beta = self._by_head(self.beta_map(x), self.householders)[..., 0].to(k.dtype).sigmoid()
        return RuleInputs(q, k, None, v, 2 * beta if self.negative_eigenvalues else beta)

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return the outputs of the delta rule, and the layer's state after the last token.

        With n = `householders` above 1, every token becomes n steps: it writes in each of them,
        decays the state in the first and reads it in the last.
        """
        states, earlier_inputs = self.held(before)
        if self.preconditioner is not None:
            earlier_inputs, moments = earlier_inputs[:-1], earlier_inputs[-1]
        streams = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        projected, tails = self.convolutions(streams, earlier_inputs, borders)
        act = ACTIVATIONS.get(self.activation)
        q, k, v = projected if act is None else (act(stream) for stream in projected)
        writes = self.householders
        q, k, v = (self._by_head(part, n) for part, n in ((q, 1), (k, writes), (v, writes)))
        with full_precision(x):
            q, k = self._normed(q) * q.shape[-1] ** -0.5, self._normed(k)
            rule = self.rule_inputs(x, q, k, v)
            q, k, w, v, beta = rule
            if self.preconditioner is not None or self.levels:
                w, beta = rule.writers, None
            if self.early:  # a new document reads nothing of the state that it then clears
                k = borders.without_first(k)
        if self.preconditioner is not None:
            factors, moments = self.preconditioner(x, k, moments, borders)
            w, tails = factors * w, [*tails, moments]
        g, keep = borders.after_borders(self.log_decays(x)), borders.keep
        if self.levels:
            o, states = self.by_levels(q, k, v, g, x=x, held=states, borders=borders, w=w)
            return o.to(v.dtype).transpose(1, 2).flatten(2), (*states, *tails)
        if writes > 1:
            q, g = (_insert_zero_rows(part, writes, last) for part, last in ((q, True), (g, False)))
            keep = None if keep is None else keep.repeat_interleave(writes, 1)
        o, after = delta_product(
            q, k, w, v, g, beta=beta,
            state=states[0], chunk=self.chunk, keep=keep, early=self.early,
        )  # fmt: skip
        o = o[:, :, writes - 1 :: writes]  # what each token reads after its last write
        return o.transpose(1, 2).flatten(2), (after, *tails)

    def _by_head(self, x: Float[Tensor, "b l e"], times: int) -> Float[Tensor, "b h m k"]:
        """Return `x` by head, with `times` rows for each token one after another along m."""
        return x.view(*x.shape[:2], self.heads, times, -1).movedim(2, 1).flatten(2, 3)

    def _normed(self, x: Float[Tensor, "b h m k"]) -> Float[Tensor, "b h m k"]:
        """Return `x` divided by the norm that `key_norm` names, by head, in float32 or float64."""
        if self.key_norm == KeyNorm.l2:
            return unit_heads(x)
        wide = x.to(sum_dtype(x))
        return wide / (wide.sum(-1, keepdim=True) + 1e-6)


def _insert_zero_rows(x: Tensor, times: int, last: bool) -> Tensor:
    """Return `times` rows for each row of `x`: zeros, and `x` as the first or the last of them."""
    zeros = [torch.zeros_like(x)] * (times - 1)
    return torch.stack([*zeros, x] if last else [x, *zeros], 3).flatten(2, 3)
