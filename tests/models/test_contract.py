"""The kit accepts honest mixers, and names the defect of each that was spoilt on purpose."""

import dataclasses
import itertools
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from models.contract import CHECKS, check_mixer, verify
from models.mixer import Flow, Layout, Positions, Site, State, Traits, Unsupported
from models.multi_head import MultiHead

SMALL = {"max_length": 128, "width": 16}


class KernelCore(nn.Module):
    """Attention by positive features exp(x), written out; a state when causal."""

    def __init__(self, site: Site, **traits: object) -> None:
        super().__init__()
        told = {"operations_exponent": 2.0, "memory_exponent": 2.0, "row_stochastic": True}
        self.traits = Traits(causal=site.causal, **{**told, **traits})  # type: ignore[arg-type]

    def features(self, x: Tensor) -> Tensor:
        return x.exp()

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        ones = q.new_ones(q.shape[2], q.shape[2])
        return ones.tril() if self.traits.causal else ones

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        weight = self.features(q) @ self.features(k).mT * self.seen(q, layout)
        if layout.keep is not None:
            weight = weight * layout.keep[:, None, None]
        return weight @ v / weight.sum(-1, keepdim=True).clamp(min=1e-30)

    def initial_state(self, shape: tuple[int, ...], like: Tensor) -> State:
        b, h, _, k, v = shape
        if not self.traits.causal:
            raise Unsupported("looks both ways")
        return like.new_zeros(b, h, k, v), like.new_zeros(b, h, k)

    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        (sums, norm), q, k = state, self.features(q), self.features(k)
        local = (q @ k.mT).tril()
        top = q @ sums + local @ v
        o = top / ((q @ norm[..., None]) + local.sum(-1, keepdim=True))
        return o, (sums + k.mT @ v, norm + k.sum(2))


class Honest(MultiHead):
    core_class: type[KernelCore] = KernelCore

    def __init__(self, site: Site) -> None:
        super().__init__(site, self.core_class(site))


def failures(make, *, causal: bool, **options: object) -> set[str]:
    found = check_mixer(make, causal=causal, **{**SMALL, **options})
    return {finding.check.partition(".")[2] for finding in found if not finding.passed}


def with_core(core: type[KernelCore]) -> type[Honest]:
    return type(core.__name__, (Honest,), {"core_class": core})


@pytest.mark.parametrize("causal", [False, True])
def test_honest_mixers_pass(averaging, causal):
    for make in (Honest, averaging):
        found = check_mixer(make, causal=causal)
        assert [finding for finding in found if not finding.passed] == []
        assert len(found) == len(CHECKS) + 1


@pytest.mark.parametrize("causal", [False, True])
def test_honest_mixers_pass_in_float32(causal):
    assert failures(Honest, causal=causal, dtype=torch.float32) == set()


# --- leaks from the future ------------------------------------------------------------------


class Peeking(KernelCore):
    """Each token sees one step ahead."""

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        return q.new_ones(q.shape[2], q.shape[2]).tril(1)


class GlobalMaximum(KernelCore):
    """Keys are shifted by their largest value in the whole sequence: cancels but for the 1e-6."""

    def features(self, x: Tensor) -> Tensor:
        return (x - x.amax(2, keepdim=True).detach()).exp() + 1e-6


class FutureScale(nn.Module):
    """Causal sums, scaled by a statistic of the whole sequence."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.linear = nn.Linear(site.width, site.width)
        self.traits = Traits(causal=site.causal, honours=frozenset({"start"}))

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.linear(x).cumsum(1) / (1 + 1e-6 * x.square().mean((1, 2), keepdim=True))


@pytest.mark.parametrize(
    "make",
    [with_core(Peeking), with_core(GlobalMaximum), FutureScale],
    ids=lambda make: make.__name__,
)
def test_leaks_from_the_future_are_found(make):
    assert "no_lookahead" in failures(make, causal=True)


def test_the_detached_maximum_hides_from_gradients_but_not_from_outliers():
    found = check_mixer(with_core(GlobalMaximum), causal=True, **SMALL)
    (finding,) = [finding for finding in found if finding.check == "causal.no_lookahead"]
    assert "outliers from token" in finding.detail


# --- neighbours and padding -----------------------------------------------------------------


class BatchMaximum(KernelCore):
    """The largest value of the whole batch decides how much a constant counts."""

    def features(self, x: Tensor) -> Tensor:
        return (x - x.amax()).exp() + 1e-4


class BatchNorm(nn.Module):
    def __init__(self, site: Site) -> None:
        super().__init__()
        self.linear = nn.Linear(site.width, site.width)
        self.traits = Traits()

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.linear(x - x.mean((0, 1)))


@pytest.mark.parametrize("make", [with_core(BatchMaximum), BatchNorm], ids=lambda m: m.__name__)
def test_dependence_on_neighbours_is_found(make):
    assert "batch" in failures(make, causal=False)


class IgnoresPadding(KernelCore):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return super().forward(q, k, v, Layout())


class ZeroedPadding(KernelCore):
    """Values are zeroed, but padding still counts in the norm."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        if layout.keep is not None:
            v, k = (t * layout.keep[:, None, :, None] for t in (v, k))
        return super().forward(q, k, v, Layout())


