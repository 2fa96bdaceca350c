"""The absorbed form of latent attention against the plain one."""

import torch

from lra.models.ops.latents import absorbed_attention, absorbs, padded_sdpa
from tests.attention import compare, drawn

LENGTH = 9


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


def test_a_step_is_absorbed_and_a_prompt_is_not():
    sizes = {"width": 64, "rotary": 32, "latent": 256}
    assert absorbs(1, 1024, **sizes)
    assert not absorbs(1024, 1024, **sizes)
