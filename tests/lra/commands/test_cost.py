"""`lra show --cost`, on words and on a stored cell."""

import json

import pytest

from lra.cli import main
from lra.composition.hydra_entry import entries
from lra.runners.records import Measurement
from lra.runners.store import Store
from lra.sweep.cell_list import build

MODEL = ["task=listops", "model.backbone.width=16", "model.backbone.feed_forward_width=32"]


def told(capsys, *words: str) -> list[dict]:
    assert main(["show", "--cost", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["models"]


def test_several_models_and_lengths(capsys):
    found = told(capsys, "model=softmax,linear", *MODEL, "--lengths", "64,128")
    assert [(each["model"], each["length"]) for each in found] == [
        ("softmax", 64), ("softmax", 128), ("linear", 64), ("linear", 128),
    ]  # fmt: skip
    work = [each["multiply_adds"] for each in found]
    assert work[1] > 2 * work[0]
    parts = {part["part"]: part for part in found[0]["parts"]}
    assert parts["network"]["layers"] == [1, 2]
    assert parts["network"]["multiply_adds_each"] == 65 * 2 * 16 * 32


def test_of_several_models_one_that_is_refused_is_named(capsys):
    assert main(["show", "--cost", "model=linformer,linear", "task=text8", "--lengths=32"]) == 0
    text = capsys.readouterr().out
    assert "linear on text8, for one example of 32 tokens" in text
    assert "model=linformer cannot be counted on task=text8: every slot of Linformer" in text


def test_the_table_folds_layers_and_names_them(capsys):
    words = ("model=softmax", *MODEL, "model.backbone.depth=6", "model.backbone.layer_groups=2")
    assert main(["show", "--cost", *words, "--lengths=64"]) == 0
    text = capsys.readouterr().out
    assert "softmax on listops, for one example of 64 tokens" in text
    assert "layers 1 to 6: mixer SoftmaxAttention (shared)" in text
    assert "its parameters count once" in text


def test_every_pass_of_a_loop_counts_and_its_parameters_once(capsys):
    words = ("model=softmax", *MODEL, "model.backbone.depth=4", "--lengths=64")
    loop = ("model.backbone.loop_first=1", "model.backbone.loop_last=2")
    (plain,), (looped,) = (
        told(capsys, *words),
        told(capsys, *words, *loop, "model.backbone.loop_passes=3"),
    )
    assert looped["parameters"] == plain["parameters"]
    of_layers = [
        {part["part"]: part["uses"] * part["multiply_adds_each"] for part in found["parts"]}
        for found in (plain, looped)
    ]
    for name in ("mixer", "network"):
        assert of_layers[1][name] == 2 * of_layers[0][name]  # 8 layers in the place of 4


def test_a_stored_cell_at_its_own_length(tmp_path, capsys):
    words = ("model=linear", *MODEL, "runner=scaling", "runner.lengths=[32]", "logger=none")
    cell = build(entries([*words, "runner.modes=[forward]"])).planned[0].cell
    Store(tmp_path).write(cell, [Measurement(metric="time", value=1.0)], (), {})
    (stored,) = told(capsys, cell.key[:8], "--results", str(tmp_path))
    (composed,) = told(capsys, *words, "--lengths", "32")
    assert stored == composed
    assert stored["length"] == 32


def test_what_depends_on_contents_is_named(capsys):
    words = ("model=softmax", "task=wikitext2", "task.source=sample",
             "model.backbone.embedding=adaptive", "model.backbone.softmax=adaptive",
             "model.backbone.softmax_cutoffs=[20,100]")  # fmt: skip
    (found,) = told(capsys, *words)
    assert not found["complete"]
    assert found["parts"][0]["multiply_adds_each"] is None
    assert found["multiply_adds"] == sum(
        part["uses"] * (part["multiply_adds_each"] or 0) for part in found["parts"]
    )


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--cost"], "--cost needs a stored run or arguments of lra run"),
        (["--cost", "3fa9", "4fb0"], "counts one stored run at a time, but got 3fa9 4fb0"),
        (["--cost", "3fa9", "--results", "nowhere"], "set its path by --results DIR"),
        (["--cost", "model=softmax", "--results", "nowhere"], "remove one of the two"),
        (
            ["--cost", "runner=certify"],
            "runner=certify runs no model, so there is nothing to count",
        ),
        (["--cost", "model=linformer", "task=text8"], "choose a causal family"),
        (["--cost", "model=sofmax"], "did you mean 'softmax'"),
        (["model=softmax"], "model=softmax needs --cost"),
        (["3fa9", "--lengths", "64"], "--lengths needs --cost"),
    ],
)
def test_refusals(words, answer, capsys):
    assert main(["show", *words]) == 2
    assert answer in capsys.readouterr().err


def test_a_length_that_is_none(capsys):
    with pytest.raises(SystemExit):
        main(["show", "--cost", "model=softmax", "--lengths", "64,0"])
    assert "got '64,0'; wanted whole numbers from 1" in capsys.readouterr().err
