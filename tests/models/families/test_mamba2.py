"""Mamba-2 token by token, and Hydra as the matrix of its paper."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.families.mamba2 import Mamba2
from lra.models.mixer import Layout, Unsupported
from tests.attention import builder, compare, drawn, streamed

LENGTH, WIDTH, HEADS = 21, 12, 4
built = builder(Mamba2, heads=HEADS, causal=True, chunk=8, states=5)


def silu(x):
    return x * x.sigmoid()


def rms(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def streams(mixer, x, *, centred=False):
    """Return x, B and C behind convolutions of all channels."""
    names, results = ("input_proj", "write_proj", "read_proj"), []
    for number, name in enumerate(names):
        y = mixer.get_submodule(name)(x)
        if len(mixer.convolutions):
            layer = mixer.convolutions[number]
            taps = layer.weight.shape[1]
            sides = (taps // 2, taps // 2) if centred else (taps - 1, 0)
            weight = layer.weight[:, None]
            y = F.conv1d(F.pad(y.mT, sides), weight, layer.bias, groups=y.shape[-1]).mT
            y = silu(y)
        results.append(y)
    return results


def recurrent(mixer, x, groups):
    v, write, read = streams(mixer, x)
    dt = (1 + (mixer.step_map(x) + mixer.step_bias).exp()).log()
    v = v.unflatten(-1, (HEADS, -1))
    write, read = (each.unflatten(-1, (groups, -1)) for each in (write, read))
    rows = []
    for b in range(len(x)):
        state, outputs = torch.zeros(HEADS, v.shape[-1], write.shape[-1]).double(), []
        for t in range(x.shape[1]):
            heads = []
            for h in range(HEADS):
                group = h * groups // HEADS
                decay = (-mixer.log_rate[h].exp() * dt[b, t, h]).exp()
                new = decay * state[h] + torch.outer(dt[b, t, h] * v[b, t, h], write[b, t, group])
                heads.append((new, new @ read[b, t, group] + mixer.skip[h] * v[b, t, h]))
            state = torch.stack([new for new, _ in heads])
            outputs.append(torch.cat([o for _, o in heads]))
        rows.append(torch.stack(outputs))
    o = torch.stack(rows)
    return mixer.out_proj(rms(o * silu(mixer.gate_proj(x)), mixer.norm.weight))


def log_linear(mixer, x):
    """lambda_i of the level, (C_i · B_j) and the decay between, pair by pair of each head."""
    v, write, read = streams(mixer, x)
    dt = (1 + (mixer.step_map(x) + mixer.step_bias).exp()).log()
    length, values = x.shape[1], v.unflatten(-1, (HEADS, -1))
    mapped = mixer.level_map(x).unflatten(-1, mixer.level_scale.shape)
    weights = (1 + (mapped * mixer.level_scale).exp()).log()
    rows = []
    for b in range(len(x)):
        heads = []
        for h in range(HEADS):
            g = -mixer.log_rate[h].exp() * dt[b, :, h]
            matrix = torch.zeros(length, length).double()
            for i in range(length):
                for j in range(i + 1):
                    level = 0 if i == j else len(f"{i ^ j:b}")
                    score = read[b, i] @ write[b, j] * dt[b, j, h] * g[j + 1 : i + 1].sum().exp()
                    matrix[i, j] = weights[b, i, h, level] * score
            matrix = matrix + torch.eye(length).double() * mixer.skip[h]
            heads.append(matrix @ values[b, :, h])
        rows.append(torch.cat(heads, -1))
    o = torch.stack(rows)
    return mixer.out_proj(rms(o * silu(mixer.gate_proj(x)), mixer.norm.weight))


def hydra(mixer, x):
    """M_ij = (C_(i-1) · B_j) exp(G_(i-1) - G_j) below, delta_i on; from the end above."""
    v, write, read = streams(mixer, x, centred=True)
    dt = mixer.step_map(x).unflatten(-1, (2, HEADS)) + mixer.step_bias  # of both ends
    dt = (1 + dt.exp()).log()
    write, read = (each.unflatten(-1, (2, -1)) for each in (write, read))
    length, values = x.shape[1], v.unflatten(-1, (HEADS, -1))
    skip = mixer.skip + mixer.skip_map(v)
    rows = []
    for b in range(len(x)):
        heads = []
        for h in range(HEADS):
            g = -mixer.log_rate[h].exp() * dt[b, :, :, h]
            matrix = torch.zeros(length, length).double()
            for i in range(length):
                for j in range(length):
                    if i == j:
                        matrix[i, j] = skip[b, i, h]
                        continue
                    side = int(j > i)
                    reader = i - 1 if j < i else i + 1
                    between = g[j + 1 : i, 0] if j < i else g[i + 1 : j, 1]
                    score = read[b, reader, side] @ write[b, j, side] * dt[b, j, side, h]
                    matrix[i, j] = score * between.sum().exp()
            heads.append(matrix @ values[b, :, h])
        rows.append(torch.cat(heads, -1))
    o = torch.stack(rows)
    return mixer.out_proj(rms(o, mixer.norm.weight) * silu(mixer.gate_proj(x)))


@pytest.mark.parametrize(
    "options", [{}, {"groups": 2, "expansion": 1}, {"convolution": None, "states": 1}]
)
def test_it_is_the_paper_token_by_token(options):
    mixer, x = built(**options), drawn(2, LENGTH, WIDTH).requires_grad_()
    compare(
        mixer(x, Layout()),
        recurrent(mixer, x, options.get("groups", 1)),
        [x, *mixer.parameters()],
        atol=1e-10,
    )


@pytest.mark.parametrize("convolution", [7, None])
def test_hydra_is_its_matrix(convolution):
    mixer = built(causal=False, quasi_separable=True, convolution=convolution)
    mixer.log_rate.data.normal_()
    x = drawn(2, 11, WIDTH).requires_grad_()
    compare(mixer(x, Layout()), hydra(mixer, x), [x, *mixer.parameters()], atol=1e-10)


def test_hydra_has_the_parameters_of_its_code():
    """The maps of z, x, B, C and dt, taps with biases, numbers of heads, norm, and the way out."""
    inner, states, taps = 2 * WIDTH, 5, 7
    convolved = inner + 4 * states
    wanted = WIDTH * (inner + convolved + 2 * HEADS) + convolved * (taps + 1)
    wanted += 3 * HEADS + inner * HEADS + inner + inner * WIDTH  # A, D and the bias of dt
    mixer = built(causal=False, quasi_separable=True, convolution=taps)
    assert sum(each.numel() for each in mixer.parameters()) == wanted


def test_log_linear_attention_is_its_matrix():
    """And the same from states, cut anywhere; 64 tokens have 7 levels."""
    mixer, x = built(log_linear=True), drawn(2, LENGTH, WIDTH).requires_grad_()
    torch.nn.init.normal_(mixer.level_scale)
    wanted = log_linear(mixer, x)
    compare(mixer(x, Layout()), wanted, [x, *mixer.parameters()], atol=1e-10)
    outputs, (state, place, *_) = streamed(mixer, x, [6, 1, 1, 13], 64)
    torch.testing.assert_close(outputs, wanted, atol=1e-10, rtol=0)
    assert state.shape == (2, HEADS, 6, 5, 6)
    assert place.tolist() == [LENGTH, LENGTH]
    more = sum(p.numel() for p in mixer.parameters()) - sum(p.numel() for p in built().parameters())
    assert more == WIDTH * HEADS * 7 + HEADS * 7


def test_a_causal_hydra_is_refused():
    with pytest.raises(Unsupported, match="quasi_separable sees both sides"):
        built(quasi_separable=True, convolution=7)
