"""An encoder-decoder behind a prefix: literal form, padding, look-ahead, greedy decoding."""

from functools import partial

import pytest
import torch

from lra.models.backbone.encoder_decoder import encoder_decoder
from lra.models.backbone.model import Backbone, BackboneConfig, Head, Positions, TaskFacts
from lra.models.families.fnet import FNet
from lra.models.families.linear import LinearAttention
from lra.models.families.longformer import Longformer
from lra.models.families.sdpa import SDPA
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Flow, Layout, Unsupported

VOCABULARY, SOURCE, TARGET = 9, 6, 5
WINDOW = partial(Longformer, window=[2])


def model_for(family, *, vary: bool = True, **options) -> Backbone:
    """Build a model of 2 layers and a decoder of 1, with every parameter moved off its start."""
    given = {
        "depth": 2, "decoder_depth": 1, "width": 8, "heads": 2, "feed_forward_width": 12,
        "positions": Positions.learned, "decoder_mixer": "exact",
    }  # fmt: skip
    config = BackboneConfig(**given | options)
    facts = TaskFacts(
        head=Head.sequence_to_sequence, vocabulary=VOCABULARY, classes=VOCABULARY,
        max_length=SOURCE + TARGET, padded=vary, masks=frozenset({"prefix"}),
        source_length=SOURCE, target_length=TARGET, sources_vary=vary,
    )  # fmt: skip
    stack = partial(encoder_decoder, mixers=[family], exact=SDPA, facts=facts)
    model = Backbone(config, facts, [], stack=stack, seed=1).double().eval()
    with torch.no_grad():
        generator = torch.Generator().manual_seed(4)
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens, what is real, and the prefixes of rows of several lengths."""
    generator = torch.Generator().manual_seed(2)
    prefix, ends = torch.tensor([6, 3, 0]), torch.tensor([11, 6, 4])
    keep = torch.arange(SOURCE + TARGET) < ends[:, None]
    tokens = torch.randint(1, VOCABULARY, keep.shape, generator=generator).where(keep, 0)
    return tokens[:, None], keep[:, None], prefix


@pytest.mark.parametrize("family", [SoftmaxAttention, WINDOW, LinearAttention])
def test_each_row_is_its_source_encoded_and_the_rest_decoded(family) -> None:
    """Against encoder and decoder called by hand, on one row without padding after another."""
    model, (tokens, keep, prefix) = model_for(family), rows()
    stack = model.stack
    logits, _ = model.predict(tokens, keep, layout=Layout(prefix=prefix))
    for row, cut in enumerate(prefix.tolist()):
        real = tokens[row, 0, : int(keep[row].sum())]
        source, rest = (
            model.embedding(ids) * model.input_scale + model.positions.table[: len(ids)]
            for ids in (real[:cut], real[cut:])
        )
        seen = torch.zeros(1, 1, 8, dtype=torch.float64), Layout(keep=torch.zeros(1, 1).bool())
        if cut:
            seen = stack.encoder(Flow(source[None]), Layout()).x, Layout()
        flow = Flow(rest[None])
        for block in stack.decoder:
            flow = block(flow, Layout(), *seen)
        wanted = model.head(stack.norm(flow.x))[0]
        torch.testing.assert_close(logits[row, cut : len(real)], wanted, atol=1e-10, rtol=0)


@pytest.mark.parametrize("options", [{}, {"decoder_mixer": "family", "positions": "rotary"}])
def test_answers_see_the_source_and_what_stands_before_them(options) -> None:
    model, (tokens, keep, prefix) = model_for(SoftmaxAttention, **options), rows()
    facts = Layout(prefix=prefix)
    plain, _ = model.predict(tokens, keep, layout=facts)
    for row, cut in enumerate(prefix.tolist()):
        length = int(keep[row].sum())
        for changed in range(length):
            other = tokens.clone()
            other[row, 0, changed] = other[row, 0, changed] % (VOCABULARY - 1) + 1
            moved = (model.predict(other, keep, layout=facts)[0] - plain).abs().amax(-1) > 0
            assert not moved[torch.arange(3) != row].any()
            wanted = [place for place in range(cut, length) if changed < cut or changed <= place]
            assert moved[row, cut:length].nonzero().flatten().add(cut).tolist() == wanted


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        (FNet, {}, "cannot exclude padding"),
        (FNet, {"vary": False, "decoder_mixer": "family"}, "has no causal form"),
        (SoftmaxAttention, {"residual": "post_norm"}, "model.backbone.residual must be pre_norm"),
        (LinearAttention, {"positions": "alibi"}, "does not support alibi positions"),
    ],
)
def test_what_an_encoder_decoder_cannot_be(family, options, message) -> None:
    with pytest.raises(Unsupported, match=message):
        model_for(family, **options)


def test_it_has_no_state_and_needs_its_prefix() -> None:
    model, (tokens, keep, _) = model_for(SoftmaxAttention), rows()
    with pytest.raises(Unsupported, match="no state that continues from token to token"):
        model.initial_state(3, 8)
    with pytest.raises(Unsupported, match="needs batches with prefix"):
        model.predict(tokens, keep)
    with pytest.raises(ValueError, match="pass stack=encoder_decoder"):
        Backbone(model.config, model.facts, [SDPA], seed=0)
