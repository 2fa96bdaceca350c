"""Whole models of the S4 code by a protocol's settings, beside its answers; of version 1 the frame.

`frames.py` has stored what the trainers answer to batches of their own loaders, of version 1 around
layers that hand on their input: its S4 is not among the models here. `identity` does so with
projections that do nothing. Of the Transformers that have grown from that code everything is
compared, and of SGConv's models.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lra.composition.compose import build_model, facts, typed
from lra.composition.hydra_entry import entries
from lra.tasks.task import Task
from tests.lra.released_models import cases

HERE = Path(__file__).parent
MODELS = {
    **dict.fromkeys(("s4", "s4_v3", "s4d"), "s4"), "s4_v1": "identity",
    "self_pretraining": "softmax", "sgconv": "sgconv",
}  # fmt: skip
STORED = {name: np.load(HERE / f"{name}.npz") for name in MODELS}
ROWS_THERE = 257
FRAME = {
    r"embedding\.(\w+)": "encoder.0.{0}",
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

OUT = {r"stack\.blocks\.(\d)\.mixer\.out_proj\.(\w+)": "model.layers.{0}.layer.output_linear.0.{1}"}


def layer(kernel: str, names: Sequence[str], block: str = "layer.") -> dict[str, str]:
    """Return the names of a model of S4: what the code calls its kernel, and its parts."""
    ours = ("log_decay", "frequency", "entry", "low_rank", "log_step")
    parts = {rf"dynamics\.{each}": name for each, name in zip(ours, names, strict=True)}
    return {
        **FRAME,
        **OUT,
        r"stack\.blocks\.(\d)\.mixer\.skip": f"model.layers.{{0}}.layer.{block}D",
        **{
            rf"stack\.blocks\.(\d)\.mixer\.{each}": f"model.layers.{{0}}.layer.{kernel}.{name}"
            for each, name in (parts | {"readout": "C"}).items()
        },
    }


TODAY = layer("layer.kernel", ("A_real", "A_imag", "B", "P", "inv_dt"))
TAG = layer("kernel.kernel", ("inv_w_real", "w_imag", "B", "P", "log_dt"), block="")
TAG_DIAGONAL = layer("kernel.kernel", ("inv_A_real", "A_imag", "B", "", "log_dt"), block="")
SGCONV = {
    **FRAME,
    **OUT,
    r"stack\.blocks\.(\d)\.mixer\.skip": "model.layers.{0}.layer.D",
    r"stack\.blocks\.(\d)\.mixer\.kernel\.parts": "model.layers.{0}.layer.kernel_list",
}
NAMES = {
    "s4": TODAY, "s4_v3": TAG, "s4_v1": FRAME, "self_pretraining": TRANSFORMER, "sgconv": SGCONV,
    "s4 diagonal": TODAY, "s4d": TAG_DIAGONAL,
}  # fmt: skip
"""The released name of each of our parameters and buffers, but for the classifier."""
DIAGONAL = {"s4": ["model.mixer.kernel=diagonal"]}
"""S4D in the place of S4."""
AT_THE_TAG = ("s4_v3", "s4d")


def released_name(case: str, task: str, name: str, hidden_layers: int) -> str:
    if name.startswith("head."):
        within = "retrieval.classifier" if task == "retrieval" else "output_transform"
        places = {"head.hidden": ".0", "head.out": ".2" if hidden_layers else ""}
        part, _, kind = name.rpartition(".")
        return f"decoder.0.{within}{places[part]}.{kind}"
    for pattern, theirs in NAMES[case].items():
        if match := re.fullmatch(pattern, name):
            layer = 2 * int(match[1]) if match[1].isdigit() else 0
            return theirs.format(*match.groups(), even=layer, odd=layer + 1)
    raise KeyError(name)


def in_theirs(case: str, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a parameter in the released layer of S4."""
    if name.endswith("log_step") and case.startswith("s4"):
        return shape if case in AT_THE_TAG else (*shape, 1)
    alone = (".skip",) if case == "s4d" else (".entry", ".low_rank", ".skip")
    return (1, *shape) if name.endswith(alone) else shape


def in_ours(case: str, name: str, weight: torch.Tensor, module: nn.Module) -> torch.Tensor:
    """Return a released parameter of S4 as ours: Lambda of today is conjugate, dt a logarithm."""
    today = case not in AT_THE_TAG
    if name.endswith("frequency"):
        return -weight if today else weight
    if name.endswith("log_step"):
        log_step = nn.functional.softplus(weight).log() if today else weight
        return log_step - module.get_submodule(name.rpartition(".")[0]).middle
    return weight


def built(protocol: str, task: str, more: str = "") -> tuple[nn.Module, Task]:
    words = [f"+protocol={protocol}", f"task={task}", f"model={MODELS[protocol]}", "logger=none"]
    words += ["runner=train", *(DIAGONAL[protocol] if more else [])]
    words += ["task.source=sample"] if task in ("text", "retrieval", "image") else []
    (entry,) = entries(words)
    backbone = entry.config["model"]["backbone"]
    identity = MODELS[protocol] == "identity"
    if identity and backbone["pooling"] != "last":  # so it is, without S4
        backbone |= {"order_blind": True, "positions": "none"}
    run, case = typed(entry.config), f"{protocol} {more}".strip()
    length = cases.SIDES[task] ** 2 if task in cases.SIDES else cases.LENGTH
    short = replace(facts(run), max_length=length)
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
                here = tuple(own.shape)
                shape = (ROWS_THERE, *here[1:]) if table else in_theirs(case, name, here)
                theirs = released_name(case, task, name, backbone["head_hidden_layers"])
                weight = cases.weight(theirs, shape)
                if (
                    name == "head.hidden.weight" and task == "retrieval"
                ):  # of a, b, a - b and a * b there
                    first, second, difference, product = weight.chunk(4, dim=1)
                    weight = torch.cat((first, second, product, difference), dim=1)
                weight = in_ours(case, name, weight, model)
                own.copy_(weight[: len(own)] if table else weight.reshape(own.shape))
        for number, block in enumerate(model.stack.blocks if protocol == "sgconv" else ()):
            kernel, theirs = block.mixer.kernel, f"model.layers.{number}.layer.kernel_list"
            for part_number, part in enumerate(kernel.parts):
                part.copy_(cases.weight(f"{theirs}.{part_number}", tuple(part.shape)))
            kernel.norm.fill_(1)
            kernel.norm.copy_(kernel(2 * length).norm(dim=-1, keepdim=True))
    return model, run.task


def answer(model: nn.Module, task: Task) -> np.ndarray:
    """Return the logits for the rows that `trainers.py` gives the source's loader."""
    name = task.spec.name
    if name in cases.SIDES:
        grey = cases.grey(name).double().reshape(cases.ROWS, 1, -1) / 255
        ids, keep = (grey - task.mean) / task.deviation, None
    else:
        ids = cases.tokens(name, equal=True)
        keep = ids != 0
    with torch.no_grad():
        return model.predict(ids, keep)[0].numpy()


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("protocol", "task", "more"),
    [(name, *each.partition(" ")[::2]) for name in STORED for each in STORED[name]],
)
def test_frames_answer_as_the_released_code(protocol, task, more):
    found = answer(*built(protocol, task, more))
    assert cases.apart(found, STORED[protocol][f"{task} {more}".strip()]) <= 1e-8
