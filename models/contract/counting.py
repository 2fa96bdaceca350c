"""Counts instead of timings: matrix operations, and the bytes that autograd saves.

Both counts are exact and the same on every machine. Tensors of `fake_tensors()` have a shape and a
device but no contents, so lengths are free: the kernels are chosen as on a real CPU (the meta
device would choose the literal form of scaled dot product attention, which keeps its weights).
"""

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import (
    FlopCounterMode,
    mm_flop,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from lra.models.kernels.door import own_forms


def _attention(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return int(cast(Any, sdpa_flop_count)(q, k, v))


def _attention_backward(gradient: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return int(cast(Any, sdpa_backward_flop_count)(gradient, q, k, v))


def _fourier(x: Any, axes: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    """5 n log2 n for a complex transform of n points (Cooley and Tukey), half that for real ones.

    `x` and `out_val` are shapes or tensors, as torch's counter gives them.
    """
    shapes = [_sizes(each) for each in (x, out_val) if each is not None]
    whole = max(shapes, key=math.prod)
    points = math.prod(whole[axis] for axis in axes)
    real = len(set(shapes)) > 1
    return int((2.5 if real else 5.0) * math.prod(whole) * math.log2(max(points, 2)))


def _sizes(x: Any) -> tuple[int, ...]:
    """Return the shape of a tensor, which torch's counter may have taken already."""
    return tuple(getattr(x, "shape", x))


def _recurrent(x: Any, weights: Any, *_: Any, **__: Any) -> int:
    """Return operations of a recurrent layer: every token times every weight, without biases."""
    tokens = math.prod(_sizes(x)[:-1])
    return 2 * tokens * sum(math.prod(each) for each in map(_sizes, weights) if len(each) > 1)


def _recurrent_layer(x: Any, w_input: Any, w_hidden: Any, *_: Any, **__: Any) -> int:
    return _recurrent(x, (w_input, w_hidden))


def _product(a: Any, b: Any, *_: Any, **__: Any) -> int:
    return int(cast(Any, mm_flop)(a, b))


def _twice(forward: Callable[..., int]) -> Callable[..., int]:
    """Return a formula for a backward pass: gradients of inputs and of weights."""
    return lambda *args, **kwargs: 2 * forward(*args, **kwargs)


_LEFT_OUT: dict[Any, Any] = {
    torch.ops.aten.mkldnn_rnn_layer: _recurrent_layer,
    torch.ops.aten.mkldnn_rnn_layer_backward: _twice(_recurrent_layer),
    torch.ops.aten._cudnn_rnn: _recurrent,
    torch.ops.aten._cudnn_rnn_backward: _twice(_recurrent),
    torch.ops.aten._int_mm: _product,
    torch.ops.aten._fft_c2c: _fourier,
    torch.ops.aten._fft_r2c: _fourier,
    torch.ops.aten._fft_c2r: _fourier,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
"""Operators that torch's own table lacks, so that they would count as nothing."""
_FORMULAS = FlopCounterMode(display=False, custom_mapping=_LEFT_OUT).flop_registry
_DEVICE = torch.ops.prim.device.default


@cache
def _is_composite(func: Any) -> bool:
    """Tell whether an operator is written in others, which are then counted in its place."""
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    return composite in func.py_kernels or torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), composite
    )


def operations_of(func: Any, args: Any, kwargs: Any, made: Any) -> int:
    """Return the operations of one call of an operator; 0 if it computes no product."""
    formula = _FORMULAS.get(func._overloadpacket)
    return int(formula(*args, **kwargs, out_val=made)) if formula else 0


class EagerDispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that PyTorch calls without its compiler's guard, which takes as long."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class OperationCounter(EagerDispatch):  # type: ignore[no-untyped-call]
    """Counts in `operations` like torch's `FlopCounterMode` (multiply-add = 2), and `calls`.

    That one also keeps a table by module and asks of every call anew whether it is composite,
    which takes longer than the operator itself where tensors have no contents.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = self.calls = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        """Run one operator, and add its operations."""
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device
        kwargs = kwargs or {}
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        made = func(*args, **kwargs)
        self.operations += operations_of(func, args, kwargs, made)
        self.calls += 1
        return made


def fake_tensors() -> AbstractContextManager[Any]:
    """Return a context in which new tensors have no contents, and operators do no work."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def count_operations(run: Callable[[], object]) -> int:
    """Return the floating-point operations of the matrix products in `run()`, multiply-add = 2.

    Counts products, convolutions, scaled dot product attention and Fourier transforms (by the
    usual 5 n log2 n), forward and backward; not element-wise work, softmax, sorts, scans. Causal
    attention through a fused kernel counts as full attention, whatever the kernel skips. Our
    PyTorch operations compute everything here, because a public kernel would count as nothing.
    """
    with own_forms(), OperationCounter() as counter:
        run()
    return int(counter.operations)


class ElementCounter(EagerDispatch):  # type: ignore[no-untyped-call]
    """Counts the numbers that operators write while the context is open, without views.

    This is the work beside products: masks, exponentials, sorts. What a fused kernel holds inside
    is not seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        """Run one operator, and add the number of elements that it writes."""
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.written += 0 if func.is_view else made.numel()
        elif isinstance(made, tuple | list):
            self.written += sum(part.numel() for part in made if isinstance(part, Tensor))
        return made


def saved_bytes(run: Callable[[], object], exclude: Iterable[Tensor] = ()) -> int:
    """Return the bytes of the storages that autograd saves for backward during `run()`.

    Each storage counts once and whole, however many views of it are kept. `exclude`: tensors that
    would be there anyway, such as parameters.
    """
    storages: dict[int, torch.UntypedStorage] = {}  # holds them, so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    for tensor in exclude:
        storages.pop(tensor.untyped_storage()._cdata, None)
    return sum(storage.nbytes() for storage in storages.values())
