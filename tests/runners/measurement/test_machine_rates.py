"""Rates of a machine: measured, kept, read again, and typical ones in their place."""

import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch

from lra.runners.measurement import rates
from lra.runners.measurement.hardware import TYPICAL, Device, HardwareProfile
from lra.runners.measurement.machine import machine_of
from lra.runners.measurement.rates import (
    Rates,
    best_of,
    measure_rates,
    rates_file,
    store_rates,
    stored_rates,
)

CPU = HardwareProfile(name="cpu", typical=dict.fromkeys(TYPICAL, 2.0))
SOME = Rates(products=1.0, memory=2.0, cache=3.0, exponentials=4.0, sorts=5.0, operator_s=6.0)


def test_what_is_measured_is_positive_and_read_again(monkeypatch):
    monkeypatch.setattr(rates, "MEASURING_S", 0.0)
    monkeypatch.setattr(rates, "STREAMED_BYTES", 2**20)
    assert stored_rates(CPU, 1) is None
    found = measure_rates(CPU, 1)
    file = store_rates(found, CPU, 1)
    assert stored_rates(CPU, 1) == found
    assert json.loads(file.read_text())["threads"] == 1
    assert stored_rates(CPU, 2) is None
    assert stored_rates(replace(CPU, precision="bfloat16"), 1) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"rates": {}}', '{"rates": []}'])
def test_a_file_that_cannot_be_read_is_none(text):
    file = store_rates(SOME, CPU, 1)
    file.write_text(text)
    assert stored_rates(CPU, 1) is None


def test_the_machine_is_the_measured_one_else_a_typical_one_else_unknown():
    typical = machine_of(CPU, 3)
    assert not typical.measured
    assert typical.rates.products == 3 * 2.0 * 2.0
    assert typical.rates.memory == 2.0 * 2.0
    store_rates(SOME, CPU, 3)
    assert machine_of(CPU, 3).rates == SOME
    assert machine_of(CPU, 3).measured
    assert machine_of(replace(CPU, typical={}), 1) is None


@pytest.mark.parametrize(
    ("name", "card", "own"),
    [
        ("h100", "NVIDIA H100 80GB HBM3", True),
        ("laptop_gpu", "NVIDIA GeForce RTX 4090", True),  # any card
        ("a100", "NVIDIA H100 80GB HBM3", False),
    ],
)
def test_the_memory_of_the_card_that_is_here_counts(monkeypatch, name, card, own):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: card)
    memory = SimpleNamespace(total_memory=24_000_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: memory)
    gpu = replace(CPU, name=name, device=Device.cuda)
    assert machine_of(gpu, 1).memory_bytes == (24e9 if own else 2.0)
    store_rates(SOME, gpu, 1)
    assert machine_of(gpu, 1).memory_bytes == (24e9 if own else 2.0)


def test_rates_of_a_gpu_that_is_not_here_are_typical():
    gpu = replace(CPU, name="h100", device=Device.cuda)
    file = rates_file(Device.cuda, gpu.precision, 1, name="NVIDIA H100 80GB HBM3")
    assert "cuda" in file.name
    machine = machine_of(gpu, 4)
    assert machine.ahead
    assert not machine.measured
    assert machine.rates.products == 2.0 * 2.0
    assert machine.memory_bytes == 2.0


def test_threads_that_wait_say_nothing():
    other = Rates(**{name: 10 - value for name, value in asdict(SOME).items()})
    found = best_of(SOME, other)
    assert asdict(found) == {
        "products": 9.0, "memory": 8.0, "cache": 7.0, "exponentials": 6.0, "sorts": 5.0,
        "operator_s": 4.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("typical", "word"),
    [({"float32": 1.0}, "bytes"), ({**dict.fromkeys(TYPICAL, 1.0), "speed": 1.0}, "speed"),
     ({**dict.fromkeys(TYPICAL, 1.0), "cache": 0.0}, "cache"),
     ({**dict.fromkeys(TYPICAL, 1.0), "sorts": -1.0}, "sorts")],
)  # fmt: skip
def test_typical_rates_are_complete_and_rates(typical, word):
    with pytest.raises(ValueError, match=word):
        replace(CPU, typical=typical)
