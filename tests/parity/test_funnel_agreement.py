"""The pooled stack beside the transformers package: outputs and gradients, with equal weights."""

import pytest
import torch
from torch import Tensor, nn

from lra.models.backbone.assembly import block_of, stack_of
from lra.models.backbone.config import BackboneConfig
from lra.models.backbone.stack import Stack
from lra.models.families.funnel import Funnel
from lra.models.mixer import Flow, Layout, Positions, Site
from peers.peer import package

WIDTH, HEADS, HIDDEN = 16, 2, 24
CASES = {
    "base": {},
    "base, no token apart": {"separate_cls": False},
    "base, factorised": {"attention_type": "factorized"},
    "base, max": {"pooling_type": "max"},
    "base, keys pooled too": {"pool_q_only": False},
    "base, factorised, keys pooled too": {"attention_type": "factorized", "pool_q_only": False},
    "base, shared": {"block_repeats": [1, 2, 3]},
    "decoder": {"num_decoder_layers": 2},
    "decoder, no token apart": {"num_decoder_layers": 1, "separate_cls": False},
    "decoder without layers": {"num_decoder_layers": 0},
    "decoder, shared later": {"num_decoder_layers": 1, "block_repeats": [1, 2, 1]},
}


def theirs_of(options: dict, *, truncate: bool = False) -> nn.Module:
    transformers = package("transformers")
    config = transformers.FunnelConfig(
        vocab_size=5, block_sizes=[2, 1, 2], d_model=WIDTH, n_head=HEADS, d_head=WIDTH // HEADS,
        d_inner=HIDDEN, hidden_dropout=0.0, attention_dropout=0.0, truncate_seq=truncate,
        initializer_std=0.4, **options,
    )  # fmt: skip
    decodes = "num_decoder_layers" in options
    kind = transformers.FunnelModel if decodes else transformers.FunnelBaseModel
    torch.manual_seed(1)
    theirs = kind(config).double().eval()
    for parameter in theirs.parameters():  # biases and norms too
        with torch.no_grad():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return theirs


def ours_of(theirs: nn.Module) -> tuple[Stack, list[tuple[nn.Parameter, Tensor]]]:
    """Return our stack with their weights, and both sides of every weight in our layout."""
    said = theirs.config
    sizes = [n * times for n, times in zip(said.block_sizes, said.block_repeats, strict=True)]
    config = BackboneConfig(
        depth=sum(sizes), width=WIDTH, heads=HEADS, feed_forward_width=HIDDEN, residual="post_norm",
        feed_forward="gelu_tanh", norm_epsilon=1e-9, positions="transformer_xl",
        pool_blocks=3, pool_layers=sizes, pool_repeats=said.block_repeats,
        pool_query_only=said.pool_q_only, pool_mode=said.pooling_type,
    )  # fmt: skip
    layers = [layer for block in theirs.encoder.blocks for layer in block]
    layers += theirs.decoder.layers if hasattr(theirs, "decoder") else ()
    blocks, weights = [], []
    for number, layer in enumerate(layers):
        site = Site(
            width=WIDTH, heads=HEADS, max_length=40, cls=said.separate_cls, layer=number,
            positions=Positions.transformer_xl,
        )  # fmt: skip
        block = block_of(Funnel(site), config)
        uses = [*config.uses, *[1] * len(layers)][number]
        blocks += [block] * uses
        here, there, rel = block.mixer, layer.attention, block.mixer.core.relative
        nn.init.zeros_(here.q_proj.bias)
        pairs = [(here.q_proj.weight, there.q_head.weight)]
        for a, b in (
            (here.k_proj, there.k_head), (here.v_proj, there.v_head),
            (here.out_proj, there.post_proj), (block.mixer_norm, there.layer_norm),
            (block.network[0], layer.ffn.linear_1), (block.network[-1], layer.ffn.linear_2),
            (block.network_norm, layer.ffn.layer_norm),
        ):  # fmt: skip
            pairs += [(a.weight, b.weight), (a.bias, b.bias)]
        pairs += [
            (rel.biases.content, there.r_w_bias), (rel.biases.position, there.r_r_bias),
            (rel.r_proj.weight, there.r_kernel),
        ]  # fmt: skip
        if said.separate_cls:
            pairs += [(rel.kind_bias, there.r_s_bias), (rel.kind_vector, there.seg_embed)]
        weights += pairs
    stack = (
        stack_of(blocks, config, cls=said.separate_cls, per_token=hasattr(theirs, "decoder"))
        .double()
        .eval()
    )
    norm = theirs.embeddings.layer_norm
    weights += [(stack.norm.weight, norm.weight), (stack.norm.bias, norm.bias)]
    with torch.no_grad():
        for mine, other in weights:
            mine.copy_(as_ours(other))
    return stack, weights


