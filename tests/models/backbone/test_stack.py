import pytest
import torch
from torch import Tensor, nn

from lra.models.backbone.networks import FeedForward, network_of
from lra.models.backbone.requirements import checked_mixer
from lra.models.backbone.stack import PlainBlock, Stack, TransformerBlock
from lra.models.mixer import Flow, Layout, Positions, Site, State, Traits, Unsupported

WIDTH = 8


class LinearMixer(nn.Module):
    """A mixer that writes only `forward`."""

    def __init__(self, **traits: object) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.traits = Traits(**traits)  # type: ignore[arg-type]

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.linear(x)


class Streaming(LinearMixer):
    """Hands the first layer's output down the depth and charges for its size."""

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        x = self.linear(flow.x)
        stream = x if flow.stream is None else flow.stream
        return flow._replace(x=x + stream, stream=stream).add_penalty("size", x.square().mean())


class CountingMixer(LinearMixer):
    def extend(self, flow: Flow, layout: Layout) -> Flow:
        state = None if flow.state is None else flow.state + flow.x.shape[1]
        return flow._replace(x=self.linear(flow.x), state=state)

    def initial_state(self, batch_size: int, memory: int) -> State:
        return torch.zeros(batch_size)


def stack(*mixers: nn.Module, dropout: float = 0.0, checkpointing: bool = False) -> Stack:
    blocks = [
        TransformerBlock(
            mixer,
            width=WIDTH,
            feed_forward=FeedForward.gelu,
            feed_forward_width=16,
            dropout=dropout,
        )
        for mixer in mixers
    ]
    return Stack(blocks, width=WIDTH, checkpointing=checkpointing)


def test_a_block_is_the_pre_norm_formula():
    torch.manual_seed(0)
    model = stack(LinearMixer())
    block = model.blocks[0]
    for part in (block.mixer_norm, block.network_norm, model.norm):
        nn.init.normal_(part.weight)
        nn.init.normal_(part.bias)
    x = torch.randn(2, 5, WIDTH)
    y = x + block.mixer.linear(block.mixer_norm(x))
    first, _, _, second = block.network
    y = y + second(nn.functional.gelu(first(block.network_norm(y))))
    torch.testing.assert_close(model(Flow(x), Layout()).x, model.norm(y))


def test_a_block_without_network():
    torch.manual_seed(0)
    block = TransformerBlock(
        LinearMixer(),
        width=WIDTH,
        feed_forward=FeedForward.none,
        feed_forward_width=16,
        dropout=0.0,
    )
    x = torch.randn(2, 5, WIDTH)
    wanted = x + block.mixer.linear(block.mixer_norm(x))
    torch.testing.assert_close(block(Flow(x), Layout()).x, wanted)
    assert len(list(block.parameters())) == 4


def test_a_plain_block_has_neither_residuals_nor_norms():
    torch.manual_seed(0)
    block = PlainBlock(
        LinearMixer(),
        width=WIDTH,
        feed_forward=FeedForward.gelu,
        feed_forward_width=16,
        dropout=0.0,
    )
    x = torch.randn(2, 5, WIDTH)
    first, _, _, second = block.network
    wanted = second(nn.functional.gelu(first(block.mixer.linear(x))))
    torch.testing.assert_close(block(Flow(x), Layout()).x, wanted)
    assert len(list(block.parameters())) == 6


def test_stream_and_penalties_pass_through_every_layer():
    torch.manual_seed(0)
    model = stack(Streaming(), Streaming())
    out = model(Flow(torch.randn(2, 5, WIDTH)), Layout())
    assert out.stream.shape == (2, 5, WIDTH)
    assert set(out.penalties) == {"size"}
    assert out.penalties["size"].item() > 0
    assert out.state is None


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("keep", torch.ones(2, 5, dtype=torch.bool)),
        ("start", torch.zeros(2, dtype=torch.long)),
        ("is_global", torch.ones(2, 5, dtype=torch.bool)),
        ("document", torch.zeros(2, 5, dtype=torch.long)),
        ("prefix", torch.zeros(2, dtype=torch.long)),
    ],
)
def test_a_fact_that_a_layer_ignores_is_refused(fact, value):
    model = stack(LinearMixer(supports=frozenset({fact})), LinearMixer(supports=frozenset()))
    layout = Layout(**{fact: value})
    with pytest.raises(Unsupported, match=rf"LinearMixer \(layer 1\) does not support {fact}"):
        model(Flow(torch.randn(2, 5, WIDTH)), layout)
    stack(LinearMixer(supports=frozenset({fact})))(Flow(torch.randn(2, 5, WIDTH)), layout)


