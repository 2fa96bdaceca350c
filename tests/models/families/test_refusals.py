"""What families are not built with, and what they say: a value seen, a value wanted, a way out."""

import pytest
from refused_options import REFUSED

from lra.models.mixer import Layout, Positions, Unsupported
from tests.attention import builder, drawn
from tests.contracts.choices_of_configs import MODELS

USUAL = {
    "adaptive_span": {"causal": True, "span": 20, "ramp": 4},
    "collaborative": {"max_length": 32},
    "compressed": {"positions": Positions.rotary},
    "compressive_transformer": {"causal": True, "positions": Positions.transformer_xl},
    "convbert": {"heads": 4, "max_length": 32, "kernel": 5},
    "delta_net": {"causal": True},
    "forgetting": {"causal": True},
    "funnel": {"positions": Positions.transformer_xl},
    "gated_delta_net": {"causal": True},
    "gated_delta_net2": {"causal": True},
    "gla": {"causal": True},
    "grouped_query": {"width": 24, "heads": 6},
    "hgrn2": {"causal": True},
    "hyena": {"width": 6, "heads": 2, "max_length": 20},
    "kimi_delta": {"causal": True},
    "lambda_layer": {"heads": 2, "max_length": 48, "key_width": 3, "window": 5},
    "latent_attention": {"positions": Positions.rotary},
    "light_conv": {"width": 6, "heads": 2, "max_length": 32, "kernel": [5]},
    "linformer": {"max_length": 40, "projected_length": [6]},
    "lite_transformer": {"heads": 2, "max_length": 32, "kernel": [5]},
    "local": {"block": 8},
    "longformer": {"width": 16, "heads": 4},
    "lru": {"width": 6, "heads": 2},
    "lstm": {"width": 8, "heads": 2},
    "mamba": {"causal": True},
    "mamba2": {"heads": 4, "causal": True},
    "mamba3": {"heads": 4, "causal": True},
    "mega": {"width": 6, "heads": 2, "max_length": 17},
    "mesa_net": {"causal": True},
    "mlstm": {"causal": True},
    "multires_conv": {"width": 6, "heads": 2, "max_length": 20},
    "nsa": {"width": 16, "heads": 4},
    "nystromformer": {"landmarks": 4},
    "path": {"causal": True},
    "performer": {"width": 16, "heads": 2},
    "qrnn": {"width": 6, "heads": 2},
    "rg_lru": {"causal": True},
    "rwkv6": {"causal": True},
    "rwkv7": {"causal": True},
    "s4": {"width": 6, "heads": 2, "states": 8},
    "s5": {"width": 6, "heads": 2, "states": 8, "blocks": 2},
    "sgconv": {"width": 6, "heads": 2, "max_length": 24},
    "skyformer": {"landmarks": 8},
    "short_conv": {"causal": True},
    "slstm": {"causal": True},
    "sparse_transformer": {"width": 16, "heads": 4, "stride": 6},
    "synthesizer": {"max_length": 23},
    "transformer_xl": {"causal": True, "positions": Positions.transformer_xl},
    "ttt": {"causal": True},
}
"""Facts and options that stand beside."""
UNSUPPORTED = {
    "sliding_window": [
        ({"sink": True, "positions": Positions.alibi}, "set sink=false, or choose other positions"),
    ],
    "compressed": [
        ({"top": 4}, "top has no effect under form=heavy: got 4; leave it at 512, or choose form="),
        ({"penalty": 0.0}, "penalty has no effect under form=heavy"),
        ({"positions": Positions.none, "rotary_width": 2}, "rotary_width has no effect"),
    ],
    "compressive_transformer": [
        ({"compression": "mean", "reconstruction": "autoencoding"}, "convolution or dilated"),
        ({"causal": False, "rate": 2}, "a causal model"),
    ],
    "fnet": [({"causal": True}, "no causal form: choose a causal family")],
    "funnel": [
        ({"causal": True}, "no causal form: choose a task whose model reads"),
        ({"positions": Positions.none, "position_dropout": 0.1}, "dropout has no effect"),
    ],
    "latent_attention": [
        ({"positions": Positions.none, "rotary_width": 4}, "rotary_width has no effect"),
    ],
    "linear": [
        ({"causal": True, "feature_map": "softmax_dims"}, "feature_map=exp"),
        ({"causal": True, "variant": "lra"}, "variant=faithful"),
    ],
    "linformer": [({"causal": True}, "choose a causal family")],
    "local": [
        ({"causal": True, "look_forward": 1}, "got look_forward=1; set it to 0"),
        ({"causal": True, "variant": "lra"}, "choose variant=faithful"),
    ],
    "lru": [({"causal": True, "bidirectional": False}, "bidirectional")],
    "luna": [({"pack_heads": 2, "causal": True}, "got pack_heads=2, heads=3; set pack_heads=null")],
    "mamba2": [({"quasi_separable": True, "convolution": 7}, "a bidirectional form, but")],
    "nystromformer": [({"causal": True}, "cannot be causal")],
    "retnet": [({"causal": True, "bidirectional": False}, "bidirectional")],
    "sinkhorn": [
        ({"causal": True, "sortcut": 2}, "sortcut of Sinkhorn attends to the whole sequence"),
        ({"causal": True, "variant": "lra"}, "variant=lra of Sinkhorn attends to the whole"),
    ],
    "skyformer": [
        ({"causal": True}, r"\(form=skyformer\) has no causal form"),
        ({"causal": True, "form": "kernelised"}, r"\(form=kernelised\) has no causal form"),
    ],
    "sparse_transformer": [
        ({"variant": "lra", "cls": True, "causal": True}, "pooling, or variant=faithful"),
    ],
    "synthesizer": [
        ({"components": ["dense"], "causal": True, "variant": "lra"}, "mixes positions")
    ],
    "transformer_xl": [({"positions": Positions.rotary, "clamp": 3}, "positions=transformer_xl")],
    "yoso": [({"causal": True}, "no causal form")],
}
"""What a family cannot do."""
STATELESS = [
    ("cosformer", {"causal": True, "horizon": "current"}, 8, "whole sequence"),
    ("hyena", {"causal": True}, 21, "up to 20 tokens: got 21"),
    ("lambda_layer", {"causal": True, "window": None}, 8, r"set model\.mixer\.window to a number"),
    ("linformer", {}, 30, "no state that continues from token to token"),
    ("longformer", {"causal": True, "cls": True}, 30, "set global_cls=false"),
    ("mega", {"causal": True}, 18, "within 17 tokens: got a memory of 18"),
    ("reformer", {"causal": True}, 30, "no state that continues from token to token"),
    ("sgconv", {"causal": True}, 25, "up to 24 tokens: got 25"),
    *(
        (name, {"causal": True}, 0, "memory,? .*at least .*: got 0")
        for name in ("compressed", "forgetting", "indexed", "mega", "moba", "path")
    ),
]
"""Memories of so many tokens that a family does not have."""
TOO_LONG = [
    ("fnet", {"form": "linear", "max_length": 40}, 41, "at most 40 tokens: got 41 tokens; build"),
    ("hyena", {"causal": True}, 21, "up to 20 tokens: got 21"),
    ("local", {"variant": "lra", "max_length": 16}, 17, "to 16 tokens: got 17.*larger"),
    ("mega", {"causal": True}, 18, "within 17 tokens: got a sequence of 18 tokens; truncate"),
    ("sgconv", {"causal": True}, 25, "up to 24 tokens: got 25"),
    ("sinkhorn", {}, 65, "accepts at most 64 tokens: got 65 tokens; .* sort_net=attention"),
    ("synthesizer", {"components": ["random"]}, 24, "for at most 23 tokens: got 24 tokens;"),
]
"""Inputs of more tokens than a family has parameters for."""


