"""Scores of a split besides accuracy and loss."""

import numpy as np
import pytest
import torch

from lra.runners.records import Outcomes
from lra.runners.training.evaluate import SplitScores, further_scores, score_rows
from lra.tasks.data.tokens import hits_by
from lra.tasks.task import Kind, TaskSpec


def spec_of(*scores, classes=2, chance=0.0):
    return TaskSpec(
        name="t", version=1, kind=Kind.classification, vocabulary=3, classes=classes, max_length=4,
        padded=False, metric="accuracy", scores=frozenset(scores), chance=chance, source="",
        data_hash="0",
    )  # fmt: skip


def found(spec, truth, said):
    hit = torch.tensor(truth) == torch.tensor(said)
    classes = hits_by(torch.tensor(truth), hit, torch.ones(len(truth)))
    return further_scores(spec, float(hit.double().mean()), hit.numpy(), classes)


@pytest.mark.parametrize("seed", range(20))
def test_scores_equal_their_definitions(seed):
    random = np.random.default_rng(seed)
    truth, said = random.integers(0, 2, 30), random.integers(0, 2, 30)
    truth[:4], said[:4] = [0, 0, 1, 1], [0, 1, 0, 1]
    scores = found(spec_of("mcc", "macro_accuracy"), truth, said)
    assert scores["mcc"] == pytest.approx(np.corrcoef(truth, said)[0, 1])
    by_class = [(said[truth == each] == each).mean() for each in (0, 1)]
    assert scores["macro_accuracy"] == pytest.approx(np.mean(by_class))


def test_one_class_alone_has_no_correlation():
    assert found(spec_of("mcc"), [1, 1, 1], [1, 0, 1])["mcc"] == 0
    assert found(spec_of("mcc"), [1, 0, 1], [1, 1, 1])["mcc"] == 0


def test_a_guess_is_scaled_to_0_and_all_correct_to_1():
    spec = spec_of("scaled_accuracy", chance=0.25)
    assert further_scores(spec, 0.25, np.array([]), {})["scaled_accuracy"] == 0
    assert further_scores(spec, 1.0, np.array([]), {})["scaled_accuracy"] == 1
    assert further_scores(spec, 0.0, np.array([]), {})["scaled_accuracy"] == pytest.approx(-1 / 3)


def test_weights_count_and_items_of_weight_0_do_not():
    hits = hits_by(
        torch.tensor([3, 3, 5]), torch.tensor([True, True, False]), torch.tensor([0.5, 0.0, 2.0])
    )
    assert hits == {3: (0.5, 0.5), 5: (0.0, 2.0)}


def test_scores_by_group_are_rows():
    outcomes = Outcomes(
        split="test", index=np.arange(2), hit=np.array([True, False]), nll=np.zeros(2, np.float32)
    )
    scores = SplitScores({"accuracy": 0.5}, outcomes, {}, {("length", "64"): (0.25, 8.0)})
    row = [*score_rows(scores, {})][-1]
    assert (row.metric, row.value) == ("accuracy_by_group", 0.25)
    assert row.labels["group"] == "length"
    assert row.labels["part"] == "64"
    assert row.labels["items"] == "8"
