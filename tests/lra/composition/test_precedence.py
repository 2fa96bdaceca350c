"""What Hydra prints is what runs, and what is stored; and which setting wins over which."""

import itertools
import logging
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from fuzz import cases

from lra.cli import main
from lra.composition.catalogue import names
from lra.composition.compose import typed
from lra.composition.hydra_entry import entries
from lra.composition.own_options import TABLES, matching_options, merge_trees
from lra.composition.run import Composed
from lra.errors import ConfigError
from lra.sweep.cells import Lookups, plan


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What `--info` makes of logging ends with the test, as with its process."""
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


SWEEP = "hydra.sweeper.params={}"


def found(*words: str) -> list[Composed]:
    return entries(list(words))


def one(*words: str) -> dict[str, Any]:
    (entry,) = found(*words)
    return entry.config


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["run", *words, "--cfg", "job", "--resolve"]) == 0
    trees = yaml.safe_load_all(capsys.readouterr().out)
    return [{key: tree[key] for key in tree if key != "search"} for tree in trees]  # of no cell


PRESETS = ("", "", "+protocol=nystrom", "+protocol=lra_code", "+protocol=mega", "+protocol=s4")
EXPERIMENTS = ("", "", "+experiment=quickstart", "+experiment=families_train",
               "+experiment=tasks_train", "+experiment=transfer")  # fmt: skip
VALUES = (
    "optim.steps=20", "optim.steps=2000,30", "model.backbone.depth=3", "model.backbone={depth: 1}",
    "++for_model.performer.model.mixer.features=8", "~for_model", "~for_task", "size=small,base",
    "size=large", "optim=adamw", "++for_task={text: {task: {max_length: 500}}}", "seed=1,2",
    "++for_runner.train.runner.keep=best",
    "++for_task={listops: {optim: {batch_size: 5}}, text: {}}",
    "optim.clip=null", "task.data_seed=${seed}", "optim.warmup_steps=3",
)  # fmt: skip


def line(draw: random.Random) -> list[str]:
    task = draw.choice(["listops", "text", "listops,text"])
    words = [draw.choice(PRESETS), draw.choice(EXPERIMENTS), f"task={task}", "task.source=sample"]
    words += [f"model={draw.choice(['performer', 'nystromformer', 'linear,performer'])}"]
    words += [f"runner={draw.choice(['train', 'scaling', 'certify,train'])}"]
    words += draw.sample(VALUES, draw.randint(0, 3))
    draw.shuffle(words)
    return ["-m", *filter(None, words), "logger=none"]


@pytest.mark.fuzz
def test_what_is_printed_is_planned_and_stored(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by the quick way of sweeps: its trees are those that Hydra prints."""
    draw = random.Random(20_261_122)
    known, compared = Lookups(), 0
    while compared < cases(4):
        words = line(draw)
        try:
            expected = found(*words)
        except ConfigError:
            assert main(["run", *words, "--cfg", "job"]) == 2 or "for_" not in str(words)
            continue
        if len(expected) > 4:
            continue
        compared += 1
        trees = printed(capsys, *words)
        assert trees == [entry.config for entry in expected], words
        for tree, entry in zip(trees, expected, strict=True):
            assert all(tree[table] == {} for table in TABLES), words
            try:
                cells = plan(typed(entry.config, known.tasks), lookups=known)
            except ConfigError as refusal:  # of an option that this task does not have
                with pytest.raises(ConfigError, match=re.escape(str(refusal))):
                    plan(typed(tree, known.tasks), lookups=known)
                continue
            again = plan(typed(tree, known.tasks), lookups=known)
            assert [cell.key for cell in again] == [cell.key for cell in cells], words
            assert all(cell.config == tree for cell in cells), words


def test_one_run_prints_what_it_stores(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("+protocol=s4", "task=image", "model=performer", "seed=3")
    (tree,) = printed(capsys, *words)
    assert tree == one(*words)
    assert tree["optim"]["steps"] == 180_000


@pytest.mark.parametrize("mode", [[], ["-m"]])
@pytest.mark.parametrize("what", [["--cfg", "all"], ["--cfg", "job"], ["--info", "config"]])
def test_every_way_of_printing_shows_the_final_steps(
    what: list[str], mode: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *mode, "+protocol=s4", "task=image", *what]) == 0
    out = capsys.readouterr().out
    assert "steps: 180000" in out
    assert "steps: 120000" not in out  # those of listops


def test_a_part_is_printed_with_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "+protocol=s4", "task=image", "--cfg", "job"]
    assert main([*words, "--package", "optim.steps"]) == 0
    assert capsys.readouterr().out == "180000\n"
    assert main([*words, "--package", "optm"]) == 2
    assert "did you mean 'optim'" in capsys.readouterr().err


