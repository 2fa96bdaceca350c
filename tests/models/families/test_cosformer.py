"""cosFormer's horizon."""

import pytest
import torch

from lra.models.families.cosformer import Cosformer, Horizon
from lra.models.mixer import Flow, Layout
from tests.attention import builder
from tests.models.ops.linear.feature_forms import holes

make = builder(Cosformer, heads=2)


# the mixer


def test_the_current_horizon_counts_padding_and_attends_to_it():
    mixer = make(horizon=Horizon.current)
    x = torch.randn(2, 20, 12, dtype=torch.float64)
    assert torch.equal(mixer(x, Layout(keep=holes(20))), mixer(x, Layout()))
    assert mixer.traits.supports == {"start"}
    assert make().traits.supports == {"keep", "start"}


def test_positions_beyond_the_horizon_are_refused():
    mixer = make()
    x = torch.zeros(2, 60, 12, dtype=torch.float64)
    mixer(x, Layout(start=torch.tensor([0, 4])))
    with pytest.raises(ValueError, match="got a sequence that ends at position 65"):
        mixer(x, Layout(start=torch.tensor([0, 5])))
    with pytest.raises(ValueError, match=r"ends at position 65.*max_length >= 65"):
        mixer(torch.zeros(1, 65, 12, dtype=torch.float64), Layout())


def test_the_state_knows_where_the_horizon_ends():
    mixer = make(causal=True, max_length=10)
    x = torch.randn(1, 6, 12, dtype=torch.float64)
    state = mixer.extend(Flow(x, mixer.initial_state(1, 10)), Layout()).state
    with pytest.raises(ValueError, match="ends at position 12"):
        mixer.extend(Flow(x, state), Layout())
