"""Models of zoology, based and mad, built from their protocols, beside the released trainers.

`recall_models.py` has stored what the trainers of zoology and mad-lab do to batches of their own
loaders. Here a task makes its batch of the same rows, and the composed model, loss and optimiser
answer and take one step. Where a deviation of the protocol departs, the test puts the source's form
in its place (`restored`), so that all else is compared.
"""

import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra.composition.compose import build_model, facts, typed
from lra.composition.hydra_entry import entries
from lra.models.backbone import reconstruction
from lra.models.backbone.heads import LanguageHead
from lra.runners.training.optimisers.build import build_optimiser, set_rates
from lra.tasks.diagnostics.base import NOT_ASKED, Rows
from tests.lra.released_models import cases

FILE = Path(__file__).with_name("recall_models")
FACTS, ARRAYS = json.loads(FILE.with_suffix(".json").read_text()), np.load(FILE.with_suffix(".npz"))
RELATIVE = 1e-6
IDS = {"mad_copy": [*range(1, 15), 0, 15]}
"""Our ids, in the order of theirs."""
NORM = ("weight", "bias")
LINEAR = {"out_proj.weight": ["out_proj.weight"], "out_proj.bias": ["out_proj.bias"]}
ATTENTION = {
    **{f"Wqkv.{end}": [f"{part}_proj.{end}" for part in "qkv"] for end in NORM}, **LINEAR,
}  # fmt: skip
MAMBA = {
    "in_proj.weight": ["input_proj.weight", "gate_proj.weight"],
    "conv1d.weight": ["convolutions.0.weight"], "conv1d.bias": ["convolutions.0.bias"],
    "x_proj.weight": ["choice_map.weight"], "dt_proj.weight": ["step_map.weight"],
    "dt_proj.bias": ["step_bias"], "A_log": ["log_rate"], "D": ["skip"],
    "out_proj.weight": ["out_proj.weight"],
}  # fmt: skip
MAMBA2 = {
    "in_proj.weight": [f"{part}.weight" for part in
                       ("gate_proj", "input_proj", "write_proj", "read_proj", "step_map")],
    **{f"conv1d.{end}": [f"convolutions.{part}.{end}" for part in range(3)] for end in NORM},
    "dt_bias": ["step_bias"], "A_log": ["log_rate"], "D": ["skip"], "norm.weight": ["norm.weight"],
    "out_proj.weight": ["out_proj.weight"],
}  # fmt: skip
HYENA = {
    "in_proj.weight": ["in_proj.weight"], "in_proj.bias": ["in_proj.bias"], **LINEAR,
    "short_filter.weight": ["taps"], "short_filter.bias": ["taps_bias"],
    "filter_fn.bias": ["skip"], "filter_fn.pos_emb.z": ["kernel.positions"],
    "filter_fn.implicit_filter.1.freq": ["kernel.frequency"],
    **{f"filter_fn.implicit_filter.{2 * part}.{end}": [f"kernel.layers.{part}.{end}"]
       for part in range(3) for end in NORM},
    "filter_fn.implicit_filter.6.weight": ["kernel.last.weight"],
}  # fmt: skip
GLA = {
    **{f"{part}_proj.weight": [f"{part}_proj.weight"] for part in "qkv"},
    "gk_proj.0.weight": ["decay_down.weight"], "gk_proj.1.weight": ["decay_up.weight"],
    "gk_proj.1.bias": ["decay_up.bias"], "g_proj.weight": ["gate_proj.weight"],
    "g_norm.weight": ["norm.weight"], "o_proj.weight": ["out_proj.weight"],
}  # fmt: skip
MIXERS = {"softmax": ATTENTION, "sdpa": ATTENTION, "hyena": HYENA, "mamba": MAMBA,
          "mamba2": MAMBA2, "gla": GLA}  # fmt: skip
UNDECAYED = re.compile(r"A_log|\.D$|dt_(proj\.)?bias|implicit_filter|pos_emb|gk_proj\.1\.bias")
"""What decays there alone, where the deviation `decay` says so."""
SWIGLU = {"w1": "network.0.gate", "w2": "network.0.value", "w3": "network.2"}


