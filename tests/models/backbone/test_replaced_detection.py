"""Replaced-token detection against its formula in loops, and what it refuses."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from lra.models.backbone.choices import Embedding, Softmax
from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.backbone.replaced_tokens import draw_ids
from lra.models.families.compressed_attention import CompressedMultiQuery
from lra.models.families.performer import Performer
from lra.models.families.sdpa import SDPA
from lra.models.mixer import Layout, Positions, Unsupported
from lra.runners.training.distillation import Distillation, DistillationLoss
from lra.runners.training.objective import objective

LENGTH, IDS, MASK = 9, 7, 7


def built(mixer=SDPA, *, padded=True, **options) -> Backbone:
    facts = TaskFacts(
        head=Head.replaced_detection, vocabulary=IDS + 1, classes=IDS + 1, max_length=LENGTH,
        padded=padded,
    )  # fmt: skip
    sizes = {"depth": 1, "width": 8, "heads": 2, "feed_forward_width": 12, "generator_share": 0.5}
    config = BackboneConfig(**{**sizes, **options})
    return Backbone(config, facts, [mixer], seed=3).double()


def batch(rows: int = 4):
    """Return masked tokens, original ones, keep, and numbers of samples."""
    generator = torch.Generator().manual_seed(0)
    keep = torch.arange(LENGTH) < torch.tensor([9, 4, 7, 9, 6, 5])[:rows, None]
    target = torch.randint(1, IDS, (rows, LENGTH), generator=generator).where(keep, 0)
    uniform = torch.rand(rows, LENGTH, generator=generator).clamp(min=1e-6)
    hidden = keep & (torch.rand(rows, LENGTH, generator=generator) < 0.4)
    uniform = uniform.where(hidden, 0)
    return target.masked_fill(hidden, MASK)[:, None], target, keep[:, None], uniform


def loop(model: Backbone) -> tuple[torch.Tensor, dict[str, float]]:
    """Return the loss and the scores by the formulas of arXiv:2003.10555, element by element."""
    tokens, target, keep, uniform = batch()
    logits, _ = model.generator.predict(tokens, keep)
    of_generator, filled, right = [], tokens.clone(), 0
    for row, place in uniform.nonzero().tolist():
        exponentials = [value.exp() for value in logits[row, place]]
        shares = [value / sum(exponentials) for value in exponentials]
        of_generator.append(-shares[target[row, place]].log())
        right += max(range(MASK + 1), key=shares.__getitem__) == target[row, place].item()
        total = 0.0
        for identifier, share in enumerate(shares):
            total += share.item()
            if total > uniform[row, place].item():
                filled[row, 0, place] = identifier
                break
    x = model.run(filled, keep, None, filled=True).x
    of_detector, original = [], 0
    hidden, out = model.head.map.hidden, model.head.map.out
    for row, place in keep[:, 0].nonzero().tolist():
        units = hidden.weight @ x[row, place] + hidden.bias
        units = [u * (1 + torch.erf(u / math.sqrt(2))) / 2 for u in units]
        logit = sum(w * u for w, u in zip(out.weight[0], units, strict=True)) + out.bias[0]
        replaced = bool(filled[row, 0, place] != target[row, place])
        probability = 1 / (1 + (-logit).exp())
        of_detector.append(-(probability if replaced else 1 - probability).log())
        original += not replaced
    generator_loss = sum(of_generator) / len(of_generator)
    loss = generator_loss + 50 * sum(of_detector) / len(of_detector)
    scores = {
        "original_share": original / len(of_detector),
        "generator_accuracy": right / len(of_generator),
        "generator_loss": generator_loss.item(),
        "loss": sum(of_detector).item() / len(of_detector),
    }
    assert 0 < original < len(of_detector)
    return loss, scores


@pytest.mark.parametrize(
    "options", [{}, {"tied_embeddings": False}, {"embedding_width": 6}], ids=str
)
def test_the_loss_and_all_gradients_are_those_of_the_loop(options):
    fast, slow = built(**options).train(), built(**options).train()
    tokens, target, keep, uniform = batch()
    asked = keep.flatten().nonzero().squeeze(1)
    outcome = fast(tokens, target, keep, layout=Layout(uniform=uniform), asked=asked)
    loss = objective(outcome, keep[:, 0].double(), float(keep.sum()), 1.0)
    expected, scores = loop(slow)
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=0)
    loss.backward()
    expected.backward()
    for (name, one), (_, other) in zip(
        fast.named_parameters(), slow.named_parameters(), strict=True
    ):
        assert one.grad is not None, name
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12, msg=name)
    outcome = fast.eval()(tokens, target, keep, layout=Layout(uniform=uniform), asked=asked)
    found = {name: total.item() / count for name, (total, count) in outcome.further.items()}
    found["loss"] = outcome.nll.sum().item() / int(keep.sum())  # evaluation has no factor of 50
    assert found == pytest.approx(scores, rel=1e-11)


def test_samples_have_the_probabilities_of_the_generator():
    logits = torch.tensor([[0.3, -40.0, 1.1, -0.7, 0.0, -torch.inf]]).double()
    count = 20_000
    numbers = (torch.arange(count) + 0.5) / count
    drawn = draw_ids(logits.expand(count, -1), numbers)
    shares = torch.bincount(drawn, minlength=6) / count
    torch.testing.assert_close(shares, logits.softmax(-1)[0].float(), rtol=0, atol=2 / count)
    assert int(draw_ids(logits, torch.tensor([1 - 2**-24]))) == 4  # never an id of probability 0


def test_a_row_has_the_same_samples_and_answers_alone():
    model = built().eval()
    tokens, _, keep, uniform = batch()
    together, _ = model.predict(tokens, keep, layout=Layout(uniform=uniform))
    for row in range(len(tokens)):
        n = int(keep[row].sum())
        rows = slice(row, row + 1)
        alone, _ = model.predict(tokens[rows, :, :n], layout=Layout(uniform=uniform[rows, :n]))
        torch.testing.assert_close(together[rows, :n], alone)


def test_the_generator_is_narrower_and_shares_the_table():
    model = built(width=32, heads=4, depth=2, feed_forward_width=64, generator_share=0.25)
    small = model.generator.config
    assert (small.width, small.heads, small.feed_forward_width, small.depth) == (8, 1, 16, 2)
    assert model.generator.embedding.weight is model.embedding.weight
    assert model.generator.head.weight is model.embedding.weight
    assert len(model.blocks) == 4  # which are compiled
    equal = built(generator_share=1.0).generator.config
    assert (equal.width, equal.heads, equal.feed_forward_width) == (8, 2, 12)


@pytest.mark.parametrize(
    ("mixer", "options", "words"),
    [
        (SDPA, {"embedding": Embedding.adaptive, "softmax": Softmax.adaptive,
                "softmax_cutoffs": [2]}, "set both to full"),
        (SDPA, {"positions": Positions.rotary, "generator_share": 0.1}, "generator_share=1 or"),
        (CompressedMultiQuery, {}, "only earlier ones"),
    ],
)  # fmt: skip
def test_models_without_a_generator_are_refused(mixer, options, words):
    with pytest.raises((Unsupported, TypeError), match=words):
        built(mixer, **options)


def test_stacks_and_runners_that_cannot_have_one_are_refused():
    model = built(padded=False)
    tokens, target, _, uniform = batch()
    with pytest.raises(Unsupported, match="runner does not pass"):
        model.run(tokens, None, None)
    with pytest.raises(Unsupported, match="runner does not pass"):
        model(tokens, target)
    with pytest.raises(Unsupported, match=r"optim\.label_smoothing=0\.1"):
        model(tokens, target, None, None, 0.1, layout=Layout(uniform=uniform))
    with pytest.raises(Unsupported, match="samples of its generator"):
        Distillation(model, built(padded=False), DistillationLoss())

    class Whole(nn.Module):
        traits = model.traits[0]

        def forward(self, flow, layout):
            return flow

    with pytest.raises(Unsupported, match="arranges its layers itself"):
        Backbone(model.config, model.facts, [], stack=lambda site, frame: Whole(), seed=0)
    with pytest.raises(ValueError, match=r"lie in \(0, 1\]"):
        BackboneConfig(depth=1, width=8, heads=2, generator_share=1.5)


def test_penalties_and_random_features_of_the_generator_take_part():
    model = built(partial(Performer, features=4), generator_share=1.0).train()
    tokens, target, keep, uniform = batch()
    outcome = model(tokens, target, keep, layout=Layout(uniform=uniform))
    assert set(outcome.penalties) == {"generator"}
    assert outcome.penalties["generator"].requires_grad
