"""A preset may list variants: lines of arguments, each for further runs of some tasks."""

from collections import Counter
from pathlib import Path

import pytest
import torch

from lra.composition.compose import build_model, typed
from lra.composition.hydra_entry import entries
from lra.errors import ConfigError

MAD = ("+experiment=mad", "runner=train", "model=sdpa", "logger=none")
BASELINE = {
    "mad_recall": {"vocabulary": 16, "length": 127},
    "mad_noisy": {"vocabulary": 32, "length": 127, "noise": 0.2},
    "mad_fuzzy": {"vocabulary": 16, "length": 128},
    "mad_copy": {"symbols": 14, "length": 256, "items": 16},
    "mad_compression": {"vocabulary": 16, "length": 32},
    "mad_memorisation": {"vocabulary": 256, "length": 32},
}
SETTINGS = {"mad_recall": 11, "mad_noisy": 14, "mad_fuzzy": 11, "mad_copy": 13,
            "mad_compression": 11, "mad_memorisation": 6}  # fmt: skip


def tasks(*words: str) -> list[dict]:
    return [entry.config["task"] for entry in entries([*MAD, *words])]


def test_mad_has_66_settings_that_change_one_variable_of_a_baseline() -> None:
    swept = entries([*MAD])
    assert Counter(entry.config["task"]["name"] for entry in swept) == SETTINGS
    seen = set()
    for entry in swept:
        task, steps = entry.config["task"], entry.config["optim"]["steps"]
        usual = BASELINE[task["name"]] | {"train_examples": 12_800}
        if task["name"] == "mad_memorisation":
            usual["train_examples"] = 256
        changed = {name: task[name] for name, value in usual.items() if task[name] != value}
        assert len(changed) <= 1
        seen.add((task["name"], str(changed)))
        rows = task["train_examples"]
        assert steps == 200 * -(-rows // 128)  # 200 epochs, small last batches included
    assert len(seen) == 66


def test_models_have_the_parameters_of_mad_s_but_for_output_biases() -> None:
    attention = 128 * 3 * 128 + 3 * 128 + 128 * 128 + 128
    networks, ids = 3 * 128 * 352, 16 * 128
    layers = 2 * (attention + networks + 2 * 128)
    decoder = 2 * (128 + 128 * 128 + 128)
    for task, wanted in (("mad_recall", 128), ("mad_compression", decoder + 128)):
        (entry,) = entries(["+protocol=mad", "model=sdpa", f"task={task}", "logger=none"])
        with torch.device("meta"):
            model = build_model(typed(entry.config))
        assert sum(p.numel() for p in model.parameters()) == 2 * ids + layers + wanted


def test_a_smaller_scale_leaves_variants_out() -> None:
    small = tasks("scale=tiny")
    assert sorted(task["name"] for task in small) == sorted(SETTINGS)
    assert {task["train_examples"] for task in small} == {256, 800}


def test_typed_arguments_choose_among_variants() -> None:
    assert len(tasks("task=mad_copy")) == 13
    assert len(tasks("task=mad_copy,mad_memorisation")) == 19
    # The six lengths and rows of another number, and the three vocabularies are left.
    few = tasks("task=mad_recall", "task.length=63")
    assert len(few) == 8
    assert {task["length"] for task in few} == {63}
    assert len(tasks("task=mad_memorisation", "task.vocabulary=64")) == 1
    assert len(tasks("hydra.sweeper.params={}", "--run")) == 1


def test_a_line_may_be_about_all_tasks(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\nhydra: {sweeper: {params: {seed: '0,1', variants: 'LINE'}}}\n"
    path = tmp_path / "experiment" / "mine.yaml"
    words = ["+experiment=mine", f"--config-dir={tmp_path}", "logger=none"]
    path.write_text(text.replace("LINE", "optim.steps=7,8 seed=5"))
    runs = [(e.config["seed"], e.config["optim"]["steps"]) for e in entries(words)]
    assert runs == [(0, 1000), (1, 1000), (5, 7), (5, 8)]
    path.write_text(text.replace("LINE", "optim.stepz=7"))
    with pytest.raises(ConfigError, match=r"optim\.steps"):
        entries(words)
