"""Attention maps against weights, projections and kernels written out."""

from collections import defaultdict

import numpy as np
import pytest
import torch
from torch import nn

from lra.models.backbone.model import Backbone, BackboneConfig, Head, Positions, TaskFacts
from lra.models.families.collaborative import CollaborativeAttention
from lra.models.families.convbert import MixedAttention
from lra.models.families.dynamic_conv import DynamicConv
from lra.models.families.grouped_query import GroupedQueryAttention
from lra.models.families.identity import Identity
from lra.models.families.light_conv import LightConv
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Layout, Site, Unsupported
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.attention.amino_acids import AMINO_ACIDS, AminoAcids
from lra.runners.measures.attention.locality import Locality
from lra.runners.measures.attention.reading import KeptTokens, pass_batch
from lra.runners.measures.attention.spectrum import Spectrum, energies
from lra.runners.measures.attention_maps import AttentionMaps, MapMeasure, attention_maps
from lra.runners.records import Status
from tests.runners.tiny_task import Tiny

CPU = HardwareProfile(name="cpu")


def model_of(mixer, depth=1, **options):
    options = {"pooling": "mean", **options}
    config = BackboneConfig(width=12, heads=2, depth=depth, feed_forward_width=8, **options)
    facts = TaskFacts(head=Head.classification, vocabulary=8, classes=3, max_length=12, padded=True)
    return Backbone(config, facts, [mixer], seed=0).double()


def rows_of(model, **options):
    found = defaultdict(list)
    for row in attention_maps(model, Tiny(), config=AttentionMaps(**options), hardware=CPU):
        found[row.metric].append(row)
    return found


def random_weights(*shape):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).mul(2).softmax(-1)


