import pytest
import torch
from torch import Tensor, nn

from lra.models.families.reformer import Reformer
from lra.models.families.sdpa import SDPA
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Flow, Layout, Positions, Traits, Unsupported
from lra.models.multi_head import HeadCounts, MultiHead, projection
from lra.models.positions import rotate
from tests.attention import compare, drawn, site


class Explicit(nn.Module):
    """Softmax attention spelt out, without a state."""

    traits = Traits(row_stochastic=True)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if layout.keep is not None:
            scores = scores.masked_fill(~layout.keep[:, None, None], -torch.inf)
        return scores.softmax(-1) @ v


class OneWay(Explicit):
    """The same, said to look back alone."""

    traits = Traits(row_stochastic=True, causal=True)


def literal(module: MultiHead, x: Tensor, *, rotary: bool, width: int = 4) -> Tensor:
    """Head by head and row by row."""
    out = []
    for row in x:
        heads = []
        for head in range(3):
            part = slice(width * head, width * head + width)
            q, k, v = (
                row @ layer.weight[part].T + layer.bias[part]
                for layer in (module.q_proj, module.k_proj, module.v_proj)
            )
            if rotary:
                q, k = rotate(q[None, None])[0, 0], rotate(k[None, None])[0, 0]
            heads.append((q @ k.T / width**0.5).softmax(-1) @ v)
        out.append(torch.cat(heads, -1) @ module.out_proj.weight.T + module.out_proj.bias)
    return torch.stack(out)


@pytest.mark.parametrize("positions", [Positions.none, Positions.rotary])
def test_projections_equal_the_literal_form(positions):
    torch.manual_seed(0)
    module = MultiHead(site(positions=positions), Explicit()).double()
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    wanted = literal(module, x, rotary=positions is Positions.rotary)
    torch.testing.assert_close(module(x, Layout()), wanted)


@pytest.mark.parametrize("positions", [Positions.none, Positions.rotary])
def test_heads_of_a_width_of_their_own_equal_the_literal_form(positions):
    """Three heads of 6 beside a width of 14, which 3 does not divide."""
    torch.manual_seed(0)
    module = MultiHead(site(width=14, own_head_width=6, positions=positions), Explicit()).double()
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters() if "weight" in name}
    inward = {f"{name}_proj.weight": (18, 14) for name in "qkv"}
    assert shapes == {**inward, "out_proj.weight": (14, 18)}
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    x = torch.randn(2, 5, 14, dtype=torch.float64)
    wanted = literal(module, x, rotary=positions is Positions.rotary, width=6)
    torch.testing.assert_close(module(x, Layout()), wanted)


def test_heads_of_each_kind_are_drawn_at_their_own_width():
    torch.manual_seed(0)
    module = MultiHead(site(), Explicit(), heads=HeadCounts(6, 2, 3, 1), key_width=5)
    torch.manual_seed(0)
    shapes = {"q_proj": (12, 30), "k_proj": (12, 10), "v_proj": (12, 12), "out_proj": (4, 12)}
    for name, ends in shapes.items():
        wanted = projection(*ends, bias=True).weight
        assert torch.equal(getattr(module, name).weight, wanted), name
    parts = module.project(torch.randn(2, 7, 12), Layout())
    assert [tuple(part.shape) for part in parts] == [(2, 6, 7, 5), (2, 2, 7, 5), (2, 3, 7, 4)]


def test_start_moves_rotary_positions_only_relatively():
    torch.manual_seed(0)
    module = MultiHead(site(positions=Positions.rotary), Explicit()).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    moved = module(x, Layout(start=torch.tensor([3, 900])))
    torch.testing.assert_close(moved, module(x, Layout()))


def test_rotary_is_offered_and_other_traits_pass_through():
    traits = MultiHead(site(), Explicit()).traits
    assert traits.positions == {"rotary", "position_infused"}
    assert traits.row_stochastic


def test_weights_load_across_cores():
    class Other(Explicit):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
            return v

    torch.manual_seed(0)
    one, other = MultiHead(site(), Explicit()), MultiHead(site(), Other())
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.q_proj.weight, other.q_proj.weight)


def test_without_biases():
    module = MultiHead(site(), Explicit(), bias=False)
    assert not [name for name, _ in module.named_parameters() if name.endswith("bias")]


@pytest.mark.parametrize(("qkv", "output"), [(True, False), (False, None), (None, False)])
def test_the_backbone_says_which_projections_have_biases(qkv, output):
    module = MultiHead(site(qkv_bias=qkv, output_bias=output), Explicit())
    found = {name for name, _ in module.named_parameters() if name.endswith("bias")}
    inward = {f"{name}_proj.bias" for name in "qkv"} if qkv is not False else set()
    assert found == inward | ({"out_proj.bias"} if output is not False else set())


def test_two_words_about_biases_are_refused():
    with pytest.raises(ValueError, match=r"bias=false of the family and model\.backbone\.qkv_bias"):
        MultiHead(site(qkv_bias=True), Explicit(), bias=False)
    with pytest.raises(ValueError, match=r"output_bias=false .*leave bias at false"):
        Reformer(site(output_bias=False, heads=2), bias=True)


