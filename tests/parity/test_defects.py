"""Where a peer is wrong or different, shown: each line of the table in docs/peers.md."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from peers.peer import package

pytestmark = pytest.mark.parity


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_performer_pytorch_causal_rows_do_not_sum_to_one() -> None:
    peer = package("performer_pytorch.performer_pytorch")
    torch.manual_seed(0)
    attention = peer.FastAttention(32, 64, causal=True).double()
    q, k = drawn(1, 2, 256, 32), drawn(1, 2, 256, 32).flip(2)
    sums = attention(q, k, torch.ones_like(q))[..., 0]
    assert sums.min() < 0.999
    assert (sums < 1).all()


def test_performer_pytorch_padding_moves_real_outputs() -> None:
    """Its layer zeroes the values of padding and leaves the features of its keys in the sums."""
    peer = package("performer_pytorch.performer_pytorch")
    torch.manual_seed(0)
    layer = peer.SelfAttention(64, heads=2, dim_head=32, nb_features=64).double().eval()
    x = drawn(1, 96, 64)
    mask = torch.arange(96)[None] < 64
    alone, padded = layer(x[:, :64]), layer(x, mask=mask)[:, :64]
    assert (alone - padded).abs().max() > 1e-3


def test_linear_attention_transformer_is_blind_to_the_own_bucket() -> None:
    peer = package("linear_attention_transformer.linear_attention_transformer")
    q, k, v = (drawn(1, 2, 256, 32).roll(shift, 2) for shift in range(3))
    v.requires_grad_()
    out = peer.causal_linear_attn(q, k, v, bucket_size=64)
    (gradient,) = torch.autograd.grad(out[0, 0, 100].sum(), v)
    assert gradient[0, 0, 64:101].abs().max() == 0
    assert gradient[0, 0, :64].abs().max() > 0


def test_sinkhorn_transformer_pairs_sorted_keys_with_other_values() -> None:
    """With values of one, every weighted mean is one; here it is not."""
    peer = package("sinkhorn_transformer.sinkhorn_transformer")
    torch.manual_seed(0)
    attention = peer.SinkhornAttention(32, 128, 64, 2, 32, 128, non_permutative=True).double()
    q, k = drawn(1, 2, 128, 32), drawn(1, 2, 128, 32).flip(2)
    out = attention(q, k, torch.ones_like(q))
    assert (out - 1).abs().max() > 0.1


def test_h_transformer_1d_miscounts_coarse_keys() -> None:
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
        out = attention(x)
    assert out.min() > 1.05
    assert out.max() > 2


def test_transformers_big_bird_attends_to_block_0_again_outside_of_training() -> None:
    peer = package("transformers.models.big_bird.modeling_big_bird")
    config = package("transformers").BigBirdConfig(
        hidden_size=64, num_attention_heads=2, num_random_blocks=2, block_size=16
    )
    attention = peer.BigBirdBlockSparseAttention(config).eval()
    plan = attention._bigbird_block_rand_mask(512, 512, 16, 16, 2)
    assert (plan == 0).all()


def test_transformers_fnet_lets_padding_in() -> None:
    peer = package("transformers.models.fnet.modeling_fnet")
    config = package("transformers").FNetConfig(hidden_size=64, max_position_embeddings=96)
    mix = peer.FNetBasicFourierTransform(config)
    x = drawn(1, 96, 64)
    assert (mix(x)[0][:, :64] - mix(x[:, :64])[0]).abs().max() > 0.1


def test_transformers_yoso_padding_moves_real_outputs() -> None:
    peer = package("transformers.models.yoso.modeling_yoso")
    config = package("transformers").YosoConfig(
        hidden_size=64, num_attention_heads=2, use_expectation=True, hash_code_len=9
    )
    torch.manual_seed(0)
    layer = peer.YosoSelfAttention(config).double().eval()
    x = drawn(1, 96, 64)
    away = torch.zeros(1, 96, dtype=torch.float64)
    away[:, 64:] = torch.finfo(torch.float64).min
    real = torch.zeros(1, 64, dtype=torch.float64)
    alone, padded = layer(x[:, :64], real)[0], layer(x, away)[0][:, :64]
    assert (alone - padded).abs().max() > 1e-3


def test_local_attention_attends_to_its_own_padding() -> None:
    peer = package("local_attention")
    attention = peer.LocalAttention(64, causal=False, autopad=True, use_rotary_pos_emb=False)
    q, k = drawn(1, 2, 100, 32), drawn(1, 2, 100, 32).flip(2)
    sums = attention(q, k, torch.ones_like(q))[..., 0]
    assert sums[..., 80].max() < 0.99  # ones everywhere, but for zeros that it added itself


def test_reformer_pytorch_counts_duplicates_wrongly() -> None:
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
    exact = scores.softmax(-1) @ v
    out = attention(qk, v)[0]
    assert (out - exact).abs().max() > 1e-3


def test_transformers_nystromformer_cannot_pad_a_model() -> None:
    peer = package("transformers")
    config = peer.NystromformerConfig(
        hidden_size=64, num_attention_heads=2, num_hidden_layers=1, intermediate_size=64,
        num_landmarks=8, segment_means_seq_len=64, vocab_size=20,
    )  # fmt: skip
    model = peer.NystromformerModel(config).eval()
    ids = torch.randint(0, 20, (2, 64), generator=torch.Generator().manual_seed(0))
    keep = torch.ones_like(ids)
    keep[1, 40:] = 0
    with pytest.raises(RuntimeError):
        model(ids, attention_mask=keep)
