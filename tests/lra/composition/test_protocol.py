"""What rows and the keyboard hear of a protocol: its deviations, and who changed it."""

import random

import pytest

from lra.composition import protocol
from lra.composition.catalogue import choices
from lra.composition.compose import typed
from lra.composition.hydra_entry import entries
from lra.composition.unread_options import OF_FILE
from lra.composition.yaml_text import load
from lra.sweep.cells import marks


def config(*words):
    (entry,) = entries([*words, "logger=none"])
    return entry.config


FILES = {file.stem: load(file) for file in choices("protocol")}


@pytest.mark.share(4)
@pytest.mark.parametrize("name", FILES)
def test_nothing_is_changed_by_choosing(name):
    models = random.Random(name).sample([file.stem for file in choices("model")], 4)
    words = [f"+protocol={name}", f"task={','.join(FILES[name]['for_task'])}", "seed=3"]
    words += [f"model={','.join(models)}", "runner=train,scaling", "hardware.threads=1"]
    for entry in entries(["-m", *words, "logger=none"]):
        others = entry.config["model"]["name"] not in entry.config["published_models"]
        own = {f"model.backbone.{option}" for option in OF_FILE if others}
        assert {*protocol.changes(entry.config)} <= own


@pytest.mark.parametrize(
    ("word", "key", "was", "now"),
    [
        ("optim.steps=7000", "optim.steps", 5000, 7000),
        ("optim=sgd", "optim.optimiser", "adamw", "sgd"),
        ("size=large", "model.backbone.depth", 4, 6),
        ("model.backbone.tied_embeddings=false", "model.backbone.tied_embeddings", True, False),
        ("task.max_depth=5", "task.max_depth", 10, 5),
        ("runner.keep=best", "runner.keep", "last", "best"),
        ("hardware.precision=bfloat16", "hardware.precision", "float32", "bfloat16"),
        ("++for_model.softmax.model.backbone.heads=4", "model.backbone.heads", 8, 4),
        ("model.mixer.bias=false", "model.mixer.bias", True, False),
    ],
)
def test_what_other_words_change_is_named(word, key, was, now):
    words = ["runner.evaluate_every_steps=5"] if "keep" in word else []
    found = config("+protocol=lra_code", "task=listops", word, *words)
    assert protocol.changes(found)[key] == (was, now)
    assert key in protocol.marks(found)["changed"].split(", ")
    assert any(f"{key}=" in line for line in protocol.notes([found])) or word == "optim=sgd"


@pytest.mark.parametrize(
    "word",
    ["optim.micro_batch_size=8", "runner.log_every_steps=7", "seed=9", "results=elsewhere",
     "hardware.training_threads=2", "model.backbone.activation_checkpointing=true",
     "task.processes=2", "runner.timeout_s=5"],
)  # fmt: skip
def test_what_moves_no_number_is_no_change(word):
    assert protocol.changes(config("+protocol=lra_code", "task=listops", word)) == {}


def test_micro_batches_of_which_statistics_are_taken_are_a_change():
    words = ("+protocol=nystrom", "task=image", "task.source=sample")
    passes = config(*words, "model=nystromformer")
    assert passes["optim"]["micro_batch_size"] == 128 < passes["optim"]["batch_size"]
    assert {*protocol.changes(passes)} == {"task.source"}
    typed(passes)
    other = config(*words, "model=nystromformer", "optim.micro_batch_size=64")
    assert protocol.changes(other)["optim.micro_batch_size"] == (128, 64)
    saved = config(*words, "model=softmax", "optim.micro_batch_size=64")
    assert {*protocol.changes(saved)} == {"task.source"}


def test_rows_say_what_departs():
    found = config("+protocol=lra_code", "task=image", "model=sinkhorn", "task.source=sample")
    labels = marks(typed(found))
    assert labels["protocol"] == "lra_code"
    assert {"order", "sinkhorn_last", "sinkhorn_image"} <= {*labels["deviations"].split(", ")}
    assert labels["changed"] == "task.source"
    assert "settings" not in labels
    sentences = protocol.deviations(found)
    assert all(len(sentence) > 20 for sentence in sentences.values())


def test_a_model_that_the_source_did_not_train_is_marked(capsys):
    found = config("+protocol=lra_code", "task=listops", "model=cosformer")
    assert protocol.marks(found)["settings"] == "shared"
    assert "the paper did not train cosformer" in capsys.readouterr().err
    config("+protocol=lru", "task=listops")
    assert "the paper did not train softmax" in (said := capsys.readouterr().err)
    assert "the paper trained model=lru\n" in said
    config("+protocol=s4_v1", "task=listops", "model=local")
    assert "lra does not have the model that this paper trained" in capsys.readouterr().err


def test_a_deviation_can_be_taken_back():
    words = ("+protocol=lra_code", "task=listops", "++deviations.order=null")
    assert "order" not in protocol.deviations(config(*words))


def test_the_kernel_decides_what_s4_departs_in_and_is_called():
    words = ("task=listops", "model=s4", "runner=train")
    s4, s4d = config("+protocol=s4", *words), config("+protocol=s4d", *words)
    assert "C (1 - A^n)" in protocol.deviations(s4)["readout"]
    assert "called" not in protocol.marks(s4)
    assert {"called": "s4d", "deviations": "command, end"}.items() <= (protocol.marks(s4d).items())
    today = config("+protocol=s4", *words, "model.mixer.kernel=diagonal")
    assert "readout" not in protocol.deviations(today)
    assert protocol.marks(today)["called"] == "s4d"


def test_without_a_protocol_nothing_is_said(capsys):
    found = config("task=listops")
    assert protocol.marks(found) == {}
    assert protocol.notes([found]) == []
    assert "protocol" not in capsys.readouterr().err


@pytest.mark.share(4)
@pytest.mark.parametrize("name", FILES)
def test_a_protocol_says_what_it_reproduces(name):
    node = FILES[name]
    assert node["protocol"] == name
    assert isinstance(node["published_models"], list)
    assert {*node["published_models"]} <= {file.stem for file in choices("model")}
    assert len(node["about"]["source"]) > 10
