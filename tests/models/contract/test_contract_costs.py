"""Declared growth: how it is written, that every family's is what is counted, and wrong ones."""

from dataclasses import replace
from functools import partial

import pytest

from lra.models.contract import check_mixer
from lra.models.contract.case import Case, traits_of
from lra.models.contract.costs import check_memory, check_operations, exact_growth, stepped_growth
from lra.models.families.big_bird import BigBird
from lra.models.families.fnet import FNet, Method, MixingForm
from lra.models.families.h_transformer import HTransformer
from lra.models.families.linear import LinearAttention
from lra.models.families.linformer import Linformer, Projection
from lra.models.families.local import LocalAttention
from lra.models.families.longformer import Longformer
from lra.models.families.nystromformer import Inverse, Nystromformer
from lra.models.families.reformer import Reformer
from lra.models.families.sdpa import SDPA
from lra.models.families.sinkhorn import Sinkhorn, Sort, SortNet
from lra.models.families.skyformer import Skyformer
from lra.models.families.softmax import SoftmaxAttention
from lra.models.families.sparse_transformer import HeadUse, SparseTransformer
from lra.models.families.yoso import Yoso, YosoEstimator
from lra.models.mixer import Growth, Site, Traits, Variant
from tests.models.contract.spoilt_mixers import Plain

N, N_LOG, ROOT, SQUARE, CUBE = (
    Growth(1.0), Growth(1.0, log=True), Growth(1.5), Growth(2.0), Growth(3.0)
)  # fmt: skip


@pytest.mark.parametrize(
    ("growth", "text"),
    [
        (N, "n"),
        (N_LOG, "n log n"),
        (ROOT, "n^1.5"),
        (SQUARE, "n²"),
        (Growth(2.0, log=True), "n² log n"),
        (Growth(0.0), "1"),
        (Growth(0.0, log=True), "log n"),
        (Growth(4 / 3), "n^1.33333"),
    ],
    ids=str,
)
def test_a_growth_reads_as_mathematics(growth, text):
    assert str(growth) == text


def test_growths_are_ordered_and_have_a_value():
    assert sorted([SQUARE, N_LOG, ROOT, N]) == [N, N_LOG, ROOT, SQUARE]
    assert [each.at(16) for each in (N, N_LOG, ROOT, SQUARE)] == [16, 64, 64, 256]
    with pytest.raises(ValueError, match=r"0 or more, and finite: got -1\.0"):
        Growth(-1.0)


class Declaring:
    """A family with another declaration; equal to those of the same family, which count alike."""

    def __init__(self, make, **traits: Growth) -> None:
        self.make, self.traits = make, traits
        self.family = repr(make)

    def __call__(self, site: Site):
        mixer = self.make(site)
        mixer.traits = replace(mixer.traits, **self.traits)
        return mixer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Declaring) and other.family == self.family

    def __hash__(self) -> int:
        return hash(self.family)


# --- what is declared is what is counted ----------------------------------------------------


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("make", "operations", "memory", "causal"),
    [
        (partial(Sinkhorn, block=64), SQUARE, SQUARE, False),
        (partial(Sinkhorn, block=64, sort=Sort.topk, top_blocks=2), SQUARE, SQUARE, True),
        (partial(Sinkhorn, block=64, sortcut=2, sort_net=SortNet.attention), SQUARE, SQUARE, False),
        (partial(Sinkhorn, block=64, local_heads=2), N, N, True),
        (partial(Sinkhorn, local_heads=1), ROOT, ROOT, False),
        (partial(Sinkhorn, sortcut=2), ROOT, N, False),
        (partial(Sinkhorn, mixture=True), SQUARE, N, True),
        (partial(Sinkhorn, block=64, variant=Variant.lra), N, N, False),
        (partial(SparseTransformer, stride=64), SQUARE, N, True),
        (partial(SparseTransformer, pattern="strided", head_use="heads"), ROOT, N, True),
        (partial(SparseTransformer, stride=64, head_use=HeadUse.interleave), N, N, False),
        (partial(Reformer, chunk=8), N_LOG, N, True),
        (partial(Reformer, buckets=[64]), N, N, False),
        (partial(Reformer, variant=Variant.lra), SQUARE, N, False),
        (partial(Nystromformer, inverse=Inverse.ridge, conv_kernel=0), N, N, False),
        (partial(Yoso, tau=8), N, N, False),
        (partial(Yoso, mode=YosoEstimator.expectation), SQUARE, N, False),
        (partial(FNet, form=MixingForm.linear), SQUARE, N, False),
        (partial(FNet, method=Method.matmul), SQUARE, N, False),
        (partial(BigBird, variant=Variant.lra), SQUARE, N, True),
        (partial(Linformer, projection=Projection.conv), N, N, False),
        (partial(LocalAttention, variant=Variant.lra), N, N, False),
        (partial(Longformer, window=[64], variant=Variant.lra), N, N, True),
    ],
    ids=lambda each: f"{each.func.__name__} {each.keywords}" if isinstance(each, partial) else None,
)  # fmt: skip
def test_options_decide_the_growth_and_counting_confirms_it(make, operations, memory, causal):
    case = Case(make=Declaring(make), causal=causal)
    traits = traits_of(case.build())
    assert (traits.operations, traits.memory) == (operations, memory)
    assert check_operations(case).passed, check_operations(case).detail
    assert check_memory(case).passed, check_memory(case).detail


