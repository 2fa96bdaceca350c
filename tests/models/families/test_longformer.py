"""Longformer's projections of global tokens, and what it refuses."""

import pytest
import torch
from torch import Tensor

from lra.models.families.longformer import STARTS, Longformer
from lra.models.mixer import Flow, Layout, Unsupported
from tests.attention import builder, drawn

SITE = {"width": 16, "heads": 4, "max_length": 64}


def some(rate: float, length: int, seed: int = 5) -> Tensor:
    return torch.rand(2, length, generator=torch.Generator().manual_seed(seed)) < rate


def built(*, apart: bool = True, **given) -> Longformer:
    """Return a mixer whose global projections have moved away from the others, if `apart`."""
    usual = builder(Longformer, **SITE, window=[5], block=4)
    return usual(**given, moved=0.3 if apart else 0.0)


def test_no_projection_is_without_use() -> None:
    assert not hasattr(built(), "query_global")
    assert not hasattr(built(cls=True, global_cls=False), "query_global")
    for mixer in (built(apart=False, cls=True), built(apart=False, global_mask=True)):
        for name, start in STARTS.items():
            one, other = getattr(mixer, name), getattr(mixer, start)
            assert one is not other
            assert torch.equal(one.weight, other.weight)
    assert "is_global" in built(global_mask=True).traits.supports
    assert "is_global" not in built(cls=True).traits.supports


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(Unsupported, match="global_mask=true"):
        built()(drawn(2, 9, 16), Layout(is_global=some(0.5, 9)))
    mixer = built(causal=True, global_mask=True)
    with pytest.raises(Unsupported, match="pass is_global=None"):
        mixer.extend(
            Flow(drawn(2, 9, 16), mixer.initial_state(2, 9)), Layout(is_global=some(0.5, 9))
        )
