"""Latent attention against loops, and its absorbed form against the plain one."""

import pytest
import torch

from lra.models.families import latent_attention
from lra.models.families.latent_attention import LatentAttention
from lra.models.mixer import Flow, Layout, Positions, Unsupported
from lra.models.ops.latents import absorbed_attention, absorbs, padded_sdpa
from lra.models.positions import At, Spacing
from lra.models.state import size_bytes
from tests.attention import builder, compare, drawn

LENGTH = 9
built = builder(LatentAttention, positions=Positions.rotary, moved=0.3)


CASES = pytest.mark.parametrize(
    ("facts", "options"),
    [
        ({}, {}),
        ({"causal": True}, {"kv_width": 5, "query_width": 7, "rotary_width": 4, "bias": True}),
        ({"causal": True, "own_head_width": 6}, {"kv_width": 3}),
        ({"positions": Positions.none}, {"kv_width": 5}),
    ],
)


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
