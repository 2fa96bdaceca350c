"""Layers by rule, by letter, by alias and side by side, and layers with options of their own."""

from typing import Any

import pytest
import torch

from lra.composition import layer_list
from lra.composition.compose import build_model, typed
from lra.composition.hydra_entry import entries
from lra.composition.run import Run
from lra.errors import ConfigError
from lra.models.backbone.config import Head, TaskFacts
from lra.models.mixer import Unsupported
from lra.sweep.identity import _mixer as described, as_run, decisive

WORDS = ("task=mqar", "model=mamba2", "model.mixer.states=8", "model.backbone.positions=none",
         "model.backbone.depth=4", "logger=none")  # fmt: skip
FACTS = TaskFacts(
    head=Head.language_modelling, vocabulary=20, classes=2, max_length=16, padded=True
)


def run_of(model: dict[str, Any] | None = None, *words: str) -> Run:
    (entry,) = entries([*WORDS, *words])
    config = entry.config
    tree = {**config["model"], **(model or {})}
    tree["backbone"] = {**config["model"]["backbone"], **(model or {}).get("backbone", {})}
    return typed({**config, "model": tree})


def names(model: dict[str, Any] | None = None, *words: str) -> list[str]:
    return list(run_of(model, *words).mixer_options["layers"])


def test_a_rule_repeats_its_cycle_between_its_ends() -> None:
    def expand(depth: int, **rule: list[str]) -> str:
        return "".join(layer_list.expand(rule, depth, (), "model.layers"))

    assert expand(7, cycle=["a", "a", "b"]) == "aabaaba"
    assert expand(7, cycle=["a", "a", "b"], last=["b"]) == "aabaabb"
    assert expand(7, cycle=["a", "a", "b"], first=["c", "c"], last=["b", "a"]) == "ccbaaba"
    assert expand(3, cycle=["a"], first=["c"], last=["b"]) == "cab"
    with pytest.raises(ConfigError, match="stack of 3 layers; set a larger depth"):
        expand(2, cycle=["c"], first=["c", "c"], last=["c"])
    with pytest.raises(ConfigError, match=r"depth=2, .* without a layer of b"):
        expand(2, cycle=["a", "a", "b"])
    with pytest.raises(ConfigError, match="cycle is missing"):
        expand(2, first=["a"])


def test_a_rule_on_the_command_line_follows_the_depth() -> None:
    rule = "model.layers={cycle: [mamba2,mamba2,sdpa], last: [sdpa]}"
    assert names(None, rule) == ["mamba2", "mamba2", "sdpa", "sdpa"]
    expected = ["mamba2", "mamba2", "sdpa", "mamba2", "sdpa"]
    assert names(None, rule, "model.backbone.depth=5") == expected
    with pytest.raises(ConfigError, match=r"model\.layers: the rule .* does not fit"):
        run_of(None, rule, "model.backbone.depth=1")


def test_letters_are_aliases() -> None:
    table = {
        "M": {"family": "mamba2", "states": 4, "backbone": {"feed_forward": "none"}},
        "*": {"family": "sdpa", "backbone": {"heads": 4, "feed_forward": "none"}},
        "-": {"family": "none"},
    }
    run = run_of({"layers": "MM*-", "layer_options": table})
    assert run.mixer_options["layers"] == ["M", "M", "*", "-"]
    blocks = build_model(run, given_facts=FACTS).stack.blocks
    kinds = [type(block.mixer).__name__ for block in blocks]
    assert kinds == ["Mamba2", "Mamba2", "SDPA", "NoMixer"]
    assert [block.network is None for block in blocks] == [True, True, True, False]
    assert [block.mixer.heads for block in blocks[:3]] == [2, 2, 4]
    assert blocks[0].mixer.states == 4
    assert not [*blocks[3].mixer_norm.parameters()]
    with pytest.raises(ConfigError, match=r"got 'sdpa'; wanted a list .* none for 'a', 'd', 'p'"):
        run_of({"layers": "sdpa", "layer_options": {}})


def test_an_alias_lets_a_family_stand_twice() -> None:
    table = {
        "near": {"family": "sliding_window", "window": [2]},
        "sliding_window": {"window": [9]},
    }
    run = run_of({"layers": ["near", "mamba2", "sliding_window", "mamba2"], "layer_options": table})
    others = run.mixer_options["others"]
    assert [others[name]["window"] for name in table] == [[2], [9]]


