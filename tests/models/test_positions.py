import pytest
import torch

from lra.models.families.latent_attention import LatentAttention
from lra.models.families.sdpa import SDPA
from lra.models.mixer import Layout, Site
from lra.models.positions import (
    AxialPositions,
    LearnedPositions,
    Positions,
    alibi_slopes,
    rotate,
    rotation,
)
from tests.attention import Calls


def test_rotation_of_odd_width_is_refused():
    with pytest.raises(ValueError, match="even head width: got 3"):
        rotate(torch.zeros(1, 1, 2, 3))


def test_the_base_decides_how_fast_pairs_turn():
    x = torch.zeros(1, 5, 4, dtype=torch.float64)
    turn = rotation(x, 4, base=100.0)
    place = torch.arange(5, dtype=torch.float64)
    wanted = torch.stack((place, place / 10), -1)[None, None]
    torch.testing.assert_close(torch.atan2(turn.sin, turn.cos), torch.atan2(*sin_cos(wanted)))
    assert torch.equal(rotation(x, 4).cos, rotation(x, 4, base=10_000.0).cos)


def sin_cos(angle):
    return angle.sin(), angle.cos()


def test_learned_positions_name_their_end():
    table = LearnedPositions(4, 8)
    assert torch.equal(table(torch.tensor([[0, 3]]))[0], table.table[[0, 3]])
    with pytest.raises(ValueError, match="for at most 4 tokens: got 5"):
        table(torch.zeros(1, 5, dtype=torch.long))


@pytest.mark.parametrize("heads", [1, 2, 8, 12])
def test_alibi_slopes_are_those_of_the_paper(heads: int) -> None:
    slopes = alibi_slopes(heads)
    assert slopes.shape == (heads,)
    if heads == 8:
        torch.testing.assert_close(slopes, torch.tensor([2.0**-i for i in range(1, 9)]))
    if heads == 12:  # those of 8, then every other one of 16
        wanted = [2.0**-i for i in range(1, 9)] + [2.0**-i for i in (0.5, 1.5, 2.5, 3.5)]
        torch.testing.assert_close(slopes, torch.tensor(wanted))


def test_axial_positions_equal_the_table_that_they_factorise() -> None:
    axial = AxialPositions(12, 6, [3, 4], [2, 4])
    dense = torch.cat(
        (
            axial.rows_table.repeat_interleave(4, dim=0),
            axial.columns_table.repeat(3, 1),
        ),
        dim=1,
    )
    assert torch.equal(axial(torch.arange(12)[None])[0], dense)
    assert sum(p.numel() for p in axial.parameters()) == 3 * 2 + 4 * 4
    assert AxialPositions(1000, 8).max_length >= 1000
    assert AxialPositions(1, 8).max_length == 1


def test_axial_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="has 12 positions, but the model needs 13"):
        AxialPositions(13, 6, [3, 4])
    with pytest.raises(ValueError, match="add up to width=6"):
        AxialPositions(12, 6, [3, 4], [2, 5])


@pytest.mark.parametrize("family", [SDPA, LatentAttention])
def test_queries_and_keys_share_one_rotation(family):
    site = Site(width=16, heads=2, max_length=8, positions=Positions.rotary)
    with torch.no_grad(), Calls() as calls:
        family(site)(torch.zeros(2, 8, 16), Layout())
    assert calls.names.count("cos") == calls.names.count("sin") == 1
