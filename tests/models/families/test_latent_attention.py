"""Latent attention against loops, and its absorbed form against the plain one."""

import pytest
import torch

from lra.models.families import latent_attention
from lra.models.families.latent_attention import LatentAttention
from lra.models.mixer import Flow, Layout, Positions, Unsupported
from lra.models.ops.latents import absorbed_attention, absorbs, padded_sdpa
from lra.models.positions import At, Spacing, alibi_slopes, rotate
from lra.models.state import size_bytes
from tests.attention import builder, compare, drawn, holes

LENGTH = 9
built = builder(LatentAttention, positions=Positions.rotary, moved=0.3)


def literal(mixer, x, *, keep=None, slopes=None) -> torch.Tensor:
    """Compute the paper's equations 9 to 19, one head, one query and one key at a time."""
    width, rotary = mixer.head_width, mixer.rotary_width

    def norm(row, scale):
        return scale * row / ((row * row).mean() + 1e-6) ** 0.5

    def turned(row, at):
        return rotate(row[None, None, None], torch.tensor([at]))[0, 0, 0] if rotary else row

    def affine(layer, row):
        return layer.weight @ row + (0 if layer.bias is None else layer.bias)

    outputs = []
    for row in range(len(x)):
        keys, values, queries = [], [], []
        for at, token in enumerate(x[row]):
            down = affine(mixer.kv_proj, token)
            c = norm(down[: mixer.kv_width], mixer.kv_norm.weight)
            shared = turned(down[mixer.kv_width :], at)
            asked = affine(mixer.q_proj, token)
            if mixer.q_up is not None:
                asked = affine(mixer.q_up, norm(asked, mixer.q_norm.weight))
            for h in range(mixer.heads):
                own = slice(h * width, (h + 1) * width)
                keys.append(torch.cat((mixer.k_up.weight[own] @ c, shared)))
                values.append(mixer.v_up.weight[own] @ c)
                q = asked[h * (width + rotary) : (h + 1) * (width + rotary)]
                queries.append(torch.cat((q[:width], turned(q[width:], at))))
        for i in range(x.shape[1]):
            seen = [
                j for j in range(x.shape[1])
                if not (mixer.traits.causal and j > i) and (keep is None or keep[row, j])
            ]  # fmt: skip
            heads = []
            for h in range(mixer.heads):
                scores = [
                    queries[i * mixer.heads + h] @ keys[j * mixer.heads + h]
                    / (width + rotary) ** 0.5
                    - (0 if slopes is None else slopes[h] * abs(i - j))
                    for j in seen
                ]  # fmt: skip
                o = x.new_zeros(width)
                if seen:
                    weights = torch.stack(scores).softmax(0)
                    o = sum(
                        w * values[j * mixer.heads + h] for w, j in zip(weights, seen, strict=True)
                    )
                heads.append(o)
            outputs.append(torch.cat(heads))
    return mixer.out_proj(torch.stack(outputs).view(*x.shape[:2], -1))


CASES = pytest.mark.parametrize(
    ("facts", "options"),
    [
        ({}, {}),
        ({"causal": True}, {"kv_width": 5, "query_width": 7, "rotary_width": 4, "bias": True}),
        ({"causal": True, "own_head_width": 6}, {"kv_width": 3}),
        ({"positions": Positions.none}, {"kv_width": 5}),
    ],
)


@CASES
def test_it_is_the_equations(facts, options):
    mixer = built(**facts, **options)
    x, keep = drawn(2, LENGTH, 12).requires_grad_(), holes(LENGTH)
    found = mixer(x, Layout(keep=keep))
    wanted = literal(mixer, x.masked_fill(~keep[..., None], 0), keep=keep)
    compare(found, wanted, [x, *mixer.parameters()], atol=1e-11)


def test_positions_may_add_to_the_scores():
    mixer, x = built(positions=Positions.alibi), drawn(1, LENGTH, 12)
    wanted = literal(mixer, x, slopes=alibi_slopes(3).double())
    torch.testing.assert_close(mixer(x, Layout()), wanted, atol=1e-12, rtol=0)


def test_the_absorbed_form_is_the_plain_one():
    """Outputs and gradients, of maps too, with a query that sees nothing."""
    q, up, down = drawn(2, 3, 4, 7), drawn(3, 5, 6, seed=3), drawn(3, 4, 6, seed=4)
    rotary, latent = drawn(2, 1, LENGTH, 2, seed=1), drawn(2, 1, LENGTH, 6, seed=2)
    leaves = [x.requires_grad_() for x in (q, rotary, latent, up, down)]
    visible, bias = drawn(2, 1, 4, LENGTH, seed=6) < 0.3, drawn(1, 3, 4, LENGTH, seed=5)
    visible[1, 0, 2] = False
    keys = torch.cat((latent @ up.mT, rotary.expand(-1, 3, -1, -1)), -1)
    plain = padded_sdpa(q, keys, latent @ down.mT, visible=visible, bias=bias)
    found = absorbed_attention(q, rotary, latent, up, down, visible=visible, bias=bias)
    compare(found, plain, leaves)
    assert not found[1, :, 2].any()


@CASES
@pytest.mark.parametrize("form", [None, True, False])
def test_a_stream_remembers_compressed_vectors(facts, options, form, monkeypatch):
    """However it is cut and whichever form is chosen."""
    mixer = built(**facts | {"causal": True}, **options)
    if form is not None:
        monkeypatch.setattr(latent_attention, "absorbs", lambda *_, **__: form)
    x = drawn(2, LENGTH, 12)
    state, found, start = mixer.initial_state(2, LENGTH), [], 0
    for piece in x.split([2, 1, LENGTH - 3], dim=1):
        flow = mixer.extend(Flow(piece, state), Layout(start=torch.full((2,), start)))
        state, start = flow.state, start + piece.shape[1]
        found.append(flow.x)
    torch.testing.assert_close(torch.cat(found, 1), mixer(x, Layout()), atol=1e-12, rtol=0)
    assert size_bytes(state) == 8 * 2 * (LENGTH * (mixer.kv_width + mixer.rotary_width) + 1)


def test_a_step_is_absorbed_and_a_prompt_is_not():
    sizes = {"width": 64, "rotary": 32, "latent": 256}
    assert absorbs(1, 1024, **sizes)
    assert not absorbs(1024, 1024, **sizes)


@pytest.mark.parametrize("positions", [Positions.none, Positions.rotary])
def test_another_source_is_more_keys(positions):
    """As one sequence of both, of which the first tokens ask alone and the others are seen."""
    mixer = built(positions=positions, kv_width=5)
    x, source = drawn(2, 4, 12), drawn(2, LENGTH, 12, seed=1)
    at = At(Spacing(), Spacing(4)) if positions == Positions.rotary else None
    found = mixer.attend(x, Layout(), source, Layout(), at)
    hidden = torch.arange(4 + LENGTH) >= 4
    whole = torch.cat((x, source), 1)
    q = mixer.queries(whole, None)
    k, v = mixer.heads_of(*mixer.latents(whole, None))
    wanted = mixer.merge(padded_sdpa(q, k, v, visible=hidden[None, None, None]))[:, :4]
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    if at is not None:
        with pytest.raises(Unsupported, match="without positions of its own"):
            mixer.attend(x, Layout(), source, Layout())


def test_a_rotary_part_needs_rotary_positions():
    with pytest.raises(Unsupported, match="rotary_width has nothing to act on without rotary"):
        built(positions=Positions.none, rotary_width=4)
