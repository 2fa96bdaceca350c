"""Conditional norms: the formula, no effect at first, what a model learns from the condition."""

import dataclasses

import pytest
import torch
from torch import Tensor

from lra.models.backbone.generation import begin, generate, next_logits
from lra.models.backbone.model import Backbone, BackboneConfig, Head, NormKind, Residual, TaskFacts
from lra.models.backbone.norms import ConditionalNorm
from lra.models.backbone.writing import open_text
from lra.models.families.lstm import LSTM
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Layout, Unsupported
from lra.runners.measurement.hardware import Precision
from lra.runners.runner import Passes
from lra.sweep.costs import call_of

CONFIG = BackboneConfig(
    width=8, heads=2, feed_forward_width=16, norm=NormKind.conditional, norm_epsilon=0.1
)
FACTS = TaskFacts(
    head=Head.language_modelling, vocabulary=7, classes=7, max_length=12, conditions=2
)
PLAIN = dataclasses.replace(FACTS, conditions=0)


def build(family=SoftmaxAttention, **changes: object) -> Backbone:
    config = dataclasses.replace(CONFIG, **changes)
    facts = FACTS if config.norm == NormKind.conditional else PLAIN
    return Backbone(config, facts, [family], seed=0).double().eval()


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def trained(family=SoftmaxAttention, **changes: object) -> Backbone:
    """A model whose conditions have an effect."""
    model = build(family, **changes)
    for number, part in enumerate(model.modules()):
        if isinstance(part, ConditionalNorm):
            part.scale_map.data = 0.3 * draw(8, 8, seed=number)
            part.shift_map.data = 0.3 * draw(8, 8, seed=100 + number)
    return model


def rows(count: int = 4, length: int = 9) -> Tensor:
    return torch.randint(7, (count, 1, length), generator=torch.Generator().manual_seed(3))


def literal(norm: ConditionalNorm, x: Tensor, c: Tensor) -> Tensor:
    """The norm, number by number."""
    batch, length, width = x.shape
    outputs = []
    for b in range(batch):
        for t in range(length):
            vector = x[b, t]
            mean = sum(vector) / width
            variance = sum((value - mean) ** 2 for value in vector) / width
            for i in range(width):
                scale, shift = norm.weight[i], norm.bias[i]
                for j in range(width):
                    scale = scale + norm.scale_map[i, j] * c[b, j]
                    shift = shift + norm.shift_map[i, j] * c[b, j]
                outputs.append(scale * (vector[i] - mean) / (variance + norm.eps) ** 0.5 + shift)
    return torch.stack(outputs).view(x.shape)


def test_a_conditional_norm_is_its_formula() -> None:
    norm = ConditionalNorm(5, 0.1).double()
    with torch.no_grad():
        for seed, parameter in enumerate(norm.parameters()):
            parameter += draw(*parameter.shape, seed=seed)
    x, c = draw(2, 3, 5, seed=7).requires_grad_(), draw(2, 5, seed=8).requires_grad_()
    y, wanted = norm(x, c), literal(norm, x, c)
    torch.testing.assert_close(y, wanted, rtol=1e-12, atol=1e-12)
    learnt, direction = (x, c, *norm.parameters()), draw(2, 3, 5, seed=9)
    found = torch.autograd.grad((y * direction).sum(), learnt)
    expected = torch.autograd.grad((wanted * direction).sum(), learnt)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


SHAPES = [
    *({"residual": kind} for kind in Residual if kind not in ("reversible", "none")),
    {"feed_forward_chunks": 3},
    {"activation_checkpointing": True},
    {"loop_first": 0, "loop_passes": 2},
    {"canon": "AC"},
]


@pytest.mark.parametrize("options", SHAPES, ids=str)
def test_a_condition_has_no_effect_at_first_and_reaches_every_norm(options: dict) -> None:
    model, ids = build(**options), torch.tensor([0, 1, 0, 1])
    plain, _ = build(norm=NormKind.layer, **options).predict(rows())
    torch.testing.assert_close(model.predict(rows(), layout=Layout(condition=ids))[0], plain)
    model = trained(**options).train()
    outcome = model(rows(), rows()[:, 0], layout=Layout(condition=ids))
    outcome.nll.sum().backward()
    norms = [part for part in model.modules() if isinstance(part, ConditionalNorm)]
    assert len(norms) >= 5
    for norm in norms:
        assert norm.scale_map.grad.abs().min() > 0
        assert norm.shift_map.grad.abs().min() > 0
    assert model.conditions.weight.grad.abs().min() > 0
    model.eval()
    right, swapped = (model.predict(rows(), layout=Layout(condition=c))[0] for c in (ids, 1 - ids))
    assert (right - swapped).abs().amax((1, 2)).min() > 1e-3


