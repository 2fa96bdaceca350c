"""What stands around the layers of S4, by a protocol's settings, beside answers of its code.

`frames.py` has stored the answers, of layers that hand on their input: S4 is not among the models
here. `identity` does so with projections that do nothing.
"""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lra.composition.compose import build_model, facts, typed
from lra.composition.hydra_entry import entries
from tests.lra.released_models import cases

HERE = Path(__file__).parent
STORED = {name: np.load(HERE / f"{name}.npz") for name in ("s4", "s4_v1")}
ROWS_THERE = 257
NAMES = {
    r"embedding\.(\w+)": "encoder.{0}",
    r"stack\.blocks\.(\d)\.mixer_norm\.(\w+)": "model.layers.{0}.norm.norm.{1}",
    r"stack\.norm\.(\w+)": "model.norm.norm.{0}",
    r"head\.hidden\.(\w+)": "decoder.retrieval.classifier.0.{0}",
}
"""The released name of each of our parameters and buffers, but for the last map."""


def released_name(name: str, hidden_layers: int) -> str:
    if name.startswith("head.out"):
        there = ("decoder.output_transform", "decoder.retrieval.classifier.2")[hidden_layers]
        return name.replace("head.out", there)
    for pattern, theirs in NAMES.items():
        if match := re.fullmatch(pattern, name):
            return theirs.format(*match.groups())
    raise KeyError(name)


def built(protocol: str, task: str) -> nn.Module:
    words = [f"+protocol={protocol}", f"task={task}", "model=identity", "logger=none"]
    words += ["task.source=sample"] if task in ("text", "retrieval", "image") else []
    (entry,) = entries(words)
    backbone = entry.config["model"]["backbone"]
    backbone["order_blind"] = backbone["pooling"] != "last"  # and so it is, without S4
    run = typed(entry.config)
    short = replace(facts(run), max_length=cases.LENGTH)
    model = build_model(run, own_facts=short).double().eval()
    with torch.no_grad():
        for name, own in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith("_proj.weight"):
                nn.init.eye_(own)
            elif name.endswith("_proj.bias"):
                own.zero_()
            elif own.is_floating_point():
                table = name == "embedding.weight" and not run.task.spec.scalars
                shape = (ROWS_THERE, *own.shape[1:]) if table else tuple(own.shape)
                weight = cases.weight(released_name(name, backbone["head_hidden_layers"]), shape)
                if name == "head.hidden.weight":  # of a, b, a - b and a * b there
                    first, second, difference, product = weight.chunk(4, dim=1)
                    weight = torch.cat((first, second, product, difference), dim=1)
                own.copy_(weight[: len(own)])
    return model


@pytest.mark.parametrize("protocol", STORED)
@pytest.mark.parametrize("task", ["listops", "text", "retrieval", "image", "pathfinder", "pathx"])
def test_frames_answer_as_the_released_code(protocol, task):
    model = built(protocol, task)
    inputs, keep = cases.pixels(task), None
    if not model.facts.scalars:
        inputs = cases.tokens(task)
        keep = inputs != 0
    with torch.no_grad():
        logits, _ = model.predict(inputs, keep)
    theirs = STORED[protocol][task]
    np.testing.assert_allclose(logits.numpy(), theirs, rtol=0, atol=1e-8 * np.abs(theirs).max())
