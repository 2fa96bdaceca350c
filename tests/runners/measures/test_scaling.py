"""Rows of one length: complete, paired, and a reason for whatever is left out."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from lra.composition.compose import MEASURED
from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.linear import LinearAttention
from lra.models.families.sdpa import SDPA
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Layout, Site, Unsupported
from lra.runners.measurement.disturbance import Shares
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.measure import peak_tensor_bytes
from lra.runners.measurement.watch import Sample
from lra.runners.measurement.watched_rows import REPORTED
from lra.runners.measures import scaling
from lra.runners.measures.bench import Bench, CostMode
from lra.runners.measures.scaling import Batching, Contender, Scaling, scale
from lra.runners.metrics import METRICS
from lra.runners.records import Measurement, Status

CPU = HardwareProfile(name="cpu", token_budget=256)
FAMILIES: dict[str, Any] = {"model": LinearAttention, "sdpa": SDPA, "softmax": SoftmaxAttention}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Play a machine that does nothing else: rounds are dropped where others load it."""
    monkeypatch.setattr("lra.runners.measurement.watch.reason", lambda *_, **__: "")


def facts(length: int, head: Head = Head.classification) -> TaskFacts:
    return TaskFacts(head=head, vocabulary=11, classes=3, max_length=length)


def measured(
    length: int = 64,
    *,
    mode: CostMode = CostMode.step,
    families: dict[str, Any] = FAMILIES,
    model: str = "linear",
    hardware: HardwareProfile = CPU,
    head: Head = Head.classification,
    **options: Any,
) -> list[Measurement]:
    def build(name: str) -> Backbone:
        config = BackboneConfig(depth=1, width=16, heads=2, feed_forward_width=16)
        return Backbone(config, facts(length, head), [families[name]], seed=0)

    few = {"timed_steps": 3, "long_timed_steps": 3, "repeat_limit_s": 0.0}
    config = Scaling(**few | options)
    bench = Bench(
        build,
        facts(length, head),
        length=length,
        mode=mode,
        sequences=config.sequences(length, hardware.token_budget),
        long_step_s=config.long_step_s,
        hardware=hardware,
        seed=0,
    )
    return [*scale(bench, config, model)]


def bench_of(families: dict[str, Any], config: Scaling, built: Counter[str]) -> Bench:
    def build(name: str) -> Backbone:
        built[name] += 1
        shape = BackboneConfig(depth=1, width=16, heads=2, feed_forward_width=16)
        return Backbone(shape, facts(64), [families[name]], seed=0)

    return Bench(
        build, facts(64), length=64, mode=CostMode.step, sequences=4,
        long_step_s=config.long_step_s, hardware=CPU, seed=0,
    )  # fmt: skip


def compared(
    contenders: dict[str, Contender], families: dict[str, Any], **options: Any
) -> tuple[dict[str, list[Measurement]], Counter[str]]:
    """Return the rows of each model, and how often models were built."""
    few = {"timed_steps": 4, "long_timed_steps": 3, "repeat_limit_s": 0.0}
    config, built = Scaling(**few | options), Counter[str]()
    rows: dict[str, list[Measurement]] = {key: [] for key in contenders}
    for key, row in scaling._compare_models(bench_of(families, config, built), config, contenders):
        rows[key].append(row)
    return rows, built


def by_metric(rows: list[Measurement], reference: str | None = None) -> dict[str, Measurement]:
    return {r.metric: r for r in rows if r.labels.get("reference") == reference}


