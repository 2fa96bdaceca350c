"""Long-short range attention is softmax attention and a convolution, side by side."""

from pathlib import Path

import pytest
import torch

from lra.models.backbone.encoder_decoder import DecoderBlock
from lra.models.backbone.networks import FeedForward
from lra.models.backbone.stack import Stack, TransformerBlock
from lra.models.contract.counting import count_operations
from lra.models.families.lite_transformer import LongShortRangeAttention
from lra.models.families.sdpa import SDPA
from lra.models.mixer import Flow, Layout, Site
from lra.models.ops.convolution.blocks import BLOCK
from tests.attention import drawn


def test_projections_cost_half_of_those_of_attention_and_a_gate():
    def of_projections(mixer, width: int) -> int:
        # What does not grow with the square of the width is taken off by widths of 1 and 2 times.
        return count_operations(lambda: mixer(drawn(1, 32, width), Layout()))

    half, whole = (
        of_projections(
            LongShortRangeAttention(
                Site(width=width, heads=1, max_length=32), convolution="light", kernel=[1]
            ).double(),
            width,
        )
        for width in (64, 128)
    )
    # a n d^2 + b d: attention's scores and the convolution grow with the width alone
    square = (whole - 2 * half) / 2
    assert square == 32 * 64**2 * (2 * 4 / 4 + 2 * (2 + 1) / 4)


KERNELS = [3, 7, 15, 31, 31, 31]
TOKENS = 30
"""Of the source, and of the target: what the paper counts multiply-adds for."""
PUBLISHED = [(200, 90.7, 90), (408, 360.6, 360), (496, 528.7, 527)]
"""Widths of the translation models, multiply-adds by the layers of the released code, and as the
paper prints them, in millions."""


def translation(width: int, *, causal: bool) -> list[LongShortRangeAttention]:
    return [
        LongShortRangeAttention(
            Site(width=width, heads=4, max_length=64, causal=causal, layer=layer, depth=6),
            kernel=KERNELS,
        )
        for layer in range(6)
    ]


def in_blocks(taps: int, channels: int) -> int:
    """Return what a convolution in blocks multiplies beyond its taps, for one sentence."""
    blocks = -(-(TOKENS + taps - 1) // BLOCK)
    return (blocks * BLOCK * (BLOCK + taps - 1) - TOKENS * taps) * channels


@pytest.mark.parametrize(("width", "counted", "printed"), PUBLISHED)
def test_multiply_adds_of_the_published_translation_models(width, counted, printed):
    """Encoder and decoder without embeddings and output, 30 tokens each."""
    flat = {"width": width, "feed_forward_width": width, "dropout": 0.0}
    with torch.device("meta"):
        relu = {**flat, "feed_forward": FeedForward.relu}
        encoder = Stack(
            [TransformerBlock(mixer, **relu) for mixer in translation(width, causal=False)],
            width=width,
        ).eval()
        across = Site(width=width, heads=4, max_length=64)
        decoder = [
            DecoderBlock(mixer, SDPA(across), **flat).eval()
            for mixer in translation(width, causal=True)
        ]
        x = torch.empty(1, TOKENS, width)

    def call() -> None:
        source, flow = encoder(Flow(x), Layout()).x, Flow(x)
        for block in decoder:
            flow = block(flow, Layout(), source, Layout())

    with torch.no_grad():
        found = count_operations(call) // 2
    found -= 2 * sum(in_blocks(taps, width // 2) for taps in KERNELS)
    assert round(found / 1e6, 1) == counted
    assert found == pytest.approx(printed * 1e6, rel=0.01)
    text = (Path(__file__).parents[3] / "docs" / "model-cost.md").read_text()
    assert f"{found:,}" in text
