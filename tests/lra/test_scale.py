"""`scale=tiny` makes protocols and presets small, and the presets of published tables are whole."""

import random

import pytest
import torch

from lra.composition import protocol
from lra.composition.catalogue import choices
from lra.composition.compose import build_model, typed
from lra.composition.hydra_entry import entries
from lra.composition.yaml_text import load
from lra.errors import ConfigError
from lra.reports.arena.literature import published_scores
from lra.sweep.cells import marks

MODELS = ("softmax", "local", "sparse_transformer", "longformer", "linformer", "reformer",
          "sinkhorn", "synthesizer", "big_bird", "linear", "performer")  # fmt: skip
TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
PROTOCOLS = {file.stem: load(file) for file in choices("protocol")}


def configs(*words):
    found = entries([*words, "logger=none"])
    return [entry.config for entry in found]


def chosen(found):
    groups = ("runner", "task", "model")
    return [(*(each[group]["name"] for group in groups), each["seed"]) for each in found]


def test_table_1_is_eleven_models_six_tasks_and_baselines():
    found = configs("+experiment=lra_table1", "seed=0", "scale=full")
    assert {each["protocol"] for each in found} == {"lra_code"}
    wanted = {("train", task, model, 0) for task in TASKS for model in MODELS}
    assert {each for each in chosen(found) if each[0] == "train"} == wanted
    assert {each[1] for each in chosen(found) if each[0] == "certify"} == {*TASKS}
    assert all(protocol.marks(each).get("changed") is None for each in found)


def test_every_cell_of_the_nystrom_table_is_printed_in_its_paper():
    found = configs("+experiment=lra_nystrom")
    assert len(found) == 25
    for each in found:
        printed = published_scores("nystrom", each["model"]["name"])
        assert printed[each["task"]["name"]].percent is not None
        marked = marks(typed(each))
        assert (marked["protocol"], marked.get("changed"), marked.get("settings")) == (
            "nystrom", None, None,
        )  # fmt: skip


def test_three_seeds_are_swept():
    found = configs("+experiment=lra_table1", "task=listops", "model=linear", "runner=train")
    assert [each["seed"] for each in found] == [0, 1, 2]


@pytest.mark.parametrize("name", ["lra_table2", "lra_figure3"])
def test_costs_are_of_nine_models_beside_exact_attention(name):
    found = configs(f"+experiment={name}")
    assert [each["model"]["name"] for each in found] == [
        m for m in MODELS if m not in ("sparse_transformer", "longformer")
    ]
    for each in found:
        runner, backbone = each["runner"], each["model"]["backbone"]
        assert (each["task"]["name"], runner["batch"], runner["batch_size"]) == (
            "text",
            "fixed",
            32,
        )
        assert runner["lengths"] == [1000, 2000, 3000, 4000][-1 if name == "lra_figure3" else 0 :]
        assert runner["references"] == ["sdpa", "softmax"]
        assert (backbone["depth"], backbone["width"], backbone["heads"]) == (4, 256, 4)


@pytest.mark.parametrize(
    ("preset", "word"), [("lra_table1", "+protocol=nystrom"), ("lra_figure3", "protocol=nystrom")]
)
def test_a_protocol_by_hand_takes_the_place_of_the_preset_s(preset, word):
    words = ["task=text", "model=linformer", "seed=0", "runner=scaling"]
    for order in ([word, f"+experiment={preset}"], [f"+experiment={preset}", word]):
        (found,) = configs(*order, *words)
        assert (found["protocol"], found["model"]["backbone"]["width"]) == ("nystrom", 64)
        assert found["sweep"] == preset


def test_tasks_that_a_protocol_by_hand_lacks_are_left_out_of_a_preset_s(capsys):
    words = ("+experiment=lra_table1", "+protocol=nystrom", "seed=0", "runner=train")
    tasks = ["listops", "text", "retrieval", "image", "pathfinder"]
    assert [*dict.fromkeys(each["task"]["name"] for each in configs(*words))] == tasks
    assert "11 runs skipped, because +protocol=" in capsys.readouterr().err
    for word in ("task=pathx", "task=listops,pathx"):
        with pytest.raises(
            ConfigError, match="no settings for task=pathx, but for the tasks listop"
        ):
            configs(*words, word)


def test_several_protocols_by_hand_are_a_sweep():
    words = ["+protocol=nystrom,mega", "task=text", "model=linformer", "seed=0", "runner=train"]
    found = configs("-m", "+experiment=lra_table1", *words)
    assert [each["protocol"] for each in found] == ["nystrom", "mega"]