@pytest.mark.parametrize(
    ("mode", "head"),
    [(CostMode.forward, Head.classification)]
    + [(CostMode.step, head) for head in Head if head.name not in MEASURED],
)
def test_rows_are_complete_for_every_head(mode: CostMode, head: Head) -> None:
    rows = measured(mode=mode, head=head)
    own = by_metric(rows)
    assert "discarded_samples" in own
    assert set(own) - set(REPORTED) == {
        "time", "tokens_per_second", "timed_steps", "stalls", "peak_tensor_bytes",
        "process_peak_bytes", "flops", "flops_per_second", "matrix_rate", "bandwidth",
        "utilisation", "parameters", "batch_size", "processor_time",
    } | ({"saved_bytes"} if mode is CostMode.step else set())  # fmt: skip
    assert own["batch_size"].value == 4
    for name in ("sdpa", "softmax"):
        beside = by_metric(rows, name)
        assert len(beside["time_ratio"].samples) == len(own["time"].samples) == 3
        pairs = zip(own["time"].samples, beside["reference_time"].samples, strict=True)
        assert beside["time_ratio"].samples == pytest.approx(
            [mine / other for mine, other in pairs]
        )
        assert len(beside["processor_time_ratio"].samples) == 3
    assert all(r.metric in METRICS and r.status is Status.ok for r in rows)


def test_what_depends_on_the_ids_is_counted_where_a_pass_is_long(monkeypatch) -> None:
    adaptive = {"softmax": "adaptive", "embedding": "adaptive", "softmax_cutoffs": [4, 8]}
    plain = BackboneConfig
    monkeypatch.setitem(globals(), "BackboneConfig", lambda **own: plain(**own, **adaptive))
    counts = {
        by_metric(measured(mode=CostMode.forward, head=Head.language_modelling, long_step_s=limit))[
            "flops"
        ].value
        for limit in (1e-9, 1e9)
    }
    assert len(counts) == 1


def test_counts_are_those_of_the_formulas() -> None:
    step, forward = (
        by_metric(measured(mode=m, families=FAMILIES | {"model": SoftmaxAttention}))
        for m in (CostMode.step, CostMode.forward)
    )
    b, n, d, c = 4, 65, 16, 3  # the CLS vector is a token, too
    layer = 8 * n * d * d + 4 * n * n * d + 4 * n * d * 16
    head = 2 * d * 16 + 2 * 16 * c
    assert forward["flops"].value == b * (layer + head)
    # every product costs two more in backward: one for each operand
    assert step["flops"].value == 3 * b * (layer + head)


@pytest.mark.parametrize("mode", list(CostMode))
def test_counting_without_doing_gives_the_same(mode: CostMode) -> None:
    done, pretended = (
        by_metric(measured(mode=mode, references=[], long_step_s=limit))["flops"].value
        for limit in (100.0, 1e-9)
    )
    assert done == pretended


def test_memory_grows_as_the_family_says() -> None:
    def saved(family: Any, length: int) -> float:
        rows = measured(length, families=FAMILIES | {"model": family}, references=[], timed_steps=3)
        value = by_metric(rows)["saved_bytes"].value
        assert value is not None
        return value

    # a fixed token budget: linear stays level, literal softmax doubles with length
    assert saved(LinearAttention, 256) == pytest.approx(saved(LinearAttention, 128), rel=0.05)
    assert saved(SoftmaxAttention, 256) > 1.3 * saved(SoftmaxAttention, 128)


def test_a_model_is_no_reference_to_itself() -> None:
    rows = measured(model="sdpa", families=FAMILIES | {"model": SDPA})
    assert {r.labels["reference"] for r in rows if "reference" in r.labels} == {"softmax"}


def test_a_reference_beyond_its_length_is_a_row() -> None:
    rows = measured(reference_max_length={"softmax": 63})
    (row,) = [r for r in rows if r.labels.get("reference") == "softmax"]
    assert row.status is Status.skipped
    assert "softmax is measured only up to 63 tokens" in row.reason
    assert by_metric(rows)["time"].status is Status.ok


class Hungry(SoftmaxAttention):
    def forward(self, x: torch.Tensor, layout: Layout) -> torch.Tensor:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")


class Choosy(SDPA):
    def __init__(self, site: Site) -> None:
        raise Unsupported("only on Sundays")


class Broken(SDPA):
    def forward(self, x: torch.Tensor, layout: Layout) -> torch.Tensor:
        raise RuntimeError("shapes do not fit")


def test_a_failing_reference_costs_only_its_own_rows() -> None:
    rows = measured(families=FAMILIES | {"softmax": Hungry, "sdpa": Choosy})
    failed = {r.labels["reference"]: r for r in rows if "reference" in r.labels}
    assert failed["softmax"].status is Status.out_of_memory
    assert failed["sdpa"].reason == "only on Sundays"
    assert by_metric(rows)["time"].status is Status.ok


