"""Peers of attention by an index: four models' files in transformers."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.families.indexed_attention import IndexedAttention
from lra.models.mixer import Positions
from lra.models.multi_head import NORM_EPSILON as QK_EPSILON
from lra.models.ops.sparse.index_scorer import NORM_EPSILON, IndexForm
from peers.exact import SideBySide, rotary_angles
from peers.peer import Peer, PeerCase, PeerPair, by_heads, layer_of, package, side_by_side, twins

BLOCK = 8
BUDGET = 64
INDEX_HEADS = 32
"""So many that no score is 0, which many keys would have: sorts decide among equals."""
FILES = "transformers.models."


def ours_of(case: PeerCase, form: IndexForm, **options: Any) -> Any:
    """Return our mixer, with norms and maps that start at 0 or 1 moved away from there."""
    positions = Positions.none if form == IndexForm.kpool else Positions.rotary
    mixer: Any = IndexedAttention(replace(case.site(), positions=positions), scores=form, **options)
    for name, parameter in mixer.named_parameters():
        if "norm" in name or "gate" in name or "place" in name:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return case.placed(mixer)


def fill(theirs: nn.Module, values: dict[str, Tensor]) -> None:
    """Copy values into all parameters of theirs."""
    parameters = dict(theirs.named_parameters())
    if parameters.keys() != values.keys():
        raise ValueError(f"theirs has {sorted(parameters)}: got {sorted(values)}")
    for name, value in values.items():
        parameters[name].data.copy_(value)


def sight(case: PeerCase) -> Tensor:
    """Return which keys each query may attend to, of every row."""
    return torch.ones(case.length, case.length).tril().bool().expand(case.batch, 1, -1, -1)


def qwen4(case: PeerCase) -> PeerPair:
    """Transformers' Qwen4ExpTextAttention."""
    module = package(f"{FILES}qwen4_exp.modeling_qwen4_exp")
    width, heads = case.head_width, case.heads
    config: Any = SimpleNamespace(
        hidden_size=case.width, num_attention_heads=heads, num_key_value_heads=1, head_dim=width,
        attention_bias=False, attention_dropout=0.0, rms_norm_eps=NORM_EPSILON,
        indexer_n_heads=INDEX_HEADS, indexer_kv_heads=1, indexer_head_dim=width,
        indexer_budget=BUDGET, indexer_compress_ratio=BLOCK, _attn_implementation="sdpa",
    )  # fmt: skip
    peer: Any = module.Qwen4ExpTextAttention(config, 0)
    peer.q_norm, peer.k_norm = (nn.RMSNorm(width, QK_EPSILON) for _ in range(2))
    peer.q_proj = SideBySide(heads, case.width, width)
    for name in ("q_layernorm", "k_layernorm"):
        setattr(peer.indexer, name, nn.RMSNorm(width, NORM_EPSILON))
    case.placed(peer)
    ours = ours_of(
        case, IndexForm.qsa, block=BLOCK, budget=BUDGET, index_heads=INDEX_HEADS,
        key_value_heads=1, output_gate=True, qk_norm=True,
    )  # fmt: skip
    index = ours.index
    fill(peer.indexer, {
        "index_qk_proj.weight": torch.cat((index.queries.weight, index.keys.weight)),
        "q_layernorm.weight": index.q_norm.weight, "k_layernorm.weight": index.k_norm.weight,
    })  # fmt: skip
    same = {
        "q_proj": peer.q_proj.first, "gate_proj": peer.q_proj.second, "k_proj": peer.k_proj,
        "v_proj": peer.v_proj, "q_norm": peer.q_norm, "k_norm": peer.k_norm,
        "out_proj": peer.o_proj,
    }  # fmt: skip
    weights = tuple(twins(getattr(ours, name).weight, same[name].weight) for name in same)
    turn, visible = rotary_angles(case, width), sight(case)

    def theirs(x: Tensor) -> Tensor:
        out: Tensor = peer(x, tuple(y.expand(len(x), -1, -1) for y in turn), visible, None)[0]
        return out

    return PeerPair(layer_of(ours), theirs, case.tokens(), weights)


