"""Whether tokens are a set to a mixer, for every family and choice: declared, and by permuting."""

import pytest
import torch

from lra.models.mixer import Layout, Positions, Site
from tests.contracts.choices_of_configs import MODELS, SPELT, STACKS

LENGTH, WIDTH = 24, 16
MIXERS = {name: family for name, family in MODELS.items() if name not in STACKS}
NAMES = {family: name for name, family in MIXERS.items()}
VARIANTS = [(name, {}) for name in MIXERS] + [
    (NAMES[family], {name: [choice] if several else choice})
    for family, name, _, several, choice in SPELT
    if family in NAMES
]
SIZES = {
    "big_bird": [{"block": 3}, {"block": 4}],
    "h_transformer": [{"block": 8}, {"block": 12}, {"block": 12, "relative_bias": True}],
    "indexed": [
        {"scores": "dsa", "budget": 8},
        {"scores": "dsa", "budget": 24},
        {"block": 4, "budget": 8},
        {"block": 4, "budget": 24},
    ],
    "linformer": [
        {"projection": projection, "projected_length": [slots]}
        for projection in ("mean_pool", "max_pool", "conv", "learned")
        for slots in (1, 8, 24)
    ],
    "local": [
        {"block": block, **more}
        for block in (1, 8, 12, 24)
        for more in ({}, {"look_back": 1}, {"look_back": 1, "look_forward": 1}, {"variant": "lra"})
    ],
    "longformer": [
        {"window": [window], **more}
        for window in (1, 22, 23, 24)
        for more in ({}, {"variant": "lra"}, {"dilation": [2], "dilated_heads": 1})
    ],
    "moba": [
        {"block": block, "top": top}
        for block, top in ((1, 3), (8, 2), (8, 3), (5, 4), (5, 5), (24, 1))
    ],
    "nsa": [
        {"block": block, "top": top, "window": window, "compression": compression}
        for block, top in ((1, 4), (1, 24), (8, 3), (8, 4), (24, 3))
        for window in (23, 24)
        for compression in ("mean", "network")
    ]
    + [
        {"block": 24, "top": 3, "window": 24, "compressed_block": size, "stride": stride}
        for size, stride in ((24, 12), (24, 24), (12, 12), (1, 1))
    ],
    "nystromformer": [
        {"landmarks": landmarks, "conv_kernel": taps}
        for landmarks, taps in ((1, 0), (8, 0), (24, 0), (24, 3))
    ],
    "reformer": [
        {"chunk": chunk, "rounds": rounds, "wrap": wrap}
        for chunk in (8, 12, 24)
        for rounds, wrap in ((1, "joint"), (2, "joint"), (2, "per_round"))
    ]
    + [{"chunk": 12, "allow_duplicates": False}],
    "sinkhorn": [
        {"block": block, **more}
        for block in (1, 8, 23, 24)
        for more in ({}, {"sort_net": "attention"}, {"local_heads": 2}, {"variant": "lra"})
    ],
    "skyformer": [{"sampling": "stratified", "landmarks": n} for n in (8, 48)],
    "sliding_window": [{"window": [22]}, {"window": [23]}, {"dilation": [24]}],
    "sparse_transformer": [
        {"stride": stride, "pattern": "strided", "head_use": head_use}
        for stride in (1, 8, 23, 24)
        for head_use in ("merged", "interleave", "heads")
    ]
    + [{"stride": stride, "summary": 1, "pattern": "fixed"} for stride in (23, 24)],
    "synthesizer": [{"components": ["dot", "random"]}],
    "yoso": [{"conv_kernel": 3}],
}
"""Sizes at which what is near becomes all there is."""
VARIANTS += [(name, options) for name, several in SIZES.items() for options in several]
BLIND = [
    "based", "collaborative", "compressive_transformer", "differential", "funnel", "grouped_query",
    "identity", "latent_attention", "linear", "luna",
    "multi_query", "performer", "sdpa", "shortformer", "softmax", "talking_heads",
    "transformer_xl", "yoso",
]  # fmt: skip


def differs(mixer) -> bool:
    """Return whether outputs of permuted tokens are other ones."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64, generator=generator)
    order = torch.randperm(LENGTH, generator=generator)
    with torch.no_grad():
        for parameter in mixer.parameters():
            if not parameter.any():
                parameter.normal_(std=0.3, generator=generator)
        seen, wanted = mixer(x[:, order], Layout()), mixer(x, Layout())[:, order]
    return bool((seen - wanted).abs().max() > 1e-9 * wanted.abs().max())


@pytest.mark.share(4)
@pytest.mark.parametrize("name", MIXERS)
def test_what_is_declared_is_what_a_permutation_shows(name):
    tried = set()
    for options in [options for family, options in VARIANTS if family == name]:
        for causal in (False, True):
            for positions in Positions if not options else [Positions.none]:
                site = Site(
                    width=WIDTH, heads=2, max_length=LENGTH, causal=causal, positions=positions,
                    generator=torch.Generator().manual_seed(1),
                )  # fmt: skip
                torch.manual_seed(0)
                try:
                    mixer = MIXERS[name](site, **options).double().eval()
                except ValueError:
                    continue
                if positions != Positions.none and positions not in mixer.traits.positions:
                    continue
                assert mixer.traits.sees_order == differs(mixer), (options, causal, positions)
                tried.add(mixer.traits.sees_order)
    assert tried


@pytest.mark.parametrize("name", BLIND)
def test_these_families_are_sets_by_default(name):
    assert not MIXERS[name](Site(width=WIDTH, heads=2, max_length=2048)).traits.sees_order
