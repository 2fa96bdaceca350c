import json
from pathlib import Path

import pytest

from lra.choices.traits import describe_traits
from lra.cli import main
from lra.commands import list as listing
from lra.composition import catalogue, yaml_text
from lra.errors import OTHER_NAMES, UnknownName


def write(folder, group, name, text):
    (folder / group).mkdir(exist_ok=True, parents=True)
    (folder / group / f"{name}.yaml").write_text(text)


def test_every_choice_of_ours_says_what_it_is():
    found = {group: catalogue.entries(group) for group in catalogue.groups()}
    assert {"model", "task", "hardware", "logger", "experiment"} <= found.keys()
    silent = [e.file for entries in found.values() for e in entries if not e.summary]
    assert silent == []
    unsourced = [e.file for g in ("model", "task") for e in found[g] if not e.source]
    assert unsourced == []


def test_one_line_each_with_its_source(capsys):
    assert main(["list", "models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "models  (model=NAME)"
    assert len([line for line in lines if line[:3].strip()]) == 1 + len(catalogue.names("model"))
    assert max(map(len, lines)) <= 100
    (line,) = [line for line in lines if line.startswith("  performer ")]
    assert "arXiv:2009.14794" in line


def test_groups_answer_to_singular_and_plural(capsys):
    assert main(["list", "task"]) == 0
    singular = capsys.readouterr().out
    assert main(["list", "tasks"]) == 0
    assert capsys.readouterr().out == singular


@pytest.mark.parametrize(
    ("words", "heads"),
    [
        ("performer linear", ["model=performer", "model=linear"]),
        ("models performer linear", ["model=performer", "model=linear"]),
        ("reformer", ["model=reformer", "+protocol=reformer", "+experiment=reformer"]),
        ("runner search", ["runner=search"]),  # a group's name, too
        ("MQA GQA", ["model=multi_query", "model=grouped_query"]),
        ("S4D", ["model=s4", "+protocol=s4", "+protocol=s4d"]),
        ("RoPE", ["+protocol=rotary"]),
        ("model FlashAttention Mamba-1", ["model=sdpa", "model=mamba"]),
    ],
)
def test_several_names_are_explained_one_after_the_other(words, heads, capsys):
    assert main(["list", *words.split()]) == 0
    starts = [line for line in capsys.readouterr().out.splitlines() if line[:1].strip()]
    assert [line.partition(":")[0] for line in starts if "=" in line.split()[0]] == heads


def test_other_names_lead_to_choices_and_are_none_themselves():
    every = {name for group in catalogue.groups() for name in catalogue.names(group)}
    assert {*OTHER_NAMES.values()} <= every
    assert not every & {*OTHER_NAMES} - {"full", "published", "recall", "s4d"}


def test_several_groups_are_listed_one_after_the_other(capsys):
    assert main(["list", "sizes", "hardware"]) == 0
    lines = capsys.readouterr().out.splitlines()
    starts = [line for line in lines if line[:1].strip()]
    assert starts == ["sizes  (size=NAME)", "hardware  (hardware=NAME)"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("linear models", "got the group 'models' after a name; type the group first, or omit it"),
        ("linear perfomer", "unknown name 'perfomer': did you mean 'performer' or "),
        ("tasks linear", "unknown task 'linear'"),
        ("modles", "unknown group 'modles': did you mean 'models'?"),
        ("H3", "unknown name 'H3'. Known names: a100, "),
        ("modles linear", "did you mean 'models'"),
        ("perfomer", "did you mean 'performer'"),
        ("model lineer", "unknown model 'lineer': did you mean 'linear'"),
    ],
)
def test_words_that_name_nothing_or_do_not_go_together_are_refused(words, said, capsys):
    assert main(["list", *words.split()]) == 2
    assert said in capsys.readouterr().err


def test_json_holds_the_same(capsys):
    assert main(["list", "hardware", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in found] == catalogue.names("hardware")
    assert all(Path(entry["file"]).is_file() for entry in found)


def test_a_folder_of_the_users_own_is_listed_too_and_wins(tmp_path, capsys):
    write(tmp_path, "model", "mine", "name: mine\nabout: {summary: my own, paper: 'arXiv:1'}\n")
    write(tmp_path, "model", "softmax", "name: softmax\nabout: {summary: another softmax}\n")
    write(tmp_path, "dish", "soup", "# Hot and good. Eat slowly.\nname: soup\n")
    assert main(["list", "--config-dir", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "mine" in text
    assert "another softmax" in text
    assert "literal softmax" not in text
    assert "dishes  (+dish=NAME)" in text
    assert "Hot and good\n" in text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name: [", "bad.yaml is not YAML"),
        ("- a\n- b\n", "bad.yaml: got a list; wanted a mapping"),
        ("about: words\n", "the key about: got 'words'; wanted a mapping"),
    ],
)
def test_a_malformed_file_is_named(tmp_path, text, complaint):
    write(tmp_path, "model", "bad", text)
    with pytest.raises(ValueError, match=complaint):
        catalogue.entries("model", [tmp_path])


def test_the_opening_comment_stands_in_for_about():
    text = "# @package _global_\n# Small and\n# quick. It does not rank.\nname: a\n# not this\n"
    assert catalogue.opening_comment(text) == "Small and quick"
    assert catalogue.opening_comment("name: a\n# not this\n") == ""


def test_groups_without_a_default_take_a_plus():
    words = catalogue.words()
    assert words["model"] == "model"
    assert words["experiment"] == "+experiment"


def test_traits_are_read_off_instances_without_weights(capsys):
    assert main(["list", "models", "--traits", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["broken"] == {}
    assert found["models"].keys() == set(catalogue.names("model"))
    softmax, linear = found["models"]["softmax"], found["models"]["linear"]
    assert softmax["operations"] == softmax["memory"] == {"exponent": 2.0, "log": False}
    assert linear["operations"] == {"exponent": 1.0, "log": False}
    assert linear["directions"] == ["bidirectional", "causal"]
    assert linear["state"] is True


def test_what_one_direction_can_attend_to_is_not_lost_in_the_other():
    model = yaml_text.load(catalogue.choices("model", [])[0].parent / "linear.yaml")
    assert describe_traits(model)["directions"] == ["bidirectional", "causal"]
    assert describe_traits(model)["cross"]


def test_traits_as_a_table(capsys):
    assert main(["list", "--traits"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["model", "directions", "operations"]
    (line,) = [line for line in lines if line.startswith("sdpa ")]
    assert line.split()[1:4] == ["both", "n²", "n"]
    (line,) = [line for line in lines if line.startswith("fnet ")]
    assert line.split()[1:6] == ["bidirectional", "n", "log", "n", "n"]


def test_a_model_that_cannot_be_built_is_told_and_fails(tmp_path, capsys):
    write(tmp_path, "model", "mine", "mixer: {class_path: models.families.linear.Linaer}\n")
    assert main(["list", "models", "--traits", "--config-dir", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "model=mine cannot be built" in text
    assert "Linaer" in text


def test_a_refused_direction_is_told_with_the_reason(tmp_path, capsys, monkeypatch):
    (tmp_path / "one_way.py").write_text(
        "from torch import nn\n"
        "from lra.models.mixer import Unsupported, Traits\n"
        "class OneWay(nn.Module):\n"
        "    def __init__(self, site):\n"
        "        super().__init__()\n"
        "        if site.causal:\n"
        "            raise Unsupported('it looks both ways')\n"
        "        self.traits = Traits()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path, "model", "mine", "mixer: {class_path: one_way.OneWay}\n")
    words = ["list", "--traits", "--config-dir", str(tmp_path), "--plugin", "one_way"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "model=mine is not causal: it looks both ways" in text
    assert "bidirectional" in text


def test_traits_of_the_models_that_are_named(capsys):
    assert main(["list", "sdpa", "reformer", "--traits", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"].keys() == {"sdpa", "reformer"}


def test_traits_are_for_models_only():
    with pytest.raises(UnknownName, match="--traits describes models only"):
        listing.main(["tasks", "--traits"])
