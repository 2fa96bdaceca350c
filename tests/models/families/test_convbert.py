"""ConvBERT's mixed attention against its equations, token by token and tap by tap."""

from pathlib import Path

import pytest
import torch

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.convbert import MixedAttention
from lra.models.mixer import Layout, Positions
from lra.runners.measurement.parts import cost_by_part
from tests.attention import builder, compare, drawn

LENGTH = 11
built = builder(MixedAttention, heads=4, max_length=32, kernel=5)


def literal(mixer, x, *, causal=False) -> torch.Tensor:
    """Compute the equations, one token and one tap at a time."""
    own, taps, length = mixer.attention, mixer.kernel, x.shape[1]
    left = taps - 1 if causal else taps // 2
    q, k, v = own.q_proj(x), own.k_proj(x), own.v_proj(x)
    c = mixer.values_proj(x)
    width = own.head_width
    out = []
    for i in range(length):
        near = [(t, i + t - left) for t in range(taps) if 0 <= i + t - left < length]
        span = sum(mixer.span[:, 0, t] * x[:, j] for t, j in near)
        logits = mixer.kernel_proj(q[:, i] * mixer.span_proj(span)).view(len(x), -1, taps)
        kernel = logits.softmax(-1)
        heads = []
        for head in range(mixer.heads):
            part = slice(head * width, (head + 1) * width)
            seen = i + 1 if causal else length
            scores = (k[:, :seen, part] @ q[:, i, part, None])[..., 0] / width**0.5
            heads.append((scores.softmax(-1)[..., None] * v[:, :seen, part]).sum(1))
        for head in range(mixer.heads):
            part = slice(head * width, (head + 1) * width)
            heads.append(sum(kernel[:, head, t, None] * c[:, j, part] for t, j in near))
        joined = torch.cat((own.out_proj.weight, mixer.convolved_proj.weight), dim=1)
        out.append(torch.cat(heads, dim=-1) @ joined.T + own.out_proj.bias)
    return torch.stack(out, dim=1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_it_is_the_equations(causal, ratio):
    mixer, x = built(causal=causal, head_ratio=ratio), drawn(2, LENGTH, 12)
    assert mixer.heads == max(1, 4 // ratio)
    x.requires_grad_()
    found, wanted = mixer(x, Layout()), literal(mixer, x, causal=causal)
    compare(found, wanted, [x, *mixer.parameters()])


def test_positions_turn_queries_of_attention_alone():
    turned = built(positions=Positions.rotary, own_head_width=4)
    plain, x = built(own_head_width=4), drawn(1, LENGTH, 12)
    with torch.no_grad():
        for mixer in (turned, plain):
            mixer.attention.out_proj.weight.zero_()
    torch.testing.assert_close(turned(x, Layout()), plain(x, Layout()))


def test_equal_tokens_in_other_places_have_other_kernels():
    mixer, x = built(), drawn(1, 1, 12).repeat(1, LENGTH, 1)
    with torch.no_grad():
        mixer.attention.out_proj.weight.zero_()
    whole = mixer(x, Layout())
    changed = x.clone()
    changed[:, LENGTH // 2 + 4] += 1  # beyond the taps, within those of their tokens' kernels
    reached = (mixer(changed, Layout()) - whole).abs().amax(-1)[0] > 1e-9
    assert reached.nonzero().flatten().tolist() == list(range(LENGTH // 2 + 2, LENGTH))


VOCABULARY, POSITIONS = 30_522, 512
PUBLISHED = [
    ({"width": 256, "heads": 4, "feed_forward_width": 1024, "embedding_width": 128}, 13_143_768),
    ({"width": 384, "heads": 8, "feed_forward_width": 1536, "embedding_width": 128,
      "feed_forward_groups": 2}, 17_475_888),
    ({"width": 768, "heads": 12, "feed_forward_width": 3072}, 105_680_520),
]  # fmt: skip
"""The released models: small, medium-small, base; parameters of transformers' ConvBertModel, which
is the encoder with its embeddings and without a head."""


@pytest.mark.parametrize(("options", "published"), PUBLISHED)
def test_parameters_of_the_released_models(options, published):
    config = BackboneConfig(**options, depth=12, residual="post_norm", norm_epsilon=1e-12)
    facts = TaskFacts(
        head=Head.masked_modelling, vocabulary=VOCABULARY, classes=0, max_length=POSITIONS
    )
    with torch.device("meta"):
        model = Backbone(config, facts, [MixedAttention], seed=0)
    parts = cost_by_part(model, 16).parts
    found = sum(part.modules * part.parameters for part in parts if part.name != "head")
    width, narrow = config.width, config.embedding_width or config.width
    terms = {
        "two kinds of tokens": -2 * narrow,
        "positions of full width": POSITIONS * (width - narrow),
        "norm of full width": 2 * (width - narrow),
    }
    assert found == published + sum(terms.values())
    text = (Path(__file__).parents[3] / "docs" / "model-cost.md").read_text()
    assert f"{published:,} | {found:,}" in text
    for name, number in terms.items():
        assert name in text
        assert f"{abs(number):,}" in text
