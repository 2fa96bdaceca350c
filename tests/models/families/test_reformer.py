"""The Reformer around its attention: projections, hashing, options, the LRA variant, refusals."""

import math

import pytest
import torch

from lra.models.families.reformer import Reformer, bucket_factors
from lra.models.mixer import Flow, Layout, Unsupported, Variant
from tests.attention import builder, drawn

built = builder(Reformer)


def test_a_later_token_can_move_earlier_outputs_and_that_is_declared() -> None:
    mixer, x = built(causal=True, chunk=4), drawn(1, 33, 12)
    before = mixer(x, Layout())
    moved = []
    for seed in range(5, 15):
        x[:, -1] = drawn(12, seed=seed)
        moved.append(not torch.allclose(mixer(x, Layout())[:, :-1], before[:, :-1]))
    assert any(moved)
    assert mixer.traits.selection_leak
    assert not built().traits.selection_leak


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_weights_load_into_more_or_fewer_rounds(rounds: int) -> None:
    trained, other = built(chunk=4, rounds=2, seed=3), built(chunk=4, rounds=rounds, seed=4)
    own = other.rotations.clone()
    other.load_state_dict(trained.state_dict())
    shared = min(rounds, 2)
    assert torch.equal(other.rotations[:shared], trained.rotations[:shared])
    assert torch.equal(other.rotations[shared:], own[shared:])
    with pytest.raises(RuntimeError, match="rotations"):
        built(buckets=[6]).load_state_dict(trained.state_dict())


@pytest.mark.parametrize(
    ("length", "chunk", "factors"),
    [
        (1, 64, [2]), (256, 64, [8]), (2001, 64, [64]), (2049, 64, [8, 16]), (4096, 64, [8, 16]),
        (16384, 64, [16, 32]), (131072, 64, [64, 64]), (131073, 64, [16, 16, 32]),
    ],
)  # fmt: skip
def test_buckets_come_from_the_longest_input(length: int, chunk: int, factors: list[int]) -> None:
    assert bucket_factors(length, chunk) == factors
    assert math.prod(factors) >= 2 * length / chunk


def test_the_lra_variant_has_one_draw_for_ever() -> None:
    mixer = built(variant=Variant.lra, seed=5)
    before = mixer.rotations.clone()
    mixer.after_step(1, torch.Generator())
    assert torch.equal(mixer.rotations, before)
    assert torch.equal(built(variant=Variant.lra, seed=6).rotations, before)
    with pytest.raises(
        Unsupported, match="no causal mask, and this model must be causal: choose variant=faithful"
    ):
        built(variant=Variant.lra, causal=True)
    with pytest.raises(ValueError, match="variant=lra fixes rounds at 1: got 4; leave it at 2"):
        built(variant=Variant.lra, rounds=4)


def test_what_it_cannot_do_is_refused() -> None:
    mixer, x = built(causal=True, chunk=4), drawn(1, 9, 12)
    with pytest.raises(Unsupported, match="run the whole sequence"):
        mixer.extend(Flow(x, (x,)), Layout())
