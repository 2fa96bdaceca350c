"""An answer that is read at one position: the last norm acts there alone, to the same bits."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.heads import READ_FIRST, Pooling
from lra.models.backbone.model import Backbone
from lra.models.backbone.norms import NormKind
from lra.models.contract.counting import saved_bytes
from lra.models.families.sdpa import SDPA

FACTS = TaskFacts(head=Head.classification, vocabulary=11, classes=3, max_length=20, padded=True)
CONFIG = BackboneConfig(depth=2, width=16, heads=2, feed_forward_width=16)
TOKENS = torch.randint(1, 11, (4, 1, 20), generator=torch.Generator().manual_seed(0))
KEEP = (torch.arange(20) < torch.tensor([20, 3, 11, 20])[:, None])[:, None]
TARGET = torch.tensor([0, 1, 2, 0])


def model(pooling: Pooling, facts: TaskFacts = FACTS, **options: Any) -> Backbone:
    return Backbone(replace(CONFIG, pooling=pooling, **options), facts, [SDPA], seed=2)


def learned(net: Backbone, tokens: Tensor = TOKENS, keep: Tensor = KEEP) -> list[Tensor]:
    net.zero_grad()
    torch.manual_seed(1)
    outcome = net(tokens, TARGET[: len(tokens)], keep)
    torch.autograd.backward(outcome.nll.sum())
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    return [outcome.nll, net.predict(tokens, keep)[0], *grads]


@pytest.mark.parametrize("head", [Head.classification, Head.pair])
@pytest.mark.parametrize("pooling", sorted(READ_FIRST))
@pytest.mark.parametrize("norm", [NormKind.layer, NormKind.rms, NormKind.scale])
def test_one_position_gives_the_same_numbers(pooling: Pooling, norm: NormKind, head: Head) -> None:
    net = model(pooling, replace(FACTS, head=head), norm=norm, dropout=0.2)
    towers = (TOKENS, KEEP)
    if head is Head.pair:
        towers = (TOKENS.view(2, 2, 20), KEEP.view(2, 2, 20))
    assert net.reads_first
    found = learned(net, *towers)
    net.reads_first = False
    for one, whole in zip(found, learned(net, *towers), strict=True):
        torch.testing.assert_close(one, whole, rtol=1e-6, atol=1e-7)


def test_the_norm_keeps_one_position_of_each_row() -> None:
    net = model(Pooling.cls)

    def kept() -> int:
        return saved_bytes(lambda: net(TOKENS, TARGET, KEEP).nll.sum(), [*net.parameters()])

    one = kept()
    net.reads_first = False
    # 21 positions with the CLS vector: the norm's input, its mean and its deviation; its output is
    # read at one position either way.
    assert kept() - one >= 4 * 20 * (16 + 2) * 4


@pytest.mark.parametrize(
    ("pooling", "options"),
    [
        *((pooling, {}) for pooling in Pooling if pooling not in READ_FIRST),
        (Pooling.cls, {"norm": NormKind.batch}),
        (Pooling.cls, {"output_dropout": 0.1}),
        (Pooling.cls, {"residual": "reversible"}),
        (Pooling.cls, {"pool_blocks": 2}),
    ],
)
def test_what_looks_at_other_positions_keeps_them(pooling: Pooling, options: Any) -> None:
    facts = replace(FACTS, padded=options.get("norm") is not NormKind.batch)
    net = model(pooling, facts, **options)
    assert not net.reads_first
    assert net.run(TOKENS, None, None, to_answer=True).x.shape[1] > 1
