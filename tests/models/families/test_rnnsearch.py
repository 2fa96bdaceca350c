"""RNNsearch against its literal form, padding, what it learns, greedy decoding, refusals."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lra.models.backbone.model import Backbone, BackboneConfig, Head, Positions, TaskFacts
from lra.models.families.rnnsearch import RNNSearch
from lra.models.mixer import Flow, Layout, Site, Unsupported
from tests.attention import compare, drawn
from tests.literal.rnnsearch import literal

SOURCE, TARGET, VOCABULARY = 5, 4, 9
CONFIG = BackboneConfig(width=8, positions=Positions.none)
FACTS = TaskFacts(
    head=Head.sequence_to_sequence, vocabulary=VOCABULARY, classes=VOCABULARY, padded=True,
    max_length=SOURCE + TARGET, masks=frozenset({"prefix"}), source_length=SOURCE,
    target_length=TARGET, sources_vary=True,
)  # fmt: skip
PREFIX, ENDS = torch.tensor([5, 2, 0, 3]), torch.tensor([9, 6, 3, 7])
KEEP = torch.arange(SOURCE + TARGET) < ENDS[:, None]


def stack_of(**options) -> RNNSearch:
    torch.manual_seed(0)
    site = Site(width=8, heads=2, max_length=9, source_length=SOURCE, target_length=TARGET)
    stack = RNNSearch(site, CONFIG, **options).double().eval()
    for seed, parameter in enumerate(stack.parameters()):
        parameter.data += 0.3 * drawn(*parameter.shape, seed=seed)
    return stack


@pytest.mark.parametrize("options", [{}, {"hidden_width": 6}])
def test_rows_of_all_lengths_are_the_literal_form(options) -> None:
    stack, x = stack_of(**options), drawn(4, SOURCE + TARGET, 8).requires_grad_()
    found = stack(Flow(x), Layout(keep=KEEP, prefix=PREFIX)).x
    real, wanted = [], []
    for row, (cut, end) in enumerate(zip(PREFIX.tolist(), ENDS.tolist(), strict=True)):
        real.append(found[row, cut:end])
        wanted.append(literal(stack, x[row, :cut], x[row, cut:end]))
        assert not found[row, :cut].any()
    compare(torch.cat(real), torch.cat(wanted), [x, *stack.parameters()], atol=1e-11)


def test_padding_and_later_tokens_have_no_effect() -> None:
    stack, x = stack_of(), drawn(4, SOURCE + TARGET, 8)
    layout = Layout(keep=KEEP, prefix=PREFIX)
    plain = stack(Flow(x), layout).x
    loud = torch.where(KEEP[..., None], x, 1e30)
    assert torch.equal(stack(Flow(loud), layout).x[KEEP], plain[KEEP])
    for row, cut in enumerate(PREFIX.tolist()):
        for changed in range(int(ENDS[row])):
            other = x.clone()
            other[row, changed] += 1
            moved = (stack(Flow(other), layout).x - plain).abs().amax(-1) > 0
            first = cut if changed < cut else changed
            places = moved[row, : ENDS[row]].nonzero().flatten().tolist()
            assert places == list(range(first, int(ENDS[row])))


def reversals(seed: int) -> tuple[Tensor, Tensor]:
    """Return rows of three symbols, a 0, and the symbols reversed; and the answers."""
    source = torch.randint(1, 7, (64, 3), generator=torch.Generator().manual_seed(seed))
    edge, answer = torch.zeros(64, 1, dtype=torch.long), source.flip(1)
    return torch.cat((source, edge, answer), 1), torch.cat((0 * source, answer, edge), 1)


def test_it_learns_to_reverse_and_to_write_token_by_token() -> None:
    facts = replace(
        FACTS, padded=False, sources_vary=False, source_length=3, target_length=4, vocabulary=7
    )
    config = replace(CONFIG, width=24)
    model = Backbone(config, facts, [], stack=RNNSearch, seed=0).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    layout = Layout(prefix=torch.full((64,), 3))
    for step in range(60):
        tokens, target = reversals(step)
        optimiser.zero_grad()
        model(tokens[:, None], target, layout=layout).nll[:, 3:].mean().backward()
        optimiser.step()
    tokens, target = reversals(1000)
    text = tokens[:, :4]
    with torch.no_grad():
        for _ in range(4):
            logits, _ = model.eval().predict(text[:, None], layout=layout)
            text = torch.cat((text, logits[:, -1:].argmax(-1)), 1)
    assert (text[:, 4:] == target[:, 3:]).float().mean() > 0.98


def test_what_has_no_source_is_refused() -> None:
    plain = replace(FACTS, head=Head.language_modelling, masks=frozenset(), padded=False)
    for facts in (plain, replace(plain, head=Head.classification)):
        with pytest.raises(Unsupported, match="choose a sequence-to-sequence task, such as rever"):
            Backbone(CONFIG, facts, [], stack=RNNSearch, seed=0)
    rotary = replace(CONFIG, positions=Positions.rotary)
    with pytest.raises(Unsupported, match="does not support rotary positions"):
        Backbone(rotary, FACTS, [], stack=RNNSearch, seed=0)
    with pytest.raises(Unsupported, match="arranges its layers itself"):
        Backbone(replace(CONFIG, layer_groups=1), FACTS, [], stack=RNNSearch, seed=0)
    model = Backbone(CONFIG, FACTS, [], stack=RNNSearch, seed=0)
    with pytest.raises(Unsupported, match="no state that continues from token to token"):
        model.initial_state(1, 4)
    with pytest.raises(Unsupported, match=r"pass layout\.prefix, and no state"):
        model.stack(Flow(drawn(1, 5, 8).float()), Layout())
    with pytest.raises(ValueError, match="hidden_width must be at least 1, or null: got 0"):
        stack_of(hidden_width=0)
