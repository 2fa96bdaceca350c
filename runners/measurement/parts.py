"""The parts of a model: parameters and multiply-adds of a forward pass, part by part.

Both are counted on PyTorch's device `meta`, where tensors have shapes but no data. A shared
parameter counts once. Multiply-adds are half the operations of `lra.models.contract.counting`.
Parts of a layer are its mixer, its feed-forward network and its norms.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from lra.models.backbone.adaptive import AdaptiveEmbedding
from lra.models.backbone.model import Backbone
from lra.models.backbone.stack import Stack
from lra.models.contract.counting import OperationCounter
from lra.models.contract.trace import Tracer

CALLED = ("forward", "extend", "attend")
"""Methods of a mixer whose operations are counted."""
ALWAYS = frozenset({"embedding", "mixer", "network", "norms", "head"})
"""Parts that are listed even if they have no parameters and no operations."""


class ModelPart(NamedTuple):
    """One part of a model, or the same part of several equal layers."""

    name: str
    """embedding, positions, mixer, network, norms, closing norm, head; or `other`."""
    layers: tuple[int, int] | None
    """First and last layer, from 1; None for a part outside layers."""
    kind: str
    """Class of a mixer; "" for other parts."""
    modules: int
    """Number of modules with separate parameters."""
    uses: int
    """How many times all these modules together are used in one pass."""
    parameters: int
    """Parameters of one module."""
    operations: int | None
    """Operations of one use (a multiply-add counts as 2); None if they depend on data."""

    @property
    def multiply_adds(self) -> int | None:
        """Return the multiply-adds of one use."""
        return None if self.operations is None else self.operations // 2


class ModelCost(NamedTuple):
    """Parameters and multiply-adds of one pass over one example."""

    parts: Sequence[ModelPart]
    parameters: int
    multiply_adds: int
    """Sum over all parts that could be counted."""
    tokens: int
    """Tokens of the example, in all its sequences together."""

    @property
    def complete(self) -> bool:
        """Return whether the multiply-adds of every part could be counted."""
        return all(part.multiply_adds is not None for part in self.parts)


class _CountedLayer(NamedTuple):
    """The counts of one layer."""

    kind: str
    parameters: tuple[int, int, int]
    """Parameters of mixer, network and norms; zeros if an earlier layer is the same module."""
    operations: tuple[int, int]
    """Operations of mixer and network."""
    again: bool
    """Whether an earlier layer is the same module."""
    has_network: bool


class _Claims:
    """Counts parameters; a shared parameter counts only for the first part that has it."""

    def __init__(self) -> None:
        self.counted: set[int] = set()
        """`id` of each parameter that was counted."""

    def count_new(self, *parts: object) -> int:
        """Return how many numbers the parameters of `parts` have that were not counted before.

        Args:
            parts: modules and parameters; other objects, such as None, count as 0.
        """
        total = 0
        for part in parts:
            tensors = part.parameters() if isinstance(part, nn.Module) else [part]
            for parameter in tensors:
                if isinstance(parameter, Tensor) and id(parameter) not in self.counted:
                    self.counted.add(id(parameter))
                    total += parameter.numel()
        return total


class _Attributed:
    """Counts operations by part; operations of a part inside another belong to the outer one."""

    def __init__(self) -> None:
        self.counter = OperationCounter()
        self.by_part: dict[tuple[str, int], int] = {}
        self.inside = False
        """Whether a watched part is being called."""
        self.layer = 0
        """Number of the current layer, from 1."""

    def watch(self, part: nn.Module, name: str, *, by_layer: bool = False) -> None:
        """Count the operations of `part` by wrapping its methods.

        Args:
            part: the module.
            name: its name in `by_part`. Each call of a part named `mixer` begins the next layer.
            by_layer: whether to count it for each layer separately.
        """
        for method in CALLED:
            if hasattr(part, method):
                call = partial(self._enter, getattr(part, method), name, by_layer)
                object.__setattr__(part, method, call)  # hides the method of the class

    def _enter(
        self, method: Callable[..., Any], name: str, by_layer: bool, *args: Any, **named: Any
    ) -> Any:
        """Call a wrapped method, and add the operations that it counts to its part."""
        if self.inside:
            return method(*args, **named)
        self.layer += name == "mixer"
        before, self.inside = self.counter.operations, True
        try:
            return method(*args, **named)
        finally:
            self.inside = False
            key = name, self.layer if by_layer else 0
            operations = self.counter.operations - before
            self.by_part[key] = self.by_part.get(key, 0) + operations

    def of_part(self, name: str, layer: int = 0) -> int:
        """Return the operations of a part, in one layer if it is counted by layer."""
        return self.by_part.get((name, layer), 0)


def cost_by_part(model: Backbone, length: int, *, memory: int = 0, kind: str = "cpu") -> ModelCost:
    """Return parameters and multiply-adds of a forward pass over one example.

    Products, convolutions, attention and Fourier transforms are counted; element-wise operations
    are not. Causal attention counts all pairs of tokens.

    Args:
        model: A model on the device `meta`. It cannot be used afterwards: methods are wrapped.
        length: Tokens of each sequence.
        memory: Tokens that the state before the sequence remembers; 0: there is no state.
        kind: Kind of the device that the pass is meant for, as in `torch.device.type`.

    Raises:
        Exception: A part of the model needs data, which tensors on `meta` lack.
    """
    watched = _Attributed()
    for part, name, by_layer in _watched_parts(model):
        watched.watch(part, name, by_layer=by_layer)
    # Its operations depend on the ids of tokens, so it is replaced and counts as unknown.
    grouped = isinstance(model.embedding, AdaptiveEmbedding)
    if grouped:
        object.__setattr__(model.embedding, "forward", partial(_empty_vectors, model.config.width))
    else:
        watched.watch(model.embedding, "embedding")
    sequences = 2 if model.facts.head == "pair" else 1
    dtype = torch.float32 if model.facts.scalars else torch.long
    channels = (model.facts.channels,)[: int(model.facts.channels > 1)]
    tokens = torch.empty((1, sequences, length, *channels), dtype=dtype, device="meta")
    state = model.initial_state(1, memory) if memory else None

    def call() -> None:
        with watched.counter:
            model.predict(tokens, None, state)

    with torch.no_grad():
        Tracer(kind).trace(call)
    return _list_parts(model, watched, sequences * length, grouped=grouped)


def _empty_vectors(width: int, ids: Tensor) -> Tensor:
    """Return vectors of the shape that an embedding of the ids has, without data on `meta`."""
    return torch.empty((*ids.shape, width), device=ids.device)


def _watched_parts(model: Backbone) -> list[tuple[nn.Module, str, bool]]:
    """Return each part to count, with its name and whether it is counted by layer."""
    model.eval()
    parts: list[tuple[nn.Module, str, bool]] = [(model.head, "head", False)]
    if model.positions is not None:
        parts.append((model.positions, "positions", False))
    if not isinstance(model.stack, Stack):
        return [*parts, (model.stack, "stack", False)]
    for block in cast(Iterable[Any], dict.fromkeys(model.stack.blocks)):
        parts.append((block.mixer, "mixer", True))
        if block.network is not None:
            parts.append((block.network, "network", True))
    return parts


def _list_parts(model: Backbone, watched: _Attributed, tokens: int, *, grouped: bool) -> ModelCost:
    """Return the cost of a model after its pass was watched; `grouped`: embedding in groups."""
    claims, total = _Claims(), watched.counter.operations

    def single_part(name: str, *modules: object) -> ModelPart:
        # One module outside the layers, used once.
        return ModelPart(name, None, "", 1, 1, claims.count_new(*modules), watched.of_part(name))

    embedding = single_part("embedding", model.embedding, getattr(model, "cls", None))
    parts = [embedding._replace(operations=None) if grouped else embedding]
    parts.append(single_part("positions", model.positions))
    if isinstance(model.stack, Stack):
        blocks = [cast(Any, model.stack.blocks[layer]) for layer in model.stack.visits]
        parts.append(single_part("shared by layers", *_tied_parameters(blocks)))
        layers = [_count_layer(blocks, number, claims, watched) for number in range(len(blocks))]
        parts += _group_layers(layers)
        parts.append(single_part("closing norm", model.stack.norm))
    else:
        parts.append(single_part("stack", model.stack))
    parts.append(single_part("head", model.head))
    counted = sum(part.uses * (part.operations or 0) for part in parts)
    # All parameters of the model that no part above has, and all remaining operations.
    parts.append(single_part("other", model)._replace(operations=total - counted))
    listed = [part for part in parts if part.name in ALWAYS or part.parameters or part.operations]
    whole = sum(parameter.numel() for parameter in model.parameters())
    return ModelCost(listed, whole, total // 2, tokens)


def _tied_parameters(blocks: Sequence[Any]) -> list[nn.Parameter]:
    """Return the parameters that several different layer modules share."""
    parameters = [p for block in dict.fromkeys(blocks) for p in block.parameters()]
    uses = Counter(map(id, parameters))
    return [parameter for parameter in parameters if uses[id(parameter)] > 1]


def _count_layer(
    blocks: Sequence[Any], number: int, claims: _Claims, watched: _Attributed
) -> _CountedLayer:
    """Return parameters and operations of layer `number` (from 0) of the layers in `blocks`."""
    block = blocks[number]
    parameters = (
        claims.count_new(block.mixer),
        0 if block.network is None else claims.count_new(block.network),
        claims.count_new(block),  # what remains of the layer: its norms
    )
    operations = watched.of_part("mixer", number + 1), watched.of_part("network", number + 1)
    again, has_network = block in blocks[:number], block.network is not None
    return _CountedLayer(type(block.mixer).__name__, parameters, operations, again, has_network)


def _group_layers(layers: Sequence[_CountedLayer]) -> Iterable[ModelPart]:
    """Yield mixer, network and norms of each group of consecutive layers that have equal counts.

    A layer that is the same module as an earlier one belongs to the group of that layer.
    """
    counted = list(layers)
    for number, layer in enumerate(layers):  # a module used again was counted as zeros
        if layer.again and number:
            counted[number] = layer._replace(parameters=counted[number - 1].parameters)
    first = 1
    for alike, members in groupby(zip(counted, layers, strict=True), _without_again):
        run = [member for _, member in members]
        uses, modules = len(run), sum(not member.again for member in run)
        span = first, first + uses - 1
        first += uses
        kinds = ("mixer", "network", "norms")
        work = (*alike.operations, 0)  # norms have no products
        for name, count, operations in zip(kinds, alike.parameters, work, strict=True):
            if name == "network" and not alike.has_network:
                continue
            kind = alike.kind if name == "mixer" else ""
            yield ModelPart(name, span, kind, modules, uses, count, operations)


def _without_again(pair: tuple[_CountedLayer, _CountedLayer]) -> _CountedLayer:
    """Return the counts by which a pair of `_group_layers` is grouped, whether it is new or not."""
    return pair[0]._replace(again=False)
