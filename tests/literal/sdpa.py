"""Exact attention by PyTorch's kernel is that of `softmax`."""

from tests.literal.softmax import GRIDS, literal

__all__ = ["GRIDS", "literal"]
