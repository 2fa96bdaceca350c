"""Compressed attention: sizes, special cases, the index and its loss, what is never formed."""

import math

import pytest
import torch

from lra.models.families.compressed_attention import CompressedMultiQuery
from lra.models.mixer import Flow, Layout, Positions
from lra.models.ops.exact import sdpa
from tests.attention import Largest, builder, drawn
from tests.literal.compressed import chosen, index_scores, pooled, rotated
from tests.literal.heads import normed

ALL = Layout()
USUAL = {
    "width": 32, "heads": 4, "own_head_width": 16, "causal": True, "positions": Positions.rotary,
    "query_width": 24, "output_groups": 2, "output_rank": 12, "window": 5, "moved": 0.3,
}  # fmt: skip
HEAVY = {"block": 8}
SPARSE = {"form": "sparse", "block": 4, "index_heads": 3, "index_width": 8}
built = builder(CompressedMultiQuery, **USUAL)


@pytest.mark.parametrize(("options", "number"), [(HEAVY, 5_564), (SPARSE, 8_356)])
def test_a_layer_has_as_many_parameters_as_the_released_one(options, number):
    assert sum(each.numel() for each in built(**options).parameters()) == number


@pytest.mark.parametrize("options", [HEAVY, {**SPARSE, "top": 2}], ids=["heavy", "sparse"])
def test_later_tokens_change_nothing_and_left_padding_moves_no_block(options):
    mixer, x = built(**options), drawn(2, 41, 32)
    y = mixer(x, ALL)
    later = x.clone()
    later[:, 29:] += 1.0
    changed = (mixer(later, ALL) - y).abs().amax((0, 2))
    assert changed[:29].max() == 0
    assert changed[29:].min() > 1e-3
    padded = torch.cat((drawn(2, 3, 32, seed=4), x), 1)
    keep = torch.arange(44).expand(2, -1) >= 3
    torch.testing.assert_close(mixer(padded, Layout(keep=keep))[:, 3:], y, atol=1e-12, rtol=0)


def test_without_whole_blocks_and_sinks_it_is_attention_with_one_key_that_is_its_value():
    mixer, x = built(block=50, window=40, positions=Positions.none), drawn(2, 40, 32)
    with_sink = mixer(x, ALL)
    mixer.sink.data.fill_(-1e9)
    q = normed(mixer.q_proj(x), mixer.q_norm.weight, 1e-6) @ mixer.q_up.weight.mT
    q = normed(q.unflatten(-1, (4, 16)), 1.0, 1e-6).transpose(1, 2)
    c = normed(mixer.kv_proj(x), mixer.kv_norm.weight, 1e-6)[:, None].expand(-1, 4, -1, -1)
    wanted = mixer.merge(sdpa(q, c, c, causal=True).transpose(1, 2))
    torch.testing.assert_close(mixer(x, ALL), wanted, atol=1e-12, rtol=0)
    assert (with_sink - wanted).abs().max() > 0.01


def test_a_large_sink_leaves_nothing_of_its_head():
    mixer = built(**HEAVY)
    mixer.sink.data.fill_(1e9)
    assert mixer(drawn(2, 40, 32), ALL).abs().max() < 1e-9


def test_outputs_do_not_depend_on_where_a_stream_stands():
    """Positions act by distance alone, also in values, which are rotated back."""
    mixer, x = built(**SPARSE, top=3), drawn(2, 30, 32)
    states = mixer.initial_state(2, 64)
    lead = mixer.extend(Flow(drawn(2, 4 * 50, 32, seed=7), states), ALL).state
    fresh = tuple(torch.zeros_like(part) if n != 1 else part for n, part in enumerate(lead))
    mixer.index.weights.weight.data.zero_()  # the latest entries are chosen, of new tokens alone
    late = mixer.extend(Flow(x, fresh), ALL).x[:, 16:]
    torch.testing.assert_close(late, mixer(x, ALL)[:, 16:], atol=1e-10, rtol=0)


def test_all_entries_are_the_choice_where_no_more_are_there():
    x = drawn(2, 41, 32)
    few, many = built(**SPARSE, top=10), built(**SPARSE, top=512)
    torch.testing.assert_close(few(x, ALL), many(x, ALL), atol=1e-12, rtol=0)
    fewer = built(**SPARSE, top=9)(x, ALL)
    assert (fewer - many(x, ALL)).abs().amax((0, 2))[-1] > 1e-4
    torch.testing.assert_close(fewer[:, :39], many(x, ALL)[:, :39], atol=1e-12, rtol=0)


def test_of_equal_scores_the_nearer_entry_is_chosen():
    mixer, x = built(**SPARSE, top=2), drawn(2, 40, 32)
    mixer.index.weights.weight.data.zero_()
    y, other = mixer(x, ALL), x.clone()
    other[:, :28] += 1.0  # the entries before 32 - 4 are the last two and the block before them
    changed = (mixer(other, ALL) - y).abs().amax((0, 2))
    assert changed[39] == 0
    assert changed[34] > 1e-4


