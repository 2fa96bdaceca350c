"""Weights of one model in another: what is copied, and that the function is the one meant."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from lra.models.backbone.config import Residual
from lra.models.backbone.model import (
    Backbone,
    BackboneConfig,
    FeedForward,
    Head,
    Pooling,
    Positions,
    TaskFacts,
)
from lra.models.families.fnet import FNet
from lra.models.families.linear import LinearAttention
from lra.models.families.longformer import Longformer
from lra.models.families.performer import Performer
from lra.models.families.reformer import Reformer
from lra.models.families.sdpa import SDPA
from lra.models.families.sliding_window import SlidingWindow
from lra.models.families.softmax import SoftmaxAttention
from lra.models.families.tlb import TemporalLatentBottleneck
from lra.models.mixer import Unsupported
from lra.models.transfer.weights import Origin, Parts, repeat_rows, transfer, weights_of

LENGTH, VOCABULARY = 12, 11


def build(
    mixer: Any,
    *,
    head: Head = Head.language_modelling,
    length: int = LENGTH,
    vocabulary: int = VOCABULARY,
    classes: int = 3,
    seed: int = 0,
    **options: Any,
) -> Backbone:
    config = BackboneConfig(**{"width": 16, "heads": 2, "feed_forward_width": 24} | options)
    facts = TaskFacts(head=head, vocabulary=vocabulary, classes=classes, max_length=length)
    return Backbone(config, facts, [mixer], seed=seed).double().eval()


def stirred(model: Backbone) -> Backbone:
    """Norms, biases and the CLS vector away from ones and zeros."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator).double() / 10)
    return model


