"""Rows of one context: complete, counted as the formulas say, timed as a text is written."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.linear import LinearAttention
from lra.models.families.reformer import Reformer
from lra.models.families.sliding_window import SlidingWindow
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Unsupported
from lra.runners.measurement.disturbance import Shares
from lra.runners.measurement.hardware import HardwareProfile, Precision
from lra.runners.measurement.watch import Sample
from lra.runners.measurement.watched_rows import REPORTED
from lra.runners.measures import decode as module
from lra.runners.measures.decode import Decode, DecodeMode, TokenWriter
from lra.runners.metrics import METRICS
from lra.runners.records import Measurement, Status

CPU = HardwareProfile(name="cpu")
TOKENS, WIDTH, HIDDEN, VOCABULARY, BATCH = 20, 16, 24, 11, 2


def measured(
    family: Any = SoftmaxAttention,
    length: int = 24,
    mode: DecodeMode = DecodeMode.state,
    *,
    hardware: HardwareProfile = CPU,
    watch: list[tuple[int, ...]] | None = None,
    **options: Any,
) -> dict[str, Measurement]:
    def build(longest: int) -> Backbone:
        config = BackboneConfig(depth=1, width=WIDTH, heads=2, feed_forward_width=HIDDEN)
        facts = TaskFacts(
            head=Head.language_modelling, vocabulary=VOCABULARY, classes=2, max_length=longest
        )
        made = Backbone(config, facts, [family], seed=0)
        if watch is not None:
            made.embedding.register_forward_pre_hook(lambda _, x: watch.append(tuple(x[0].shape)))
        return made

    told = {"timed_tokens": TOKENS, "timed_prefills": 3, "batch_size": BATCH}
    told |= {"repeat_limit_s": 0.0} | options
    config = Decode(**told)
    writer = TokenWriter(build, length=length, mode=mode, config=config, hardware=hardware, seed=0)
    rows = [*writer.rows()]
    found = {row.metric: row for row in rows}
    assert len(found) == len(rows)
    assert set(found) <= set(METRICS)
    return found


once = cache(measured)


def values(*arguments: Any, **options: Any) -> dict[str, float]:
    found = once(*arguments, **options)
    return {metric: row.value for metric, row in found.items() if row.value is not None}


@pytest.mark.parametrize("mode", list(DecodeMode))
def test_rows_are_complete(mode: DecodeMode) -> None:
    rows = once(mode=mode)
    both = {
        "token_time", "token_time_percentile", "first_token_time", "tokens_per_second",
        "timed_steps", "stalls", "batch_size", "flops", "parameters", "peak_tensor_bytes",
        "process_peak_bytes",
    }  # fmt: skip
    remembered = {"prefill_time", "prefill_peak_tensor_bytes", "state_bytes"}
    assert "discarded_samples" in rows
    assert set(rows) - set(REPORTED) == both | (remembered if mode is DecodeMode.state else set())
    assert all(row.status is Status.ok for row in rows.values())
    samples = rows["token_time"].samples
    assert len(samples) == rows["timed_steps"].value == TOKENS - rows["discarded_samples"].value
    assert len(rows["first_token_time"].samples) == 3
    assert rows["token_time"].value == pytest.approx(np.median(samples))
    assert rows["token_time_percentile"].value == pytest.approx(np.percentile(samples, 95))
    assert rows["tokens_per_second"].value == pytest.approx(BATCH / np.median(samples))


def per_token(seen: int) -> int:
    """Operations of one token in one layer of softmax attention that scores `seen` slots."""
    return 8 * WIDTH**2 + 4 * WIDTH * HIDDEN + 4 * seen * WIDTH


@pytest.mark.parametrize("length", [24, 48])
def test_operations_are_those_of_the_formulas(length: int) -> None:
    head = 2 * WIDTH * VOCABULARY
    state = values(length=length)["flops"]
    assert state == BATCH * (per_token(length + TOKENS) + head)
    recompute = values(length=length, mode=DecodeMode.recompute)["flops"]
    # the context and the first token are read again; the head answers at the last place alone
    assert recompute == BATCH * ((length + 1) * per_token(length + 1) + head)


@pytest.mark.parametrize("family", [LinearAttention, lambda s: SlidingWindow(s, window=[8])])
def test_a_state_of_fixed_size_costs_the_same_behind_any_context(family: Any) -> None:
    short, long = (values(family, length) for length in (24, 96))
    for metric in ("flops", "state_bytes", "peak_tensor_bytes"):
        assert long[metric] == short[metric]


def test_bytes_of_the_state() -> None:
    for length in (24, 48):
        slots = 2 * (length + TOKENS) * WIDTH * 4
        assert values(length=length)["state_bytes"] == BATCH * (slots + 2 * 8)
    sums = WIDTH * (WIDTH // 2 + 1) * 4
    # sums of each head, what they refer to, and the count of tokens
    assert values(LinearAttention)["state_bytes"] == BATCH * (sums + 2 * 4 + 8)


def test_memory_of_a_token_follows_what_is_read() -> None:
    def peak(mode: DecodeMode, length: int) -> float:
        return values(length=length, mode=mode)["peak_tensor_bytes"]

    # scores of all pairs against those of one token with all
    assert peak(DecodeMode.recompute, 256) > 3 * peak(DecodeMode.recompute, 128)
    assert peak(DecodeMode.state, 256) < 2.2 * peak(DecodeMode.state, 128)
    assert peak(DecodeMode.state, 256) < 0.3 * peak(DecodeMode.recompute, 256)


@pytest.mark.parametrize("mode", list(DecodeMode))
def test_what_is_timed_is_a_text_that_grows(
    mode: DecodeMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, ...]] = []
    monkeypatch.setattr(module, "count_operations", lambda call: len(read))  # the last thing done
    rows = measured(mode=mode, watch=read, length=24)
    lengths = [shape[-1] for shape in read]
    alone = mode is DecodeMode.state
    wanted = [1] * TOKENS if alone else [24 + written for written in range(1, TOKENS + 1)]
    assert rows["flops"].value == len(read)
    assert lengths[-TOKENS:] == wanted
    # a prompt is never read in part
    assert set(lengths) == {1, 24} if alone else min(lengths) == 24
    assert {shape[0] for shape in read} == {BATCH}


def test_a_model_without_a_state_can_only_recompute() -> None:
    with pytest.raises(Unsupported, match="no state that continues from token to token"):
        measured(Reformer)
    assert measured(Reformer, mode=DecodeMode.recompute)["token_time"].status is Status.ok


@pytest.mark.parametrize(
    ("family", "mode"),
    [(SoftmaxAttention, DecodeMode.recompute), *((family, DecodeMode.state) for family in
     (SoftmaxAttention, LinearAttention, SlidingWindow))],
)  # fmt: skip
def test_half_precision(family: Any, mode: DecodeMode) -> None:
    half = HardwareProfile(name="cpu", precision=Precision.bfloat16)
    assert measured(family, mode=mode, hardware=half)["token_time"].status is Status.ok


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"top_k": 3, "temperature": 0.7}])
def test_ways_to_choose_a_token(sampling: dict[str, Any]) -> None:
    assert measured(**sampling)["token_time"].status is Status.ok


@pytest.mark.parametrize("mode", list(DecodeMode))
def test_a_slow_token_leaves_the_cell_out(
    mode: DecodeMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    for why in ("", "load of other processes"):
        shares = Shares(seconds=7.25, processor=1.0, thread=1.0)
        found = Sample(seconds=7.25, shares=shares, reason=why)
        monkeypatch.setattr(module, "try_call", lambda *_, found=found: found)
        rows = measured(mode=mode, token_limit_s=5.0)
        assert {"peak_tensor_bytes", "flops"} < set(rows)
        assert not {"first_token_time", "timed_steps"} & set(rows)
        assert rows["token_time"].status is Status.skipped
        assert "the limit is 5 s" in rows["token_time"].reason
        assert rows["token_time"].labels == {}


def test_the_context_is_the_seeds() -> None:
    def context(seed: int) -> torch.Tensor:
        facts = TaskFacts(head=Head.language_modelling, vocabulary=50, classes=2, max_length=60)
        writer = TokenWriter(
            lambda _: Backbone(BackboneConfig(), facts, [LinearAttention], seed=0),
            length=30,
            mode=DecodeMode.state,
            config=Decode(timed_tokens=TOKENS),
            hardware=CPU,
            seed=seed,
        )
        return writer.context

    assert torch.equal(context(3), context(3))
    assert not torch.equal(context(3), context(4))


def test_a_slow_prefill_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([9.0])  # the first call alone

    def slow_once(call: Callable[[], object], device: torch.device) -> float:
        call()
        return next(seconds, 0.01)

    monkeypatch.setattr(module, "time_call", slow_once)
    assert measured(token_limit_s=5.0)["token_time"].value == 0.01


def test_the_first_token_is_a_prefill_and_a_choice() -> None:
    rows = once(mode=DecodeMode.state)
    pairs = zip(rows["prefill_time"].samples, rows["first_token_time"].samples, strict=True)
    assert all(prefill < first for prefill, first in pairs)
