"""Differently configured runs of one model never share a row."""

from typing import Any

import pandas as pd

from lra.runners.records import COLUMNS
from lra.sweep import model_names


def _rows(*cells: tuple[str, str]) -> pd.DataFrame:
    base: dict[str, Any] = dict.fromkeys(COLUMNS)
    return pd.DataFrame(
        [
            base | {"cell": cell, "model": model, "task": "t", "runner": "train"}
            for cell, model in cells
        ]
    )


def with_distinct_names(rows: pd.DataFrame, identities: dict[str, Any]) -> pd.DataFrame:
    """Tell cells apart of which every option was set by hand."""
    cells = {key: {"identity": each, "described": each} for key, each in identities.items()}
    return model_names.with_distinct_names(rows, cells)


def _identity(features: int, seed: int) -> dict[str, Any]:
    return {"mixer": {"features": features}, "seed": seed, "runner": {"name": "train"}}


def test_seeds_share_a_name() -> None:
    rows = with_distinct_names(
        _rows(("a", "m"), ("b", "m")), {"a": _identity(4, 0), "b": _identity(4, 1)}
    )
    assert list(rows["model"]) == ["m", "m"]


def test_a_name_stands_beside_what_it_is_made_of() -> None:
    def identity(features: int, direction: str) -> dict[str, Any]:
        return {"mixer": {"features": features}, "runner": {"direction": direction}}

    rows = with_distinct_names(
        _rows(("a", "m"), ("b", "m"), ("b", "baseline/majority"), ("c", "other")),
        {"a": identity(4, "causal"), "b": identity(8, "both"), "c": identity(99, "both")},
    )
    assert list(rows["model"][:2]) == [
        "m (features=4, runner.direction=causal)", "m (features=8, runner.direction=both)",
    ]  # fmt: skip
    assert list(rows["family"]) == ["m", "m", "baseline/majority", "other"]
    assert list(rows["options"]) == [
        {"mixer.features": "4", "runner.direction": "causal"},
        {"mixer.features": "8", "runner.direction": "both"},
        {},
        {},
    ]
    assert all(column in rows for column in COLUMNS)


def test_what_labels_name_is_not_named_twice() -> None:
    plain = {"mixer": {"variant": "faithful"}}
    hybrid = {"mixer": {"variant": "lra", "layers": ["m", "o"], "others": {"o": {"bias": True}}}}
    rows = with_distinct_names(_rows(("a", "m"), ("b", "m")), {"a": plain, "b": hybrid})
    assert list(rows["model"]) == ["m", "m"]


def _started(seed: int, training: str | None, qk: str = "trained") -> dict[str, Any]:
    trainings = {} if training is None else {"trainings": {"softmax": training}}
    return {"seed": seed, "runner": {"qk": qk}} | trainings


def test_a_training_for_each_seed_or_in_some_modes_is_no_difference() -> None:
    cells = {"a": _started(0, "x"), "b": _started(1, "y"), "c": _started(0, None, "random")}
    rows = with_distinct_names(_rows(*((cell, "m") for cell in cells)), cells)
    assert set(rows["model"]) == {"m"}


def test_other_trainings_of_one_seed_are() -> None:
    cells = {"a": _started(0, "x"), "b": _started(0, "y")}
    rows = with_distinct_names(_rows(("a", "m"), ("b", "m")), cells)
    assert list(rows["model"]) == ["m (trainings.softmax=x)", "m (trainings.softmax=y)"]


def _from(training: str, seed: int, positions: str) -> dict[str, Any]:
    backbone = {"positions": positions}
    return {"backbone": backbone, "seed": seed, "trainings": {"model": training}}


def test_trainings_are_named_by_what_differs_in_the_open_if_anything() -> None:
    rows = _rows(("a", "m"), ("b", "m"))
    open_ = {"a": _from("t1", 0, "rotary"), "b": _from("t2", 0, "alibi")}
    told = with_distinct_names(rows, open_)["model"]
    assert list(told) == ["m (positions=rotary)", "m (positions=alibi)"]
    hidden = {"a": _from("t1", 0, "rotary"), "b": _from("t2", 0, "rotary")}
    told = with_distinct_names(rows, hidden)["model"]
    assert list(told) == ["m (trainings.model=t1)", "m (trainings.model=t2)"]


def test_where_weights_come_from_is_named_by_its_label() -> None:
    def identity(source: str, seed: int) -> dict[str, Any]:
        begun = {} if source == "scratch" else {"trainings": {source: f"key {seed}"}}
        return {"runner": {"name": "transfer", "source": source}, "seed": seed, **begun}

    rows = with_distinct_names(
        _rows(("a", "m"), ("b", "m"), ("c", "m")),
        {"a": identity("s", 0), "b": identity("s", 1), "c": identity("scratch", 0)},
    )
    assert list(rows["model"]) == ["m", "m", "m"]


def test_values_that_fit_no_name_are_cut_and_stay_apart() -> None:
    cells = {key: {"mixer": {"pattern": "x" * 500 + key}} for key in ("a", "b")}
    cells["c"] = {"mixer": {"pattern": "\x1b[31m"}}
    rows = with_distinct_names(_rows(*((cell, "m") for cell in cells)), cells)
    assert rows["model"].nunique() == 3
    assert all(len(name) < 200 and name.isprintable() for name in rows["model"])


def test_an_option_that_is_younger_than_a_cell_is_no_difference() -> None:
    old = {"identity": {"mixer": {"window": 4}}, "described": {"mixer": {"window": 4}}}
    usual = {
        "identity": {"mixer": {}}, "described": {"mixer": {"window": 4, "scale": 1.0}}
    }  # fmt: skip
    other = {
        "identity": {"mixer": {"scale": 2.0}}, "described": {"mixer": {"window": 4, "scale": 2.0}}
    }  # fmt: skip
    rows = _rows(("a", "m"), ("b", "m"))
    assert list(model_names.with_distinct_names(rows, {"a": old, "b": usual})["model"]) == [
        "m",
        "m",
    ]
    told = model_names.with_distinct_names(rows, {"a": old, "b": other})["model"]
    assert list(told) == ["m (scale=none)", "m (scale=2.0)"]
    rows = _rows(("a", "m"), ("b", "m"), ("c", "m"))
    told = model_names.with_distinct_names(rows, {"a": old, "b": usual, "c": other})["model"]
    assert list(told) == ["m (scale=1.0)", "m (scale=1.0)", "m (scale=2.0)"]
