"""Indexed attention: its limits, its choice beside padding, and the loss of its index."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.families.indexed_attention import IndexedAttention
from lra.models.families.sdpa import SDPA
from lra.models.mixer import Flow, Layout, Positions, Unsupported
from tests.attention import builder, drawn, streamed
from tests.literal.indexed import index_lists

FORMS = ("dsa", "qsa", "kpool", "msa")
make = builder(IndexedAttention, moved=0.3, causal=True, width=16, heads=4)


def small(form, **options):
    """Return a mixer whose queries read 8 tokens, in blocks of 4 where it has blocks."""
    blocks = {} if form == "dsa" else {"block": 4}
    return make(scores=form, budget=8, **blocks, **options)


@pytest.mark.parametrize("form", FORMS)
def test_a_budget_as_long_as_the_input_is_causal_attention(form):
    """Also where all tokens are chosen one by one, as in a stream."""
    mixer = make(scores=form, budget=32, **({} if form == "dsa" else {"block": 4}))
    exact, x = builder(SDPA, causal=True, width=16, heads=4)(bias=False), drawn(2, 24, 16)
    exact.load_state_dict({k: v for k, v in mixer.state_dict().items() if "index" not in k})
    wanted = exact(x, Layout())
    assert torch.equal(mixer.eval()(x, Layout()), wanted)
    torch.testing.assert_close(streamed(mixer, x, 5, 24)[0], wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("positions", [Positions.none, Positions.rotary])
@pytest.mark.parametrize("form", FORMS)
def test_padding_on_the_left_changes_nothing(form, positions):
    mixer, x = small(form, positions=positions).eval(), drawn(2, 19, 16)
    alone = mixer(x, Layout())
    for gap in (1, 3, 6):
        padded = torch.cat((drawn(2, gap, 16, seed=5), x), 1)
        keep = (torch.arange(19 + gap) >= gap).expand(2, -1)
        found = mixer(padded, Layout(keep=keep))[:, gap:]
        torch.testing.assert_close(found, alone, atol=1e-10, rtol=0)


class Case:
    """What the literal form wants to know."""

    def __init__(self, scores, budget):
        self.scores, self.budget, self.causal, self.positions = scores, budget, True, "none"


def penalty(mixer, x, layout=None):
    """Return the loss of a training pass."""
    return mixer.train().extend(Flow(x), layout or Layout()).penalties["index"]


def literal_loss(mixer, x, form, *, dense):
    """Return the mean over queries and choices of KL(attention to blocks || softmax of scores)."""
    index, block, length = mixer.index, mixer.block, x.shape[1]
    q, k, _ = mixer.project(x, Layout())
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(
        torch.ones(length, length).triu(1).bool(), -torch.inf
    )
    width, total, count = index.width, 0.0, 0
    read = index.read(x, torch.arange(length)[None])
    with torch.no_grad():
        lists = index_lists(mixer, x, Case(form, mixer.budget))
    for choice, rows in enumerate(lists):
        heads = [choice] if form == "msa" else range(read.q.shape[1])
        ours = scores[0, choice : choice + 1] if form == "msa" else scores[0]
        for t in range(length):
            tokens = [*range(t + 1)] if dense else rows[t]
            blocks = sorted({j // block for j in tokens})
            if form != "msa":  # only blocks that have ended have a score
                blocks = [m for m in blocks if (m + 1) * block - 1 <= t]
            weights = ours[:, t, tokens].softmax(-1).sum(0)
            values, masses = [], []
            for m in blocks:
                here = [j for j in range(m * block, (m + 1) * block) if j <= t]
                products = [read.q[0, h, t] @ read.tokens[0, 0, here, :width].mT for h in heads]
                if form == "msa":
                    values.append(products[0].max() / width**0.5)
                else:
                    values.append(
                        sum(
                            read.weights[0, h, t] * (p[0] / width**0.5).relu()
                            for h, p in zip(heads, products, strict=True)
                        )
                    )
                masses.append(sum(weights[tokens.index(j)] for j in here))
            count += 1
            if blocks:
                p = torch.stack(masses)
                p = p / p.sum()
                total += (p * (p.log() - torch.stack(values).log_softmax(0))).sum()
    return total / count


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("form", ["dsa", "msa"])
def test_the_loss_of_the_index_and_its_gradient(form, dense):
    mixer, x = small(form, penalty=1.0), drawn(1, 19, 16)
    mixer.alone = "index" if dense else ""
    found, wanted = penalty(mixer, x), literal_loss(mixer, x, form, dense=dense)
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=0)
    weights = [*mixer.index.parameters()]
    for ours, theirs in zip(
        torch.autograd.grad(found, weights), torch.autograd.grad(wanted, weights), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)


@pytest.mark.parametrize("form", FORMS)
def test_only_the_index_gets_a_gradient_from_its_loss_and_no_other(form):
    mixer, x = small(form, output_gate=True), drawn(2, 19, 16).requires_grad_()
    flow = mixer.train().extend(Flow(x), Layout())
    taught = {name: p for name, p in mixer.named_parameters() if name.startswith("index.")}
    others = [p for name, p in mixer.named_parameters() if name not in taught]
    of_loss = torch.autograd.grad(
        flow.penalties["index"], [x, *others], retain_graph=True, allow_unused=True
    )
    assert of_loss == (None,) * len(of_loss)
    of_output = torch.autograd.grad(
        flow.x.sum(), [*taught.values()], retain_graph=True, allow_unused=True
    )
    assert of_output == (None,) * len(of_output)
    for name, gradient in zip(
        taught, torch.autograd.grad(flow.penalties["index"], [*taught.values()]), strict=True
    ):
        assert gradient.any(), name


@pytest.mark.parametrize("form", FORMS)
def test_the_loss_falls_when_the_index_alone_is_trained(form):
    mixer, x = small(form, penalty=1.0), drawn(2, 24, 16)
    mixer.alone = "index"
    optimiser = torch.optim.Adam(mixer.index.parameters(), 1e-2)
    losses = []
    for _ in range(40):
        loss = penalty(mixer, x)
        losses.append(float(loss.detach()))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert losses[-1] < 0.8 * losses[0]


def test_a_stage_that_trains_the_index_alone_reads_all_tokens_and_evaluation_does_not():
    mixer, x = small("qsa"), drawn(2, 24, 16)
    sparse, mixer.alone = mixer.eval()(x, Layout()), "index"
    exact = builder(SDPA, causal=True, width=16, heads=4)(bias=False)
    exact.load_state_dict({k: v for k, v in mixer.state_dict().items() if "index" not in k})
    torch.testing.assert_close(mixer.train()(x, Layout()), exact(x, Layout()))
    torch.testing.assert_close(mixer.eval()(x, Layout()), sparse)


def test_without_its_loss_the_index_is_a_random_selector_as_a_remark_says():
    assert "random selector" in make(penalty=0.0, budget=16, max_length=64).traits.remark
    assert not make(penalty=0.0, budget=64, max_length=64).traits.remark  # it chooses all tokens
    assert not make(budget=16, max_length=64).traits.remark
    assert not make(penalty=0.0).train().extend(Flow(drawn(2, 24, 16)), Layout()).penalties


def test_scores_of_zero_are_ties_that_the_nearer_token_wins():
    mixer = make(scores="dsa", budget=3).eval()
    with torch.no_grad():
        mixer.index.queries.weight.zero_()
    x = drawn(1, 12, 16)
    q, k, v = mixer.project(x, Layout())
    place = torch.arange(12)
    near = (place <= place[:, None]) & (place > place[:, None] - 3)
    window = F.scaled_dot_product_attention(q, k, v, near)
    torch.testing.assert_close(mixer(x, Layout()), mixer.merge(window))


@pytest.mark.parametrize("form", FORMS)
def test_how_much_attention_the_choice_recalls(form):
    mixer, x = small(form), drawn(1, 19, 16)
    found = mixer.recall(x, Layout())
    q, k, _ = mixer.project(x, Layout())
    later = torch.ones(19, 19).triu(1).bool()
    weights = (q @ k.mT / 2).masked_fill(later, -torch.inf).softmax(-1)[0]
    with torch.no_grad():
        lists = index_lists(mixer, x, Case(form, 8))
    for choice, rows in enumerate(lists):
        mean = weights[choice] if form == "msa" else weights.mean(0)
        for t in range(19):
            masses = {}
            for m in range(t // mixer.block + 1):
                here = [j for j in range(m * mixer.block, (m + 1) * mixer.block) if j <= t]
                if form == "msa" or len(here) == mixer.block:
                    masses[m] = float(mean[t, here].sum().detach())
            top = 8 // mixer.block
            best = sum(sorted(masses.values())[-top:])
            chosen = sum(masses.get(m, 0.0) for m in {j // mixer.block for j in rows[t]})
            assert float(found.best[0, choice, t]) == pytest.approx(best, abs=1e-12)
            assert float(found.chosen[0, choice, t]) == pytest.approx(chosen, abs=1e-12)
            assert bool(found.chose[0, choice, t]) == (len(masses) > top)


REFUSED = [
    ({"scores": "nsa"}, "scores"),
    ({"budget": 0}, "budget must be at least 1: got 0"),
    ({"budget": 20}, "must be a multiple of block=16: got 20; set 32"),
    ({"block": 0}, "block must be at least 1: got 0"),
    ({"index_heads": 0}, "index_heads must be at least 1: got 0"),
    ({"index_width": 0}, "index_width must be at least 1, or null: got 0"),
    ({"key_value_heads": 0}, "key_value_heads must be at least 1, or null: got 0"),
    ({"key_value_heads": 3}, "must divide .*: got key_value_heads=3, heads=4; 1 always"),
    ({"penalty": -1.0}, "penalty must be 0 or positive: got -1.0"),
    ({"scores": "dsa", "block": 4}, "block has no effect under scores=dsa"),
    ({"scores": "msa", "index_heads": 2}, "index_heads has no effect under scores=msa"),
    ({"index_rotary": 2}, "index_rotary has no effect without rotary positions"),
    (
        {"index_rotary": 3, "positions": Positions.rotary},
        "index_rotary must be even and 0 to index_width=4: got 3; set an even number",
    ),
    (
        {"index_rotary": 6, "positions": Positions.rotary},
        "index_rotary must be even and 0 to index_width=4: got 6",
    ),
    (
        {"index_width": 5, "positions": Positions.rotary},
        "index_rotary must be even and 0 to index_width=5: got 5; set an even number",
    ),
    (
        {"scores": "kpool", "index_rotary": 2, "positions": Positions.rotary},
        "index_rotary has no effect under scores=kpool",
    ),
]
"""Options that do not go together, and what is said of them."""


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_is_refused(options, message):
    with pytest.raises((ValueError, Unsupported), match=message):
        make(**options)


def test_a_core_alone_is_refused():
    with pytest.raises(Unsupported, match=r"no function of queries.*choose moba or softmax"):
        make().attention_core()