def test_a_sweep_prints_every_combination_with_its_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["run", "-m", "+protocol=mega", "task=text,image", "seed=1,2", "--cfg", "job"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "# run 1 of 4: +protocol=mega task=text seed=1\n" in out
    trees = [*yaml.safe_load_all(out)]
    assert [tree["optim"]["steps"] for tree in trees] == [25_000] * 2 + [180_000] * 2
    assert [tree["seed"] for tree in trees] == [1, 2, 1, 2]


def test_a_long_sweep_prints_its_beginning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lra.composition.display.MOST", 2)
    assert main(["run", "-m", "seed=range(0,5)", "--cfg", "job"]) == 0
    out = capsys.readouterr().out
    assert len([*yaml.safe_load_all(out)]) == 2
    assert "# … and 3 more" in out


def depth(*words: str) -> int:
    return int(one("task=listops", "model=longformer", SWEEP, *words)["model"]["backbone"]["depth"])


def test_who_wins(tmp_path: Any) -> None:
    """Each line adds a word that wins over all before it, in any order of the words."""
    for group, text in {
        "model": "name: longformer\nmixer: {class_path: models.families.longformer.Longformer}\n"
        "backbone: {depth: 11}\n",
        "size": "# @package model.backbone\ndepth: 12\n",
        "protocol": "# @package _global_\nprotocol: p\nmodel: {backbone: {depth: 13}}\n",
        "experiment": "# @package _global_\nmodel: {backbone: {depth: 15}}\n",
    }.items():
        (tmp_path / group).mkdir()
        (tmp_path / group / "own.yaml").write_text(text)
    mine = f"--config-dir={tmp_path}"

    def rewrite(group: str, more: str) -> None:
        file = tmp_path / group / "own.yaml"
        file.write_text(file.read_text() + more)

    words: list[str] = ["model=own"]

    def now() -> int:
        shuffled = random.Random(len(words)).sample(words, len(words))
        there = [word for word in shuffled if not word.startswith("model=")]
        config = one(mine, "task=listops", *there, words[0])
        assert config == one(mine, "task=listops", *words)
        return int(config["model"]["backbone"]["depth"])

    assert now() == 2  # the size, which stands behind the model
    words.append("+protocol=own")
    assert now() == 13
    rewrite("protocol", "for_task: {listops: {model: {backbone: {depth: 14}}}}\n")
    assert now() == 14
    words.append("+experiment=own")
    assert now() == 15
    rewrite("experiment", "for_task: {listops: {model: {backbone: {depth: 16}}}}\n")
    assert now() == 16
    depth = "{{model: {{backbone: {{depth: {}}}}}}}".format
    rewrite("experiment", f"for_model: {{longformer: {depth(17)}, linear: {depth(3)}}}\n")
    assert now() == 17
    rewrite("experiment", f"for_runner: {{train: {depth(18)}}}\n")
    assert now() == 18
    entry = {"for_model": {"longformer": {"model": {"backbone": {"depth": 19}}}}}
    file = tmp_path / "experiment" / "own.yaml"
    text = yaml.safe_load(file.read_text())
    text["for_task"]["listops"] |= entry
    file.write_text("# @package _global_\n" + yaml.safe_dump(text))
    assert now() == 19
    words.append("size=own")
    assert now() == 12
    words.append("++for_model.longformer.model.backbone.depth=20")
    assert now() == 20
    words.append("++for_model.longformer.for_task.listops.model.backbone.depth=21")
    assert now() == 21
    words.append("model.backbone={depth: 22}")
    assert now() == 22


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("++model.backbone.depth=7", 7),
        ("size=large", 6),
        ("~for_task", 2),
        ("~for_task.listops.model.backbone.depth", 2),
    ],
)
def test_words_win_over_what_a_protocol_has_for_a_task(word: str, wanted: int) -> None:
    assert depth("+protocol=lra_code") == 4
    assert depth("+protocol=lra_code", word) == wanted


def test_an_optimiser_named_by_hand_wins_over_a_protocol() -> None:
    plain = one("+protocol=lra_code", "task=listops")["optim"]
    assert (plain["steps"], plain["schedule"]) == (5000, "rsqrt")
    named = one("+protocol=lra_code", "task=listops", "optim=adamw", "optim.batch_size=9")["optim"]
    assert (named["steps"], named["schedule"], named["batch_size"]) == (1000, "cosine", 9)


def test_another_optimiser_leaves_the_schedule_of_a_protocol() -> None:
    plain = one("+protocol=lra_code", "task=listops")["optim"]
    named = one("+protocol=lra_code", "task=listops", "optim=lion")["optim"]
    own = ("name", "about", "optimiser", "peak_learning_rate", "betas")
    assert {key: value for key, value in named.items() if key not in own} == {
        key: value for key, value in plain.items() if key not in own
    }
    assert (named["optimiser"], named["peak_learning_rate"]) == ("lion", 1e-4)