def tokens(length: int = LENGTH) -> Tensor:
    return torch.randint(0, VOCABULARY, (2, 1, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("head", [Head.language_modelling, Head.classification])
@pytest.mark.parametrize(
    "mixer", [SDPA, partial(SlidingWindow, window=[LENGTH]), partial(Longformer, window=[LENGTH])]
)
def test_families_that_compute_the_same_answer_the_same(mixer: Any, head: Head) -> None:
    source = stirred(build(SoftmaxAttention, head=head))
    target = build(mixer, head=head, seed=9)
    before = target.predict(tokens())[0]
    report = transfer(source, target)
    wanted, got = source.predict(tokens())[0], target.predict(tokens())[0]
    torch.testing.assert_close(got, wanted)
    assert not torch.allclose(got, before)
    assert Origin.drawn not in report.origins.values()
    assert report.unused == ()
    assert sum(report.parameters.values()) == sum(p.numel() for p in target.parameters())


def test_the_projections_of_global_tokens_start_from_the_ordinary_ones() -> None:
    source = stirred(build(SoftmaxAttention, head=Head.classification))
    target = build(Longformer, head=Head.classification, seed=9)
    report = transfer(source, target)
    mixer = target.stack.blocks[0].mixer
    assert torch.equal(mixer.query_global.weight, source.stack.blocks[0].mixer.q_proj.weight)
    started = {key for key, origin in report.origins.items() if origin is Origin.started}
    assert started == {
        f"stack.blocks.{layer}.mixer.{part}_global.{kind}"
        for layer in (0, 1)
        for part in ("query", "key", "value")
        for kind in ("weight", "bias")
    }
    assert report.parameters[Origin.started] == 2 * 3 * (16 * 16 + 16)


def test_a_performer_approaches_the_source_with_the_number_of_features() -> None:
    source = build(SoftmaxAttention)
    with torch.no_grad():  # the estimator has heavy tails for long queries and keys
        for block in source.stack.blocks:
            for projection in (block.mixer.q_proj, block.mixer.k_proj):
                projection.weight.div_(4)
    wanted = source.predict(tokens())[0].detach()
    errors = []
    for features in (8, 64, 512, 4096):  # error as 1 / sqrt(features): 0.35 from one to the next
        found = []
        for seed in range(4):
            target = build(partial(Performer, features=features), seed=100 + seed)
            report = transfer(source, target)
            found.append((target.predict(tokens())[0].detach() - wanted).square().mean())
        errors.append(float(torch.stack(found).mean().sqrt()))
    assert all(later < 0.6 * earlier for earlier, later in pairwise(errors))
    assert errors[-1] < 0.01 * float(wanted.std())
    drawn = {key for key, origin in report.origins.items() if origin is Origin.drawn}
    assert drawn == {f"stack.blocks.{layer}.mixer.core.projection" for layer in (0, 1)}
    assert report.parameters[Origin.drawn] == 0


def test_features_stay_those_of_a_source_with_as_many() -> None:
    source, same = (build(partial(Performer, features=8), seed=seed) for seed in (0, 1))
    transfer(source, same)
    torch.testing.assert_close(same.predict(tokens())[0], source.predict(tokens())[0])
    other = build(partial(Performer, features=4), seed=1)
    assert transfer(source, other).unused == tuple(
        f"stack.blocks.{layer}.mixer.core.projection" for layer in (0, 1)
    )


def test_linear_attention_takes_every_projection() -> None:
    source, target = stirred(build(SoftmaxAttention)), build(LinearAttention, seed=4)
    assert set(transfer(source, target).origins.values()) == {Origin.copied}
    mine, theirs = target.state_dict(), source.state_dict()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)


# ------------------------------------------------------------------------------ positions


def test_rows_are_repeated_as_often_as_needed() -> None:
    table = torch.arange(6.0).view(3, 2)
    assert repeat_rows(table, 8)[:, 0].tolist() == [0, 2, 4, 0, 2, 4, 0, 2]
    assert torch.equal(repeat_rows(table, 2), table[:2])


def test_a_longer_model_repeats_the_positions() -> None:
    source = stirred(build(SoftmaxAttention))
    target = build(partial(SlidingWindow, window=[3]), length=30, seed=2)
    report = transfer(source, target)
    table = source.positions.table
    assert torch.equal(target.positions.table, torch.cat((table, table, table[:6])))
    assert report.lengths == (12, 30)
    assert report.origins["positions.table"] is Origin.extended
    assert report.parameters[Origin.extended] == 30 * 16
    # within the first copy the longer model is the shorter one
    exact = build(SDPA, length=30, seed=2)
    transfer(source, exact)
    torch.testing.assert_close(exact.predict(tokens())[0], source.predict(tokens())[0])


def test_the_row_of_the_cls_vector_is_kept_apart() -> None:
    source = stirred(build(SoftmaxAttention, head=Head.classification))
    target = build(Longformer, head=Head.classification, length=20, seed=2)
    transfer(source, target)
    table = source.positions.table
    wanted = torch.cat((table[:1], table[1:], table[1:9]))
    assert torch.equal(target.positions.table, wanted)
    plain = build(SDPA, head=Head.classification, pooling=Pooling.mean, length=5)
    report = transfer(source, plain)
    assert torch.equal(plain.positions.table, table[1:6])
    assert report.unused == ("cls",)


def test_a_cls_vector_that_the_source_lacks_stays_as_drawn() -> None:
    source = stirred(build(SoftmaxAttention))
    target = build(SDPA, head=Head.classification)
    first = target.positions.table[:1].clone()
    report = transfer(source, target)
    assert torch.equal(target.positions.table, torch.cat((first, source.positions.table)))
    drawn = {key for key, origin in report.origins.items() if origin is Origin.drawn}
    assert drawn == {
        "cls", "head.hidden.weight", "head.hidden.bias", "head.out.weight", "head.out.bias",
    }  # fmt: skip
    assert report.unused == ("head.weight",)


# ------------------------------------------------------------------ heads, scales, parts


def test_a_tied_source_in_an_untied_model() -> None:
    source = stirred(build(SoftmaxAttention))
    target = build(SDPA, tied_embeddings=False, seed=7)
    transfer(source, target)
    torch.testing.assert_close(target.predict(tokens())[0], source.predict(tokens())[0])
    with pytest.raises(Unsupported, match=r"set model\.backbone\.tied_embeddings=false"):
        transfer(target, build(SDPA))


def test_an_untied_source_that_answers_by_its_embedding_in_a_tied_model() -> None:
    source = stirred(build(SoftmaxAttention, tied_embeddings=False))
    source.head.weight = source.embedding.weight
    weights = weights_of(source)
    target = build(SDPA, seed=7)
    transfer(replace(weights, tied=True), target)
    torch.testing.assert_close(target.predict(tokens())[0], source.predict(tokens())[0])
    assert target.head.weight is target.embedding.weight


def test_another_number_of_classes_draws_the_whole_head() -> None:
    source = build(SoftmaxAttention, head=Head.classification)
    target = build(SDPA, head=Head.classification, classes=4)
    report = transfer(source, target)
    drawn = {key for key, origin in report.origins.items() if origin is Origin.drawn}
    assert drawn == {"head.hidden.weight", "head.hidden.bias", "head.out.weight", "head.out.bias"}


def test_the_blocks_alone_serve_another_vocabulary() -> None:
    source = stirred(build(SoftmaxAttention))
    options: dict[str, Any] = {"vocabulary": 5, "positions": Positions.sinusoidal}
    target, untouched = (build(SDPA, seed=7, **options) for _ in range(2))
    report = transfer(source, target, Parts.blocks)
    for key, value in target.state_dict().items():
        copied = key.startswith("stack.")
        assert report.origins[key] is (Origin.copied if copied else Origin.drawn)
        assert torch.equal(value, (source if copied else untouched).state_dict()[key])
    with pytest.raises(Unsupported, match="positions=learned, but this model has rotary"):
        transfer(source, build(SDPA, vocabulary=5, positions=Positions.rotary), Parts.blocks)


# ------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"width": 32},
            "trained with width=16, but this model has 32; set model.backbone.width=16",
        ),
        ({"heads": 4}, "heads=2, but this model has 4"),
        ({"depth": 3}, "depth=2, but this model has 3"),
        ({"feed_forward_width": 8}, "feed_forward_width=24, but this model has 8"),
        (
            {"feed_forward": FeedForward.gelu_tanh},
            "feed_forward=gelu, but this model has gelu_tanh",
        ),
        ({"residual": Residual.post_norm}, "residual=pre_norm, but this model has post_norm"),
        ({"norm_epsilon": 1e-12}, "norm_epsilon=1e-05, but this model has 1e-12"),
        ({"positions": Positions.rotary}, "positions=learned, but this model has rotary"),
        (
            {"vocabulary": 13},
            r"but the embedding of this model has shape \[13, 16\]: choose a task",
        ),
    ],
)
def test_models_that_do_not_fit_are_refused_and_left_alone(
    options: dict[str, Any], words: str
) -> None:
    target = build(SDPA, **options)
    before = {key: value.clone() for key, value in target.state_dict().items()}
    with pytest.raises(ValueError, match=words):
        transfer(build(SoftmaxAttention, seed=3), target)
    assert all(torch.equal(value, before[key]) for key, value in target.state_dict().items())


@pytest.mark.parametrize(
    "mixer",
    [FNet, Reformer, partial(SoftmaxAttention, bias=False)],
    ids=["fnet", "reformer", "bias"],
)
def test_a_weight_without_a_place_is_refused(mixer: Any) -> None:
    head = Head.classification
    target = build(mixer, head=head)
    with pytest.raises(Unsupported, match=r"no place for stack\.blocks\.0\.mixer\."):
        transfer(build(SoftmaxAttention, head=head), target)


def test_a_stack_of_its_own_is_refused() -> None:
    config = BackboneConfig(width=16, pooling=Pooling.mean, positions=Positions.none)
    facts = TaskFacts(head=Head.classification, vocabulary=VOCABULARY, classes=3, max_length=40)
    target = Backbone(config, facts, [], stack=TemporalLatentBottleneck, seed=0)
    with pytest.raises(Unsupported, match="arranges its layers itself"):
        transfer(build(SoftmaxAttention), target)
