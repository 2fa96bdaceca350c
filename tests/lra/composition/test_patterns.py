"""Patterns of published hybrids: their layers, counted from 0, and that a small one is built."""

from typing import Any

import pytest
import torch

from lra.composition.catalogue import entries as catalogue, names
from lra.composition.compose import build_model, group_file, typed
from lra.composition.hydra_entry import entries
from lra.errors import ConfigError
from lra.models.backbone.config import Head, TaskFacts
from lra.models.mixer import Layout

ATTENTION: dict[str, tuple[int, set[int]]] = {
    "qwen3_next": (48, {*range(3, 48, 4)}),
    "qwen3_5": (32, {*range(3, 32, 4)}),
    "olmo_hybrid": (32, {*range(3, 32, 4)}),
    "qwen4_exp": (40, {*range(3, 40, 4)}),
    "kimi_linear": (27, {3, 7, 11, 15, 19, 23, 26}),
    "kimi_k3": (93, {*range(3, 92, 4), 92}),
    "glm5_next": (45, {*range(3, 45, 4)}),
    "jamba": (32, {4, 12, 20, 28}),
    "minimax_01": (80, {*range(7, 80, 8)}),
    "bailing": (42, {5, 11, 17, 23, 29, 35, 41}),
    "mimo_v2": (48, {0, 5, 11, 17, 23, 29, 35, 41, 47}),
    "samba": (18, {*range(1, 18, 2)}),
    "falcon_h1": (32, {*range(32)}),
    "hymba": (32, {0, 15, 31}),
    "nemotron_h": (52, {7, 18, 29, 40}),
    "lfm3": (24, {2, 6, 10, 14, 18, 22}),
    "recurrent_gemma": (26, {*range(2, 26, 3)}),
    "zamba2": (54, {6, 12, 18, 24, 30, 36, 42, 47, 51}),
    "deepseek_v4": (43, {*range(3, 43, 2)}),
}
"""Depth, and the layers with attention (of deepseek_v4: with the sparse kind)."""
KINDS = {"attention", "latent_attention", "both", "full", "A", "H", "sparse"}
ALSO = {name: {"sliding_window"} for name in ("samba", "recurrent_gemma")}


def run_of(name: str, *words: str) -> Any:
    (entry,) = entries([f"+pattern={name}", "task=mqar", "logger=none", *words])
    return typed(entry.config)


def test_every_pattern_is_listed_here() -> None:
    assert {*names("pattern")} == {*ATTENTION}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_where_the_source_has_it(name: str) -> None:
    layers = run_of(name).mixer_options["layers"]
    kinds = KINDS | ALSO.get(name, set())
    found = {place for place, layer in enumerate(layers) if layer in kinds}
    assert (len(layers), found) == ATTENTION[name]


@pytest.mark.parametrize("name", ATTENTION)
def test_a_pattern_names_its_source_and_what_differs(name: str) -> None:
    about = group_file("pattern", name)["about"]
    assert about["source"]
    assert about["deviations"]["sizes"].startswith("sizes are those of `size=`")
    (entry,) = [each for each in catalogue("pattern") if each.name == name]
    assert entry.summary == about["summary"]


@pytest.mark.share(4)
@pytest.mark.parametrize("name", ATTENTION)
def test_a_pattern_that_fits_its_depth_is_built(name: str) -> None:
    facts = TaskFacts(
        head=Head.language_modelling, vocabulary=20, classes=2, max_length=16, padded=True
    )
    with torch.device("meta"):
        model = build_model(run_of(name), given_facts=facts)
    assert len(model.stack.blocks) == ATTENTION[name][0]
    if name in {"hymba", "nemotron_h", "zamba2"}:  # lists, which have one depth
        with pytest.raises(ConfigError, match=r"model\.layers: got \d+ names .* wanted 1 names"):
            run_of(name, "model.backbone.depth=1")
    elif name != "falcon_h1":  # of one kind of layer
        with pytest.raises(ConfigError, match=r"does not fit model\.backbone\.depth=1"):
            run_of(name, "model.backbone.depth=1")


def test_a_size_and_a_depth_shorten_a_pattern() -> None:
    run = run_of("qwen3_next", "size=base")
    assert run.mixer_options["layers"] == [*["gated_delta_net"] * 3, "attention"]
    assert (run.backbone.width, run.backbone.norm) == (256, "rms")
    seven = run_of("kimi_linear", "model.backbone.depth=7").mixer_options["layers"]
    assert [place for place, layer in enumerate(seven) if layer == "latent_attention"] == [3, 6]


def test_kimi_k3_attends_over_depth_to_blocks_of_twelve_layers() -> None:
    """As its loaders: before layers 0, 12, 24, ... the sum so far becomes a source of its block."""
    facts = TaskFacts(
        head=Head.language_modelling, vocabulary=20, classes=2, max_length=8, padded=True
    )
    words = ("size=tiny", "model.backbone.depth=26", "model.backbone.width=16")
    model: Any = build_model(run_of("kimi_k3", *words), given_facts=facts).double().eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.stack.named_parameters():
        if "query" in name:
            torch.nn.init.normal_(parameter, generator=generator)

    def over_depth(query: torch.Tensor, sources: list[torch.Tensor]) -> torch.Tensor:
        values = torch.stack(sources)
        keys = torch.nn.functional.rms_norm(values, (16,), eps=1e-5)
        return ((keys @ query).softmax(0)[..., None] * values).sum(0)

    tokens = torch.arange(1, 9)[None]
    with torch.no_grad():
        bank: list[torch.Tensor] = []
        total: Any = model.embedding(tokens)
        for place, block in enumerate(model.stack.blocks):
            read = over_depth(block.mixer_query, [*bank, total])
            if place % 12 == 0:
                bank, total = [*bank, total], 0.0
            total = total + block.mixer(block.mixer_norm(read), Layout())
            read = over_depth(block.network_query, [*bank, total])
            total = total + block.network(block.network_norm(read))
        wanted = model.stack.norm(over_depth(model.stack.query, [*bank, total]))
        found = model.run(tokens[:, None], None, None).x
    assert len(bank) == 3
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=0)
