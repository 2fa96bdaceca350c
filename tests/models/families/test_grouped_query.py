"""Grouped-query attention is softmax attention whose heads have equal keys and values."""

import pytest

from lra.models.families.grouped_query import GroupedQueryAttention
from lra.models.mixer import Site

SITE = {"width": 24, "heads": 6, "max_length": 32}


@pytest.mark.parametrize("groups", [0, 4, 12])
def test_heads_that_do_not_divide_are_refused(groups):
    with pytest.raises(ValueError, match=f"key_value_heads must divide .*: got {groups} of 6"):
        GroupedQueryAttention(Site(**SITE), key_value_heads=groups)
