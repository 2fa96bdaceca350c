"""Whole models of the rotary protocol, from its settings, beside answers of the released code.

`rotary_models.py` has stored the answers to batches of the released loaders, as released and with
the rotation that the protocol declares to be otherwise in place of the code's own: there the models
agree, once the longest text of a batch has lost its last byte as it does there. The rest is each
deviation's size.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lra.composition.compose import build_model, facts, typed
from lra.composition.hydra_entry import entries
from lra.composition.run import Run
from tests.lra.released_models import cases
from tests.lra.released_models.cases import apart
from tests.lra.released_models.doors import answered, handed
from tests.lra.released_models.rotary_models import SPECIAL
from tests.lra.released_models.settings import ROTARY_FILES

STORED = np.load(Path(__file__).with_name("rotary.npz"))
RELATIVE = 1e-8
SIZES = {"rotary": (0.28, 0.87)}
"""The least and the most by which a deviation changes logits, relative to the largest, in its
sentence."""
LAST_BYTE = 0.015
"""The most that the last byte of the longest text does."""
ORDER = {"listops": [*range(10), 12, 10, 11, 13, 14]}
"""Where each of our tokens stands in their table, in which MAX, MED and MIN come in this order."""
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


def composed(task: str) -> Run:
    words = ["+protocol=rotary", f"task={task}", "model=softmax", "runner=train", "logger=none"]
    words += [] if task == "listops" else ["task.source=sample"]
    (entry,) = entries(words)
    return typed(entry.config)


def rows(task: str) -> torch.Tensor:
    """Return ids of texts, or levels."""
    length = cases.LENGTHS.get(("rotary", task), cases.LENGTH)
    return (cases.tokens if task in cases.SHARE_OF_PADDING else cases.printable)(task, length)


def built(run: Run, task: str) -> nn.Module:
    model = build_model(run, given_facts=replace(facts(run), max_length=rows(task).shape[-1]))
    model = model.double().eval()
    special, single = SPECIAL.get(task, 2), STORED[f"{task}."].shape[1] == 1
    with torch.no_grad():
        for name, own in model.named_parameters():
            many, theirs = len(own), released_name(name, task)
            if name == "embedding.weight":
                many += special - 1
            elif name.startswith("head.out") and single:
                many = 1
            if name == "cls":  # the second row of their table
                many = model.embedding.weight.shape[0] + special - 1
                own.copy_(cases.weight(theirs, (many, *own.shape))[1])
                continue
            weight = cases.weight(theirs, (many, *own.shape[1:]))
            if name == "embedding.weight":
                symbols = weight[special:]
                weight = torch.cat((weight[:1], symbols[ORDER.get(task, slice(None))]))
            own.zero_()
            own[-len(weight) :] = weight  # of two logits, the first is 0 where there is one
    return model


def answer(model: nn.Module, run: Run, ids: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        logits = answered(model, handed(run, ids))
    return logits[:, 1:] - logits[:, :1] if logits.shape[1] == 2 else logits


@pytest.mark.parametrize("task", ROTARY_FILES)
def test_rotary_models_answer_as_the_released_code(task):
    run, released = composed(task), STORED[f"{task}."]
    model, ids = built(run, task), rows(task)
    cut = ids.clone()
    if task in SPECIAL:
        cut[..., int((ids > 0).sum(-1).max()) - 1 :] = 0
    ours, whole = answer(model, run, cut), answer(model, run, ids)
    assert apart(ours, STORED[f"{task}.rotary"]) <= RELATIVE
    assert apart(ours, released) <= sum(most for _, most in SIZES.values())
    assert apart(whole, ours) <= LAST_BYTE * ("last_byte" in run.config["deviations"])


@pytest.mark.parametrize("deviation", SIZES)
def test_the_sizes_of_deviations_are_those_of_their_sentences(deviation):
    found = [apart(STORED[f"{task}.{deviation}"], STORED[f"{task}."]) for task in ROTARY_FILES]
    assert (round(min(found), 2), round(max(found), 2)) == SIZES[deviation]
    least, most = (f"{size:.0%}"[:-1] for size in SIZES[deviation])
    (entry,) = entries(["+protocol=rotary", "task=listops", "model=softmax", "logger=none"])
    assert entry.config["deviations"][deviation].endswith(f" {least} to {most} %")
