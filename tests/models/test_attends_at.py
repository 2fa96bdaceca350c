"""Queries and keys at positions of their own: what every family that takes them makes of them."""

import pytest
import torch

from lra.composition.catalogue import choices
from lra.composition.compose import core_of
from lra.composition.yaml_text import load
from lra.models.mixer import INSIDE, Layout, Positions, Site, Unsupported
from lra.models.positions import At, Spacing

LENGTH, WIDTH = 12, 8
HERE = Spacing()


@pytest.fixture(scope="module")
def mixers():
    """Return every mixer that attends at positions, by family and encoding, as it is drawn."""
    found = {}
    for file in choices("model", []):
        node = load(file)
        if "mixer" not in node:
            continue
        (make,), _, _ = core_of(node, [], file.stem)
        for positions in (Positions.none, *sorted(INSIDE)):
            try:
                torch.default_generator.manual_seed(0)
                mixer = make(Site(width=WIDTH, heads=2, max_length=LENGTH, positions=positions))
            except (Unsupported, ValueError):
                continue
            offered = positions not in INSIDE or positions.value in mixer.traits.positions
            if offered and getattr(mixer, "attends_at", False):
                found[f"{file.stem}, {positions}"] = mixer.double().eval()
    return found


def test_exact_attention_is_among_them_with_every_encoding(mixers):
    for family in ("softmax", "sdpa", "funnel", "transformer_xl"):
        assert {f"{family}, {positions}" for positions in INSIDE} < mixers.keys()
    assert "linear, rotary" in mixers
    assert not any(name.startswith(("cosformer", "linformer", "fnet")) for name in mixers)


def test_every_other_query_gets_what_it_got_among_all(mixers):
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    keep = torch.arange(LENGTH) < torch.tensor([[LENGTH], [7]])
    real = keep[:, ::2, None]
    for name, mixer in mixers.items():
        wanted = mixer(x, Layout(keep=keep))[:, ::2]
        found = mixer.attend(
            x[:, ::2], Layout(keep=keep[:, ::2]), x, Layout(keep=keep), At(Spacing(0, 2), HERE)
        )
        close(found.where(real, 0.0), wanted.where(real, 0.0), name)


def test_tokens_three_apart_are_those_with_padding_between(mixers):
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    keep = (torch.arange(LENGTH) % 3 == 0).expand(2, -1)
    near, steps = x[:, ::3], Spacing(0, 3)
    for name, mixer in mixers.items():
        wanted = mixer(x, Layout(keep=keep))[:, ::3]
        close(mixer.attend(near, Layout(), near, Layout(), At(steps, steps)), wanted, name)


def close(found, wanted, name):
    torch.testing.assert_close(found, wanted, msg=lambda text: f"{name}: {text}")


def test_who_does_not_attend_at_positions_says_so():
    make = core_of(load(next(f for f in choices("model", []) if f.stem == "cosformer")), [], "x")[0]
    mixer, x = make[0](Site(width=WIDTH, heads=2, max_length=LENGTH)), torch.zeros(1, 4, WIDTH)
    with pytest.raises(
        Unsupported, match=r"Cosformer counts positions itself.* that the caller gives"
    ):
        mixer.attend(x, Layout(), x, Layout(), At(HERE, HERE))
