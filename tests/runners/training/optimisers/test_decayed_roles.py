"""Weight decay of matrices alone: what every parameter is for decides, not its shape."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from lra.composition.catalogue import choices
from lra.composition.compose import core_of
from lra.composition.yaml_text import load
from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.model import Backbone
from lra.models.backbone.networks import GroupedLinear
from lra.models.families.adaptive_span import AdaptiveSpan
from lra.models.families.compressed_attention import CompressedMultiQuery
from lra.models.families.gated_delta_net import GatedDeltaNet
from lra.models.families.grouped_query import GroupedQueryAttention
from lra.models.families.h_transformer import HTransformer
from lra.models.families.indexed_attention import IndexedAttention
from lra.models.families.latent_attention import LatentAttention
from lra.models.families.linoss import LinOSS
from lra.models.families.mamba2 import Mamba2
from lra.models.families.mamba3 import Mamba3
from lra.models.families.path import PathAttention
from lra.models.families.sdpa import SDPA
from lra.models.families.sliding_window import SlidingWindow
from lra.models.families.slots import GatedSlots
from lra.models.families.softmax import SoftmaxAttention
from lra.models.families.synthesizer import Synthesizer
from lra.models.mixer import Positions, Roles, Site, Tuning, Unsupported
from lra.runners.training.optim import OptimConfig
from lra.runners.training.optimisers.groups import parameter_groups, tunings

FACTS = TaskFacts(head=Head.language_modelling, vocabulary=40, classes=0, max_length=12)
MATRICES = OptimConfig(weight_decay=0.2, decayed_weights="matrices")


def decayed(model: nn.Module) -> set[str]:
    """Return the names of the parameters that decay."""
    names = {id(p): name for name, p in model.named_parameters()}
    groups = parameter_groups(model, MATRICES)
    assert sorted(id(p) for group in groups for p in group["params"]) == sorted(names)
    return {names[id(p)] for g in groups for p in g["params"] if g["weight_decay"] == 0.2}


def wide(model: nn.Module) -> set[str]:
    """Return the names of all parameters that look like matrices."""
    return {name for name, p in model.named_parameters() if p.dim() >= 2}


def backbone(mixer: Any = SoftmaxAttention, **options: Any) -> Backbone:
    config = {"depth": 1, "width": 8, "heads": 2, "feed_forward_width": 8} | options
    return Backbone(BackboneConfig(**config), FACTS, [mixer], seed=0)


RELATIVE = "stack.blocks.0.mixer.core.relative."
TABLES: list[tuple[dict[str, Any], set[str]]] = [
    ({"positions": "learned"}, {"embedding.weight", "positions.table"}),
    ({"positions": "axial"}, {"embedding.weight", "positions.rows_table",
                              "positions.columns_table"}),
    ({"positions": "none", "embedding_width": 4}, {"embedding.weight"}),
    ({"positions": "none", "embedding_width": 4, "tied_embeddings": False}, {"embedding.weight"}),
    ({"positions": "none", "embedding": "adaptive", "softmax": "adaptive",
      "softmax_cutoffs": [10, 20], "softmax_shrink": 2.0},
     {"embedding.tables.0", "embedding.tables.1", "embedding.tables.2"}),
    ({"positions": "t5"}, {"embedding.weight", f"{RELATIVE}weight"}),
    ({"positions": "shaw"}, {"embedding.weight", f"{RELATIVE}weight"}),
    ({"positions": "transformer_xl"},
     {"embedding.weight", f"{RELATIVE}biases.content", f"{RELATIVE}biases.position"}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "tables"), TABLES)
def test_tables_of_tokens_and_positions_do_not_decay(
    options: dict[str, Any], tables: set[str]
) -> None:
    model = backbone(**options)
    assert tables <= wide(model)
    assert decayed(model) == wide(model) - tables


MAPS = (nn.Linear, nn.Conv1d, nn.LSTM, GroupedLinear)
KNOWN_MAPS = {
    "BlockMap.weight", "CollaborativeAttention.mixing", "CompressedMultiQuery.group_maps",
    "LRU.readout", "LengthMap.keys", "LengthMap.values", "LightConv.weight", "LinOSS.readout",
    "MixedAttention.span", "Oscillators.entry", "S4.readout", "S5.readout",
    "SGConv.skip", "SLSTM.recurrent", "Sinkhorn.sort_out", "SpanCore.keys", "SpanCore.values",
    "Synthesizer.dense_out", "Synthesizer.table", "TTT.weight", "TalkingCore.logits_map",
    "TalkingCore.weights_map", "ValueConvolution.weight",
}  # fmt: skip
"""Parameters that map vectors, filter them, or mix heads or tokens, in other modules."""
WITH_SINKS = (SDPA, SoftmaxAttention, GroupedQueryAttention, LatentAttention, SlidingWindow)
SPECIAL = [
    partial(AdaptiveSpan, persistent=2), partial(HTransformer, relative_bias=True),
    partial(Synthesizer, components=["dense", "random"]),
    partial(GatedDeltaNet, log_linear=True), partial(Mamba2, log_linear=True),
    partial(Mamba3, rank=2, output_norm=True),
    partial(GatedDeltaNet, comba=True), partial(GatedDeltaNet, precondition=1.5),
    partial(LinOSS, discretisation="imex", damping=True), partial(GatedSlots, slots=4, route=2),
    partial(IndexedAttention, scores="kpool"), partial(PathAttention, forget=True),
    partial(CompressedMultiQuery, form="sparse"),
    *(partial(family, sink=True) for family in WITH_SINKS),
]  # fmt: skip


def mixers() -> Iterator[nn.Module]:
    """Yield every family in both directions and with each of its encodings."""
    for file in choices("model", []):
        made, stack, _ = core_of(load(file), [], file.stem)
        if stack is None:
            yield from built(made[0])
    for make in SPECIAL:
        yield from built(make)


def built(make: Any) -> Iterator[nn.Module]:
    for causal in (False, True):
        offered = {Positions.none}
        for positions in Positions:
            site = Site(
                width=16, heads=2, max_length=64, causal=causal, positions=positions, cls=not causal
            )
            if positions not in offered:
                continue
            try:
                with torch.device("meta"):
                    mixer = make(site)
            except Unsupported:
                continue
            offered |= {Positions(each) for each in mixer.traits.positions}
            yield mixer


def test_whatever_looks_like_a_matrix_is_one_or_says_that_it_is_none() -> None:
    """So that a new parameter is decided about: it says so, is a map by type, or stands here."""
    unknown, maps = set(), set()
    for mixer in mixers():
        said = {id(p): tuning for p, tuning in tunings(mixer)}
        for module in mixer.modules():
            for name, parameter in module.named_parameters(recurse=False):
                where = f"{type(module).__name__}.{name}"
                matrix = parameter.dim() >= 2 and said[id(parameter)].matrix
                if matrix and not isinstance(module, MAPS):
                    (maps if where in KNOWN_MAPS else unknown).add(where)
    assert unknown == set()
    assert maps == KNOWN_MAPS


OF_SCORES_AND_TABLES = (
    "BucketScores", "DistanceTable", "FunnelScores", "GlobalBiases", "HTransformerCore",
    "LambdaLayer", "ShawScores", "SinkhornCore", "Slots", "SpanTable", "TwoMaps",
)  # fmt: skip
"""Modules whose vectors are added to scores or looked up."""
OF_NO_MEMORY = {
    "CompressedMultiQuery.index.pooling.places", "CompressedMultiQuery.pooling.places",
    "CompressiveTransformer.compressor.layers.0.bias", "GatedDeltaNet2.gate_up.bias",
    "IndexedAttention.index.place",
    "KimiDelta.gate_up.bias",
    "Longformer.key_global.bias", "Longformer.query_global.bias", "Longformer.value_global.bias",
    "MultiresConv.high", "MultiresConv.low", "MultiresConv.weights", "SGConv.kernel.parts",
    "Sinkhorn.sort_bias", "Sinkhorn.sort_in.bias", "Synthesizer.alpha", "Synthesizer.dense_bias",
    "Synthesizer.dense_in.bias",
}  # fmt: skip
"""Other vectors that decay: of projections, maps of sorting, kernels, gates of outputs."""
FIRST_MEMORY = {"TTT.bias", "TTT.norm_bias"}
"""What a memory begins as, where it is a model by itself."""
DECAYED_BY_THEIR_SOURCES = {
    *(f"LSTM.cells.{cell}.lstm.bias_{part}h_l0" for cell in (0, 1) for part in "hi"),
    "Mamba3.reads.bias", "Mamba3.writes.bias",
    *(f"Mamba3.outputs.{each}_weight" for each in ("input", "gate", "output")),
    "GatedDeltaNet.inner_decay",
    "QRNN.cells.0.gates.bias", "QRNN.cells.1.gates.bias", "Mega.scale", "Mega.shift",
    *(f"Mega.average.{name}" for name in ("alpha", "beta", "delta", "gamma", "omega")),
}  # fmt: skip


def test_rates_steps_and_biases_of_gates_of_a_memory_never_decay() -> None:
    """A new vector is decided about: its role tells, it never decays, or it stands here."""
    decaying = set()
    for mixer in mixers():
        said = {id(p): tuning for p, tuning in tunings(mixer)}
        for path, module in mixer.named_modules():
            kind = type(module).__name__
            projects = isinstance(module, nn.Linear) and path.endswith("_proj")
            if "Norm" in kind or projects or kind in ("ShortConvolution", *OF_SCORES_AND_TABLES):
                continue
            for name, parameter in module.named_parameters(recurse=False):
                tuning = said[id(parameter)]
                vector = parameter.dim() < 2 or not tuning.matrix
                gain = name in ("skip", "norm_weight") or name.startswith("taps")
                if vector and tuning.weight_decay is None and not gain:
                    decaying.add(".".join(filter(None, (type(mixer).__name__, path, name))))
    assert decaying == OF_NO_MEMORY | FIRST_MEMORY | DECAYED_BY_THEIR_SOURCES


def test_every_name_that_a_class_gives_is_a_parameter_somewhere() -> None:
    named, there = set(), set()
    for mixer in mixers():
        for module in mixer.modules():
            if isinstance(module, Roles):
                names = (*module.no_matrices, *module.undecayed)
                named |= {(type(module), name) for name in names}
                there |= {(type(module), name) for name, _ in module.named_parameters()}
    assert named - there == set()


def test_what_modules_say_is_added_up() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(3, 2)

        def tuning(self) -> dict[str, Tuning]:
            return {"table.weight": Tuning(learning_rate_scale=0.5)}

    ((_, tuning),) = tunings(Outer())
    assert tuning == Tuning(learning_rate_scale=0.5, matrix=False)