def built(family, options):
    """Return a mixer of a family with the usual facts, and others."""
    return builder(MODELS[family], **USUAL.get(family, {}))(**options)


@pytest.mark.parametrize(
    ("family", "options", "message", "error"),
    [
        (family, *row, error)
        for error, table in ((ValueError, REFUSED), (Unsupported, UNSUPPORTED))
        for family, rows in table.items()
        for row in rows
    ],
)
def test_what_cannot_be_is_refused(family, options, message, error):
    with pytest.raises(error, match=message):
        built(family, options)


@pytest.mark.parametrize(("family", "options", "memory", "message"), STATELESS)
def test_a_memory_that_cannot_be_is_refused(family, options, memory, message):
    mixer = built(family, options)
    with pytest.raises(ValueError, match=message):
        mixer.initial_state(1, memory)


@pytest.mark.parametrize(("family", "options", "length", "message"), TOO_LONG)
def test_more_tokens_than_there_are_parameters_for_are_refused(family, options, length, message):
    mixer = built(family, options)
    assert mixer.traits.max_length == length - 1
    width = USUAL.get(family, {}).get("width", 12)
    with pytest.raises(ValueError, match=message):
        mixer(drawn(1, length, width), Layout())


@pytest.mark.parametrize(
    ("family", "options", "length"),
    [
        ("mega", {"relative": "rotary"}, 18),
        ("sinkhorn", {"sort_net": "attention"}, 65),
        ("lambda_layer", {"causal": True, "window": 4}, 8),
    ],
)
def test_what_has_no_such_limit_is_taken(family, options, length):
    x = drawn(1, length, USUAL.get(family, {}).get("width", 12))
    assert built(family, options)(x, Layout()).isfinite().all()
