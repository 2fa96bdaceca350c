"""Streams of native sparse attention."""

import pytest
import torch

from lra.models.families.nsa import NativeSparseAttention
from lra.models.mixer import Flow, Layout
from tests.attention import builder, drawn

WIDTH, HEADS = 16, 4


built = builder(NativeSparseAttention, width=WIDTH, heads=HEADS, moved=0.3)


def test_a_stream_has_no_documents():
    mixer, document = built(causal=True, block=4), torch.zeros(1, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="reset rows where documents begin"):
        mixer.extend(Flow(drawn(1, 3, WIDTH), mixer.initial_state(1, 9)), Layout(document=document))
