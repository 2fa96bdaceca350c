"""Where two public forms of one family differ, measured: the table of docs/disagreements.md.

    python tests/parity/disagreements.py        measures all, and stores the sizes

A form may also be the definition of the paper. Inputs are drawn from seed 0.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lra.models.families.kimi_delta import KimiDelta
from lra.models.families.mamba3 import Mamba3
from lra.models.families.path import PathAttention
from lra.models.mixer import Layout, Site
from peers.flash_linear import file_of
from peers.peer import package

STORED = Path(__file__).with_suffix(".json")
OUTPUTS = "of the largest output"
MEANS = "where all values are 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Two public forms of one family."""

    family: str
    one: str
    other: str
    differs: str
    """In what they differ."""
    paper: str
    """Which of both the paper means."""
    ours: str
    """Which of both ours equals."""
    unit: str = OUTPUTS
    """Of the size: the largest difference of the outputs unless it says another."""


CATALOGUE: dict[str, tuple[Disagreement, Callable[[], float]]] = {}
"""By the name of the function that measures the size."""


def between(
    family: str, one: str, other: str, differs: str, *, paper: str, ours: str, unit: str = OUTPUTS
) -> Callable[[Callable[[], float]], Callable[[], float]]:
    """Enter two forms into the catalogue, with the function that measures how they differ."""
    entry = Disagreement(
        family=family, one=one, other=other, differs=differs, paper=paper, ours=ours, unit=unit
    )

    def enter(measure: Callable[[], float]) -> Callable[[], float]:
        CATALOGUE[measure.__name__] = entry, measure
        return measure

    return enter


def drawn(*shape: int, seed: int = 0) -> Tensor:
    """Return standard normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def relative(one: Tensor, other: Tensor) -> float:
    """Return the largest difference, relative to the largest number of `other`."""
    return float((one - other).detach().abs().max() / other.detach().abs().max())


def from_ones(out: Tensor) -> float:
    """Return how far a weighted mean of ones is from 1."""
    return float((out - 1).detach().abs().max())


@between(
    "performer", "performer-pytorch 1.1.4, causal", "the definition",
    "the sum of keys in the denominator gets an extra 1e-6",
    paper="the definition", ours="the definition", unit=MEANS,
)  # fmt: skip
def performer_sums() -> float:
    """Its causal rows sum to less than 1, because sums of keys get an extra 1e-6."""
    peer = package("performer_pytorch.performer_pytorch")
    torch.manual_seed(0)
    attention = peer.FastAttention(32, 64, causal=True).double()
    q, k = drawn(1, 2, 256, 32), drawn(1, 2, 256, 32).flip(2)
    return from_ones(attention(q, k, torch.ones_like(q)))


@between(
    "performer", "performer-pytorch 1.1.4, a padded row", "the row alone",
    "padded values become 0, but padded keys stay in the denominator",
    paper="the row alone", ours="the row alone",
)  # fmt: skip
def performer_padding() -> float:
    """Its layer zeroes the values of padding and leaves the features of its keys in the sums."""
    peer = package("performer_pytorch.performer_pytorch")
    torch.manual_seed(0)
    layer = peer.SelfAttention(64, heads=2, dim_head=32, nb_features=64).double().eval()
    x, mask = drawn(1, 96, 64), torch.arange(96)[None] < 64
    return relative(layer(x, mask=mask)[:, :64], layer(x[:, :64]))


@between(
    "linear", "linear-attention-transformer 0.19.1, causal", "the definition",
    "a token ignores the tokens of its bucket of 64, which get no gradient",
    paper="the definition", ours="the definition", unit="of 101 visible tokens are ignored",
)  # fmt: skip
def linear_bucket() -> float:
    """Of the weights of the tokens in the query's bucket, which are those of no gradient."""
    peer = package("linear_attention_transformer.linear_attention_transformer")
    q, k, v = (drawn(1, 2, 256, 32).roll(shift, 2) for shift in range(3))
    v.requires_grad_()
    out = peer.causal_linear_attn(q, k, v, bucket_size=64)
    (gradient,) = torch.autograd.grad(out[0, 0, 100].sum(), v)
    return int((gradient[0, 0, 64:101] == 0).all(-1).sum())