def minimax3(case: PeerCase) -> PeerPair:
    """Transformers' MiniMaxM3VLAttention."""
    module = package(f"{FILES}minimax_m3_vl.modeling_minimax_m3_vl")
    width, heads = case.head_width, case.heads
    config: Any = SimpleNamespace(
        hidden_size=case.width, num_attention_heads=heads, num_key_value_heads=heads,
        head_dim=width, attention_dropout=0.0, rms_norm_eps=NORM_EPSILON,
        layer_types=["minimax_m3_sparse"], index_head_dim=width, index_n_heads=heads,
        index_block_size=BLOCK, index_topk_blocks=BUDGET // BLOCK, index_local_blocks=1,
        _attn_implementation="sdpa",
    )  # fmt: skip
    peer: Any = module.MiniMaxM3VLAttention(config, 0)
    for part, epsilon in ((peer, QK_EPSILON), (peer.indexer, NORM_EPSILON)):
        part.q_norm, part.k_norm = (nn.RMSNorm(width, epsilon) for _ in range(2))
    case.placed(peer)
    ours = ours_of(case, IndexForm.msa, block=BLOCK, budget=BUDGET, qk_norm=True)
    index = ours.index
    fill(peer.indexer, {
        "q_proj.weight": index.queries.weight, "k_proj.weight": index.keys.weight,
        "q_norm.weight": index.q_norm.weight, "k_norm.weight": index.k_norm.weight,
    })  # fmt: skip
    names = ("q_proj", "k_proj", "v_proj", "q_norm", "k_norm")
    weights = [twins(getattr(ours, name).weight, getattr(peer, name).weight) for name in names]
    weights.append(twins(ours.out_proj.weight, peer.o_proj.weight))
    turn = rotary_angles(case, width)

    def theirs(x: Tensor) -> Tensor:
        out: Tensor = peer(x, turn, None)[0]
        return out

    return PeerPair(layer_of(ours), theirs, case.tokens(), tuple(weights))


