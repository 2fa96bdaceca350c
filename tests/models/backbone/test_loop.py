"""Loops: Huginn's passes read literally, gradients, draws, states, counts and refusals."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from lra.models.backbone.attention_weights import readable
from lra.models.backbone.generation import generate
from lra.models.backbone.loop import LoopStack
from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.compression.layers import keep_layers
from lra.models.families.gla import GLA
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Flow, Layout, Unsupported
from lra.models.state import size_bytes
from lra.runners.training.optim import OptimConfig
from lra.runners.training.parallel.gradients import shard
from tests.attention import drawn

WIDTH, DEPTH = 8, 5
CONFIG = BackboneConfig(
    depth=DEPTH, width=WIDTH, feed_forward_width=12, positions="none",
    loop_first=1, loop_last=3, loop_passes=3,
)  # fmt: skip
NO_LOOP: dict[str, Any] = {"loop_first": None, "loop_last": None, "loop_passes": 4}
FACTS = TaskFacts(head=Head.language_modelling, vocabulary=13, classes=0, max_length=40)


def model(family: Any = SoftmaxAttention, **changes: Any) -> Backbone:
    config = dataclasses.replace(CONFIG, **changes)
    return Backbone(config, FACTS, [family], seed=0).double().eval()


def text() -> torch.Tensor:
    return torch.randint(13, (2, 1, 9), generator=torch.Generator().manual_seed(0))


def literal(stack: Any, x: torch.Tensor, x_0: torch.Tensor | None, back: int) -> torch.Tensor:
    """Prelude, core and coda, of which layers 1 to 3 are the core; `back` passes have gradients."""
    post = type(stack).__name__.startswith("PostNorm")
    norm = stack.norm
    first, second, third, fourth, fifth = (
        lambda x, block=block: block(Flow(x), Layout()).x for block in stack.blocks
    )
    e = first(norm(x) if post else x)
    state = e if x_0 is None else x_0
    for number in range(3):
        if 0 < number == 3 - back:
            state = state.detach()
        if stack.adapter is not None:
            state = torch.cat((state, e.detach() if number < 3 - back else e), -1)
            state = state @ stack.adapter.weight.T
        elif stack.loop.inject == "add":
            state = state + e
        state = fourth(third(second(state)))
    return fifth(state) if post else norm(fifth(norm(state)))


@pytest.mark.parametrize("residual", ["pre_norm", "post_norm"])
@pytest.mark.parametrize("back", [None, 1, 2])
@pytest.mark.parametrize("start", ["state", "noise"])
@pytest.mark.parametrize("inject", ["none", "add", "concat"])
def test_a_stack_is_the_loop(inject: str, start: str, back: int | None, residual: str) -> None:
    stack: Any = model(
        loop_inject=inject, loop_start=start, loop_back_passes=back, residual=residual
    ).stack
    x = drawn(2, 5, WIDTH).requires_grad_()
    x_0 = None if start == "state" else torch.zeros(2, 5, WIDTH).double()  # in evaluation
    seen, wanted = stack(Flow(x), Layout()).x, literal(stack, x, x_0, back or 3)
    torch.testing.assert_close(seen, wanted, atol=1e-11, rtol=0)
    leaves = [x, *stack.parameters()]
    direction = drawn(*seen.shape, seed=3)
    here, there = (
        torch.autograd.grad(y, leaves, direction, allow_unused=True, materialize_grads=True)
        for y in (seen, wanted)
    )
    torch.testing.assert_close(here, there, atol=1e-9, rtol=0)


def test_one_pass_from_its_input_is_the_stack_without_a_loop() -> None:
    """Except for the norm behind the loop, so there is no layer behind it here."""
    looped, plain = (
        model(loop_last=4, loop_passes=1),
        model(loop_first=None, loop_last=None, loop_passes=4),
    )
    assert isinstance(looped.stack, LoopStack)
    assert torch.equal(looped.predict(text())[0], plain.predict(text())[0])


def test_parameters_count_once_and_are_drawn_as_without() -> None:
    plain, looped = model(**NO_LOOP), model()
    assert {n: p.shape for n, p in plain.named_parameters()} == {
        n: p.shape for n, p in looped.named_parameters()
    }
    adapted = model(loop_inject="concat")
    common = adapted.state_dict()
    assert all(torch.equal(common[name], value) for name, value in plain.state_dict().items())
    assert common.keys() - plain.state_dict().keys() == {"stack.adapter.weight"}
    wide = model(loop_inject="concat", width=64, heads=2).stack.adapter.weight  # type: ignore[union-attr]
    assert wide.std().item() == pytest.approx((2 / (5 * 64)) ** 0.5, rel=0.05)
    assert wide.abs().max() <= 3 * (2 / (5 * 64)) ** 0.5


def test_noise_is_that_of_the_paper_and_evaluation_repeats() -> None:
    made = model(loop_start="noise")
    assert torch.equal(made.predict(text())[0], made.predict(text())[0])
    made.train()
    torch.manual_seed(0)
    stack: Any = made.stack
    x_0 = stack.started(torch.zeros(40, 50, WIDTH))
    # Cutting at three deviations leaves 0.973 of the variance.
    assert x_0.var() == pytest.approx(0.973 * 2 / 5, rel=0.03)
    assert x_0.abs().max() <= 3 * (2 / 5) ** 0.5
    assert not torch.equal(made.predict(text())[0], made.predict(text())[0])


def test_numbers_of_passes_are_huginns() -> None:
    """One more than Poisson with a log-normal rate of mean r: mean r + 1."""
    stack: Any = model(loop_train_passes="poisson", loop_passes=8).stack
    flow = Flow(torch.zeros(1, 1, WIDTH))
    assert {stack.draw_passes(flow) for _ in range(20)} == {8}
    stack.train()
    torch.manual_seed(0)
    drawn_passes = torch.tensor([float(stack.draw_passes(flow)) for _ in range(8000)])
    spread = 8 + 64 * math.expm1(0.25)  # of Poisson, and of its rate
    assert drawn_passes.mean() == pytest.approx(9, rel=0.02)
    assert drawn_passes.var() == pytest.approx(spread, rel=0.1)
    assert drawn_passes.min() >= 1
    made = model(loop_train_passes="poisson", loop_back_passes=2, loop_inject="concat").train()
    made(text(), text()[:, 0]).nll.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in made.parameters())
    with pytest.raises(Unsupported, match=r"set model\.backbone\.loop_train_passes=fixed"):
        made.predict(text(), state=made.initial_state(2, 12))


@pytest.mark.parametrize("family", [SoftmaxAttention, GLA])
def test_texts_go_on_with_a_state_for_every_pass(family: Any) -> None:
    made = model(family, loop_inject="add", canon="AC")
    prompts = [torch.randint(13, (n,), generator=torch.Generator().manual_seed(n)) for n in (5, 1)]
    ways = [generate(made, prompts, steps=9, recompute=again) for again in (False, True)]
    assert all(torch.equal(a, b) for a, b in zip(*ways, strict=True))
    plain = model(family, **NO_LOOP, canon="AC")
    layers = [size_bytes(each.initial_state(1, 7)) - 8 for each in (made, plain)]
    assert layers[0] * DEPTH == layers[1] * (2 + 3 * 3)


def test_padding_changes_nothing() -> None:
    facts = TaskFacts(
        head=Head.classification, vocabulary=13, classes=3, max_length=20, padded=True
    )
    config = dataclasses.replace(CONFIG, pooling="mean", loop_inject="concat", loop_start="noise")
    made = Backbone(config, facts, [SoftmaxAttention], seed=0).double().eval()
    keep = torch.tensor([[True] * 6 + [False] * 3, [False] * 4 + [True] * 5])[:, None]
    padded, _ = made.predict(text(), keep)
    for row in range(2):
        alone, _ = made.predict(text()[row][keep[row]].view(1, 1, -1))
        torch.testing.assert_close(padded[row : row + 1], alone, atol=1e-12, rtol=0)


def test_weights_run_with_other_numbers_of_passes() -> None:
    made, more = model(loop_inject="add"), model(loop_inject="add", loop_passes=6)
    more.load_state_dict(made.state_dict())
    made.stack.passes = 6  # type: ignore[assignment]
    assert torch.equal(made.predict(text())[0], more.predict(text())[0])


def test_processes_that_share_weights_need_one_number_of_passes() -> None:
    made = model(loop_train_passes="poisson")
    with pytest.raises(Unsupported, match="draws another number of passes in each: set"):
        shard(made, OptimConfig(), torch.device("cpu"))


def test_what_changes_or_reads_single_layers_refuses_a_loop() -> None:
    with pytest.raises(Unsupported, match="loop_first=null"):
        keep_layers(model(), 1)
    cores, reasons = readable(model().stack)
    assert sorted(cores) == [0, 4]
    assert all("loop_first=null" in reasons[layer] for layer in (1, 2, 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loop_first": 4}, "got loop_first=4, loop_last=3; choose 0 <= loop_first"),
        ({"loop_first": -1}, "got loop_first=-1"),
        ({"loop_last": 5}, "among depth=5 layers: got loop_first=1, loop_last=5"),
        ({"loop_passes": 0}, "loop_passes must be at least 1"),
        ({"loop_back_passes": 4}, "must be at most loop_passes=3: got 4"),
        ({"residual": "reversible"}, "got loop_first=1 with residual=reversible"),
        ({"residual": "attention"}, "got loop_first=1 with residual=attention"),
        ({"pool_blocks": 2}, "got loop_first=1 with pool_blocks=2"),
        ({"decoder_depth": 1}, "got loop_first=1 with decoder_depth=1"),
        ({"norm": "batch"}, "which loop_first prevents"),
        ({"loop_first": None}, "loop_last has no effect without loop_first: got 3"),
    ],
)
def test_what_it_cannot_join_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **changes)
