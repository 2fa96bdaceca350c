"""Gated DeltaNet: the delta rule with one data-dependent decay per head.

    S_t = alpha_t S_(t-1) + beta_t k_t (v_t - alpha_t S_(t-1)^T k_t)^T,   o_t = S_t^T q_t / sqrt(k)
    y = W_O (silu(W_g x) * norm_h(o)),   alpha_t = exp(-A_h softplus(W_a x_t + b_h))

Queries, keys, values and beta are those of `delta_net`. A_h is drawn uniformly from (0, 16), and
b_h so that softplus(b_h) is log-uniform in [0.001, 0.1].

With `log_linear` a token weighs its past in blocks of 1, 2, 4, ... tokens. There is one state S for
the block of each level, and these states add up to the state above. A token reads the sum of
lambda_t S_t over levels, where lambda_t of a head and a level is softplus(L * W_l x).

With `comba` the error is against the state that is not yet decayed, and queries lose some of what
their own token writes, with d and D learned for each head:

    S_t = alpha_t S_(t-1) + beta_t k_t (v_t - S_(t-1)^T p_t)^T,   p_t = sigma(d) k_t
    o_t = S_t^T (q_t - D p_t) / sqrt(k),   d and D start at 1 and at `correction`

With `precondition` = x, what a token writes is scaled by its keys' past: the key that writes is
M_t * k_t, where M_t is between 1 / x and x and smaller for channels with a large second moment.

Cost       The projections take 12 d^2 operations a token if values are twice as wide as keys, and
           each head takes those of `delta_product`. State: k v numbers a head, and the last 3
           inputs of each convolution; with `precondition`, k numbers more. With `log_linear`, each
           head takes the operations of `log_linear_product`, and its state has k v numbers for each
           of log2(l) levels.
Source     Yang et al. 2024, arXiv:2412.06464, and its layer in flash-linear-attention; with
           `householders`, arXiv:2502.10297; log-linear attention: Guo et al. 2025,
           arXiv:2506.04761; Comba: arXiv:2506.02475; preconditioned: Tumma et al. 2026,
           arXiv:2604.21100.
Notation   the paper's d_k, d_v are widths of one head; v / k is `value_expansion`.
Published  The paper's models are causal, with convolutions of 4 taps, `value_expansion` 2 and
           without biases. Their blocks have a gated feed-forward network, RMSNorm and no positions:
           model.backbone.positions=none. Heads have 256 channels of keys, and all heads together
           are 3/4 as wide as the model.
           Comba's have an output gate by sigma. Their small models start D at 0.02.
Differs    Values of A that are drawn below 1e-6 are raised to 1e-6. The layer of Comba in
           flash-linear-attention divides p by its length, so that d has no effect there, and
           subtracts D p from q before it divides q by its length.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import Count, Need, Positive, Site, options
from lra.models.ops.gated.delta_layer import DeltaRule, KeyNorm, RuleInputs, StreamActivation
from lra.models.ops.gated.head_norm import Gate
from lra.models.ops.gated.precondition import check_range
from lra.models.ops.gated.steps import step_biases
from lra.models.ops.numerics import full_precision, sum_dtype


@options
class GatedDeltaNet(DeltaRule):
    """DeltaNet with a separate decay for each head."""

    value_expansion: Count = 2
    convolution: int | None = 4
    householders: Count = 1
    """Number of times a token writes to the state, which decays once per token; with more than 1,
    the family is DeltaProduct."""
    negative_eigenvalues: bool = False
    log_linear: bool = False
    comba: bool = False
    """Whether the error is against the undecayed state, with corrected queries (Comba)."""
    correction: float = 1.0
    """Initial value of Comba's D, the share of its key that a query loses."""
    precondition: float | None = None
    """Largest factor, 1 to 2, by which the second moment of a key channel scales what is written
    there (1.5 in the paper); None: none."""
    gate: Gate = Gate.silu
    activation: StreamActivation = StreamActivation.silu
    key_norm: KeyNorm = KeyNorm.l2
    head_epsilon: Positive = 1e-5
    """Number that the norm of each head's output adds to the mean square; Qwen3-Next has 1e-6."""
    chunk: Count = 32
    version = 2  # gradients of strong decays are precise
    undecayed = ("log_rate", "step_bias", "level_scale", "query_correction")
    needs = (*DeltaRule.needs, Need("correction", comba=True))

    def build(self, site: Site) -> None:
        """Make projections and gates; ValueError for options that exclude each other."""
        if self.log_linear and self.householders != 1:
            raise ValueError(
                "with log_linear=true, a token can update the state only once: got "
                f"householders={self.householders} updates per token; set it to 1, or "
                "log_linear=false"
            )
        if self.comba and (self.log_linear or self.householders != 1 or self.negative_eigenvalues):
            raise ValueError(
                "comba=true needs log_linear=false, householders=1 and negative_eigenvalues=false "
                "(a beta above 1 lets undecayed states grow): got "
                f"log_linear={str(self.log_linear).lower()}, householders={self.householders}, "
                f"negative_eigenvalues={str(self.negative_eigenvalues).lower()}"
            )
        if self.precondition is not None and (
            self.log_linear or self.comba or self.householders != 1
        ):
            raise ValueError(
                "precondition needs log_linear=false, comba=false and householders=1: got "
                f"precondition={self.precondition}, log_linear={str(self.log_linear).lower()}, "
                f"comba={str(self.comba).lower()}, householders={self.householders}"
            )
        check_range(self.precondition, negative_eigenvalues=self.negative_eigenvalues)
        super().build(site)
        self.add_preconditioner(site, self.precondition, slowest=0)
        if self.log_linear:
            self.add_levels(site)
        if self.comba:
            self.early = True
            self.inner_decay = nn.Parameter(torch.ones(site.heads))
            self.query_correction = nn.Parameter(torch.full((site.heads,), self.correction))

    def rule_inputs(
        self,
        x: Float[Tensor, "b l d"],
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h m k"],
        v: Float[Tensor, "b h m v"],
    ) -> RuleInputs:
        """Return what `delta_product` takes; with `comba`, p reads the state and corrects q."""
        inputs = super().rule_inputs(x, q, k, v)
        if not self.comba:
            return inputs
        decay, correction = (
            each.to(k.dtype)[:, None, None] for each in (self.inner_decay, self.query_correction)
        )
        p = decay.sigmoid() * k
        q = q - correction * k.shape[-1] ** -0.5 * p
        return inputs._replace(q=q, k=p, w=inputs.writers, beta=None)

    def add_gates(self, site: Site) -> None:
        """Make the parameters of the decays: log A, the map to the steps, and its bias."""
        self.decay_map = projection(site.width, site.heads, bias=False)
        self.log_rate = nn.Parameter(torch.empty(site.heads))
        with torch.no_grad():
            self.log_rate.uniform_(0, 16).clamp_(min=1e-6).log_()
        self.step_bias = nn.Parameter(step_biases(site.heads))

    def log_decays(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b h l"]:
        """Return log alpha of each head and token, in float32 or float64."""
        with full_precision(x):
            dtype = sum_dtype(x)
            steps = F.softplus(self.decay_map(x).to(dtype) + self.step_bias.to(dtype))
            return (-self.log_rate.to(dtype).exp() * steps).transpose(1, 2)
