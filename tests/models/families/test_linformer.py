"""Linformer's maps: how many, how they are drawn, what they cost."""

import pytest
import torch

from lra.models.backbone.requirements import checked_mixer
from lra.models.contract.counting import count_operations, fake_tensors
from lra.models.families.linformer import Linformer
from lra.models.mixer import Layout, Positions, Unsupported, Variant
from lra.models.ops.low_rank.length_map import Projection, Sharing
from tests.attention import builder, drawn, site

MATRIX = [Projection.learned, Projection.frozen_jl]
LENGTH, HEADS, WIDTH = 40, 3, 4
SHARED = (288, 24, 12, 1, 144, 12)
"""Matrices of 12 layers of 12 heads."""


def built(slots: int = 6, **given) -> Linformer:
    return builder(Linformer, max_length=LENGTH, projected_length=[slots], moved=0.3)(**given)


@pytest.mark.parametrize(("sharing", "matrices"), [*zip(Sharing, SHARED, strict=True)])
def test_sharing_leaves_the_papers_number_of_matrices(sharing: Sharing, matrices: int) -> None:
    shared: dict = {}
    layers = [
        Linformer(
            site(width=24, heads=12, max_length=50, layer=layer, depth=12, shared=shared),
            projected_length=[5],
            sharing=sharing,
        )
        for layer in range(12)
    ]
    model = torch.nn.ModuleList(layers)
    plain = sum(p.numel() for x in layers for p in x.parameters(recurse=False))
    plain += 12 * 4 * (24 * 24 + 24)
    assert sum(p.numel() for p in model.parameters()) - plain == matrices * 5 * 50


@pytest.mark.parametrize("projection", MATRIX)
def test_a_deviation_of_the_maps_is_what_they_are_drawn_with(projection) -> None:
    states = (
        built(20, projection=projection, deviation=given, moved=0.0).core.length_map.state_dict()
        for given in (0.02, 0.04)
    )
    for small, large in zip(*(state.values() for state in states), strict=True):
        torch.testing.assert_close(2 * small, large)
        assert 0.018 < small.std() < 0.022


def test_slots_of_x_need_unrotated_keys_and_few_slots() -> None:
    assert built(24).early
    assert not built(25).early
    assert not built(24, positions=Positions.rotary).early
    assert not built(24, sharing=Sharing.none).early
    with fake_tensors():
        counted = []
        for slots in (64, 129):
            mixer = Linformer(site(width=64, heads=1, max_length=8192), projected_length=[slots])
            x = torch.empty(1, 8192, 64)
            counted.append(count_operations(lambda m=mixer, x=x: m(x, Layout())))
    n, d = 8192, 64
    # early: E x twice and q, out of n tokens; late: E k, E v and four projections of n tokens
    biases = 2 * 2 * 64 * n
    assert counted[0] == 8 * n * 64 * d + 2 * 2 * n * d * d + 2 * 2 * 64 * d * d + biases
    assert counted[1] == 8 * n * 129 * d + 4 * 2 * n * d * d


def test_fewer_tokens_than_slots_are_projected_themselves() -> None:
    mixer = Linformer(site(width=64, heads=1, max_length=512), projected_length=[128])
    assert mixer.early
    counted = {}
    for n in (127, 128):
        x = torch.randn(1, n, 64)
        counted[n] = count_operations(lambda x=x: mixer(x, Layout()))
    d, m = 64, 128
    assert counted[127] == 8 * 127 * m * d + 4 * 2 * 127 * d * d
    assert (
        counted[128] == 8 * 128 * m * d + 2 * 2 * 128 * d * d + 2 * 2 * m * d * d + 2 * 2 * m * 128
    )


@pytest.mark.parametrize("projection", [*Projection])
def test_longer_input_is_refused(projection: Projection) -> None:
    mixer = built(projection=projection)
    x = drawn(2, LENGTH + 1, HEADS * WIDTH)
    for run in (mixer, super(Linformer, mixer).forward):
        with pytest.raises(
            ValueError, match="at most max_length=40 tokens: got 41 tokens; truncate"
        ):
            run(x, Layout())
    with pytest.raises(Unsupported, match="accepts at most 40 tokens, but this model needs 41"):
        checked_mixer(mixer, positions=Positions.none, causal=False, max_length=41)


def test_frozen_draws_come_from_the_site_and_stay() -> None:
    first, second = (built(projection=Projection.frozen_jl) for _ in range(2))
    weight = first.core.length_map.keys
    assert {"core.length_map.keys", "core.length_map.values"} < set(first.state_dict())
    assert not any(name.startswith("core") for name, _ in first.named_parameters())
    assert torch.equal(weight, second.core.length_map.keys)
    assert first.traits.random_draws
    assert not built().traits.random_draws
    large = built(50, max_length=4000, projection=Projection.frozen_jl).core.length_map
    large = torch.cat((large.keys, large.values))
    assert large.std().item() == pytest.approx(50**-0.5, rel=0.01)
    assert abs(large.mean().item()) < 1e-3
    assert not torch.equal(large[0], large[1])


def test_the_lra_form_has_16_slots_one_map_and_no_mask() -> None:
    mixer = Linformer(site(max_length=LENGTH), variant=Variant.lra).double()
    assert mixer.core.length_map.keys.shape == (1, 16, LENGTH)
    assert mixer.core.length_map.values is None
    x, keep = drawn(2, LENGTH, 12), torch.zeros(2, LENGTH, dtype=torch.bool)
    assert torch.equal(mixer(x, Layout(keep=keep)), mixer(x, Layout()))
    with pytest.raises(Unsupported, match="cannot exclude padding"):
        checked_mixer(mixer, positions=Positions.none, causal=False, max_length=LENGTH, padded=True)
    faithful = Linformer(site(max_length=500)).double()
    assert faithful.core.length_map.values.shape == (1, 128, 500)
    checked_mixer(faithful, positions=Positions.none, causal=False, max_length=500, padded=True)