@pytest.mark.parametrize("core", [IgnoresPadding, ZeroedPadding], ids=lambda core: core.__name__)
def test_padding_that_counts_is_found(core):
    assert "padding" in failures(with_core(core), causal=False)


def test_padding_that_is_not_honoured_passes_and_says_so():
    class Open(Honest):
        def __init__(self, site: Site) -> None:
            super().__init__(site)
            self.core = IgnoresPadding(site)
            self.traits = dataclasses.replace(self.traits, honours=frozenset({"start"}))

    found = {finding.check: finding for finding in check_mixer(Open, causal=False, **SMALL)}
    assert all(finding.passed for finding in found.values())
    assert "leaves out keep" in found["bidirectional.padding"].detail


class MaskedToNaN(KernelCore):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        scores = q @ k.mT
        if layout.keep is not None:
            scores = scores.masked_fill(~layout.keep[:, None, None], -torch.inf)
        return scores.softmax(-1) @ v


def test_rows_of_padding_alone_that_give_nan_are_found():
    assert failures(with_core(MaskedToNaN), causal=False) >= {"masked_rows"}


# --- gradients and randomness ---------------------------------------------------------------


class Unused(Honest):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.forgotten = nn.Parameter(torch.ones(2))


class Detached(Honest):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        q, k, v = self.project(x, layout)
        return self.merge(self.core(q.detach(), k, v, layout))


class InfiniteSlope(Honest):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout) + (self.out_proj.bias * 0).abs().sqrt()


@pytest.mark.parametrize("make", [Unused, Detached, InfiniteSlope], ids=lambda make: make.__name__)
def test_missing_or_infinite_gradients_are_found(make):
    assert "gradients" in failures(make, causal=False)


class Noisy(Honest):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout) + 1e-12 * torch.randn_like(x)


class OwnClock(Honest):
    """Draws its parameters from a source that the seed does not reach."""

    ticks = itertools.count()

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        nn.init.constant_(self.q_proj.weight, 1 / (100 + next(self.ticks)))


@pytest.mark.parametrize("make", [Noisy, OwnClock], ids=lambda make: make.__name__)
def test_what_does_not_repeat_is_found(make):
    assert "repeatable" in failures(make, causal=False)


class OwnGenerator(Honest):
    """Drops weights in training, from a generator that recomputation does not wind back."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.generator = site.generator

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if self.training:
            x = x * torch.randn(x.shape, generator=self.generator).to(x)
        return super().forward(x, layout)


def test_draws_that_recomputation_cannot_repeat_are_found():
    assert failures(OwnGenerator, causal=False) == {"recomputation"}


# --- along time -----------------------------------------------------------------------------


class Forgetful(KernelCore):
    """Leaves the last token of each piece out of the state."""

    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        o, after = super().extend(q, k, v, layout, state)
        _, wrong = super().extend(q[:, :, :-1], k[:, :, :-1], v[:, :, :-1], layout, state)
        return o, wrong if q.shape[2] > 1 else after


class Growing(KernelCore):
    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        o, (sums, norm) = super().extend(q, k, v, layout, (state[0], state[1][:, :, : q.shape[-1]]))
        return o, (sums, torch.cat((norm, norm), 2))


class Cutting(KernelCore):
    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        return super().extend(q, k, v, layout, tuple(part.detach() for part in state))


class BatchLast(KernelCore):
    def initial_state(self, shape: tuple[int, ...], like: Tensor) -> State:
        return tuple(part.movedim(0, -1) for part in super().initial_state(shape, like))

    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        o, after = super().extend(q, k, v, layout, tuple(part.movedim(-1, 0) for part in state))
        return o, tuple(part.movedim(0, -1) for part in after)


class Stopped(Honest):
    """Rotates every piece as if the stream began there."""

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        return super().extend(flow, layout._replace(start=None))


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (with_core(Forgetful), {"extend", "history"}),
        (with_core(Growing), {"state"}),
        (with_core(Cutting), {"history"}),
        (with_core(BatchLast), {"state"}),
        (Stopped, {"extend"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_wrong_states_are_found(make, wanted):
    assert failures(make, causal=True) == wanted


# --- declared growth ------------------------------------------------------------------------


def declaring(core: type[KernelCore] = KernelCore, **traits: object) -> type[Honest]:
    class Declared(Honest):
        def __init__(self, site: Site) -> None:
            MultiHead.__init__(self, site, core(site, **traits))

    return Declared


class DenseWindow(KernelCore):
    """A band of 16, by a mask over all scores."""

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        return super().seen(q, layout).triu(-15).tril(15)


def test_a_wrong_exponent_is_found(averaging):
    assert failures(declaring(operations_exponent=1.0), causal=False) == {"operations"}
    assert failures(declaring(memory_exponent=1.5), causal=False) == {"memory"}

    class Modest(averaging):
        def __init__(self, site: Site) -> None:
            super().__init__(site)
            self.traits = Traits(causal=site.causal, operations_exponent=2.0)

    assert failures(Modest, causal=False) == {"operations"}


def test_a_dense_mask_must_be_declared():
    linear = {"operations_exponent": 1.0, "memory_exponent": 1.0}
    found = check_mixer(declaring(DenseWindow, **linear), causal=False, **SMALL)
    wrong = {finding.check: finding.detail for finding in found if not finding.passed}
    assert set(wrong) == {"bidirectional.operations", "bidirectional.memory"}
    assert "needs traits.simulated=True" in wrong["bidirectional.memory"]
    assert failures(declaring(DenseWindow, simulated=True, **linear), causal=False) == set()


# --- form -----------------------------------------------------------------------------------


class Plain(nn.Module):
    """Position-wise; what each test below spoils."""

    traits = Traits()

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.linear = nn.Linear(site.width, site.width)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.linear(x)


class Narrowing(Plain):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout).float()


class NeedsTwo(Plain):
    """Divides by a deviation that one token does not have."""

    traits = Traits(honours=frozenset())

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        deviation = (x - x.mean(1, keepdim=True)).square().sum(1, keepdim=True)
        return super().forward(x, layout) * x / (deviation / (x.shape[1] - 1)).sqrt()


class Bytes(Plain):
    """Reads its weights at construction, which have no contents on the meta device."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.scale = self.linear.weight.abs().max().item()


