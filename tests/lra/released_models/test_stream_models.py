"""Whole language models of a protocol, memory handed on, beside losses of the released code.

`stream_models.py` has stored the losses, of small models over a stream; ours read the same segments
one behind the other. Adaptive-Span attends to zeros there until its memory is full: once none of
them can be seen any more through the layers, losses agree.
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
from lra.composition.run import Run
from lra.runners.training.recurrent_state import initial_state, remembered_tokens
from tests.lra.released_models import cases, stream_models as small

HERE = Path(__file__).parent
STORED = {name: np.load(HERE / f"{name}.npz") for name in ("transformer_xl", "adaptive_span")}
LAYER = r"stack\.blocks\.(\d)\."
NAMES = {
    "transformer_xl": {
        r"embedding\.weight": "word_emb.emb_layers.0.weight",
        r"head\.groups": "crit.cluster_weight",
        LAYER + r"mixer\.out_proj\.weight": "layers.{0}.dec_attn.o_net.weight",
        LAYER + r"mixer\.core\.relative\.r_proj\.weight": "layers.{0}.dec_attn.r_net.weight",
        LAYER + r"mixer\.core\.relative\.biases\.content": "r_w_bias",
        LAYER + r"mixer\.core\.relative\.biases\.position": "r_r_bias",
        LAYER + r"mixer_norm\.(\w+)": "layers.{0}.dec_attn.layer_norm.{1}",
        LAYER + r"network_norm\.(\w+)": "layers.{0}.pos_ff.layer_norm.{1}",
        LAYER + r"network\.(\d)\.(\w+)": "layers.{0}.pos_ff.CoreNet.{1}.{2}",
    },
    "adaptive_span": {
        r"embedding\.weight": "in_emb.weight",
        r"head\.weight": "out_emb.weight",
        LAYER + r"mixer\.q_proj\.weight": "layers.{0}.attn.proj_query.weight",
        LAYER + r"mixer\.k_proj\.weight": "layers.{0}.attn.proj_key.weight",
        LAYER + r"mixer\.v_proj\.weight": "layers.{0}.attn.proj_val.weight",
        LAYER + r"mixer\.out_proj\.weight": "layers.{0}.attn.proj_out.weight",
        LAYER + r"mixer\.core\.spans": "layers.{0}.attn.attn.adaptive_span._mask.current_val",
        LAYER + r"mixer\.core\.table\.weight": "key_pe",
        LAYER + r"mixer_norm\.(\w+)": "layers.{0}.norm1.{1}",
        LAYER + r"network_norm\.(\w+)": "layers.{0}.norm2.{1}",
        LAYER + r"network\.0\.(\w+)": "layers.{0}.ff.fc1.{1}",
        LAYER + r"network\.3\.(\w+)": "layers.{0}.ff.fc2.{1}",
    },
}
"""The released name of each of our parameters."""


def released(protocol: str, name: str, own: torch.Tensor) -> torch.Tensor:
    """Return the released weights of one of our parameters, in the shape of ours."""
    match = re.fullmatch(LAYER + r"mixer\.(q|k|v)_proj\.weight", name)
    if match and protocol == "transformer_xl":  # one map there
        whole = torch.empty(3 * own.shape[0], own.shape[1])
        theirs = small.weight(f"layers.{match[1]}.dec_attn.qkv_net.weight", whole)
        return theirs.chunk(3)["qkv".index(match[2])]
    if match := re.fullmatch(r"embedding\.tables\.(\d)", name):  # one table there
        table = torch.empty(small.VOCABULARY["wikitext103"], own.shape[1])
        first = [0, *small.CUTOFFS][int(match[1])]
        return small.weight("word_emb.emb_layers.0.weight", table)[first:][: len(own)]
    theirs = cases.renamed(name, NAMES[protocol])
    if theirs == "crit.cluster_weight":  # which counts groups from the last one
        return small.weight(theirs, own).flip(0)
    if theirs == "key_pe":
        return small.weight(theirs, torch.empty(1, *own.T.shape))[0].T
    if theirs.endswith("current_val"):
        return small.weight(theirs, torch.empty(len(own), 1, 1)).view_as(own)
    return small.weight(theirs, own)


def built(protocol: str, task: str) -> tuple[nn.Module, Run]:
    backbone = {
        "depth": small.DEPTH, "width": small.WIDTH, "heads": small.HEADS,
        "feed_forward_width": small.HIDDEN, "memory": small.SEGMENT,
    }  # fmt: skip
    words = [f"+protocol={protocol}", f"task={task}", f"model={protocol}", "logger=none"]
    words += ["runner=train", "task.source=sample", f"task.memory={small.SEGMENT}"]
    if protocol == "transformer_xl":
        backbone["evaluation_memory"] = small.JUDGED["mem_len"]
        words += [f"model.mixer.evaluation_clamp={small.JUDGED['clamp_len']}"]
    else:
        words += [f"model.mixer.span={small.SPAN}", f"model.mixer.ramp={small.RAMP}"]
    if task == "wikitext103":
        words += [f"model.backbone.softmax_cutoffs={small.CUTOFFS}"]
    words += [f"model.backbone.{key}={value}" for key, value in backbone.items()]
    (entry,) = entries([each.replace(" ", "") for each in words])
    run, ids = typed(entry.config), small.VOCABULARY[task]
    model = build_model(run, given_facts=replace(facts(run), vocabulary=ids, classes=ids))
    with torch.no_grad():
        for name, own in model.double().named_parameters():
            own.copy_(released(protocol, name, own))
    return model, run


def losses(protocol: str, task: str, phase: str) -> np.ndarray:
    """Return the loss of every token of the stream, memory handed on: [tokens, rows]."""
    model, run = built(protocol, task)
    model.train(phase == "train")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    rows = small.stream(task).view(small.ROWS, -1)
    memory = remembered_tokens(model.config, run.task, training=phase == "train")
    state = initial_state(model, small.ROWS, memory)
    length = small.SEGMENT
    if (protocol, phase) == ("transformer_xl", "evaluate"):
        length = small.JUDGED["tgt_len"]
    found = []
    with torch.no_grad():
        for first in range(0, small.TOKENS - 1, length):
            piece = rows[:, first : first + length + 1]
            outcome = model(piece[:, None, :-1], piece[:, 1:], state=state)
            state = outcome.state
            found.append(outcome.nll.T)
    return torch.cat(found).numpy()


@pytest.mark.parametrize("name", STORED["transformer_xl"])
def test_transformer_xl_loses_as_the_released_code(name):
    task, phase = name.split(".")
    assert cases.apart(losses("transformer_xl", task, phase), STORED["transformer_xl"][name]) < 1e-8


@pytest.mark.parametrize("name", STORED["adaptive_span"])
def test_adaptive_span_loses_as_the_released_code_once_its_memory_is_full(name):
    task, phase = name.split(".")
    theirs = STORED["adaptive_span"][name]
    ours = losses("adaptive_span", task, phase)[: len(theirs)]
    full = small.DEPTH * small.SEGMENT
    assert cases.apart(ours[full:], theirs[full:]) < 1e-8
    assert 0.2 < cases.apart(ours, theirs) < 0.33
