"""A memory that begins: a prompt costs what a pass over it costs."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.contract.counting import OperationCounter
from lra.models.families.differential import Differential
from lra.models.families.forgetting import Forgetting
from lra.models.families.grouped_query import GroupedQueryAttention
from lra.models.families.latent_attention import LatentAttention
from lra.models.families.sdpa import SDPA
from lra.models.mixer import Flow, Layout
from tests.attention import builder, drawn

LENGTH, MEMORY = 9, 16
KERNELS = [SDPA, GroupedQueryAttention, LatentAttention]


def read(mixer, x):
    """Read a prompt into an empty memory."""
    start = torch.zeros(len(x), dtype=torch.long)
    return mixer.extend(Flow(x, mixer.initial_state(len(x), MEMORY)), Layout(start=start))


@pytest.mark.parametrize("family", [*KERNELS, Differential, Forgetting])
def test_a_prompt_costs_a_plain_pass(monkeypatch, family) -> None:
    """As many operations, by the kernel that needs no mask."""
    mixer, x, masks = builder(family, causal=True, heads=2)(), drawn(2, LENGTH, 12), []
    with torch.no_grad(), OperationCounter() as forward:
        mixer(x, Layout())
    with torch.no_grad(), OperationCounter() as extend:
        read(mixer, x)
    assert extend.operations == forward.operations > 0

    kernel = F.scaled_dot_product_attention

    def recorded(q, k, v, attn_mask=None, **facts):
        masks.append((attn_mask, facts["is_causal"]))
        return kernel(q, k, v, attn_mask=attn_mask, **facts)

    monkeypatch.setattr(F, "scaled_dot_product_attention", recorded)
    read(mixer, x)
    assert masks == ([] if family is Forgetting else [(None, True)])