def test_other_initial_weights_leave_the_maps_at_zero() -> None:
    for part in build(initial_deviation=0.02).modules():
        if isinstance(part, ConditionalNorm):
            assert not part.scale_map.any()
            assert not part.shift_map.any()


LETTERS = torch.tensor([[1, 2, 3], [4, 5, 6]])
"""Those of the texts of each class."""


def texts(seed: int) -> tuple[Tensor, Tensor]:
    """Return the classes of 64 texts, and the texts: random letters of their class."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(2, (64,), generator=generator)
    return classes, LETTERS[classes].gather(1, torch.randint(3, (64, 6), generator=generator))


def loss(model: Backbone, seed: int, condition: Tensor | None) -> Tensor:
    """Return the mean loss of the first letter, before which a model has read none."""
    target = texts(seed)[1]
    read = target.roll(1, 1).index_fill(1, torch.tensor(0), 0)
    layout = Layout(condition=condition)
    return model(read[:, None], target, layout=layout).nll[:, 0].mean()


def test_a_model_learns_which_letters_a_class_has() -> None:
    conditional, plain = build(), build(norm=NormKind.layer)
    for model in (conditional, plain):
        optimiser = torch.optim.Adam(model.train().parameters(), lr=0.01)
        for step in range(100):
            optimiser.zero_grad()
            classes = texts(step)[0] if model is conditional else None
            loss(model, step, classes).backward()
            optimiser.step()
        model.eval()
    classes = texts(1000)[0]
    right, wrong = (loss(conditional, 1000, each).item() for each in (classes, 1 - classes))
    without = loss(plain, 1000, None).item()
    assert right < 1.2  # log 3 = 1.10
    assert 1.6 < without < 2.0 < wrong  # log 6 = 1.79


@pytest.mark.parametrize("family", [SoftmaxAttention, LSTM])
def test_generation_carries_the_condition(family) -> None:
    model, tokens, ids = trained(family), rows()[:, 0], torch.tensor([0, 1, 1, 0])
    whole, _ = model.predict(tokens[:, None], layout=Layout(condition=ids))
    with torch.no_grad():
        point = begin(model, tokens[:, :4], memory=9, condition=ids)
        for length in range(4, 10):
            logits, state = next_logits(model, point)
            torch.testing.assert_close(logits, whole[:, length - 1])
            point = point._replace(unread=tokens[:, length : length + 1], state=state)
    prompts = [tokens[0, :4], tokens[1, :2], tokens[2, :4], tokens[3, :4]]
    stepwise = generate(model, prompts, steps=5, conditions=ids)
    again = generate(model, prompts, steps=5, conditions=ids, recompute=True)
    torch.testing.assert_close(stepwise, again)
    logits = [open_text(model, tokens[0], 3, condition=each).logits for each in (0, 1)]
    torch.testing.assert_close(logits[0], whole[:1, -1])
    assert (logits[0] - logits[1]).abs().max() > 1e-3


def test_a_training_step_is_counted_with_a_condition() -> None:
    with torch.device("meta"):
        model = Backbone(CONFIG, FACTS, [LSTM], seed=0)
    passes = Passes(times=1, rows=3, length=9, step=True)
    call_of(model, FACTS, Precision.float32, passes, rows=3, memory=0)()
    assert model.conditions.weight.grad.shape == (2, 8)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(
        Unsupported, match=r"2 conditions, .* got norm=rms; set model\.backbone\.no"
    ):
        Backbone(dataclasses.replace(CONFIG, norm=NormKind.rms), FACTS, [LSTM], seed=0)
    with pytest.raises(Unsupported, match=r"reads a condition of each row, but this task or runn"):
        Backbone(CONFIG, PLAIN, [LSTM], seed=0)
    with pytest.raises(ValueError, match="passes no gradient: set residual=pre_norm"):
        dataclasses.replace(CONFIG, residual=Residual.reversible)
    with pytest.raises(Unsupported, match="an id of each row below 2, but this runner or command"):
        build().predict(rows())
    with pytest.raises(ValueError, match="reads no condition, because its task has none"):
        build(norm=NormKind.layer).predict(rows(), layout=Layout(condition=torch.zeros(4).long()))
