"""Baselines are ordinary rows."""

import pytest

from lra.models.mixer import Unsupported
from lra.runners.measures.certify import Certify, certify
from tests.runners.tiny_task import Tiny


def test_a_baseline_is_a_row_with_its_sentence() -> None:
    task = Tiny()
    (row,) = certify(task, split="test")
    _, target, _ = task.data("test")
    assert row.model == "baseline/majority"
    assert row.value == pytest.approx(float((target == 1).float().mean()))
    assert row.labels == {"split": "test", "sentence": "guesses 1", "examples": "10"}


def test_a_task_without_baselines_says_so() -> None:
    class Bare(Tiny):
        baselines = None  # type: ignore[assignment]

    with pytest.raises(Unsupported, match="tiny computes no baselines"):
        list(certify(Bare(), split="test"))


def test_unknown_split() -> None:
    with pytest.raises(ValueError, match="got 'tset'; wanted one of train"):
        Certify(split="tset")