@between(
    "sinkhorn", "sinkhorn-transformer 0.11.4", "the definition",
    "sorted keys are combined with values of other blocks",
    paper="the definition", ours="the definition", unit=MEANS,
)  # fmt: skip
def sinkhorn_values() -> float:
    """With values of one, every weighted mean is one; here it is not."""
    peer = package("sinkhorn_transformer.sinkhorn_transformer")
    torch.manual_seed(0)
    attention = peer.SinkhornAttention(32, 128, 64, 2, 32, 128, non_permutative=True).double()
    q, k = drawn(1, 2, 128, 32), drawn(1, 2, 128, 32).flip(2)
    return from_ones(attention(q, k, torch.ones_like(q)))


@between(
    "h_transformer", "h-transformer-1d 0.1.9", "the definition",
    "a coarse key has another weight than the tokens that it represents",
    paper="the definition", ours="the definition", unit=MEANS,
)  # fmt: skip
def h_transformer_counts() -> float:
    """With values of one, every weighted mean is one; here coarse levels count them too often."""
    peer = package("h_transformer_1d.h_transformer_1d")
    torch.manual_seed(0)
    attention = peer.HAttention1D(32, heads=1, dim_head=32, block_size=8).double()
    x = drawn(1, 256, 32)
    x[..., 0] = 1.0
    with torch.no_grad():
        attention.to_qkv.weight[64:] = 0
        attention.to_qkv.weight[64:, 0] = 1.0  # all values are the constant channel
        attention.to_out.weight.copy_(torch.eye(32))
        attention.to_out.bias.zero_()
        return from_ones(attention(x))


@between(
    "big_bird", "transformers 5.23.0, in evaluation", "transformers 5.23.0, in training",
    "all random blocks are block 0",
    paper="transformers 5.23.0, in training", ours="transformers 5.23.0, in training",
    unit="entries of a plan of 60 are block 0",
)  # fmt: skip
def big_bird_plan() -> float:
    """Entries of the plan of random blocks that are block 0, of the plan in evaluation."""
    peer = package("transformers.models.big_bird.modeling_big_bird")
    config = package("transformers").BigBirdConfig(
        hidden_size=64, num_attention_heads=2, num_random_blocks=2, block_size=16
    )
    attention = peer.BigBirdBlockSparseAttention(config).eval()
    plan = attention._bigbird_block_rand_mask(512, 512, 16, 16, 2)
    return int((plan == 0).sum())


@between(
    "fnet", "transformers 5.23.0, a padded row", "the row alone",
    "the model accepts no mask, so that padding changes real tokens",
    paper="neither: it does not pad", ours="neither: a task that pads is refused",
)  # fmt: skip
def fnet_padding() -> float:
    """Outputs of real tokens beside padding, against those of the row alone."""
    peer = package("transformers.models.fnet.modeling_fnet")
    config = package("transformers").FNetConfig(hidden_size=64, max_position_embeddings=96)
    mix, x = peer.FNetBasicFourierTransform(config), drawn(1, 96, 64)
    return relative(mix(x)[0][:, :64], mix(x[:, :64])[0])


