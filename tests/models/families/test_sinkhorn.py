"""Sinkhorn attention against loops written from the paper, its limits, and what may not leak."""

from functools import partial

import pytest
import torch
from torch import Tensor

from models.contract import check_mixer
from models.families import sinkhorn_sorting as sorting
from models.families.sinkhorn import Costs, Sinkhorn, Sort, SortNet, balanced_block
from models.families.softmax import softmax_attention
from models.flops import count_operations, pretending, saved_bytes
from models.mixer import Layout, Site, Unsupported, Variant

DIRECTIONS = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
SORTS = pytest.mark.parametrize("sort", list(Sort))
NETS = pytest.mark.parametrize("sort_net", list(SortNet))
BLOCK = 4


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def heads(length: int, width: int = 5) -> list[Tensor]:
    return [drawn(2, 3, length, width, seed=s).requires_grad_() for s in range(3)]


def built(length: int = 64, *, causal: bool = False, dropout: float = 0.0, **options) -> Sinkhorn:
    torch.manual_seed(1)
    site = Site(width=12, heads=3, max_length=length, causal=causal, attention_dropout=dropout)
    return Sinkhorn(site, **({"block": BLOCK} | options)).double().eval()


def padding(length: int) -> Tensor:
    keep = torch.rand(2, length, generator=torch.Generator().manual_seed(5)) > 0.4
    keep[0, :BLOCK] = keep[0, 2 * BLOCK : 3 * BLOCK] = False  # whole blocks
    return keep


def literal_sort(scores: Tensor, free: Tensor, sort: Sort, iterations: int, causal: bool) -> Tensor:
    """One head's sort matrix, entry by entry over what is free; causal: column 0 is the null."""
    rows = scores.shape[0]
    S = torch.where(free, scores.exp(), 0)
    if sort is Sort.topk:
        p = S / S.sum(1, keepdim=True).clamp_min(1e-300)
        return torch.where(p == p.amax(1, keepdim=True), p, 0)
    for _ in range(iterations if sort is Sort.sinkhorn else 1):
        if sort is Sort.sinkhorn:
            divided = []
            for i in range(rows):
                seen = S[: i + 1] if causal else S
                total = seen.sum(0)
                if causal:
                    total = torch.cat((torch.ones_like(total[:1]), total[1:]))
                divided.append(torch.where(free[i], S[i] / torch.where(total > 0, total, 1), 0))
            S = torch.stack(divided)
        total = S.sum(1, keepdim=True)
        S = S / torch.where(total > 0, total, 1)
    return S


