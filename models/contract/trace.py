"""The operators of one pass, recorded without computing it, for tensors without contents.

Each operator is recorded with its operations and the bytes that it reads and writes; the live bytes
of tensors are followed as an allocator would see them, so that their peak is that of a real pass.
PyTorch's shape functions for the meta device take longer than small operators themselves: a
`Tracer` asks them once for each operator and shape, which layers and models share.
"""

import math
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from lra.models.contract.counting import operations_of
from lra.models.contract.shape_functions import compiler_left_out
from lra.models.device_kind import assume_device_kind, device_kind

CAUSAL = ".causal"
"""Ends the name of fused attention in which no token sees later ones."""


class Operator(NamedTuple):
    """One call of an operator."""

    name: str
    """As PyTorch's own operators are called: `mm`, `add_`; and `CAUSAL`."""
    operations: int
    """Of matrix products, multiply-add = 2; 0 for all else."""
    moved: int
    """Bytes that are read and written."""


class Trace(NamedTuple):
    """The operators of a pass."""

    calls: Mapping[Operator, int]
    """How often each operator is called; views are left out."""
    views: int
    """Calls that move nothing: transpositions, slices."""
    peak_bytes: int
    """Highest total of tensor bytes above what was alive before."""

    @property
    def operations(self) -> int:
        """Of matrix products, as `lra.models.contract.counting.count_operations` counts them."""
        return sum(call.operations * times for call, times in self.calls.items())

    @property
    def moved(self) -> int:
        """Bytes that operators read and write."""
        return sum(call.moved * times for call, times in self.calls.items())

    @property
    def operators(self) -> int:
        """Calls of operators, views included."""
        return sum(self.calls.values()) + self.views


class _Made(NamedTuple):
    """The outputs that an operator makes of some shapes."""

    operator: Operator
    like: tuple[tuple[Any, ...] | None, ...] = ()
    """Size, stride and dtype of each new tensor; None for an output that is none."""
    kind: type = Tensor
    """Tensor, or tuple or list of tensors."""