def test_tiny_stands_behind_protocol_and_preset_and_before_other_words(tmp_path):
    (tmp_path / "experiment").mkdir()
    preset = "# @package _global_\ndefaults: [/protocol: lra_code]\noptim: {steps: 300}\n"
    (tmp_path / "experiment/mine.yaml").write_text(preset)
    plain, tiny, ours = (
        configs("--config-dir", str(tmp_path), "+experiment=mine", "task=text", "model=linear",
                "runner=train", *words)[0]
        for words in ((), ("scale=tiny",), ("optim.steps=7", "size=small", "scale=tiny"))
    )  # fmt: skip
    assert (plain["optim"]["steps"], plain["scale"]) == (300, "full")
    assert (tiny["optim"]["steps"], tiny["scale"]) == (100, "tiny")
    assert (tiny["task"]["max_length"], plain["task"]["max_length"]) == (256, 1000)
    assert (ours["optim"]["steps"], ours["model"]["backbone"]["depth"]) == (7, 4)
    for kept in ("schedule", "weight_decay", "betas"):
        assert tiny["optim"][kept] == plain["optim"][kept]
    for kept in ("pooling", "padding", "positions", "cls_keep"):
        assert tiny["model"]["backbone"][kept] == plain["model"]["backbone"][kept]


def test_rows_say_the_scale_and_what_else_was_changed():
    words = ["+protocol=lra_code", "task=listops", "scale=tiny"]
    found = marks(typed(configs(*words)[0]))
    assert found["scale"] == "tiny"
    assert "changed" not in found
    found = marks(typed(configs(*words, "optim.steps=7")[0]))
    assert (found["scale"], found["changed"]) == ("tiny", "optim.steps")
    (costs,) = configs(*words, "runner=scaling", "runner.lengths=[64]")
    assert protocol.changes(costs) == {}
    baselines = typed(configs("task=listops", "runner=certify", "scale=tiny")[0])
    assert marks(baselines) == {"scale": "tiny"}
    assert "scale" not in marks(typed(configs("task=listops", "runner=certify")[0]))


def test_a_run_of_another_scale_says_so(capsys):
    configs("task=listops", "scale=tiny")
    assert capsys.readouterr().err.startswith("lra: scale=tiny makes ")
    configs("task=listops")
    assert "scale" not in capsys.readouterr().err


def test_an_unknown_scale_is_answered_with_those_there_are():
    with pytest.raises(ConfigError, match=r"unknown scale 'tiney'.*tiny"):
        configs("scale=tiney")


def test_every_model_of_the_code_s_protocol_is_built_at_tiny_scale():
    for config in configs("+experiment=lra_table1", "runner=train", "seed=0", "scale=tiny"):
        run = typed(config)
        with torch.device("meta"):
            model = build_model(run)
        # Synthesizer's own matrices, one for each head, are as large as the sequence allows
        most = 3e8 if (run.model, run.task_name) == ("synthesizer", "pathx") else 5e6
        assert sum(p.numel() for p in model.parameters()) < most, (run.model, run.task_name)
        published = PROTOCOLS["lra_code"]["for_task"][run.task_name]
        assert run.task.spec.max_length <= 16384
        assert run.optim.steps < published["optim"]["steps"]
        assert marks(run)["scale"] == "tiny"
        assert protocol.changes(config) == {}


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, layer in PROTOCOLS.items()
        if layer["published_models"] and {*TASKS}.intersection(layer["for_task"])
        if name != "lra_code"
    ],
)
def test_every_protocol_is_built_at_tiny_scale(name):
    layer = PROTOCOLS[name]
    own = [*layer["for_task"]]
    tasks = [task for task in own if task in TASKS] or [task for task in own if task != "pg19"]
    models = [model for model in layer["published_models"] if model != "sdpa"]
    models = random.Random(name).sample(models, 1)
    words = [f"+protocol={name}", f"task={','.join(tasks)}", f"model={','.join(models)}"]
    for config in configs("-m", *words, "scale=tiny", "runner=train"):
        run = typed(config)
        with torch.device("meta"):
            build_model(run)
        assert protocol.changes(config) == {}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("model=linear", True),
        ("-m model=linear seed=0,1", True),
        ("size=base", False),
        ("model.backbone.depth=3", False),
        ("+experiment=families_train", False),
        ("+protocol=lra_code", False),
        ("runner=scaling", False),
    ],
)
def test_a_training_of_the_default_size_is_called_a_first_look(words, says):
    found = configs(*words.split(), "task.source=sample")
    looks = {look for each in found if (look := protocol.first_look(each))}
    small = "This is a small test model (2 layers, width 64)"
    assert [look.partition(".")[0] for look in looks] == [small] * says


def test_stores_that_call_the_full_scale_published_are_read():
    assert protocol.scale({"scale": "published"}) == protocol.scale({}) == protocol.FULL
