"""Whole models of a protocol, built from its settings, beside answers of the released code.

`small_models.py` and `arena_models.py` have stored the answers, to batches of the released loaders.
What a model gives here is what the composed configuration gives: its batches, its padding, its
options, its classifier. A difference above rounding has to be explained by a deviation of the
protocol, whose size stands in `LARGEST`.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lra.composition.compose import build_model, facts, typed
from lra.composition.hydra_entry import entries
from lra.models.families.skyformer import SkyformerCore
from tests.lra.released_models import cases
from tests.lra.released_models.doors import answered, handed

HERE = Path(__file__).parent
STORED = {name: np.load(HERE / f"{name}.npz") for name in ("nystrom", "skyformer", "lra_code")}
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
ARENA_NAMES = {
    r"cls": "cls",
    r"embedding\.weight": "Embed_0/embedding",
    r"positions\.table": "posembed_input/pos_embedding",
    r"stack\.blocks\.(\d)\.mixer_norm\.(\w+)": "encoderblock_{0}/LayerNorm_0/{1}",
    r"stack\.blocks\.(\d)\.network_norm\.(\w+)": "encoderblock_{0}/LayerNorm_2/{1}",
    r"stack\.blocks\.(\d)\.network\.0\.(\w+)": "encoderblock_{0}/MlpBlock_3/Dense_0/{1}",
    r"stack\.blocks\.(\d)\.network\.3\.(\w+)": "encoderblock_{0}/MlpBlock_3/Dense_1/{1}",
    r"stack\.blocks\.(\d)\.mixer\.qk?_proj\.(\w+)": "encoderblock_{0}/attention/query/{1}",
    r"stack\.blocks\.(\d)\.mixer\.k_proj\.(\w+)": "encoderblock_{0}/attention/key/{1}",
    r"stack\.blocks\.(\d)\.mixer\.v_proj\.(\w+)": "encoderblock_{0}/attention/value/{1}",
    r"stack\.blocks\.(\d)\.mixer\.out_proj\.(\w+)": "encoderblock_{0}/attention/out/{1}",
    r"stack\.blocks\.(\d)\.mixer\.(\w+_global)\.(\w+)": "encoderblock_{0}/attention/{1}/{2}",
    r"stack\.blocks\.(\d)\.mixer\.table": "encoderblock_{0}/attention/random",
    r"stack\.blocks\.(\d)\.mixer\.core\.length_map\.keys":
        "encoderblock_{0}/attention/lr_kernel",
    r"stack\.blocks\.\d\.mixer\.core\.projection": "projection_matrix",
    r"stack\.norm\.(\w+)": "encoder_norm/{0}",
    r"stack\.places": "posembed_input/pos_embedding",
    r"stack\.(looks|updates)\.0\.norm\.(\w+)": "{0}/LayerNorm_0/{1}",
    r"stack\.(looks|updates)\.0\.source_norm\.(\w+)": "{0}/LayerNorm_1/{1}",
    r"stack\.(looks|updates)\.0\.network_norm\.(\w+)": "{0}/LayerNorm_3/{1}",
    r"stack\.(looks|updates)\.0\.network\.0\.(\w+)": "{0}/MlpBlock_4/Dense_0/{1}",
    r"stack\.(looks|updates)\.0\.network\.3\.(\w+)": "{0}/MlpBlock_4/Dense_1/{1}",
    r"stack\.(looks|updates)\.0\.attention\.q_proj\.(\w+)": "{0}/attention/query/{1}",
    r"stack\.(looks|updates)\.0\.attention\.k_proj\.(\w+)": "{0}/attention/key/{1}",
    r"stack\.(looks|updates)\.0\.attention\.v_proj\.(\w+)": "{0}/attention/value/{1}",
    r"stack\.(looks|updates)\.0\.attention\.out_proj\.(\w+)": "{0}/attention/out/{1}",
    r"head\.hidden\.(\w+)": "mlp/{0}",
    r"head\.second\.(\w+)": "mlp2/{0}",
    r"head\.out\.(\w+)": "logits/{0}",
}  # fmt: skip
"""The same of the Long Range Arena's own code, as `cases.arena_name` gives it."""
ROWS_THERE = {"listops": 32}
"""Of the table of tokens; elsewhere 512, or 256 where `skyformer` has images."""


