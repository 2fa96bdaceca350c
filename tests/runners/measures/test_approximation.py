"""Errors of attention against direct computations, and rows that are complete or say why not."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.linformer import Linformer
from lra.models.families.nystromformer import Nystromformer
from lra.models.families.performer import Kernel, Performer
from lra.models.families.reformer import Reformer
from lra.models.families.sdpa import SDPA
from lra.models.families.sliding_window import SlidingWindow
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Site, Unsupported, Variant
from lra.models.multi_head import Core
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.approximation import QK, Approximation, ApproximationLab
from lra.runners.measures.attention.cores import core_of
from lra.runners.measures.attention.errors import (
    Exact,
    Heaviest,
    QueryKeyValue,
    implied_matrix,
    output_of,
    random_heads,
    trained_heads,
)
from lra.runners.records import Measurement, Status
from tests.runners.tiny_task import Tiny

CPU = HardwareProfile(name="cpu")
HEADS, LENGTH, WIDTH = 2, 12, 8


def core(
    make: Callable[..., nn.Module], seed: int = 0, length: int = LENGTH, **options: Any
) -> Core:
    site = Site(
        width=HEADS * WIDTH,
        heads=HEADS,
        max_length=length,
        generator=torch.Generator().manual_seed(seed),
    )
    found = core_of(make(site, **options))
    assert isinstance(found, nn.Module)
    return found.double()


def heads(
    deviation: float = 1.0, length: int = LENGTH, sequences: int = 2, seed: int = 0
) -> QueryKeyValue:
    return random_heads(sequences, HEADS, length, WIDTH, deviation=deviation, seed=seed)


def softmax(given: QueryKeyValue) -> Tensor:
    scores = torch.einsum("bhik,bhjk->bhij", given.q, given.k) / math.sqrt(given.q.shape[-1])
    weights = scores.exp()
    return weights / weights.sum(-1, keepdim=True)


class Families:
    """A family with one option as its budget, of the sizes of this file."""

    def __init__(self, make: Callable[..., nn.Module], option: str, **options: Any) -> None:
        self.make, self.option, self.options = make, option, options

    def approximation(self, budget: int, *, draw: int, layer: int) -> Core:
        del layer
        value = [budget] if self.option == "window" else budget
        return core(self.make, seed=draw, **{self.option: value}, **self.options)

    def exact(self, *, layer: int) -> Core:
        del layer
        return core(SoftmaxAttention)

    def reference(self) -> Core:
        return core(SDPA)


PERFORMER = Families(Performer, "features")


def measured(
    families: Families = PERFORMER, layers: list[QueryKeyValue] | None = None, **options: Any
) -> list[Measurement]:
    given = {"timed_steps": 3, "long_timed_steps": 3, "warmup_steps": 1, "top": [1, 4]} | options
    config = Approximation(**{"option": families.option, "budgets": [4, 16], "draws": 3} | given)
    lab = ApproximationLab(
        families, layers or [heads()], model="it", config=config, hardware=CPU, labels={"a": "b"}
    )
    return [*lab.rows()]


def pick(rows: list[Measurement], metric: str, **labels: str) -> list[Measurement]:
    told = labels.items()
    return [r for r in rows if r.metric == metric and told <= r.labels.items()]


def test_rows_equal_a_direct_computation() -> None:
    given = heads()
    rows = measured(layers=[given])
    exact = softmax(given)
    for budget in (4, 16):
        outputs, matrices, recalls = [], [], []
        for draw in range(3):
            projection = torch.as_tensor(core(Performer, seed=draw, features=budget).projection)
            x, y = (z / WIDTH**0.25 for z in (given.q, given.k))
            phi, psi = (
                torch.exp(z @ projection.T - z.square().sum(-1, keepdim=True) / 2) for z in (x, y)
            )
            weights = phi @ psi.mT
            matrix = weights / weights.sum(-1, keepdim=True)
            outputs.append(float(((matrix - exact) @ given.v).norm() / (exact @ given.v).norm()))
            matrices.append(float((matrix - exact).norm() / exact.norm()))
            kept = mass = 0.0
            for wanted, found in zip(exact.flatten(0, 2), matrix.flatten(0, 2), strict=True):
                for j in sorted(range(LENGTH), key=lambda j, w=wanted: -float(w[j]))[:4]:
                    kept += min(float(wanted[j]), float(found[j]))
                    mass += float(wanted[j])
            recalls.append(kept / mass)
        told = {"budget": str(budget)}
        for metric, wanted_samples, further in (
            ("output_error", outputs, {}),
            ("matrix_error", matrices, {}),
            ("topk_mass_recall", recalls, {"k": "4"}),
        ):
            (row,) = pick(rows, metric, **told, **further)
            assert row.samples == pytest.approx(wanted_samples, rel=1e-9)
            assert row.value == pytest.approx(sum(wanted_samples) / 3, rel=1e-9)
            assert row.labels["option"] == "features"
            assert row.labels["target"] == "softmax"
            assert row.labels["a"] == "b"


def test_times_are_paired_with_exact_attention() -> None:
    rows = measured()
    (reference,) = pick(rows, "core_time", reference="sdpa")
    for budget in ("4", "16"):
        (time,) = pick(rows, "core_time", budget=budget)
        (ratio,) = pick(rows, "core_time_ratio", budget=budget)
        pairs = zip(time.samples, reference.samples, strict=True)
        assert ratio.samples == pytest.approx([mine / other for mine, other in pairs])
    assert pick(rows, "batch_size")[0].value == 2


@pytest.mark.parametrize("make", [SoftmaxAttention, SDPA])
def test_an_exact_core_has_no_error(make: Callable[..., nn.Module]) -> None:
    exact = Exact(core(SoftmaxAttention), heads(), matrices=True, ranks=[1, 3, 99])
    found = exact.errors(core(make))
    assert found.output < 1e-14
    assert found.matrix is not None
    assert found.matrix < 1e-14
    assert found.recall == pytest.approx((1, 1, 1), abs=1e-14)


def test_a_window_over_everything_has_no_error_and_a_narrow_one_the_mass_outside() -> None:
    given = heads()
    rows = measured(Families(SlidingWindow, "window"), [given], budgets=[2, LENGTH])
    (whole,) = pick(rows, "output_error", budget=str(LENGTH))
    assert whole.value == pytest.approx(0, abs=1e-13)
    assert len(whole.samples) == 1  # nothing is drawn
    place = torch.arange(LENGTH)
    exact = softmax(given) * ((place[:, None] - place).abs() <= 2)
    # a window gives every key that it sees more weight than exact attention does
    heaviest = softmax(given).topk(1).indices
    kept = exact.gather(-1, heaviest).sum() / softmax(given).gather(-1, heaviest).sum()
    (row,) = pick(rows, "topk_mass_recall", budget="2", k="1")
    assert row.value == pytest.approx(float(kept))


def test_the_mass_of_a_hand_made_matrix() -> None:
    exact = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.3, 0.5]], dtype=torch.float64)[None, None]
    found = torch.tensor([[0.5, -0.2, 0.7], [0.0, 1.0, 0.0]], dtype=torch.float64)[None, None]
    heaviest = Heaviest.find(exact, 3)
    first, two, every = heaviest.retained(found, [1, 2, 3])
    assert first == pytest.approx((0.5 + 0.0, 0.6 + 0.5))
    assert two == pytest.approx((0.5 + 0.0 + 0.0 + 0.3, 0.9 + 0.8))
    assert every == pytest.approx((0.5 + 0.1 + 0.3, 2.0))


def mean_error(features: int, draws: int, **options: Any) -> float:
    exact = Exact(core(SoftmaxAttention), heads(0.4, 24, seed=3), matrices=False)
    make = partial(core, Performer, features=features, **options)
    return sum(exact.errors(make(seed=draw)).output for draw in range(draws)) / draws


def test_the_error_of_random_features_falls_as_the_root_of_their_number() -> None:
    few, many = mean_error(16, 20), mean_error(1024, 20)
    # 64 times the features: an eighth of the error, within a third
    assert 8 / 1.5 < few / many < 8 * 1.5


def test_orthogonal_features_err_less_than_independent_ones() -> None:
    for kernel in (Kernel.softmax, Kernel.trigonometric):
        orthogonal = mean_error(16, 60, kernel=kernel)
        assert orthogonal < 0.95 * mean_error(16, 60, kernel=kernel, orthogonal=False)


def test_the_matrix_gives_the_output() -> None:
    given = heads()
    for make in (Performer, SlidingWindow, partial(Nystromformer, conv_kernel=0, landmarks=4)):
        one = core(make)
        matrix = implied_matrix(one, given)
        torch.testing.assert_close(matrix @ given.v, output_of(one, given), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (partial(Nystromformer, landmarks=4), "conv.weight.*conv_kernel=0"),
        (partial(Linformer, projected_length=[4]), "length_map.keys.*frozen_jl"),
        (partial(Performer, kernel=Kernel.relu), "kernel=relu does not estimate softmax attention"),
        (partial(Reformer, variant=Variant.lra), "variant=lra"),
    ],
)
def test_what_approximates_no_given_attention_is_refused(
    make: Callable[..., nn.Module], words: str
) -> None:
    with pytest.raises(Unsupported, match=words):
        core(make)


def test_a_mixer_without_a_core_is_refused() -> None:
    class Plain(nn.Module):
        def __init__(self, site: Site) -> None:
            super().__init__()

    with pytest.raises(Unsupported, match="Plain has no attention function"):
        core(Plain)


def test_a_family_without_a_budget_is_refused() -> None:
    with pytest.raises(Unsupported, match="fnet does not approximate attention"):
        Approximation().budget_option("fnet")
    assert Approximation(option="features").budget_option("performer") == "features"


def test_a_refused_budget_costs_only_its_own_row() -> None:
    class Even(Families):
        def approximation(self, budget: int, *, draw: int, layer: int) -> Core:
            if budget % 2:
                raise ValueError(f"odd: got {budget}")
            return super().approximation(budget, draw=draw, layer=layer)

    rows = measured(Even(Performer, "features"), budgets=[3, 4])
    (lost,) = pick(rows, "output_error", budget="3")
    assert (lost.status, lost.reason) == (Status.unsupported, "odd: got 3")
    assert pick(rows, "output_error", budget="4")[0].status is Status.ok
    assert not pick(rows, "core_time", budget="3")


def test_beyond_the_limit_outputs_alone_are_compared() -> None:
    rows = measured(matrix_max_length=LENGTH - 1)
    assert not pick(rows, "matrix_error") + pick(rows, "topk_mass_recall")
    assert len(pick(rows, "output_error")) == 2
    assert len(pick(measured(matrix_max_length=LENGTH), "matrix_error")) == 2


def test_numbers_beyond_all_bounds_are_a_reason() -> None:
    class Lost(SoftmaxAttention):
        def __init__(self, site: Site, *, features: int) -> None:
            super().__init__(site)
            self.core.forward = lambda q, k, v, layout: v / 0  # type: ignore[method-assign]

    rows = measured(Families(Lost, "features"), budgets=[4])
    (row,) = pick(rows, "output_error")
    assert (row.status, row.reason) == (
        Status.diverged,
        "output_error is not finite in 1 of 1 random draws",
    )


# ------------------------------------------------------------------ trained queries and keys


def small(family: Any = SoftmaxAttention) -> Backbone:
    config = BackboneConfig(depth=2, width=HEADS * WIDTH, heads=HEADS, feed_forward_width=8)
    facts = TaskFacts(head=Head.classification, vocabulary=8, classes=3, max_length=12, padded=True)
    return Backbone(config, facts, [family], seed=0)


def test_trained_heads_are_what_the_layers_read() -> None:
    task, model = Tiny(), small()
    first, second = trained_heads(
        model, task.batches("test", batch_size=3, seed=0), sequences=3, length=9
    )
    tokens, _, keep = task.data("test")
    # the CLS vector is the first position: 8 real tokens fill the rest
    rows = keep[:, 0, :8].all(-1).nonzero()[:3, 0]
    x = model.embedding(tokens[rows, 0])
    x = torch.cat((model.cls.expand(3, 1, -1), x), 1)
    x = model.add_positions(x, None)
    block = model.stack.blocks[0]
    q = block.mixer.q_proj(block.mixer_norm(x))[:, :9]
    wanted = q.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
    torch.testing.assert_close(first.q, wanted.detach().double(), rtol=1e-5, atol=1e-6)
    assert second.v.shape == (3, HEADS, 9, WIDTH)
    assert second.v.dtype == torch.float64


def test_too_few_long_sequences_are_a_reason() -> None:
    batches: Iterator[Any] = Tiny().batches("test", batch_size=3, seed=0)
    with pytest.raises(Unsupported, match=r"the test split has \d sequences of 13 tokens"):
        trained_heads(small(), batches, sequences=10, length=13)


def test_trained_layers_are_rows_of_their_own() -> None:
    rows = measured(layers=[heads(seed=1), heads(seed=2)], qk=QK.trained)
    for layer in ("0", "1"):
        assert len(pick(rows, "output_error", layer=layer)) == 2
    assert not [r for r in measured() if "layer" in r.labels]
    assert Approximation(qk=QK.trained).starts_from() == ["softmax"]
    assert Approximation().starts_from() == []


def test_one_vector_for_both_reads_no_trained_pairs() -> None:
    class Shared(Families):
        def exact(self, *, layer: int) -> Core:
            return core(Reformer, chunk=LENGTH, rounds=1, before=0)

    assert measured(Shared(Reformer, "rounds", chunk=4), budgets=[1])
    with pytest.raises(Unsupported, match="the same vector as query and as key"):
        measured(Shared(Reformer, "rounds", chunk=4), budgets=[1], qk=QK.trained)