def test_locality_is_that_of_loops_over_real_queries():
    weights = random_weights(2, 2, 5, 5)
    real = torch.tensor([[True] * 5, [True, True, True, False, False]])
    weights = weights * real[:, None, None]
    weights = weights / weights.sum(-1, keepdim=True)
    reading = Locality([0, 1], cells=3, longest=5)
    for example in range(2):  # in two batches
        part = slice(example, example + 1)
        reading.add(0, weights[part], KeptTokens(real[part], None))
    found = list(reading.measurements())
    wanted = defaultdict(float)
    cells, queries = np.zeros((3, 3)), np.zeros(3)
    for b, count in enumerate((5, 3)):
        for q in range(count):
            queries[q // 2] += 1
            for j in range(count):
                for h in range(2):
                    weight = float(weights[b, h, q, j])
                    share = weight / count / 2
                    wanted["attention_distance", h, ""] += share * abs(q - j)
                    wanted["attention_entropy", h, ""] -= share * np.log(weight)
                    wanted["attention_within", h, "0"] += share * (q == j)
                    wanted["attention_within", h, "1"] += share * (abs(q - j) <= 1)
                    cells[q // 2, j // 2] += weight / 2
    heads = {
        (r.metric, int(r.labels["head"]), r.labels.get("within", "")): r.value
        for r in found
        if r.metric != "attention_map"
    }
    assert heads == pytest.approx(dict(wanted))
    pictured = [r for r in found if r.metric == "attention_map"]
    assert [r.labels["positions"] for r in pictured] == ["2"] * 3
    drawn = np.array([r.samples for r in pictured])
    np.testing.assert_allclose(drawn, cells / queries[:, None], atol=1e-6)


def test_a_spectrum_is_cumulated_over_the_real_part_of_each_example():
    weights = random_weights(2, 1, 8, 8)
    real = torch.arange(8) < torch.tensor([[8], [4]])
    reading = Spectrum()
    reading.add(3, weights, KeptTokens(real, None))
    (row,) = reading.measurements()
    curves = []
    for own, count in zip(weights[:, 0], (8, 4), strict=True):
        values = np.linalg.svd(own[:count, :count].numpy(), compute_uv=False)
        shares = np.cumsum(values) / values.sum()
        curves.append([shares[int(np.ceil(count * k / 64)) - 1] for k in range(1, 65)])
    np.testing.assert_allclose(row.samples, np.mean(curves, axis=0), atol=1e-6)
    assert row.value == pytest.approx(np.mean(curves, axis=0)[15])


@pytest.mark.parametrize("family", [SoftmaxAttention, GroupedQueryAttention])
def test_energies_are_those_of_the_products_of_projections(family):
    mixer = family(Site(width=6, heads=2, max_length=4))
    found = energies(mixer)
    w_q = mixer.q_proj.weight.detach().double().numpy().T
    w_k = mixer.k_proj.weight.detach().double().numpy().T
    total, groups = np.zeros((6, 6)), w_k.shape[1] // 3
    for head in range(2):
        group = head * groups // 2
        product = w_q[:, 3 * head : 3 * head + 3] @ w_k[:, 3 * group : 3 * group + 3].T
        squares = np.linalg.svd(product, compute_uv=False) ** 2
        wanted = (np.cumsum(squares) / squares.sum())[:3]
        np.testing.assert_allclose(found.heads[head], wanted)
        total += product
    squares = np.linalg.svd(total, compute_uv=False) ** 2
    np.testing.assert_allclose(found.together, np.cumsum(squares) / squares.sum())


def test_heads_with_one_shared_projection_have_products_of_their_own():
    mixer = CollaborativeAttention(
        Site(width=6, heads=2, max_length=4), key_width=5, mixing="normal"
    ).double()
    nn.init.normal_(mixer.content.weight)
    found = energies(mixer)
    shared = [layer.weight.detach().numpy() for layer in (mixer.q_proj, mixer.k_proj)]
    for head in range(2):
        product = shared[0].T @ np.diag(mixer.mixing[head].detach()) @ shared[1]
        squares = np.linalg.svd(product, compute_uv=False) ** 2
        np.testing.assert_allclose(found.heads[head], (np.cumsum(squares) / squares.sum())[:5])
    model = model_of(CollaborativeAttention).eval()
    rows = rows_of(model, measures=[MapMeasure.locality], within=[11], examples=2)
    assert [r.value for r in rows["attention_within"]] == pytest.approx([1.0, 1.0])


def test_heads_that_share_dimensions_show_it_together_and_not_alone():
    mixer = SoftmaxAttention(Site(width=8, heads=2, max_length=4))
    with torch.no_grad():
        for layer in (mixer.q_proj, mixer.k_proj):
            layer.weight.copy_(torch.cat((torch.eye(4, 8), torch.eye(4, 8))))
    found = energies(mixer)
    assert found.heads[:, 1].tolist() == [0.5, 0.5]
    assert found.together[3] == pytest.approx(1.0)
    assert len(found.together) == 8


def test_similarity_is_the_correlation_of_shares_of_attention_over_heads():
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(4, 24, (3, 60), generator=generator)
    tokens[:, 0] = -1
    real = torch.arange(60) < torch.tensor([[60], [50], [60]])
    reading = AminoAcids()
    weights = random_weights(3, 4, 60, 60) * real[:, None, None]
    reading.add(0, weights[:, :2], KeptTokens(real, tokens))
    reading.add(1, weights[:, 2:], KeptTokens(real, tokens))
    *pairs, agreement = reading.measurements()
    shares = np.zeros((4, 20))
    for head in range(4):
        for letter in range(20):
            held = (tokens == letter + 4).double()[:, None] * real[..., None]
            shares[head, letter] = float((weights[:, head] * held).sum())
    wanted = np.corrcoef((shares / shares.sum(1, keepdims=True)).T)
    letter = AMINO_ACIDS.index
    found = {(r.labels["token"], r.labels["other"]): r for r in pairs}
    assert len(found) == 190
    for (one, other), row in found.items():
        assert row.value == pytest.approx(wanted[letter(one), letter(other)])
    scores = {pair: float(found[pair].labels["score"]) for pair in (("E", "D"), ("Y", "F"))}
    assert scores == {("E", "D"): 2.0, ("Y", "F"): 3.0}
    x = [(float(r.labels["score"]), r.value) for r in pairs]
    assert agreement.value == pytest.approx(np.corrcoef(np.array(x).T)[0, 1])


def test_similarity_needs_heads_to_correlate_over():
    reading = AminoAcids()
    tokens = torch.arange(20)[None] + 4
    reading.add(0, random_weights(1, 2, 20, 20), KeptTokens(tokens > 0, tokens))
    with pytest.raises(Unsupported, match=r"the model has 2 heads in all layers, but 3 are needed"):
        list(reading.measurements())


def test_the_attention_half_of_a_mixer_is_read():
    model = model_of(MixedAttention, depth=2, positions=Positions.none).eval()
    batch = next(iter(Tiny().batches("validation", batch_size=3, seed=0)))
    mixer = model.stack.blocks[0].mixer
    shown = pass_batch(model, {0: mixer.attention.core}, batch)
    called = []
    mixer.attention.core.register_forward_pre_hook(lambda _, given: called.append(given))
    model.run(batch.tokens, batch.keep, None)
    q, k, _, layout = called[0]
    assert isinstance(layout, Layout)
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~layout.keep[:, None, None], -torch.inf)
    torch.testing.assert_close(shown.weights[0], scores.softmax(-1).detach())
    assert torch.equal(shown.rows.real, layout.keep)
    rows = rows_of(model)
    assert {r.labels["layer"] for r in rows["attention_distance"]} == {"0", "1"}
    assert {r.labels["head"] for r in rows["projection_energy"]} == {"0", "all"}


@pytest.mark.parametrize("family", [LightConv, DynamicConv])
def test_kernels_are_those_that_a_convolution_answers_with(family):
    def mixer(site):
        return family(site, kernel=[5], glu=False)

    model = model_of(mixer, positions=Positions.none)
    rows = rows_of(model, measures=[MapMeasure.kernels], examples=4)
    own = model.stack.blocks[0].mixer
    if family is LightConv:
        wanted = own.weight[:, 0].detach().softmax(-1)
        assert not rows["kernel_deviation"]
    else:
        taps = []
        for batch in Tiny().batches("validation", batch_size=1, seed=0):
            if batch.index < 4:
                x = model.stack.blocks[0].mixer_norm(model.embedding(batch.tokens[:, 0]))
                logits = own.kernel_proj(own.in_proj(x[0, batch.keep[0, 0]]))
                taps.append(logits.detach().view(-1, 2, 5).softmax(-1))
        wanted, spread = torch.cat(taps).mean(0), torch.cat(taps).std(0, correction=0)
        for row, own_spread in zip(rows["kernel_deviation"], spread, strict=True):
            np.testing.assert_allclose(row.samples, own_spread, atol=2e-6)
    for row, kernel in zip(rows["kernel_weight"], wanted, strict=True):
        np.testing.assert_allclose(row.samples, kernel, atol=2e-6)
        assert row.value == pytest.approx(float(kernel[2]))
        assert row.labels["left"] == "2"


def test_what_cannot_be_read_says_why():
    rows = rows_of(model_of(Identity), measures=list(MapMeasure))
    assert all(len(own) == 1 and "layer" not in own[0].labels for own in rows.values())
    reasons = {metric: own[0].reason for metric, own in rows.items()}
    assert all(row.status is Status.unsupported for own in rows.values() for row in own)
    assert "Identity computes no attention" in reasons["attention_distance"]
    assert "Identity computes no attention" in reasons["singular_value_share"]
    assert "no layer with one linear map to queries" in reasons["projection_energy"]
    assert "no layer with a convolution" in reasons["kernel_weight"]
    assert "task=tiny has none; choose task=proteins" in reasons["substitution_correlation"]
