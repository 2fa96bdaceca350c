import pytest
import torch
from torch import Tensor, nn

from lra.models.backbone.networks import FeedForward
from lra.models.backbone.requirements import checked_mixer
from lra.models.backbone.stack import Stack, TransformerBlock
from lra.models.mixer import Flow, Layout, Positions, State, Traits, Unsupported

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
    with pytest.raises(
        Unsupported, match=rf"LinearMixer \(layer 1\) does not support .* got {fact}"
    ):
        model(Flow(torch.randn(2, 5, WIDTH)), layout)
    stack(LinearMixer(supports=frozenset({fact})))(Flow(torch.randn(2, 5, WIDTH)), layout)


def test_a_stack_with_a_stateless_layer_has_no_state():
    with pytest.raises(Unsupported, match="LinearMixer has no state"):
        stack(CountingMixer(), LinearMixer()).initial_state(2, 8)
    with pytest.raises(Unsupported, match="LinearMixer has no method `extend`"):
        stack(LinearMixer())(Flow(torch.zeros(2, 3, WIDTH), (torch.zeros(2),)), Layout())


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


def test_a_mixer_that_is_no_module_is_refused():
    class Loose:
        traits = Traits()

        def __call__(self, x: Tensor, layout: Layout) -> Tensor:
            return x

    with pytest.raises(TypeError, match=r"must be an nn\.Module: got Loose"):
        checked_mixer(Loose(), positions=Positions.none, causal=False, max_length=4)


@pytest.mark.compile
def test_a_stack_is_captured_as_one_graph():
    torch.manual_seed(0)
    model = stack(Streaming(), LinearMixer())
    flow = Flow(torch.randn(2, 5, WIDTH))
    compiled = torch.compile(model, backend="eager", fullgraph=True)(flow, Layout())
    plain = model(flow, Layout())
    assert torch.equal(compiled.x, plain.x)
    assert torch.equal(compiled.penalties["size"], plain.penalties["size"])