def as_ours(theirs: Tensor) -> Tensor:
    """Return a weight, or its gradient, in our layout: of two kinds of pairs, the one that is."""
    if theirs.ndim == 3 and theirs.shape[1] == HEADS:
        return theirs[1] if len(theirs) == 2 else theirs.flatten(1).mT
    return theirs


def outputs(
    stack: Stack, theirs: nn.Module, x: Tensor, keep: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    mask = torch.ones(x.shape[:2]) if keep is None else keep
    other = theirs(inputs_embeds=x, attention_mask=mask.double()).last_hidden_state
    return stack(Flow(x), Layout(keep=keep)).x, other


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let their scores be float64: they are rounded to float32 before the softmax."""
    monkeypatch.setattr(Tensor, "float", lambda self: self)


@pytest.mark.parity
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
@pytest.mark.parametrize("length", [16, 21])
def test_outputs_and_gradients_are_equal_in_float64(options: dict, length: int) -> None:
    theirs = theirs_of(options)
    stack, weights = ours_of(theirs)
    x = torch.randn(2, length, WIDTH, dtype=torch.float64, requires_grad=True)
    ours, other = outputs(stack, theirs, x)
    torch.testing.assert_close(ours, other, rtol=1e-10, atol=1e-10)
    weight = torch.randn_like(ours)
    mine = torch.autograd.grad((ours * weight).sum(), [x, *(pair[0] for pair in weights)])
    wanted = torch.autograd.grad((other * weight).sum(), [x, *(pair[1] for pair in weights)])
    for a, b in zip(mine, wanted, strict=True):
        torch.testing.assert_close(a, as_ours(b).view_as(a), rtol=1e-9, atol=1e-9)


@pytest.mark.parity
@pytest.mark.parametrize("options", [CASES["base"], CASES["decoder"]], ids=["base", "decoder"])
def test_they_are_equal_up_to_the_float32_of_their_softmax(options: dict) -> None:
    theirs = theirs_of(options)
    stack, _ = ours_of(theirs)
    ours, other = outputs(stack, theirs, torch.randn(2, 16, WIDTH, dtype=torch.float64))
    torch.testing.assert_close(ours, other, rtol=0, atol=1e-4)


@pytest.mark.parity
@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("options", [CASES["base"], CASES["decoder"]], ids=["base", "decoder"])
def test_tokens_that_they_drop_are_nothing_where_they_are_padding(options: dict) -> None:
    """Their default drops one before each pooling; 13 tokens fill pools of two and of four."""
    theirs = theirs_of(options, truncate=True)
    stack, _ = ours_of(theirs)
    x = torch.randn(2, 16, WIDTH, dtype=torch.float64)
    ours, other = outputs(stack, theirs, x, (torch.arange(16) < 13).expand(2, -1))
    real = 13 if "num_decoder_layers" in options else 4
    torch.testing.assert_close(ours[:, :real], other[:, :real], rtol=1e-10, atol=1e-10)


@pytest.mark.parity
def test_theirs_hides_a_token_that_is_pooled_with_padding() -> None:
    """The authors pool by the least of a mask that is 1 at padding; theirs is 0 there."""
    theirs = theirs_of(CASES["base"])
    stack, _ = ours_of(theirs)
    x = torch.randn(1, 16, WIDTH, dtype=torch.float64)
    padded = outputs(stack, theirs, x, (torch.arange(16) < 12)[None])
    alone = outputs(stack, theirs, x[:, :12])
    ours, other = ((a[:, :1] - b[:, :1]).abs().max() for a, b in zip(padded, alone, strict=True))
    assert ours < 1e-10
    assert other > 1e-3


@pytest.mark.parity
@pytest.mark.usefixtures("exact")
def test_theirs_adds_a_layer_amid_the_first_block_where_that_repeats() -> None:
    theirs = theirs_of({"num_decoder_layers": 1, "block_repeats": [2, 1, 1]})
    stack, _ = ours_of(theirs)
    x = torch.randn(1, 12, WIDTH, dtype=torch.float64)
    ours, other = outputs(stack, theirs, x)
    assert (ours - other).abs().max() > 1e-2
    embedded, mask = theirs.embeddings(inputs_embeds=x), torch.ones(1, 12)
    encoded = theirs.encoder(embedded, mask, torch.zeros(1, 12)).last_hidden_state
    stack.cut = stack.cut._replace(full=False)
    stack.blocks = stack.blocks[: sum(stack.cut.layers)]
    torch.testing.assert_close(stack(Flow(x), Layout()).x, encoded)
