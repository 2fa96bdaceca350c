"""Differently configured runs of one model never share a row."""

from typing import Any

import pandas as pd
import pytest

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


def _seeded(seed: int) -> dict[str, Any]:
    return {"mixer": {"features": 4}, "seed": seed, "runner": {"name": "train"}}


def _started(seed: int, training: str | None, qk: str = "trained") -> dict[str, Any]:
    trainings = {} if training is None else {"trainings": {"softmax": training}}
    return {"seed": seed, "runner": {"qk": qk}} | trainings


def _from(training: str, positions: str) -> dict[str, Any]:
    return {
        "backbone": {"positions": positions}, "seed": 0, "trainings": {"model": training},
    }  # fmt: skip


def _tuned(source: str, seed: int) -> dict[str, Any]:
    begun = {} if source == "scratch" else {"trainings": {source: f"key {seed}"}}
    return {"runner": {"name": "transfer", "source": source}, "seed": seed, **begun}


LAYERS = {"variant": "lra", "layers": ["m", "o"], "others": {"o": {"bias": True}}}
NAMES = {
    "seeds share a name": ([_seeded(0), _seeded(1)], ["m", "m"]),
    "what labels name is not named twice": (
        [{"mixer": {"variant": "faithful"}}, {"mixer": LAYERS}], ["m", "m"]),
    "options of other families are named for equal layers": (
        [{"mixer": LAYERS}, {"mixer": {**LAYERS, "others": {"o": {"bias": False}}}}],
        ["m (others.o.bias=True)", "m (others.o.bias=False)"]),
    "a training for each seed, or in some modes, is no difference": (
        [_started(0, "x"), _started(1, "y"), _started(0, None, "random")], ["m", "m", "m"]),
    "other trainings of one seed are": (
        [_started(0, "x"), _started(0, "y")],
        ["m (trainings.softmax=x)", "m (trainings.softmax=y)"]),
    "trainings are named by what differs in the open": (
        [_from("t1", "rotary"), _from("t2", "alibi")],
        ["m (positions=rotary)", "m (positions=alibi)"]),
    "and by themselves where nothing does": (
        [_from("t1", "rotary"), _from("t2", "rotary")],
        ["m (trainings.model=t1)", "m (trainings.model=t2)"]),
    "where weights come from is named by its label": (
        [_tuned("s", 0), _tuned("s", 1), _tuned("scratch", 0)], ["m", "m", "m"]),
}  # fmt: skip
"""Identities of cells of one model, and what they are called."""


@pytest.mark.parametrize(("lengths", "told"), [((32, 64), True), ((32, 32), False)])
def test_what_the_columns_of_a_table_tell_is_not_named(lengths, told) -> None:
    cells = {c: {"task": {"data": c, "options": {"size": n}}} for n, c in enumerate("ab")}
    rows = _rows(("a", "m"), ("b", "m")).assign(length=lengths)
    names = {*with_distinct_names(rows, cells)["model"]}
    both = {f"m (task.data={c}, task.options.size={n})" for n, c in enumerate("ab")}
    assert names == ({"m"} if told else both)


@pytest.mark.parametrize("case", NAMES)
def test_cells_are_called_by_what_differs(case: str) -> None:
    identities, names = NAMES[case]
    cells = dict(zip("abc", identities, strict=False))
    rows = with_distinct_names(_rows(*((cell, "m") for cell in cells)), cells)
    assert list(rows["model"]) == names


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