def test_heads_must_divide_width():
    with pytest.raises(ValueError, match="heads must divide width: got heads=5, width=12"):
        MultiHead(site(heads=5), Explicit())


def test_rotary_needs_an_even_head_width():
    with pytest.raises(ValueError, match="even head width: got width=12 / heads=4 = 3"):
        MultiHead(site(heads=4, positions=Positions.rotary), Explicit())
    with pytest.raises(ValueError, match="even head width: got head_width=5; change heads"):
        MultiHead(site(own_head_width=5, positions=Positions.rotary), Explicit())


def test_a_core_without_state_refuses():
    module = MultiHead(site(), Explicit())
    with pytest.raises(Unsupported, match="where later tokens are seen: set causal"):
        module.initial_state(1, 4)
    module = MultiHead(site(causal=True), OneWay())
    with pytest.raises(Unsupported, match="OneWay has no state"):
        module.initial_state(1, 4)
    with pytest.raises(Unsupported, match="OneWay has no `extend`"):
        module.extend(Flow(torch.zeros(1, 2, 12), state=()), Layout())


def test_extend_without_state_is_forward_with_the_rest_untouched():
    torch.manual_seed(0)
    module = MultiHead(site(), Explicit())
    x, stream = torch.randn(2, 5, 12), torch.ones(2)
    flow = module.extend(Flow(x, stream=stream), Layout())
    assert torch.equal(flow.x, module(x, Layout()))
    assert flow.stream is stream
    assert flow.state is None


def test_a_state_takes_full_rows():
    keep = torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="full rows"):
        MultiHead(site(causal=True), OneWay()).extend(
            Flow(torch.zeros(1, 2, 12), state=()), Layout(keep=keep)
        )


def gated_and_normed(module: MultiHead, x: Tensor, *, rotary: bool) -> Tensor:
    """Head by head and row by row, with a gate of each channel and normed queries and keys."""
    out = []
    for row in x:
        heads = []
        for head in range(3):
            part = slice(4 * head, 4 * head + 4)
            layers = (module.q_proj, module.k_proj, module.v_proj, module.gate_proj)
            q, k, v, gate = (row @ layer.weight[part].T + layer.bias[part] for layer in layers)
            q, k = (
                y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight
                for y, norm in ((q, module.q_norm), (k, module.k_norm))
            )
            if rotary:
                q, k = rotate(q[None, None])[0, 0], rotate(k[None, None])[0, 0]
            heads.append((q @ k.T / 2).softmax(-1) @ v / (1 + (-gate).exp()))
        out.append(torch.cat(heads, -1) @ module.out_proj.weight.T + module.out_proj.bias)
    return torch.stack(out)


@pytest.mark.parametrize("positions", [Positions.none, Positions.rotary])
def test_gates_and_norms_equal_the_literal_form(positions):
    torch.manual_seed(0)
    module = MultiHead(site(positions=positions), Explicit(), output_gate=True, qk_norm=True)
    module.double()
    for name, parameter in module.named_parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, mean=float("norm" in name))
    x = drawn(2, 5, 12).requires_grad_()
    wanted = gated_and_normed(module, x, rotary=positions is Positions.rotary)
    compare(module(x, Layout()), wanted, [x, *module.parameters()], looser=10)


def test_a_gate_is_drawn_after_everything_else():
    torch.manual_seed(0)
    plain = MultiHead(site(), Explicit())
    torch.manual_seed(0)
    more = MultiHead(site(), Explicit(), output_gate=True, qk_norm=True)
    assert {*more.state_dict()} - {*plain.state_dict()} == {
        "gate_proj.weight", "gate_proj.bias", "q_norm.weight", "k_norm.weight",
    }  # fmt: skip
    for name, weight in plain.state_dict().items():
        assert torch.equal(more.state_dict()[name], weight), name


def test_gates_and_norms_leave_padding_of_any_content_out():
    torch.manual_seed(0)
    mixer = SDPA(site(), output_gate=True, qk_norm=True).double()
    x, keep = drawn(2, 5, 12), torch.tensor([[True] * 3 + [False] * 2, [True] * 5])
    loud = x.masked_fill(~keep[..., None], torch.inf)
    layout = Layout(keep=keep)
    torch.testing.assert_close(mixer(loud, layout), mixer(x, layout))
    gradients = torch.autograd.grad(mixer(loud, layout)[keep].sum(), [*mixer.parameters()])
    assert all(each.isfinite().all() for each in gradients)


@pytest.mark.parametrize("family", [SDPA, SoftmaxAttention])
@pytest.mark.parametrize("option", ["output_gate", "qk_norm"])
def test_the_arena_has_no_gates_and_norms(family, option):
    with pytest.raises(Unsupported, match=f"variant=lra fixes {option} at false: got true"):
        family(site(), variant="lra", **{option: True})
