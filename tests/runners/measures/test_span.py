"""Spans of models whose span is known, and against Jacobians written out."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from lra.models.backbone.heads import Pooling
from lra.models.backbone.model import Backbone, BackboneConfig, FeedForward, Head, TaskFacts
from lra.models.families.identity import Identity
from lra.models.families.sliding_window import SlidingWindow
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Positions, Site, Traits, Unsupported
from lra.models.multi_head import MultiHead
from lra.runners.measurement.hardware import Device, HardwareProfile
from lra.runners.measures.attention.occlusion import QueriedBatch, doublings, draw_queries, least
from lra.runners.measures.span import Span, SpanMeasure, gradient_spans, span
from lra.runners.records import Measurement, Status
from lra.tasks.diagnostics.duplicate import Duplicate
from lra.tasks.task import Batch
from tests.runners.tiny_task import SPEC, Tiny

CPU = HardwareProfile(name="cpu", device=Device.cpu)
LENGTH, BACK = 24, 5
ROWS = 5


class Back(nn.Module):
    """Every query looks at the key `BACK` places before it, the first ones at the first key."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.traits = Traits(causal=site.causal, row_stochastic=True)

    def forward(self, q, k, v, layout):
        return v[:, :, (torch.arange(v.shape[2]) - BACK).clamp(min=0)]


class LookBack(MultiHead):
    def __init__(self, site: Site) -> None:
        super().__init__(site, Back(site))
        with torch.no_grad():
            self.v_proj.weight.copy_(100.0 * torch.eye(site.width))
            self.out_proj.weight.copy_(torch.eye(site.width))


def task():
    made = Duplicate(
        length=LENGTH, symbols=20, train_examples=20, validation_examples=ROWS, test_examples=4
    )
    made.prepare()
    return made


def model_of(mixer, *, depth=1, head=Head.language_modelling, **options):
    config = BackboneConfig(
        **{"width": 32, "heads": 2, "depth": depth, "feed_forward": FeedForward.none, **options}
    )
    facts = TaskFacts(head=head, vocabulary=21, classes=21, max_length=LENGTH)
    return Backbone(config, facts, [mixer], seed=0).eval()


def spans(model, of=None, **options):
    items = span(model, of or task(), config=Span(**options), hardware=CPU, seed=0)
    return [item for item in items if isinstance(item, Measurement)]


def whole(rows):
    return {
        row.labels["measure"]: row.value
        for row in rows
        if row.metric == "span" and row.labels["head"] == "all"
    }


def test_a_model_that_looks_five_back_has_a_span_of_five() -> None:
    rows = spans(model_of(LookBack, positions=Positions.none), queries=LENGTH)
    found = whole(rows)
    wanted = sum(min(position, BACK) for position in range(LENGTH)) / LENGTH
    assert found["attention"] == pytest.approx(wanted)
    heads = {(r.labels["layer"], r.labels["head"]): r.value for r in rows if r.metric == "span"}
    assert heads["0", "0"] == heads["0", "1"] == pytest.approx(wanted)
    assert found["occlusion"] == BACK
    kept = {int(r.labels["within"]): r.value for r in rows if r.metric == "occlusion_agreement"}
    assert list(kept) == [0, 1, 2, 4, 8, 16, LENGTH - 1]
    assert max(kept[s] for s in (0, 1, 2, 4)) < 0.5
    assert kept[8] == kept[LENGTH - 1] == 1.0


def test_the_identity_sees_its_own_token_alone() -> None:
    found = spans(model_of(Identity), measures=[SpanMeasure.gradient, SpanMeasure.occlusion])
    assert whole(found) == {"gradient": 0.0, "occlusion": 0.0}
    (refused,) = spans(model_of(Identity), measures=[SpanMeasure.attention])
    assert refused.status is Status.unsupported
    assert "Identity computes no attention" in refused.reason


@pytest.mark.parametrize("depth", [1, 2])
def test_windows_end_where_they_must(depth) -> None:
    window = 4

    def mixer(site: Site):
        return SlidingWindow(site, window=[window])

    model = model_of(mixer, depth=depth)
    with torch.no_grad():
        for block in model.blocks:  # so that answers hang on what is in the window
            block.mixer.out_proj.weight.mul_(30.0)
    rows = spans(model, queries=6, keeps=1.0)
    heads = [r.value for r in rows if r.metric == "span" and r.labels["head"] in {"0", "1"}]
    assert len(heads) == 2 * depth
    assert max(heads) <= window
    assert 0 < whole(rows)["gradient"] <= depth * window
    assert 0 < whole(rows)["occlusion"] <= depth * window