class PlainAttention(nn.Module):
    """PyTorch's attention to what an index of theirs lists."""

    def __init__(self, case: PeerCase, listed: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.heads, self.listed = case.heads, listed
        self.q, self.k, self.v, self.o = (
            nn.Linear(case.width, case.width, bias=False) for _ in range(4)
        )
        case.placed(self)

    def forward(self, x: Tensor, turn: Callable[[Tensor], Tensor]) -> Tensor:
        """Attend to the listed tokens that are not later; -1: none."""
        q, k, v = (by_heads(layer(x), self.heads) for layer in (self.q, self.k, self.v))
        with torch.no_grad():
            lists, length = self.listed(x).long(), x.shape[1]
            sees = torch.zeros(*x.shape[:2], length + 1, dtype=torch.bool)
            sees = sees.scatter(-1, lists.where(lists >= 0, length), value=True)[..., :length]
        o = F.scaled_dot_product_attention(turn(q), turn(k), v, sees.tril()[:, None])
        mixed: Tensor = self.o(side_by_side(o))
        return mixed


def by_plain(
    case: PeerCase, ours: Any, listed: Callable[[Tensor], Tensor], turn: Callable[[Tensor], Tensor]
) -> PeerPair:
    """Compare ours with `PlainAttention`."""
    plain = PlainAttention(case, listed)
    weights = tuple(
        twins(getattr(ours, name).weight, layer.weight)
        for name, layer in (
            ("q_proj", plain.q), ("k_proj", plain.k), ("v_proj", plain.v), ("out_proj", plain.o)
        )
    )  # fmt: skip
    return PeerPair(layer_of(ours), lambda x: plain(x, turn), case.tokens(), weights)


def token_index(ours: Any) -> dict[str, Tensor]:
    """Return the parameters of an index with weights, by the names of theirs."""
    index = ours.index
    return {
        "wq_b.weight": index.queries.weight, "wk.weight": index.keys.weight,
        "k_norm.weight": index.k_norm.weight, "k_norm.bias": index.k_norm.bias,
        "weights_proj.weight": index.weights.weight,
    }  # fmt: skip


def index_config(case: PeerCase, **extra: Any) -> Any:
    """Return the configuration of an index that reads tokens in place of compressed queries."""
    width = case.head_width
    return SimpleNamespace(
        hidden_size=case.width, q_lora_rank=case.width, index_n_heads=INDEX_HEADS,
        index_head_dim=width, qk_rope_head_dim=width // 2, index_topk=BUDGET, **extra,
    )  # fmt: skip


def token_indexer(case: PeerCase, file: str, name: str, *, pairs: bool) -> PeerPair:
    """Return ours beside an index of tokens; with `pairs`, theirs rotates neighbouring channels."""
    module, width = package(f"{FILES}{file}.modeling_{file}"), case.head_width
    peer: Any = case.placed(getattr(module, name)(index_config(case), 0))
    ours = ours_of(case, IndexForm.dsa, budget=BUDGET, index_heads=INDEX_HEADS)
    values, half = token_index(ours), width // 4
    if pairs:  # channel i of ours is 2 i of theirs, and i + half is 2 i + 1
        order = torch.arange(width)
        order[: 2 * half] = torch.stack((order[:half], order[half : 2 * half]), 1).flatten()
        for key in ("wk.weight", "k_norm.weight", "k_norm.bias"):
            values[key] = values[key][order]
        rows = values["wq_b.weight"].view(INDEX_HEADS, width, -1)
        values["wq_b.weight"] = rows[:, order].flatten(0, 1)
    fill(peer, values)
    turns = [y.expand(case.batch, -1, -1) for y in rotary_angles(case, width // 2)]
    cos, sin = rotary_angles(case, width)

    def listed(x: Tensor) -> Tensor:
        lists: Tensor = peer(x, x, turns, sight(case)[:, 0], None)
        return lists

    def turn(x: Tensor) -> Tensor:
        left, right = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat((-right, left), -1) * sin[:, None]

    return by_plain(case, ours, listed, turn)


def deepseek32(case: PeerCase) -> PeerPair:
    """Transformers' DeepseekV32Indexer."""
    return token_indexer(case, "deepseek_v32", "DeepseekV32Indexer", pairs=False)


def glm5(case: PeerCase) -> PeerPair:
    """Transformers' GlmMoeDsaIndexer."""
    return token_indexer(case, "glm_moe_dsa", "GlmMoeDsaIndexer", pairs=True)


def glm5_next(case: PeerCase) -> PeerPair:
    """Transformers' Glm5NextTextIndexer."""
    module = package(f"{FILES}glm5_next.modeling_glm5_next")
    config = index_config(case, index_kpool=BLOCK, index_kpool_always_select_tail=True)
    peer: Any = case.placed(module.Glm5NextTextIndexer(config, 0))
    ours = ours_of(
        case, IndexForm.kpool, block=BLOCK, budget=BUDGET, index_heads=INDEX_HEADS
    )  # fmt: skip
    fill(peer, {
        **token_index(ours), "index_kpool_compress_ape": ours.index.place,
        "index_kpool_compress_gate": ours.index.gate.weight,
    })  # fmt: skip
    real = torch.ones(case.batch, case.length, dtype=torch.bool)

    def listed(x: Tensor) -> Tensor:
        lists: Tensor = peer(x, x, real, None)
        return lists

    return by_plain(case, ours, listed, lambda x: x)


def peer_of(name: str, setting: str, make: Callable[[PeerCase], PeerPair], note: str) -> Peer:
    """Return a causal peer of transformers."""
    return Peer(
        name=f"transformers {name}",
        distribution="transformers",
        family="indexed",
        setting=f"{setting}, budget={BUDGET} of attention, a layer",
        make=make,
        bidirectional=False,
        causal=True,
        multiple=BLOCK,
        note=note,
    )


ALONE = "its index alone, reading tokens instead of compressed queries, and PyTorch's attention to "
ALONE += "what it lists"
PEERS = (
    peer_of("Qwen4ExpTextAttention", f"scores=qsa block={BLOCK}", qwen4,
            "RMSNorm of PyTorch, whose weights are 1 more; queries and gates from two maps"),
    peer_of("MiniMaxM3VLAttention", f"scores=msa block={BLOCK}", minimax3,
            "RMSNorm of PyTorch, whose weights are 1 more"),
    peer_of("DeepseekV32Indexer", "scores=dsa", deepseek32, ALONE),
    peer_of("GlmMoeDsaIndexer", "scores=dsa", glm5,
            f"{ALONE}; it rotates channels 2 i and 2 i + 1 together, so rows are reordered"),
    peer_of("Glm5NextTextIndexer", f"scores=kpool block={BLOCK}", glm5_next, ALONE),
)  # fmt: skip
