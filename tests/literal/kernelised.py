"""Gaussian attention is that form of `skyformer`."""

from tests.literal.skyformer import GRIDS as BOTH, literal

__all__ = ["literal"]
GRIDS = BOTH[1:]
