"""Names of the cells of a sweep: told apart by exactly the options that differ."""

import random
from collections import defaultdict
from typing import Any

import pytest
from fuzz import cases
from small_sweeps import TINY

from lra.composition.hydra_entry import entries
from lra.composition.runner_class import our_runners
from lra.runners.records import CELL_COLUMNS, Cell
from lra.sweep import cell_list
from lra.sweep.overview import overview
from lra.sweep.titles import title, titles

WILD = (None, True, False, 0, 1, 0.5, "", "a", "a, b=1", "1", "null", "[1]", [1], ["1"], [1, 2],
        {}, [{}], "x" * 200, "x" * 199 + "y", "\x1b[2J", "ü", "\n")  # fmt: skip
TAME = (1, 2, 0.5, "rotary", None, True)
OPTIONS = ("mixer.window", "mixer.inner.window", "optim.steps", "optim.betas", "backbone.depth",
           "task.options.length", "runner.length", "precision", "threads")  # fmt: skip


def made(
    identity: dict[str, Any],
    *,
    runner: str = "train",
    model: str = "linear",
    task: str = "listops",
    length: int = 8,
    seed: int = 0,
) -> Cell:
    mode = "step" if our_runners()[runner].by_length else runner
    columns = dict.fromkeys(CELL_COLUMNS, "") | {
        "runner": runner, "mode": mode, "model": model, "task": task, "length": length,
        "seed": seed, "threads": 1,
    }  # fmt: skip
    own = {"runner": {"name": runner}, "task": {"name": task}, "model": model, "length": length,
           "seed": seed, "mode": mode}  # fmt: skip
    return Cell(identity=merged(own, identity), columns=columns, config={})


def merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    found = dict(base)
    for name, value in more.items():
        both = isinstance(value, dict) and isinstance(found.get(name), dict)
        found[name] = merged(found[name], value) if both else value
    return found


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return tree


def named(cells: list[Cell], trainings: dict[str, Cell] | None = None) -> list[str]:
    found = titles([(cell, trainings or {}) for cell in cells])
    return [found[cell.key] for cell in cells]


def drawn(draw: random.Random, values: tuple[Any, ...]) -> tuple[list[Cell], list[dict[str, Any]]]:
    """Cells of a sweep with random options, no two of one key, and the options of each."""
    cells: dict[str, tuple[Cell, dict[str, Any]]] = {}
    for _ in range(draw.randrange(1, 12)):
        flat = {name: draw.choice(values) for name in OPTIONS if draw.random() < 0.7}
        cell = made(
            nested(flat),
            runner=draw.choice(["train", "scaling", "decode", "transfer", "certify"]),
            model=draw.choice(["linear", "softmax"]),
            task=draw.choice(["listops", "text"]),
            length=draw.choice([8, 16]),
            seed=draw.choice([0, 1]),
        )
        cells[cell.key] = (cell, flat)
    return [cell for cell, _ in cells.values()], [flat for _, flat in cells.values()]


@pytest.mark.parametrize("seed", range(cases(15)))
def test_no_two_cells_have_one_name(seed: int) -> None:
    draw = random.Random(seed)
    cells, _ = drawn(draw, WILD)
    found = dict(zip((cell.key for cell in cells), named(cells), strict=True))
    assert len(set(found.values())) == len(cells)
    assert all(found[cell.key].startswith(title(cell)) for cell in cells)
    assert all(name.isprintable() for name in found.values())
    draw.shuffle(cells)
    again = dict(zip((cell.key for cell in cells), named(cells), strict=True))
    assert again == found


@pytest.mark.parametrize("seed", range(cases(15)))
def test_what_differs_is_named_and_nothing_else(seed: int) -> None:
    cells, options = drawn(random.Random(seed), TAME)
    groups = defaultdict(list)
    for cell, flat in zip(cells, options, strict=True):
        kind = cell.columns["runner"], cell.columns["model"], cell.columns["task"]
        groups[kind].append(flat)
    for cell, flat, name in zip(cells, options, named(cells), strict=True):
        kind = cell.columns["runner"], cell.columns["model"], cell.columns["task"]
        group = groups[kind]
        expected = {
            option for option in flat
            if any(option not in other or other[option] != flat[option]
                   or type(other[option]) is not type(flat[option]) for other in group)
        }  # fmt: skip
        said = name.removeprefix(title(cell)).split(", ")[1:]
        mentioned = {piece.partition("=")[0] for piece in said} - {"seed", "task", "runner"}
        assert len(mentioned) == len(expected), (name, expected)
        words = {option.replace("task.options", "task") for option in expected}
        words = {"hardware.training_threads" if w == "threads" else w for w in words}
        assert all(any(word.endswith(m) for word in words) for m in mentioned), (name, expected)


def test_short_names_stay_unambiguous() -> None:
    cells = [
        made(nested({"mixer.window": [w], "optim.steps": s, "task.options.length": w,
                     "runner.length": w}))
        for w in (16, 32) for s in (400, 800)
    ]  # fmt: skip
    assert named(cells)[1] == (
        "train linear on listops, seed 0, window=16, steps=800, runner.length=16, task.length=16"
    )


def test_values_are_spelt_as_on_the_command_line() -> None:
    values = (None, True, 1e-3, "rotary", [1, 2])
    cells = [made({"optim": {"x": value}}) for value in values]
    said = [name.rpartition(", x=")[2] for name in named(cells)]
    assert said == ["null", "true", "0.001", "rotary", "[1,2]"]


def test_options_of_a_training_tell_apart_what_starts_from_it() -> None:
    pairs = []
    for steps in (4, 6):
        source = made({"optim": {"steps": steps}})
        cell = made({"trainings": {"model": source.key}}, runner="span")
        pairs.append((cell, {"model": source}))
    assert [*titles(pairs).values()] == [
        "span linear on listops, seed 0, steps=4",
        "span linear on listops, seed 0, steps=6",
    ]


def test_new_content_of_a_file_is_the_last_resort() -> None:
    cells = [made({"task": {"data": data}}) for data in ("0a", "0b")]
    assert [name.rpartition(", ")[2] for name in named(cells)] == ["data=0a", "data=0b"]
    seeds = [made({"task": {"data": str(seed)}}, seed=seed) for seed in (0, 1)]
    assert named(seeds) == [title(cell) for cell in seeds]


def test_an_ablation_of_four_cells(tmp_path) -> None:
    words = ["-m", *TINY, f"results={tmp_path}", "model=sliding_window", "optim.steps=6,8",
             "model.mixer.window=[4],[8]"]  # fmt: skip
    sweep = cell_list.build(entries(words))
    base = "train sliding_window on listops, seed 0"
    assert [sweep.titles[planned.cell.key] for planned in sweep.planned] == [
        f"{base}, window={window}, steps={steps}" for steps in (6, 8) for window in (4, 8)
    ]
    listed = [line.partition("train ")[2].partition("; ")[0] for line in overview(sweep)]
    assert listed[:4] == [
        f"{sweep.titles[planned.cell.key].removeprefix('train ')}: never run"
        for planned in sweep.planned
    ]


def test_cells_by_length_name_task_seed_and_runner_where_there_are_several() -> None:
    cells = [
        made({}, runner=runner, task=task, seed=seed)
        for runner in ("scaling", "decode") for task in ("listops", "text") for seed in (0, 1)
    ]  # fmt: skip
    assert named(cells)[0] == "step linear at 8, runner=scaling, seed=0, task=listops"
    assert named(cells[:2]) == ["step linear at 8, seed=0", "step linear at 8, seed=1"]
    assert named(cells[:1]) == ["step linear at 8"]
