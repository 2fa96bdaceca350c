"""Funnel's attention, against a literal form of the paper's appendix A.2."""

import math

import pytest
import torch
from torch import Tensor

from lra.models.families.funnel import Funnel
from lra.models.mixer import Layout, Positions, Site, Unsupported
from lra.models.positions import At, Spacing
from tests.attention import builder, compare, drawn

WIDTH, HEADS = 8, 2
HEAD = WIDTH // HEADS
built = builder(
    Funnel, width=WIDTH, heads=HEADS, max_length=20, positions=Positions.transformer_xl, moved=0.3
)


def sinusoid(distance: int) -> Tensor:
    """All sines stand before all cosines."""
    angles = [distance / 10000 ** (2 * i / WIDTH) for i in range(WIDTH // 2)]
    values = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    return torch.tensor(values, dtype=torch.float64)


def literal(
    mixer: Funnel, x: Tensor, source: Tensor, at: list[int], source_at: list[int], *, cls: bool
) -> Tensor:
    """Return what each token of one row gets, pair by pair."""
    relative = mixer.core.relative
    q = mixer.q_proj(x).view(-1, HEADS, HEAD)
    k, v = (layer(source).view(-1, HEADS, HEAD) for layer in (mixer.k_proj, mixer.v_proj))
    rows = []
    for i, here in enumerate(at):
        heads = []
        for h in range(HEADS):
            scores = []
            for j, there in enumerate(source_at):
                score = (q[i, h] + relative.biases.content[h]) @ k[j, h]
                if not (cls and (i == 0 or j == 0)):
                    r = (relative.r_proj.weight @ sinusoid(here - there)).view(HEADS, HEAD)[h]
                    score = score + (q[i, h] + relative.biases.position[h]) @ r
                    if cls:
                        score = score + (
                            (q[i, h] + relative.kind_bias[h]) @ relative.kind_vector[h]
                        )
                scores.append(score / math.sqrt(HEAD))
            weights = torch.stack(scores).softmax(0)
            heads.append(sum(w * v[j, h] for j, w in enumerate(weights)))
        rows.append(mixer.out_proj(torch.cat(heads)))
    return torch.stack(rows)


def agree(found: Tensor, wanted: Tensor, mixer: Funnel, *inputs: Tensor) -> None:
    compare(found, wanted, [*inputs, *mixer.parameters()], atol=1e-10)


@pytest.mark.parametrize("cls", [False, True])
def test_one_sequence_is_the_literal_form(cls: bool) -> None:
    mixer, x = built(cls=cls), drawn(2, 6, WIDTH).requires_grad_()
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    found = mixer(x, Layout(keep=keep))
    parts = []
    for row, length in ((0, 6), (1, 4)):
        here = x[row, :length]
        place = list(range(length))
        parts.append(literal(mixer, here, here, place, place, cls=cls))
    agree(torch.cat((found[0], found[1, :4])), torch.cat(parts), mixer, x)


@pytest.mark.parametrize("cls", [False, True])
@pytest.mark.parametrize(("queries", "step"), [(3, 1), (4, 2), (2, 4)])
def test_fewer_queries_over_twice_as_many_keys(queries: int, step: int, cls: bool) -> None:
    mixer, keys = built(cls=cls), 2 * queries - cls
    x, source = drawn(1, queries, WIDTH).requires_grad_(), drawn(1, keys, WIDTH, seed=1)
    source.requires_grad_()
    first, first_key = (1 - 2 * step, 1 - step) if cls else (0, 0)
    at = At(Spacing(first, 2 * step), Spacing(first_key, step))
    found = mixer.attend(x, Layout(), source, Layout(), at)
    places = [first + 2 * step * i for i in range(queries)]
    source_places = [first_key + step * j for j in range(keys)]
    wanted = literal(mixer, x[0], source[0], places, source_places, cls=cls)
    agree(found[0], wanted, mixer, x, source)


def test_a_step_counts_tokens_and_not_pools() -> None:
    mixer, x = built(cls=True), drawn(1, 5, WIDTH).requires_grad_()
    found = mixer.attend(x, Layout(), x, Layout(), At(Spacing(-3, 4), Spacing(-3, 4)))
    place = [-3, 1, 5, 9, 13]
    agree(found[0], literal(mixer, x[0], x[0], place, place, cls=True), mixer, x)


def test_the_cls_vector_has_no_distance() -> None:
    """What it gets is the same wherever the tokens stand; what they get is not."""
    mixer, x = built(cls=True), drawn(1, 5, WIDTH)
    moved = mixer.attend(x, Layout(), x, Layout(), At(Spacing(0, 3), Spacing(0, 3)))
    here = mixer(x, Layout())
    torch.testing.assert_close(moved[:, 0], here[:, 0], atol=1e-12, rtol=0)
    assert (moved[:, 1:] - here[:, 1:]).abs().max() > 1e-3


def test_queries_off_the_steps_of_keys_are_refused() -> None:
    mixer, x = built(cls=False), drawn(1, 4, WIDTH)
    with pytest.raises(ValueError, match="queries must stand on steps of the keys"):
        mixer.attend(x, Layout(), x, Layout(), At(Spacing(1, 2), Spacing(0, 2)))


def test_sinusoids_drop_in_training_alone() -> None:
    mixer, x = built(cls=False, position_dropout=0.5), drawn(1, 6, WIDTH)
    plain = built(cls=False)
    assert torch.equal(mixer(x, Layout()), plain(x, Layout()))
    assert not torch.equal(mixer.train()(x, Layout()), plain(x, Layout()))


def test_what_it_cannot_do_is_refused() -> None:
    site = {"width": WIDTH, "heads": HEADS, "max_length": 20}
    with pytest.raises(Unsupported, match="no causal form: choose a task with the whole sequence"):
        Funnel(Site(causal=True, **site))
    with pytest.raises(Unsupported, match="position_dropout has nothing to act on"):
        Funnel(Site(**site), position_dropout=0.1)
    with pytest.raises(ValueError, match=r"position_dropout must lie in \[0, 1\): got 1.0"):
        Funnel(Site(positions=Positions.transformer_xl, **site), position_dropout=1.0)
