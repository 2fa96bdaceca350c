"""Products with states that decay and are corrected: float32, strong decays, costs."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from lra.models.ops.gated.decayed_product import Reads, decayed_product
from lra.models.ops.gated.delta_product import delta_product
from lra.models.ops.gated.pairs import decays
from tests.attention import Largest, compare, drawn, joined
from tests.literal import gated

GATES = pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
PRODUCTS = {
    "after": decayed_product,
    "before": partial(decayed_product, reads=Reads.before),
    "delta": delta_product,
    "early": partial(delta_product, early=True),
    "added": lambda q, k, w, u, *rest, **facts: delta_product(q, k, w, *rest, u=u, **facts),
}
RULES = pytest.mark.parametrize("rule", PRODUCTS)


def inputs(length, *, rule, vector, strength=1.0, k=3, v=5):
    """Return q, k, (w, (u,)) v, g and a state, of 2 rows and heads; delta: |k| = 1, w = beta k."""
    shape = (2, 2, length)
    q, key, value = (drawn(*shape, width, seed=seed) for seed, width in ((1, k), (2, k), (3, v)))
    g = -strength * drawn(*shape, *([k] if vector else []), seed=4).abs()
    keys = [key]
    if rule in {"delta", "early", "added"}:
        key = F.normalize(key, dim=-1)
        keys = [key, 2 * drawn(*shape, 1, seed=6).sigmoid() * key]
    if rule == "added":
        keys.append(drawn(*shape, k, seed=7))
    return [q, *keys, value, g, drawn(2, 2, k, v, seed=5)]


@GATES
@RULES
@pytest.mark.parametrize("strength", [1e-3, 1.0, 60.0])
def test_float32_is_finite_and_close(strength, vector, rule):
    """Of decays down to exp(-60) a token and below, some of them beside tokens that keep all."""
    given = inputs(150, rule=rule, vector=vector, strength=strength, k=16, v=16)
    given[-2][:, :, ::5] *= 1e-3
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in given]
        o, last = PRODUCTS[rule](*leaves[:-1], state=leaves[-1], chunk=64)
        direction = drawn(*o.shape, seed=9).to(dtype)
        results.append([o, last, *torch.autograd.grad([o, last], leaves, [direction, last])])
    for seen, wanted in zip(*results, strict=True):
        assert (seen - wanted).abs().max() < 1e-5 * wanted.abs().max()


@GATES
def test_small_decays_behind_strong_ones_are_not_lost_in_float32(vector):
    """Sums are added up where they are needed: differences of long sums lose what small g say."""
    g = torch.full((1, 64, 1), -0.01)
    g[:, ::16] = -8000.0
    one = torch.ones(1, 64, 1)
    table = decays(g if vector else g[..., 0]).weights(one, one)
    torch.testing.assert_close(table[0, 62, 48:63], torch.arange(14, -1, -1).mul(-0.01).exp())


@GATES
@RULES
def test_no_tensor_grows_beyond_a_block(vector, rule, monkeypatch):
    """The largest is the output, or a table of a block; not a state for every token."""
    monkeypatch.setattr("lra.models.ops.linear.features.CPU_BLOCK", 1)
    monkeypatch.setattr("lra.models.ops.gated.blockwise.FEW", 1)
    *given, state = inputs(1024, rule=rule, vector=vector, k=16, v=16)
    leaves = [x.requires_grad_() for x in given]
    with Largest() as seen:
        o, _ = PRODUCTS[rule](*leaves, state=state)
        o.sum().backward()
    assert seen.elements == o.numel()


@pytest.mark.parametrize("length", [17, 24, 64, 67])
def test_scalar_decays_by_blocks_are_those_of_all_pairs(length):
    """With gates that forget all, and strong ones between weak ones, in float32 too."""
    g = -0.1 * drawn(2, length).abs()
    g[0, 5], g[0, 11:13], g[1, 8], g[1, 16] = -800.0, -40.0, -torch.inf, -torch.inf
    ones = torch.ones(2, length, 1).double()
    found = decays(g).weights(ones, ones)
    for i in range(length):
        for j in range(length):
            wanted = g[:, j + 1 : i + 1].sum(1).exp() if j <= i else torch.zeros(2).double()
            torch.testing.assert_close(found[:, i, j], wanted, atol=1e-15, rtol=1e-14)
    narrow = decays(g.float()).weights(ones.float(), ones.float())
    torch.testing.assert_close(narrow.double(), found, atol=1e-6, rtol=1e-6)


@GATES
@pytest.mark.parametrize("added", [False, True], ids=["error", "added"])
@pytest.mark.parametrize("pieces", [[21], [1, 8, 2, 10], [1] * 21])
def test_a_token_may_read_before_it_decays_the_state(added, vector, pieces):
    """Also one that forgets all, and in pieces: a chunk's first token reads the state before it."""
    *streams, v, g, state = inputs(21, rule="added" if added else "delta", vector=vector)
    g[:, 0, 5], g[0, 1, 16] = -torch.inf, -900.0
    u = {"u": streams.pop()} if added else {}
    leaves = [x.requires_grad_() for x in (*streams, *u.values(), v, g, state)]
    keep = torch.ones(2, 21, dtype=torch.bool)
    keep[1, 6:9] = False
    literal = gated.delta_product(*streams, v, g, **u, state=state, keep=keep, early=True)
    outputs, after = [], state
    for rows in torch.arange(21).split(pieces):
        parts = (x[:, :, rows] for x in (*streams, v, g))
        more = {name: x[:, :, rows] for name, x in u.items()}
        o, after = delta_product(
            *parts, **more, state=after, chunk=8, keep=keep[:, rows], early=True
        )
        outputs.append(o)
    real = keep[:, None, :, None]
    found, wanted = (
        joined(torch.cat(outputs, 2) * real, after),
        joined(literal[0] * real, literal[1]),
    )
    compare(found, wanted, leaves, atol=1e-10)
