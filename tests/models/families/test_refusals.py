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
REFUSED = {
    "adaptive_span": [
        ({"span": 0}, "span must be at least 1: got 0"),
        ({"initial": 1.5}, "a fraction of span, must be 0 to 1: got 1.5"),
        ({"penalty": -1.0}, "penalty .* must be 0 or more: got -1"),
    ],
    "based": [
        ({"feature_width": 0}, "feature_width must be at least 1: got 0"),
        ({"chunk": 0, "causal": True}, "chunk is the number of tokens in one block: got 0"),
        ({"chunk": 8}, "chunk has no effect"),
    ],
    "collaborative": [
        ({"key_width": 0}, "key_width must be at least 1, or null: got 0"),
        ({"key_width": 4}, "some of 3 heads get none of the 4 columns"),
        ({"mixing": "random"}, "mixing"),
    ],
    "compressive_transformer": [
        ({"rate": 0}, "rate must be at least 1: got 0"),
    ],
    "convbert": [
        ({"kernel": 4}, "must be odd and, for inputs of up to 32 tokens, at most 63: got 4"),
        ({"kernel": 65}, "got 65"),
        ({"kernel": 33, "causal": True}, "for inputs of up to 32 tokens, at most 32: got 33"),
        ({"head_ratio": 0}, "head_ratio must be at least 1: got 0"),
        ({"head_ratio": 8}, "head_ratio has no effect without at least head_ratio heads"),
    ],
    "cosformer": [
        ({"chunk": 0}, "got 0"),
    ],
    "delta_net": [
        ({"chunk": 0}, "chunk must be at least 1: got 0"),
        ({"householders": 0}, "householders must be at least 1: got 0"),
        ({"value_expansion": 0}, "value_expansion must be at least 1: got 0"),
        ({"convolution": 1}, "at least 2, or null for no convolution: got 1"),
    ],
    "differential": [
        ({"width": 15}, "got 5 channels per head; change heads"),
        ({"deviation": -1.0}, "deviation must be 0 or positive: got -1"),
    ],
    "fnet": [
        ({"form": "linear", "norm": "ortho"}, "under form=linear: got ortho; leave it at none"),
        ({"form": "random", "method": "matmul"}, "method has no effect under form=random"),
    ],
    "forgetting": [
        ({"gate_start": "times", "time_min": 5.0, "time_max": 2.0}, "got time_min=5.0, time_max=2"),
        ({"time_min": 5.0}, "time_min has no effect under gate_start=zero"),
    ],
    "funnel": [
        ({"position_dropout": 1.0}, r"position_dropout must lie in \[0, 1\): got 1.0"),
    ],
    "gated_delta_net": [
        ({"log_linear": True, "householders": 2}, "got householders=2 updates per token"),
    ],
    "gla": [
        ({"key_expansion": 0.4}, "must be a whole number: got key_expansion=0.4, head_width=4"),
        ({"gate_divisor": 0.0}, "gate_divisor must be positive: got 0.0"),
        ({"gate_rank": 0}, "gate_rank must be at least 1: got 0"),
    ],
    "grouped_query": [
        ({"key_value_heads": 0}, "key_value_heads must divide .*: got key_value_heads=0, heads=6"),
        ({"key_value_heads": 4}, "key_value_heads must divide .*: got key_value_heads=4, heads=6"),
        (
            {"key_value_heads": 12},
            "key_value_heads must divide .*: got key_value_heads=12, heads=6",
        ),
    ],
    "h_transformer": [
        ({"block": 0}, "even and at least 2: got 0; use"),
        ({"block": 1}, "even and at least 2: got 1; use"),
        ({"block": 7}, "even and at least 2: got 7; use"),
        ({"block": -2}, "even and at least 2: got -2; use"),
    ],
    "hgrn2": [
        ({"chunk": 0}, "chunk must be at least 1: got 0"),
    ],
    "hyena": [
        ({"order": 1}, "order must be at least 2: got 1"),
        ({"filter_width": 0}, "filter_width must be at least 1: got 0"),
        ({"bands": 0}, "bands must be at least 1: got 0"),
        ({"inner_layers": -1}, "inner_layers must be at least 0: got -1"),
        ({"convolution": 0}, "convolution must be at least 1: got 0"),
        ({"fast_decay": 2.0}, "fast_decay at most slow_decay: got fast_decay=2.0, slow_decay=1.5"),
        ({"target": 1.0}, r"target must lie in \(0, 1\): got 1.0"),
        ({"rate": 0.0}, "rate must be positive: got 0.0"),
        ({"rate_of_positions": 0.0}, "rate_of_positions must be positive: got 0.0"),
        ({"causal": True, "bidirectional": True}, "bidirectional has no effect"),
    ],
    "kimi_delta": [
        ({"bound": 0.0}, "must be below 0, or null: got 0.0"),
        ({"gate_rank": 0}, "gate_rank must be at least 1, or null: got 0"),
    ],
    "lambda_layer": [
        ({"key_width": 0}, "key_width must be at least 1: got 0"),
        ({"intra_depth": 0}, "intra_depth must be at least 1: got 0"),
        ({"window": 0}, "must be 1 to 95 .* or null for all"),
        ({"window": 97}, "must be 1 to 95 .*: got 97"),
        ({"window": 4}, "window must be odd.*: got 4; use 3"),
        ({"width": 13}, "heads must divide width: got heads=2, width=13"),
    ],
    "latent_attention": [
        ({"kv_width": 0}, "kv_width must be at least 1, or null: got 0"),
        ({"query_width": 0}, "query_width must be at least 1, or null: got 0"),
        ({"rotary_width": 3}, "rotary_width must be even and at least 2, .*: got 3"),
    ],
    "light_conv": [
        ({"kernel": [0]}, "kernel is the number of positions"),
        ({"kernel": [64]}, "with up to 32 tokens at most 63 have an effect: got 64"),
        (
            {"kernel": [33], "causal": True},
            "with up to 32 tokens at most 32 have an effect: got 33",
        ),
        ({"heads": 4}, "they share the channels evenly"),
        ({"input_dropout": 1.0}, r"input_dropout must lie in \[0, 1\): got 1.0"),
    ],
    "linear": [
        ({"chunk": 0}, "got 0"),
        ({"variant": "lra", "feature_map": "sqr"}, "got sqr; leave it at elu1, or choose variant="),
    ],
    "linformer": [
        ({"projected_length": [0]}, "must be at least 1: got 0"),
        ({"projected_length": [4, 3, 2], "depth": 2}, "takes 1 value .* or depth=2 values: got 3"),
        (
            {"projected_length": [4, 3], "depth": 2, "sharing": "layerwise"},
            r"got projected_length=\[4, 3\]; set one value",
        ),
        ({"redraw_every": -1}, "redraw_every must be at least 0: got -1"),
        ({"redraw_every": 5}, "no effect under projection=learned: got 5"),
        ({"projection": "conv", "row_normalise": True}, "row_normalise has no effect"),
    ],
    "lite_transformer": [
        (
            {"attention_width": 0},
            "attention has attention_width channels.*: got attention_width=0, width=12",
        ),
        ({"attention_width": 12}, "got attention_width=12, width=12"),
        ({"attention_width": 5}, "heads=2 must divide both numbers: got attention_width=5"),
        ({"convolution": "wide"}, "convolution"),
    ],
    "local": [
        ({"block": 0}, r"block, a number of tokens, must be at least 1: got 0"),
        ({"look_back": -1}, r"look_back, a number of blocks, must be at least 0: got -1"),
        ({"look_forward": -2}, r"look_forward, a number of blocks, must be at least 0: got -2"),
        (
            {"look_back": 1, "variant": "lra"},
            r"variant=lra fixes look_back at 0: got 1; leave it .*, or choose variant=faithful",
        ),
    ],
    "longformer": [
        ({"dilated_heads": 5}, "must be 0 to 4 .* or null for all heads: got 5"),
        ({"variant": "lra", "global_mask": True}, "lra fixes global_mask at false: got true"),
        ({"window": [0]}, "window is the number of tokens"),
    ],
    "lru": [
        ({"states": 0}, "states must be at least 1"),
        ({"radius_min": 0.9, "radius_max": 0.9}, "set 0 <= radius_min < radius_max <= 1"),
        ({"radius_max": 1.1}, "set 0 <= radius_min < radius_max <= 1"),
        ({"phase_max": 0.0}, "phase_max, .* must be above 0"),
        ({"rate": 0.0}, "rate must be positive"),
        ({"dropout": 1.0}, "dropout must lie in"),
    ],
    "lstm": [
        (
            {"width": 9, "heads": 3},
            "uses half of the width for each direction: got model.backbone.width=9",
        ),
        ({"hidden_width": 0}, "hidden_width must be at least 1, or null: got 0"),
        ({"weight_drop": 1.0}, r"weight_drop must lie in \[0, 1\): got 1.0"),
        ({"input_dropout": [-0.1]}, r"input_dropout\[0\] must lie in \[0, 1\): got -0.1"),
        ({"output_dropout": [0.1, 0.2]}, "1 value .* or depth=1 values: got 2"),
        ({"activation_penalty": -1.0}, "activation_penalty must be 0 or positive: got -1.0"),
        ({"causal": True, "bidirectional": False}, "bidirectional has no effect"),
    ],
    "luna": [
        ({"slots": 0}, "slots must be at least 1: got 0"),
        ({"chunk": -1}, "chunk must be at least 1: got -1"),
        ({"pack_heads": 5}, "got pack_heads=5, width=12; set null"),
    ],
    "mamba": [
        ({"states": 0}, "states must be at least 1: got 0"),
        ({"step_rank": 0}, "step_rank must be at least 1, or null: got 0"),
        ({"step_max": 0.0001}, "step_min at most step_max"),
        ({"convolution": 0}, "at least 2, or null for no convolution: got 0"),
    ],
    "mamba2": [
        ({"states": 0}, "states must be at least 1: got 0"),
        ({"groups": 3}, "groups, .* must divide heads: got groups=3, heads=4"),
        ({"step_min": 0.0}, "step_min at most step_max: got step_min=0.0"),
        ({"step_min": 0.2}, "step_min at most step_max: got step_min=0.2"),
        (
            {"quasi_separable": True, "convolution": 4, "causal": False},
            "an odd number of tokens: got convolution=4; 7 is usual",
        ),
    ],
    "mega": [
        ({"ema_states": 0}, "ema_states must be at least 1"),
        ({"value_width": 0}, "value_width must be at least 1"),
        ({"key_width": -1}, "key_width must be at least 1"),
        ({"chunk_length": 0}, "chunk_length must be at least 1"),
        ({"truncation": 0}, "truncation must be at least 1"),
        ({"relative": "rotary", "key_width": 5}, "must be even: got key_width=5"),
        ({"truncation": 4, "causal": True}, "truncation has no effect"),
        ({"truncation": 4, "bidirectional": False}, "truncation has no effect"),
        ({"bidirectional": False, "causal": True}, "bidirectional"),
    ],
    "mesa_net": [
        ({"steps": 0}, "steps must be at least 1: got 0"),
        ({"chunk": 0}, "chunk must be at least 1: got 0"),
        ({"ridge_min": 0.0}, r"ridge_min must lie in \(0, 1\): got 0.0"),
        ({"ridge_min": 1.0}, r"ridge_min must lie in \(0, 1\): got 1.0"),
        ({"convolution": 1}, "at least 2, or null for no convolution: got 1"),
    ],
    "mlstm": [
        ({"expansion": 0}, "expansion must be at least 1: got 0"),
        ({"block_size": 5}, "must divide the 24 channels of all heads together: got block_size=5"),
    ],
    "moba": [
        ({"block": 0}, "block must be at least 1: got 0"),
        ({"top": 0}, "top must be at least 1: got 0"),
    ],
    "multires_conv": [
        ({"taps": 1}, "taps must be at least 2.*: got 1"),
        (
            {"levels": 0},
            "levels must be 1 to 5, .* depends on all of 20 tokens: got 0",
        ),
        ({"levels": 6}, "levels must be 1 to 5"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\): got 1.0"),
        ({"mixing": "gated"}, "mixing"),
    ],
    "nsa": [
        ({"block": 0}, "block must be at least 1: got 0"),
        ({"compressed_block": 0}, "must be 1 to block=32: got 0; change one of them"),
        ({"compressed_block": 64}, "must be 1 to block=32: got 64; change one of them"),
        ({"stride": 5}, "must divide compressed_block=32 and block=32: got 5; 1 always"),
        ({"block": 9, "compressed_block": 6}, "compressed_block=6 and block=9: got 6; 1 always"),
        ({"stride": 0}, "must divide compressed_block=32 and block=32: got 0; 1 always"),
        ({"window": 0}, "window must be at least 1: got 0"),
        ({"first": -1}, "first must be at least 0: got -1"),
        ({"local": 0}, "local must be at least 1: got 0"),
        ({"top": 2}, "first=1 and local=2: got 2; use 3 or more"),
        (
            {"key_value_heads": 3},
            "key_value_heads must divide the number of query heads: got key_value_heads=3, heads=4",
        ),
        (
            {"key_value_heads": 0},
            "key_value_heads must divide the number of query heads: got key_value_heads=0, heads=4",
        ),
    ],
    "nystromformer": [
        ({"landmarks": 0}, "landmarks must be at least 1: got 0"),
        ({"conv_kernel": 4}, "or 0 for no convolution: got 4; use 5"),
        ({"conv_kernel": -1}, "got -1"),
        ({"iterations": 0}, "iterations must be at least 1: got 0"),
        ({"inverse": "ridge", "ridge": 0.0}, "got 0.0; for an inverse without a ridge"),
    ],
    "performer": [
        ({"features": 0}, "got 0"),
        ({"redraw_every": -1}, "got -1"),
        ({"feature_epsilon": -0.1}, "must be 0 or more: got -0.1"),
        ({"chunk": 0}, "got 0"),
        ({"projected": False}, "got kernel=softmax"),
        ({"renormalise": False}, "kernel=relu"),
        ({"renormalise": False, "kernel": "trigonometric"}, "kernel=trigonometric"),
        ({"feature_epsilon": 1e-6}, "leave it null, or choose stabiliser=reference"),
        ({"stabiliser": "reference", "kernel": "relu"}, "got kernel=relu"),
        ({"stabiliser": "reference", "causal": True}, "choose key_max=global"),
    ],
    "qrnn": [
        ({"kernel": [0]}, r"kernel\[0\] must be at least 1: got 0"),
        ({"zoneout": 1.5}, r"zoneout must lie in \[0, 1\): got 1.5"),
        ({"zoneout": 0.1, "pooling": "ifo"}, "zoneout has no effect under pooling=ifo"),
        ({"pooling": "none"}, "pooling"),
        ({"width": 7, "heads": 1}, "uses half of the width for each direction"),
        ({"causal": True, "bidirectional": False}, "bidirectional has no effect"),
    ],
    "reformer": [
        ({"rounds": 0}, "rounds must be at least 1: got 0"),
        ({"chunk": 0}, "chunk must be at least 1: got 0"),
        ({"before": -1}, "before must be at least 0: got -1"),
        ({"redraw_every": -1}, "redraw_every must be at least 0: got -1"),
        ({"buckets": [7]}, r"number of hash buckets: got buckets=\[7\]; write \[64\]"),
        ({"buckets": []}, "must be a list of even numbers"),
        ({"heads": 4, "positions": Positions.rotary}, "even head width: got 3"),
    ],
    "retnet": [
        ({"value_expansion": 0}, "value_expansion must be at least 1: got 0"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"heads": 4}, "rotary=true rotates pairs"),
    ],
    "rwkv6": [
        ({"mix_rank": 0}, "mix_rank must be at least 1: got 0"),
        ({"decay_rank": 0}, "decay_rank must be at least 1: got 0"),
        ({"chunk": 0}, "chunk must be at least 1: got 0"),
    ],
    "rwkv7": [
        ({"chunk": 0}, "chunk must be at least 1: got 0"),
        (
            {"ranks": [1, 2, 3]},
            r"ranks must be four numbers .*, each at least 1, or null: got \[1, 2, 3\]",
        ),
        ({"ranks": [1, 2, 3, 0]}, r"ranks must be four numbers .*, each at least 1, or null"),
    ],
    "s4": [
        ({"states": 7}, "come in conjugate pairs: got states=7"),
        ({"independent": 4}, "must divide width: got independent=4, width=6"),
        ({"step_min": 0.2}, "step_min at most step_max: got step_min=0.2, step_max=0.1"),
        ({"rate": 0.0}, "rate must be positive: got 0.0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\): got 1.0"),
        ({"rate_of_readout": 0.0}, "rate_of_readout must be positive: got 0.0"),
        ({"input_limit": 0.0}, "input_limit must be positive, or null: got 0.0"),
        ({"convolution_dropout": 1.0}, r"convolution_dropout must lie in \[0, 1\): got 1.0"),
        ({"init": "fourier"}, "init"),
        ({"kernel": "dplr", "init": "linear"}, "init has no effect under kernel=dplr"),
        ({"kernel": "dplr", "discretisation": "bilinear"}, "under kernel=dplr: got bilinear"),
        ({"kernel": "dss_exp", "discretisation": "bilinear"}, "under kernel=dss_exp"),
        ({"kernel": "dss_exp", "input_limit": 2.0}, "input_limit has no effect"),
        ({"init": "linear", "input_limit": 2.0}, "input_limit has no effect under init"),
        ({"tied_dropout": True}, "tied_dropout has no effect without dropout above 0"),
        ({"causal": True, "bidirectional": False}, "bidirectional has no effect"),
    ],
    "s5": [
        ({"states": 7}, "come in conjugate pairs: got states=7; use 2"),
        ({"states": 0}, "come in conjugate pairs: got states=0"),
        (
            {"blocks": 3},
            "must be an even number: got states=8, blocks=3; use",
        ),
        (
            {"blocks": 8},
            "must be an even number: got states=8, blocks=8",
        ),
        ({"blocks": 0}, "got states=8, blocks=0"),
        ({"step_min": 0.0}, "step_min at most step_max: got step_min=0.0"),
        ({"step_min": 0.2}, "got step_min=0.2, step_max=0.1"),
        ({"rate": 0.0}, "rate must be positive: got 0.0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\): got 1.0"),
        ({"output": "normal"}, "output"),
        ({"decay_input": True, "fast_input": True}, "decay_input has no effect"),
        ({"causal": True, "bidirectional": False}, "bidirectional has no effect"),
    ],
    "sgconv": [
        ({"smallest": 0}, "smallest must be at least 1: got 0"),
        ({"kernels": 0}, "kernels must be at least 1: got 0"),
        ({"stretch": 3}, "stretch, .* must be a power of two: got 3"),
        ({"decay_min": 2.5}, "decay_min at most decay_max: got decay_min=2.5, decay_max=2.0"),
        ({"decay_min": 0.0}, "decays must be positive"),
        ({"threshold": -1.0, "kernel": "free"}, "threshold must be 0 or positive: got -1.0"),
        ({"rate": 0.0}, "rate must be positive: got 0.0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\): got 1.0"),
        ({"kernel_dropout": 0.1}, "kernel_dropout has no effect under kernel=pieces"),
        (
            {"smallest": 24, "decay_max": 3.0},
            "decay_max has no effect without a kernel that",
        ),
        ({"kernel": "free", "stretch": 2}, "stretch has no effect under kernel=free"),
        ({"causal": True, "bidirectional": False}, "bidirectional has no effect"),
        ({"init": "zeros"}, "init"),
    ],
    "sinkhorn": [
        ({"block": 0}, "block must be at least 1, or null: got 0"),
        ({"sortcut": -1}, "sortcut must be at least 1, or null: got -1"),
        ({"iterations": 0}, "iterations must be at least 1: got 0"),
        ({"temperature": 0.0}, "temperature must be positive: got 0.0"),
        ({"local_heads": 4}, "must be 0 to 3 .*: got 4"),
        ({"variant": "lra", "mixture": True}, "variant=lra fixes mixture at false"),
    ],
    "skyformer": [
        ({"landmarks": 7}, "even and above 0: got 7; use 8"),
        ({"landmarks": 0}, "got 0; use 2"),
        ({"gamma": -0.1}, "got -0.1"),
        ({"redraw_every": -1}, "redraw_every must be at least 0: got -1"),
        ({"inverse": "ridge"}, "already adds gamma"),
        ({"iterations": 0}, "iterations must be at least 1: got 0"),
    ],
    "sliding_window": [
        ({"window": [0]}, "got 0; for none choose model=identity"),
        ({"block": 0}, "block must be at least 1"),
    ],
    "slstm": [
        ({"convolution": 1}, "at least 2, or null for no convolution: got 1"),
    ],
    "sparse_transformer": [
        ({"stride": 0}, r"stride must be at least 1, or null: got 0"),
        ({"summary": 0}, r"summary must be at least 1, or null: got 0"),
        ({"summary": 6}, r"got summary=6, stride=6; set a smaller summary"),
        ({"head_use": "heads", "heads": 1}, r"got heads=1; set heads to at least 2, or"),
        (
            {"variant": "lra", "pattern": "strided"},
            r"variant=lra fixes pattern at fixed: got strided; .* or choose variant=faithful",
        ),
    ],
    "synthesizer": [
        ({"components": []}, "one or more different components"),
        ({"components": ["dot", "dot"]}, "one or more different components"),
        ({"components": ["random", "fixed_random"]}, "one or more different components"),
        ({"rank": 0}, "rank must be at least 1: got 0"),
    ],
    "talking_heads": [
        ({"key_heads": 0}, "key_heads must be at least 1, or null: got 0"),
        (
            {"key_heads": 4},
            "mixing=identity needs equal numbers of heads before and after a map: got 4 and 3",
        ),
        ({"mixing": "random"}, "mixing"),
    ],
    "transformer_xl": [
        ({"clamp": -1}, "clamp must be at least 0, or null: got -1"),
        ({"position_dropout": 1.0}, "position_dropout must lie in"),
    ],
    "ttt": [
        ({"block": 0}, "block must be at least 1: got 0"),
        ({"rate": 0.0}, "rate must be positive: got 0.0"),
        ({"width": 15}, "got 5 channels per head; change heads"),
    ],
    "yoso": [
        ({"tau": 25}, "tau, .* must be 0 to 24: got 25"),
        ({"tau": -1}, "got -1; set null for log2"),
        ({"hashes": 0}, "hashes must be at least 1: got 0"),
        ({"redraw_every": -1}, "redraw_every must be at least 0: got -1"),
        ({"gradient": "true"}, "needs mode=expectation"),
        ({"conv_kernel": 2}, "got 2; use 3"),
    ],
}
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
        for name in ("forgetting", "mega", "moba", "path")
        for name in ("forgetting", "indexed", "mega", "moba")
        for name in ("compressed", "forgetting", "mega", "moba")
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