def released_name(name: str, protocol: str) -> str:
    arena = protocol == "lra_code"
    name = name.replace("stack.groups.0.", "stack.blocks.")  # of the Temporal Latent Bottleneck
    found = cases.renamed(name, ARENA_NAMES if arena else NAMES)
    return (
        found.replace("weight", "scale" if "norm" in found.lower() else "kernel")
        if arena
        else found
    )


def released_shape(
    name: str, own: torch.Tensor, protocol: str, task: str, longest: int
) -> tuple[int, ...]:
    if protocol == "lra_code":
        shape = tuple(own.squeeze(0).shape)
        if name == "posembed_input/pos_embedding":  # of which a chunk takes the first ones
            return (max(longest, shape[0]), shape[1])
        if name == "Embed_0/embedding" and task == "listops":
            return (17, shape[1])
        return (1, 1, *own.shape) if name == "cls" else shape
    if "word_embeddings" in name:
        small = (protocol, task) == ("skyformer", "image")
        return (256 if small else ROWS_THERE.get(task, 512), own.shape[1])
    if name.endswith("conv.weight"):
        return (own.shape[0], 1, own.shape[1], 1)
    return tuple(own.shape)


def drawn(mixer: nn.Module, layer: int, protocol: str) -> None:
    """Fill the draws that are no numbers of the released state."""
    if hasattr(mixer, "rotations"):
        rounds, heads, width, columns = mixer.rotations.shape
        if protocol == "lra_code":  # which hashes all heads by one draw
            theirs = cases.weight("projection_matrix", (width, rounds, columns))
            mixer.rotations.copy_(theirs.permute(1, 0, 2)[:, None])
            return
        seeded = torch.Generator().manual_seed(cases.HASH_SEED)
        theirs = torch.randn(heads, width, rounds, columns, generator=seeded, dtype=torch.float64)
        mixer.rotations.copy_(theirs.permute(2, 0, 1, 3))
    elif isinstance(getattr(mixer, "core", None), SkyformerCore):
        draws = mixer.core.draws
        numbers = cases.uniforms(layer, draws.numel()).view_as(draws)
        draws.copy_((numbers * 2**31).long())


def built(entry, protocol: str, longest: int) -> nn.Module:
    mixer = entry.config["model"].get("mixer", {})
    if "buckets" in mixer:
        mixer["buckets"] = None  # which a task's own length decides, and here is a shorter one
    run = typed(entry.config)
    short = replace(facts(run), max_length=longest)
    model = build_model(run, given_facts=short).double().eval()
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        for layer, block in enumerate(getattr(model.stack, "blocks", ())):
            drawn(block.mixer, layer, protocol)
        done = set()
        for name, own in state.items():
            if name.endswith(("rotations", "draws")) or id(own) in done:
                continue
            done.add(id(own))
            theirs = released_name(name, protocol)
            shape = released_shape(theirs, own, protocol, run.task_name, longest)
            weight = cases.weight(theirs, shape)
            own.copy_(weight.flatten()[: own.numel()].view(own.shape))
    return model


def composed(protocol: str, task: str):
    names = [name.partition(".")[2] for name in STORED[protocol] if name.startswith(f"{task}.")]
    names += ["sdpa"] if protocol == "lra_code" else []
    words = ["-m", f"+protocol={protocol}", f"task={task}", f"model={','.join(names)}"]
    words += ["logger=none", *([] if task == "listops" else ["task.source=sample"])]
    return entries(words)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("protocol", "task"),
    [(name, task) for name in STORED
     for task in dict.fromkeys(key.partition(".")[0] for key in STORED[name])],
)  # fmt: skip
def test_whole_models_answer_as_the_released_code(protocol, task):
    found = {}
    for entry in composed(protocol, task):
        name = entry.config["model"]["name"]
        ids = cases.inputs(protocol, name, task)
        batch = handed(typed(entry.config), ids)
        with torch.no_grad():
            logits = answered(built(entry, protocol, ids.shape[-1]), batch)
        theirs = STORED[protocol][f"{task}.{'softmax' if name == 'sdpa' else name}"]
        apart = cases.apart(logits, theirs)
        allowed = sum(LARGEST.get(each, 0.0) for each in entry.config["deviations"])
        if not apart <= RELATIVE + allowed:
            found[name] = apart
    assert not found