def test_the_index_learns_by_its_loss_and_by_nothing_else():
    mixer, x = built(**SPARSE, top=3).train(), drawn(2, 41, 32).requires_grad_()
    of_index = {name for name, _ in mixer.named_parameters() if name.startswith("index.")}
    flow = mixer.extend(Flow(x), ALL)
    torch.autograd.backward(flow.x.square().sum(), retain_graph=True)
    moved = {name for name, each in mixer.named_parameters() if each.grad is not None}
    assert not moved & of_index
    assert len(moved) == len([*mixer.parameters()]) - len(of_index)
    mixer.zero_grad()
    x.grad = None
    torch.autograd.backward(flow.penalties["index"])
    assert {name for name, each in mixer.named_parameters() if each.grad is not None} == of_index
    assert x.grad is None
    assert "index" not in mixer.eval().extend(Flow(x), ALL).penalties
    assert not built(**SPARSE, penalty=0.0).train().extend(Flow(x), ALL).penalties
    assert not built(**HEAVY).train().extend(Flow(x), ALL).penalties


def test_rows_say_that_no_loss_trains_the_index():
    assert "random selector" in built(**SPARSE, penalty=0.0).traits.remark
    assert not built(**SPARSE).traits.remark
    assert not built(**HEAVY).traits.remark


@pytest.mark.parametrize("top", [3, 512])
def test_the_loss_is_the_divergence_from_attention_to_the_chosen_entries(top):
    mixer, x = built(**SPARSE, top=top, penalty=0.5).train(), drawn(1, 27, 32)
    total, rows = x.new_zeros(()), x[0]
    entries, keys = pooled(mixer.pooling, rows, mixer), pooled(mixer.index.pooling, rows, mixer)
    for t in range(len(rows)):
        done = (t + 1) // 4
        which = chosen(mixer, rows, t, keys[:done])
        if not which:
            continue
        latent = normed(mixer.q_proj.weight @ rows[t], mixer.q_norm.weight, 1e-6)
        heads = normed((mixer.q_up.weight @ latent).view(4, 16), 1.0, 1e-6)
        near = normed(mixer.kv_proj(rows), mixer.kv_norm.weight, 1e-6)
        near = [rotated(near[j], j, mixer) for j in range(max(0, t - 4), t + 1)]
        c, mass = torch.stack([*near, *(entries[n] for n in which)]), 0.0
        for q, sink in zip(heads, mixer.sink, strict=True):
            scores = torch.cat((c @ rotated(q, t, mixer) / 4, sink[None]))
            mass = mass + scores.softmax(0)[len(near) : -1]
        p = mass / mass.sum()
        scores = torch.stack([index_scores(mixer, rows, t, keys[:done])[n] for n in which])
        total = total + (p * (p.log() - scores.log_softmax(0))).sum()
    found = mixer.extend(Flow(x), ALL).penalties["index"]
    torch.testing.assert_close(found, 0.5 * total / 27, atol=1e-12, rtol=1e-10)
    mixer.alone = "index"  # a stage that trains the index alone: over all entries
    whole = mixer.extend(Flow(x), ALL).penalties["index"]
    assert math.isclose(found.item(), whole.item()) == (top == 512)


def test_padding_has_no_part_in_the_loss():
    mixer, x = built(**SPARSE, top=3).train(), drawn(2, 27, 32)
    keep = torch.arange(27).expand(2, -1) >= 6
    padded = mixer.extend(Flow(x), Layout(keep=keep)).penalties["index"]
    alone = mixer.extend(Flow(x[:, 6:]), ALL).penalties["index"]
    torch.testing.assert_close(padded, alone, atol=1e-12, rtol=0)


@pytest.mark.parametrize("options", [{"block": 64}, {**SPARSE, "top": 8}], ids=["heavy", "sparse"])
def test_no_tensor_has_a_number_for_each_pair_of_tokens(options):
    length = 4_096
    mixer = built(**options, max_length=length).float().train()
    x = drawn(1, length, 32).float().requires_grad_()
    with Largest() as largest:
        flow = mixer.extend(Flow(x), ALL)
        torch.autograd.backward(flow.x.sum() + sum(flow.penalties.values()))
    assert largest.elements < length**2 / 30


def test_a_state_stores_the_window_unfinished_blocks_and_entries():
    heavy, sparse = built(**HEAVY), built(**SPARSE)
    numbers = [part[0].numel() for part in heavy.initial_state(1, 64)]
    assert numbers == [4 * 16, 1, 8 * 2 * 16, (64 // 8 + 1) * 16]
    numbers = [part[0].numel() for part in sparse.initial_state(1, 64)]
    raw = 2 * 4 * 4
    assert numbers == [4 * 16, 1, raw * 16, 17 * 16, raw * 8, 17 * 8]
