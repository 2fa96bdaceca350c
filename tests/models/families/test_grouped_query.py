"""Grouped-query attention is softmax attention whose heads have equal keys and values."""

import pytest

from lra.models.contract.counting import count_operations
from lra.models.families.grouped_query import GroupedQueryAttention
from lra.models.mixer import Layout, Site
from tests.attention import drawn

SITE = {"width": 24, "heads": 6, "max_length": 32}
LENGTH = 11


def built(groups: int) -> GroupedQueryAttention:
    return GroupedQueryAttention(Site(**SITE), key_value_heads=groups).double()


def test_projections_cost_what_they_project():
    x = drawn(1, LENGTH, 24)
    work = {
        groups: count_operations(lambda groups=groups: built(groups)(x, Layout()))
        for groups in (1, 6)
    }
    assert work[6] - work[1] == 2 * 2 * LENGTH * 24 * (24 - 4)


@pytest.mark.parametrize("groups", [0, 4, 12])
def test_heads_that_do_not_divide_are_refused(groups):
    with pytest.raises(ValueError, match=f"key_value_heads must divide .*: got {groups} of 6"):
        built(groups)
