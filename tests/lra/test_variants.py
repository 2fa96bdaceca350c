"""Differently configured runs of one model never share a row."""

from typing import Any

import pandas as pd

from lra.variants import tell_apart
from runners.records import COLUMNS


def _rows(*cells: tuple[str, str]) -> pd.DataFrame:
    base: dict[str, Any] = dict.fromkeys(COLUMNS)
    return pd.DataFrame(
        [
            base | {"cell": cell, "model": model, "task": "t", "runner": "train"}
            for cell, model in cells
        ]
    )


def _identity(features: int, seed: int) -> dict[str, Any]:
    return {"mixer": {"features": features}, "seed": seed, "runner": {"name": "train"}}


def test_seeds_share_a_name() -> None:
    rows = tell_apart(_rows(("a", "m"), ("b", "m")), {"a": _identity(4, 0), "b": _identity(4, 1)})
    assert list(rows["model"]) == ["m", "m"]


def test_options_do_not() -> None:
    rows = tell_apart(
        _rows(("a", "m"), ("b", "m"), ("b", "floor/majority"), ("c", "other")),
        {"a": _identity(4, 0), "b": _identity(8, 0), "c": _identity(99, 0)},
    )
    assert list(rows["model"]) == ["m (features=4)", "m (features=8)", "floor/majority", "other"]


def test_what_labels_name_is_not_named_twice() -> None:
    plain = {"mixer": {"variant": "faithful"}}
    hybrid = {"mixer": {"variant": "lra", "layers": ["m", "o"], "others": {"o": {"bias": True}}}}
    rows = tell_apart(_rows(("a", "m"), ("b", "m")), {"a": plain, "b": hybrid})
    assert list(rows["model"]) == ["m", "m"]


def test_where_weights_come_from_is_named_by_its_label() -> None:
    def identity(source: str, seed: int) -> dict[str, Any]:
        begun = {} if source == "scratch" else {"trainings": {source: f"key {seed}"}}
        return {"runner": {"name": "transfer", "source": source}, "seed": seed, **begun}

    rows = tell_apart(
        _rows(("a", "m"), ("b", "m"), ("c", "m")),
        {"a": identity("s", 0), "b": identity("s", 1), "c": identity("scratch", 0)},
    )
    assert list(rows["model"]) == ["m", "m", "m"]
