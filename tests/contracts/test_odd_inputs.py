"""Models take batches without rows; every choice of a family bears wild padding, long vectors."""

import contextlib
from itertools import product

import pytest
import torch

from lra.models.backbone.model import Backbone, BackboneConfig, Head, Pooling, Residual, TaskFacts
from lra.models.mixer import Flow, Layout, Positions, Site, Unsupported
from lra.models.multi_head import MultiHead
from tests.contracts.choices_of_configs import MODELS, SPELT, STACKS
from tests.contracts.test_backbones import with_source

LENGTH, WIDTH = 100, 16
FEW = {"Performer": {"features": 16}, "MesaNet": {"steps": 3}}
"""Options whose default takes long, and is no matter here."""
MIXERS = [family for name, family in MODELS.items() if name not in STACKS]
VARIANTS = {family.__name__: (family, {}) for family in MIXERS} | {
    f"{family.__name__}-{name}={choice.value}": (family, {name: [choice] if several else choice})
    for family, name, _, several, choice in SPELT
    if family in MIXERS
}
FAMILIES = pytest.mark.parametrize("variant", VARIANTS)
"""Each in both directions in one test: hundreds of them take a few milliseconds."""


def built(variant, *, causal, **facts):
    """Return a mixer, or None where its options and the site do not go together."""
    family, options = VARIANTS[variant]
    options = {**FEW.get(family.__name__, {}), **options}
    site = Site(
        width=WIDTH, heads=2, max_length=LENGTH, causal=causal,
        generator=torch.Generator().manual_seed(1), **facts,
    )  # fmt: skip
    torch.manual_seed(0)
    try:
        return family(site, **options)
    except ValueError:
        return None


def directions(variant, **facts):
    """Return the mixers of both directions, or of those that there are."""
    mixers = (built(variant, causal=causal, **facts) for causal in (False, True))
    return [mixer for mixer in mixers if mixer is not None]


