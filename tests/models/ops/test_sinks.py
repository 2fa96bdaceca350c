"""Logits of sinks: what they leave as it was, and what they cost."""

import pytest
import torch

from lra.models.families.grouped_query import GroupedQueryAttention
from lra.models.families.latent_attention import LatentAttention
from lra.models.families.sdpa import SDPA
from lra.models.families.sliding_window import SlidingWindow
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Flow, Layout, Positions, Site
from tests.attention import Calls, drawn

FAMILIES = [SoftmaxAttention, SDPA, GroupedQueryAttention, LatentAttention, SlidingWindow]
NEVER = -1e6
"""A logit whose weight is 0."""


def pair(family, *, logits, causal=True, positions=Positions.none):
    """Return a layer without sinks, and one with these logits and the same weights otherwise."""
    site = Site(width=12, heads=3, max_length=20, causal=causal, positions=positions)
    plain, other = family(site).double(), family(site, sink=True).double()
    missing, unexpected = other.load_state_dict(plain.state_dict(), strict=False)
    assert (missing, unexpected) == (["core.sinks"], [])
    with torch.no_grad():
        other.core.sinks.copy_(torch.as_tensor(logits))
    return plain, other


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("positions", [Positions.none, Positions.alibi, Positions.t5])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_sink_without_weight_changes_nothing(family, positions, causal):
    if family is SlidingWindow and positions != Positions.none:
        pytest.skip("it has no positions in scores beside sinks")
    plain, other = pair(family, logits=NEVER, causal=causal, positions=positions)
    x, keep = drawn(2, 17, 12), torch.arange(17) < torch.tensor([[17], [9]])
    for layout in (Layout(), Layout(keep=keep)):
        torch.testing.assert_close(other(x, layout), plain(x, layout), atol=1e-13, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sink_takes_its_share_from_a_single_key(family):
    """Beside one key of score a, the weight of that key is 1 / (1 + e^(s - a))."""
    plain, other = pair(family, logits=[0.0, 1.0, -1.0])
    for layer in (plain, other):
        layer.q_proj.weight.data.zero_()
        if layer.q_proj.bias is not None:
            layer.q_proj.bias.data.zero_()
        layer.out_proj.weight.data.copy_(torch.eye(12))
    x = drawn(1, 1, 12)
    share = torch.tensor([0.0, 1.0, -1.0]).double().neg().sigmoid().repeat_interleave(4)
    torch.testing.assert_close(other(x, Layout()), plain(x, Layout()) * share, atol=1e-14, rtol=0)


@pytest.mark.parametrize("memory", [20, 6])
@pytest.mark.parametrize("family", [SoftmaxAttention, SDPA, GroupedQueryAttention, LatentAttention])
def test_a_stream_has_its_sinks(family, memory):
    _, mixer = pair(family, logits=[0.5, 1.0, -1.0])
    x, place = drawn(1, 17, 12), torch.arange(17)
    wanted = mixer(x, Layout())
    if memory < 17:
        parts = [x[:, max(0, t + 1 - memory) : t + 1] for t in place.tolist()]
        wanted = torch.cat([mixer(part, Layout())[:, -1:] for part in parts], 1)
    state, found = mixer.initial_state(1, memory), []
    for token in x.split(1, 1):
        flow = mixer.extend(Flow(token, state), Layout())
        state = flow.state
        found.append(flow.x)
    torch.testing.assert_close(torch.cat(found, 1), wanted, atol=1e-13, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_kernels_without_masks_still_serve(causal):
    _, mixer = pair(SDPA, logits=0.0, causal=causal)
    mixer, x = mixer.float(), drawn(2, 17, 12).float()
    with Calls() as calls, torch.no_grad():
        mixer(x, Layout())
    assert calls.names.count("_scaled_dot_product_flash_attention_for_cpu") == 1
    assert "_softmax" not in calls.names