def names_of(case: str) -> dict[str, list[str]]:
    """Return, for each released parameter, those of ours that it consists of, by rows."""
    protocol, model = case.split(" ")
    found: dict[str, list[str]] = {}
    mixer = MIXERS[model]
    for i in range(2):
        ours = f"stack.blocks.{i}."
        if protocol in ("zoology", "based"):
            theirs = f"backbone.layers.{i}."
            mamba = model.startswith("mamba")
            place, norm = ("mixer", "norm") if mamba else ("sequence_mixer", "norm1")
            ends = ["weight"] if mamba else NORM
            found |= {f"{theirs}{norm}.{end}": [f"{ours}mixer_norm.{end}"] for end in ends}
            if not mamba:
                found |= {f"{theirs}norm2.{end}": [f"{ours}network_norm.{end}"] for end in NORM}
            found |= {f"{theirs}{place}.{k}": [f"{ours}mixer.{n}" for n in v]
                      for k, v in mixer.items()}  # fmt: skip
            continue
        stack = "encoder" if protocol == "mad_compression" else "model"
        found[f"{stack}.{2 * i}.0.weight"] = [f"{ours}mixer_norm.weight"]
        found[f"{stack}.{2 * i + 1}.0.weight"] = [f"{ours}network_norm.weight"]
        found |= {f"{stack}.{2 * i}.1.{k}": [f"{ours}mixer.{n}" for n in v]
                  for k, v in mixer.items()}  # fmt: skip
        found |= {f"{stack}.{2 * i + 1}.1.{k}.weight": [f"{ours}{v}.weight"]
                  for k, v in SWIGLU.items()}  # fmt: skip
    if protocol in ("zoology", "based"):
        found["backbone.embeddings.word_embeddings.weight"] = ["embedding.weight"]
        if model == "softmax":
            found["backbone.embeddings.position_embeddings.weight"] = ["positions.table"]
        found |= {f"backbone.ln_f.{end}": [f"stack.norm.{end}"] for end in NORM}
        return found
    found |= {
        "token_embeds.weight": ["embedding.weight"], "unembed.0.weight": ["stack.norm.weight"],
        "unembed.1.weight": ["head.weight"], "unembed.1.bias": ["head.bias"],
    }  # fmt: skip
    if protocol == "mad_compression":
        found["unembed.0.weight"] = ["row_decoder.norms.2.weight"]
        for i in range(2):
            found[f"decoder.{3 * i}.weight"] = [f"row_decoder.norms.{i}.weight"]
            for end in NORM:
                found[f"decoder.{3 * i + 1}.{end}"] = [f"row_decoder.maps.{i}.{end}"]
    return found


def order_of(case: str, name: str, rows: int) -> list[int] | None:
    """Return the numbers of our rows, in the order of theirs; None: the same order."""
    protocol, model = case.split(" ")
    if protocol in IDS and name.startswith(("token_embeds", "unembed.1")):
        return IDS[protocol]
    if protocol == "based" and name.endswith("word_embeddings.weight"):
        return [*range(1, rows)]  # our first id is padding
    if model == "hyena" and (".in_proj." in name or ".short_filter." in name):
        third = rows // 3
        return [*range(third, 2 * third), *range(third), *range(2 * third, rows)]
    return None


def shape_of(name: str, ours: Tensor) -> tuple[int, ...]:
    """Return the shape that the released code gives a parameter."""
    if name.endswith(("conv1d.weight", "short_filter.weight")):
        return (ours.shape[0], 1, ours.shape[1])
    if name.endswith("filter_fn.bias"):
        return (ours.shape[1],)
    alone = name.endswith((".z", ".freq"))
    return (1, *ours.shape) if alone else tuple(ours.shape)


class BiasedHead(LanguageHead):
    """A head of tokens with a bias, in the place of ours without."""

    def __init__(self, head: LanguageHead) -> None:
        super().__init__(head.weight.shape[1], len(head.weight), head.weight)
        self.bias = nn.Parameter(torch.zeros(len(head.weight)))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def halves(position: Tensor, x: Tensor) -> Tensor:
    """Return sinusoids as mad-lab's decoder has them."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / (half - 1))
    angle = position[..., None] * frequency
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


@cache
def run_of(case: str):
    protocol, model = case.split(" ")
    recall = protocol in ("zoology", "based")
    words = [f"+protocol={protocol if recall else 'mad'}", f"model={model}", "runner=train",
             "logger=none", f"task={'mqar' if recall else protocol}"]  # fmt: skip
    words += ["task.vocabulary=128"] if recall else []
    if protocol == "based":  # whose longer segments have more keys
        words += [f"task.{name}=[{{length: 64, pairs: 4, examples: 512}}, {{length: 128, pairs: 8, "
                  "examples: 512}]" for name in ("segments", "test_segments")]  # fmt: skip
    (entry,) = entries(words)
    return entry.config, typed(entry.config)


def built(case: str) -> nn.Module:
    """Return our model with the rule's weights, float64, and what deviations depart in restored."""
    config, run = run_of(case)
    model = build_model(run, given_facts=facts(run)).double().train()
    if "output_biases" in config["deviations"]:
        model.head = BiasedHead(model.head).double()
    if "last_norm" in config["deviations"]:
        model.stack.norm = nn.LayerNorm(64, dtype=torch.float64)
    ours = dict(model.named_parameters())
    with torch.no_grad():
        for name, parts in names_of(case).items():
            joined = torch.cat([ours[part] for part in parts])
            order = order_of(case, name, len(joined))
            chosen = joined if order is None else joined[order]
            weight = cases.weight(name, shape_of(name, chosen)).reshape(chosen.shape)
            if order is None:
                joined = weight
            else:
                joined[order] = weight
            sizes = [len(ours[part]) for part in parts]
            for part, rows in zip(parts, joined.split(sizes), strict=True):
                ours[part].copy_(rows)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if hasattr(part, "dropout") and isinstance(part.dropout, float):
            part.dropout = 0.0
    return model


