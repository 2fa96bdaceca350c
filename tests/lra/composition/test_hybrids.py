"""The preset of hybrids: each pattern of layers is built as it is written, and trains a step."""

import math
from typing import Any

import pytest

from lra.composition.compose import typed
from lra.composition.hydra_entry import entries
from lra.models.backbone.model import Backbone
from lra.sweep.work import CellWork

PATTERNS = {
    "gated_delta_net": ["GatedDeltaNet", "GatedDeltaNet", "GatedDeltaNet", "SDPA"],
    "kimi_delta": ["KimiDelta", "KimiDelta", "KimiDelta", "LatentAttention"],
    "mamba2": ["Mamba2", "Mamba2", "SDPA", "Mamba2"],
    "sliding_window": ["LinearAttention", "SlidingWindow", "LinearAttention", "SlidingWindow"],
}
SHORT = ("optim.steps=1", "optim.batch_size=2", "optim.warmup_steps=0", "runner.evaluate_splits=[]",
         "runner.validation_examples=2", "logger=none", "runner=train")  # fmt: skip


def configs(*words: str) -> list[dict[str, Any]]:
    return [entry.config for entry in entries(["+experiment=hybrids", *SHORT, *words])]


@pytest.mark.parametrize("task", ["mqar", "listops"])
def test_every_pattern_trains_a_step(task: str, monkeypatch: Any) -> None:
    seen = {}
    built = Backbone.__init__

    def watched(self: Backbone, *arguments: Any, **options: Any) -> None:
        built(self, *arguments, **options)
        seen[name] = [type(block.mixer).__name__ for block in self.stack.blocks]

    monkeypatch.setattr(Backbone, "__init__", watched)
    for config in configs(f"task={task}"):
        name = config["model"]["name"]
        assert config["model"]["backbone"]["width"] == 64  # of size=tiny
        small = {"train_examples": 4, "validation_examples": 2, "test_examples": 2}
        run = typed({**config, "task": {**config["task"], **small}})
        run.task.prepare()
        columns = {"length": run.task.spec.max_length, "mode": "train"}
        rows = [*run.runner.run(CellWork.planned(run, columns))]
        losses = [row.value for row in rows if getattr(row, "metric", None) == "train_loss"]
        assert losses
        assert all(map(math.isfinite, losses))
    assert seen == PATTERNS


def test_the_same_without_layers_of_another_family() -> None:
    for config in configs("model.layers=[]"):
        run = typed(config)
        assert "layers" not in run.mixer_options
        assert config["model"]["backbone"]["depth"] == 4


@pytest.mark.parametrize("size", ["small", "base", "large"])
def test_other_sizes_have_four_layers_too(size: str) -> None:
    found = configs(f"size={size}", "model.backbone.depth=4")
    assert [typed(config).model for config in found] == [*PATTERNS]
