import itertools
import math

import pytest
import torch

from lra.models.backbone import heads
from lra.models.backbone.heads import (
    AdaptiveHead,
    Classifier,
    Interaction,
    LanguageHead,
    Pooling,
    interact,
    judge,
    pool,
)
from tests.attention import Largest

X = torch.arange(12.0).view(2, 3, 2)
KEEP = torch.tensor([[True, True, False], [False, False, False]])


@pytest.mark.parametrize(
    ("pooling", "wanted"),
    [
        (Pooling.cls, [[0.0, 1.0], [6.0, 7.0]]),
        (Pooling.mean, [[1.0, 2.0], [0.0, 0.0]]),
        (Pooling.mean_with_cls, [[1.0, 2.0], [0.0, 0.0]]),  # whose mask has the vector
        (Pooling.mean_over_padded, [[2 / 3, 4 / 3], [0.0, 0.0]]),
        (Pooling.last, [[2.0, 3.0], [0.0, 0.0]]),
        (Pooling.mean_all, [[2.0, 3.0], [8.0, 9.0]]),
        (Pooling.first, [[0.0, 1.0], [6.0, 7.0]]),
    ],
)
def test_pooling_by_hand(pooling, wanted):
    torch.testing.assert_close(pool(X, KEEP, pooling), torch.tensor(wanted))


@pytest.mark.parametrize("real", [[0], [2], [0, 2], [0, 1, 2]], ids=str)
def test_last_is_the_last_real_token_wherever_padding_stands(real):
    keep = torch.zeros(2, 3, dtype=torch.bool)
    keep[:, real] = True
    spoilt = X.masked_fill(~keep[..., None], torch.nan)
    assert torch.equal(pool(spoilt, keep, Pooling.last), X[:, real[-1]])
    assert torch.equal(pool(X, None, Pooling.last), X[:, -1])


def test_interactions_by_hand():
    pairs = torch.tensor([[[1.0, 2.0], [3.0, 5.0]]])
    assert interact(pairs, Interaction.concat).tolist() == [[1, 2, 3, 5]]
    assert interact(pairs, Interaction.product).tolist() == [[1, 2, 3, 5, 3, 10]]
    assert interact(pairs, Interaction.nli).tolist() == [[1, 2, 3, 5, 3, 10, -2, -3]]


def test_judge_by_hand():
    nll, hit = judge(torch.tensor([[0.0, math.log(3)], [2.0, 2.0]]), torch.tensor([0, 0]))
    torch.testing.assert_close(nll, torch.tensor([math.log(4), math.log(2)]))
    assert hit.tolist() == [False, True]


def test_the_classifier_drops_units_before_the_activation_in_training_alone():
    classifier = Classifier(4, 8, 3, activation=torch.sigmoid, dropout=0.5)
    x = torch.randn(5, 4)
    plain = classifier.hidden(x)
    torch.testing.assert_close(classifier.eval()(x), classifier.out(plain.sigmoid()))
    torch.manual_seed(3)
    found = classifier.train()(x)
    torch.manual_seed(3)
    dropped = torch.nn.functional.dropout(plain, 0.5)
    assert (dropped == 0).any()
    torch.testing.assert_close(found, classifier.out(dropped.sigmoid()))


def test_the_draws_of_two_layers_stay():
    torch.manual_seed(0)
    classifier = Classifier(4, 8, 3)
    torch.manual_seed(0)
    hidden, out = torch.nn.Linear(4, 8), torch.nn.Linear(8, 3)
    for layer in (hidden, out):
        torch.nn.init.xavier_uniform_(layer.weight)
    assert torch.equal(classifier.hidden.weight, hidden.weight)
    assert torch.equal(classifier.out.weight, out.weight)
    assert [*classifier.state_dict()] == ["hidden.weight", "hidden.bias", "out.weight", "out.bias"]


@pytest.mark.parametrize(
    ("layers", "names"), [(0, ["out"]), (1, ["hidden", "out"]), (2, ["hidden", "second", "out"])]
)
def test_hidden_layers_of_the_classifier(layers, names):
    torch.manual_seed(0)
    classifier = Classifier(6, 9, 3, layers)
    with torch.no_grad():
        for parameter in classifier.parameters():
            parameter.normal_()
    x = wanted = torch.randn(5, 6)
    for name in names:
        weight, bias = (
            getattr(classifier.get_submodule(name), part) for part in ("weight", "bias")
        )
        wanted = wanted @ weight.T + bias
        wanted = wanted if name == "out" else wanted.clamp(min=0)
    torch.testing.assert_close(classifier(x), wanted)
    widths = [6, *[9, 4][:layers], 3]
    count = sum((n + 1) * m for n, m in itertools.pairwise(widths))
    assert sum(parameter.numel() for parameter in classifier.parameters()) == count


def test_chunks_change_nothing_but_the_memory(monkeypatch):
    torch.manual_seed(0)
    head = LanguageHead(6, 50, None).double().eval()
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


def literal_adaptive(head: AdaptiveHead, x: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of all ids, from the paper: log p(group) + log p(id | group)."""
    groups = head.groups
    first = torch.log_softmax(x @ groups.head.weight.T, -1)
    frequent = groups.cutoffs[0]
    parts = [first[..., :frequent]]
    for number, (down, up) in enumerate(groups.tail):
        inside = torch.log_softmax(x @ down.weight.T @ up.weight.T, -1)
        parts.append(first[..., frequent + number, None] + inside)
    return torch.cat(parts, -1)


def adaptive(vocabulary: int = 50) -> AdaptiveHead:
    torch.manual_seed(0)
    return AdaptiveHead(16, vocabulary, [7, 20, 400], 2.0).double()


def test_adaptive_softmax_is_the_formula():
    head, x = adaptive(), torch.randn(2, 33, 16, dtype=torch.float64) * 8
    wanted = literal_adaptive(head, x)
    target = torch.arange(66).view(2, 33) % 50
    target[:, ::2] = wanted.argmax(-1)[:, ::2]
    torch.testing.assert_close(wanted.exp().sum(-1), torch.ones(2, 33, dtype=torch.float64))
    torch.testing.assert_close(head(x), wanted)
    nll, hit = head.eval().judge(x, target)
    torch.testing.assert_close(nll, -wanted.gather(-1, target[..., None]).squeeze(-1))
    right = wanted.argmax(-1) == target
    assert 34 <= int(right.sum()) < 66
    assert torch.equal(hit, right)


@pytest.mark.parametrize(
    ("cutoffs", "shrink", "message"),
    [
        ([], 2.0, "must be below the vocabulary size 50"),
        ([50], 2.0, r"got \[50\]; lower them, or set softmax=full"),
        ([7, 7], 2.0, "must ascend"),
        ([0, 7], 2.0, "must ascend"),
        ([7, 20], 0.5, "softmax_shrink=0.5"),
        (
            [7, 20],
            5.0,
            "from width=16 on, and the last of 2 groups .* set softmax_shrink to 1 to 4",
        ),
    ],
)
def test_cut_offs_that_make_no_sense(cutoffs, shrink, message):
    with pytest.raises(ValueError, match=message):
        AdaptiveHead(16, 50, cutoffs, shrink)