def asked_of(tokens, queries, keep=None):
    counts = torch.ones_like(queries, dtype=torch.bool)
    return QueriedBatch(tokens, keep, queries, counts, tokens)


def jacobian(model, queried, read):
    """Distances weighted by |d read / d x_j|, from the whole Jacobian."""
    x = {}
    handle = model.stack.register_forward_pre_hook(lambda _, given: x.update(flow=given))
    model.run(queried.tokens, queried.keep, None)
    handle.remove()
    flow, layout = x["flow"]
    slopes = torch.autograd.functional.jacobian(
        lambda leaf: read(model.stack(flow._replace(x=leaf), layout).x), flow.x.detach()
    )
    return slopes.norm(dim=-1)


def test_gradients_of_a_language_model_against_its_jacobian() -> None:
    model = model_of(SoftmaxAttention, depth=2).double()
    tokens = torch.randint(21, (1, 1, 9), generator=torch.Generator().manual_seed(0))
    queries = torch.tensor([[3, 8, 0]])
    found = gradient_spans(model, asked_of(tokens, queries))
    for position, own in zip(queries[0].tolist(), found.tolist(), strict=True):
        norms = jacobian(
            model, asked_of(tokens, queries), lambda y, p=position: model.head(y[0, p]).max()
        )
        distance = (torch.arange(9) - position).abs()
        assert own == pytest.approx(float((norms[0] * distance).sum() / norms[0].sum()))


def test_gradients_of_a_classifier_start_at_the_cls_vector() -> None:
    model = model_of(SoftmaxAttention, depth=2, head=Head.classification).double()
    tokens = torch.randint(21, (2, 1, 9), generator=torch.Generator().manual_seed(0))
    keep = torch.arange(9) < torch.tensor([[[9]], [[6]]])
    queried = asked_of(tokens, torch.zeros(2, 1, dtype=torch.long), keep)
    found = gradient_spans(model, queried)
    norms = jacobian(model, queried, lambda y: model.classify(y, keep, 1).amax(-1).sum())
    distance = torch.arange(10)
    torch.testing.assert_close(found, (norms * distance).sum(1) / norms.sum(1))
    assert not norms[1, 7:].any()


def test_pooled_answers_are_read_at_every_place() -> None:
    model = model_of(
        SoftmaxAttention, depth=1, head=Head.classification, pooling=Pooling.mean
    ).double()
    tokens = torch.randint(21, (1, 1, 7), generator=torch.Generator().manual_seed(0))
    queried = asked_of(tokens, torch.arange(7)[None])
    found = gradient_spans(model, queried)
    # the classifier is linear around here: its slope times the Jacobian of one output
    y = model.run(tokens, None, None).x.detach().requires_grad_()
    top = model.classify(y, None, 1).amax()
    slope = torch.autograd.grad(top, y)[0][0]
    for position in range(7):
        norms = jacobian(model, queried, lambda out, p=position: (out[0, p] * slope[p]).sum())[0]
        wanted = (norms * (torch.arange(7) - position).abs()).sum() / norms.sum()
        assert float(found[position]) == pytest.approx(float(wanted))


def test_padding_is_no_query_and_changes_nothing() -> None:
    model = Backbone(
        BackboneConfig(width=16, heads=2, depth=2),
        TaskFacts(head=Head.classification, vocabulary=8, classes=3, max_length=12, padded=True),
        [SoftmaxAttention],
        seed=0,
    )

    class One(Tiny):
        def __init__(self, row: int, cut: bool) -> None:
            super().__init__()
            self.row, self.cut = row, cut

        def batches(self, split, **options):
            tokens, target, keep = self.data(split)
            position = slice(self.row, self.row + 1)
            own = Batch(tokens[position], target[position], torch.tensor([0]), keep[position])
            length = int(keep[position].sum())
            if self.cut:
                own = own._replace(tokens=own.tokens[..., :length], keep=None)
            yield own

    padded = next(r for r in range(9) if not Tiny().data("validation")[2][r].all())
    options = {"measures": [SpanMeasure.attention, SpanMeasure.gradient]}
    here = whole(spans(model, of=One(padded, cut=False), **options))
    there = whole(spans(model, of=One(padded, cut=True), **options))
    assert here == pytest.approx(there, rel=1e-5)
    # of several examples, the mean of the examples' means
    each = [whole(spans(model, of=One(row, cut=False), **options)) for row in range(9)]
    both = whole(spans(model, of=Tiny(), examples=9, **options))
    for measure in ("attention", "gradient"):
        assert both[measure] == pytest.approx(sum(one[measure] for one in each) / 9, rel=1e-5)


