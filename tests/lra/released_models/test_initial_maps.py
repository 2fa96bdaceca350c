"""Linear maps of models under the protocols whose sources keep PyTorch's default."""

import pytest
from torch import nn

from lra.composition.compose import build_model, typed
from lra.composition.hydra_entry import entries
from lra.models.backbone.heads import LanguageHead

ENOUGH = 2000
"""Weights by which a deviation is known to 4 %."""


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "cell",
    [
        "nystrom listops linformer", "nystrom retrieval sdpa", "skyformer listops skyformer",
        "s4 image s4", "s4_v1 listops s4", "s4_v3 retrieval s4", "s4d image s4",
        "sgconv image sgconv", "self_pretraining text softmax",
        "adaptive_span enwik8 adaptive_span", "mad mad_recall sdpa",
        "mad mad_copy mamba", "mad mad_fuzzy gla", "based mqar mamba2", "zoology mqar mamba",
    ],
)  # fmt: skip
def test_maps_begin_as_in_the_source(cell):
    protocol, task, model = cell.split()
    words = [f"+protocol={protocol}", f"task={task}", f"model={model}", "model.backbone.depth=1"]
    (entry,) = entries(words)
    maps = [
        (name, part)
        for name, part in build_model(typed(entry.config)).named_modules()
        if isinstance(part, nn.Linear) or (isinstance(part, LanguageHead) and part.untied)
    ]
    assert maps
    for name, part in maps:
        reach = part.weight.shape[1] ** -0.5
        assert part.weight.abs().max() <= 1.0001 * reach, name
        if part.weight.numel() > ENOUGH:
            assert part.weight.std().item() == pytest.approx(reach / 3**0.5, rel=0.04), name
        if getattr(part, "bias", None) is not None:
            zeros = protocol in ("mad", "based", "zoology")
            assert bool(part.bias.any()) != zeros, name
            assert part.bias.abs().max() <= reach, name
