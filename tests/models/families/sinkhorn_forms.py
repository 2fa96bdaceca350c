"""Small mixers for the tests of Sinkhorn attention."""

from lra.models.families.sinkhorn import Sinkhorn
from tests.attention import builder

BLOCK = 4


built = builder(Sinkhorn, block=BLOCK)
