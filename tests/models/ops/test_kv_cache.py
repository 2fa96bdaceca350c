"""A memory that begins: a prompt costs what a pass over it costs, and gives the same numbers."""

from itertools import product

import pytest
import torch
from torch.nn import functional as F

from lra.models.contract.counting import OperationCounter
from lra.models.families.differential import Differential
from lra.models.families.forgetting import Forgetting
from lra.models.families.grouped_query import GroupedQueryAttention
from lra.models.families.latent_attention import LatentAttention
from lra.models.families.sdpa import SDPA
from lra.models.families.softmax import SoftmaxAttention
from lra.models.families.sparse_transformer import SparseTransformer
from lra.models.families.synthesizer import Synthesizer
from lra.models.families.talking_heads import TalkingHeads
from lra.models.mixer import Flow, Layout, Positions
from lra.models.ops import kv_cache
from tests.attention import builder, drawn

LENGTH, MEMORY = 9, 16
KERNELS = [SDPA, GroupedQueryAttention, LatentAttention]
PLACES = [Positions.none, Positions.alibi, Positions.t5]
FORMS = [*product([*KERNELS, SoftmaxAttention, TalkingHeads], PLACES)]
FORMS += [*product([SparseTransformer, Synthesizer], PLACES[:2]), (Forgetting, Positions.none)]
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


def read(mixer, x, length: int = LENGTH):
    """Read a prompt into an empty memory."""
    start = torch.zeros(len(x), dtype=torch.long)
    return mixer.extend(
        Flow(x[:, :length], mixer.initial_state(len(x), MEMORY)), Layout(start=start)
    )


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(("family", "positions"), FORMS)
def test_a_prompt_equals_the_masked_form(monkeypatch, family, positions, dtype) -> None:
    mixer = builder(family, causal=True, positions=positions)().to(dtype)
    x = drawn(2, MEMORY + 3, 12).to(dtype)
    plain, behind = read(mixer, x), x[:, LENGTH:MEMORY]
    # Behind it, and longer than the memory, the masked form goes on.
    more = mixer.extend(Flow(behind, plain.state), Layout(start=torch.full((2,), LENGTH)))
    longer = LENGTH if family is Synthesizer else MEMORY + 3  # which drops no token
    long = read(mixer, x, longer)
    monkeypatch.setattr(kv_cache, "begins", lambda state, length: False)
    masked, within = read(mixer, x), {"atol": TOLERANCES[dtype], "rtol": 0}
    torch.testing.assert_close(plain.x, masked.x, **within)
    torch.testing.assert_close(plain.state, masked.state)
    torch.testing.assert_close(long.x, read(mixer, x, longer).x, **within)
    again = mixer.extend(Flow(behind, masked.state), Layout(start=torch.full((2,), LENGTH)))
    torch.testing.assert_close(more.x, again.x, **within)


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
