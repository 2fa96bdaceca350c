"""The bound without attention: two projections, and nothing that mixes."""

import torch

from lra.models.families.identity import Identity
from lra.models.families.sdpa import SDPA
from lra.models.mixer import Layout
from tests.attention import builder

built = builder(Identity)


def test_every_parameter_has_a_gradient_and_a_name_of_the_attentions() -> None:
    mixer = built()
    mixer(torch.randn(2, 7, 12, dtype=torch.float64), Layout()).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in mixer.parameters())
    full = builder(SDPA)()
    missing = mixer.load_state_dict(full.state_dict(), strict=False)
    assert not missing.missing_keys


def test_supports_what_hides_tokens_and_claims_no_sight() -> None:
    traits = built(causal=True).traits
    assert traits.supports == {"keep", "start", "document"}
    assert traits.positions == frozenset()
    assert traits.causal
