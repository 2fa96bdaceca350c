"""Peers of linear attention and of the Performer."""

from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from lra.models.families.linear import LinearAttention
from lra.models.families.performer import Performer
from lra.models.ops.linear.random_features import Kernel
from peers.peer import Peer, PeerCase, PeerPair, core_of, package

FEATURES = 256
FROM_SOURCE = (
    "no extra brings it: pip install --no-build-isolation pytorch-fast-transformers builds it, "
    "beside torch and with a compiler"
)


def elu1(x: Tensor) -> Tensor:
    """Return elu(x) + 1."""
    return F.elu(x) + 1


def performer_product(case: PeerCase) -> PeerPair:
    """performer-pytorch's product of features, fed with elu + 1."""
    peer = package("performer_pytorch.performer_pytorch")
    product = (
        partial(peer.causal_linear_attention_noncuda, eps=0.0)
        if case.causal
        else peer.linear_attention
    )
    ours = core_of(LinearAttention(case.site()), case)
    return PeerPair(ours, lambda q, k, v: product(elu1(q), elu1(k), v), case.heads_of_inputs())


def authors(case: PeerCase) -> PeerPair:
    """The Linear Transformer authors' attention; its causal sum is a compiled loop in float32."""
    peer = package("fast_transformers.attention")
    masking = package("fast_transformers.masking")
    length = case.length
    lengths = masking.LengthMask(torch.full((case.batch,), length), max_len=length)
    if case.causal:
        module = peer.CausalLinearAttention(case.head_width, eps=0.0)
        mask = masking.TriangularCausalMask(length)
    else:
        module = peer.LinearAttention(case.head_width, eps=0.0)
        mask = masking.FullMask(length)

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if case.causal:
            q, k, v = q.float(), k.float(), v.float()
        out: Tensor = module(*(x.transpose(1, 2) for x in (q, k, v)), mask, lengths, lengths)
        return out.transpose(1, 2).to(case.dtype)

    return PeerPair(core_of(LinearAttention(case.site()), case), theirs, case.heads_of_inputs())


def softmaxed_product(case: PeerCase) -> PeerPair:
    """linear-attention-transformer's product, whose feature maps are softmaxes."""
    peer = package("linear_attention_transformer.linear_attention_transformer")
    ours = core_of(LinearAttention(case.site()), case)
    if case.causal:
        return PeerPair(
            ours, partial(peer.causal_linear_attn, bucket_size=64), case.heads_of_inputs()
        )
    return PeerPair(ours, peer.linear_attn, case.heads_of_inputs())


def favor(case: PeerCase) -> PeerPair:
    """performer-pytorch's FastAttention with our projection."""
    peer = package("performer_pytorch.performer_pytorch")
    mixer = Performer(case.site(), features=FEATURES)
    attention: Any = peer.FastAttention(case.head_width, FEATURES, causal=case.causal)
    _share_projection(attention, mixer)
    if case.causal:
        attention.causal_linear_fn = partial(peer.causal_linear_attention_noncuda, eps=0.0)
    attention = case.placed(attention)
    kernel = partial(peer.softmax_kernel, eps=0.0)

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with mock.patch.object(peer, "softmax_kernel", kernel):
            out: Tensor = attention(q, k, v)
        return out

    return PeerPair(core_of(mixer, case), theirs, case.heads_of_inputs())


def favor_relu(case: PeerCase) -> PeerPair:
    """performer-pytorch's generalised attention with ReLU and our projection."""
    peer = package("performer_pytorch.performer_pytorch")
    mixer = Performer(case.site(), features=FEATURES, kernel=Kernel.relu)
    attention: Any = peer.FastAttention(
        case.head_width, FEATURES, causal=case.causal, generalized_attention=True
    )
    _share_projection(attention, mixer)
    if case.causal:
        attention.causal_linear_fn = partial(peer.causal_linear_attention_noncuda, eps=0.0)
    return PeerPair(core_of(mixer, case), case.placed(attention), case.heads_of_inputs())


def _share_projection(attention: Any, mixer: Performer) -> None:
    (projection,) = mixer.core.buffers()
    attention.projection_matrix = projection.detach().clone()


PEERS = (
    Peer(
        name="performer-pytorch linear_attention",
        distribution="performer-pytorch",
        family="linear",
        setting="elu + 1",
        make=performer_product,
        causal=True,
        note="its product of features alone; its epsilon of 1e-6 in the causal form is 0 here",
    ),
    Peer(
        name="linear-attention-transformer linear_attn",
        distribution="linear-attention-transformer",
        family="linear",
        setting="softmax feature maps",
        make=softmaxed_product,
        causal=True,
        same=False,
        multiple=64,
        note="maps queries and keys by softmaxes and scales them; its causal form hides the "
        "token's own bucket of 64",
    ),
    Peer(
        name="fast-transformers LinearAttention",
        distribution="pytorch-fast-transformers",
        family="linear",
        setting="elu + 1",
        make=authors,
        causal=True,
        tolerance=1e-5,
        note="its epsilon of 1e-6 is 0 here; its causal product is in float32",
        way_out=FROM_SOURCE,
    ),
    Peer(
        name="performer-pytorch FastAttention",
        distribution="performer-pytorch",
        family="performer",
        setting=f"{FEATURES} positive softmax features",
        make=favor,
        causal=True,
        note="its epsilons (1e-4 in the features, 1e-6 in the causal sum) are 0 here",
    ),
    Peer(
        name="performer-pytorch FastAttention, generalised",
        distribution="performer-pytorch",
        family="performer",
        setting=f"{FEATURES} ReLU features",
        make=favor_relu,
        causal=True,
        note="its epsilon of 1e-6 in the causal sum is 0 here",
    ),
)