# --- wrong declarations ---------------------------------------------------------------------


HALF = Growth(0.5)


WRONG = [
    (SDPA, N, "too small"),
    (SDPA, ROOT, "too small"),
    (SDPA, CUBE, "too large"),
    (SDPA, Growth(2.0, log=True), "a logarithm too many"),
    (LinearAttention, HALF, "too small"),
    (LinearAttention, ROOT, "too large"),
    (LinearAttention, SQUARE, "too large"),
    (LinearAttention, N_LOG, "a logarithm too many"),
    (Nystromformer, Growth(0.774), "too small"),
    (Nystromformer, Growth(1.1), "too large"),
    (Nystromformer, N_LOG, "a logarithm too many"),
    (Skyformer, Growth(0.774), "too small"),
    (Skyformer, N_LOG, "a logarithm too many"),
    (HTransformer, N_LOG, "a logarithm too many"),
    (HTransformer, ROOT, "too large"),
    (FNet, N, "a logarithm too few"),
    (FNet, ROOT, "too large"),
    (FNet, SQUARE, "too large"),
    (Yoso, N, "a logarithm too few"),
    (Yoso, ROOT, "too large"),
    (partial(Yoso, tau=8), N_LOG, "a logarithm too many"),
    (partial(Linformer, projected_length=[256]), SQUARE, "too large"),
    (SparseTransformer, N, "too small"),
    (SparseTransformer, N_LOG, "too small"),
    (SparseTransformer, SQUARE, "too large"),
    (Sinkhorn, N, "too small"),
    (Sinkhorn, N_LOG, "too small"),
    (Sinkhorn, SQUARE, "too large"),
    (partial(Sinkhorn, block=64), ROOT, "too small"),
    (Reformer, ROOT, "too large"),
    (Reformer, HALF, "too small"),
]


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "make",
    dict.fromkeys(make for make, *_ in WRONG),
    ids=lambda each: getattr(each, "__name__", None),
)
def test_wrong_operations_are_refused(make):
    """All of one family in one test: what is counted is remembered."""
    for _, wrong, kind in (each for each in WRONG if each[0] is make):
        seen = check_operations(Case(make=Declaring(make, operations=wrong), causal=False))
        assert not seen.passed, f"{kind}: {seen.detail}"
        assert f"declared {wrong}" in seen.detail


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (SDPA, HALF),
        (SDPA, N_LOG),
        (SDPA, SQUARE),
        (SoftmaxAttention, N),
        (SoftmaxAttention, Growth(2.0, log=True)),
        (Skyformer, Growth(0.8)),
        (Sinkhorn, ROOT),
        (partial(Sinkhorn, block=64), N),
        (HTransformer, N_LOG),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_wrong_memory_is_refused(make, wrong):
    seen = check_memory(Case(make=Declaring(make, memory=wrong), causal=False))
    assert not seen.passed, seen.detail


# --- fits -----------------------------------------------------------------------------------


def counts(function, *powers: int) -> dict[int, int]:
    return {2**power: round(function(2**power)) for power in powers}


def test_what_grows_more_slowly_is_left_out_however_large():
    seen = counts(lambda n: 3 * n + 10**9, 10, 11, 13)
    assert exact_growth(seen, N) == N
    assert exact_growth(seen, Growth(0.1)) == N
    log = counts(lambda n: 3 * n * n.bit_length() + 5000 * n - 10**6, 10, 11, 12, 13)
    assert exact_growth(log, N) == N_LOG
    square = counts(lambda n: n**2 // 4096 + 10**6 * n + 10**9, 10, 11, 12, 13)
    assert exact_growth(square, N) == SQUARE


def test_as_many_terms_as_counts_prove_nothing():
    assert exact_growth(counts(lambda n: n**2, 10, 11, 13), SQUARE) is None


def test_a_count_in_steps_is_told_from_the_next_growth():
    blocks = counts(lambda n: n * -(-n // 700) * 700, 10, 11, 12, 13, 14)
    assert exact_growth(blocks, SQUARE) is None
    assert stepped_growth(blocks, SQUARE)[0] == SQUARE
    assert stepped_growth(blocks, N)[0] == SQUARE


# --- the names before -----------------------------------------------------------------------


def test_the_names_of_growth_before_are_answered_with_those_of_today():
    class Former(Plain):
        def __init__(self, site: Site) -> None:
            super().__init__(site)
            self.traits = Traits(causal=site.causal, operations_exponent=2.0)  # type: ignore[call-arg]

    (finding,) = check_mixer(Former, causal=False)
    assert not finding.passed
    assert "operations_exponent" in finding.detail
    assert "operations=Growth(" in finding.detail


def test_a_number_in_place_of_a_growth_is_refused():
    class Number(Plain):
        traits = Traits(operations=2.0)  # type: ignore[arg-type]

    found = {f.check: f for f in check_mixer(Number, causal=False, max_length=64, width=16)}
    assert "operations is 2.0: wanted a Growth" in found["bidirectional.traits"].detail
    assert not found["bidirectional.traits"].passed
