"""Whole models of the rotary protocol, from its settings, beside answers of the released code.

`rotary_models.py` has stored the answers, as released and with what the protocol declares to be
otherwise in place of the code's own: there the models agree, and the rest is each deviation's size.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lra.composition.compose import build_model, facts, typed
from lra.composition.hydra_entry import entries
from tests.lra.released_models import cases
from tests.lra.released_models.cases import apart
from tests.lra.released_models.rotary_models import SPECIAL
from tests.lra.released_models.settings import ROTARY_FILES

STORED = np.load(Path(__file__).with_name("rotary.npz"))
RELATIVE = 1e-8
SIZES = {"rotary": (0.24, 0.52)}
"""The least and the most by which a deviation changes logits, relative to the largest, in its
sentence."""
LAYER = r"stack\.blocks\.(\d)\."
NAMES = {
    r"cls|embedding\.weight": "model.embedding.weight",
    LAYER + r"mixer_norm\.(\w+)": "model.model.layers.{0}.layer_norm_1.{1}",
    LAYER + r"network_norm\.(\w+)": "model.model.layers.{0}.layer_norm_2.{1}",
    LAYER + r"mixer\.q_proj\.(\w+)": "model.model.layers.{0}.mh_attention.W_Q.{1}",
    LAYER + r"mixer\.k_proj\.(\w+)": "model.model.layers.{0}.mh_attention.W_K.{1}",
    LAYER + r"mixer\.v_proj\.(\w+)": "model.model.layers.{0}.mh_attention.W_V.{1}",
    LAYER + r"mixer\.out_proj\.(\w+)": "model.model.layers.{0}.mh_attention.W_O.{1}",
    LAYER + r"network\.0\.(\w+)": "model.model.layers.{0}.ff.0.{1}",
    LAYER + r"network\.3\.(\w+)": "model.model.layers.{0}.ff.2.{1}",
    r"head\.hidden\.(\w+)": "ff.0.0.{0}",
    r"head\.out\.(\w+)": "ff.{0}",
}
"""The released name of each of our parameters."""


def released_name(name: str, task: str) -> str:
    if name.startswith("head.out") and task == "retrieval":  # behind a hidden layer
        return name.replace("head.out", "ff.1")
    return cases.renamed(name, NAMES)


def built(task: str) -> nn.Module:
    words = ["+protocol=rotary", f"task={task}", "model=softmax", "runner=train", "logger=none"]
    words += [] if task == "listops" else ["task.source=sample"]
    (entry,) = entries(words)
    run = typed(entry.config)
    model = build_model(run, given_facts=replace(facts(run), max_length=cases.LENGTH))
    model = model.double().eval()
    special, single = SPECIAL.get(task, 2), STORED[f"{task}."].shape[1] == 1
    with torch.no_grad():
        for name, own in model.named_parameters():
            rows, theirs = len(own), released_name(name, task)
            if name == "embedding.weight":
                rows += special - 1
            elif name.startswith("head.out") and single:
                rows = 1
            if name == "cls":  # the second row of their table
                rows = model.embedding.weight.shape[0] + special - 1
                own.copy_(cases.weight(theirs, (rows, *own.shape))[1])
                continue
            weight = cases.weight(theirs, (rows, *own.shape[1:]))
            if name == "embedding.weight":
                weight = torch.cat((weight[:1], weight[special:]))
            own.zero_()
            own[-len(weight) :] = weight  # of two logits, the first is 0 where there is one
    return model


@pytest.mark.parametrize("task", ROTARY_FILES)
def test_rotary_models_answer_as_the_released_code(task):
    ids = cases.tokens(task) + (task in cases.SHARE_OF_PADDING)  # pictures have none
    with torch.no_grad():
        logits, _ = built(task).predict(ids, ids != 0)
    ours, released = logits.numpy(), STORED[f"{task}."]
    if released.shape[1] == 1:
        ours = ours[:, 1:] - ours[:, :1]
    assert apart(ours, STORED[f"{task}.rotary"]) <= RELATIVE
    assert apart(ours, released) <= sum(most for _, most in SIZES.values())


@pytest.mark.parametrize("deviation", SIZES)
def test_the_sizes_of_deviations_are_those_of_their_sentences(deviation):
    found = [apart(STORED[f"{task}.{deviation}"], STORED[f"{task}."]) for task in ROTARY_FILES]
    assert (round(min(found), 2), round(max(found), 2)) == SIZES[deviation]
    least, most = (f"{size:.0%}"[:-1] for size in SIZES[deviation])
    (entry,) = entries(["+protocol=rotary", "task=listops", "model=softmax", "logger=none"])
    assert entry.config["deviations"][deviation].endswith(f" {least} to {most} %")
