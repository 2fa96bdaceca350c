"""Funnel's attention of pooled queries, against a literal form of the paper's appendix A.2."""

import pytest
import torch
from torch import Tensor

from lra.models.families.funnel import Funnel
from lra.models.mixer import Layout, Positions
from lra.models.positions import At, Spacing
from tests.attention import builder, compare, drawn
from tests.literal.funnel import of_row

WIDTH, HEADS = 12, 3
built = builder(
    Funnel, width=WIDTH, heads=HEADS, max_length=20, positions=Positions.transformer_xl, moved=0.3
)


def agree(found: Tensor, wanted: Tensor, mixer: Funnel, *inputs: Tensor) -> None:
    compare(found, wanted, [*inputs, *mixer.parameters()], atol=1e-10)


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
    wanted = of_row(mixer, x[0], source[0], places, source_places, cls=cls)
    agree(found[0], wanted, mixer, x, source)


def test_queries_off_the_steps_of_keys_are_refused() -> None:
    mixer, x = built(cls=False), drawn(1, 4, WIDTH)
    with pytest.raises(ValueError, match="a whole number of key steps away"):
        mixer.attend(x, Layout(), x, Layout(), At(Spacing(1, 2), Spacing(0, 2)))


def test_sinusoids_drop_in_training_alone() -> None:
    mixer, x = built(cls=False, position_dropout=0.5), drawn(1, 6, WIDTH)
    plain = built(cls=False)
    assert torch.equal(mixer(x, Layout()), plain(x, Layout()))
    assert not torch.equal(mixer.train()(x, Layout()), plain(x, Layout()))
