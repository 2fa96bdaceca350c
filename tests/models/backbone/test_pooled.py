"""A stack whose sequence is halved between blocks: a literal form, and what every family needs."""

import dataclasses
import math
from functools import cache, partial

import pytest
import torch
from small_backbones import CLASSES, CONFIG, LENGTH, VOCABULARY, facts, tokens
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from lra.models.backbone.attention_weights import readable
from lra.models.backbone.length_pooling import (
    PoolMode,
    even_blocks,
    pool_pairs,
    pooled_length,
    pooled_mask,
)
from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.cosformer import Cosformer
from lra.models.families.funnel import Funnel
from lra.models.families.local import LocalAttention
from lra.models.families.sdpa import SDPA
from lra.models.families.softmax import SoftmaxAttention
from lra.models.families.tlb import TemporalLatentBottleneck
from lra.models.mixer import Flow, Layout, Unsupported

FUNNEL = {
    "depth": 5, "pool_blocks": 3, "residual": "post_norm", "positions": "transformer_xl",
    "feed_forward": "gelu_tanh",
}  # fmt: skip


def build(mixer, head: Head = Head.classification, *, seed: int = 0, **changes) -> Backbone:
    config = dataclasses.replace(CONFIG, **changes)
    model = Backbone(config, facts(head), [mixer], seed=seed).double().eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator).double())
    return model


