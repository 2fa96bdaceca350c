"""What a finished cell is said to be."""

import pytest

from lra.runners.measures.decode import Decode
from lra.runners.measures.extrapolate import Extrapolate
from lra.runners.measures.scaling import Scaling
from lra.runners.measures.span import Span
from lra.runners.records import Measurement, Status
from lra.terminal import progress
from lra.terminal.progress import failure, headline


def test_a_log_says_again_how_far_planning_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.5, 1.5, 6.0, 12.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    assert [*progress.with_progress("abcd", "counting")] == [*"abcd"]
    assert capsys.readouterr().err == "counting 2 of 4\ncounting 4 of 4\n"


def bad(**labels: str) -> Measurement:
    return Measurement(metric="span", status=Status.unsupported, reason="no core", labels=labels)


def good(metric: str, value: float, **labels: str) -> Measurement:
    return Measurement(metric=metric, value=value, labels=labels)


def test_a_part_without_a_number_does_not_fail_the_cell() -> None:
    part, whole = bad(measure="attention"), bad()
    kept = good("span", 4.0, measure="gradient", head="all")
    assert failure([part, kept]) is None
    assert failure([part, kept, whole]) is whole
    assert failure([part, part]) is part
    assert failure([kept]) is None
    assert headline(Span, [part, kept]) == "gradient 4.0 tokens"
    assert headline(Span, [part]) == "unsupported: no core"


def test_scores_at_other_lengths_name_the_factor() -> None:
    rows = [good("accuracy", 0.25 * n, split="test", factor=str(n)) for n in (1, 2)]
    assert headline(Extrapolate, rows) == "accuracy at 1 x 25.0%, accuracy at 2 x 50.0%"


def test_a_disturbed_time_says_so() -> None:
    why = "waited for a processor (9 of 9 samples)"
    for kind, metric, text in (
        (Scaling, "time", "5.0 ms"),
        (Decode, "token_time", "5.00 ms per token"),
    ):
        assert headline(kind, [good(metric, 0.005)]) == text
        assert headline(kind, [good(metric, 0.005, disturbed=why)]) == f"{text}; disturbed: {why}"