def test_a_protocol_without_the_task_is_refused_whatever_a_preset_has() -> None:
    with pytest.raises(ConfigError, match=r"\+protocol=nystrom has no settings for task=mnist"):
        one("+protocol=nystrom", "+experiment=tasks_train", "task=mnist", SWEEP)


def literal(layer: dict[str, Any], chosen: dict[str, str]) -> dict[str, Any]:
    """Return a layer with its own options, by the words of the documentation, path by path."""
    tree: dict[str, Any] = {}
    for asked in (0, 1, 2, 3):
        for tables in itertools.permutations(TABLES, asked):
            node: Any = layer
            for table in tables:
                node = node.get(table, {}).get(chosen[TABLES[table]], {})
            for path, value in _paths({k: v for k, v in node.items() if k not in TABLES}):
                place = tree
                for key in path[:-1]:
                    place = place.setdefault(key, {})
                place[path[-1]] = value
    return tree


def _paths(tree: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    parts = []
    for key, value in tree.items():
        here = (*above, key)
        parts += _paths(value, here) if isinstance(value, dict) else [(here, value)]
    return parts


def tables(draw: random.Random, some: dict[str, list[str]], left: list[str]) -> dict[str, Any]:
    """Return random tables, nested in one another, each name once in a path."""
    found = {}
    for table in left:
        below = [other for other in left if other != table]
        found[table] = {
            name: {"model": {"b": {draw.choice("cd"): draw.random()}}, "optim": {}}
            | (tables(draw, some, below) if draw.random() < 0.7 else {})
            for name in some[TABLES[table]]
            if draw.random() < 0.7
        }
    return found


def test_own_options_are_put_in_their_places() -> None:
    draw = random.Random(4)
    some = {group: draw.sample(names(group), 3) for group in ("model", "task", "runner")}
    for _ in range(cases(200)):
        layer: dict[str, Any] = {"optim": {"steps": 1}, "model": {"a": 1, "b": {"c": 2}}}
        layer |= tables(draw, some, [*TABLES])
        chosen = {group: draw.choice(some[group]) for group in some}
        refined = merge_trees(layer, matching_options(layer, chosen, names, "a test"))
        wanted = literal(layer, chosen)
        if any(isinstance(value, dict) and not value for value in wanted.values()):
            wanted = {key: value for key, value in wanted.items() if value != {}}
        assert {k: v for k, v in refined.items() if k not in TABLES and v != {}} == wanted


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("for_model: {perfomer: {}}", "for_model: unknown model 'perfomer': did you mean"),
        ("for_task: {listops: 3}", "for_task.listops: got 3; wanted a mapping of groups"),
        ("for_task: 3", "for_task: got 3; wanted a mapping"),
        (
            "for_task: {listops: {for_model: {softmax: {optim: 3}}}}",
            "for_task.listops.for_model.softmax.optim: got 3; wanted a mapping of options",
        ),
        ("for_task: {listops: {for_model: {sofmax: {}}}}", "for_task.listops.for_model: unknown"),
        ("for_model: {softmax: {for_task: 3}}", "for_model.softmax.for_task: got 3; wanted"),
        ("for_task: {listops: {modle: {}}}", "for_task.listops: unknown group 'modle'"),
        ("for_task: {listops: {model: 3}}", "for_task.listops.model: got 3; wanted a mapping"),
    ],
)
def test_tables_that_say_nothing_are_refused_with_their_file(
    text: str, complaint: str, tmp_path: Any
) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}\n")
    for mode in ([], ["-m", "seed=1,2"]):
        with pytest.raises(ConfigError) as caught:
            found(f"--config-dir={tmp_path}", "+experiment=mine", "task=listops", *mode)
        assert complaint in str(caught.value)
        assert "+experiment=mine" in str(caught.value)


def test_a_family_of_ones_own_has_options_of_its_own(tmp_path: Any) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "experiment").mkdir()
    for name in ("mine", "other"):
        (tmp_path / "model" / f"{name}.yaml").write_text(
            f"name: {name}\nmixer: {{class_path: models.families.linear.LinearAttention}}\n"
        )
    (tmp_path / "experiment" / "both.yaml").write_text(
        "# @package _global_\nfor_model: {mine: {model: {backbone: {depth: 3}}}, other: {}}\n"
    )
    words = (f"--config-dir={tmp_path}", "+experiment=both", "-m", "model=mine,other")
    assert [e.config["model"]["backbone"]["depth"] for e in found(*words)] == [3, 2]
