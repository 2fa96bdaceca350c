"""Whole models of the S4 code by a protocol's settings, beside its answers; of version 1 the frame.

`frames.py` has stored the answers, of version 1 around layers that hand on their input: its S4 is
not among the models here. `identity` does so with projections that do nothing. Of the Transformers
that have grown from that code everything is compared, and of SGConv's models.
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
MODELS = {
    "s4": "s4", "s4_v3": "s4", "s4_v1": "identity", "self_pretraining": "softmax",
    "sgconv": "sgconv",
}  # fmt: skip
STORED = {name: np.load(HERE / f"{name}.npz") for name in MODELS}
ROWS_THERE = 257
FRAME = {
    r"embedding\.(\w+)": "encoder.{0}",
    r"stack\.blocks\.(\d)\.mixer_norm\.(\w+)": "model.layers.{0}.norm.norm.{1}",
    r"stack\.norm\.(\w+)": "model.norm.norm.{0}",
}
TRANSFORMER = {  # whose networks are layers of their own
    r"embedding\.(\w+)": "encoder.0.{0}",
    r"stack\.blocks\.(\d)\.mixer_norm\.(\w+)": "model.layers.{even}.norm.norm.{1}",
    r"stack\.blocks\.(\d)\.network_norm\.(\w+)": "model.layers.{odd}.norm.norm.{1}",
    r"stack\.blocks\.(\d)\.mixer\.q_proj\.(\w+)": "model.layers.{even}.layer.linears.0.{1}",
    r"stack\.blocks\.(\d)\.mixer\.k_proj\.(\w+)": "model.layers.{even}.layer.linears.1.{1}",
    r"stack\.blocks\.(\d)\.mixer\.v_proj\.(\w+)": "model.layers.{even}.layer.linears.2.{1}",
    r"stack\.blocks\.(\d)\.mixer\.out_proj\.(\w+)": "model.layers.{even}.layer.linears.3.{1}",
    r"stack\.blocks\.(\d)\.network\.0\.(\w+)": "model.layers.{odd}.layer.ff.0.0.{1}",
    r"stack\.blocks\.(\d)\.network\.3\.(\w+)": "model.layers.{odd}.layer.ff.2.{1}",
    r"stack\.norm\.(\w+)": "model.norm.norm.{0}",
}
LAYER = {
    **FRAME,
    r"stack\.blocks\.(\d)\.mixer\.out_proj\.(\w+)": "model.layers.{0}.layer.output_linear.0.{1}",
    r"stack\.blocks\.(\d)\.mixer\.skip": "model.layers.{0}.layer.layer.D",
    **{
        rf"stack\.blocks\.(\d)\.mixer\.{ours}": f"model.layers.{{0}}.layer.layer.kernel.{theirs}"
        for ours, theirs in (
            (r"dynamics\.log_decay", "A_real"), (r"dynamics\.frequency", "A_imag"),
            (r"dynamics\.entry", "B"), (r"dynamics\.low_rank", "P"), ("readout", "C"),
            (r"dynamics\.log_step", "inv_dt"),
        )
    },
}  # fmt: skip
SGCONV = {
    **FRAME,
    r"stack\.blocks\.(\d)\.mixer\.skip": "model.layers.{0}.layer.D",
    r"stack\.blocks\.(\d)\.mixer\.out_proj\.(\w+)": "model.layers.{0}.layer.output_linear.0.{1}",
}
NAMES = {
    "s4": LAYER, "s4_v3": LAYER, "s4_v1": FRAME, "self_pretraining": TRANSFORMER, "sgconv": SGCONV,
}  # fmt: skip
"""The released name of each of our parameters and buffers, but for the classifier."""


def released_name(protocol: str, task: str, name: str, hidden_layers: int) -> str:
    if name.startswith("head."):
        within = "retrieval.classifier" if task == "retrieval" else "output_transform"
        places = {"head.hidden": ".0", "head.out": ".2" if hidden_layers else ""}
        part, _, kind = name.rpartition(".")
        return f"decoder.{within}{places[part]}.{kind}"
    for pattern, theirs in NAMES[protocol].items():
        if match := re.fullmatch(pattern, name):
            layer = 2 * int(match[1]) if match[1].isdigit() else 0
            return theirs.format(*match.groups(), even=layer, odd=layer + 1)
    raise KeyError(name)


def in_theirs(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a parameter in the released layer of S4."""
    if name.endswith("log_step"):
        return (*shape, 1)
    return (1, *shape) if name.endswith((".entry", ".low_rank", ".skip")) else shape


def in_ours(name: str, weight: torch.Tensor, module: nn.Module) -> torch.Tensor:
    """Return a released parameter of S4 as ours: conjugate Lambda, and dt by its logarithm."""
    if name.endswith("frequency"):
        return -weight
    if name.endswith("log_step"):
        step = nn.functional.softplus(weight)  # of the code of today
        return step.log() - module.get_submodule(name.rpartition(".")[0]).middle
    return weight


def built(protocol: str, task: str) -> nn.Module:
    words = [f"+protocol={protocol}", f"task={task}", f"model={MODELS[protocol]}", "logger=none"]
    words += ["runner=train"]
    words += ["task.source=sample"] if task in ("text", "retrieval", "image") else []
    (entry,) = entries(words)
    backbone = entry.config["model"]["backbone"]
    identity = MODELS[protocol] == "identity"
    backbone["order_blind"] = identity and backbone["pooling"] != "last"  # so it is, without S4
    run = typed(entry.config)
    short = replace(facts(run), max_length=cases.LENGTH)
    model = build_model(run, given_facts=short).double().eval()
    with torch.no_grad():
        for name, own in [*model.named_parameters(), *model.named_buffers()]:
            if identity and name.endswith("_proj.weight"):
                nn.init.eye_(own)
            elif identity and name.endswith("_proj.bias"):
                own.zero_()
            elif ".kernel." in name:
                continue
            elif own.is_floating_point():
                table = name == "embedding.weight" and not run.task.spec.scalars
                shape = (ROWS_THERE, *own.shape[1:]) if table else in_theirs(name, tuple(own.shape))
                theirs = released_name(protocol, task, name, backbone["head_hidden_layers"])
                weight = cases.weight(theirs, shape)
                if (
                    name == "head.hidden.weight" and task == "retrieval"
                ):  # of a, b, a - b and a * b there
                    first, second, difference, product = weight.chunk(4, dim=1)
                    weight = torch.cat((first, second, product, difference), dim=1)
                weight = in_ours(name, weight, model)
                own.copy_(weight[: len(own)] if table else weight.reshape(own.shape))
        for layer, block in enumerate(model.stack.blocks if protocol == "sgconv" else ()):
            kernel, theirs = block.mixer.kernel, f"model.layers.{layer}.layer.kernel_list"
            for number, part in enumerate(kernel.parts):
                part.copy_(cases.weight(f"{theirs}.{number}", tuple(part.shape)))
            kernel.norm.fill_(1)
            kernel.norm.copy_(kernel(2 * cases.LENGTH).norm(dim=-1, keepdim=True))
    return model


@pytest.mark.parametrize(
    ("protocol", "task"), [(name, task) for name in STORED for task in STORED[name]]
)
def test_frames_answer_as_the_released_code(protocol, task):
    assert cases.apart(cases.answer(built(protocol, task), task), STORED[protocol][task]) <= 1e-8
