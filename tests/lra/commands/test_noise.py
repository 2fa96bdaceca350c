"""What `lra doctor --noise` says about a machine; its numbers are only checked against truth."""

import json

import numpy as np
import pytest

from lra.commands import doctor
from lra.machine import noise
from lra.runners.measurement.disturbance import Shares
from lra.runners.measurement.watch import Round, Rounds, Sample

QUIET = Shares(seconds=0.01, processor=1.0, waiting=0.0, absent=0.0, steal=0.0, other_load=0.0)


def rounds(count: int, *, sigma: float = 0.0, why: str = "") -> list[Round]:
    draw = np.random.default_rng(0)

    def sample() -> Sample:
        seconds = float(np.exp(sigma * draw.standard_normal()))
        return Sample(seconds=seconds, shares=QUIET, reason=why)

    return [{"a": sample(), "b": sample()} for _ in range(count)]


def watched(every: list[Round]) -> Rounds:
    return Rounds(retained=every, every=every)


@pytest.mark.parametrize("sigma", [0.01, 0.1])
def test_more_samples_resolve_more_as_theory_has_it(sigma: float) -> None:
    found = noise.finding(watched(rounds(1000, sigma=sigma)))
    for count in noise.COUNTS:
        # a ratio of two, the median's efficiency of 2 / pi, and 1.96 deviations
        wanted = 1.96 * sigma * np.sqrt(2) * np.sqrt(np.pi / 2 / count)
        assert np.log(found.ratio[count]) == pytest.approx(wanted, rel=0.25)
        assert found.time[count] < found.ratio[count]
    assert noise.finding(watched(rounds(50))).ratio == dict.fromkeys(noise.COUNTS, 1.0)


@pytest.mark.parametrize(("why", "status"), [("", 0), ("waited for a processor", 1)])
def test_most_samples_disturbed_is_a_status(
    why: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(noise, "time_in_turns", lambda *_: watched(rounds(9, sigma=0.1, why=why)))
    assert doctor.main(["--noise"]) == status
    text = capsys.readouterr().out
    assert ("remedy" in text) == bool(why)
    assert why in text
    assert doctor.main(["--noise", "--json"]) == status
    told = json.loads(capsys.readouterr().out)
    assert [each["pairs"] for each in told["lengths"]] == [9] * len(noise.SECONDS)


def test_it_measures(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "SECONDS", (1e-4, 1e-3))
    assert noise.noise(as_json=True, each_s=0.05) in (0, 1)
    for each in json.loads(capsys.readouterr().out)["lengths"]:
        assert each["pairs"] >= 3
        assert all(factor >= 1 for factor in each["ratio"].values())


def test_every_cause_has_a_way_out() -> None:
    from lra.runners.measurement.disturbance import reason

    parts = ("throttled", "memory_stall", "waiting", "absent", "steal", "other_load")
    causes = {reason(Shares(seconds=1.0, processor=1.0, **{name: 0.9})) for name in parts}
    causes.add(reason(Shares(seconds=1.0, processor=1.0, faults=1)))
    assert causes == set(noise.ADVICE)


def test_two_questions_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        doctor.main(["--noise", "--store"])
    assert "one at a time" in capsys.readouterr().err
