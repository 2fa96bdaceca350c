"""Counted things are exact; times are only checked for their book-keeping."""

import pytest
import torch

from lra.runners.measurement import measure
from lra.runners.measurement.measure import in_turns, machine_rates, peak_tensor_bytes, stalls
from lra.runners.measurement.watch import Watch
from tests.lra_process import python

CPU = torch.device("cpu")
MIB = 2**20


def test_peak_is_the_high_water_mark_above_what_was_alive() -> None:
    kept = torch.zeros(3 * MIB, dtype=torch.uint8)

    def call() -> None:
        first = torch.zeros(5 * MIB, dtype=torch.uint8)
        del first
        second = kept.clone()  # 3 MiB
        third = second + 1  # 3 MiB more, at the same time
        del second, third

    call()
    assert peak_tensor_bytes(call, CPU) == pytest.approx(6 * MIB, abs=64)  # scalars


def test_peak_counts_gradients_and_repeats_exactly() -> None:
    weight = torch.nn.Parameter(torch.ones(MIB // 4))

    def call() -> None:
        (weight * weight).sum().backward()
        weight.grad = None

    call()
    found = {peak_tensor_bytes(call, CPU) for _ in range(3)}
    assert len(found) == 1
    assert found.pop() >= 2 * MIB  # the two parts of the weight's gradient


def test_peak_sees_workspace_inside_an_operator() -> None:
    convolution = torch.nn.Conv1d(64, 64, 3)
    x = torch.randn(1, 64, 4096)

    def call() -> None:
        with torch.no_grad():
            convolution(x)

    call()
    assert peak_tensor_bytes(call, CPU) >= x.numel() * 4


def test_turns_alternate_and_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    calls = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    found = in_turns(calls, Watch(CPU), 3, repeat_s=0.0)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert [len(found.samples(name)) for name in calls] == [3, 3]


def test_stalls_are_samples_far_above_the_median() -> None:
    assert stalls([1.0, 1.1, 0.9, 9.0, 1.0]) == 1
    assert stalls([1.0, 2.9]) == 0


def test_warm_up_goes_on_until_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([8.0, 4.0, 2.0, 1.9, 1.0])
    monkeypatch.setattr(measure, "time_call", lambda call, device: next(clock))
    assert measure.warm_up(lambda: None, CPU, least=2) == 1.9
    monkeypatch.setattr(measure, "time_call", lambda call, device: 3.0)
    assert measure.warm_up(lambda: None, CPU, least=1) == 3.0


def test_a_long_call_warms_up_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.7])
    monkeypatch.setattr(measure, "time_call", lambda call, device: next(clock))
    assert measure.warm_up(lambda: None, CPU, least=3, long_s=0.5) == 0.7


def test_the_fused_kernel_is_named() -> None:
    q = torch.randn(1, 2, 64, 16, requires_grad=True)

    def exact() -> None:
        torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()

    assert measure.observe(exact, CPU).kernels == "flash_attention_for_cpu"
    assert measure.observe(lambda: q @ q.mT, CPU).kernels == ""


def test_process_peak_grows_with_use() -> None:
    """In a process of its own: what other tests used may be a higher peak."""
    done = python(
        "-c",
        "import mmap\n"
        "from lra.runners.measurement.measure import process_peak_bytes\n"
        "before, size = process_peak_bytes(), 200 * 2**20\n"
        "with mmap.mmap(-1, size) as region:\n"
        "    region.write(b'x' * size)\n"
        "    print(size / 2 < process_peak_bytes() - before < 3 * size)\n",
    )
    assert done.stdout.strip() == "True", done.stderr


def test_machine_rates_are_sensible_and_measured_once() -> None:
    rates = machine_rates(CPU, torch.float32)
    assert machine_rates(CPU, torch.float32) is rates
    assert rates[0] > 1e8
    assert rates[1] > 1e8
