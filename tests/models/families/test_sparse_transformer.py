"""The stride of the Sparse Transformer."""

from lra.models.families.sparse_transformer import SparseTransformer
from lra.models.mixer import Variant
from lra.models.ops.sparse.strided_and_fixed import SparsePattern
from tests.attention import builder


def built(**given) -> SparseTransformer:
    fixed = given.get("pattern") is not SparsePattern.strided  # which has no summary
    usual = builder(SparseTransformer, width=16, heads=4, stride=6, summary=2 if fixed else None)
    return usual(**(given if fixed else given | {"summary": None}))


def test_the_stride_follows_the_longest_sequence_unless_it_is_given():
    for longest, stride in ((1, 16), (256, 16), (257, 17), (4096, 64), (16384, 128)):
        sparsity = built(stride=None, summary=None, max_length=longest).core.sparsity
        assert (sparsity.stride, sparsity.summary) == (stride, 8)
    lra = built(stride=None, summary=None, variant=Variant.lra, max_length=5000).core.sparsity
    assert (lra.stride, lra.summary) == (50, 10)
