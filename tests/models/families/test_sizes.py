"""How many parameters layers have, and numbers their states, by hand or as in released layers.

And which stay in float32.
"""

import pytest
import torch

from tests.attention import builder
from tests.contracts.choices_of_configs import MODELS

ONE_SIZE = 999
"""Tokens of memory, with which only caches grow."""
D, HEAD = 128, 32
"""Channels of a layer, in 4 heads."""
SIZES = [
    ("based", {}, None, [4 * 153 * (HEAD + 1)]),
    # Maps of queries, vectors and groups, two of the entries; norms, places, sinks.
    ("compressed", {}, 4 * D**2 + 6 * D * HEAD + 3 * HEAD + 4,
     [127 * HEAD, 1, 128 * 2 * HEAD, 9 * HEAD]),
    # k v numbers a head, and 3 inputs of the convolutions of q, k and v.
    ("delta_net", {}, None, [D * HEAD, 3 * D, 3 * D, 3 * D]),
    ("gated_delta_net", {}, None, [2 * D * HEAD, 3 * D, 3 * D, 3 * 2 * D]),
    # Four maps; 4 heads of queries and one of keys, two norms; 64 blocks of 16 hold 999 tokens.
    ("indexed", {}, 4 * D**2 + 5 * D * HEAD + 2 * HEAD, [D * 1024, D * 1024, 1, HEAD * 1024]),
    ("indexed", {"scores": "dsa"}, 4 * D**2 + 5 * D * HEAD + 2 * HEAD + 4 * D,
     [D * 999, D * 999, 1, HEAD * 999]),
    ("indexed", {"scores": "kpool"}, 4 * D**2 + 6 * D * HEAD + 2 * HEAD + 4 * D + 16 * HEAD,
     [D * 1024, D * 1024, 1, 2 * HEAD * 1024]),
    ("indexed", {"scores": "msa", "key_value_heads": 2}, 3 * D**2 + 3 * D * HEAD + 2 * HEAD,
     [D * 512, D * 512, 1, HEAD * 1024]),
    ("gated_delta_net", {"precondition": 1.5}, None, [2 * D * HEAD, 3 * D, 3 * D, 6 * D, D]),
    ("kimi_delta", {}, None, [D * HEAD, 3 * D, 3 * D, 3 * D]),
    ("kimi_delta", {"precondition": 1.5}, None, [D * HEAD, 3 * D, 3 * D, 3 * D, D]),
    # Six maps, four of rank 32, biases of gate and decay, a rate a head, a norm's 32, taps.
    ("gated_delta_net2", {}, 6 * D**2 + 4 * D * HEAD + 2 * D + 4 + HEAD + 12 * D,
     [D * HEAD, 3 * D, 3 * D, 3 * D]),
    ("gla", {}, None, [D * HEAD // 2]),
    ("hgrn2", {}, None, [D * HEAD]),
    # As counted in the released layer: N e numbers, and 3 e inputs.
    ("mamba", {}, 116_480, [16 * 2 * D, 3 * 2 * D]),
    # As counted in the released layer.
    ("mamba2", {"states": 64}, 117_388, [64 * 2 * D, 3 * 2 * D, 3 * 64, 3 * 64]),
    # As counted in the released layer: also the last keys, values and angles.
    ("mamba3", {"states": 64}, 118_920, [64 * 2 * D, 64 * 4, 2 * D, 16 * 4]),
    ("mamba3", {"states": 64, "rank": 3, "output_norm": True, "rotating_share": 1.0},
     157_320, [64 * 2 * D, 64 * 12, 2 * D, 32 * 4]),
    # Four maps, two of 4 with biases, 8 taps, Lambda and a norm's 32.
    ("mesa_net", {}, 4 * D**2 + 1032 + 8 * D + 160, [D * HEAD, D * HEAD, 3 * D, 3 * D]),
    # As counted in the released layer: four maps, two of rank 32, taps, beta, and forget gates.
    ("path", {}, 4 * D**2 + 2 * 32 * D + 3 * D + 4 * D + 4,
     [ONE_SIZE * D, ONE_SIZE * D, 1, 2 * D]),
    ("path", {"forget": True}, 4 * D**2 + 2 * 32 * D + 3 * D + 2 * (4 * D + 4),
     [ONE_SIZE * D, ONE_SIZE * D, 1, ONE_SIZE * 4, 2 * D]),
    # Three maps, taps with biases, two gates within heads with biases, and l.
    ("rg_lru", {}, 3 * D**2 + 5 * D + 2 * D * HEAD + 2 * D + D, [D + 1, 3 * D]),
    # Four maps and taps.
    ("short_conv", {"convolution": 3}, 4 * D**2 + 3 * D, [0, 2 * D]),
    # As counted in xlstm's layer: k v + k + 1 numbers a head.
    ("mlstm", {}, 109_320, [4 * (64 * 64 + 64), 4, 3 * 2 * D]),
    # Slots have keys and values as wide as heads.
    ("slots", {}, 4 * D**2 + 4 * 64 * D + D, [2 * 64 * D]),
    # Both maps of four gates within heads, biases, the norm, taps.
    ("slstm", {}, 2 * 4 * D * HEAD + 4 * D + D + 5 * D, [4 * D, 3 * D]),
    # As counted in ttt-lm-pytorch's TTTLinear, also in blocks of Mamba's kind.
    ("ttt", {}, 70_804, [4 * (HEAD + 1) * HEAD, 4 * (HEAD + 1) * HEAD, 1]),
    ("ttt", {"share_query_key": True, "gate": True}, 72_084, [4 * (HEAD + 1) * HEAD] * 2),
    # A layer of the 1.6 B parameters.
    ("rwkv6", {"width": 2048, "heads": 32},
     5 * 2048**2 + 2 * 2048 * (160 + 64) + 10 * 2048, [64 * 2048, 2048]),
]  # fmt: skip


@pytest.mark.parametrize(("family", "options", "parameters", "numbers"), SIZES)
def test_a_layer_and_its_state_are_as_large_as_is_said(family, options, parameters, numbers):
    mixer = builder(MODELS[family], width=D, heads=4, causal=True)(**options)
    if parameters is not None:
        assert sum(each.numel() for each in mixer.parameters()) == parameters
    state = mixer.initial_state(1, ONE_SIZE)
    assert [part.numel() for part in state][: len(numbers)] == numbers


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("hyena", "kernel"), ("linoss", "oscillators"), ("lru", "recurrence"), ("mega", "average"),
        ("s4", "dynamics"), ("s5", "dynamics"),
    ],
)  # fmt: skip
def test_decays_phases_and_positions_survive_a_move_to_half_precision(family, name):
    parts = getattr(builder(MODELS[family])().bfloat16(), name)
    assert {each.dtype for each in parts.parameters()} == {torch.float32}
