"""What the Synthesizer shares and keeps."""

import pytest
import torch

from lra.models.contract.counting import count_operations, fake_tensors, saved_bytes
from lra.models.families.synthesizer import Component, Synthesizer, factors
from lra.models.mixer import Layout, Site, Unsupported
from tests.attention import drawn
from tests.models.families.synthesizer_forms import (
    COMMON,
    EACH,
    MIXTURES,
    WIDTH,
    built,
)


def count(components, batch: int, length: int = 256) -> tuple[int, float]:
    """Operations of the core forward and backward, and numbers kept by the whole layer."""
    with fake_tensors():
        site = Site(width=64, heads=2, max_length=length)
        mixer = Synthesizer(site, components=components)
        x = torch.empty(batch, length, 64, requires_grad=True)
        whole = count_operations(lambda: mixer(x, Layout()).sum().backward())
        kept = saved_bytes(lambda: mixer(x, Layout()), [*mixer.parameters(), *mixer.buffers()])
    return whole - batch * 2 * 6 * length * 64**2, kept / 4


@pytest.mark.parametrize("component", COMMON)
def test_common_logits_are_made_once_for_the_batch(component):
    one, four = (count([component], batch)[0] for batch in (1, 4))
    values = 6 * 256**2 * 64  # forward, and back to the weights and to the values
    again = 3 if component is Component.factorised_random else 0
    made = 8 * 256**2 * 8 * 2 if again else 0
    assert (one, four) == (values + made, 4 * values + made)


@pytest.mark.parametrize("components", EACH + MIXTURES, ids="+".join)
def test_nothing_of_length_by_length_is_kept(components):
    kept = count(components, batch=2)[1]
    assert kept < 26 * 2 * 256 * 64
    assert kept < 2 * 256 * 256 * 2 * 3  # three copies of the logits


def test_two_factors_make_the_length_or_little_more():
    assert [factors(n) for n in (1, 2, 23, 8192, 8193)] == [
        (1, 1), (1, 2), (5, 5), (64, 128), (91, 91)
    ]  # fmt: skip


def test_later_tokens_need_a_state():
    mixer, x = built(Component.dense, causal=True), drawn(2, 3, WIDTH)
    with pytest.raises(Unsupported, match="needs the state of earlier tokens"):
        mixer(x, Layout(start=torch.tensor([4, 4])))
