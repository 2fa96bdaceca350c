import json

import pytest

from lra.tasks.baselines.certificate import certified_baselines, path_of
from lra.tasks.classification.base import baseline
from lra.tasks.classification.listops.task import ListOps, ListOpsSource


class Counting(ListOps):
    """Has one quick baseline, and counts how often it is computed."""

    computed = 0

    def baselines(self, split):
        self.computed += 1
        targets = self.split(split).targets
        return [baseline("even", targets % 2 == 0, "answers are even")]


@pytest.fixture
def task():
    task = Counting(source=ListOpsSource.sample)
    task.prepare()
    return task


def test_baselines_are_computed_once(task):
    first = certified_baselines(task, "test")
    again = certified_baselines(task, "test")
    assert task.computed == 1
    assert [(f.name, f.accuracy, f.sentence) for f in first] == [
        (f.name, f.accuracy, f.sentence) for f in again
    ]
    for one, other in zip(first, again, strict=True):
        assert one.outcomes.tolist() == other.outcomes.tolist()
    certified_baselines(task, "validation")
    certified_baselines(task, "test", again=True)
    assert task.computed == 3


def test_a_certificate_is_data_with_a_version_and_a_hash(task):
    certified_baselines(task, "test")
    content = json.loads(path_of(task, "test").read_text())
    assert content["certificate"] == 5
    assert (content["task"], content["data_hash"]) == ("listops", task.spec.data_hash)
    assert len(content["sha256"]) == 64
    assert [baseline["name"] for baseline in content["baselines"]] == ["even"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace('"accuracy": 0', '"accuracy": 9', 1),
        lambda text: text[:-50],
        lambda text: "[]",
        lambda text: json.dumps({**json.loads(text), "certificate": 0}),
    ],
)
def test_what_does_not_fit_is_computed_again(task, spoil):
    first = certified_baselines(task, "test")
    path = path_of(task, "test")
    path.write_text(spoil(path.read_text()))
    assert [baseline.accuracy for baseline in certified_baselines(task, "test")] == [
        f.accuracy for f in first
    ]
    assert task.computed == 2
    assert certified_baselines(task, "test")
    assert task.computed == 2
