import pytest
import torch

from lra.models.state import detach, join, map_state, reset, select, size_bytes


def state(rows: int = 3, offset: float = 0.0):
    first = torch.arange(rows * 4.0).view(rows, 4) + offset
    count = torch.arange(rows) + int(offset)
    return (first, (count, None)), ()


def same(left, right) -> bool:
    if left is None or right is None:
        return left is right
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return len(left) == len(right) and all(map(same, left, right))


def test_select_then_join_restores():
    whole = state()
    assert same(join(select(whole, slice(0, 1)), select(whole, slice(1, 3))), whole)


def test_select_by_index_reorders():
    (first, (count, nothing)), empty = select(state(), torch.tensor([2, 0]))
    assert count.tolist() == [2, 0]
    assert first[0].tolist() == [8.0, 9.0, 10.0, 11.0]
    assert nothing is None
    assert empty == ()


def test_reset_replaces_the_chosen_rows_only():
    rows = torch.tensor([False, True, False])
    (first, (count, _)), _ = reset(state(), state(offset=100), rows)
    assert count.tolist() == [0, 101, 2]
    assert first[:, 0].tolist() == [0.0, 104.0, 8.0]


def test_detach_cuts_the_history():
    leaf = torch.ones(2, 3, requires_grad=True)
    cut = detach((leaf * 2, None))
    assert not cut[0].requires_grad
    assert cut[0].tolist() == [[2.0] * 3] * 2


def test_size_counts_every_tensor():
    assert size_bytes(state()) == 3 * 4 * 4 + 3 * 8
    assert size_bytes(None) == 0


@pytest.mark.parametrize(
    "other", [None, torch.zeros(1), (torch.zeros(1),), (torch.zeros(1), None)], ids=repr
)
def test_states_of_different_models_do_not_mix(other):
    with pytest.raises(ValueError, match="only if they are nested in the same way"):
        map_state(torch.add, (torch.zeros(1), torch.zeros(1)), other)
