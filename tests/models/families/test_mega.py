"""Mega against its equations, token by token, and against the released modules."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lra.models.backbone.networks import FeedForward
from lra.models.backbone.stack import PostNormBlock, TransformerBlock
from lra.models.contract.trace import Tracer
from lra.models.families import mega
from lra.models.families.mega import Mega
from lra.models.mixer import Flow, Layout, Site, Unsupported
from lra.models.state import size_bytes
from lra.runners.training.optimisers.groups import tunings
from tests.attention import builder, compare, drawn, holes, streamed
from tests.literal import state_space as reference
from tests.models.families.released import mega as released

WIDTH, CHUNK = 6, 4
LENGTHS = (1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5)
STORED = np.load(released.OUTPUTS)
built = builder(
    Mega, width=WIDTH, heads=2, max_length=LENGTHS[-1], ema_states=3, value_width=5, key_width=4,
    moved=0.5,
)  # fmt: skip


def average(mixer, x):
    """Compute the average from its parameters: a loop, or a double sum over both sides."""
    parts, length = mixer.average, x.shape[1]
    p = parts.delta.sigmoid()
    q, entry = 1 - p * parts.alpha.sigmoid(), p * parts.beta
    readout = parts.gamma / math.sqrt(parts.gamma.shape[-1])
    y = parts.omega * x
    if len(q) == 1:
        return y + reference.moving_average(x.mT, q[0], entry[0], readout[0]).mT
    lags = parts.truncation or length
    kernels = [
        reference.exponential(*each, length) for each in zip(readout * entry, q, strict=True)
    ]
    for t in range(length):
        for j in range(length):
            for kernel, lag in zip(kernels, (t - j, j - t), strict=True):
                if 0 <= lag < lags:
                    seen = torch.zeros_like(y)
                    seen[:, t] = kernel[:, lag] * x[:, j]
                    y = y + seen
    return y


def distance_score(mixer, i, j, width):
    """Return what is added to the score of query i and key j."""
    scores = mixer.relative
    if scores is None:
        return 0.0
    if isinstance(scores, mega.DistanceTable):
        return scores.weight[i - j - scores.least]
    turned = []
    for vector, place in ((scores.query, i), (scores.key, j)):
        left, right = vector.chunk(2)
        angle = place * 10_000.0 ** (-torch.arange(0, width, 2).double() / width)
        cos, sin = angle.cos(), angle.sin()
        turned.append(torch.cat((left * cos - right * sin, right * cos + left * sin)))
    return turned[0] @ turned[1]


def equations(mixer, x, keep=None, residual=None):
    """Compute a layer from its parameters, one query after the other."""
    keep = torch.ones(x.shape[:2], dtype=torch.bool) if keep is None else keep
    width, key_width, value_width, _ = mixer.widths
    x = x * keep[..., None]
    mx = F.silu(average(mixer, x))
    u, z, r, c = mixer.mx_proj(mx).split([width, key_width, value_width, width], dim=-1)
    q, k = (F.silu(z) * mixer.scale[side] + mixer.shift[side] for side in (0, 1))
    v, rows = F.silu(mixer.v_proj(x)), []
    chunk = mixer.chunk_length or x.shape[1]
    for row in range(len(x)):
        outputs = []
        for i in range(x.shape[1]):
            first = i // chunk * chunk
            last = i if mixer.traits.causal else min(first + chunk, x.shape[1]) - 1
            seen = [j for j in range(first, last + 1) if keep[row, j]]
            o = torch.zeros(value_width, dtype=x.dtype)
            scores = [q[row, i] @ k[row, j] for j in seen]
            scale = math.sqrt(key_width) if mixer.attention == "softmax" else len(seen)
            scores = [
                score / scale + distance_score(mixer, i, j, key_width)
                for score, j in zip(scores, seen, strict=True)
            ]
            if mixer.attention == "softmax":
                total = sum(score.exp() for score in scores)
                weights = [score.exp() / total for score in scores]
            else:
                mean, variance = torch.tensor([0.5**0.5, 0.25 / math.pi], dtype=x.dtype)
                normal = torch.distributions.Normal(mean, variance.sqrt())
                weights = [normal.cdf(score) for score in scores]
            for weight, j in zip(weights, seen, strict=True):
                o = o + weight * v[row, j]
            outputs.append(o)
        rows.append(torch.stack(outputs))
    g = F.silu(c + mixer.h_proj(F.silu(r) * torch.stack(rows)))
    return u.sigmoid() * (g - (x if residual is None else residual))


@pytest.mark.parametrize("attention", ["softmax", "laplace"])
@pytest.mark.parametrize("chunk", [CHUNK, None])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", LENGTHS)
def test_it_is_its_equations(length, causal, chunk, attention):
    relative = "rotary" if length == CHUNK + 1 else "simple"
    mixer = built(causal=causal, chunk_length=chunk, attention=attention, relative=relative)
    x = drawn(2, length, WIDTH).requires_grad_()
    compare(mixer(x, Layout()), equations(mixer, x), [x, *mixer.parameters()], atol=1e-10)


@pytest.mark.parametrize("attention", ["softmax", "laplace"])
@pytest.mark.parametrize("relative", ["simple", "rotary", "none"])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_is_no_key_and_counts_for_nothing(causal, relative, attention):
    mixer = built(causal=causal, chunk_length=CHUNK, attention=attention, relative=relative)
    length = LENGTHS[-1]
    keep, x = holes(length, end=9), drawn(2, length, WIDTH).requires_grad_()
    there = keep[..., None]
    found, wanted = mixer(x, Layout(keep=keep)) * there, equations(mixer, x, keep) * there
    compare(found, wanted, [x, *mixer.parameters()], atol=1e-10)


@pytest.mark.parametrize("attention", ["softmax", "laplace"])
@pytest.mark.parametrize("relative", ["simple", "rotary", "none"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_many_queries_attend_some_at_a_time(padded, causal, relative, attention):
    # of 17 queries 3, and 2 at the end
    mixer = built(causal=causal, attention=attention, relative=relative, query_block=3)
    length = LENGTHS[-1]
    keep, x = holes(length, end=9) if padded else None, drawn(2, length, WIDTH).requires_grad_()
    there = 1.0 if keep is None else keep[..., None]
    found, wanted = mixer(x, Layout(keep=keep)) * there, equations(mixer, x, keep) * there
    compare(found, wanted, [x, *mixer.parameters()], atol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(mixer(x, Layout(keep=keep)) * there, found)


def test_dropout_of_weights_is_the_same_when_they_are_computed_again():
    mixer = built(attention_dropout=0.5, query_block=3).train()
    x = drawn(1, LENGTHS[-1], WIDTH).requires_grad_()

    def loss(scale):
        torch.manual_seed(0)
        return mixer(scale * x, Layout()).sum()

    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(loss(scale), scale)
    with torch.no_grad():
        step = (loss(scale + 1e-6) - loss(scale - 1e-6)) / 2e-6
    torch.testing.assert_close(slope, step, rtol=1e-6, atol=0)


def test_scores_of_a_long_sequence_are_never_there_at_once():
    length = 16_384
    with torch.device("meta"):
        site = Site(width=16, heads=1, max_length=length, causal=False)
        mixer = Mega(site, key_width=8, query_block=1024)
        x = torch.empty(1, length, 16, requires_grad=True)
    trace = Tracer("cpu").trace(lambda: mixer(x, Layout()).sum().backward())
    assert trace.peak_bytes < 4 * length**2  # a float32 for each pair of tokens


@pytest.mark.parametrize("truncation", [1, 3, 40])
def test_averages_end_behind_their_last_lag(truncation):
    mixer = built(truncation=truncation)
    x = drawn(2, 11, WIDTH).requires_grad_()
    compare(mixer(x, Layout()), equations(mixer, x), [x, *mixer.parameters()], atol=1e-10)


@pytest.mark.parametrize("attention", ["softmax", "laplace"])
@pytest.mark.parametrize("relative", ["simple", "rotary"])
@pytest.mark.parametrize("chunk", [1, CHUNK, None])
def test_a_stream_is_one_pass_and_holds_as_much_as_is_said(chunk, relative, attention):
    mixer = built(causal=True, chunk_length=chunk, relative=relative, attention=attention)
    x = drawn(2, 17, WIDTH)
    outputs, state = streamed(mixer, x, [4, 4, 1, 1, 7], 17)
    torch.testing.assert_close(outputs, mixer(x, Layout()), atol=1e-10, rtol=0)
    remembered = (chunk or 17) - 1
    assert size_bytes(state) == 2 * 8 * (3 * WIDTH + remembered * (4 + 5) + 1)


@pytest.mark.parametrize("attention", ["softmax", "laplace"])
def test_without_chunks_a_stream_sees_the_last_tokens_of_its_memory(attention):
    """Keys, that is; the average has all of the past."""
    mixer, x, memory = built(causal=True, attention=attention), drawn(2, 17, WIDTH), 3
    found, _ = streamed(mixer, x, [5, 1, 11], memory)
    torch.testing.assert_close(found[:, :memory], mixer(x[:, :memory], Layout()))
    assert (found[:, memory:] - mixer(x, Layout())[:, memory:]).abs().amax(-1).min() > 1e-6
    with torch.no_grad():
        mixer.average.gamma.zero_()  # so that tokens out of sight say nothing
        loud = x.clone()
        loud[:, :8] = 50.0
        found, wanted = (
            streamed(mixer, tokens, [5, 1, 11], memory)[0][:, 8 + memory - 1 :]
            for tokens in (loud, x)
        )
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("relative", ["simple", "rotary", "none"])
@pytest.mark.parametrize("chunk", [None, CHUNK])
@pytest.mark.parametrize("causal", [True, False])
def test_parameters_are_those_of_the_paper(causal, chunk, relative):
    mixer = built(causal=causal, chunk_length=chunk, relative=relative)
    sides, n, d, z, e = 1 if causal else 2, 3, WIDTH, 4, 5
    longest = LENGTHS[-1] if chunk is None else chunk
    table = longest if causal else 2 * longest - 1
    wanted = 4 * n * d * sides + d + d * e + e + (d + 1) * (z + e + 2 * d) + e * d + d + 4 * z
    wanted += {"simple": table, "rotary": 2 * z, "none": 0}[relative]
    assert sum(parameter.numel() for parameter in mixer.parameters()) == wanted


def test_parameters_start_as_in_the_released_code():
    torch.manual_seed(0)
    mixer = Mega(Site(width=400, heads=1, max_length=8000), key_width=2000)
    parts = mixer.average
    signs = torch.tensor([1.0, -1.0] * 8)
    for found, deviation in (
        (parts.delta, 0.2), (parts.alpha, 0.2), (parts.beta - signs, 0.02), (parts.gamma, 1.0),
        (mixer.v_proj.weight, 0.02), (mixer.mx_proj.weight, 0.02), (mixer.h_proj.weight, 0.02),
        (mixer.scale, 0.02), (mixer.relative.weight, 0.02),
    ):  # fmt: skip
        assert abs(found.std() / deviation - 1) < 0.04
        assert abs(found.mean()) < 0.1 * deviation
    assert abs(parts.omega.std() - 1) < 0.15
    still = (mixer.v_proj.bias, mixer.mx_proj.bias, mixer.h_proj.bias, mixer.shift)
    assert not any(part.any() for part in still)
    rotary = Mega(Site(width=4, heads=1, max_length=8), key_width=8000, relative="rotary").relative
    assert abs(rotary.query.std() / 0.02 - 1) < 0.04
    assert abs(rotary.key.std() / 0.02 - 1) < 0.04


@pytest.mark.parametrize("kind", [TransformerBlock, PostNormBlock])
def test_blocks_hand_it_their_residual_and_their_dropout(kind):
    """y = x + u (g - x), the norm in front of all but the residual, or behind the sum."""
    mixer, x = built(), drawn(2, 9, WIDTH)
    block = kind(
        mixer, width=WIDTH, feed_forward=FeedForward.none, feed_forward_width=1, dropout=0.5
    )
    block = block.double().eval()
    y = block(Flow(x), Layout()).x
    if kind is TransformerBlock:
        wanted = x + equations(mixer, block.mixer_norm(x), residual=x)
    else:
        wanted = block.mixer_norm(x + equations(mixer, x))
    torch.testing.assert_close(y, wanted, atol=1e-10, rtol=0)

    dropped = []
    block.dropout = nn.Identity()
    block.dropout.register_forward_hook(
        lambda _, given, __: dropped.append(given[0]) or given[0] * 0.5
    )
    again = block(Flow(x), Layout()).x
    mx, g = dropped
    torch.testing.assert_close(mx, F.silu(mixer.average(
        block.mixer_norm(x) if kind is TransformerBlock else x, None)[0]))  # fmt: skip
    gate = mixer.mx_proj(mx * 0.5)[..., :WIDTH].sigmoid()
    total = x + gate * (g * 0.5 - x)
    wanted = total if kind is TransformerBlock else block.mixer_norm(total)
    torch.testing.assert_close(again, wanted, atol=1e-12, rtol=0)


def test_decays_survive_a_move_to_half_precision():
    parts = built().bfloat16().average
    assert {parameter.dtype for parameter in parts.parameters()} == {torch.float32}


def test_what_is_no_matrix_is_said():
    mixer = built()
    names = {id(parameter): name for name, parameter in mixer.named_parameters()}
    special = {names[id(parameter)] for parameter, tuning in tunings(mixer) if not tuning.matrix}
    wide = {name for name, parameter in mixer.named_parameters() if parameter.dim() > 1}
    assert wide - special == {"v_proj.weight", "mx_proj.weight", "h_proj.weight"}


def test_lengths_above_the_table_are_refused():
    mixer = built(causal=True)
    with pytest.raises(ValueError, match=r"up to 17 tokens: got 18; truncate"):
        mixer(drawn(1, 18, WIDTH), Layout())
    with pytest.raises(Unsupported, match=r"up to 17 tokens: got a memory of 18"):
        mixer.initial_state(1, 18)
    with pytest.raises(ValueError, match="at least the newest: got 0"):
        mixer.initial_state(1, 0)
    assert built(relative="rotary")(drawn(1, 18, WIDTH), Layout()).shape == (1, 18, WIDTH)


def stored(case, name):
    return torch.from_numpy(STORED[f"{case}: {name}"])


def of_average(parts, value):
    """Return the released values, or gradients, of a moving average by our names."""
    shape = parts.delta.shape
    released_names = {name: value(name) for name in ("delta", "alpha", "beta", "gamma")}
    return {name: found.view(shape) for name, found in released_names.items()} | {
        "omega": value("omega")
    }


def of_mixer(mixer, value):
    """Return the same of a gated attention, beside the norm of its block."""
    found = {f"average.{name}": given for name, given in
             of_average(mixer.average, lambda name: value(f"move.{name}")).items()}  # fmt: skip
    for name in ("v_proj", "mx_proj", "h_proj"):
        found |= {f"{name}.{kind}": value(f"{name}.{kind}") for kind in ("weight", "bias")}
    found |= {"scale": value("gamma"), "shift": value("beta")}
    if isinstance(mixer.relative, mega.RotaryScores):
        vectors = {"query": value("rel_pos_bias.alpha"), "key": value("rel_pos_bias.beta")}
        return found | {f"relative.{name}": vector[0] for name, vector in vectors.items()}
    # There by the key's position less the query's, also of keys that no query sees.
    table = value("rel_pos_bias.rel_pos_bias").flip(0)
    return found | {"relative.weight": table[len(table) - len(mixer.relative.weight) :]}


def shapes_of(case):
    """Return what gives the released weights of a case, by name."""
    return lambda name: released.weight(name, stored(case, name).shape)


def filled(module, values):
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(values[name])


@pytest.mark.parametrize("case", released.AVERAGES)
def test_averages_are_the_released_ones(case):
    options = released.AVERAGES[case]
    sides = 2 if options["bidirectional"] else 1
    parts = mega.MovingAverage(released.WIDTH, released.STATES, sides, options["truncation"])
    parts = parts.double()
    filled(parts, of_average(parts, shapes_of(case)))
    x, keep = released.tokens().requires_grad_(), released.keep()[..., None]
    y = F.silu(parts(x * keep, None)[0]) * keep
    torch.testing.assert_close(y, stored(case, "y"), atol=1e-10, rtol=0)
    gradients = torch.autograd.grad(y, [x, *parts.parameters()], released.direction())
    wanted = of_average(parts, lambda name: stored(case, name)) | {"x": stored(case, "x")}
    names = ["x", *(name for name, _ in parts.named_parameters())]
    for name, gradient in zip(names, gradients, strict=True):
        torch.testing.assert_close(gradient, wanted[name], atol=1e-10, rtol=1e-10)


def test_a_stream_of_averages_is_the_released_one():
    parts = mega.MovingAverage(released.WIDTH, released.STATES, 1, None).double()
    filled(parts, of_average(parts, shapes_of("one-sided")))
    state = torch.zeros(released.ROWS, released.WIDTH, released.STATES, dtype=torch.float64)
    outputs = []
    for piece in released.tokens().split(released.PIECES, dim=1):
        y, state = parts(piece, state)
        outputs.append(F.silu(y))
    y = torch.cat(outputs, dim=1)
    torch.testing.assert_close(y, stored("stream", "y"), atol=1e-10, rtol=0)
    torch.testing.assert_close(state, stored("stream", "state"), atol=1e-10, rtol=0)


def released_block(case):
    """Return the block that stands for a released module, and its mixer."""
    options = released.ATTENTIONS[case]
    mixer = Mega(
        Site(width=released.WIDTH, heads=1, max_length=released.LONGEST),
        ema_states=released.STATES, key_width=released.KEY_WIDTH,
        value_width=released.VALUE_WIDTH, attention=options["attention"],
        chunk_length=options["chunk"], relative=options["relative"],
        bidirectional=options["bidirectional"],
    )  # fmt: skip
    kind = TransformerBlock if options["before"] else PostNormBlock
    shape = {"width": released.WIDTH, "feed_forward_width": 1, "dropout": 0.0}
    block = kind(mixer, feed_forward=FeedForward.none, **shape)
    return block.double().eval(), mixer.double().eval()


@pytest.mark.parametrize("case", released.ATTENTIONS)
def test_gated_attention_is_the_released_one(case, monkeypatch):
    rounded = {"LAPLACE_MEAN": 0.707107, "LAPLACE_DEVIATION": 0.282095}
    if released.ATTENTIONS[case]["attention"] == "laplace":
        exact, _ = answered(case)
        assert (exact - stored(case, "y")).abs().max() < 1e-5
    for name, value in rounded.items():
        assert abs(getattr(mega, name) - value) < 5e-7
        monkeypatch.setattr(mega, name, value)
    y, found = answered(case)
    torch.testing.assert_close(y, stored(case, "y"), atol=1e-10, rtol=0)
    for name, (gradient, wanted) in found.items():
        torch.testing.assert_close(gradient, wanted, atol=1e-9, rtol=1e-9, msg=name)


def answered(case):
    """Return outputs at real tokens, and gradients beside the released ones, by name."""
    block, mixer = released_block(case)
    norm = {f"mixer_norm.{kind}": f"norm.norm.{kind}" for kind in ("weight", "bias")}

    def values(value):
        inside = {f"mixer.{name}": given for name, given in of_mixer(mixer, value).items()}
        return inside | {name: value(theirs) for name, theirs in norm.items()}

    filled(block, values(shapes_of(case)))
    x, keep = released.tokens().requires_grad_(), released.keep()
    y = block(Flow(x), Layout(keep=keep)).x * keep[..., None]
    names, leaves = zip(*block.named_parameters(), strict=True)
    gradients = torch.autograd.grad(y, [x, *leaves], released.direction())
    wanted = values(lambda name: stored(case, name)) | {"x": stored(case, "x")}
    pairs = zip(("x", *names), gradients, strict=True)
    return y.detach(), {name: (gradient, wanted[name]) for name, gradient in pairs}