def literal(mixer: Sinkhorn, qkv: list[Tensor], scores: Tensor, keep: Tensor | None = None):
    """Every query by itself: sort, mix the blocks place by place, one softmax over both halves."""
    (q, k, v), causal, sort = qkv, mixer.causal, mixer.core.options.sort
    batch, count, length, width = q.shape
    n = -(-length // BLOCK)
    out = torch.zeros_like(q)
    for b in range(batch):
        real = [keep is None or bool(keep[b, t]) for t in range(length)]
        used = [any(real[B * BLOCK : (B + 1) * BLOCK]) for B in range(n)]
        for h in range(count):
            free = torch.tensor(
                [
                    [used[i] and used[j] and (j < i or not causal) for j in range(n)]
                    for i in range(n)
                ]
            )
            if causal:
                free = torch.cat((torch.ones(n, 1, dtype=torch.bool), free), 1)
            S = literal_sort(scores[b, h] / 0.75, free, sort, 8, causal)
            for t in range(length):
                own = range(t // BLOCK * BLOCK, min(length, (t // BLOCK + 1) * BLOCK))
                own = [s for s in own if real[s] and (s <= t or not causal)]
                keys, values = [k[b, h, s] for s in own], [v[b, h, s] for s in own]
                for place in range(BLOCK):
                    terms, weights = [], []
                    for j in range(S.shape[1]):
                        s = (j - causal) * BLOCK + place
                        weight = S[t // BLOCK, j]
                        if causal and j == 0:
                            null = mixer.core.null_key, mixer.core.null_value
                            terms.append([x[h, 0, 0] for x in null])
                        elif s < length and real[s] and weight > 0:
                            terms.append([k[b, h, s], v[b, h, s]])
                        else:
                            continue
                        weights.append(weight)
                    if weights and sum(weights) > 0:
                        total = 1 if sort is Sort.topk else sum(weights)
                        for mixed, part in ((keys, 0), (values, 1)):
                            x = sum(w * pair[part] for w, pair in zip(weights, terms, strict=True))
                            mixed.append(x / total)
                if keys:
                    p = (torch.stack(keys) @ q[b, h, t] / width**0.5).softmax(0)
                    out[b, h, t] = p @ torch.stack(values)
    return out


@DIRECTIONS
@SORTS
@pytest.mark.parametrize(("length", "padded"), [(3, False), (8, False), (10, False), (10, True)])
def test_outputs_and_gradients_equal_the_loops(sort, causal, length, padded):
    mixer = built(causal=causal, sort=sort)
    q, k, v = heads(length, width=4)
    n = -(-length // BLOCK)
    scores = (2 * drawn(2, 3, n, n + causal, seed=7)).requires_grad_()
    keep = padding(length) if padded else None
    inputs = [q, k, v, scores, *(mixer.core.parameters() if causal else ())]
    o = mixer.core(q, k, v, Layout(keep=keep), scores)
    wanted = literal(mixer, [q, k, v], scores, keep)
    torch.testing.assert_close(o, wanted, rtol=1e-10, atol=1e-11)
    direction = drawn(*o.shape, seed=9)
    ours, theirs = (
        torch.autograd.grad(x, inputs, direction, allow_unused=True, materialize_grads=True)
        for x in (o, wanted)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def block_local(q, k, v):
    own = torch.arange(q.shape[2]) // BLOCK
    return softmax_attention(q, k, v, visible=(own == own[:, None])[None, None])


def test_an_identity_that_sorts_nothing_leaves_block_attention():
    q, k, v = heads(16)
    identity = (1e4 * torch.eye(4, dtype=torch.float64)).expand(2, 3, 4, 4)
    o = built().core(q, k, v, Layout(), identity)
    torch.testing.assert_close(o, block_local(q, k, v), rtol=1e-12, atol=1e-13)


@SORTS
def test_a_permutation_sorts_whole_blocks(sort):
    q, k, v = heads(16)
    order = torch.tensor([2, 0, 3, 1])
    scores = (1e4 * torch.eye(4, dtype=torch.float64))[order].expand(2, 3, 4, 4)
    own = torch.arange(16) // BLOCK
    visible = (own == own[:, None]) | (own == order.repeat_interleave(BLOCK)[:, None])
    wanted = softmax_attention(q, k, v, visible=visible[None, None])
    o = built(sort=sort).core(q, k, v, Layout(), scores)
    torch.testing.assert_close(o, wanted, rtol=1e-12, atol=1e-13)


def test_sortcut_over_all_blocks_unsorted_is_full_attention():
    q, k, v = heads(16)
    identity = (1e4 * torch.eye(4, dtype=torch.float64)).expand(2, 3, 4, 4)
    o = built(sortcut=4).core(q, k, v, Layout(), identity)
    torch.testing.assert_close(o, softmax_attention(q, k, v), rtol=1e-12, atol=1e-13)


@SORTS
@pytest.mark.parametrize("padded", [False, True])
def test_sortcut_shows_every_query_the_first_sorted_blocks(sort, padded):
    q, k, v = heads(18)
    keep = padding(18) if padded else None
    mixer, scores = built(sortcut=2, sort=sort), drawn(2, 3, 5, 5, seed=3)
    seen = mixer.core(q, k, v, Layout(keep=keep), scores)
    real = sorting.real_tokens(keep, 18, BLOCK, q.device)
    shape = (x if keep is None else x * keep[:, None, :, None] for x in (k, v))
    keys, values, some = built(sort=sort).core.arrange(
        *(sorting.cut(x, BLOCK) for x in shape), real, scores
    )
    flat = (x[:, :, :2].flatten(2, 3) for x in (keys, values, some[..., None]))
    keys, values, some = flat
    weights = torch.where(some.mT, q @ keys.mT / 5**0.5, -torch.inf).softmax(-1).nan_to_num()
    torch.testing.assert_close(seen, weights @ values, rtol=1e-11, atol=1e-12)


def test_two_best_blocks_are_the_two_largest_by_turns():
    scores = drawn(1, 1, 3, 6, seed=2)
    places, shares = sorting.best(scores, None, 2)
    p = scores.softmax(-1)
    first, at = p.max(-1)
    rest = p.scatter(-1, at[..., None], 0)
    torch.testing.assert_close(shares[..., 0], first)
    torch.testing.assert_close(shares[..., 1], (rest / rest.sum(-1, keepdim=True)).amax(-1))
    assert torch.equal(places[..., 1], rest.argmax(-1))


def test_where_no_second_block_is_free_the_null_block_stands_in():
    mixer = built(causal=True, sort=Sort.topk, top_blocks=2)
    q, k, v = heads(8, width=4)
    keys, _, seen = mixer.core.arrange(
        *(sorting.cut(x, BLOCK) for x in (k, v)), None, drawn(2, 3, 2, 3)
    )
    assert seen is None
    null = mixer.core.null_key.expand(2, -1, 1, 2 * BLOCK, -1)[:, :, 0]
    torch.testing.assert_close(keys[:, :, 0], null)
    assert mixer.core(q, k, v, Layout(), drawn(2, 3, 2, 3)).isfinite().all()


@SORTS
@NETS
def test_the_implied_weights_are_a_mean(sort, sort_net):
    mixer = built(sort=sort, sort_net=sort_net)
    q, k, _ = heads(18)
    identity = torch.eye(18, dtype=torch.float64).expand(2, 3, 18, 18)
    weights = mixer.core(q, k, identity, Layout(), drawn(2, 3, 5, 5))
    assert (weights >= 0).all()
    ones = torch.ones(2, 3, 18, dtype=torch.float64)
    assert mixer.traits.row_stochastic == (sort is not Sort.topk)
    assert torch.allclose(weights.sum(-1), ones, rtol=0, atol=1e-12) == mixer.traits.row_stochastic


def test_the_iterations_end_on_rows_and_columns_follow_in_the_limit():
    scores = 2 * drawn(1, 4, 12, 12)
    off = []
    for iterations in (1, 2, 5, 20, 400):
        S = sorting.sinkhorn(scores, iterations=iterations)
        torch.testing.assert_close(
            S.sum(-1), torch.ones(1, 4, 12, dtype=S.dtype), rtol=1e-13, atol=0
        )
        off.append((S.sum(-2) - 1).abs().max().item())
    assert off == sorted(off, reverse=True)
    assert off[0] > 0.3
    assert off[-1] < 1e-12


@DIRECTIONS
def test_gradient_of_the_iterations(causal):
    scores = drawn(2, 1, 4, 4 + causal).requires_grad_()
    real = torch.ones(2, 4, 1, dtype=torch.bool)
    real[1, 1] = False
    free = sorting.choices(real, 4, causal=causal, device=scores.device)
    assert torch.autograd.gradcheck(
        lambda x: sorting.sinkhorn(x, free, iterations=3, causal=causal), scores
    )


def test_large_scores_neither_overflow_nor_clip():
    scores = torch.tensor([[0.0, 500.0], [500.0, 900.0]])[None, None]
    S = sorting.sinkhorn(scores, iterations=8)
    torch.testing.assert_close(S.sum(-1), torch.ones(1, 1, 2))
    torch.testing.assert_close(S.double(), sorting.sinkhorn(scores.double(), iterations=8))
    assert (
        S[0, 0, 0, 1] > 0.999
    )  # clipped to [-1, 1] before the exponential it could be no more than 0.88


@DIRECTIONS
@NETS
@SORTS
def test_the_gradient_reaches_the_sort_net(sort, sort_net, causal):
    mixer = built(causal=causal, sort_net=sort_net, sort=sort)
    x = drawn(2, 30, 12).requires_grad_()
    inputs = [mixer.sort_in.weight, mixer.sort_out] if sort_net is SortNet.mlp else [x]
    loss = mixer(x, Layout()).square().sum()
    for gradient in torch.autograd.grad(loss, inputs):
        assert gradient.abs().max() > 1e-6


@DIRECTIONS
def test_the_sort_net_is_the_papers_formula(causal):
    mixer = built(causal=causal)
    x, keep = drawn(2, 18, 12), padding(18)
    scores = mixer.block_scores(x, keep)
    assert scores.shape == (2, 3, 5, 5 + causal)
    for b in range(2):
        for i in range(5):
            tokens = range(i * BLOCK + 1) if causal else range(i * BLOCK, min(18, (i + 1) * BLOCK))
            pooled = sum((x[b, t] for t in tokens if keep[b, t]), torch.zeros(12).double()) / BLOCK
            hidden = mixer.sort_in(pooled).relu().view(3, 1, 4)
            wanted = (hidden @ mixer.sort_out + mixer.sort_bias).relu()[:, 0, : 5 + causal]
            torch.testing.assert_close(scores[b, :, i], wanted, rtol=1e-12, atol=1e-13)


def test_mean_scores_leave_padding_out():
    q, k, _ = heads(18)
    keep = padding(18)
    real = sorting.real_tokens(keep, 18, BLOCK, q.device)
    blocks = [sorting.cut(x, BLOCK) for x in (q, k)]
    seen = sorting.mean_scores(*blocks, real, causal=False)
    mean = [x[0, 0, 12:16][keep[0, 12:16]].mean(0) for x in (q, k)]
    torch.testing.assert_close(seen[0, 0, 3, 3], mean[0] @ mean[1] / 5**0.5)
    seen = sorting.mean_scores(*blocks, None, causal=True)
    before, block = q[1, 2, : 2 * BLOCK + 1].mean(0), k[1, 2, BLOCK : 2 * BLOCK].mean(0)
    torch.testing.assert_close(seen[1, 2, 2, 2], before @ block / 5**0.5)
    assert not seen[..., 0].any()


@NETS
@SORTS
def test_a_later_outlier_moves_nothing_before_it(sort, sort_net):
    mixer = built(causal=True, sort=sort, sort_net=sort_net, top_blocks=2)
    x = drawn(2, 38, 12)
    before = mixer(x, Layout())
    loud = torch.cat((x[:, :21], 6 * x[:, 21:]), 1)
    after = mixer(loud, Layout())
    assert torch.equal(after[:, :21], before[:, :21])
    assert not torch.allclose(after[:, 21:], before[:, 21:])
    torch.testing.assert_close(mixer(x[:, :21], Layout()), before[:, :21], rtol=1e-12, atol=1e-13)


def test_columns_divided_by_later_rows_would_leak():
    """Why the causal form departs from the paper."""
    scores = drawn(1, 1, 5, 6)
    moved = scores.clone()
    moved[..., 4, :] *= 6
    free = sorting.choices(None, 5, causal=True, device=scores.device)

    def rows(scores, causal):
        return sorting.sinkhorn(scores, free, iterations=5, causal=causal)[..., :4, :]

    assert torch.equal(rows(scores, True), rows(moved, True))
    assert not torch.allclose(rows(scores, False), rows(moved, False))


@DIRECTIONS
@SORTS
def test_a_row_of_padding_alone_is_zero(sort, causal):
    mixer = built(causal=causal, sort=sort, sort_net=SortNet.attention)
    q, k, v = heads(10, width=4)
    keep = torch.ones(2, 10, dtype=torch.bool)
    keep[0] = False
    o = mixer.core(q, k, v, Layout(keep=keep))
    assert o.isfinite().all()
    assert causal or not o[0].any()
    for gradient in torch.autograd.grad(o.sum(), (q, k, v)):
        assert gradient.isfinite().all()


@DIRECTIONS
def test_local_heads_attend_to_their_neighbours(causal):
    mixer = built(causal=causal, local_heads=2)
    q, k, v = heads(30, width=4)
    o = mixer.core(q, k, v, Layout())
    distance = torch.arange(30)[:, None] - torch.arange(30)
    near = (distance.abs() <= BLOCK) & (distance >= 0 if causal else True)
    wanted = softmax_attention(q[:, :2], k[:, :2], v[:, :2], visible=near[None, None])
    torch.testing.assert_close(o[:, :2], wanted, rtol=1e-11, atol=1e-12)
    assert mixer.sort_out.shape[0] == 1


@DIRECTIONS
def test_mixture_adds_exact_attention(causal):
    q, k, v = heads(18, width=4)
    scores = drawn(2, 3, 5, 5 + causal)
    plain, both = (
        built(causal=causal, mixture=on).core(q, k, v, Layout(), scores) for on in (False, True)
    )
    torch.testing.assert_close(both - plain, softmax_attention(q, k, v, causal=causal))


def test_noise_and_dropout_belong_to_training():
    mixer, x = built(), drawn(2, 30, 12)
    still = mixer(x, Layout())
    assert torch.equal(mixer(x, Layout()), still)
    mixer.train()
    torch.manual_seed(3)
    first, second = mixer(x, Layout()), mixer(x, Layout())
    torch.manual_seed(3)
    assert torch.equal(mixer(x, Layout()), first)
    assert not torch.allclose(first, second)
    quiet = built(gumbel=False).train()
    torch.testing.assert_close(quiet(x, Layout()), built(gumbel=False)(x, Layout()))
    dropped = built(gumbel=False, dropout=0.3).train()
    assert not torch.allclose(dropped(x, Layout()), quiet(x, Layout()))


def test_gumbel_noise_has_its_mean_and_variance():
    torch.manual_seed(0)
    noise = sorting.gumbel_like(torch.empty(200_000))
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(torch.pi**2 / 6, abs=0.03)


@pytest.mark.parametrize("length", [16, 18])
def test_variant_lra_is_what_its_code_computes(length):
    q, k, v = heads(length)
    n = -(-length // BLOCK)
    full = torch.arange(n * BLOCK).view(BLOCK, n)
    wanted = torch.zeros_like(q)
    # the code's sum runs over the blocks and, apart from it, over the softmax, which gives 1
    permutation = drawn(n, n).softmax(-1)
    sums = []
    for x in (k, v):
        padded = torch.cat((x, x.new_zeros(2, 3, n * BLOCK - length, 5)), 2)
        sums.append(torch.einsum("bhskd,nl->bhsnd", padded[:, :, full], permutation))
    some = full[:, 0] < length
    for t in range(length):
        own = full[:, t % n]
        own = own[own < length]
        for keys, values in (
            (k[:, :, own], v[:, :, own]),
            tuple(x[:, :, :, t % n][:, :, some] for x in sums),
        ):
            p = (torch.einsum("bhd,bhsd->bhs", q[:, :, t], keys) / 5**0.5).softmax(-1)
            wanted[:, :, t] = wanted[:, :, t] + torch.einsum("bhs,bhsd->bhd", p, values)
    mixer = built(variant=Variant.lra)
    o = mixer.core(q, k, v, Layout())
    torch.testing.assert_close(o, wanted, rtol=1e-11, atol=1e-12)
    assert "keep" not in mixer.traits.honours
    assert not hasattr(mixer, "sort_in")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sort_net": SortNet.attention, "sort": Sort.softmax},
        {"sort": Sort.topk, "top_blocks": 2},
        {"sortcut": 2},
        {"local_heads": 1},
        {"mixture": True},
        {"variant": Variant.lra},
    ],
)
@DIRECTIONS
def test_costs_are_what_is_counted(options, causal):
    length, made = 512, partial(Sinkhorn, block=16, **options)
    with pretending():
        site = Site(width=32, heads=2, max_length=length, causal=causal)
        if causal and ("sortcut" in options or "variant" in options):
            with pytest.raises(Unsupported):
                made(site)
            return
        mixer = made(site)
        x = torch.empty(1, length, 32, requires_grad=True)
        operations = count_operations(lambda: mixer(x, Layout()).sum().backward())
        others = [*mixer.parameters(), *mixer.buffers()]
        kept = saved_bytes(lambda: mixer(x, Layout()), others) / 4
    costs = Costs(mixer.core.options, site)
    gaps = 0.01 if "local_heads" in options else 0  # between the rows of a window
    assert costs.operations(length) == pytest.approx(operations, rel=gaps)
    assert costs.numbers(length) == pytest.approx(kept, rel=0.06)


def test_balanced_blocks_grow_slower_than_fixed_ones():
    sites = [Site(width=512, heads=8, max_length=2**14) for _ in range(2)]
    balanced, fixed = (Sinkhorn(s, block=b) for s, b in zip(sites, (None, 8), strict=True))
    assert 1.0 < balanced.traits.operations_exponent < 1.5 < fixed.traits.operations_exponent < 2
    assert [balanced_block(length) for length in (2, 256, 4096, 8192, 16384)] == [
        16,
        16,
        48,
        64,
        96,
    ]
    assert balanced.block == 96


@pytest.mark.parametrize(
    ("options", "causal"),
    [({"sort": Sort.topk, "top_blocks": 2}, True), ({"sortcut": 2, "sort": Sort.softmax}, False)],
)
def test_other_forms_keep_the_contract(options, causal):
    found = check_mixer(partial(Sinkhorn, **options), causal=causal)
    assert len(found) > 1
    assert [f"{f.check}: {f.detail}" for f in found if not f.passed] == []


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="block must be at least 1, or null: got 0"):
        built(block=0)
    with pytest.raises(ValueError, match="sortcut must be at least 1, or null: got -1"):
        built(sortcut=-1)
    with pytest.raises(ValueError, match="iterations must be at least 1: got 0"):
        built(iterations=0)
    with pytest.raises(ValueError, match=r"temperature must be more than 0: got 0\.0"):
        built(temperature=0.0)
    with pytest.raises(ValueError, match="0 to heads=3: got 4"):
        built(local_heads=4)
    with pytest.raises(ValueError, match="variant=lra has no sortcut"):
        built(variant=Variant.lra, mixture=True)
    with pytest.raises(Unsupported, match="sortcut looks at the whole sequence"):
        built(causal=True, sortcut=2)
    with pytest.raises(Unsupported, match="variant=lra looks at the whole sequence"):
        built(causal=True, variant=Variant.lra)
    with pytest.raises(ValueError, match=r"outputs for 64 tokens: got 65; .* sort_net=attention"):
        built()(drawn(1, 65, 12), Layout())
    assert built(sort_net=SortNet.attention)(drawn(1, 65, 12), Layout()).isfinite().all()


@DIRECTIONS
def test_half_precision_keeps_its_dtype_and_sorts_in_float32(causal):
    mixer = built(causal=causal).float()
    x = drawn(2, 30, 12).float().requires_grad_()
    plain = mixer(x, Layout())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = mixer(x, Layout())
        assert mixer.block_scores(x, None).dtype == torch.float32
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), plain, rtol=0.05, atol=0.05)
    whole = built(causal=causal).bfloat16()(x.bfloat16(), Layout())
    assert whole.dtype == torch.bfloat16
    assert whole.isfinite().all()


@DIRECTIONS
def test_builds_and_runs_on_the_meta_device(causal):
    with torch.device("meta"):
        mixer = Sinkhorn(Site(width=12, heads=3, max_length=64, causal=causal))
        assert mixer(torch.empty(2, 50, 12), Layout()).shape == (2, 50, 12)
