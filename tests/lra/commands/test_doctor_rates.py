"""`lra doctor --rates`: measured, printed and kept for planning."""

import json

import pytest

from lra.cli import main
from lra.runners.measurement import rates
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.rates import stored_rates


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure little."""
    monkeypatch.setattr(rates, "MEASURING_S", 0.0)
    monkeypatch.setattr(rates, "STREAMED_BYTES", 2**20)


def test_rates_are_kept_for_planning(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--rates", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["hardware"], found["precision"]) == ("cpu", "float32")
    first = found["measured"][0]
    kept = stored_rates(HardwareProfile(name="cpu"), first["threads"])
    assert first["rates"] == {name: getattr(kept, name) for name in first["rates"]}
    assert main(["plan", "task=listops", "task.source=sample", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machines"][0]["measured"] is True


def test_a_table_says_what_each_rate_is(capsys) -> None:
    assert main(["doctor", "--rates", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "FLOP/s  speed of a large matrix product" in text
    assert "stored the rates in" in text


def test_a_device_that_is_not_here_and_a_profile_that_is_none(capsys) -> None:
    import torch

    if not torch.cuda.is_available():
        assert main(["doctor", "--rates", "h100"]) == 2
        assert "PyTorch finds no GPU" in capsys.readouterr().err
    assert main(["doctor", "--rates", "nope"]) == 2
    assert "nope" in capsys.readouterr().err