def test_places_are_drawn_among_those_that_count() -> None:
    made = task()
    (batch,) = made.batches("validation", batch_size=ROWS, seed=0)
    model = model_of(SoftmaxAttention)
    queried = draw_queries(model, batch, 30, torch.Generator().manual_seed(0), torch.device("cpu"))
    for row in range(ROWS):
        wanted = set(batch.weight[row].nonzero().flatten().tolist())
        assert set(queried.queries[row][queried.counts[row]].tolist()) == wanted
    assert int(queried.counts.sum()) == int(batch.weight.sum())


def test_a_pooled_answer_has_no_place_to_hide_tokens_from() -> None:
    model = Backbone(
        BackboneConfig(width=8, heads=2, pooling=Pooling.mean),
        TaskFacts(head=Head.classification, vocabulary=8, classes=3, max_length=12, padded=True),
        [SoftmaxAttention],
        seed=0,
    )
    (row,) = spans(model, of=Tiny(), measures=[SpanMeasure.occlusion])
    assert row.status is Status.unsupported
    assert "choose model.backbone.pooling=cls" in row.reason


@pytest.mark.parametrize("pooling", [Pooling.first, Pooling.last, Pooling.mean_all])
def test_an_answer_has_its_place_where_it_is_read(pooling) -> None:
    """That of a mean over all positions also at padding."""
    model = model_of(SoftmaxAttention, head=Head.classification, pooling=pooling)
    tokens, target, keep, *_ = Tiny().data("validation")
    batch = Batch(tokens, target, torch.arange(len(tokens)), keep)
    queried = draw_queries(model, batch, 99, torch.Generator().manual_seed(0), torch.device("cpu"))
    lengths = keep.sum(-1)[:, 0]
    assert len(set(lengths.tolist())) > 1
    if pooling is Pooling.mean_all:
        assert queried.counts.sum(1).tolist() == [tokens.shape[-1]] * len(tokens)
        return
    places = lengths - 1 if pooling is Pooling.last else 0 * lengths
    assert torch.equal(queried.queries, places[:, None])
    rows = spans(model, of=Tiny(), measures=[*SpanMeasure])
    assert {row.labels["measure"] for row in rows} == {str(measure) for measure in SpanMeasure}
    assert all(row.status is Status.ok for row in rows)


def test_a_state_along_time_is_refused() -> None:
    class Remembering(Tiny):
        spec = replace(SPEC, memory=5)

    with pytest.raises(Unsupported, match="the model remembers 5 tokens before the window"):
        spans(model_of(SoftmaxAttention), of=Remembering())


def test_the_same_seed_gives_the_same_rows() -> None:
    once, again = (spans(model_of(SoftmaxAttention, depth=2), queries=1) for _ in range(2))
    assert once == again


def test_the_least_distance_is_found_between_powers_of_two() -> None:
    assert doublings(39) == [0, 1, 2, 4, 8, 16, 32, 39]
    assert doublings(0) == [0]
    for border in (0, 1, 3, 11, 32, 39):
        queried = []

        def stay(distance: int, border=border, queried=queried) -> float:
            queried.append(distance)
            return float(distance >= border)

        shares = {distance: float(distance >= border) for distance in doublings(39)}
        assert least(shares, stay, 0.95) == border
        assert len(queried) <= 5
    # a dip beyond a good distance counts: answers must stay from there on
    assert least({0: 1.0, 1: 1.0, 2: 0.5, 4: 1.0}, lambda _: 1.0, 0.9) == 3