class Tracer:
    """Records passes; known shapes of an operator are not computed again.

    Args:
        kind: of the device that the passes are meant for, as in `torch.device.type`: the models cut
            their work by it.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._seen: dict[Any, _Made] = {}

    def trace(self, run: Callable[[], object], *, until: float = math.inf) -> Trace:
        """Return the operators of `run` on tensors of the device `meta`, backward passes included.

        Args:
            run: The pass.
            until: `time.monotonic()` at which it is given up.

        Raises:
            TimeoutError: It took longer than `until`.
            Exception: Whatever `run` raises, and what PyTorch raises where a shape depends on
                contents.
        """
        recorder = _Recorder(self._seen, until)
        with ExitStack() as stack:
            stack.enter_context(assume_device_kind(self.kind))
            stack.enter_context(_fused_attention())
            stack.enter_context(compiler_left_out())
            stack.enter_context(recorder)
            run()
        return Trace(recorder.calls, recorder.views, recorder.peak)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that records each operator and its outputs' shapes."""

    def __init__(self, seen: dict[Any, _Made], until: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen, self.until = seen, until
        self.calls: Counter[Operator] = Counter()
        self.views = self.live = self.peak = 0
        self.storages: dict[int, weakref.ref[Any]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here: PyTorch's guard would double the time of every call."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        """Record one operator, and return what it makes."""
        if time.monotonic() > self.until:
            raise TimeoutError("the pass has too many operators to record in time")
        kwargs = kwargs or {}
        if func.is_view:
            self.views += 1
            return func(*args, **kwargs)
        try:
            key = (func, *map(_described, args), *((n, _described(v)) for n, v in kwargs.items()))
            made = self.seen.get(key)
        except TypeError:  # an argument that cannot be hashed
            key, made = (), None
        changed = _changed(func)
        if made is None:
            return self._first(func, args, kwargs, key)
        self.calls[made.operator] += 1
        if changed is not None:
            return _those(changed, args, kwargs)
        new = [None if one is None else _like(*one) for one in made.like]
        self._allocate(new)
        return new[0] if made.kind is Tensor else made.kind(new)

    def _first(self, func: Any, args: Any, kwargs: Any, key: Any) -> object:
        """Run an operator that was not met before, and remember how to imitate its outputs.

        An operator that writes into an argument is imitated by returning that argument, unless it
        resizes it. Any other is imitated by new tensors of the same shapes, strides and dtypes.
        This is safe only if each output is an ordinary tensor without contents that has its memory
        for itself; else the operator runs again the next time.

        Args:
            func: The operator.
            args: Its arguments by place.
            kwargs: Its arguments by name.
            key: What identifies the operator with the shapes of its arguments; (): nothing does.
        """
        changed = _changed(func)
        before = [tensor.shape for tensor in _tensors((args, kwargs))]
        out = func(*args, **kwargs)
        given = [*_tensors((args, kwargs))]
        results = [*_tensors(out)]
        operator = Operator(
            func._schema.name.partition("::")[2] + (CAUSAL if _is_causal(func, args) else ""),
            operations_of(func, args, kwargs, out),
            sum(map(_bytes, given)) + sum(map(_bytes, results)),
        )
        self.calls[operator] += 1
        if changed is not None:
            resized = any(a != tensor.shape for a, tensor in zip(before, given, strict=True))
            if key and not resized:
                self.seen[key] = _Made(operator)
            return out
        self._allocate(results)
        if key and _is_new(func) and isinstance(out, Tensor | tuple | list):
            parts = [out] if isinstance(out, Tensor) else out
            plain = all(part is None or _plain(part) for part in parts)
            memories = {part.untyped_storage()._cdata for part in results}
            if plain and len(memories) == len(results):
                like = tuple(
                    None if part is None else (part.shape, part.stride(), part.dtype)
                    for part in parts
                )
                kind = Tensor if isinstance(out, Tensor) else list if type(out) is list else tuple
                self.seen[key] = _Made(operator, like, kind)
        return out

    def _allocate(self, tensors: Sequence[Tensor | None]) -> None:
        """Count the storages of new tensors for as long as they are alive."""
        for tensor in tensors:
            if tensor is None or tensor.device.type != "meta":
                continue
            storage = tensor.untyped_storage()
            place, size = storage._cdata, storage.nbytes()
            if place in self.storages:
                continue

            def freed(_: object, place: int = place, size: int = size) -> None:
                if self.storages.pop(place, None) is not None:
                    self.live -= size

            self.storages[place] = weakref.ref(storage, freed)
            self.live += size
            self.peak = max(self.peak, self.live)


@contextmanager
def _fused_attention() -> Iterator[None]:
    """Take PyTorch's fused attention where a real device would: meta has the literal form alone.

    The CPU's operator stands for that of any device: it saves as little for backward. A mode of
    PyTorch's would look at every call of every function.
    """
    literal = F.scaled_dot_product_attention

    def attend(*args: Any, **kwargs: Any) -> Tensor:
        found = _fused(*args, **kwargs)
        return literal(*args, **kwargs) if found is None else found

    F.scaled_dot_product_attention = cast(Any, attend)
    try:
        yield
    finally:
        F.scaled_dot_product_attention = literal


def _fused(  # noqa: PLR0917 - PyTorch's own signature
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """Return the output of the fused operator, or None if no kernel accepts these arguments."""
    same = q.dim() == 4 and q.shape[:2] == k.shape[:2] and q.shape[-1] == v.shape[-1]
    learned = attn_mask is not None and attn_mask.requires_grad
    dropping = dropout_p > 0 and device_kind(q.device) == "cpu"  # whose kernel knows none
    if not same or learned or dropping or enable_gqa or not q.is_meta:
        return None
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.empty_like(attn_mask, dtype=q.dtype)
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    found = operator(q, k, v, 0.0, is_causal, attn_mask=attn_mask, scale=scale)
    return cast(Tensor, found[0])


def _described(value: Any) -> Any:
    """Return the parts of an argument that decide the outputs of an operator."""
    if isinstance(value, Tensor):
        conjugate = value.dtype.is_complex and value.is_conj()
        return value.shape, value.stride(), value.dtype, conjugate
    if isinstance(value, list | tuple):
        return tuple(map(_described, value))
    return type(value), value  # 1, 1.0 and True are equal, and make other dtypes


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors([*value.values()])


def _bytes(tensor: Tensor) -> int:
    """Return the bytes of the elements of a tensor, counting expanded elements once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def _plain(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta and value.layout == torch.strided


def _like(shape: Any, stride: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def _is_causal(func: Any, args: Sequence[Any]) -> bool:
    """Tell whether an operator is called with is_causal=True, which PyTorch gives by place."""
    given = zip(func._schema.arguments, args, strict=False)  # without those at their defaults
    return any(argument.name == "is_causal" and value for argument, value in given)


@cache
def _is_new(func: Any) -> bool:
    """Tell whether an operator returns tensors with new memory."""
    return not func._schema.is_mutable and all(
        each.alias_info is None for each in func._schema.returns
    )


@cache
def _changed(func: Any) -> tuple[int | str, ...] | None:
    """Return which arguments an operator writes into and returns; None for any other."""
    schema = func._schema
    # Operators that give a tensor another size or another memory cannot be imitated.
    if not schema.is_mutable or "resize" in schema.name or "set_" in schema.name:
        return None
    written = {
        symbol: argument.name if argument.kwarg_only else index
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
        for symbol in argument.alias_info.before_set
    }
    found = []
    for each in schema.returns:
        symbols = set() if each.alias_info is None else each.alias_info.before_set
        place = next((written[symbol] for symbol in symbols if symbol in written), None)
        if place is None:
            return None
        found.append(place)
    return tuple(found)


def _those(places: tuple[int | str, ...], args: Any, kwargs: Any) -> object:
    """Return the arguments at these places, in the form in which an operator returns them."""
    found = [kwargs[p] if isinstance(p, str) else args[p] for p in places]
    if not found:
        return None
    return found[0] if len(found) == 1 else tuple(found)
