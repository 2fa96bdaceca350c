"""Norms of a stack: formulas, precision, and what statistics of a batch rule out."""

import dataclasses
from contextlib import nullcontext

import pytest
import torch

from lra.composition.compose import build_model, typed
from lra.composition.hydra_entry import entries
from lra.models.backbone.model import Backbone, Head, NormKind, Padding, Pooling
from lra.models.backbone.norms import ScaleNorm, TokenBatchNorm, norm_of
from lra.models.mixer import Unsupported
from tests.models.backbone.small_backbones import CONFIG, build, facts, tokens

WIDTH = 6
X = torch.randn(3, 5, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
COUNTS = {
    "layer": 2 * WIDTH,
    "rms": WIDTH,
    "scale": 1,
    "batch": 2 * WIDTH,
    "conditional": 2 * WIDTH * (1 + WIDTH),
}


@pytest.mark.parametrize("kind", NormKind)
def test_parameters_of_a_norm_begin_as_nothing(kind):
    norm = norm_of(kind, WIDTH, 1e-5)
    assert sum(parameter.numel() for parameter in norm.parameters()) == COUNTS[kind]
    assert {name: set(value.flatten().tolist()) for name, value in norm.named_parameters()} == {
        name: {1.0 if name == "weight" else 0.0} for name, _ in norm.named_parameters()
    }


def test_one_scale_is_that_of_the_paper():
    norm = ScaleNorm(1e-30).double()
    with torch.no_grad():
        norm.weight.fill_(0.7)
    g = 0.7 * WIDTH**0.5
    torch.testing.assert_close(norm(X), g * X / X.norm(dim=-1, keepdim=True))


@pytest.mark.parametrize("kind", [NormKind.rms, NormKind.scale])
def test_the_mean_square_is_taken_in_float32(kind):
    x = (1000 * X).to(torch.float16)
    norm = norm_of(kind, WIDTH, 1e-5)
    seen = norm.half()(x)
    assert seen.dtype == torch.float16
    torch.testing.assert_close(seen.float(), norm.float()(x.float()), atol=2e-3, rtol=2e-3)


def test_statistics_of_a_batch_are_of_all_positions():
    norm = TokenBatchNorm(WIDTH, 0.3).double().train()
    flat = X.flatten(0, 1)
    mean, variance = flat.mean(0), flat.var(0, correction=0)
    torch.testing.assert_close(norm(X), (X - mean) / (variance + 0.3).sqrt())
    torch.testing.assert_close(norm.running_mean, 0.1 * mean)
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * flat.var(0))
    y = norm.eval()(X)
    torch.testing.assert_close(y, (X - norm.running_mean) / (norm.running_var + 0.3).sqrt())
    assert norm.train()(X[:0]).shape == (0, 5, WIDTH)


def test_in_evaluation_examples_are_independent_again(averaging):
    model = build(averaging, norm=NormKind.batch, pooling=Pooling.mean)
    model.train()(tokens(), torch.zeros(3, dtype=torch.long))
    together, _ = model.predict(tokens())
    alone, _ = model.predict(tokens()[:1])
    assert not torch.allclose(together[:1], alone)
    model.eval()
    torch.testing.assert_close(model.predict(tokens())[0][:1], model.predict(tokens()[:1])[0])
    twin = build(averaging, norm=NormKind.batch, pooling=Pooling.mean, seed=3)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin.predict(tokens())[0], model.predict(tokens())[0])


@pytest.mark.parametrize(
    ("options", "got"),
    [
        ({"residual": "reversible"}, "residual=reversible; leave it at pre_norm"),
        ({"activation_checkpointing": True}, "activation_checkpointing=true; leave it at false"),
        ({"feed_forward_chunks": 2}, "feed_forward_chunks=2; leave it at 1"),
        ({"layer_groups": 1}, "layer_groups=1; leave it at null"),
    ],
)
def test_what_takes_a_batch_apart_is_refused(options, got):
    dataclasses.replace(CONFIG, norm=NormKind.scale, **options)
    with pytest.raises(ValueError, match=f"norm=batch must .* got {got}, or set norm=layer"):
        dataclasses.replace(CONFIG, norm=NormKind.batch, **options)


def test_statistics_of_a_batch_tell_later_tokens(averaging):
    with pytest.raises(Unsupported, match="earlier tokens would depend on later ones"):
        build(averaging, Head.language_modelling, norm=NormKind.batch)


def test_statistics_of_a_batch_count_padding(averaging):
    padded = dataclasses.replace(facts(), padded=True)
    for padding in Padding:
        config = dataclasses.replace(CONFIG, norm=NormKind.batch, padding=padding)
        if padding == Padding.masked:
            with pytest.raises(Unsupported, match=r"choose model\.backbone\.padding=attended"):
                Backbone(config, padded, [averaging], seed=0)
        else:
            Backbone(config, padded, [averaging], seed=0)


STAGED = "runner.stages=[{steps: 5, micro_batch_size: 8}]"


@pytest.mark.parametrize(
    "model",
    ["fnet model.backbone.norm=batch", "nystromformer model.mixer.initialisation=original",
     "skyformer model.mixer.initialisation=original", "performer model.mixer.stabiliser=port"],
)  # fmt: skip
@pytest.mark.parametrize("parting", ["optim.micro_batch_size=8", STAGED, "hardware.processes=2"])
def test_parts_of_a_batch_have_statistics_of_their_own(model, parting):
    words = ["task=mnist", *f"model={model}".split(), "task.source=sample"]
    (whole,) = entries(words)
    (parted,) = entries([*words, parting])
    (by_part,) = entries([*words, parting, "optim.statistics=micro_batch"])
    processes = "processes" in parting  # which share the rows of a micro-batch, too
    with torch.device("meta"):
        build_model(typed(whole.config))
        with pytest.raises(Unsupported, match=r"(size=8|processes=2) splits") as refused:
            build_model(typed(parted.config))
        assert ("optim.statistics=micro_batch" in str(refused.value)) == (not processes)
        with pytest.raises(Unsupported, match="=2 splits") if processes else nullcontext():
            build_model(typed(by_part.config))
