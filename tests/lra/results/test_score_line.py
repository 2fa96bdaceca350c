"""The score of a run as people report it, with what it is compared with."""

from pathlib import Path

import pytest

from lra.results.score_line import score_lines
from lra.runners.records import Measurement
from lra.runners.store import Store
from tests.runners.storage.stored_cells import make_cell

TRAINED = make_cell(overrides=("model=linear", "task=listops", "task.source=sample", "seed=0"))
BASELINES = make_cell(7, runner="certify", mode="certify", model="baseline")


def score(value: float, split: str = "test", metric: str = "accuracy", **more: str) -> Measurement:
    return Measurement(metric=metric, value=value, labels={"split": split, **more})


def lines(root: Path, *rows: Measurement) -> list[str]:
    store = Store(root)
    store.write(TRAINED, rows, (), {})
    return [*score_lines(TRAINED, store.rows_of(TRAINED), store)]


def with_baselines(root: Path, *rows: tuple[str, str, float], title: str = "") -> None:
    store = Store(root)
    several = [
        Measurement(metric=metric, value=value, model=f"baseline/{name}", labels={"split": "test"})
        for name, metric, value in rows
    ]
    store.write(BASELINES, several, (), {})
    store.record_in_sweep("adhoc", BASELINES.key, title or "baselines of listops")


def test_an_accuracy_has_an_interval_chance_and_the_best_baseline(tmp_path: Path) -> None:
    with_baselines(
        tmp_path, ("majority", "accuracy", 0.17), ("root_operator", "accuracy", 0.417),
        ("oracle_depth_3", "accuracy", 1.0),
    )  # fmt: skip
    rows = score(0.3, "validation"), score(0.255, examples="2000"), score(1.5, metric="loss")
    assert lines(tmp_path, *rows) == [
        "test accuracy 25.5% [23.6, 27.5] (chance 10.0%; best baseline: root operator 41.7%)",
        "validation accuracy 30.0%",
    ]


@pytest.mark.parametrize("title", ["baselines of listops, data_seed=1", "train linear on listops"])
def test_of_a_language_model_the_lowest_baseline_is_the_best(tmp_path: Path, title: str) -> None:
    scored = [("unigram", "bits_per_byte", 4.5), ("bigram", "bits_per_byte", 3.5)]
    with_baselines(tmp_path, *scored, title=title)
    rows = score(0.3), score(2.25, metric="bits_per_byte")
    hint = "the baselines are not measured: "
    hint += "`lra run runner=certify task=listops task.source=sample` adds them"
    best = "best baseline: bigram 3.500" if title.startswith("baselines") else hint
    assert lines(tmp_path, *rows) == [f"test bits per byte 2.250 ({best})"]


def test_several_scores_of_one_split_are_left_to_the_rows(tmp_path: Path) -> None:
    several = (score(0.1 * n, weights=name) for n, name in enumerate(("last", "best")))
    assert lines(tmp_path, *several) == []
