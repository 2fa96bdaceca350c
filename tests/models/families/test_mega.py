"""Mega against the released modules, inside blocks, and what it costs."""

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
from lra.models.mixer import Flow, Layout, Site
from lra.runners.training.optimisers.groups import tunings
from tests.attention import builder, drawn
from tests.literal.mega import equations
from tests.models.families.released import mega as released

WIDTH = 6
STORED = np.load(released.OUTPUTS)
built = builder(
    Mega, width=WIDTH, heads=2, max_length=17, ema_states=3, value_width=5, key_width=4,
    moved=0.5,
)  # fmt: skip


def test_scores_of_a_long_sequence_are_never_there_at_once():
    length = 16_384
    with torch.device("meta"):
        site = Site(width=16, heads=1, max_length=length, causal=False)
        mixer = Mega(site, key_width=8, query_block=1024)
        x = torch.empty(1, length, 16, requires_grad=True)
    trace = Tracer("cpu").trace(lambda: mixer(x, Layout()).sum().backward())
    assert trace.peak_bytes < 4 * length**2  # a float32 for each pair of tokens


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


def test_what_is_no_matrix_is_said():
    mixer = built()
    names = {id(parameter): name for name, parameter in mixer.named_parameters()}
    special = {names[id(parameter)] for parameter, tuning in tunings(mixer) if not tuning.matrix}
    wide = {name for name, parameter in mixer.named_parameters() if parameter.dim() > 1}
    assert wide - special == {"v_proj.weight", "mx_proj.weight", "h_proj.weight"}


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
