"""The stored sizes of docs/disagreements.md are those that are measured."""

import json
from dataclasses import asdict

import pytest
import torch
from disagreements import CATALOGUE, STORED

from peers.peer import package

SIZES = json.loads(STORED.read_text("utf-8"))


def test_the_stored_comparisons_are_those_of_the_catalogue() -> None:
    stored = {name: {k: v for k, v in one.items() if k != "size"} for name, one in SIZES.items()}
    assert stored == {name: asdict(entry) for name, (entry, _) in CATALOGUE.items()}


@pytest.mark.parity
@pytest.mark.parametrize("name", CATALOGUE)
def test_two_public_forms_differ_by_the_stored_size(name: str) -> None:
    _, measure = CATALOGUE[name]
    assert measure() == pytest.approx(SIZES[name]["size"], rel=0.05)
    assert SIZES[name]["size"] > 1e-3


@pytest.mark.parity
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
