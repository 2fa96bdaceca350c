"""Canon layers: the equation read literally, borders, states, counts and refusals."""

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lra.models.backbone.canon import check_canon_mixer
from lra.models.backbone.generation import generate
from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.backbone.stack import Stack
from lra.models.canon import TAPS, Canon
from lra.models.contract import CHECKS, learning, relations
from lra.models.contract.calls import calls_of, fewer_calls_of
from lra.models.contract.case import fix_seed
from lra.models.families.convbert import MixedAttention
from lra.models.families.gla import GLA
from lra.models.families.grouped_query import GroupedQueryAttention
from lra.models.families.linear import LinearAttention
from lra.models.families.sliding_window import SlidingWindow
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Flow, Idle, Layout, Site, Unsupported
from tests.attention import drawn, holes
from tests.contracts.test_variants import LEFT_OUT, LENGTH as LONG, SHARE, Few

WIDTH, LENGTH, ROWS = 8, 11, 3
SMALL = {"depth": 2, "width": WIDTH, "heads": 2, "feed_forward_width": 12}
DOCUMENTS = torch.tensor([[0] * 4 + [1] * 7, [0] * 11, [2] * 1 + [3] * 3 + [4] * 7])
GATED = {"swiglu": F.silu, "geglu": F.gelu}
KEEPS = {
    "none": None,
    "right": torch.arange(LENGTH) < torch.tensor([[11], [6], [2]]),
    "left": torch.arange(LENGTH) >= torch.tensor([[0], [6], [9]]),
    "interior": torch.cat((holes(LENGTH), ~holes(LENGTH)[:1])),
}


def literal(
    weight: torch.Tensor,
    x: torch.Tensor,
    keep: torch.Tensor | None = None,
    document: torch.Tensor | None = None,
) -> torch.Tensor:
    """y_t = x_t + sum_j w_j x_(t - 3 + j), token after token over the real ones of a document."""
    rows = []
    for row in range(len(x)):
        tokens = []
        for t in range(x.shape[1]):
            y = x[row, t]
            if keep is None or keep[row, t]:
                earlier = [
                    s
                    for s in range(t + 1)
                    if (keep is None or keep[row, s])
                    and (document is None or document[row, s] == document[row, t])
                ]
                for back, s in enumerate(reversed(earlier[-TAPS:])):
                    y = y + weight[:, TAPS - 1 - back] * x[row, s]
            tokens.append(y)
        rows.append(torch.stack(tokens))
    return torch.stack(rows)


@pytest.mark.parametrize("document", [None, DOCUMENTS], ids=["row", "documents"])
@pytest.mark.parametrize("keep", KEEPS)
def test_a_layer_is_the_equation(keep: str, document: torch.Tensor | None) -> None:
    layer, x = Canon(WIDTH).double(), drawn(ROWS, LENGTH, WIDTH).requires_grad_()
    mask = KEEPS[keep]
    y, _ = layer(x, Layout(keep=mask, document=document), None)
    wanted = literal(layer.weight, x, mask, document)
    if mask is not None:  # what a layer answers at padding is not defined
        y, wanted = y[mask], wanted[mask]
    torch.testing.assert_close(y, wanted, atol=1e-12, rtol=0)
    direction = drawn(*y.shape, seed=1)
    here, there = (torch.autograd.grad(o, [x, layer.weight], direction) for o in (y, wanted))
    torch.testing.assert_close(here, there, atol=1e-12, rtol=0)


def test_a_layer_is_the_released_convolution() -> None:
    """PhysicsLM4: x + nn.Conv1d(width, width, 4, groups=width, bias=False, padding=3), cut."""
    torch.manual_seed(0)
    released = nn.Conv1d(WIDTH, WIDTH, TAPS, groups=WIDTH, bias=False, padding=TAPS - 1)
    torch.manual_seed(0)
    layer = Canon(WIDTH)
    for weight in (layer.weight, released.weight):  # both start alike
        assert 0.4 < weight.abs().max() <= 0.5
    layer.load_state_dict({"weight": released.weight[:, 0]})
    x = torch.randn(ROWS, LENGTH, WIDTH)
    wanted = x + released(x.mT)[..., :LENGTH].mT
    torch.testing.assert_close(layer(x, Layout(), None)[0], wanted, atol=1e-6, rtol=0)


def test_a_row_may_be_read_in_pieces() -> None:
    layer, x = Canon(WIDTH).double(), drawn(ROWS, LENGTH, WIDTH)
    whole, _ = layer(x, Layout(), None)
    state, parts = layer.empty(ROWS), []
    for piece in x.split([1, 2, 5, 3], dim=1):
        part, state = layer(piece, Layout(), state)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-12, rtol=0)
    assert torch.equal(state, x[:, -3:])


