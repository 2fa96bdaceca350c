"""PaTH attention where it is something else, in long sequences, and in a memory."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.families.path import PathAttention
from lra.models.mixer import Layout, Site
from lra.models.ops.exact import softmax_attention
from lra.models.ops.reflections import path_attention, reflections, stream_attention
from tests.attention import compare, drawn

SHAPE = 2, 3, 70
"""Rows, heads and tokens: two chunks of 32, and some more."""


def inputs(*, length=SHAPE[2], width=8):
    """Return queries, keys, values, axes of length 1 and betas between 0 and 2."""
    shape = *SHAPE[:2], length
    q, k, v, w = (drawn(*shape, width, seed=seed) for seed in range(4))
    return q, k, v, F.normalize(w, dim=-1), 2 * drawn(*shape, seed=4).sigmoid()


def attention(q, k, v, w, beta, *, chunk=32, **more):
    return path_attention(reflections(q, k, w, beta, chunk=chunk), v, **more)


def test_without_reflections_it_is_causal_attention_without_positions():
    q, k, v, w, beta = (x.requires_grad_() for x in inputs())
    found = attention(q, k, v, w, 0 * beta)
    compare(found, softmax_attention(q, k, v, causal=True), [q, k, v], atol=1e-12)


def test_gates_of_one_forget_nothing():
    q, k, v, w, beta = inputs()
    found = attention(q, k, v, w, beta, g=torch.zeros(SHAPE, dtype=torch.float64))
    torch.testing.assert_close(found, attention(q, k, v, w, beta), atol=1e-14, rtol=0)


def test_two_equal_reflections_cancel_and_one_mirrors_the_key():
    """With beta = 2 a product of two is the identity, and one changes the sign along w alone."""
    q, k, v, w, beta = inputs(length=3)
    w, beta = w[:, :, :1].expand_as(w), torch.full_like(beta, 2.0)
    first = attention(q, k, v, w, beta)[:, :, 2]
    mirrored = k - 2 * (k * w).sum(-1, keepdim=True) * w
    keys = torch.stack((k[:, :, 0], mirrored[:, :, 1], k[:, :, 2]), 2)
    wanted = softmax_attention(q[:, :, 2:], keys, v)[:, :, 0]
    torch.testing.assert_close(first, wanted, atol=1e-14, rtol=0)
    torch.testing.assert_close(mirrored.norm(dim=-1), k.norm(dim=-1))


def test_beta_of_one_erases_what_keys_hold_along_the_axis():
    q, k, _, w, beta = inputs(length=2)
    new = reflections(q, k, w, torch.ones_like(beta), chunk=2)
    held = (new.keys[:, :, 0, 0] * w[:, :, 1]).sum(-1)
    assert held.abs().max() < 1e-15 < (k[:, :, 0] * w[:, :, 1]).sum(-1).abs().max()


def test_the_two_scales_of_forget_gates_are_two_functions():
    """The public code's scale is 1 / sqrt(k); ours without it is the Forgetting Transformer's."""
    q, k, v, w, beta = inputs(length=64, width=32)
    g = F.logsigmoid(drawn(*SHAPE[:2], 64, seed=5))
    plain = attention(q, k, v, w, beta, g=g)
    scaled = attention(q, k, v, w, beta, g=g * 32**-0.5)
    assert (plain - scaled).abs().max() > 0.5
    site = Site(width=12, heads=3, max_length=9, causal=True)
    two = [
        PathAttention(site, forget=True, forget_scale=each).double() for each in ("none", "head")
    ]
    two[1].load_state_dict(two[0].state_dict())
    with torch.no_grad():
        # sigma(b)^2 is the gate whose logarithm is twice that of sigma(b); sqrt(k) = 2.
        for each, power in zip(two, (1, 2), strict=True):
            each.forget_map.weight.zero_()
            each.forget_map.bias.fill_((torch.tensor(0.5).double() ** power).logit())
    x = drawn(1, 9, 12)
    torch.testing.assert_close(two[0](x, Layout()), two[1](x, Layout()), atol=1e-13, rtol=0)


@pytest.mark.parametrize("chunk", [16, 64])
def test_long_sequences_lose_nothing_in_float32(chunk):
    given = inputs(length=2048, width=16)
    wanted = attention(*given, chunk=chunk)
    found = attention(*(x.float() for x in given), chunk=chunk)
    assert (found - wanted).abs().max() < 2e-5


@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.parametrize("pieces", [[1] * 23, [9, 1, 4, 9], [23]])
def test_a_memory_holds_the_last_tokens_with_all_reflections(pieces, forget):
    q, k, v, w, beta = inputs(length=23)
    g = F.logsigmoid(drawn(*SHAPE[:2], 23, seed=5))
    place, memory = torch.arange(23), 6
    near = (place[:, None] - place < memory)[None, None]
    wanted = attention(q, k, v, w, beta, g=g if forget else None, visible=near)
    empty = torch.zeros(*SHAPE[:2], memory, 8, dtype=torch.float64)
    state = (empty, empty, torch.zeros(2, dtype=torch.int64), *[empty[..., 0]] * forget)
    found, start = [], 0
    for size in pieces:
        part = slice(start, start + size)
        new = reflections(*(x[:, :, part] for x in (q, k, w, beta)), chunk=min(4, size))
        gates = g[:, :, part] if forget else None
        o, state = stream_attention(new, v[:, :, part], state, g=gates)
        found.append(o)
        start += size
    torch.testing.assert_close(torch.cat(found, 2), wanted, atol=1e-13, rtol=0)


def test_scores_in_passes_are_those_of_all_at_once(monkeypatch):
    given = [x.requires_grad_() for x in inputs()]
    wanted = attention(*given)
    monkeypatch.setattr("lra.models.ops.reflections.ROWS", 32)
    compare(attention(*given), wanted, given, atol=1e-12)