def test_states_are_kept_by_layer():
    model = stack(CountingMixer(), CountingMixer())
    flow = Flow(torch.zeros(2, 3, WIDTH), model.initial_state(2, 8))
    flow = model(flow, Layout())
    flow = model(flow._replace(x=flow.x[:, :1]), Layout())
    assert [state.tolist() for state in flow.state] == [[4, 4], [4, 4]]


def test_a_stack_with_a_stateless_layer_has_no_state():
    with pytest.raises(Unsupported, match="LinearMixer has no state"):
        stack(CountingMixer(), LinearMixer()).initial_state(2, 8)
    with pytest.raises(Unsupported, match="LinearMixer has no `extend`"):
        stack(LinearMixer())(Flow(torch.zeros(2, 3, WIDTH), (torch.zeros(2),)), Layout())


def test_checkpointing_gives_the_same_gradients_under_dropout():
    torch.manual_seed(0)
    model = stack(Streaming(), Streaming(), Streaming(), dropout=0.3).double()
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)

    def gradients(checkpointing: bool) -> list[Tensor]:
        model.checkpointing = checkpointing
        model.zero_grad(set_to_none=True)
        torch.manual_seed(7)
        out = model(Flow(x), Layout())
        (out.x.square().sum() + out.penalties["size"]).backward()
        return [parameter.grad for parameter in model.parameters()]

    for plain, recomputed in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(plain, recomputed, rtol=0, atol=0)


def test_checkpointing_keeps_less():
    torch.manual_seed(0)
    model = stack(LinearMixer(), LinearMixer())

    def kept(checkpointing: bool) -> int:
        model.checkpointing = checkpointing
        saved: list[Tensor] = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor
        )
        with hooks:
            model(Flow(torch.randn(2, 64, WIDTH, requires_grad=True)), Layout())
        return sum(tensor.numel() for tensor in saved)

    assert kept(True) < kept(False) / 2


def rotary(traits: frozenset[str]) -> None:
    checked_mixer(
        LinearMixer(positions=traits), positions=Positions.rotary, causal=False, max_length=4
    )


def test_rotary_needs_a_mixer_that_applies_it():
    rotary(frozenset({"rotary"}))
    with pytest.raises(Unsupported, match="LinearMixer does not apply rotary"):
        rotary(frozenset())


def test_a_causal_model_needs_causal_mixers():
    with pytest.raises(Unsupported, match="LinearMixer looks at later tokens"):
        checked_mixer(LinearMixer(), positions=Positions.none, causal=True, max_length=4)


def test_a_mixer_with_a_shorter_end_is_refused():
    with pytest.raises(Unsupported, match="LinearMixer ends at length 3: the model needs 4"):
        checked_mixer(
            LinearMixer(max_length=3), positions=Positions.none, causal=False, max_length=4
        )


def test_a_mixer_that_is_no_module_is_refused():
    class Loose:
        traits = Traits()

        def __call__(self, x: Tensor, layout: Layout) -> Tensor:
            return x

    with pytest.raises(TypeError, match=r"must be an nn\.Module: got Loose"):
        checked_mixer(Loose(), positions=Positions.none, causal=False, max_length=4)


def test_site_picks_per_layer_options():
    site = Site(width=8, heads=1, max_length=4, layer=1, depth=2)
    assert site.at([3]) == 3
    assert site.at([3, 4]) == 4
    with pytest.raises(ValueError, match="1 value or depth=2 values: got 3"):
        site.at([1, 2, 3])


@pytest.mark.compile
def test_a_stack_is_captured_as_one_graph():
    torch.manual_seed(0)
    model = stack(Streaming(), LinearMixer())
    flow = Flow(torch.randn(2, 5, WIDTH))
    compiled = torch.compile(model, backend="eager", fullgraph=True)(flow, Layout())
    plain = model(flow, Layout())
    assert torch.equal(compiled.x, plain.x)
    assert torch.equal(compiled.penalties["size"], plain.penalties["size"])


@pytest.mark.parametrize(
    ("kind", "activation"),
    [
        (FeedForward.gelu, nn.functional.gelu),
        (FeedForward.gelu_tanh, lambda x: nn.functional.gelu(x, approximate="tanh")),
        (FeedForward.relu, torch.relu),
        (FeedForward.silu, lambda x: x * x.sigmoid()),
    ],
)
def test_a_network_has_the_activation_that_is_named(kind, activation):
    network, x = network_of(WIDTH, 16, 0.0, kind=kind).double(), torch.randn(5, WIDTH).double()
    torch.testing.assert_close(network(x), network[3](activation(network[0](x))))
