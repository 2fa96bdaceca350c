"""How much one attention function differs from another on the same queries, keys and values.

The matrix A of an attention function is what it makes of V = identity: row i holds the weights of
query i. For functions that are linear in the values o = A v; YOSO, which divides a row of the
output by its Euclidean norm, has rows of norm 1 here.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lra.models.backbone.attention_weights import CoreCall, weights
from lra.models.backbone.model import Backbone
from lra.models.backbone.seeding import derive
from lra.models.mixer import Layout, Unsupported
from lra.models.multi_head import Core
from lra.tasks.task import Batch

NAMES = ("q", "k", "v")


class QueryKeyValue(NamedTuple):
    """Queries, keys and values of some sequences, without padding."""

    q: Float[Tensor, "b h l k"]
    k: Float[Tensor, "b h l k"]
    v: Float[Tensor, "b h l k"]

    def to(self, *where: Any) -> "QueryKeyValue":
        """Move all three, or change their number format."""
        return QueryKeyValue(*(x.to(*where) for x in self))

    def sequence(self, number: int) -> "QueryKeyValue":
        """Return one of the sequences, as a batch of one."""
        return QueryKeyValue(*(x[number : number + 1] for x in self))


def random_heads(
    sequences: int, heads: int, length: int, width: int, *, deviation: float, seed: int
) -> QueryKeyValue:
    """Draw independent normal entries: q and k with this standard deviation, v with 1."""

    def draw(name: str) -> Tensor:
        generator = torch.Generator().manual_seed(derive(seed, f"random {name}"))
        shape = (sequences, heads, length, width)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q, k, v = (draw(name) for name in NAMES)
    return QueryKeyValue(q * deviation, k * deviation, v)


def trained_heads(
    model: Backbone, batches: Iterable[Batch], *, sequences: int, length: int
) -> list[QueryKeyValue]:
    """Return the inputs of the cores in each layer of a model, cut to the first `length` positions.

    The model reads whole examples. Those with fewer real tokens than `length` are left out, so that
    no padding is measured; a CLS vector counts as a token.

    Args:
        model: with cores of queries, keys and values in every layer.
        batches: examples.
        sequences: how many to take.
        length: positions.

    Raises:
        Unsupported: there are not as many examples of that length.
    """
    seen: list[tuple[Tensor, Tensor, Tensor, Layout]] = []

    def note(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        del module
        seen.append(cast(Any, inputs))

    cores = [cast(nn.Module, cast(Any, block).mixer.core) for block in model.blocks]
    handles = [core.register_forward_pre_hook(note) for core in cores]
    heads: list[list[QueryKeyValue]] = [[] for _ in model.traits]  # a block may be several layers
    count = 0
    try:
        with torch.inference_mode():
            for batch in batches:
                seen.clear()
                model.eval()(batch.tokens, batch.target, batch.keep)
                rows = _long_enough(seen[0], length)[: sequences - count]
                for one, (*qkv, _) in zip(heads, seen, strict=True):
                    one.append(QueryKeyValue(*(x[rows, :, :length].double() for x in qkv)))
                count += len(rows)
                if count == sequences:
                    break
    finally:
        for handle in handles:
            handle.remove()
    if count < sequences:
        raise Unsupported(
            f"the test split has {count} sequences of {length} tokens: wanted {sequences}; lower "
            "runner.lengths or runner.sequences"
        )
    return [QueryKeyValue(*(torch.cat(parts) for parts in zip(*one, strict=True))) for one in heads]


def _long_enough(inputs: tuple[Tensor, Tensor, Tensor, Layout], length: int) -> Int[Tensor, " r"]:
    """Return the rows whose first `length` tokens are there and real."""
    q, _, _, layout = inputs
    if q.shape[2] < length:
        return torch.arange(0)
    if layout.keep is None:
        return torch.arange(len(q))
    return layout.keep[:, :length].all(1).nonzero()[:, 0]


def output_of(core: Core, inputs: QueryKeyValue) -> Float[Tensor, "b h l v"]:
    """Run a core without gradients and without padding."""
    with torch.inference_mode():
        return core(inputs.q, inputs.k, inputs.v, Layout())


def implied_matrix(core: Core, inputs: QueryKeyValue) -> Float[Tensor, "b h l l"]:
    """Return the attention weights of every query: the output of the core for V = identity."""
    call = CoreCall(inputs.q, inputs.k, Layout())
    with torch.inference_mode():
        ((_, matrix),) = weights(core, call, keys_at_once=inputs.k.shape[2])
    return matrix


class Heaviest(NamedTuple):
    """The keys with the largest exact weights of every query, in falling order."""

    mass: Float[Tensor, "b h l t"]
    key: Int[Tensor, "b h l t"]

    @classmethod
    def find(cls, exact: Float[Tensor, "b h l s"], most: int) -> "Heaviest":
        """Find the `most` heaviest keys, or all."""
        return cls(*exact.topk(min(most, exact.shape[-1]), dim=-1))

    def retained(
        self, approximate: Float[Tensor, "b h l s"], ranks: Sequence[int]
    ) -> list[tuple[float, float]]:
        """Return, for each number of keys, the weight that is recalled and the exact weight.

        Of a key with exact weight a and approximate weight b, min(a, b) is kept, and nothing where
        b is negative: weight that was moved to a key does not make up for what others lost.
        """
        kept = approximate.gather(-1, self.key).clamp(min=0).minimum(self.mass)
        return [(float(kept[..., :k].sum()), float(self.mass[..., :k].sum())) for k in ranks]


class CoreErrors(NamedTuple):
    """Sums over sequences: squared differences, squares, and weights."""

    output: float
    """Relative Frobenius error of the output."""
    matrix: float | None
    """Relative Frobenius error of the matrix; None if it was not computed."""
    recall: tuple[float, ...] = ()
    """Recalled fraction of the weight of the heaviest keys, by their number."""


class Exact:
    """The exact outputs of some sequences and, if asked for, their matrices."""

    def __init__(
        self, core: Core, inputs: QueryKeyValue, *, matrices: bool, ranks: Sequence[int] = ()
    ) -> None:
        self.inputs, self.ranks = inputs, ranks
        parts = [inputs.sequence(i) for i in range(len(inputs.q))]
        self.outputs = [output_of(core, part) for part in parts]
        self.matrices = [implied_matrix(core, part) for part in parts] if matrices else []
        self.heaviest = [Heaviest.find(matrix, max(ranks, default=1)) for matrix in self.matrices]

    def errors(self, core: Core) -> CoreErrors:
        """Compare a core with the exact one, one sequence at a time."""
        output = _Relative()
        matrix = _Relative()
        retained = [[0.0, 0.0] for _ in self.ranks]
        for number, exact in enumerate(self.outputs):
            part = self.inputs.sequence(number)
            output.add(output_of(core, part), exact)
            if not self.matrices:
                continue
            implied = implied_matrix(core, part)
            matrix.add(implied, self.matrices[number])
            for total, sums in zip(
                retained, self.heaviest[number].retained(implied, self.ranks), strict=True
            ):
                total[0] += sums[0]
                total[1] += sums[1]
        if not self.matrices:
            return CoreErrors(output.value(), None)
        return CoreErrors(output.value(), matrix.value(), tuple(a / b for a, b in retained))


class _Relative:
    """||difference|| / ||exact|| over all that was added."""

    def __init__(self) -> None:
        self.difference = self.exact = 0.0

    def add(self, approximate: Tensor, exact: Tensor) -> None:
        """Add a pair."""
        self.difference += float((approximate - exact).square().sum())
        self.exact += float(exact.square().sum())

    def value(self) -> float:
        """Return the ratio."""
        return math.sqrt(self.difference / self.exact)
