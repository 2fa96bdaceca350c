"""The contract kit over options that choose another computation, at a length of a few blocks.

`test_mixers.py` runs all of it over every default; what grows with the length is measured there.
"""

import functools

import pytest

from lra.models.backbone.parallel import Parallel
from lra.models.contract import CHECKS, Case, learning, relations
from lra.models.contract.calls import calls_of, fewer_calls_of
from lra.models.contract.case import fix_seed
from lra.models.mixer import Positions, Traits, Unsupported
from tests.contracts.choices_of_configs import MODELS

LEFT_OUT = {
    "meta", "copies", "upkeep", "untouched", "calls", "rounding", "statistics",
    "flow", "long", "content", "methods", "operations", "memory",
}  # fmt: skip
"""Checks of what an option rarely moves, and of growth: they take long."""
LENGTH = 48
"""Tokens: three of the largest parts, and some more; blocks of 6 and 12 are whole."""
SHARE = 20
"""Of so many drawn calls one is tried: the defaults have all."""
ENCODINGS = {Positions.rotary, Positions.transformer_xl}
"""One that turns queries and keys and one that adds to scores."""
VARIANTS = {
    "adaptive_span": [{"span": 9, "ramp": 4, "initial": 0.6, "persistent": 3}],
    "based": [{"feature_width": 4, "chunk": 13}],
    "big_bird": [{"block": 4, "random_blocks": 1}],
    "collaborative": [{"key_width": 8, "mixing": "normal"}],
    "compressed": [
        {"block": 5, "window": 7, "query_width": 3, "output_rank": 5},
        {"form": "sparse", "block": 4, "window": 5, "top": 3, "index_heads": 3, "index_width": 6},
    ],
    "compressive_transformer": [{"rate": 2, "compressed": 6, "compression": "mean"}],
    "cosformer": [{"chunk": 4}],
    "delta_net": [
        {"householders": 2, "negative_eigenvalues": True, "chunk": 13},
        {"convolution": None, "gate": "silu", "activation": "identity", "chunk": 13},
    ],
    "forgetting": [
        {"gate_start": "times", "output_norm": True, "output_gate": True, "qk_norm": True},
        {"bidirectional": False},
    ],
    "fnet": [{"method": "matmul"}, {"norm": "ortho"}, {"form": "linear"}, {"form": "random"}],
    "gated_delta_net": [
        {"householders": 2, "chunk": 13},
        {"log_linear": True, "negative_eigenvalues": True, "chunk": 13},
        {"comba": True, "correction": 0.02, "chunk": 13},
        {"precondition": 1.5, "chunk": 13},
    ],
    "gated_delta_net2": [{"chunk": 13, "negative_eigenvalues": True, "gate_rank": 3}],
    "gla": [{"chunk": 13, "convolution": 3, "gate": "none", "value_expansion": 2}],
    "h_transformer": [{"block": 4, "relative_bias": True}],
    "hyena": [{"order": 3, "convolution": 1, "filter_width": 8}],
    "lambda_layer": [{"window": None}, {"window": 7, "intra_depth": 2}],
    "grouped_query": [
        {"key_value_heads": 1, "output_gate": True, "qk_norm": True},
        {"key_value_heads": 3, "head_gate": True, "joint_qk_norm": True},
        {"sink": True},
    ],
    "kimi_delta": [
        {"chunk": 13, "bound": -5.0, "negative_eigenvalues": True, "gate_rank": 3},
        {"precondition": 2.0, "chunk": 13},
    ],
    "latent_attention": [
        {"kv_width": 5, "query_width": 7},
        {"kv_width": 5, "rotary_width": 4, "unrotated": True},
        {"sink": True},
    ],
    "light_conv": [{"kernel": [4], "glu": False}, {"kernel": [5], "inner_width": 15}],
    "linear": [{"feature_map": "exp", "chunk": 4}, {"feature_map": "softmax_dims"}],
    "indexed": [
        {"scores": "dsa", "budget": 9, "index_heads": 2},
        {"block": 4, "budget": 12, "output_gate": True, "qk_norm": True},
        {"scores": "kpool", "block": 4, "budget": 12, "index_width": 3},
        {"scores": "msa", "block": 4, "budget": 16, "key_value_heads": 1},
    ],
    "linformer": [
        {"projected_length": [7], "sharing": "none"},
        {"projected_length": [7], "sharing": "layerwise_by_head", "deviation": 0.02},
        {"projected_length": [7], "projection": "frozen_jl", "row_normalise": True},
        {"projected_length": [7], "projection": "mean_pool"},
        {"projected_length": [7], "projection": "max_pool"},
        {"projected_length": [7], "projection": "conv"},
        {"variant": "lra"},
    ],
    "linoss": [
        {"discretisation": "imex", "states": 5},
        {"discretisation": "imex", "damping": True, "radius_min": 0.5, "states": 3},
        {"bidirectional": False},
    ],
    "local": [
        {"block": 6, "look_back": 2},
        {"block": 5, "look_back": 1, "look_forward": 1},
        {"block": 12, "variant": "lra"},
    ],
    "longformer": [
        {"window": [5], "block": 4},
        {"window": [5], "dilation": [2], "dilated_heads": 1},
        {"window": [8], "global_mask": True},
        {"window": [5], "variant": "lra"},
    ],
    "lstm": [{"bidirectional": False, "hidden_width": 5}],
    "luna": [
        {"tie_kv": False, "pack_heads": 4, "slots": 7, "dynamic_projection": False},
        {"tie_kv": False, "activation": "elu1", "slots": 7, "chunk": 9},
    ],
    "mamba": [
        {"convolution": None, "states": 3, "expansion": 1, "step_rank": 2},
        {"states": 3, "inner_norms": True, "step_rank": 2},
    ],
    "mamba2": [
        {"chunk": 13, "convolution": None, "expansion": 1, "states": 4},
        {"chunk": 13, "convolution": 3, "quasi_separable": True, "states": 4},
        {"chunk": 13, "log_linear": True, "states": 4},
        {"chunk": 13, "output_norm": False, "states": 4},
    ],
    "mamba3": [
        {"chunk": 13, "states": 4, "rank": 2, "output_norm": True, "rotating_share": 1.0},
        {"chunk": 13, "states": 6, "expansion": 1, "decay": "softplus", "rotating_share": 0.0},
    ],
    "mega": [
        {"chunk_length": 6, "relative": "rotary", "attention": "laplace", "key_width": 4},
        {"query_block": 3},
    ],
    "mesa_net": [{"chunk": 13, "convolution": None, "ridge_min": 0.5, "gate": "silu", "steps": 9}],
    "mlstm": [{"chunk": 13, "convolution": None, "block_size": 1, "expansion": 1}],
    "moba": [{"block": 4, "top": 3}, {"block": 5, "top": 1}],
    "multires_conv": [{"taps": 4, "levels": 2, "wide_skip": True}],
    "nsa": [
        {"block": 4, "top": 3, "window": 6},
        {"block": 6, "compressed_block": 4, "stride": 2, "top": 3, "window": 6},
        {
            "block": 5,
            "top": 2,
            "first": 0,
            "local": 1,
            "window": 3,
            "key_value_heads": 3,
            "own_keys": False,
            "compression": "network",
        },
    ],
    "nystromformer": [{"landmarks": 7, "inverse": "ridge", "conv_kernel": 5}],
    "path": [
        {"chunk": 13, "forget": True, "forget_scale": "head", "qk_norm": True},
        {"chunk": 7, "rank": None, "convolution": None, "negative_eigenvalues": False},
    ],
    "performer": [
        {"features": 11, "chunk": 4},
        {"kernel": "hyperbolic", "features": 11},
        {"kernel": "relu", "features": 11},
    ],
    "qrnn": [{"pooling": "ifo", "kernel": [4]}, {"pooling": "f"}],
    "reformer": [
        {"chunk": 6, "rounds": 3, "after": 1, "wrap": "per_round"},
        {"chunk": 6, "allow_duplicates": False, "attend_across_buckets": False},
        {"variant": "lra"},
    ],
    "retnet": [
        {"chunk": 13, "rotary": False, "norm": "rms", "decay": "slopes"},
        {"norm": "joint", "gate": "sigmoid", "activation": "silu", "value_expansion": 1},
    ],
    "rg_lru": [{"convolution": None}],
    "rwkv6": [{"chunk": 13, "mix_rank": 3, "decay_rank": 5}],
    "rwkv7": [{"chunk": 13, "ranks": [1, 2, 3, 4], "value_residual": False}],
    "s4": [{"kernel": "dplr", "states": 4}, {"kernel": "dss_exp", "states": 4}],
    "sdpa": [{"output_gate": True, "qk_norm": True}, {"sink": True}],
    "sgconv": [{"kernel": "free", "kernels": 2}],
    "sinkhorn": [
        {"block": 6, "sort": "topk", "top_blocks": 2},
        {"block": 6, "sort_net": "attention", "mixture": True},
        {"block": 6, "local_heads": 2, "gumbel": False},
        {"block": 6, "sortcut": 2},
        {"block": 6, "variant": "lra"},
    ],
    "short_conv": [{"convolution": 7}],
    "skyformer": [{"landmarks": 8, "sampling": "stratified", "inverse": "exact"}],
    "sliding_window": [
        {"window": [5]},
        {"window": [5], "dilation": [3]},
        {"window": [5], "sink": True},
        {"window": [5], "qk_norm": True, "head_gate": True},
    ],
    "slots": [
        {"slots": 5, "chunk": 13, "gate_divisor": 1.0},
        {"slots": 6, "route": 2, "chunk": 13},
    ],
    "slstm": [{"convolution": None, "recurrent": "uniform", "forget_bias": "linear"}],
    "softmax": [{"output_gate": True, "qk_norm": True}, {"sink": True}],
    "sparse_transformer": [
        {"stride": 6, "summary": 2},
        {"stride": 6, "pattern": "strided", "head_use": "interleave"},
        {"stride": 6, "summary": 2, "head_use": "interleave"},
    ],
    "synthesizer": [
        {"components": ["random"]},
        {"components": ["factorised_dense"]},
        {"components": ["dot", "dense", "factorised_random"]},
    ],
    "ttt": [{"block": 13, "rate": 2.0, "share_query_key": True, "gate": True}],
    "yoso": [{"mode": "expectation"}, {"hashes": 3, "conv_kernel": 3}],
}