class Wide(nn.Module):
    """A block of softmax attention, written with `literal` at every place."""

    def __init__(
        self, block: Any, kind: str, keep: torch.Tensor | None, document: torch.Tensor | None
    ) -> None:
        super().__init__()
        self.block, self.kind, self.facts = block, kind, (keep, document)

    def at(self, place: str, x: torch.Tensor) -> torch.Tensor:
        canon = self.block.mixer.canon if place == "B" else self.block.canon[place]
        return literal(canon.weight, x, *self.facts)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        mixer, (keep, document) = self.block.mixer, self.facts
        parts = [layer(x) for layer in (mixer.q_proj, mixer.k_proj, mixer.v_proj)]
        q, k, v = self.at("B", torch.cat(parts, -1)).split(WIDTH, -1)
        visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().expand(len(x), -1, -1)
        if keep is not None:
            visible = visible & keep[:, None]
        if document is not None:
            visible = visible & (document[:, :, None] == document[:, None])
        heads = []
        for head in range(2):
            of = slice(head * WIDTH // 2, (head + 1) * WIDTH // 2)
            scores = q[..., of] @ k[..., of].mT / (WIDTH / 2) ** 0.5
            weights = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num()
            heads.append(weights @ v[..., of])
        return mixer.out_proj(torch.cat(heads, -1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        block, network = self.block, self.block.network
        x = x + self.attention(self.at("A", block.mixer_norm(x)))
        inner = self.at("C", block.network_norm(x))
        if hasattr(network[0], "gate"):
            wide = torch.cat((network[0].gate(inner), network[0].value(inner)), -1)
            gate, value = self.at("D", wide).chunk(2, -1)
            inner = GATED[self.kind](gate) * value
        else:
            inner = F.gelu(self.at("D", network[0](inner)))
        return x + network[-1](inner)


def model(canon: str, family: Any = SoftmaxAttention, **changes: Any) -> Backbone:
    options = {"positions": "none", **SMALL, "canon": canon, **changes}
    config = BackboneConfig(**options)
    facts = TaskFacts(head=Head.language_modelling, vocabulary=13, classes=0, max_length=40)
    return Backbone(config, facts, [family], seed=0).double().eval()


@pytest.mark.parametrize("network", ["gelu", "swiglu", "geglu"])
@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("document", [None, DOCUMENTS], ids=["row", "documents"])
def test_a_block_is_the_paper(network: str, keep: str, document: torch.Tensor | None) -> None:
    block: Any = model("ABCD", feed_forward=network).stack.blocks[0]
    x, mask = drawn(ROWS, LENGTH, WIDTH), KEEPS[keep]
    seen = block(Flow(x), Layout(keep=mask, document=document)).x
    wanted = Wide(block, network, mask, document)(x)
    if mask is not None:
        seen, wanted = seen[mask], wanted[mask]
    torch.testing.assert_close(seen, wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("residual", ["pre_norm", "post_norm", "none"])
@pytest.mark.parametrize("places", ["A", "B", "C", "D", "ABCD"])
def test_every_place_matters_once_and_adds_four_numbers_a_channel(
    places: str, residual: str
) -> None:
    plain, found = model("", residual=residual), model(places, residual=residual)
    common = found.state_dict()
    assert all(torch.equal(common[name], value) for name, value in plain.state_dict().items())
    channels = {"A": 8, "B": 24, "C": 8, "D": 12}
    more = sum(each.numel() for each in found.parameters())
    more -= sum(each.numel() for each in plain.parameters())
    assert more == 2 * TAPS * sum(channels[each] for each in places)
    tokens = torch.randint(13, (2, 1, 9), generator=torch.Generator().manual_seed(0))
    assert (plain.predict(tokens)[0] - found.predict(tokens)[0]).abs().max() > 1e-3
    loss = found(tokens, tokens[:, 0]).nll.sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in found.parameters())


def test_the_wide_vector_of_swiglu_is_both_maps() -> None:
    assert model("D", feed_forward="swiglu").stack.blocks[0].canon["D"].weight.shape == (24, TAPS)  # type: ignore[union-attr,index]


@pytest.mark.parametrize(
    "family", [SoftmaxAttention, LinearAttention, SlidingWindow, GroupedQueryAttention]
)
@pytest.mark.parametrize("positions", ["none", "rotary"])
def test_texts_go_on_with_a_state_as_without(family: Any, positions: str) -> None:
    made = model("ABCD", family, positions=positions)
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(13, (n,), generator=generator) for n in (5, 1, 9)]
    ways = [generate(made, prompts, steps=10, recompute=again) for again in (False, True)]
    assert all(torch.equal(a, b) for a, b in zip(*ways, strict=True))
    tokens = torch.stack([torch.cat((p, t))[:10] for p, t in zip(prompts, ways[0], strict=True)])
    whole, _ = made.predict(tokens[:, None])
    state, parts = made.initial_state(3, 20), []
    for piece in tokens.split([3, 1, 6], dim=1):
        part, state = made.predict(piece[:, None], state=state)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-10, rtol=0)


def test_a_state_has_three_inputs_a_place() -> None:
    made = model("ABCD")
    _, ((of_mixer, of_places), _) = made.initial_state(2, 5)  # type: ignore[misc]
    assert [tuple(part.shape) for part in of_places] == [(2, 3, 8), (2, 3, 8), (2, 3, 12)]
    assert tuple(of_mixer[1].shape) == (2, 3, 24)
    assert not any(part.any() for part in of_places)


@pytest.mark.parametrize("side", ["left", "right", "interior"])
def test_padding_changes_nothing_in_a_model_of_both_sides(side: str) -> None:
    config = BackboneConfig(**SMALL, canon="ABCD", positions="none", pooling="mean")
    facts = TaskFacts(
        head=Head.classification, vocabulary=13, classes=3, max_length=20, padded=True
    )
    made = Backbone(config, facts, [SoftmaxAttention], seed=0).double().eval()
    tokens = torch.randint(13, (ROWS, 1, LENGTH), generator=torch.Generator().manual_seed(1))
    keep = KEEPS[side][:, None]
    padded, _ = made.predict(tokens, keep)
    for row in range(ROWS):
        alone, _ = made.predict(tokens[row][keep[row]].view(1, 1, -1))
        torch.testing.assert_close(padded[row : row + 1], alone, atol=1e-12, rtol=0)
    # The order of tokens matters, although positions are none.
    turned, _ = made.predict(tokens.flip(-1))
    assert (turned - made.predict(tokens)[0]).abs().max() > 1e-3


@pytest.mark.parametrize("changes", [{"layer_groups": 1}, {"activation_checkpointing": True}])
def test_shared_and_recomputed_layers_have_canon_too(changes: dict[str, Any]) -> None:
    made = model("ABCD", **changes).train()
    tokens = torch.randint(13, (2, 1, 9), generator=torch.Generator().manual_seed(0))
    made(tokens, tokens[:, 0]).nll.sum().backward()
    layers = [part for part in made.modules() if isinstance(part, Canon)]
    assert len(layers) == (4 if "layer_groups" in changes else 8)
    assert all(layer.weight.grad.abs().max() > 0 for layer in layers)  # type: ignore[union-attr]


@pytest.mark.parametrize("family", [SoftmaxAttention, SlidingWindow])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_place_b_passes_the_kit(
    family: Any, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(site: Site) -> Any:
        return family(replace(site, canon=True))

    for draw in (calls_of, fewer_calls_of):
        monkeypatch.setattr(relations, draw.__name__, lambda case, draw=draw: draw(case)[::SHARE])
    monkeypatch.setattr(learning, "_sites", lambda _: ())
    case = Few(make=make, causal=causal, max_length=LONG, width=12, heads=3)
    # The check of `start` compares projections with and without tokens before a row's first one,
    # which these read.
    with fix_seed(0):
        results = {
            name: CHECKS[name](case) for name in sorted(CHECKS.keys() - LEFT_OUT - {"start"})
        }
    assert not {name: each.detail for name, each in results.items() if not each.passed}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"canon": "BA"}, 'in this order, as in canon=ABCD: got "BA"'),
        ({"canon": "AA"}, 'got "AA"; leave it empty'),
        ({"canon": "abc"}, 'got "abc"'),
        ({"canon": "A", "residual": "reversible"}, "residual=reversible does not have"),
        ({"canon": "A", "pool_blocks": 2}, "pool_blocks=2 does not have"),
        ({"canon": "A", "decoder_depth": 1}, "decoder_depth=1 does not have"),
        ({"canon": "ABC", "feed_forward": "none"}, "got canon=ABC with feed_forward=none; use A"),
        ({"canon": "D", "feed_forward_chunks": 2}, "feed_forward_chunks=2; use A and B alone"),
    ],
)
def test_what_has_no_canon_says_so(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BackboneConfig(**{**SMALL, **changes})


@pytest.mark.parametrize("family", [GLA, MixedAttention])
def test_families_without_projections_are_refused_at_b_alone(family: Any) -> None:
    config = BackboneConfig(**SMALL, canon="AB", positions="none", pooling="mean")
    facts = TaskFacts(head=Head.classification, vocabulary=13, classes=3, max_length=20)
    with pytest.raises(Idle, match=r"got model\.backbone\.canon=AB; omit B"):
        Backbone(config, facts, [family], seed=0)
    made = Backbone(dataclasses.replace(config, canon="ACD"), facts, [family], seed=0)
    assert isinstance(made.stack, Stack)


def test_a_random_order_and_cross_attention_are_refused() -> None:
    with pytest.raises(Unsupported, match="objective=permutation may hide: got model"):
        check_canon_mixer(nn.Identity(), "A", ordered=True)
    site = Site(width=8, heads=2, max_length=9, canon=True)
    mixer, x = SoftmaxAttention(site), torch.randn(1, 3, 8)
    assert not mixer.attends_at
    with pytest.raises(Unsupported, match="build SoftmaxAttention with canon=False"):
        mixer.attend(x, Layout(), x, Layout())
