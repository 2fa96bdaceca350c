"""How much one attention function differs from another on the same queries, keys and values.

The matrix A of an attention function is its output for V = identity: row i has the weights of
query i. A function that is linear in the values has the output o = A v. YOSO divides each row of
the output by its Euclidean norm, so the rows of its matrix have norm 1.
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
        """Return all three on another device or in another number format, as `Tensor.to` does."""
        return QueryKeyValue(*(x.to(*where) for x in self))

    def sequence(self, number: int) -> "QueryKeyValue":
        """Return sequence `number` as a batch of one sequence."""
        return QueryKeyValue(*(x[number : number + 1] for x in self))


def random_heads(
    sequences: int, heads: int, length: int, width: int, *, deviation: float, seed: int
) -> QueryKeyValue:
    """Return random normal q and k with standard deviation `deviation`, and v with 1."""

    def draw(name: str) -> Tensor:
        generator = torch.Generator().manual_seed(derive(seed, f"random {name}"))
        shape = (sequences, heads, length, width)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q, k, v = (draw(name) for name in NAMES)
    return QueryKeyValue(q * deviation, k * deviation, v)


def trained_heads(
    model: Backbone, batches: Iterable[Batch], *, sequences: int, length: int
) -> list[QueryKeyValue]:
    """Return queries, keys and values of each layer of a model, at the first `length` positions.

    The model reads whole examples. Examples with fewer real tokens than `length` are skipped, so
    padding is not measured; a CLS vector counts as a token.

    Args:
        model: a model whose layers all have a core of queries, keys and values.
        batches: examples.
        sequences: how many sequences are returned.
        length: how many positions of each sequence are returned.

    Raises:
        Unsupported: there are fewer than `sequences` examples of this length.
    """
    core_inputs: list[tuple[Tensor, Tensor, Tensor, Layout]] = []

    def record_inputs(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        del module
        core_inputs.append(cast(Any, inputs))

    cores = [cast(nn.Module, cast(Any, block).mixer.core) for block in model.blocks]
    handles = [core.register_forward_pre_hook(record_inputs) for core in cores]
    # By layer: a block may run several times, as several layers.
    layers: list[list[QueryKeyValue]] = [[] for _ in model.traits]
    count = 0
    try:
        with torch.inference_mode():
            for batch in batches:
                core_inputs.clear()
                model.eval()(batch.tokens, batch.target, batch.keep)
                rows = _select_long_rows(core_inputs[0], length)[: sequences - count]
                for parts, (*qkv, _layout) in zip(layers, core_inputs, strict=True):
                    parts.append(QueryKeyValue(*(x[rows, :, :length].double() for x in qkv)))
                count += len(rows)
                if count == sequences:
                    break
    finally:
        for handle in handles:
            handle.remove()
    if count < sequences:
        raise Unsupported(
            f"the test split has {count} sequences of {length} tokens, but runner.sequences asks "
            f"for {sequences}; lower runner.lengths or runner.sequences"
        )
    return [
        QueryKeyValue(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
        for parts in layers
    ]


def _select_long_rows(
    inputs: tuple[Tensor, Tensor, Tensor, Layout], length: int
) -> Int[Tensor, " r"]:
    """Return the numbers of the rows whose first `length` tokens are real, without padding."""
    q, _, _, layout = inputs
    if q.shape[2] < length:
        return torch.arange(0)
    if layout.keep is None:
        return torch.arange(len(q))
    return layout.keep[:, :length].all(1).nonzero()[:, 0]


def output_of(core: Core, inputs: QueryKeyValue) -> Float[Tensor, "b h l v"]:
    """Return the output of a core, computed without gradients; `inputs` have no padding."""
    with torch.inference_mode():
        return core(inputs.q, inputs.k, inputs.v, Layout())


def implied_matrix(core: Core, inputs: QueryKeyValue) -> Float[Tensor, "b h l l"]:
    """Return the attention weights of every query, which are the output for V = identity."""
    call = CoreCall(inputs.q, inputs.k, Layout())
    with torch.inference_mode():
        ((_, matrix),) = weights(core, call, keys_at_once=inputs.k.shape[2])  # all in one part
    return matrix


class Heaviest(NamedTuple):
    """The t keys with the largest exact weights of every query, largest first."""

    mass: Float[Tensor, "b h l t"]
    """Exact weights of these keys."""
    key: Int[Tensor, "b h l t"]
    """Positions of these keys."""

    @classmethod
    def find(cls, exact: Float[Tensor, "b h l s"], most: int) -> "Heaviest":
        """Return the `most` heaviest keys of every query; all keys if there are fewer."""
        return cls(*exact.topk(min(most, exact.shape[-1]), dim=-1))

    def retained(
        self, approximate: Float[Tensor, "b h l s"], ranks: Sequence[int]
    ) -> list[tuple[float, float]]:
        """Return two sums over the k heaviest keys of all queries, for each k in `ranks`.

        The first sum is the recalled weight: min(a, max(b, 0)) for a key with exact weight a and
        approximate weight b. So too large a weight of one key cannot replace the lost weight of
        another. The second sum is the exact weight.
        """
        recalled = approximate.gather(-1, self.key).clamp(min=0).minimum(self.mass)
        return [(float(recalled[..., :k].sum()), float(self.mass[..., :k].sum())) for k in ranks]


class CoreErrors(NamedTuple):
    """Errors of an approximation, over all sequences."""

    output: float
    """Relative Frobenius error of the output."""
    matrix: float | None
    """Relative Frobenius error of the matrix; None if it was not computed."""
    recall: tuple[float, ...] = ()
    """Recalled fraction of the weight of the k heaviest keys, for each k."""


class Exact:
    """The exact results of some sequences, with which approximations are compared.

    `matrices` says whether attention matrices are compared, too, and `ranks` has the numbers k of
    heaviest keys for the recalled weight.
    """

    def __init__(
        self, core: Core, inputs: QueryKeyValue, *, matrices: bool, ranks: Sequence[int] = ()
    ) -> None:
        self.inputs, self.ranks = inputs, ranks
        parts = [inputs.sequence(i) for i in range(len(inputs.q))]
        self.outputs = [output_of(core, part) for part in parts]
        self.matrices = [implied_matrix(core, part) for part in parts] if matrices else []
        self.heaviest = [Heaviest.find(matrix, max(ranks, default=1)) for matrix in self.matrices]

    def errors(self, core: Core) -> CoreErrors:
        """Return the errors of a core. It is run on one sequence at a time, to save memory."""
        output = _RelativeError()
        matrix = _RelativeError()
        retained = [[0.0, 0.0] for _ in self.ranks]
        for number, exact in enumerate(self.outputs):
            part = self.inputs.sequence(number)
            output.add(output_of(core, part), exact)
            if not self.matrices:
                continue
            implied = implied_matrix(core, part)
            matrix.add(implied, self.matrices[number])
            recalls = self.heaviest[number].retained(implied, self.ranks)
            for total, (recalled, exact_weight) in zip(retained, recalls, strict=True):
                total[0] += recalled
                total[1] += exact_weight
        if not self.matrices:
            return CoreErrors(output.value(), None)
        return CoreErrors(output.value(), matrix.value(), tuple(a / b for a, b in retained))


class _RelativeError:
    """||approximate - exact|| / ||exact|| (Frobenius norms) over all pairs that were added."""

    def __init__(self) -> None:
        self.difference = self.exact = 0.0

    def add(self, approximate: Tensor, exact: Tensor) -> None:
        """Add a pair of tensors of one shape."""
        self.difference += float((approximate - exact).square().sum())
        self.exact += float(exact.square().sum())

    def value(self) -> float:
        """Return the ratio."""
        return math.sqrt(self.difference / self.exact)