def sinusoid(distance: int, width: int) -> Tensor:
    angles = [distance / 10000 ** (2 * i / width) for i in range(width // 2)]
    values = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    return torch.tensor(values, dtype=torch.float64)


def literal_layer(block, queries, keys, at, keys_at, *, cls: bool) -> list[Tensor]:
    """Return one post-norm layer's outputs, token by token."""
    mixer, relative, found = block.mixer, block.mixer.core.relative, []
    heads, width = mixer.heads, mixer.head_width
    scale = 1 / math.sqrt(width)
    made = [(mixer.k_proj(k).view(heads, -1), mixer.v_proj(k).view(heads, -1)) for k in keys]
    for i, x in enumerate(queries):
        q = mixer.q_proj(x).view(heads, -1)
        scores = []
        for j, (k, _) in enumerate(made):
            score = ((q + relative.biases.content) * k).sum(1)
            if not (cls and (i == 0 or j == 0)):
                r = relative.r_proj(sinusoid(at[i] - keys_at[j], heads * width)).view(heads, -1)
                score = score + ((q + relative.biases.position) * r).sum(1)
                if cls:
                    score = score + ((q + relative.kind_bias) * relative.kind_vector).sum(1)
            scores.append(score * scale)
        weights = torch.stack(scores).softmax(0)
        seen = sum(weights[j][:, None] * v for j, (_, v) in enumerate(made))
        y = block.mixer_norm(x + mixer.out_proj(seen.flatten()))
        found.append(block.network_norm(y + block.network(y)))
    return found


def literal_stack(model: Backbone, x: Tensor) -> Tensor:
    """Return the output for one row without padding."""
    config, stack, cls = model.config, model.stack, model.has_cls
    h = [stack.norm(token) for token in x]
    at, layers, low = list(range(len(h))), list(stack.blocks), []
    for number, count in enumerate(config.block_layers):
        block, layers = layers[:count], layers[count:]
        for layer, each in enumerate(block):
            keys, keys_at = h, at
            if number and not layer:
                first, rest = h[:cls], h[cls:]
                pairs = [rest[i : i + 2] for i in range(0, len(rest), 2)]
                if config.pool_mode == PoolMode.mean:
                    h = first + [sum(pair) / len(pair) for pair in pairs]
                else:
                    h = first + [torch.stack(pair).max(0).values for pair in pairs]
                at = at[:cls] + at[cls::2]  # of a CLS vector none is looked at
                if not config.pool_query_only:
                    keys, keys_at = h, at
            h = literal_layer(each, h, keys, at, keys_at, cls=cls)
        low = low or h
    if model.per_token:
        first, rest = h[:cls], h[cls:]
        times = 2 ** (len(config.block_layers) - 1)
        up = first + [token for token in rest for _ in range(times)]
        h = [a + b for a, b in zip(low, up, strict=False)]
        for each in layers:
            place = list(range(len(h)))
            h = literal_layer(each, h, h, place, place, cls=cls)
    return torch.stack(h)


@pytest.mark.parametrize("options", [
    {}, {"pooling": "mean"}, {"pool_mode": "max"}, {"pool_query_only": False},
    {"pool_layers": [1, 2, 2], "pool_repeats": [1, 2, 1]},
    {"head": Head.masked_modelling, "pool_decoder": 1},
    {"head": Head.masked_modelling, "pool_decoder": 0},
], ids=str)  # fmt: skip
def test_the_stack_is_the_literal_form(options):
    model = build(Funnel, **FUNNEL | options)
    lengths = [LENGTH, 9, 1]
    x = torch.randn(3, LENGTH, CONFIG.width, dtype=torch.float64, requires_grad=True)
    keep = torch.arange(LENGTH) < torch.tensor(lengths)[:, None]
    found = model.stack(Flow(x), Layout(keep=keep)).x
    times = 0 if model.per_token else 2
    has_cls = model.has_cls
    found, wanted = zip(*(
        (found[row, : pooled_length(n, times, has_cls=has_cls)], literal_stack(model, x[row, :n]))
        for row, n in enumerate(lengths)
    ), strict=True)  # fmt: skip
    found, wanted = torch.cat(found), torch.cat(wanted)
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=0)
    leaves = [x, *model.stack.parameters()]
    direction = torch.randn_like(wanted)
    one, other = (torch.autograd.grad(y, leaves, direction) for y in (found, wanted))
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


def test_pools_are_means_of_real_tokens():
    x = torch.tensor([9.0, 1, 3, 5, 7, 8])[None, :, None]
    keep = torch.tensor([[True, True, True, True, False, False]])
    mean = partial(pool_pairs, x, mode=PoolMode.mean)
    assert mean(None, has_cls=True).flatten().tolist() == [9, 2, 6, 8]
    assert mean(None, has_cls=False).flatten().tolist() == [5, 4, 7.5]
    assert mean(keep, has_cls=True).flatten().tolist() == [9, 2, 5, 0]
    assert pool_pairs(x, keep, has_cls=True, mode=PoolMode.max).flatten().tolist() == [9, 3, 5, 0]
    assert pooled_mask(keep, has_cls=True).tolist() == [[True, True, True, False]]
    for length in range(1, 20):
        for has_cls in (False, True):
            made, long = length, torch.ones(1, length, dtype=torch.bool)
            for times in range(4):
                assert pooled_length(length, times, has_cls=has_cls) == made
                long = pooled_mask(long, has_cls=has_cls)
                made = long.shape[1]


@pytest.mark.parametrize("head", [Head.classification, Head.masked_modelling])
@pytest.mark.parametrize("padding", ["masked", "zeroed"])
@pytest.mark.parametrize(
    ("mixer", "options"), [(Funnel, FUNNEL), (SoftmaxAttention, {"depth": 4, "pool_blocks": 3})]
)
def test_padding_behind_changes_nothing(mixer, options, head, padding):
    """Not its content, nor that it is there; as zeros it counts for mixers, and its content not."""
    model = build(mixer, head, padding=padding, **options)
    ids, keep = tokens(), torch.arange(LENGTH) < torch.tensor([[[LENGTH]], [[6]], [[3]]])
    other = torch.where(keep, ids, (ids + 1) % VOCABULARY)
    found, wanted = (model.predict(each, keep)[0] for each in (ids, other))
    if model.per_token:
        found, wanted = (y.masked_fill(~keep[:, 0, :, None], 0.0) for y in (found, wanted))
    torch.testing.assert_close(found, wanted)
    if padding == "masked":
        lone = model.predict(ids[1:2, :, :6])[0]
        torch.testing.assert_close(found[1:2, :6] if model.per_token else found[1:2], lone)


@pytest.mark.parametrize("pooling", ["cls", "mean", "mean_with_cls", "last", "first", "mean_all"])
def test_answers_are_read_from_what_is_real(pooling):
    model = build(SoftmaxAttention, pooling=pooling, depth=3, pool_blocks=3)
    ids = tokens()
    keep = torch.arange(LENGTH) < torch.tensor([[[LENGTH]], [[8]], [[4]]])
    found = model.predict(ids, keep)[0]
    assert found.shape == (3, CLASSES)
    if pooling != "mean_all":
        torch.testing.assert_close(found[1:2], model.predict(ids[1:2, :, :8])[0])


def test_weights_of_pools_are_not_read_as_those_of_tokens():
    with pytest.raises(Unsupported, match="in a layer that reads a pooled sequence"):
        readable(build(Funnel, **FUNNEL).stack)


@pytest.mark.parametrize(("changes", "words"), [
    ({"pool_blocks": 0}, "pool_blocks must be at least 1: got 0"),
    ({"pool_blocks": 2, "pool_layers": [1]}, "pool_layers must list .* for each of the 2 blocks"),
    ({"pool_blocks": 2, "pool_layers": [1, 2]}, "pool_layers, .* must add up to depth=2"),
    ({"pool_blocks": 2, "pool_repeats": [1, 0]}, "pool_repeats must list a positive number"),
    ({"pool_blocks": 2, "pool_repeats": [1, 2]}, "must divide the number of layers"),
    ({"pool_blocks": 3, "pool_repeats": [1, 1, 1]}, "must divide the number of layers"),
    ({"pool_blocks": 2, "pool_decoder": -1}, "pool_decoder, .* must be at least 0: got -1"),
    ({"pool_mode": "max"}, "pool_mode has no effect without pool_blocks=2 or more"),
    ({"norm": "batch", "pool_blocks": 2, "pool_repeats": [1, 1]}, "norm=batch must"),
    ({"pool_blocks": 2, "pool_mode": "min"}, "wanted one of mean, max"),
])  # fmt: skip
def test_options_that_make_no_model_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(CONFIG, **changes)


@pytest.mark.parametrize(("mixers", "head", "changes", "words"), [
    ([SoftmaxAttention], Head.language_modelling, {}, "would read its answer"),
    ([SoftmaxAttention], Head.classification, {"residual": "reversible"}, "after pooling"),
    ([SoftmaxAttention], Head.classification, {"layer_groups": 1}, "pool_repeats decides"),
    ([LocalAttention], Head.classification, {"pool_query_only": False, "positions": "rotary"},
     "LocalAttention derives positions from the index"),
    ([Cosformer], Head.classification, {}, "does not depend on order by itself"),
    ([SoftmaxAttention, SDPA], Head.masked_modelling, {}, "pool_decoder=2 layers: choose"),
])  # fmt: skip
def test_models_that_cannot_pool_are_refused(mixers, head, changes, words):
    config = dataclasses.replace(CONFIG, pool_blocks=2, **changes)
    with pytest.raises(Unsupported, match=words):
        Backbone(config, facts(head), mixers, seed=0)


def test_a_stack_of_its_own_does_not_pool():
    config = dataclasses.replace(CONFIG, pool_blocks=2, pooling="mean", positions="none")
    with pytest.raises(Unsupported, match="pool_blocks must be 1: got 2"):
        Backbone(config, facts(), [], stack=TemporalLatentBottleneck, seed=0)


def test_blocks_are_as_equal_as_can_be_and_no_more_than_layers():
    assert [even_blocks(depth, 3) for depth in (1, 2, 4, 12)] == [[1], [1, 1], [2, 1, 1], [4, 4, 4]]
    assert type(build(Funnel, **FUNNEL | {"depth": 1}).stack).__name__ == "PostNormStack"


@cache
def counted(depth, head=Head.classification, *, pool_blocks=1, pool_repeats=()):
    """Return operations of a pass over 512 tokens, and parameters of embedding and stack."""
    known = TaskFacts(head=head, vocabulary=30522, classes=2, max_length=512)
    config = BackboneConfig(**{
        **FUNNEL, "depth": depth, "width": 768, "heads": 12, "feed_forward_width": 3072,
        "pool_blocks": pool_blocks, "pool_repeats": pool_repeats,
    })  # fmt: skip
    with torch.device("meta"):
        model = Backbone(config, known, [Funnel], seed=0)
        ids = torch.zeros(1, 1, 511 + model.per_token, dtype=torch.long)
        with FlopCounterMode(display=False) as flops, torch.no_grad():
            model.run(ids, None, None)
    stack = sum(p.numel() for p in model.stack.parameters()) + model.embedding.weight.numel()
    return flops.get_total_flops(), stack


@pytest.mark.parametrize(("depth", "repeats", "operations", "parameters"), [
    (12, (), 7 / 12, 1.00), (18, (), 10.5 / 12, 1.39), (18, (1, 2, 2), 10.5 / 12, 1.00),
])  # fmt: skip
def test_sizes_of_the_paper_cost_their_share_of_a_plain_one(depth, repeats, operations, parameters):
    """B4-4-4, B6-6-6 and B6-3x2-3x2, beside L12H768.

    Of the linear work; what is quadratic in 512 tokens falls a little further.
    """
    usual = counted(12)
    found = counted(depth, pool_blocks=3, pool_repeats=repeats)
    assert found[0] / usual[0] == pytest.approx(operations, abs=0.02)
    assert found[1] / usual[1] == pytest.approx(parameters, abs=0.01)


def test_parameters_are_those_of_the_released_models():
    """115,611,648 of B4-4-4H768 without its decoder, 130,973,184 with it (transformers).

    There a layer has vectors of two kinds of pairs and no bias of queries; without a CLS vector,
    ours has no kinds.
    """
    assert counted(12, pool_blocks=3, pool_repeats=())[1] == 115_611_648
    found = counted(12, Head.masked_modelling, pool_blocks=3)[1]
    assert found == 130_973_184 - 14 * 2 * 768


def test_what_it_is_compared_with_keeps_its_length():
    config = dataclasses.replace(CONFIG, depth=4, pool_blocks=3, pool_layers=[2, 1, 1])
    assert config.at_full_length() == dataclasses.replace(CONFIG, depth=4)