class Few(Case):
    """Tries few encodings of positions."""

    def inside(self, traits: Traits) -> list[Positions]:
        """Return those of `ENCODINGS` that the mixer applies itself."""
        return [each for each in super().inside(traits) if each in ENCODINGS]


@pytest.mark.share(8)
@pytest.mark.parametrize(
    ("family", "options"),
    [
        pytest.param(family, options, id=f"{family}-{'-'.join(map(str, options.values()))}")
        for family, several in VARIANTS.items()
        for options in several
    ],
)
def test_a_variant_keeps_the_contract(family, options, monkeypatch):
    """In each direction that it offers, at one site."""
    check_contract(functools.partial(MODELS[family], **options), monkeypatch)


@pytest.mark.share(2)
@pytest.mark.parametrize("options", [{"scales": [0.5, 2.0]}, {"norm": True}])
def test_mixers_side_by_side_keep_the_contract(options, monkeypatch):
    parts = {"mamba2": functools.partial(MODELS["mamba2"], states=4), "sdpa": MODELS["sdpa"]}
    check_contract(functools.partial(Parallel, parts=parts, **options), monkeypatch)


def check_contract(make, monkeypatch):
    """Run the checks of the kit on what `make` makes, in each direction that it offers."""
    for draw in (calls_of, fewer_calls_of):
        monkeypatch.setattr(relations, draw.__name__, lambda case, draw=draw: draw(case)[::SHARE])
    monkeypatch.setattr(learning, "_sites", lambda _: ())
    offered, failed = [], []
    checks = CHECKS.keys() - LEFT_OUT
    for causal in (False, True):
        case = Few(make=make, causal=causal, max_length=LENGTH, width=12, heads=3)
        try:
            case.build()
        except Unsupported:
            continue
        offered.append(causal)
        with fix_seed(0):
            results = {name: CHECKS[name](case) for name in sorted(checks)}
        failed += [(causal, name, each.detail) for name, each in results.items() if not each.passed]
    assert offered
    assert not failed