def batch_of(case: str):
    """Return the training batch that our task makes of the rows of the released loader."""
    _, run = run_of(case)
    there, asked = ARRAYS[f"{case} tokens"], ARRAYS[f"{case} targets"]
    order = np.array(IDS.get(case.partition(" ")[0], range(there.max() + 1)))
    answers = np.where(asked == -100, NOT_ASKED, order[np.clip(asked, 0, len(order) - 1)])
    rows, task = Rows(order[there], answers), run.task
    stored = rows.stored(task.largest_stored)
    task.split = lambda _: stored
    (batch,) = task.read("train", [np.arange(len(there))], 0)
    return batch, order[there], answers


def moved(case: str, model: nn.Module) -> dict[str, float]:
    """Return what an update has done to each released parameter, as `recall_models.moved`."""
    ours, found = dict(model.named_parameters()), {}
    for name, parts in names_of(case).items():
        joined = torch.cat([ours[part].detach() for part in parts])
        order = order_of(case, name, len(joined))
        now = joined if order is None else joined[order]
        shape = shape_of(name, now)
        change = now.reshape(shape) - cases.weight(name, shape)
        found[name] = (change * cases.weight(f"probe {name}", shape)).sum().item()
    return found


@pytest.mark.parametrize("case", FACTS)
def test_batches_ask_what_the_released_loader_asks(case):
    batch, tokens, answers = batch_of(case)
    shift = run_of(case)[1].task.shift
    assert (batch.tokens[:, 0].numpy() == tokens + shift).all()
    weight = torch.ones(answers.shape) if batch.weight is None else batch.weight
    assert ((weight > 0).numpy() == (answers != NOT_ASKED)).all()
    asked = answers != NOT_ASKED
    assert (batch.target.numpy()[asked] == answers[asked] + shift).all()


@pytest.mark.parametrize("case", FACTS)
def test_answers_loss_and_first_update_are_those_of_the_released_trainer(case, monkeypatch):
    config, run = run_of(case)
    there, (batch, _, answers) = FACTS[case], batch_of(case)
    if "sinusoids" in config["deviations"]:
        monkeypatch.setattr(reconstruction, "sinusoid_like", halves)
    model = built(case)
    logits, _ = model.predict(batch.tokens)
    order = IDS.get(case.partition(" ")[0])
    logits = logits[..., run.task.shift :] if order is None else logits[..., order]
    asked = answers != NOT_ASKED
    found = logits[torch.from_numpy(asked)]
    theirs = ARRAYS[f"{case} logits"]
    assert cases.apart(found[: len(theirs)].detach().numpy(), theirs) <= RELATIVE
    back = np.argsort(order) if order else np.arange(answers.max() + 1)
    loss = F.cross_entropy(found, torch.from_numpy(back[answers[asked]]))
    assert loss.item() == pytest.approx(there["loss"], rel=RELATIVE)
    optimiser = build_optimiser(model, run.optim)
    settings = there["settings"]
    rate = settings.get("learning_rate") or settings["lr"]
    set_rates(optimiser, rate)
    loss.backward()
    optimiser.step()
    now, decay = moved(case, model), settings["weight_decay"] * rate
    for name in filter(UNDECAYED.search, now) if "decay" in config["deviations"] else ():
        shape = shape_of(name, model.get_parameter(names_of(case)[name][0]))
        both = cases.weight(name, shape) * cases.weight(f"probe {name}", shape)
        now[name] -= decay * both.sum().item()
    apart = {
        name for name, value in there["moved"].items()
        if now[name] != pytest.approx(value, rel=1e-4, abs=1e-6)
    }  # fmt: skip
    assert apart == set()
