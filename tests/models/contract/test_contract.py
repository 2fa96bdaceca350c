"""The kit accepts honest mixers, and what it says; planted faults are in another file."""

import dataclasses
from functools import partial

import pytest
import torch
from torch import nn

from lra.models.backbone.requirements import checked_mixer
from lra.models.contract import CHECKS, Call, Case, check_mixer, repeat, verify
from lra.models.mixer import Growth, Positions, Site, Unsupported
from tests.models.contract.spoilt_mixers import (
    BatchNorm,
    Decoder,
    DenseWindow,
    Encoder,
    Honest,
    IgnoresPadding,
    Plain,
    declaring,
)

pytestmark = pytest.mark.usefixtures("short_counts")
SMALL = {"max_length": 48, "width": 16}


def failures(make, *, causal: bool, **options: object) -> set[str]:
    found = check_mixer(make, causal=causal, **{**SMALL, **options})
    return {finding.check.partition(".")[2] for finding in found if not finding.passed}


@pytest.mark.share(2)
@pytest.mark.parametrize("causal", [False, True])
def test_honest_mixers_pass_and_leave_the_random_state_alone(averaging, causal):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for make in (Honest, averaging):
        found = check_mixer(make, causal=causal, **SMALL)
        assert [finding for finding in found if not finding.passed] == []
        assert len(found) == len(CHECKS) + 1
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.share(2)
@pytest.mark.parametrize("causal", [False, True])
def test_honest_mixers_pass_in_float32(causal):
    assert failures(Honest, causal=causal, dtype=torch.float32) == set()


# --- what a check says ----------------------------------------------------------------------


def test_padding_that_is_not_supported_passes_and_says_so():
    class Open(Honest):
        def __init__(self, site: Site) -> None:
            super().__init__(site)
            self.core = IgnoresPadding(site)
            self.traits = dataclasses.replace(self.traits, supports=frozenset({"start"}))

    case = Case(make=Open, causal=False, **SMALL)
    padding, start = CHECKS["padding"](case), CHECKS["start"](case)
    assert padding.passed
    assert "does not list keep" in padding.detail
    assert not padding.applies
    assert start.passed
    assert start.applies


@pytest.mark.parametrize("max_length", [12, 100])
def test_one_line_repeats_a_failure_that_was_drawn(max_length):
    short = {"max_length": max_length, "width": 16}
    _, detail, _ = CHECKS["batch"](Case(make=BatchNorm, causal=False, **short))
    text, _, line = detail.partition("; in ")
    call = eval(line, {"Call": Call})
    assert call.length <= max_length
    assert repeat(BatchNorm, "batch", call, **short) == ("bidirectional.batch", False, text, True)


# --- declared growth ------------------------------------------------------------------------


def test_a_dense_mask_may_be_declared():
    linear = {"operations": Growth(1.0), "memory": Growth(1.0)}
    make = declaring(DenseWindow, simulated=True, **linear)
    assert all(
        CHECKS[name](Case(make=make, causal=False, **SMALL)).passed
        for name in ("operations", "memory")
    )


# --- form -----------------------------------------------------------------------------------


def test_a_mixer_of_positions_alone_passes():
    assert failures(Plain, causal=False) == set()


def test_a_causal_site_needs_a_causal_mixer():
    assert failures(Plain, causal=True) == {"traits"}


# --- the front door -------------------------------------------------------------------------


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("make", "works", "refused"),
    [(Encoder, "bidirectional", "causal"), (Decoder, "causal", "bidirectional")],
)
def test_one_direction_is_enough(make, works, refused):
    found = {finding.check: finding for finding in verify(make, **SMALL)}
    assert all(finding.passed for finding in found.values())
    assert "looks b" in found[f"{refused}.builds"].detail
    assert found["directions"].detail == f"works {works}"
    assert len(found) == len(CHECKS) + 3


def test_no_direction_is_too_few():
    def never(site: Site) -> nn.Module:
        raise Unsupported("nothing works")

    assert verify(never)[-1] == (
        "directions", False, "works in no direction: wanted one", True,
    )  # fmt: skip


def test_options_must_be_bound():
    class Optional(Plain):
        def __init__(self, site: Site, *, features: int) -> None:
            super().__init__(site)

    (finding,) = check_mixer(Optional, causal=False)
    assert not finding.passed
    assert "functools.partial(Optional, option=...)" in finding.detail
    assert Case(make=partial(Optional, features=3), causal=False).build()


def test_a_function_that_returns_no_module_is_told():
    (finding,) = check_mixer(lambda site: lambda x, layout: x, causal=False)  # type: ignore[arg-type, return-value]
    assert "must be an nn.Module: got function" in finding.detail


@pytest.mark.parametrize(
    "lazy", [nn.LazyLinear(8), nn.LazyBatchNorm1d(affine=False)], ids=["parameters", "buffers"]
)
def test_weights_without_a_shape_are_told_once(lazy: nn.Module):
    class Lazy(Plain):
        def __init__(self, site: Site) -> None:
            super().__init__(site)
            self.lazy = lazy

    (finding,) = check_mixer(Lazy, causal=False)
    assert not finding.passed
    assert "the layer has lazy weights (lazy." in finding.detail
    assert "give their sizes" in finding.detail
    with pytest.raises(ValueError, match="lazy weights"):
        checked_mixer(
            Lazy(Site(width=8, heads=2, max_length=4)), positions=Positions.none, causal=False,
            max_length=4,
        )  # fmt: skip


def test_unknown_dtypes_are_refused():
    with pytest.raises(ValueError, match=r"dtype must be one of .*float64.*: got torch\.float16"):
        check_mixer(Plain, causal=False, dtype=torch.float16)


def test_rotary_is_offered_by_the_honest_mixer():
    site = Site(width=8, heads=2, max_length=4)
    assert Positions.rotary.value in Honest(site).traits.positions