class Overflowing(Plain):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout) * 1e300 * 1e-300


class UnknownFact(Plain):
    traits = Traits(honours=frozenset({"keep", "mask"}))


class SumsToMore(KernelCore):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return super().forward(q, k, v, layout) * 1.001


class Raises(Plain):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if x.shape[1] % 2:
            raise RuntimeError("length must be even")
        return super().forward(x, layout)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (Plain, set()),
        (Narrowing, {"lengths"}),
        (NeedsTwo, {"lengths"}),
        (Bytes, {"meta"}),
        (Overflowing, {"lengths"}),
        (UnknownFact, {"traits"}),
        (with_core(SumsToMore), {"weighted_mean"}),
        (Raises, {"lengths"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_defects_of_form_are_found(make, wanted):
    found = failures(make, causal=False)
    assert wanted <= found
    if not wanted:
        assert found == set()


def test_a_causal_site_needs_a_causal_mixer():
    assert failures(Plain, causal=True) == {"traits"}


def test_what_a_mixer_raises_is_told():
    found = {finding.check: finding.detail for finding in check_mixer(Raises, causal=False)}
    assert found["bidirectional.lengths"] == "raised RuntimeError: length must be even"


# --- the front door -------------------------------------------------------------------------


class Encoder(Honest):
    def __init__(self, site: Site) -> None:
        if site.causal:
            raise Unsupported("Encoder looks both ways")
        super().__init__(site)


class Decoder(Honest):
    def __init__(self, site: Site) -> None:
        if not site.causal:
            raise Unsupported("Decoder looks back only")
        super().__init__(site)


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

    assert verify(never)[-1] == ("directions", False, "works in no direction: wanted one")


def test_options_must_be_bound():
    class Optional(Plain):
        def __init__(self, site: Site, *, features: int) -> None:
            super().__init__(site)

    (finding,) = check_mixer(Optional, causal=False)
    assert not finding.passed
    assert "functools.partial(Optional, option=...)" in finding.detail
    assert failures(partial(Optional, features=3), causal=False) == set()


def test_a_function_that_returns_no_module_is_told():
    (finding,) = check_mixer(lambda site: lambda x, layout: x, causal=False)  # type: ignore[arg-type, return-value]
    assert "must be an nn.Module: got function" in finding.detail


def test_unknown_dtypes_are_refused():
    with pytest.raises(ValueError, match=r"dtype must be one of .*float64.*: got torch\.float16"):
        check_mixer(Plain, causal=False, dtype=torch.float16)


def test_the_random_state_is_left_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    verify(Honest, **SMALL)
    assert torch.equal(torch.get_rng_state(), before)


def test_rotary_is_offered_by_the_honest_mixer():
    site = Site(width=8, heads=2, max_length=4)
    assert Positions.rotary.value in Honest(site).traits.positions
