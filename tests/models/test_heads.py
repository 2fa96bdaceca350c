import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models import heads
from models.heads import Classifier, Interaction, LanguageHead, Pooling, interact, judge, pool

X = torch.arange(12.0).view(2, 3, 2)
KEEP = torch.tensor([[True, True, False], [False, False, False]])


@pytest.mark.parametrize(
    ("pooling", "wanted"),
    [
        (Pooling.cls, [[0.0, 1.0], [6.0, 7.0]]),
        (Pooling.mean, [[1.0, 2.0], [0.0, 0.0]]),
        (Pooling.mean_over_padded, [[2 / 3, 4 / 3], [0.0, 0.0]]),
    ],
)
def test_pooling_by_hand(pooling, wanted):
    torch.testing.assert_close(pool(X, KEEP, pooling), torch.tensor(wanted))


@pytest.mark.parametrize("pooling", [Pooling.mean, Pooling.mean_over_padded])
def test_means_without_padding_are_plain(pooling):
    assert torch.equal(pool(X, None, pooling), X.mean(1))
    torch.testing.assert_close(pool(X, torch.ones_like(KEEP), pooling), X.mean(1))


def test_padding_never_reaches_the_mean():
    spoilt = X.masked_fill(~KEEP[..., None], torch.nan)
    assert torch.equal(pool(spoilt, KEEP, Pooling.mean), pool(X, KEEP, Pooling.mean))


def test_interactions_by_hand():
    pairs = torch.tensor([[[1.0, 2.0], [3.0, 5.0]]])
    assert interact(pairs, Interaction.concat).tolist() == [[1, 2, 3, 5]]
    assert interact(pairs, Interaction.nli).tolist() == [[1, 2, 3, 5, 3, 10, -2, -3]]


def test_judge_by_hand():
    nll, hit = judge(torch.tensor([[0.0, math.log(3)], [2.0, 2.0]]), torch.tensor([0, 0]))
    torch.testing.assert_close(nll, torch.tensor([math.log(4), math.log(2)]))
    assert hit.tolist() == [False, True]


def test_half_precision_is_judged_in_float32():
    logits = torch.tensor([[0.0, 9.0]], dtype=torch.bfloat16)
    nll, _ = judge(logits, torch.tensor([1]))
    assert nll.dtype == torch.float32
    assert nll.item() == pytest.approx(math.log1p(math.exp(-9)), rel=1e-3)


def test_classifier_is_two_layers():
    torch.manual_seed(0)
    classifier = Classifier(4, 8, 3)
    x = torch.randn(5, 4)
    hidden = (x @ classifier.hidden.weight.T).clamp(min=0)
    torch.testing.assert_close(classifier(x), hidden @ classifier.out.weight.T)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operator returned."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for part in result if isinstance(result, tuple | list) else [result]:
            if isinstance(part, torch.Tensor):
                self.elements = max(self.elements, part.numel())
        return result


def test_chunks_change_nothing_but_the_memory(monkeypatch):
    torch.manual_seed(0)
    head = LanguageHead(6, 50, None).double()
    x = torch.randn(2, 33, 6, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 50, (2, 33))

    def run(limit: int):
        monkeypatch.setattr(heads, "CHUNK_ELEMENTS", limit)
        x.grad = head.weight.grad = None
        with Largest() as largest:
            nll, hit = head.judge(x, target)
            (nll * torch.linspace(0, 1, nll.numel()).view_as(nll)).sum().backward()
        return nll, hit, x.grad, head.weight.grad, largest.elements

    *whole, large = run(10**9)
    *chunked, small = run(50 * 8)
    for one, other in zip(whole, chunked, strict=True):
        torch.testing.assert_close(one, other)
    assert large == 2 * 33 * 50
    assert small == 50 * 8


def test_tied_head_is_the_given_matrix():
    tied = torch.nn.Parameter(torch.eye(3))
    head = LanguageHead(3, 3, tied)
    assert head.weight is tied
    assert torch.equal(head(X.view(4, 3)), X.view(4, 3))
