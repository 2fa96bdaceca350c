"""The top level of a configuration, and what no result can hold."""

from collections.abc import Iterator
from typing import Any

import pytest

from lra.composition.configuration import LARGEST, OPTIONAL, SWEEP_NAME, TOP, check, quote, storable
from lra.composition.hydra_entry import entries
from lra.composition.placement import keys_of, unknown_key
from lra.errors import OTHER_OPTIONS, ConfigError
from lra.runners import store


@pytest.fixture(scope="module")
def sound() -> Any:
    return entries(["model=linear"])[0].config


def test_what_is_composed_is_sound(sound: Any) -> None:
    check(sound)
    check({**sound, "about": {"summary": "a preset's"}})


def hostile() -> Iterator[tuple[str, Any]]:
    for key in ("model", "task", "hardware", "optim", "runner", "logger"):
        for value in (None, 3, "x", [], {}):
            if (key, value) != ("optim", {}) and (key, value) != ("logger", {}):
                yield key, value
    for value in (None, 1.7, 1.0, True, "1", [1], {}, -1, LARGEST + 1, float("inf")):
        yield "seed", value
    for value in (None, 3, "", " ", "a\0b", []):
        yield "results", value
    for value in (None, "../x", "", "a b", "a/b", 3, "x" * 201, ".x"):
        yield "sweep", value
    for value in (3, "my_package", [3], ["../x"], [""], None, {}):
        yield "plugins", value
    for value in ("maybe", 1, "true", []):
        yield "report", value
    for key in ("for_task", "for_model", "for_runner", "deviations"):
        for value in (3, "x", [], True):
            yield key, value
    for value in (3, None, "", "a\nb", "\ud800", "x" * 300):
        yield "protocol", value
        yield "scale", value
    for value in (3, None, "softmax", [3], [""], {}):
        yield "published_models", value


@pytest.mark.parametrize(("key", "value"), [*hostile()])
def test_a_wrong_value_at_the_top_is_refused_by_name(sound: Any, key: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        check({**sound, key: value})
    assert str(caught.value).startswith(key)
    assert "wanted" in str(caught.value)


@pytest.mark.parametrize("key", sorted(OPTIONAL.intersection(TOP)))
def test_what_is_younger_than_stored_configurations_may_lack(sound: Any, key: str) -> None:
    check({k: v for k, v in sound.items() if k != key})


@pytest.mark.parametrize("key", sorted({*TOP} - OPTIONAL))
def test_a_missing_key_is_named(sound: Any, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is missing; wanted"):
        check({k: v for k, v in sound.items() if k != key})


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [
        ("model", "name", 3),
        ("model", "name", None),
        ("model", "layers", 3),
        ("model", "layers", [3]),
        ("model", "mixer", 3),
        ("model", "mixer", {"class_path": 3}),
        ("model", "backbone", [1]),
        ("task", "class_path", None),
        ("task", "name", "a\nb"),
        ("hardware", "name", True),
        ("runner", "name", ["train"]),
    ],
)
def test_a_wrong_value_in_a_group_is_refused_by_name(
    sound: Any, group: str, key: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=f"{group}.{key}"):
        check({**sound, group: {**sound[group], key: value}})


def test_unknown_keys_answer_with_near_matches(sound: Any) -> None:
    with pytest.raises(ConfigError, match="did you mean 'seed'"):
        check({**sound, "sead": 3})
    with pytest.raises(ConfigError, match="did you mean 'layers'"):
        check({**sound, "model": {**sound["model"], "layer": []}})


def test_a_key_of_its_own_group_is_nearer_than_the_same_word_in_another() -> None:
    keys = ["task.length", "runner.lengths", "runner.batch"]
    assert "did you mean 'runner.lengths'?" in unknown_key("runner.length", "512", keys)
    assert "did you mean 'task.length'?" in unknown_key("optim.length", "512", keys)


def test_what_others_call_an_option_is_answered_with_our_word(sound: Any) -> None:
    keys = [*keys_of(sound)]
    assert {*OTHER_OPTIONS.values()} <= {key.rpartition(".")[2] for key in keys}
    for key, ours in {
        "optim.lr": "'optim.peak_learning_rate'",
        "lr": "'optim.peak_learning_rate'",
        "optim.wd": "'optim.weight_decay'",
        "runner.batch": "'optim.batch_size'",
        "d_model": "'model.backbone.width'",
        "model.mixer.n_heads": "'model.backbone.heads'",
        "model.backbone.layers": "'model.backbone.depth' or 'model.layers'",
    }.items():
        assert f"{key!r}: did you mean {ours}?" in unknown_key(key, "1", keys)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"a": [1.0, {"b": float("nan")}]}, r"^a\[1\]\.b: got nan"),
        ({"a": float("-inf")}, "^a: got -inf"),
        ({"a": 2**63}, "^a: got 9223372036854775808"),
        ({"a": {"b": b"x"}}, r"^a\.b: got b'x'"),
        ({"a": {1: 2}}, "^a: got the key 1"),
        ({"a": "\udc80"}, r"^a: got '\\udc80'"),
    ],
)
def test_what_no_result_can_hold_is_refused_by_name(sound: Any, value: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        storable(value)
    with pytest.raises(ConfigError):
        check({**sound, "model": {**sound["model"], "about": value}})


def test_deep_nesting_is_refused_in_short() -> None:
    deep: Any = 1
    for _ in range(900):
        deep = {"a": deep}
    with pytest.raises(ConfigError, match="nested deeper") as caught:
        storable(deep)
    assert len(str(caught.value)) < 200
    assert len(quote("x" * 10_000)) < 250


def test_sweeps_are_named_as_the_store_names_them() -> None:
    assert SWEEP_NAME.pattern == store._SWEEP_NAME.pattern
