"""Forgetting attention against its paper, written out."""

import pytest
import torch

from lra.models.families.forgetting import Forgetting, fading_attention, levels
from lra.models.mixer import Layout, Positions, Site
from lra.models.positions import rotate
from tests.attention import Largest, builder, compare, drawn, holes, streamed

LENGTH, WIDTH, HEADS = 13, 12, 3
EVERYTHING = {"output_norm": True, "output_gate": True, "qk_norm": True, "bias": True}
built = builder(Forgetting, causal=True, moved=0.3)


def normed(y, weight, epsilon):
    return y / (y.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight


def literal(mixer, x, sees, *, rotary=False):
    """One query and one head at a time.

    `sees(b, i)` are the keys in sight of a query, `sees(b, (i, j))` the tokens whose gates count.
    """
    width, rows = WIDTH // HEADS, []
    for b, row in enumerate(x):
        f = mixer.forget_map(row).sigmoid()
        heads = []
        for h in range(HEADS):
            here = slice(h * width, (h + 1) * width)
            q, k, v = (p(row)[:, here] for p in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
            if mixer.q_norm is not None:
                q = normed(q, mixer.q_norm.weight, 1e-6)
                k = normed(k, mixer.k_norm.weight, 1e-6)
            if rotary:
                q, k = rotate(q[None, None])[0, 0], rotate(k[None, None])[0, 0]
            out = []
            for i in range(len(row)):
                keys = sees(b, i)
                if not keys:
                    out.append(torch.zeros(width).double())
                    continue
                scores = []
                for j in keys:
                    between = [t for t in sees(b, (i, j)) if min(i, j) < t <= max(i, j)]
                    fade = sum(f[t, h].log() for t in between)
                    scores.append(q[i] @ k[j] / width**0.5 + fade)
                out.append(torch.stack(scores).softmax(0) @ v[keys])
            o = torch.stack(out)
            if mixer.norm is not None:
                o = normed(o, mixer.norm.weight, 1e-5)
            if mixer.gate_proj is not None:
                o = o * mixer.gate_proj(row)[:, here].sigmoid()
            heads.append(o)
        rows.append(mixer.out_proj(torch.cat(heads, -1)))
    return torch.stack(rows)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("options", [{}, EVERYTHING])
@pytest.mark.parametrize("positions", [Positions.none, Positions.rotary])
def test_it_is_the_paper(causal, options, positions):
    mixer = built(causal=causal, positions=positions, **options)
    x = drawn(2, LENGTH, WIDTH).requires_grad_()

    def sees(_, i):
        return list(range(i + 1 if causal and isinstance(i, int) else LENGTH))

    wanted = literal(mixer, x, sees, rotary=positions == Positions.rotary)
    compare(mixer(x, Layout()), wanted, [x, *mixer.parameters()], atol=1e-11, looser=10)


@pytest.mark.parametrize("causal", [True, False])
def test_masks_hide_keys_and_padding_fades_nothing(causal):
    mixer, x = built(causal=causal), drawn(2, LENGTH, WIDTH).requires_grad_()
    keep, prefix = holes(LENGTH), torch.tensor([5, 0])
    document = torch.tensor([[0] * 6 + [1] * 7, [4, 3] * 6 + [4]])
    layout = Layout(keep=keep, document=document, prefix=prefix if causal else None)

    def sees(b, i):
        real = [j for j in range(LENGTH) if keep[b, j]]
        if isinstance(i, tuple):
            return [t for t in real if document[b, t] == document[b, i[0]]]
        return [
            j for j in real
            if document[b, j] == document[b, i]
            and (not causal or j <= i or max(i, j) < prefix[b])
        ]  # fmt: skip

    at = keep[..., None]
    seen, wanted = mixer(x, layout) * at, literal(mixer, x, sees) * at
    compare(seen, wanted, [x, *mixer.parameters()], atol=1e-11, looser=10)


@pytest.mark.parametrize("memory", [4, 40])
@pytest.mark.parametrize("cuts", [[1] * LENGTH, [5, 8], [2, 10, 1]])
def test_a_stream_sees_the_last_tokens(memory, cuts):
    mixer, x = built(**EVERYTHING), drawn(2, LENGTH, WIDTH)

    def sees(_, i):
        return list(range(max(0, i + 1 - memory), i + 1) if isinstance(i, int) else range(LENGTH))

    parts, _ = streamed(mixer, x, cuts, memory)
    torch.testing.assert_close(parts, literal(mixer, x, sees), atol=1e-11, rtol=0)


def test_far_from_the_first_token_nothing_is_lost():
    """Sums of gates that all tokens share would cost digits: with these, an error of 1e-4."""
    length = 4096
    q, k, v = (drawn(1, 2, length, 8, seed=seed) for seed in range(3))
    g = drawn(1, 2, length, seed=3).sigmoid().log()
    wanted = fading_attention(q, k, v, g, causal=True)
    seen = fading_attention(q.float(), k.float(), v.float(), g.float(), causal=True)
    assert (seen - wanted).abs().max() < 2e-5


def test_no_tensor_grows_with_the_square_of_the_length():
    def largest(length):
        mixer, x = built().float(), drawn(1, length, WIDTH).float().requires_grad_()
        with Largest() as watched:
            mixer(x, Layout()).sum().backward()
        return watched.elements

    assert largest(4096) < 2.5 * largest(2048)


def test_levels_are_sums_from_a_token_outwards():
    g = torch.tensor([[[1.0, 2.0, 4.0, 8.0]]])
    assert levels(g, 0).tolist() == [[[0, 2, 6, 14]]]
    assert levels(g, 2).tolist() == [[[-6, -4, 0, 8]]]
    assert levels(g, 3).tolist() == [[[-14, -12, -8, 0]]]


def test_gates_start_at_a_half_or_at_times():
    site = Site(width=12, heads=3, max_length=9)
    assert not Forgetting(site).forget_map.bias.any()
    timed = Forgetting(site, gate_start="times", time_min=2.0, time_max=32.0)
    fade = timed.forget_map.bias.sigmoid().log()
    wanted = torch.tensor([-1 / 2, -1 / 8, -1 / 32])
    torch.testing.assert_close(fade, wanted, atol=1e-6, rtol=1e-5)


def test_bad_options_say_what_is_wanted():
    with pytest.raises(ValueError, match=r"time_min at most time_max: got 5\.0 and 2\.0"):
        built(gate_start="times", time_min=5.0, time_max=2.0)
    with pytest.raises(ValueError, match="time_min has nothing to act on under gate_start=zero"):
        built(time_min=5.0)
    with pytest.raises(ValueError, match="memory counts tokens, at least the newest: got 0"):
        built().initial_state(1, 0)