def drawn(*shape, seed=2):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def some_kept(rows=3):
    ends = torch.tensor([LENGTH, LENGTH // 2, 7, 1])[:rows]
    return torch.arange(LENGTH) < ends[:, None]


def test_there_are_variants():
    built_ones = [variant for variant in VARIANTS if directions(variant)]
    assert {family.__name__ for family in MIXERS} <= {*built_ones}
    assert len(built_ones) > 0.9 * len(VARIANTS)  # some choices need another option beside them
    assert len(built_ones) > 80


@pytest.mark.share(2)
@pytest.mark.parametrize("residual", [*Residual])
@pytest.mark.parametrize("head", [*Head])
def test_a_model_takes_a_batch_without_rows(head, residual):
    asks = head == Head.permutation_modelling
    masks = frozenset({"order"} if asks else ())
    facts = TaskFacts(head=head, vocabulary=11, classes=3, max_length=12, padded=True, masks=masks)
    layout = Layout(
        order=torch.zeros(0, 12, dtype=torch.long) if asks else None, uniform=torch.zeros(0, 12)
    )
    pooled = Pooling if head in {Head.classification, Head.pair} else [Pooling.cls]
    for positions, pooling in product((*Positions,)[:4], pooled):
        frame = BackboneConfig(
            depth=1, width=16, feed_forward_width=8,
            residual=residual, positions=positions, pooling=pooling,
        )  # fmt: skip
        mixers = [MODELS["sdpa" if asks else "performer"]]
        if asks and residual in {Residual.reversible, Residual.attention}:
            with pytest.raises(Unsupported, match="residual=pre_norm"):
                Backbone(frame, facts, mixers, seed=0)
            continue
        model = Backbone(frame, facts, mixers, seed=0)
        parts = 2 if head == Head.pair else 1
        tokens = torch.zeros(0, parts, 12, dtype=torch.long)
        target = tokens[:, 0] if model.per_token else tokens[:, 0, 0]
        keep = None if model.causal else torch.ones(0, parts, 12, dtype=torch.bool)
        outcome = model(tokens, target, keep, layout=layout)
        assert outcome.nll.shape == target.shape
        outcome.nll.sum().backward()
        assert model.predict(tokens, keep, layout=layout)[0].shape[0] == 0
        if head == Head.reconstruction:  # its rows are read whole
            with pytest.raises(Unsupported, match="continues from token to token"):
                model.initial_state(0, 12)
        elif model.causal:
            state = model.initial_state(0, 12)
            found, _ = model.predict(tokens[..., :5], state=state)
            assert found.shape == (0, 5, 11)


@pytest.mark.parametrize("name", sorted(STACKS))
def test_every_stack_takes_a_batch_without_rows(name):
    facts = TaskFacts(head=Head.classification, vocabulary=11, classes=3, max_length=12)
    frame = BackboneConfig(depth=1, width=16, pooling=Pooling.mean, positions=Positions.sinusoidal)
    sourced = name == "rnnsearch"
    facts = with_source(facts) if sourced else facts
    model = Backbone(frame, facts, [], stack=MODELS[name], seed=0)
    tokens = torch.zeros(0, 1, 12, dtype=torch.long)
    target = tokens[:, 0] if sourced else tokens[:, 0, 0]
    outcome = model(tokens, target, layout=Layout(prefix=tokens[:, 0, 0] if sourced else None))
    outcome.nll.sum().backward()
    assert outcome.nll.shape == target.shape


@pytest.mark.share(4)
@FAMILIES
def test_what_stands_in_padding_reaches_nothing(variant):
    for mixer in directions(variant):
        if "keep" in mixer.traits.supports:
            compare_padding(mixer)


def compare_padding(mixer):
    keep = some_kept()
    quiet = drawn(3, LENGTH, WIDTH)
    loud = torch.where(keep[..., None], quiet, 1e4 * drawn(3, LENGTH, WIDTH, seed=3))
    cotangent = drawn(3, LENGTH, WIDTH, seed=4)

    def run(x):
        x = x.clone().requires_grad_()
        torch.manual_seed(5)
        y = mixer(x, Layout(keep=keep)).masked_fill(~keep[..., None], 0.0)
        parameters = [p for p in mixer.parameters() if p.requires_grad]
        return [y, *torch.autograd.grad(y, [x, *parameters], cotangent, allow_unused=True)]

    for found, wanted in zip(run(loud), run(quiet), strict=True):
        if wanted is not None:
            assert found.isfinite().all()
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("variant", [family.__name__ for family in MIXERS])
def test_a_state_belongs_to_full_rows_of_what_looks_back_alone(variant):
    x = torch.zeros(2, 3, WIDTH)
    keep = torch.ones(2, 3, dtype=torch.bool)
    for mixer in directions(variant):
        if not hasattr(mixer, "initial_state"):
            continue
        if not mixer.traits.causal:
            for ask in (
                lambda m: m.initial_state(2, 8),
                lambda m: m.extend(Flow(x, (x,)), Layout()),
            ):
                with pytest.raises(
                    Unsupported, match=r"that attends to later tokens .*causal=True"
                ):
                    ask(mixer)
            continue
        with contextlib.suppress(Unsupported):
            flow = Flow(x, mixer.initial_state(2, 8))
            with pytest.raises(ValueError, match="only rows without padding: pass keep=None"):
                mixer.extend(flow, Layout(keep=keep))


def give_ones(mixer):
    """Let every value be 1, so that the outputs are the sums of the rows' weights."""
    with torch.no_grad():
        mixer.v_proj.weight.zero_()
        mixer.v_proj.bias = torch.nn.Parameter(torch.ones(mixer.v_proj.out_features))
        mixer.out_proj.weight.copy_(torch.eye(WIDTH))
        mixer.out_proj.bias = None


@pytest.mark.share(4)
@FAMILIES
def test_long_vectors_leave_weighted_means_what_they_are(variant):
    for mixer in directions(variant):
        if isinstance(mixer, MultiHead) and mixer.traits.row_stochastic:
            look_at_means(mixer)


def look_at_means(mixer):
    masks = [None, some_kept()] if "keep" in mixer.traits.supports else [None]
    tried = [(size, keep) for size in (10, 100) for keep in masks]
    learned = [p for p in mixer.parameters() if p.requires_grad]
    for size, keep in tried:
        x = (size * drawn(3, LENGTH, WIDTH)).requires_grad_()
        y = mixer(x, Layout(keep=keep))
        real = slice(None) if keep is None else keep
        gradients = torch.autograd.grad(y[real].sum(), [x, *learned], materialize_grads=True)
        assert all(gradient.isfinite().all() for gradient in gradients)
    give_ones(mixer.eval())
    for size, keep in tried:
        with torch.no_grad():
            sums = mixer(size * drawn(3, LENGTH, WIDTH), Layout(keep=keep))
        real = slice(None) if keep is None else keep
        # Joined parts of a row agree on their references to the rounding of the scores.
        assert (sums[real] - 1).abs().max() < 2e-7 * max(100, size**2)
