"""Whole models of a protocol, built from its settings, beside answers of the released code.

`small_models.py` has stored the answers. What a model gives here is what the composed
configuration gives: its padding, its options, its classifier. A difference above rounding has to
be explained by a deviation of the protocol, whose size stands in `LARGEST`.
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
STORED = {name: np.load(HERE / f"{name}.npz") for name in ("nystrom", "skyformer")}
RELATIVE = 1e-8
"""Largest relative difference of logits where nothing departs."""
LARGEST = {"padding": 0.05, "pair": 0.005}
"""By the name of a deviation, the most that it changes of logits, relative to the largest."""
NAMES = {
    r"embedding\.(weight)": "model.embeddings.word_embeddings.{0}",
    r"positions\.table": "model.embeddings.position_embeddings.weight",
    r"stack\.blocks\.(\d)\.mixer_norm\.(\w+)": "model.transformer_{0}.norm1.{1}",
    r"stack\.blocks\.(\d)\.network_norm\.(\w+)": "model.transformer_{0}.norm2.{1}",
    r"stack\.blocks\.(\d)\.network\.(\d)\.(\w+)": "model.transformer_{0}.mlpblock.{1}.{2}",
    r"stack\.blocks\.(\d)\.mixer\.(q|k|v)_proj\.(\w+)": "model.transformer_{0}.mha.W_{1}.{2}",
    r"stack\.blocks\.(\d)\.mixer\.qk_proj\.(\w+)": "model.transformer_{0}.mha.W_q.{1}",
    r"stack\.blocks\.(\d)\.mixer\.out_proj\.(\w+)": "model.transformer_{0}.mha.ff.{1}",
    r"stack\.blocks\.(\d)\.mixer\.core\.conv\.(\w+)": "model.transformer_{0}.mha.attn.conv.{1}",
    r"stack\.blocks\.(\d)\.mixer\.core\.length_map\.keys": "model.transformer_{0}.mha.attn.E",
    r"stack\.blocks\.(\d)\.mixer\.core\.projection":
        "model.transformer_{0}.mha.attn.attn_fn.projection_matrix",
    r"stack\.norm\.(\w+)": "model.norm.{0}",
    r"head\.hidden\.(\w+)": "seq_classifer.mlpblock.0.{0}",
    r"head\.out\.(\w+)": "seq_classifer.mlpblock.2.{0}",
}  # fmt: skip
"""The released name of each of our parameters and buffers."""
ROWS_THERE = {"listops": 32}
"""Of the table of tokens; elsewhere 512, or 256 where `skyformer` has images."""


def released_name(name: str) -> str:
    for pattern, theirs in NAMES.items():
        if match := re.fullmatch(pattern, name):
            return theirs.format(*match.groups())
    raise KeyError(name)


def released_shape(name: str, own: torch.Tensor, protocol: str, task: str) -> tuple[int, ...]:
    if "word_embeddings" in name:
        small = (protocol, task) == ("skyformer", "image")
        return (256 if small else ROWS_THERE.get(task, 512), own.shape[1])
    if name.endswith("conv.weight"):
        return (own.shape[0], 1, own.shape[1], 1)
    return tuple(own.shape)


def drawn(mixer: nn.Module, layer: int) -> None:
    """Fill the draws that are no numbers of the released state."""
    if hasattr(mixer, "rotations"):
        rounds, heads, width, columns = mixer.rotations.shape
        seeded = torch.Generator().manual_seed(cases.HASH_SEED)
        theirs = torch.randn(heads, width, rounds, columns, generator=seeded, dtype=torch.float64)
        mixer.rotations.copy_(theirs.permute(2, 0, 1, 3))
    elif hasattr(mixer.core, "draws"):
        draws = mixer.core.draws
        numbers = cases.uniforms(layer, draws.numel()).view_as(draws)
        draws.copy_((numbers * 2**31).long())


def built(entry, protocol: str) -> nn.Module:
    mixer = entry.config["model"]["mixer"]
    if "buckets" in mixer:
        mixer["buckets"] = None  # which a task's own length decides, and here is a shorter one
    run = typed(entry.config)
    short = replace(facts(run), max_length=cases.LENGTH)
    model = build_model(run, own_facts=short).double().eval()
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        for layer, block in enumerate(model.stack.blocks):
            drawn(block.mixer, layer)
        done = set()
        for name, own in state.items():
            if name.endswith(("rotations", "draws")) or id(own) in done:
                continue
            done.add(id(own))
            theirs = released_name(name)
            shape = released_shape(theirs, own, protocol, run.task_name)
            weight = cases.weight(theirs, shape)
            own.copy_(weight[: len(own)].reshape(own.shape))
    return model


def composed(protocol: str, task: str):
    models = ",".join(name.partition(".")[2] for name in STORED[protocol] if name.startswith(task))
    words = ["-m", f"+protocol={protocol}", f"task={task}", f"model={models}", "logger=none"]
    if task == "listops":
        words += ["task.padded_length=null"]
    else:
        words += ["task.source=sample"]
    return entries(words)


@pytest.mark.parametrize(
    ("protocol", "task"),
    [(name, task) for name in STORED
     for task in dict.fromkeys(key.partition(".")[0] for key in STORED[name])],
)  # fmt: skip
def test_whole_models_answer_as_the_released_code(protocol, task):
    found = {}
    ids = cases.tokens(task)
    for entry in composed(protocol, task):
        name = entry.config["model"]["name"]
        with torch.no_grad():
            logits, _ = built(entry, protocol).predict(ids, ids != 0)
        theirs = STORED[protocol][f"{task}.{name}"]
        apart = np.abs(logits.numpy() - theirs).max() / np.abs(theirs).max()
        allowed = sum(LARGEST.get(each, 0.0) for each in entry.config["deviations"])
        if not apart <= RELATIVE + allowed:
            found[name] = float(apart)
    assert not found
