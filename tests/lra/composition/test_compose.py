"""Names become objects, or a message that a person can act on."""

import importlib
from enum import StrEnum, auto
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch

from lra.composition.binding import bind, make, schema
from lra.composition.class_path import name_plugins
from lra.composition.compose import (
    TASK,
    build_model,
    build_task,
    core_of,
    group_file,
    locate,
    typed,
)
from lra.composition.hydra_entry import entries
from lra.composition.lookup import named_task
from lra.composition.run import Control
from lra.errors import ConfigError
from lra.sweep.cells import plan
from lra.tasks.task import Task


class Colour(StrEnum):
    red = auto()
    blue = auto()


class Painter:
    def __init__(
        self,
        site: object,
        *,
        colour: Colour = Colour.red,
        coats: int = 2,
        per: list[int] = [1],  # noqa: B006
    ) -> None:
        if coats < 1:
            raise ValueError(f"coats must be at least 1: got {coats}")
        self.what = (colour, coats, per)


def test_defaults_are_not_shared_between_instances() -> None:
    bind(Painter, {}, "mixer")["per"].append(9)
    assert bind(Painter, {}, "mixer")["per"] == [1]


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"colur": "red"}, ["mixer", "colur", "did you mean 'colour'"]),
        ({"coats": "many"}, ["mixer.coats", "many", "a whole number"]),
        ({"colour": "green"}, ["mixer.colour", "green", "red, blue"]),
        ({"per": 3}, ["mixer.per"]),
    ],
)
def test_bad_options_name_key_value_and_way_out(node: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        bind(Painter, node, "mixer")
    for word in words:
        assert word in str(caught.value)


def test_a_refused_value_names_its_place() -> None:
    def paint(*, coats: int = 1) -> None:
        raise ValueError(f"coats must be odd: got {coats}")

    with pytest.raises(ConfigError, match="house: coats must be odd: got 2"):
        make(paint, {"coats": 2}, "house")


def test_open_signatures_are_refused() -> None:
    def careless(**rest: int) -> None: ...

    with pytest.raises(ConfigError, match="keyword-only and have a type annotation"):
        schema(careless)


@pytest.mark.parametrize("path", ["os.path.join", "subprocess.Popen", "lra.commands.run.main"])
def test_locate_refuses_what_is_not_listed(path: str) -> None:
    with pytest.raises(ConfigError, match="lies outside models, tasks"):
        locate(path)


@pytest.mark.parametrize("path", ["models.families.linear", "models.mixer.INSIDE"])
def test_locate_refuses_what_is_no_class(path: str) -> None:
    assert importlib.import_module("lra.models.families.linear")
    with pytest.raises(ConfigError, match="wanted a class or a function"):
        locate(path)


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "torn_package.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    name_plugins(["torn_package"])
    with pytest.raises(ConfigError, match=r"torn_package failed with ZeroDivisionError"):
        locate("torn_package.Mixer", ["torn_package"])


@pytest.mark.parametrize(
    ("node", "complaint"),
    [
        ({"class_path": "models.mixer.Unsupported"}, "has no parameter `site`"),
        ({"class_path": "tasks.classification.listops.task.ListOps"}, "has no parameter `site`"),
    ],
)
def test_what_is_no_mixer_is_refused(node: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        core_of({"name": "mine", "mixer": node}, ())


def test_what_is_no_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="which lacks spec, "):
        build_task({"class_path": "models.backbone.config.BackboneConfig"})


def test_runners_are_found_where_older_stores_know_them():
    assert locate("runners.train.Train") is locate("runners.measures.train.Train")
    with pytest.raises(ConfigError, match="did you mean"):
        locate("runners.trian.Train")


def test_a_task_has_no_incidental_options_unless_it_names_some() -> None:
    class Plain(Task): ...

    class Bare:
        spec = prepare = batches = tally = None

    assert Plain.incidental == frozenset()
    assert [name for name in TASK if not hasattr(Bare, name)] == ["incidental"]


def test_files_of_ours_are_handed_out_as_copies() -> None:
    group_file("model", "linear")["mixer"]["chunk"] = -1
    assert group_file("model", "linear")["mixer"]["chunk"] > 0


def test_locate_suggests_a_class() -> None:
    with pytest.raises(ConfigError, match="did you mean 'Performer'"):
        locate("models.families.performer.Perfomer")


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("model.layers=[linear,linear,linear,mine]", "model.layers"),
        ("runner.references=[mine]", "runner.references"),
    ],
)
def test_a_family_of_ones_own_stands_beside_no_other(word: str, key: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    text = (Path(str(files("lra.conf"))) / "model" / "linear.yaml").read_text()
    (tmp_path / "model" / "mine.yaml").write_text(text.replace("name: linear", "name: mine"))
    words = ["model=linear", "size=small", "runner=scaling", f"--config-dir={tmp_path}"]
    (sound,) = entries([*words, "model=mine"])
    assert plan(typed(sound.config))
    (entry,) = entries([*words, word])
    with pytest.raises(ConfigError, match=rf"^{key}: unknown model 'mine'.*use model=NAME$"):
        plan(typed(entry.config))


@pytest.mark.parametrize(("shard", "part"), [(None, (1, 1)), ("2/8", (2, 8))])
def test_shard(shard: str | None, part: tuple[int, int]) -> None:
    assert Control(shard=shard).part() == part


@pytest.mark.parametrize("shard", ["0/2", "3/2", "x", "1/0", "1"])
def test_bad_shards(shard: str) -> None:
    with pytest.raises(ConfigError, match="wanted i/n"):
        Control(shard=shard).part()


def _options(group: str) -> list[Any]:
    return sorted(
        p.name[:-5] for p in (files("lra.conf") / group).iterdir() if p.name[-5:] == ".yaml"
    )


@pytest.mark.parametrize("name", _options("model"))
def test_model_yaml_lists_exactly_the_constructor(name: str) -> None:
    node = group_file("model", name)
    assert node["name"] == name
    core = node["stack" if "stack" in node else "mixer"]
    options = {k: v for k, v in core.items() if k != "class_path"}
    assert set(options) == set(schema(locate(core["class_path"])))
    core_of(node, ())  # types agree


@pytest.mark.parametrize("name", _options("task"))
def test_task_yaml_lists_exactly_the_constructor(name: str) -> None:
    node = group_file("task", name)
    options = {k: v for k, v in node.items() if k not in {"name", "about", "class_path"}}
    assert set(options) == set(schema(locate(node["class_path"])))
    if name == "table":
        with pytest.raises(ConfigError, match=r"set either task\.train"):
            named_task(name)
    elif name == "text_pairs":
        with pytest.raises(ConfigError, match=r"task\.train must be a file of pairs"):
            named_task(name)
    elif name == "corpus":
        with pytest.raises(ConfigError, match=r"task\.train must name your text: got null"):
            named_task(name)
    elif name in {"retrieval", "pg19", "proteins", "proteins_masked"}:  # they need files
        assert named_task(name, ["source=sample"]).spec.name in name
    else:
        assert named_task(name).spec.name == name


def test_a_reference_of_a_pooled_model_keeps_its_length():
    words = ["model=funnel", "runner=scaling", "model.backbone.depth=3"]
    (entry,) = entries(words)
    run = typed(entry.config)
    with torch.device("meta"):
        own, reference = (build_model(run, max_length=64, name=name) for name in ("model", "sdpa"))
        tokens = torch.zeros(2, 1, 63, dtype=torch.long)
        lengths = [model.run(tokens, None, None).x.shape[1] for model in (own, reference)]
    assert lengths == [1 + 16, 64]


def test_layers_of_another_family_have_options_of_their_own() -> None:
    words = ["model=sdpa", "model.layers=[local,sdpa]", "model.backbone.depth=2", "logger=none"]
    config = entries(words)[0].config
    plain = typed(config).mixer_options["others"]["local"]
    config["model"]["layer_options"] = {"local": {"block": 16, "look_back": 1}}
    assert typed(config).mixer_options["others"]["local"] == {**plain, "block": 16, "look_back": 1}
    config["model"]["layer_options"] = {"local": {"blok": 16}}
    with pytest.raises(ConfigError, match=r"model.layer_options.local: .*did you mean 'block'"):
        typed(config)
    config["model"]["layer_options"] = {"loca": {"block": 16}}
    with pytest.raises(ConfigError, match=r"unknown layer 'loca': did you mean 'local'"):
        typed(config)
