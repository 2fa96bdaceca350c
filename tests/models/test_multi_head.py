import pytest
import torch
from torch import nn

from lra.models.families.reformer import Reformer
from lra.models.families.sdpa import SDPA
from lra.models.families.softmax import SoftmaxAttention
from lra.models.linear_map import projection
from lra.models.mixer import Layout, Positions, Traits, Unsupported
from lra.models.multi_head import HeadCounts, MultiHead
from tests.attention import site


class Core(nn.Module):
    """A core that is never called."""

    traits = Traits()


def test_heads_of_each_kind_are_drawn_at_their_own_width():
    torch.manual_seed(0)
    module = MultiHead(site(), Core(), heads=HeadCounts(6, 2, 3, 1), key_width=5)
    torch.manual_seed(0)
    shapes = {"q_proj": (12, 30), "k_proj": (12, 10), "v_proj": (12, 12), "out_proj": (4, 12)}
    for name, ends in shapes.items():
        wanted = projection(*ends, bias=True).weight
        assert torch.equal(getattr(module, name).weight, wanted), name
    parts = module.project(torch.randn(2, 7, 12), Layout())
    assert [tuple(part.shape) for part in parts] == [(2, 6, 7, 5), (2, 2, 7, 5), (2, 3, 7, 4)]


@pytest.mark.parametrize(("qkv", "output"), [(True, False), (False, None), (None, False)])
def test_the_backbone_says_which_projections_have_biases(qkv, output):
    module = MultiHead(site(qkv_bias=qkv, output_bias=output), Core())
    found = {name for name, _ in module.named_parameters() if name.endswith("bias")}
    inward = {f"{name}_proj.bias" for name in "qkv"} if qkv is not False else set()
    assert found == inward | ({"out_proj.bias"} if output is not False else set())


def test_two_words_about_biases_are_refused():
    with pytest.raises(ValueError, match=r"bias=false of the family and model\.backbone\.qkv_bias"):
        MultiHead(site(qkv_bias=True), Core(), bias=False)
    with pytest.raises(ValueError, match=r"output_bias=false .*leave bias at false"):
        Reformer(site(output_bias=False, heads=2), bias=True)


def test_rotary_needs_an_even_head_width():
    with pytest.raises(ValueError, match="even head width: got "):
        MultiHead(site(heads=4, positions=Positions.rotary), Core())
    with pytest.raises(ValueError, match="even head width: got head_width=5; change heads"):
        MultiHead(site(own_head_width=5, positions=Positions.rotary), Core())


def test_a_gate_is_drawn_after_everything_else():
    torch.manual_seed(0)
    plain = MultiHead(site(), Core())
    torch.manual_seed(0)
    more = MultiHead(site(), Core(), output_gate=True, qk_norm=True)
    assert {*more.state_dict()} - {*plain.state_dict()} == {
        "gate_proj.weight", "gate_proj.bias", "q_norm.weight", "k_norm.weight",
    }  # fmt: skip
    for name, weight in plain.state_dict().items():
        assert torch.equal(more.state_dict()[name], weight), name


@pytest.mark.parametrize("family", [SDPA, SoftmaxAttention])
@pytest.mark.parametrize("option", ["output_gate", "qk_norm"])
def test_the_arena_has_no_gates_and_norms(family, option):
    with pytest.raises(Unsupported, match=f"variant=lra fixes {option} at false: got true"):
        family(site(), variant="lra", **{option: True})
