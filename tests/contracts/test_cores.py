"""What stands between projections, for every family: sums in half precision, what dropout keeps."""

import copy

import pytest
import torch

from lra.models.mixer import Layout, Site, Unsupported
from lra.models.multi_head import MultiHead
from tests.attention import drawn
from tests.contracts.choices_of_configs import MODELS, STACKS
from tests.contracts.test_variants import VARIANTS

LENGTH, WIDTH, HEADS, DROPPED = 64, 12, 3, 0.25


def built(family, options, *, causal):
    """Return a mixer whose core takes queries, keys and values alone, or None."""
    site = Site(
        width=WIDTH, heads=HEADS, max_length=LENGTH, causal=causal, attention_dropout=DROPPED,
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    torch.manual_seed(0)
    try:
        mixer = MODELS[family](site, **options)
    except Unsupported:
        return None
    plain = isinstance(mixer, MultiHead) and type(mixer).forward is MultiHead.forward
    return mixer.double().eval() if plain else None


CASES = {
    f"{family}-{'-'.join(map(str, [*options.values(), 'causal' if causal else 'both']))}": mixer
    for family in MODELS
    if family not in STACKS
    for options in ({}, *VARIANTS.get(family, ()))
    for causal in (False, True)
    if (mixer := built(family, options, causal=causal)) is not None
}
SINGLE = {
    "based", "big_bird", "cosformer", "h_transformer", "linear", "linformer", "local",
    "nystromformer", "kernelised", "performer", "sinkhorn", "skyformer", "sliding_window",
    "sparse_transformer", "yoso",
}  # fmt: skip
"""Families whose weights stay in float32; others round them, mostly by PyTorch's own attention."""
PERSISTENT = "adaptive_span-9"
"""Whose persistent vectors are as wide as the values."""


@pytest.mark.share(2)
@pytest.mark.parametrize("name", CASES)
def test_sums_of_halves_are_those_of_single_precision(name):
    """One rounding of the result, half a unit in its last place, is all that float32 loses."""
    mixer = CASES[name]
    parts = [(2 * x).bfloat16() for x in mixer.project(drawn(2, LENGTH, WIDTH), Layout())]
    wanted = mixer.core(*(x.detach().double() for x in parts), Layout())
    leaves = [x.detach().requires_grad_() for x in parts]
    core = copy.deepcopy(mixer.core).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        halves = core(*leaves, Layout())
        gradients = torch.autograd.grad(halves.float().square().sum(), leaves)
    assert {x.dtype for x in gradients} == {torch.bfloat16}
    lost = (halves.double() - wanted).norm() / wanted.norm()
    assert lost < (2**-8 if name.partition("-")[0] in SINGLE else 2**-6)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, mixer in CASES.items()
        if mixer.traits.weight_dropout
        and mixer.traits.row_stochastic
        and not name.startswith(PERSISTENT)
    ],
)
def test_dropout_keeps_the_mean_of_every_weight(name):
    """By values of an identity, which make outputs of weights."""
    mixer = copy.deepcopy(CASES[name])
    q, k, v = mixer.project(drawn(2, LENGTH, WIDTH), Layout())
    identity = torch.eye(LENGTH, dtype=torch.float64).expand(2, v.shape[1], -1, -1)
    weights = mixer.core(q, k, identity, Layout())
    torch.manual_seed(0)
    dropped = mixer.core.train()(q, k, identity, Layout())
    alive, real = dropped != 0, weights > 0
    assert 0.72 < alive.sum() / real.sum() < 0.78
    torch.testing.assert_close(dropped[alive], (weights / (1 - DROPPED))[alive])