@pytest.mark.parametrize(
    ("layers", "table", "message"),
    [
        (["gla", "mamba2"] * 2, {"gla": {"family": "sdpa"}}, "gla is itself a family; choose a"),
        (["sdpa", "mamba2"] * 2, {"mamba2": {"states": 4}}, "got options of the model itself"),
        (["sdpa", "mamba2"] * 2, {"sdpa": {"backbone": {"depth": 4}}}, "unknown option 'depth'"),
        (["sdpa", "mamba2"] * 2, {"sdpa": {"backbone": 4}}, "got 4; wanted a mapping of options"),
        (["sdpa", "mamba2"] * 2, {"sdpa": 4}, "got 4; wanted a mapping of options"),
        (["sdpa", "mamba2"] * 2, {"sdpa": {"backbone": {"positions": "learned"}}},
         "positions of a layer are none, or those that a mixer applies itself"),
        (["both"] * 4, {"both": {"parallel": ["sdpa"]}}, "list of two or more different layers"),
        (["both"] * 4, {"both": {"parallel": ["sdpa", "sdpa"]}}, "two or more different layers"),
        (["both"] * 4, {"both": {"parallel": ["sdpa", "sdpx"]}}, "unknown model 'sdpx'"),
        (["both"] * 4, {"both": {"parallel": ["sdpa", "mamba2"], "scale": 1}}, "option 'scale'"),
        (["both"] * 4, {"both": {"shared": ["sdpa", "mamba2", "gla"]}}, "wanted two layers, first"),
        (["none", "mamba2"] * 2, {"none": {"states": 4}}, "unknown option 'states'"),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_refused(layers: list[str], table: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_of({"layers": layers, "layer_options": table})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone": {"residual": "post_norm"}}, "set model.backbone.residual=pre_norm"),
        ({"backbone": {"feed_forward": "none"}}, "needs a network: got feed_forward=none"),
        ({"layers": ["both"] * 4, "layer_options": {
            "both": {"parallel": ["sdpa", "mamba2"], "scales": [1.0]}}}, "one number of `scales`"),
        ({"layers": ["both"] * 4, "layer_options": {
            "both": {"parallel": ["sdpa", "mamba2"], "scales": [1.0, 2.0], "norm": True}}},
         "or norm=true"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        build_model(run_of({"layers": ["none", "mamba2"] * 2, **changes}), given_facts=FACTS)


def test_layers_of_their_own_need_one_stack_of_one_length() -> None:
    changes = {
        "layers": ["sdpa", "mamba2"] * 2, "layer_options": {"sdpa": {"backbone": {"heads": 4}}},
        "backbone": {"pool_blocks": 2},
    }  # fmt: skip
    with pytest.raises(ConfigError, match="got pool_blocks=2; set it to its default"):
        run_of(changes)


def test_options_of_a_layer_are_part_of_what_identifies_a_run() -> None:
    def identity(table: Any) -> Any:
        run = run_of({"layers": ["sdpa", "mamba2"] * 2, "layer_options": table})
        described(run, [], {}, as_run)
        return described(run, [], {}, decisive)

    plain = identity({})
    assert set(plain["others"]) == {"sdpa"}
    assert "layer_backbone" not in plain
    assert identity({"sdpa": {"backbone": {"heads": 4}}}) == {
        **plain, "layer_backbone": {"sdpa": {"heads": 4}}
    }  # fmt: skip


BOTH = {"both": {"parallel": ["mamba2", "sdpa"]}, "mamba2": {"backbone": {"heads": 4}}}


@pytest.mark.parametrize("options", [{}, {"scales": [2.0, 0.5]}, {"norm": True}])
def test_mixers_side_by_side_add_their_outputs(options: dict[str, Any]) -> None:
    table = {**BOTH, "both": {**BOTH["both"], **options}}
    run = run_of({"layers": ["both", "mamba2"] * 2, "layer_options": table})
    described(run, [], {}, as_run)
    model = build_model(run, given_facts=FACTS).double()
    side, alone = (model.stack.blocks[layer].mixer for layer in (0, 1))
    assert [part.heads for part in side.mixers] == [4, 2]
    assert alone.heads == 4
    x = torch.randn(2, 7, 64, dtype=torch.float64)
    layout = torch_layout(x)
    parts = [part(x, layout) for part in side.mixers]
    if options.get("norm"):
        parts = [part * (part.square().mean(-1, keepdim=True) + 1e-5).rsqrt() for part in parts]
    first, second = options.get("scales") or ([0.5, 0.5] if options else [1.0, 1.0])
    torch.testing.assert_close(side(x, layout), first * parts[0] + second * parts[1])


def torch_layout(x: torch.Tensor) -> Any:
    from lra.models.mixer import Layout

    return Layout(keep=torch.arange(x.shape[1]) < torch.tensor([[7], [4]]))


SHARED = {"hybrid": {"shared": ["sdpa", "mamba2"], "adapter_rank": 2}}


def test_layers_of_one_name_share_a_block() -> None:
    layers = ["hybrid", "mamba2", "hybrid", "other"]
    run = run_of({"layers": layers, "layer_options": {**SHARED, "other": SHARED["hybrid"]}})
    described(run, [], {}, as_run)
    first, alone, second, other = (
        block.mixer for block in build_model(run, given_facts=FACTS).stack.blocks
    )
    assert first.block is second.block
    assert first.block is not other.block
    assert type(alone) is type(first.own)
    assert first.map is not second.map
    assert first.adapter is not second.adapter
    assert first.block.attention.q_proj.weight.shape == (128, 128)
    assert first.block.back.weight.shape == (64, 128)


def test_a_shared_block_reads_the_embedding_at_every_depth() -> None:
    """With the maps back zero, it changes nothing; with them, it reads the input of the stack."""
    run = run_of({"layers": ["mamba2"] * 3 + ["hybrid"], "layer_options": SHARED})
    model = build_model(run, given_facts=FACTS).double().eval()
    tokens = torch.randint(0, 20, (1, 1, 9))
    hybrid = model.stack.blocks[3].mixer
    seen = []
    hybrid.block.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].x))
    before, _ = model.predict(tokens)
    embedded = model.embedding(tokens[:, 0]) * model.outer_scale
    torch.testing.assert_close(seen[0][..., 64:], embedded)
    hybrid.map.weight.data.zero_()
    without, _ = model.predict(tokens)
    assert (before - without).abs().max() > 1e-3
    hybrid.block.down.weight.data.mul_(2)
    torch.testing.assert_close(model.predict(tokens)[0], without)


@pytest.mark.parametrize(
    ("options", "backbone", "message"),
    [
        ({"shared": ["gla", "mamba2"]}, {}, "must be attention with one projection"),
        ({"shared": ["sdpa", "mamba2"]}, {"heads": 3, "head_width": 8}, "fill twice the width"),
        ({"shared": ["sdpa", "mamba2"]}, {"residual": "post_norm"}, "set model.backbone.residual"),
        ({"shared": ["sdpa", "mamba2"]}, {"residual": "reversible"}, "residual"),
    ],
)
def test_a_shared_block_that_does_not_fit_is_refused(
    options: dict[str, Any], backbone: dict[str, Any], message: str
) -> None:
    table = {"hybrid": options}
    run = run_of({"layers": ["hybrid", "mamba2"] * 2, "layer_options": table, "backbone": backbone})
    with pytest.raises(Unsupported, match=message):
        build_model(run, given_facts=FACTS)


@pytest.mark.parametrize(
    "layers",
    [["both", "mamba2"] * 2, ["none", "sdpa", "both", "none"], ["hybrid", "mamba2"] * 2],
)
def test_such_a_stack_continues_from_a_state(layers: list[str]) -> None:
    table = BOTH if "mamba2" in layers else {"both": BOTH["both"]}
    table = SHARED if "hybrid" in layers else table
    run = run_of({"layers": layers, "layer_options": table})
    model = build_model(run, given_facts=FACTS).double().eval()
    tokens = torch.randint(0, 20, (2, 1, 9))
    whole, _ = model.predict(tokens)
    state, pieces = model.initial_state(2, 16), []
    for piece in tokens.split([4, 1, 4], -1):
        logits, state = model.predict(piece, state=state)
        pieces.append(logits)
    torch.testing.assert_close(torch.cat(pieces, 1), whole)
