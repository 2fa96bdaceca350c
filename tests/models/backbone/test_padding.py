"""How padding reaches the mixers: masked, or as tokens like all others; the bit of a CLS vector."""

import dataclasses
import functools

import pytest
import torch

from lra.models.backbone.model import Backbone, Padding, Pooling, Positions
from lra.models.families.tlb import TemporalLatentBottleneck
from lra.models.idle import defaults
from lra.models.mixer import Flow, Layout, Unsupported
from tests.contracts.choices_of_configs import CAUSAL_ALONE, MODELS, STACKS
from tests.models.backbone.small_backbones import CONFIG, KEEP, build, facts, tokens

PADDED = dataclasses.replace(facts(), padded=True)
MIXERS = {
    name + suffix: functools.partial(MODELS[name], **options)
    for name in MODELS
    if name not in STACKS | CAUSAL_ALONE
    for suffix, options in {"": {}, "-lra": {"variant": "lra"}}.items()
    if options.keys() <= defaults(MODELS[name]).keys()
}
IGNORE_PADDING = {
    f"{name}-lra"
    for name in ("linear", "linformer", "local", "performer", "reformer", "sinkhorn", "synthesizer")
} | {"fnet"}
"""Those that no mask can keep from padding; Synthesizer's default is dense alone."""


def model_of(mixer, **options) -> Backbone:
    config = dataclasses.replace(CONFIG, depth=1, positions=Positions.sinusoidal, **options)
    return Backbone(config, PADDED, [mixer], seed=0).eval()


@pytest.mark.parametrize("name", MIXERS)
def test_attended_padding_is_tokens_to_any_family(name):
    mixer = MIXERS[name]
    attended = model_of(mixer, padding=Padding.attended, pooling=Pooling.mean_all)
    with_mask, _ = attended.predict(tokens(), KEEP[:, None])
    without, _ = attended.predict(tokens())
    assert torch.equal(with_mask, without)
    if name in IGNORE_PADDING:
        with pytest.raises(Unsupported, match=r"choose model\.backbone\.padding=attended"):
            model_of(mixer, pooling=Pooling.mean_all)
        return
    masked = model_of(mixer, pooling=Pooling.mean)
    changed = tokens().masked_fill(~KEEP[:, None], 9)
    here, there = (masked.predict(given, KEEP[:, None])[0] for given in (tokens(), changed))
    assert torch.equal(here, there)


@pytest.mark.parametrize("pooling", [Pooling.mean, Pooling.mean_all])
def test_a_stack_of_its_own_takes_padding_as_tokens(pooling):
    def of(padding: Padding) -> Backbone:
        config = dataclasses.replace(
            CONFIG, pooling=pooling, positions=Positions.none, padding=padding
        )
        return Backbone(config, PADDED, [], stack=TemporalLatentBottleneck, seed=0).eval()

    attended, masked = of(Padding.attended), of(Padding.masked)
    here, _ = attended.predict(tokens(), KEEP[:, None])
    assert torch.equal(here, masked.predict(tokens())[0])
    assert not torch.allclose(here[1:], masked.predict(tokens(), KEEP[:, None])[0][1:])
    with pytest.raises(Unsupported, match="padding must be masked or attended: got zeroed"):
        of(Padding.zeroed)


@pytest.mark.parametrize("residual", ["pre_norm", "reversible"])
def test_the_cls_vector_is_masked_as_the_first_token(averaging, residual):
    layouts: list[Layout] = []

    class Watching(averaging):
        def extend(self, flow: Flow, layout: Layout) -> Flow:
            layouts.append(layout)
            return super().extend(flow, layout)

    model = build(Watching, cls_keep="first_token", residual=residual)
    keep = KEEP.clone()
    keep[1, 0] = False
    model.predict(tokens(), keep[:, None])
    assert torch.equal(layouts[0].keep, torch.cat((keep[:, :1], keep), 1))
    assert layouts[0].keep[:, 0].tolist() == [True, False, True]
    layouts.clear()
    model.predict(tokens())
    assert layouts[0].keep is None


@pytest.mark.parametrize("name", ["local", "sinkhorn"])
def test_a_mask_is_passed_to_who_hides_other_tokens_by_it(name):
    mixer = functools.partial(MIXERS[f"{name}-lra"], block=3)
    with pytest.raises(Unsupported, match=r"padding=attended, zeroed or passed"):
        model_of(mixer, pooling=Pooling.mean_all)
    passed, attended = (
        model_of(mixer, padding=padding, pooling=Pooling.mean_all)
        for padding in (Padding.passed, Padding.attended)
    )
    here, there = (model.predict(tokens(), KEEP[:, None])[0] for model in (passed, attended))
    assert not torch.allclose(here, there)
    torch.testing.assert_close(passed.predict(tokens())[0], attended.predict(tokens())[0])
    with pytest.raises(Unsupported, match=r"choose model\.backbone\.padding=attended or zeroed,"):
        model_of(MIXERS["linear-lra"], padding=Padding.passed)
