"""sLSTM token by token, its initial values, and what its options and its state are."""

import pytest

from lra.models.families.slstm import SLSTM, RecurrentDraw
from tests.attention import builder

WIDTH, HEADS = 12, 3
built = builder(SLSTM, causal=True, recurrent=RecurrentDraw.uniform, moved=0.3)


def test_bad_options_say_what_is_wanted():
    with pytest.raises(ValueError, match="convolution counts taps, at least 2, or null: got 1"):
        built(convolution=1)