def test_a_bug_in_a_reference_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        measured(families=FAMILIES | {"sdpa": Broken})


def test_batch_sizes() -> None:
    assert by_metric(measured(512, references=[]))["batch_size"].value == 1  # budget: 256 tokens
    rows = measured(512, batch=Batching.fixed, batch_size=2, references=[])
    assert by_metric(rows)["batch_size"].value == 2


def second_call(
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    disturbed: str = "",
    share: float = 1.0,
    *,
    on_gpu: bool = False,
) -> None:
    """Play the call that is held against the limit; the first one takes an hour."""

    def slow(call: Callable[[], object], device: torch.device) -> float:
        call()
        return 3600.0

    shares = Shares(seconds=seconds, processor=share, thread=share)
    found = Sample(seconds=seconds, shares=shares, reason=disturbed, on_gpu=on_gpu)
    monkeypatch.setattr(scaling, "time_call", slow)
    monkeypatch.setattr(scaling, "try_call", lambda *_: found)


def test_a_slow_model_is_left_out_with_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    second_call(monkeypatch, 7.25)
    row, *others = measured(step_limit_s=5.0)
    assert row.status is Status.skipped
    counted = {"peak_tensor_bytes", "saved_bytes", "process_peak_bytes", "flops", "parameters"}
    assert {each.metric for each in others} == counted | {"batch_size"}
    assert row.reason == "one step took 7.2 s; the limit is 5 s (runner.step_limit_s)"
    assert row.labels == {}


def test_a_first_call_that_is_slow_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    second_call(monkeypatch, 0.01, "load of other processes")
    rows = by_metric(measured(step_limit_s=5.0, references=[]))
    assert rows["time"].status is Status.ok
    assert len(rows["time"].samples) == 3


def test_a_limit_leaves_waits_for_other_processes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = "load of other processes"
    second_call(monkeypatch, 72.5, busy, 0.05)
    assert by_metric(measured(step_limit_s=5.0, references=[]))["time"].status is Status.ok
    second_call(monkeypatch, 72.5, busy, 0.1)
    row = by_metric(measured(step_limit_s=5.0))["time"]
    assert row.reason.startswith(
        "one step took 7.2 s (the time it waited for other processes is not counted); the"
    )
    assert row.labels == {}  # a quiet machine would say the same
    second_call(monkeypatch, 72.5, busy, 0.05, on_gpu=True)
    row = by_metric(measured(step_limit_s=5.0))["time"]
    assert row.reason.startswith("one step took 72.5 s while the machine was disturbed (load of")
    assert row.labels == {"disturbed": busy}


def test_a_slow_reference_is_not_timed_and_costs_its_rows_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    second_call(monkeypatch, 0.01)
    slow = Sample(seconds=9.0, shares=Shares(seconds=9.0, processor=1.0), reason="")
    calls = iter([replace(slow, seconds=0.01), slow])
    monkeypatch.setattr(scaling, "try_call", lambda *_: next(calls))
    monkeypatch.setattr(Scaling, "warm", lambda *_: 9.0)
    rows = measured(step_limit_s=5.0, references=["sdpa"])
    (lost,) = [row for row in rows if row.metric == "time_ratio"]
    assert (lost.status, lost.labels) == (Status.skipped, {"reference": "sdpa"})
    assert by_metric(rows)["time"].status is Status.ok
    assert by_metric(rows, "sdpa")["peak_tensor_bytes_ratio"].value is not None


SOFTMAX = {4096: 0.71, 8192: 2.77}
"""Seconds of a step: 10.8 at twice the length."""


def untried(took: dict[int, float], length: int, budget: int = 2048, **options: Any) -> str:
    hardware = HardwareProfile(name="cpu", token_budget=budget)
    return Scaling(**options).too_long("step", length, took, hardware)


