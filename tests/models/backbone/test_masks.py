"""Masks: who sees whom, by brute force, in a whole model, and from a task's batches."""

import itertools

import pytest
import torch

from lra.composition.lookup import named_task
from lra.models.backbone.model import Backbone, BackboneConfig, Head, Positions, TaskFacts
from lra.models.families.linear import LinearAttention
from lra.models.families.sdpa import SDPA
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Layout, Unsupported
from lra.models.ops.exact import visibility
from lra.runners.training.prefetch import masks_of

CPU = torch.device("cpu")


def seen(layout: Layout, length: int, *, causal: bool) -> set[tuple[int, int]]:
    """Return which (query, key) pairs of the only row are allowed."""
    visible = visibility(layout, length, causal=causal, device=CPU)
    if visible is None:
        visible = torch.ones(length, length).tril() if causal else torch.ones(length, length)
    square = visible.expand(1, 1, length, length)[0, 0] if visible.dim() == 4 else visible
    return {(i, j) for i, j in itertools.product(range(length), repeat=2) if square[i, j]}


@pytest.mark.parametrize("length", range(1, 7))
def test_allowed_pairs_are_those_of_the_definitions(length: int) -> None:
    pairs = list(itertools.product(range(length), repeat=2))
    causal = {(i, j) for i, j in pairs if j <= i}
    assert seen(Layout(), length, causal=True) == causal
    assert seen(Layout(), length, causal=False) == set(pairs)
    for count in range(length + 1):
        prefix = Layout(prefix=torch.tensor([count]))
        wanted = {(i, j) for i, j in pairs if j <= i or (i < count and j < count)}
        assert seen(prefix, length, causal=True) == wanted
        # UniLM's source and target as ranks: 0 for the source, then one for each target token
        ranks = (torch.arange(length) - count + 1).clamp(min=0)
        assert seen(Layout(order=ranks[None]), length, causal=False) == wanted
        documents = (torch.arange(length) >= count).long()
        wanted = {(i, j) for i, j in pairs if (i >= count) == (j >= count)}
        packed = Layout(document=documents[None])
        assert seen(packed, length, causal=False) == wanted
        assert seen(packed, length, causal=True) == wanted & causal
    assert seen(Layout(prefix=torch.tensor([0])), length, causal=True) == causal
    assert seen(Layout(prefix=torch.tensor([length])), length, causal=True) == set(pairs)
    for ranks in itertools.islice(itertools.permutations(range(length)), 0, None, 7):
        wanted = {(i, j) for i, j in pairs if ranks[j] <= ranks[i]}
        assert seen(Layout(order=torch.tensor([ranks])), length, causal=False) == wanted
    identity = Layout(order=torch.arange(length)[None])
    assert seen(identity, length, causal=False) == causal


LENGTH = 9
FACTS = {
    "prefix": (Head.sequence_to_sequence, {"prefix": torch.tensor([4, 0, 7])}),
    "order": (
        Head.masked_modelling,
        {"order": torch.tensor([[3, 1, 0, 2, 2, 8, 5, 5, 4], [*range(9)], [0] * 9])},
    ),
    "document": (
        Head.language_modelling,
        {"document": torch.tensor([[7, 7, 7, 2, 2, 2, 2, 5, 5], [*range(9)], [1] * 9])},
    ),
}


def model_for(name: str, family=SDPA, positions=Positions.learned) -> Backbone:
    config = BackboneConfig(
        depth=2, width=8, heads=2, feed_forward_width=8, positions=positions
    )  # fmt: skip
    facts = TaskFacts(
        head=FACTS[name][0], vocabulary=11, classes=11, max_length=LENGTH, masks=frozenset({name})
    )
    return Backbone(config, facts, [family], seed=3).double().eval()


@pytest.mark.parametrize("family", [SoftmaxAttention, SDPA])
@pytest.mark.parametrize("name", FACTS)
def test_a_model_answers_from_what_the_mask_allows_and_nothing_else(name: str, family) -> None:
    model, facts = model_for(name, family), Layout(**FACTS[name][1])
    causal = FACTS[name][0] is not Head.masked_modelling
    tokens = torch.randint(11, (3, 1, LENGTH), generator=torch.Generator().manual_seed(2))
    plain, _ = model.predict(tokens, layout=facts)
    for row in range(3):
        own = Layout(**{key: value[row : row + 1] for key, value in FACTS[name][1].items()})
        # what a stack sees in all is the closure of what a layer sees: two layers reach twice
        direct = seen(own, LENGTH, causal=causal)
        reached = {(i, j) for i, k in direct for k2, j in direct if k == k2} | direct
        for changed in range(LENGTH):
            other = tokens.clone()
            other[row, 0, changed] = (other[row, 0, changed] + 1) % 11
            moved = (model.predict(other, layout=facts)[0] - plain)[row].abs().amax(1)
            for place in range(LENGTH):
                assert (moved[place] > 0) == ((place, changed) in reached), (row, place, changed)


def test_what_cannot_be_honoured_is_refused_with_a_way_out() -> None:
    wanted = r"LinearAttention does not support a prefix, .*, or model.backbone.decoder_depth=2"
    with pytest.raises(Unsupported, match=wanted):
        model_for("prefix", LinearAttention)
    with pytest.raises(
        Unsupported, match="position_infused counts positions from the beginning of a row"
    ):
        model_for("document", positions=Positions.position_infused)
    model, tokens = model_for("prefix"), torch.zeros(3, 1, LENGTH, dtype=torch.long)
    with pytest.raises(Unsupported, match="needs batches with prefix"):
        model.predict(tokens)
    with pytest.raises(ValueError, match="can continue only rows whose layout has no prefix"):
        model.predict(tokens, None, model.initial_state(3, LENGTH), Layout(prefix=torch.zeros(3)))


def test_a_prefix_is_the_beginning_of_a_text_and_the_rest_is_answered(monkeypatch, tmp_path):
    monkeypatch.setenv("LRA_DATA", str(tmp_path))
    plain, task = (named_task("text", ["source=sample", *w]) for w in ([], ["objective=prefix"]))
    task.prepare()
    assert task.spec.masks == {"prefix"}
    pairs = zip(*(t.batches("train", batch_size=8, seed=1) for t in (plain, task)), strict=True)
    cuts = []
    for shown, batch in itertools.islice(pairs, 3):
        for row in range(8):
            text = shown.tokens[row, 0][shown.keep[row, 0]].tolist()
            read, cut = batch.tokens[row, 0].tolist(), int(batch.prefix[row])
            assert read[: len(text)] == [*text[:cut], plain.spec.vocabulary, *text[cut:-1]]
            assert batch.target[row, : len(text)].tolist() == text
            counted = batch.weight[row].nonzero().flatten().tolist()
            assert counted == list(range(cut, len(text)))
            cuts.append(cut / len(text))
    assert min(cuts) < 0.2
    assert max(cuts) > 0.8
    assert masks_of(batch).prefix is batch.prefix
