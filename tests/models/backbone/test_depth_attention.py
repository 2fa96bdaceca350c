"""Attention over depth: the paper's sums read literally, its start, states, counts and refusals."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from lra.models.backbone.generation import generate
from lra.models.backbone.model import Backbone, BackboneConfig, Head, Residual, TaskFacts
from lra.models.compression.layers import keep_layers
from lra.models.families.gla import GLA
from lra.models.families.luna import Luna
from lra.models.families.mega import Mega
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Flow, Layout, Unsupported
from tests.attention import drawn

WIDTH, EPSILON = 8, 1e-5
CONFIG = BackboneConfig(
    depth=3, width=WIDTH, feed_forward_width=12, positions="none", residual="attention"
)


def model(family: Any = SoftmaxAttention, *, start: bool = False, **changes: Any) -> Backbone:
    facts = TaskFacts(head=Head.language_modelling, vocabulary=13, classes=0, max_length=40)
    made = Backbone(dataclasses.replace(CONFIG, **changes), facts, [family], seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in made.named_parameters():
        if "query" in name and not start:
            nn.init.normal_(parameter, generator=generator)
    return made.double().eval()


def weighted(query: torch.Tensor, sources: list[torch.Tensor]) -> torch.Tensor:
    """sum_i softmax_i(q . RMSNorm(v_i)) v_i, at every token of every row alone."""
    x = torch.zeros_like(sources[0])
    for row in range(x.shape[0]):
        for token in range(x.shape[1]):
            vectors = [source[row, token] for source in sources]
            scores = [v @ query / (v.square().mean() + EPSILON).sqrt() for v in vectors]
            exponents = torch.stack(scores).exp()
            for exponent, v in zip(exponents, vectors, strict=True):
                x[row, token] += exponent / exponents.sum() * v
    return x


def literal(stack: Any, x: torch.Tensor, size: int) -> torch.Tensor:
    """The outputs f_0, f_1, ... in a list; every input from the list cut into blocks of `size`."""
    outputs: list[torch.Tensor] = []

    def read(query: torch.Tensor) -> torch.Tensor:
        blocks = [outputs[i : i + size] for i in range(0, len(outputs), size)]
        return weighted(query, [x, *(torch.stack(block).sum(0) for block in blocks)])

    for block in stack.blocks:
        outputs.append(block.mixer(block.mixer_norm(read(block.mixer_query)), Layout()))
        if block.network is not None:
            outputs.append(block.network(block.network_norm(read(block.network_query))))
    return stack.norm(read(stack.query))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("network", ["gelu", "none"])
def test_a_stack_is_the_paper(size: int, network: str) -> None:
    stack: Any = model(residual_block=size, feed_forward=network).stack
    x = drawn(2, 5, WIDTH).requires_grad_()
    seen, wanted = stack(Flow(x), Layout()).x, literal(stack, x, size)
    torch.testing.assert_close(seen, wanted, atol=1e-12, rtol=0)
    leaves = [x, *stack.parameters()]
    direction = drawn(*seen.shape, seed=3)
    here, there = (torch.autograd.grad(y, leaves, direction) for y in (seen, wanted))
    torch.testing.assert_close(here, there, atol=1e-10, rtol=0)


@pytest.mark.parametrize("size", [1, 2])
def test_every_input_is_the_mean_of_its_sources_at_first(size: int) -> None:
    stack: Any = model(start=True, residual_block=size).stack
    assert not any(p.any() for name, p in stack.named_parameters() if "query" in name)
    x = drawn(2, 5, WIDTH)
    inputs: list[torch.Tensor] = []
    for block in stack.blocks:
        for norm in (block.mixer_norm, block.network_norm):
            norm.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    outputs: list[torch.Tensor] = []
    for block in stack.blocks:
        for part in (block.mixer, block.network):
            part.register_forward_hook(lambda *given: outputs.append(_tokens(given[-1])))
        block.mixer.extend = None  # the hook above sees only calls of the module
        block.extends = False
    stack(Flow(x), Layout())
    for number, seen in enumerate(inputs):
        blocks = [outputs[i : min(i + size, number)] for i in range(0, number, size)]
        wanted = torch.stack([x, *(torch.stack(block).sum(0) for block in blocks)]).mean(0)
        torch.testing.assert_close(seen, wanted, atol=1e-12, rtol=0)
    assert len(inputs) == 6


def _tokens(output: Any) -> torch.Tensor:
    return output.x if isinstance(output, Flow) else output


def test_it_adds_two_vectors_a_layer_and_one() -> None:
    plain, found = model(residual="pre_norm"), model(start=True)
    common = found.state_dict()
    assert all(torch.equal(common[name], value) for name, value in plain.state_dict().items())
    assert (
        sum(p.numel() for p in found.parameters()) - sum(p.numel() for p in plain.parameters())
        == (2 * 3 + 1) * WIDTH
    )
    shared = model(start=True, layer_groups=1)
    assert sum(p.numel() for n, p in shared.named_parameters() if "query" in n) == 3 * WIDTH


@pytest.mark.parametrize("family", [SoftmaxAttention, GLA])
def test_texts_go_on_with_a_state_as_without(family: Any) -> None:
    made = model(family, canon="ACD")
    prompts = [torch.randint(13, (n,), generator=torch.Generator().manual_seed(n)) for n in (5, 1)]
    ways = [generate(made, prompts, steps=9, recompute=again) for again in (False, True)]
    assert all(torch.equal(a, b) for a, b in zip(*ways, strict=True))


def test_every_query_but_the_first_learns() -> None:
    made = model().train()
    tokens = torch.randint(13, (2, 1, 9), generator=torch.Generator().manual_seed(0))
    made(tokens, tokens[:, 0]).nll.sum().backward()
    moved = {n for n, p in made.named_parameters() if "query" in n and p.grad.abs().max() > 1e-8}
    assert len(moved) == 2 * 3
    assert "stack.blocks.0.mixer_query" not in moved  # it has one source only
    keep_layers(made, 1)
    assert len(made.stack.blocks) == 1  # type: ignore[arg-type]
    made.predict(tokens)


def test_a_stream_along_depth_goes_on() -> None:
    facts = TaskFacts(head=Head.classification, vocabulary=13, classes=3, max_length=40)
    config = dataclasses.replace(CONFIG, pooling="mean")
    made = Backbone(config, facts, [Luna], seed=0).eval()
    tokens = torch.randint(13, (2, 1, 9), generator=torch.Generator().manual_seed(0))
    assert made.predict(tokens)[0].isfinite().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool_blocks": 2}, "got pool_blocks=2; set it to 1, or residual=pre_norm"),
        ({"decoder_depth": 1}, "got decoder_depth=1; set it to 0"),
        ({"activation_checkpointing": True}, "activation_checkpointing=true; set it to false"),
        ({"residual_block": 0}, "residual_block must be at least 1"),
        ({"residual": "pre_norm", "residual_block": 2}, "no effect under residual=pre_norm: got 2"),
    ],
)
def test_what_it_cannot_join_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)


def test_a_gated_residual_is_refused() -> None:
    facts = TaskFacts(head=Head.classification, vocabulary=13, classes=3, max_length=40)
    config = dataclasses.replace(CONFIG, pooling="mean")
    with pytest.raises(Unsupported, match="Mega has a gate between its output and the residual"):
        Backbone(config, facts, [Mega], seed=0)
    assert config.residual == Residual.attention
