import math

import numpy as np
import pytest

from lra.tasks.data.masking import draw_tokens, words_of


def test_about_fifteen_percent_are_masked_at_every_place():
    index, there = np.arange(4000), np.ones((4000, 60), bool)
    drawn = draw_tokens(there, index, seed=5, share=0.15)
    assert drawn.mean() == pytest.approx(0.15, abs=0.004)
    assert np.abs(drawn.mean(0) - 0.15).max() < 5 * math.sqrt(0.15 * 0.85 / 4000)
    assert abs(np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 0.01
    again = draw_tokens(there[:2, :30], index[7:9], seed=5, share=0.15)
    assert np.array_equal(again[:, :20], drawn[7:9, :20])


def test_one_token_is_masked_at_least_and_padding_never():
    there = np.zeros((3000, 6), bool)
    there[:, :2] = True
    drawn = draw_tokens(there, np.arange(3000), seed=0, share=0.15)
    assert drawn.any(1).all()
    assert not (drawn & ~there).any()
    assert drawn[:, 0].mean() == pytest.approx(0.5 * (1 + 0.15**2), abs=0.03)
    assert len(np.unique(words_of(np.arange(3000), 6, seed=0))) == 18000
