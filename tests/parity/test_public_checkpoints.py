"""Files that transformers writes, read into our backbone: its logits, and its last layer."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lra.models.backbone.model import (
    Backbone,
    BackboneConfig,
    FeedForward,
    Head,
    Pooling,
    Residual,
    TaskFacts,
)
from lra.models.families.softmax import SoftmaxAttention
from lra.models.transfer.checkpoints import read_checkpoint
from lra.models.transfer.weights import transfer
from peers.peer import package

pytestmark = pytest.mark.parity

HEADS = 3
FRAME = {"width": 12, "heads": HEADS, "feed_forward_width": 20}
GPT2 = {**FRAME, "feed_forward": FeedForward.gelu_tanh}
BERT = {**FRAME, "residual": Residual.post_norm, "norm_epsilon": 1e-12}
TOKENS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5])


def build(head: Head, **options: Any) -> Backbone:
    facts = TaskFacts(head=head, vocabulary=11, classes=3, max_length=9)
    return Backbone(BackboneConfig(**options), facts, [SoftmaxAttention], seed=1).eval()


def test_gpt2_agrees_with_the_transformers_package(tmp_path: Path) -> None:
    transformers = package("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=11, n_positions=9, n_embd=12, n_layer=2, n_head=HEADS, n_inner=20
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) / 3)
    theirs.save_pretrained(tmp_path)
    model = build(Head.language_modelling, **GPT2)
    transfer(read_checkpoint(tmp_path / "model.safetensors"), model)
    wanted = theirs(TOKENS[None]).logits
    torch.testing.assert_close(model.predict(TOKENS[None, None])[0], wanted, rtol=1e-4, atol=1e-5)


def test_bert_agrees_with_the_transformers_package(tmp_path: Path) -> None:
    transformers = package("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=11, max_position_embeddings=9, hidden_size=12, num_hidden_layers=2,
        num_attention_heads=HEADS, intermediate_size=20,
    )  # fmt: skip
    theirs = transformers.BertForMaskedLM(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) / 3)
    theirs.save_pretrained(tmp_path)
    model = build(Head.classification, pooling=Pooling.mean, **BERT)
    transfer(read_checkpoint(tmp_path / "model.safetensors"), model)
    wanted = theirs.bert(TOKENS[None]).last_hidden_state
    found = model.run(TOKENS[None, None], None, None).x
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