@between(
    "yoso", "transformers 5.23.0, a padded row", "the row alone",
    "padding changes real tokens in spite of its mask",
    paper="the row alone", ours="the row alone",
)  # fmt: skip
def yoso_padding() -> float:
    """Outputs of real tokens beside masked padding, against those of the row alone."""
    peer = package("transformers.models.yoso.modeling_yoso")
    config = package("transformers").YosoConfig(
        hidden_size=64, num_attention_heads=2, use_expectation=True, hash_code_len=9
    )
    torch.manual_seed(0)
    layer, x = peer.YosoSelfAttention(config).double().eval(), drawn(1, 96, 64)
    away = torch.zeros(1, 96, dtype=torch.float64)
    away[:, 64:] = torch.finfo(torch.float64).min
    alone = layer(x[:, :64], torch.zeros(1, 64, dtype=torch.float64))[0]
    return relative(layer(x, away)[0][:, :64], alone)


@between(
    "local", "local-attention 1.11.2, `autopad`", "the definition",
    "tokens attend to the padding that the package adds",
    paper="the definition", ours="the definition", unit=MEANS,
)  # fmt: skip
def local_padding() -> float:
    """With values of one, every weighted mean is one; here padding with zeros counts, too."""
    peer = package("local_attention")
    attention = peer.LocalAttention(64, causal=False, autopad=True, use_rotary_pos_emb=False)
    q, k = drawn(1, 2, 100, 32), drawn(1, 2, 100, 32).flip(2)
    return from_ones(attention(q, k, torch.ones_like(q)))


@between(
    "reformer", "reformer-pytorch 1.4.4, without duplicates", "exact attention of equal buckets",
    "pairs that share a bucket in several rounds are counted wrongly",
    paper="exact attention of equal buckets", ours="exact attention of equal buckets",
)  # fmt: skip
def reformer_duplicates() -> float:
    """A pair that is met in two rounds should weigh once: as exact attention, where all is seen."""
    peer = package("reformer_pytorch.reformer_pytorch")
    torch.manual_seed(0)
    # one bucket pair: every token sees every token, in each of two rounds
    attention = peer.LSHAttention(
        bucket_size=16, n_hashes=2, allow_duplicate_attention=False, attend_across_buckets=True
    ).double()
    qk, v = drawn(1, 32, 16), drawn(1, 32, 16).flip(1)
    scores = qk @ F.normalize(qk, dim=-1).mT / 4
    scores.diagonal(dim1=1, dim2=2).fill_(-5e4)
    return relative(attention(qk, v)[0], scores.softmax(-1) @ v)


@between(
    "kimi_delta", "transformers 5.23.0, default of Kimi Linear", "list of its checkpoint",
    "the checkpoint counts layers from 1, the default from 0: attention comes one layer later",
    paper="list of its checkpoint", ours="list of its checkpoint", unit="of 27 layers",
)  # fmt: skip
def kimi_linear_layers() -> float:
    """Layers that differ between the default of the configuration and the checkpoint's list."""
    config = package("transformers").KimiLinearConfig
    attention = [4, 8, 12, 16, 20, 24, 27]  # of the checkpoint, counted from 1
    others = [layer for layer in range(1, 28) if layer not in attention]
    usual = config(num_hidden_layers=27)
    listed = config(
        num_hidden_layers=27,
        linear_attn_config={"full_attn_layers": attention, "kda_layers": others},
    )
    return sum(a != b for a, b in zip(usual.layer_types, listed.layer_types, strict=True))


@between(
    "retnet", "transformers 5.23.0, default of MiniMax-01", "list of its checkpoint",
    "exact attention in every second layer, but in every eighth of the checkpoint",
    paper="list of its checkpoint", ours="list of its checkpoint", unit="of 80 layers",
)  # fmt: skip
def minimax_layers() -> float:
    """Layers that differ between the default of the configuration and the checkpoint's list."""
    usual = package("transformers").MiniMaxConfig(num_hidden_layers=80).layer_types
    listed = ["full_attention" if layer % 8 == 7 else "linear_attention" for layer in range(80)]
    return sum(a != b for a, b in zip(usual, listed, strict=True))


