"""Every option that takes a list, of every choice in conf: what is no such list is refused by name.

Found by introspection, so that an option of a new runner, task or family is covered by being there.
"""

from collections.abc import Iterator
from dataclasses import MISSING
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

from lra import cli
from lra.choices.explain import BACKBONE, CLASSES, CONTROL
from lra.composition.binding import bind, schema
from lra.composition.catalogue import choices
from lra.composition.yaml_text import load
from lra.conf.rooms import imported_name
from lra.errors import ConfigError


def located(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(imported_name(module)), name)


def list_options() -> Iterator[tuple[str, str, Any]]:
    """Yield class path, key and type of each option that takes a list or a mapping."""
    paths = [*CLASSES.values(), CONTROL, BACKBONE]
    for group in ("model", "task", "runner"):
        for file in choices(group, ()):
            node = load(file)
            parts = (node, node.get("mixer") or {}, node.get("stack") or {})
            paths += [str(part["class_path"]) for part in parts if "class_path" in part]
    for path in dict.fromkeys(paths):
        for name, (hint, _) in schema(located(path)).items():
            for kind in (hint, *get_args(hint)):
                if get_origin(kind) in (list, dict):
                    yield path, name, kind


OPTIONS = [*list_options()]
DEEP: list[Any] = []
for _ in range(40):
    DEEP = [DEEP]


def wrong(kind: Any) -> list[Any]:
    """Return what is no value of a type."""
    element = get_args(kind)[-1]
    inside: list[Any] = [[], [[1]], {"a": [1]}, DEEP, float("nan"), 10**30, "\ud800"]
    if element is not Any and get_origin(element) is None:
        inside += [{}, [None], {"a": 1}, None, True]
    if element in (int, float):
        inside += ["1", "x", ""]
    if element is int:
        inside += [1.5]
    if element is str:
        inside += [1, 1.5]
    if element is Any or get_origin(element) is not None:
        inside = [float("nan"), 10**30, "\ud800"]
    if get_origin(kind) is dict:
        return [3, "x", [1], [[1]], *({"a": each} for each in inside), {1: 1}]
    return [3, "x", {"a": 1}, *([each] for each in inside)]


def test_there_are_such_options() -> None:
    assert len(OPTIONS) > 25
    assert (CONTROL, "retry") in {(path, name) for path, name, _ in OPTIONS}


@pytest.mark.parametrize(("path", "name", "kind"), OPTIONS)
def test_no_other_value_is_taken_for_a_list(path: str, name: str, kind: Any) -> None:
    known = schema(located(path))
    needed = {key: "x" for key, (_, default) in known.items() if default is MISSING}
    for value in wrong(kind):
        with pytest.raises(ConfigError, match=rf"^node\.{name}") as refused:
            bind(located(path), {**needed, name: value}, "node")
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 700


@pytest.mark.parametrize("word", [
    "runner.retry=[[1]]", "runner.retry=[{a: 1}]", "runner.retry=[null]", "plugins=[[1]]",
    "model.layers=[[1]]", "published_models=[[1]]", "optim.betas=[[1],[2]]", "runner.stages=[[1]]",
    "runner.evaluate_splits=[[test]]", "model.backbone.pool_layers=[{}]",
])  # fmt: skip
def test_the_command_line_says_so_in_a_line(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    added = "" if word.startswith(("runner.retry", "plugins", "model.layers", "runner.e")) else "++"
    words = ["run", "model=linear", "task=listops", "runner=train", f"{added}{word}"]
    assert cli.main([*words, "runner.dry_run=true"]) == 2
    error = capsys.readouterr().err
    assert word.partition("=")[0] in error
    assert len(error.splitlines()) == 1
