"""A row is reconstructed from its last vector alone, by MAD's decoder."""

import math

import pytest
import torch

from lra.models.backbone.model import Backbone, BackboneConfig, Head, NormKind, TaskFacts
from lra.models.backbone.reconstruction import RowDecoder
from lra.models.families.fnet import FNet
from lra.models.families.sdpa import SDPA
from lra.models.mixer import Unsupported

LENGTH, WIDTH, VOCABULARY = 9, 8, 7


def model_of(mixer=SDPA, *, padded=False, **options) -> Backbone:
    facts = TaskFacts(
        head=Head.reconstruction, vocabulary=VOCABULARY, classes=VOCABULARY, max_length=LENGTH,
        padded=padded,
    )  # fmt: skip
    config = BackboneConfig(depth=1, width=WIDTH, heads=2, tied_embeddings=False, **options)
    return Backbone(config, facts, [mixer], seed=3).double().eval()


def tokens_of(rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, VOCABULARY, (rows, 1, LENGTH), generator=generator)


def literal(decoder: RowDecoder, z: list[float], position: int, *, rms: bool) -> list[float]:
    """One position in plain Python: sinusoid, norm, map, GELU, and so on."""

    def normed(y, norm):
        mean = 0.0 if rms else sum(y) / len(y)
        variance = sum((value - mean) ** 2 for value in y) / len(y)
        shift = [0.0] * len(y) if rms else norm.bias.tolist()
        return [
            (value - mean) / math.sqrt(variance + norm.eps) * scale + moved
            for value, scale, moved in zip(y, norm.weight.tolist(), shift, strict=True)
        ]

    y = []
    for channel, value in enumerate(z):
        angle = position * 10_000 ** -((channel - channel % 2) / len(z))
        y.append(value + (math.cos(angle) if channel % 2 else math.sin(angle)))
    for norm, linear in zip(list(decoder.norms)[:2], decoder.maps, strict=True):
        y = normed(y, norm)
        y = [
            sum(w * value for w, value in zip(line, y, strict=True)) + bias
            for line, bias in zip(linear.weight.tolist(), linear.bias.tolist(), strict=True)
        ]
        y = [value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in y]
    return normed(y, decoder.norms[2])


@pytest.mark.parametrize("norm", [NormKind.layer, NormKind.rms])
def test_the_decoder_is_that_of_the_literal_form(norm):
    decoder = RowDecoder(WIDTH, norm, 1e-5).double()
    generator = torch.Generator().manual_seed(5)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64, generator=generator)
    y = decoder(x, None)
    for row in range(2):
        for position in range(LENGTH):
            expected = literal(decoder, x[row, -1].tolist(), position, rms=norm == NormKind.rms)
            torch.testing.assert_close(y[row, position], torch.tensor(expected).double())


def test_answers_come_from_the_last_vector_alone():
    model, tokens = model_of(), tokens_of(2)
    outputs = []
    model.stack.register_forward_hook(lambda stack, inputs, flow: outputs.append(flow.x))
    logits, _ = model.predict(tokens)
    assert logits.shape == (2, LENGTH, VOCABULARY)
    (grad,) = torch.autograd.grad(logits[:, 0].sum(), outputs[0])
    assert not grad[:, :-1].any()
    assert grad[:, -1].any()
    # The encoder reads every token, also for the answer at the first position.
    for place in range(LENGTH):
        other = tokens.clone()
        other[..., place] = other[..., place] % (VOCABULARY - 1) + 1
        assert (model.predict(other)[0][:, 0] != logits[:, 0]).any(dim=-1).all()


def test_the_last_real_token_of_a_padded_row_counts():
    model, tokens = model_of(padded=True), tokens_of(2)
    keep = torch.ones_like(tokens, dtype=torch.bool)
    keep[1, :, 6:] = False
    logits, _ = model.predict(tokens.where(keep, 0), keep)
    alone, _ = model.predict(tokens[1:, :, :6], keep[1:, :, :6])
    torch.testing.assert_close(logits[1:, :6], alone)


def test_losses_and_asked_positions_are_those_of_the_logits():
    model, tokens = model_of(), tokens_of(3)
    outcome = model(tokens, tokens[:, 0])
    logits, _ = model.predict(tokens)
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), tokens.flatten(), reduction="none"
    )
    torch.testing.assert_close(outcome.nll.flatten(), expected)
    asked = torch.tensor([0, 7, 20])
    part = model(tokens, tokens[:, 0], asked=asked)
    torch.testing.assert_close(part.nll.flatten()[asked], expected[asked])
    assert part.nll.count_nonzero() == 3


def test_what_cannot_reconstruct_is_refused():
    with pytest.raises(Unsupported, match="causal"):
        model_of(FNet)
    with pytest.raises(Unsupported, match="norm=batch"):
        model_of(norm=NormKind.batch)
    with pytest.raises(Unsupported, match="reconstruction"):
        model_of().initial_state(2, 4)
