"""Families that draw at random: on their steps alone, and as when they are built."""

import pytest
import torch

from lra.models.families.linformer import Linformer, Projection
from lra.models.families.performer import Performer
from lra.models.families.reformer import Reformer
from lra.models.families.skyformer import Skyformer
from lra.models.families.yoso import Yoso
from lra.models.mixer import AfterStep, Layout
from tests.attention import builder, drawn

DRAWING = {
    "core.length_map.keys core.length_map.values": builder(
        Linformer, projected_length=[6], projection=Projection.frozen_jl
    ),
    "core.projection": builder(Performer),
    "rotations": builder(Reformer, chunk=4),
    "core.draws": builder(Skyformer, landmarks=8),
    "core.planes": builder(Yoso),
}
"""What each draws, and what builds it."""


def stepped(mixer, *steps):
    """Return the state behind these steps, the generator of a step being seeded with its number."""
    for step in steps:
        for part in mixer.modules():
            if isinstance(part, AfterStep):
                part.after_step(step, torch.Generator().manual_seed(step))
    # A mixer's first draws were rounded to float32.
    return {name: value.to(torch.float32, copy=True) for name, value in mixer.state_dict().items()}


def differing(one, other):
    return [name for name in one if not torch.equal(one[name], other[name])]


@pytest.mark.parametrize(("names", "built"), DRAWING.items())
def test_draws_stay_until_their_time_has_come(names, built):
    mixer, x = built(redraw_every=3, seed=0), drawn(2, 20, 12)
    before, first, state = stepped(mixer), mixer(x, Layout()), torch.get_rng_state()
    assert not differing(before, stepped(mixer, 1, 2))
    after = stepped(mixer, 3)
    assert differing(before, after) == names.split()
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.allclose(mixer(x, Layout()), first)
    assert set(names.split()).isdisjoint(differing(after, stepped(built(seed=3))))
    assert not differing(after, stepped(mixer, 4, 5))
    assert not differing(before, stepped(built(redraw_every=0, seed=0), 3))