@between(
    "gated_delta_net", "fla-core 0.6.0, recurrent form of Comba", "fla-core 0.6.0, its chunk form",
    "the recurrent form computes the error against the decayed state",
    paper="fla-core 0.6.0, its chunk form", ours="fla-core 0.6.0, its chunk form",
)  # fmt: skip
def comba_forms() -> float:
    """The recurrent form decays the state before it computes the error."""
    peer = file_of("comba")
    q, k, v, p = (F.normalize(drawn(1, 64, 2, 16, seed=seed), dim=-1) for seed in range(4))
    beta = drawn(1, 64, 2, seed=4).sigmoid()
    g = F.logsigmoid(drawn(1, 64, 2, seed=5))
    recurrent, _ = peer.naive_recurrent_comba(q, k, v, p, beta, g)
    chunks, _ = peer.naive_chunk_comba(q, k, v, p, g, beta, chunk_size=16)
    return relative(recurrent, chunks)


@between(
    "delta_net", "inverse of I + A by repeated squaring", "substitution",
    "rounding grows if keys are nearly parallel (64 tokens, 5 % noise, float32)",
    paper="substitution", ours="substitution", unit="of the largest entry",
)  # fmt: skip
def delta_inverse() -> float:
    """Inverse of I + A by repeated squaring in float32, for keys that are nearly parallel."""
    keys = F.normalize(drawn(1, 32) + 0.05 * drawn(64, 32, seed=1), dim=-1).float()
    below = (0.95 * keys @ keys.mT).tril(-1)
    identity = torch.eye(64)
    inverse, power = identity - below, -below
    for _ in range(5):  # (I - A)(I + A^2)(I + A^4)...: exact but for rounding, as A^64 = 0
        power = power @ power
        inverse = inverse @ (identity + power)
    exact = torch.linalg.solve_triangular(
        (identity + below).double(), identity.double(), upper=False
    )
    return relative(inverse.double(), exact)


@between(
    "compressed", "transformers 5.23.0, DeepSeek-V4, padding on the left", "the row alone",
    "blocks begin at the first slot, so padding moves them and is compressed with real tokens",
    paper="the row alone", ours="the row alone",
)  # fmt: skip
def compressed_padding() -> float:
    """Three tokens of padding before a row, with a mask that hides them."""
    peer = package("transformers.models.deepseek_v4.modeling_deepseek_v4")
    kind = "heavily_compressed_attention"
    config = package("transformers").DeepseekV4Config(
        hidden_size=32, num_attention_heads=4, head_dim=16, q_lora_rank=24, sliding_window=5,
        num_hidden_layers=1, layer_types=[kind], compress_rates={kind: 4}, o_groups=2,
        o_lora_rank=12, index_n_heads=16, index_head_dim=8, index_topk=3,
    )  # fmt: skip
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    layer, turns = (
        peer.DeepseekV4Attention(config, 0).eval(),
        peer.DeepseekV4RotaryEmbedding(config),
    )
    for name, parameter in layer.named_parameters():
        if name == "sinks" or name.endswith("position_bias"):
            torch.nn.init.zeros_(parameter)

    def outputs(x: Tensor, padding: int) -> Tensor:
        slot = torch.arange(x.shape[1])
        distance, ids = slot[:, None] - slot, (slot - padding).clamp(min=0)[None]
        hidden = (distance < 0) | (distance >= 5) | (slot < padding)
        mask = torch.zeros(hidden.shape).masked_fill(hidden, -1e30)[None, None]
        positions = {each: turns(x, ids, each) for each in ("main", "compress")}
        out: Tensor = layer(x, positions, ids, mask)[0]
        return out[:, padding:]

    x = drawn(1, 41, 32).float()
    return relative(outputs(F.pad(x, (0, 0, 3, 0)), 3), outputs(x, 0))


