"""mLSTM token by token, and its product of exponential gates under any gates."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.families.mlstm import MLSTM
from lra.models.mixer import Layout
from lra.models.ops.gated.exponential_product import exponential_product
from tests.attention import builder, compare, drawn, holes
from tests.literal import gated as reference

LENGTH, WIDTH, HEADS, CHUNK = 21, 12, 3, 8
built = builder(MLSTM, causal=True, chunk=CHUNK, moved=0.3)


def literal(mixer, x):
    u = mixer.input_proj(x)
    c = u
    if len(mixer.convolutions):
        (layer,) = mixer.convolutions
        padded = F.pad(u.mT, (layer.weight.shape[1] - 1, 0))
        c = F.silu(F.conv1d(padded, layer.weight[:, None], layer.bias, groups=u.shape[-1]).mT)

    def mapped(layer, y):
        return y @ torch.block_diag(*layer.weight).mT

    q, k, v = mapped(mixer.query_map, c), mapped(mixer.key_map, c), mapped(mixer.value_map, u)
    together = torch.cat((q, k, v), -1)
    enter, forget = (gate(together).transpose(1, 2) for gate in (mixer.enter, mixer.forget))
    q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (q, k, v))
    k = k / k.shape[-1] ** 0.5
    o = reference.exponential_product(q, k, v, forget.sigmoid().log(), enter).transpose(1, 2)
    centred = o - o.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    y = normed.flatten(2) * mixer.norm_weight + mixer.skip * c
    return mixer.out_proj(y * F.silu(mixer.gate_proj(x)))


@pytest.mark.parametrize(
    "options", [{}, {"expansion": 1, "block_size": 2}, {"convolution": None, "block_size": 1}]
)
def test_it_is_the_paper_token_by_token(options):
    mixer, x = built(**options), drawn(2, LENGTH, WIDTH).requires_grad_()
    seen, wanted = mixer(x, Layout()), literal(mixer, x)
    compare(seen, wanted, [x, *mixer.parameters()], atol=1e-10)


def gates(length, strength):
    q, k, v = (drawn(2, 2, length, width, seed=width) for width in (3, 4, 5))
    forget = -drawn(2, 2, length, seed=6).abs()
    return [q, k[..., :3], v, forget, strength * drawn(2, 2, length, seed=7)]


@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("strength", [1.0, 30.0])
def test_the_product_is_the_loop(length, padded, strength):
    leaves = [x.requires_grad_() for x in gates(length, strength)]
    keep = holes(length) if padded and length > 7 else None
    seen, _ = exponential_product(*leaves, chunk=CHUNK, keep=keep)
    wanted = reference.exponential_product(*leaves, keep=keep)
    compare(seen, wanted, leaves, keep, atol=1e-9, rtol=1e-9, looser=10)


def test_float32_bears_gates_of_any_strength():
    """Gates that differ by hundreds: none overflows, and the strongest tokens are seen."""
    given = gates(150, 300.0)
    wide, _ = exponential_product(*given, chunk=64)
    leaves = [x.float().requires_grad_() for x in given]
    o, _ = exponential_product(*leaves, chunk=64)
    assert (o - wide).abs().max() < 1e-3 * wide.abs().max()
    assert all(x.isfinite().all() for x in torch.autograd.grad(o.sum(), leaves))