@pytest.mark.parametrize(
    ("limit", "tried"), [(3.0, False), (5.3, False), (5.5, True), (None, True)]
)
def test_a_length_is_untried_where_growth_says_twice_the_limit(
    limit: float | None, tried: bool
) -> None:
    words = untried(SOFTMAX, 16384, step_limit_s=limit)
    assert bool(words) is not tried
    if words:
        assert "at 4,096 and 8,192 tokens, one step would take 10.8 s" in words
        assert f"the limit of {limit:g} s (runner.step_limit_s; null tries every length)" in words


def test_growth_is_that_of_one_sequence() -> None:
    """8 sequences of 256 tokens and 4 of 512 take as long: one of 512 takes twice one of 256."""
    flat = {256: 4.0, 512: 4.0}
    assert untried(flat, 1024, step_limit_s=1.99) != ""
    assert untried(flat, 1024, step_limit_s=2.0) == ""
    by_hand = untried({256: 1.0, 512: 4.0}, 1024, step_limit_s=2.0, batch="fixed", batch_size=3)
    assert "would take 16.0 s" in by_hand


def test_peak_memory_of_a_step_leaves_out_parameters_but_not_gradients() -> None:
    rows = by_metric(measured(references=[]))
    parameters, peak = rows["parameters"].value, rows["peak_tensor_bytes"].value
    assert parameters is not None
    assert peak is not None
    assert peak > 4 * parameters
    assert peak_tensor_bytes(lambda: None, torch.device("cpu")) == 0


BOTH = {"a": LinearAttention, "b": SDPA, "softmax": SoftmaxAttention}
LINEAR = Contender(model="linear", peak=300, kernel="")
SELF = Contender(model="sdpa", peak=200, kernel="flash", is_reference=frozenset({"sdpa"}))


def test_models_that_are_compare_models_share_their_references() -> None:
    rows, built = compared({"a": LINEAR, "b": SELF}, BOTH)
    assert built == {"a": 1, "b": 1, "softmax": 1}
    own, other = by_metric(rows["a"]), by_metric(rows["b"])
    beside = by_metric(rows["a"], "sdpa")
    assert beside["reference_time"].samples == other["time"].samples
    pairs = zip(own["time"].samples, other["time"].samples, strict=True)
    assert beside["time_ratio"].samples == tuple(mine / theirs for mine, theirs in pairs)
    assert beside["reference_peak_tensor_bytes"].value == 200.0
    assert beside["peak_tensor_bytes_ratio"].value == 1.5
    assert other["time"].labels["kernel"] == "flash"
    of_softmax = {by_metric(rows[key], "softmax")["reference_time"].samples for key in rows}
    assert len(of_softmax) == 1
    assert by_metric(rows["b"], "sdpa") == {}
    assert {row.metric for row in rows["a"]} == {row.metric for row in rows["b"]}


def test_a_model_of_the_references_name_and_other_options_is_none() -> None:
    rows, built = compared({"a": LINEAR, "b": replace(SELF, is_reference=frozenset())},
                           BOTH | {"sdpa": SDPA})  # fmt: skip
    assert built["sdpa"] == 1
    assert by_metric(rows["a"], "sdpa")["reference_time"].samples
    assert by_metric(rows["b"], "sdpa") == {}


def test_a_slow_model_takes_no_rounds_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.01, 9.0, 0.01, 0.01])  # of the models, then of the references
    monkeypatch.setattr(Scaling, "warm", lambda self, call, device: call() or next(seconds))
    families = BOTH | {"sdpa": SDPA, "slow": LinearAttention}
    rows, built = compared({"a": LINEAR, "slow": replace(LINEAR, model="slow")}, families)
    assert {key: len(by_metric(rows[key])["time"].samples) for key in rows} == {"a": 4, "slow": 3}
    assert built["sdpa"] == built["softmax"] == 1
    for key in rows:
        samples = by_metric(rows[key], "softmax")["reference_time"].samples
        assert len(samples) == len(by_metric(rows[key])["time"].samples)


def test_a_reference_that_finds_no_memory_beside_several_is_no_row() -> None:
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        compared({"a": LINEAR, "b": SELF}, BOTH | {"softmax": Hungry})