def twice(family: type, one: dict[str, Any], other: dict[str, Any]) -> float:
    """Return how outputs of a causal layer with equal weights differ between two options."""
    x, layers = drawn(2, 64, 32).float(), []
    for options in (one, other):
        torch.manual_seed(0)
        site = Site(
            width=32, heads=2, max_length=64, causal=True,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        layers.append(family(site, **options).eval())
    layers[1].load_state_dict(layers[0].state_dict())
    return relative(*(layer(x, Layout()) for layer in layers))


@between(
    "mamba3",
    "state-spaces/mamba, first release: A = softplus",
    "state-spaces/mamba, 2026-07-23: A = tail",
    "the rate of a decay is another function of the token",
    paper="both, in turn", ours="either: `decay`",
)  # fmt: skip
def mamba3_decays() -> float:
    """Ours equals both versions of the released layer; the two with equal weights."""
    return twice(Mamba3, {"states": 16, "decay": "softplus"}, {"states": 16, "decay": "tail"})


@between(
    "mamba3", "mamba3-ssm 0.2.1", "the definition",
    "the term of the previous token does not decay, and has half of the weight",
    paper="the definition", ours="the definition",
)  # fmt: skip
def mamba3_package() -> float:
    """Its scan, against the trapezoidal rule, token by token."""
    peer = package("mamba3_ssm.ops", "no extra brings it: pip install --no-deps mamba3-ssm")
    x, b, c = (drawn(1, 64, 2, 16, seed=seed).float() for seed in range(3))
    dt, share = (drawn(1, 64, 2, seed=seed).float().sigmoid() for seed in (3, 4))
    decay = (-dt).exp()
    theirs = peer._siso_scan_jit(x, b, c, decay, dt, 1 - share, torch.zeros(2))
    state, before, outputs = torch.zeros(1, 2, 16, 16), torch.zeros(1, 2, 16, 16), []
    for t in range(64):
        a, d, s = (each[:, t, :, None, None] for each in (decay, dt, share))
        entry = x[:, t, :, :, None] * b[:, t, :, None]
        state = a * state + (1 - s) * d * a * before + s * d * entry
        outputs.append((state * c[:, t, :, None]).sum(-1))
        before = entry
    return relative(theirs, torch.stack(outputs, 1))


@between(
    "path", "fla-core 0.6.0, PaTH-FoX", "Forgetting Transformer",
    "logarithms of forget gates are divided by sqrt(k), as scores are",
    paper="Forgetting Transformer", ours="either: `forget_scale`",
)  # fmt: skip
def path_forget_scale() -> float:
    """Ours equals both; the two with equal weights."""
    return twice(PathAttention, {"forget": True, "forget_scale": "head"}, {"forget": True})


@between(
    "kimi_delta", "flash-linear-attention, layer of KDA", "transformers 5.23.0, Kimi Linear",
    "the output gate has a bias",
    paper="not said", ours="either: `gate_bias`", unit="parameters of a layer of width 32",
)  # fmt: skip
def kimi_delta_bias() -> float:
    """The number of the bias's parameters."""
    site = Site(width=32, heads=2, max_length=8, generator=torch.Generator())
    one, other = (KimiDelta(site, gate_bias=bias) for bias in (True, False))
    return sum(p.numel() for p in one.parameters()) - sum(p.numel() for p in other.parameters())


@between(
    "kimi_delta", "key `full_attn_layers` of GLM-5-next", "the same key of Kimi Linear",
    "layers are counted from 0, in Kimi Linear from 1",
    paper="each its own", ours="each its own", unit="of 45 layers, if one is read as the other",
)  # fmt: skip
def two_index_bases() -> float:
    """Layers of GLM-5-next that would differ if its list were read as Kimi Linear's."""
    attends = {layer for layer in range(45) if layer % 4 == 3}
    read = {layer - 1 for layer in attends}
    return len(attends ^ read)


def main() -> None:
    """Measure all, and store what the page shows."""
    sizes = {
        name: {**asdict(entry), "size": measure()} for name, (entry, measure) in CATALOGUE.items()
    }
    STORED.write_text(json.dumps(sizes, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
