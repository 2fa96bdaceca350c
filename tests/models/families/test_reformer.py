"""The Reformer around its attention: projections, hashing, options, the LRA variant, refusals."""

import math

import pytest
import torch
from torch import Tensor

from lra.models.families.reformer import LogitScale, Reformer, Wrap, bucket_factors
from lra.models.mixer import Flow, Layout, Positions, Unsupported, Variant
from lra.models.ops.hashing.lsh import Rules
from lra.models.ops.hashing.lsh_lists import hash_buckets
from lra.models.positions import alibi_slopes, rotate
from tests.attention import DIRECTIONS, builder, drawn
from tests.literal.hashing import lra_reformer_attention
from tests.models.ops.hashing.lsh_forms import literal, logits

built = builder(Reformer)


def projected(mixer: Reformer, x: Tensor) -> tuple[Tensor, Tensor]:
    """Shared queries and keys, and values, by head."""
    parts = (x @ layer.weight.T for layer in (mixer.qk_proj, mixer.v_proj))
    u, v = (part.unflatten(-1, (mixer.heads, -1)).transpose(1, 2) for part in parts)
    return u, v


def written_out(mixer: Reformer, x: Tensor, rules: Rules, *, start=None, slopes=None) -> Tensor:
    u, v = projected(mixer, x)
    u = u if start is None else rotate(u, start)
    buckets = hash_buckets(u, mixer.rotations, mixer.factors)
    o = literal(u, v, buckets, rules, slopes=slopes)
    return o.transpose(1, 2).flatten(-2) @ mixer.out_proj.weight.T


@DIRECTIONS
def test_equals_the_paper_through_all_projections(causal: bool) -> None:
    mixer, x = built(causal=causal, chunk=4, rounds=3), drawn(2, 29, 12)
    assert mixer.factors == [32]
    wanted = written_out(mixer, x, Rules(4, causal=causal))
    torch.testing.assert_close(mixer(x, Layout()), wanted, atol=1e-12, rtol=0)


def test_options_reach_the_attention() -> None:
    mixer = built(
        chunk=4, before=2, after=1, rounds=2, logit_scale=LogitScale.rsqrt_d, wrap=Wrap.per_round,
        attend_across_buckets=False, allow_duplicates=False, buckets=[4, 2], bias=True,
    )  # fmt: skip
    assert mixer.rules == Rules(
        4, 2, 1, scale=0.5, joint=False, across_buckets=False, duplicates=False
    )
    assert mixer.rotations.shape == (2, 3, 4, 3)
    assert not mixer.out_proj.bias.any()
    x = drawn(1, 29, 12)
    wanted = written_out(mixer, x, mixer.rules)
    torch.testing.assert_close(mixer(x, Layout()), wanted, atol=1e-12, rtol=0)


@DIRECTIONS
def test_rotary_positions_turn_queries_and_keys_before_they_are_hashed(causal: bool) -> None:
    mixer = built(causal=causal, chunk=4, positions=Positions.rotary)
    x, start = drawn(2, 17, 12), torch.tensor([0, 40])
    wanted = written_out(mixer, x, Rules(4, causal=causal), start=start)
    seen = mixer(x, Layout(start=start))
    torch.testing.assert_close(seen, wanted, atol=1e-12, rtol=0)
    assert not torch.allclose(seen[1], mixer(x, Layout())[1])


@DIRECTIONS
def test_alibi_falls_with_the_distance_in_the_text(causal: bool) -> None:
    mixer = built(causal=causal, chunk=4, positions=Positions.alibi)
    x = drawn(2, 17, 12)
    wanted = written_out(mixer, x, Rules(4, causal=causal), slopes=alibi_slopes(3))
    torch.testing.assert_close(mixer(x, Layout()), wanted, atol=1e-12, rtol=0)
    assert "slopes" not in mixer.state_dict()


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


def lra_written_out(mixer: Reformer, x: Tensor) -> Tensor:
    """What the code of the Long Range Arena does: zeros fill up to the next multiple of 10."""
    total = x.shape[1] + 10 - x.shape[1] % 10
    padded = torch.cat((x, x.new_zeros(x.shape[0], total - x.shape[1], x.shape[2])), dim=1)
    out = lra_reformer_attention(*projected(mixer, padded), mixer.rotations[0, 0])
    return out.reshape(len(x), total, -1)[:, : x.shape[1]]


@pytest.mark.parametrize("length", [1, 30, 37])
def test_the_lra_variant_is_that_code(length: int) -> None:
    mixer, x = built(variant=Variant.lra), drawn(2, length, 12)
    seen = mixer(x, Layout())
    torch.testing.assert_close(seen, lra_written_out(mixer, x), atol=1e-12, rtol=0)
    assert set(mixer.state_dict()) == {"qk_proj.weight", "v_proj.weight", "rotations"}


def test_the_lra_variant_has_one_draw_for_ever() -> None:
    mixer = built(variant=Variant.lra, seed=5)
    before = mixer.rotations.clone()
    mixer.after_step(1, torch.Generator())
    assert torch.equal(mixer.rotations, before)
    assert torch.equal(built(variant=Variant.lra, seed=6).rotations, before)
    with pytest.raises(Unsupported, match="no causal mask: choose variant=faithful"):
        built(variant=Variant.lra, causal=True)
    with pytest.raises(ValueError, match="variant=lra fixes rounds at 1: got 4; leave it at 2"):
        built(variant=Variant.lra, rounds=4)


def test_one_chunk_is_exact_attention_with_shared_queries_and_keys() -> None:
    mixer, x = built(heads=1, chunk=64), drawn(1, 30, 12)
    u, v = projected(mixer, x)
    scores = logits(u[0, 0], Rules(64))
    wanted = scores.softmax(-1) @ v[0, 0] @ mixer.out_proj.weight.T
    torch.testing.assert_close(mixer(x, Layout())[0], wanted, atol=1e-12, rtol=0)


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="even head width: got 3"):
        built(heads=4, positions=Positions.rotary)
    mixer, x = built(causal=True, chunk=4), drawn(1, 9, 12)
    with pytest.raises(Unsupported, match="no state along time"):
        mixer.initial_state(1, 30)
    with pytest.raises(Unsupported, match="run the whole sequence"):
        mixer.extend(Flow(x, (x,)), Layout())
    assert torch.equal(mixer.extend(Flow(x), Layout()).x, mixer(x, Layout()))
