"""How many pairs a model recalls, from trainings on several numbers of pairs."""

from types import SimpleNamespace

import pytest

from lra.reports.rows import prepare
from lra.reports.sections.capacity import capacity, capacity_table

SCORES = {
    "sdpa": {4: (1.0, 1.0), 16: (0.95, 1.0)},  # never falls
    "delta_net": {4: (1.0, 1.0), 16: (0.8, 0.8)},
    "linear": {4: (0.2, 0.4), 16: (0.1, 0.1)},
    "mamba2": {4: (1.0, 1.0), 16: (0.8, 1.0)},
    "identity": {4: (0.1, 0.1)},
}


@pytest.mark.parametrize(
    ("scores", "wanted"),
    [
        ({4: 1.0, 16: 0.8}, (8.0, "")),
        ({2: 1.0, 4: 1.0, 16: 0.8, 64: 0.95}, (8.0, "")),  # the first crossing counts
        ({4: 0.9, 16: 0.5}, (4.0, "")),
        ({4: 0.89, 16: 0.95}, (4.0, "<")),
        ({4: 1.0, 16: 0.9}, (16.0, "≥")),
    ],
)
def test_the_crossing_is_on_a_line_over_the_logarithm(scores, wanted):
    pairs, sign = capacity(scores)
    assert (pytest.approx(pairs), sign) == wanted


def test_a_line_for_each_model_with_several_numbers_of_pairs(make: SimpleNamespace) -> None:
    rows = []
    for name, of_pairs in SCORES.items():
        for pairs, values in of_pairs.items():
            told = {"task": "mqar", "length": 64, "source": f"generated, {pairs} pairs of 32"}
            for seed, value in enumerate(values):
                rows.append(make.accuracy(name, seed, value, **told))
                if name == "delta_net":
                    about = {"labels": {"batch_size": "1"}, **told}
                    rows.append(make.row("state_bytes", 512.0, model=name, seed=seed, **about))
    (part,) = capacity_table(prepare(make.frame(*rows)))
    texts = {row.title: [entry.text for entry in row.entries] for row in part.table.rows}
    assert texts == {
        "sdpa": ["≥ 16", "–"],
        "delta_net": ["8.0 [8.0, 8.0]", "512"],
        "linear": ["< 4", "–"],
        "mamba2": ["8.0 to ≥ 16.0", "–"],
    }


def test_other_tasks_have_none(make: SimpleNamespace) -> None:
    rows = [make.accuracy("linear", seed, 0.5) for seed in (0, 1)]
    assert [*capacity_table(prepare(make.frame(*rows)))] == []
    assert [*capacity_table(prepare(make.frame(*make.timing("linear", 512, 0.1))))] == []
