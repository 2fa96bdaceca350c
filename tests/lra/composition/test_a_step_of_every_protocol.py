"""Every protocol trains a step on every task that it has settings for, and is evaluated."""

import math
from pathlib import Path
from typing import Any

import pytest

from lra.catalogue import choices
from lra.compose import typed
from lra.composition.hydra_entry import entries
from lra.sweep.work import CellWork
from lra.yaml_text import load

PROTOCOLS = {file.stem: load(file) for file in choices("protocol")}
MODELS = {"nystrom": "nystromformer", "skyformer": "performer", "rotary": "softmax",
          "self_pretraining": "softmax", "lra_code": "performer", "lra_paper": "performer"}  # fmt: skip
"""Of those that the sources trained; S4 and Mega, which are not here, have local attention."""
PICTURES = ("task.train_examples=2", "task.validation_examples=2", "task.test_examples=2")
SAMPLE = ("task.source=sample",)
DATA = {"listops": (*PICTURES, "task.min_length=20", "task.max_length=60", "task.padded_length=60"),
        "text": SAMPLE, "retrieval": SAMPLE, "image": SAMPLE}  # fmt: skip
LARGER = ("pathfinder64", "path256")
"""Pictures that differ in their side alone from those that are trained on, and take seconds."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_step_is_trained_on_every_task(protocol: str, data: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("LRA_DATA", str(data))
    names = [name for name in PROTOCOLS[protocol]["for_task"] if name not in LARGER]
    words = [f"+protocol={protocol}", f"model={MODELS.get(protocol, 'local')}", "logger=none"]
    words += ["scale=tiny", "optim.steps=1", "optim.batch_size=2", f"task={','.join(names)}"]
    words += ["runner.validation_examples=2", "runner.evaluate_splits=[]"]
    words += [f"++for_task.{name}.{word}" for name in names for word in DATA.get(name, PICTURES)]
    for entry in entries(["-m", *words], execute=list):
        run = typed(entry.config)
        run.task.prepare()
        columns = {"length": run.task.spec.max_length, "mode": "train"}
        rows = [*run.runner.run(CellWork.planned(run, columns))]
        losses = [row.value for row in rows if getattr(row, "metric", None) == "train_loss"]
        assert losses, entry.config["task"]
        assert all(map(math.isfinite, losses)), entry.config["task"]
