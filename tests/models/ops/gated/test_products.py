"""Products with states that decay and are corrected against the loop over tokens: values,
gradients, cuts, costs."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from lra.models.ops.gated.decayed_product import Reads, decayed_product
from lra.models.ops.gated.delta_product import delta_product
from lra.models.ops.gated.pairs import decays
from tests import attention
from tests.attention import Largest, drawn, holes, joined
from tests.literal import gated as reference

CHUNK = 8
LENGTHS = pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
GATES = pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
PRODUCTS = {
    "after": (decayed_product, reference.decayed_product),
    "before": (
        partial(decayed_product, reads=Reads.before),
        partial(reference.decayed_product, before=True),
    ),
    "delta": (delta_product, reference.delta_product),
    "added": tuple(
        partial(lambda rule, q, k, w, u, *rest, **facts: rule(q, k, w, *rest, u=u, **facts), rule)
        for rule in (delta_product, reference.delta_product)
    ),
}
RULES = pytest.mark.parametrize("rule", PRODUCTS)


def inputs(length, *, rule, vector, strength=1.0, k=3, v=5):
    """Return q, k, (w, (u,)) v, g and a state, of 2 rows and heads; delta: |k| = 1, w = beta k."""
    shape = (2, 2, length)
    q, key, value = (drawn(*shape, width, seed=seed) for seed, width in ((1, k), (2, k), (3, v)))
    g = -strength * drawn(*shape, *([k] if vector else []), seed=4).abs()
    keys = [key]
    if rule in {"delta", "added"}:
        key = F.normalize(key, dim=-1)
        keys = [key, 2 * drawn(*shape, 1, seed=6).sigmoid() * key]
    if rule == "added":
        keys.append(drawn(*shape, k, seed=7))
    return [q, *keys, value, g, drawn(2, 2, k, v, seed=5)]


def compare(length, *, rule, vector, chunk=CHUNK, keep=None, given=None):
    """Compare outputs, states and the gradients of all inputs with the loop."""
    given = given or inputs(length, rule=rule, vector=vector)
    leaves = [x.clone().requires_grad_() for x in given]
    *tokens, state = leaves
    product, literal = PRODUCTS[rule]
    seen = product(*tokens, state=state, chunk=chunk, keep=keep)
    wanted = literal(*tokens, state=state, keep=keep)
    if keep is not None:
        real = keep[:, None, :, None]
        seen, wanted = ((o * real, last) for o, last in (seen, wanted))
    attention.compare(joined(*seen), joined(*wanted), leaves, atol=1e-10)


@LENGTHS
@GATES
@RULES
def test_it_is_the_loop(length, vector, rule):
    compare(length, rule=rule, vector=vector)


@GATES
@RULES
@pytest.mark.parametrize("chunk", [1, 3, 16, 24, 100])
def test_chunks_of_any_size_change_nothing(chunk, vector, rule):
    compare(67, rule=rule, vector=vector, chunk=chunk)


@GATES
@RULES
def test_long_sequences_are_worked_on_in_several_blocks(vector, rule, monkeypatch):
    monkeypatch.setattr("lra.models.ops.linear.features.CPU_BLOCK", 1)
    monkeypatch.setattr("lra.models.ops.gated.blockwise.FEW", 1)
    monkeypatch.setattr("lra.models.ops.linear.features.MINIMUM_ROWS", 16)
    compare(75, rule=rule, vector=vector)


@GATES
@RULES
def test_what_stands_in_padding_is_never_looked_at(vector, rule):
    keep, product = holes(21), PRODUCTS[rule][0]
    *given, state = inputs(21, rule=rule, vector=vector)
    spoilt = [x.clone() for x in given]
    for x in spoilt[1:]:
        x.movedim(2, 1)[~keep] = torch.nan
    wanted = product(*given, state=state, chunk=CHUNK, keep=keep)
    seen = product(*spoilt, state=state, chunk=CHUNK, keep=keep)
    torch.testing.assert_close(seen, wanted, atol=0, rtol=0)


@GATES
@RULES
def test_minus_infinity_forgets_all(vector, rule):
    """Where a document begins: alone, twice in a row, first and last of a chunk."""
    given = inputs(29, rule=rule, vector=vector)
    given[-2][0, :, [0, 7, 8, 13, 14]] = -torch.inf
    given[-2][1, 0, 5] = -torch.inf
    compare(29, rule=rule, vector=vector, given=given)
    *tokens, state = given
    product = PRODUCTS["after" if rule == "before" else rule][0]
    whole = product(*tokens, state=state, chunk=CHUNK)[0][0, :, 14:]
    document = [x[:1, :, 14:] for x in tokens]
    document[-1] = document[-1].clamp(min=-100)
    alone = product(*document, chunk=CHUNK)[0][0]
    torch.testing.assert_close(whole, alone, atol=1e-12, rtol=0)


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
        o, last = PRODUCTS[rule][0](*leaves[:-1], state=leaves[-1], chunk=64)
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
def test_values_come_back_in_their_dtype_and_the_state_in_float32(vector, rule):
    given, product = inputs(9, rule=rule, vector=vector), PRODUCTS[rule][0]
    given = [x.bfloat16() for x in given]
    o, last = product(*given[:-1], state=given[-1].float(), chunk=4)
    assert (o.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    wide = [x.float() for x in given]
    wanted = product(*wide[:-1], state=wide[-1], chunk=4)
    torch.testing.assert_close((o, last), (wanted[0].bfloat16(), wanted[1]))


@GATES
@RULES
def test_no_tensor_grows_beyond_a_block(vector, rule, monkeypatch):
    """The largest is the output, or a table of a block; not a state for every token."""
    monkeypatch.setattr("lra.models.ops.linear.features.CPU_BLOCK", 1)
    monkeypatch.setattr("lra.models.ops.gated.blockwise.FEW", 1)
    *given, state = inputs(1024, rule=rule, vector=vector, k=16, v=16)
    leaves = [x.requires_grad_() for x in given]
    with Largest() as seen:
        o, _ = PRODUCTS[rule][0](*leaves, state=state)
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
