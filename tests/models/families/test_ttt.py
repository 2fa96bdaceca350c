"""TTT-Linear token by token, each gradient by autograd."""

import pytest

from lra.models.families.ttt import TTT
from lra.models.mixer import Site


def test_heads_of_odd_width_are_refused():
    with pytest.raises(ValueError, match="got heads of 5; change heads or head_width"):
        TTT(Site(width=15, heads=3, max_length=8))
