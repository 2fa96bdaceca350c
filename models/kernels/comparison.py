"""Is a public kernel right? Compare it with our own form, on drawn inputs of a call's shapes.

Inputs are drawn (`lra.models.kernels.trials`), because those of a call hide mistakes: decays near 0
hide in which order a state decays and is written. The first few hundred tokens of one sequence are
compared: outputs, states and gradients, the kernel in the dtype of the call, our own form in
float32.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import partial
from inspect import BoundArguments, signature as signature_of
from typing import Any

import torch
from torch import Tensor

from lra.models.kernels.door import Operation, own_forms
from lra.models.kernels.kernel import PublicKernel, one_line
from lra.models.kernels.trials import TRIALS, DrawnCall, normal
from lra.models.ops.numerics import full_precision

TOKENS = 256
"""Most tokens that are compared."""
BOUNDS = (5e-3, 1e-3)
"""Largest error that is allowed, as a fraction of the largest value, and mean error as a fraction
of the mean size. Kernels round products of float32 to TF32."""
HALF = (2e-2, 5e-3)
"""The same where an argument has half precision: families norm queries and keys in float32, but
kernels take them in the precision of the values."""
GRADIENTS = 4
"""Gradients may differ by so many times as much: some are small differences of large sums, such as
those of a mean, of which rounding the arguments alone spoils a hundredth."""


def signature(operation: str, arguments: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what calls must share so that one comparison holds for all of them."""
    tokens = TRIALS.get(operation, DrawnCall()).tokens
    return (torch.is_grad_enabled(), *(_kind(x, tokens.get(n)) for n, x in arguments.items()))


def _kind(x: object, dim: int | None) -> object:
    if isinstance(x, Tensor):
        sizes = tuple(size for i, size in enumerate(x.shape) if i not in {0, dim})
        return x.dtype, x.ndim, sizes if dim is not None else tuple(x.shape[1:]), x.requires_grad
    if isinstance(x, tuple):
        return tuple(_kind(part, None) for part in x)
    plain = isinstance(x, bool | int | float | str | None) or is_dataclass(x)  # a set of keys
    return x if plain else type(x).__name__


def difference(kernel: PublicKernel, own: Operation, arguments: Mapping[str, Any]) -> str:
    """Return how a kernel differs from our own form for such a call; "" if it agrees."""
    try:
        with torch.inference_mode(False):
            return "; ".join(_differences(kernel, own, arguments))
    except Exception as error:  # noqa: BLE001 - whatever a foreign kernel raises
        return f"stopped with {one_line(error)}"


def _differences(
    kernel: PublicKernel, own: Operation, arguments: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what differs, with the error found and the error allowed."""
    trial = TRIALS.get(kernel.operation, DrawnCall())
    grad, inputs = torch.is_grad_enabled(), trial.fit(dict(_trial_inputs(trial, arguments)))
    theirs = _outputs_and_gradients(kernel.run, inputs, arguments, grad=grad)
    precise = {name: x.float() if _floating(x) else x for name, x in inputs.items()}
    with full_precision(next(filter(_floating, inputs.values()))), own_forms():
        ours = _outputs_and_gradients(partial(_call, own), precise, arguments, grad=grad)
    dtypes = {x.dtype for x in filter(_floating, inputs.values())}
    bounds = BOUNDS if dtypes == {torch.float32} else HALF
    for name, wanted in ours.items():
        got = theirs[name]
        if got.shape != wanted.shape:
            yield f"{name} has shape {tuple(got.shape)}, ours {tuple(wanted.shape)}"
            continue
        times = GRADIENTS if name.startswith("gradient") else 1
        largest, mean = (times * bound for bound in bounds)
        error, size = (got.float() - wanted).abs(), wanted.abs()
        worst = float(error.max() / size.max().clamp(min=1e-12))
        usual = float(error.mean() / size.mean().clamp(min=1e-12))
        if not (worst <= largest and usual <= mean):  # NaN is refused, too
            yield (
                f"{name} differs by {worst:.2g} of the largest value and by {usual:.2g} in the "
                f"mean (allowed: {largest:g} and {mean:g})"
            )


def _trial_inputs(trial: DrawnCall, arguments: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the arguments of a call by name, cut to one short sequence, with drawn numbers.

    States that are tuples are drawn part by part.
    """
    generator = torch.Generator().manual_seed(0)

    def drawn(name: str, x: Any) -> Any:
        if isinstance(x, tuple) and any(isinstance(part, Tensor) for part in x):
            parts = [drawn(name, part) for part in x]
            return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
        if not isinstance(x, Tensor):
            return x
        dim, part = trial.tokens.get(name), x.detach()
        if trial.tokens and trial.one_row and part.ndim > 1 and name not in trial.weights:
            part = part[:1]
        if dim is not None and part.ndim > dim:
            part = part.narrow(dim, 0, min(TOKENS, part.shape[dim]))
        draw = trial.draws.get(name, normal)
        return draw(part, generator) if _floating(part) else part.clone()

    for name, x in arguments.items():
        yield name, drawn(name, x)


def _call(own: Operation, arguments: dict[str, Any]) -> Any:
    """Return what an operation returns for arguments by name, `*args` as one tuple."""
    bound = BoundArguments(signature_of(own), OrderedDict(arguments))
    return own(*bound.args, **bound.kwargs)


def _floating(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _outputs_and_gradients(
    run: Callable[[dict[str, Any]], Any],
    inputs: Mapping[str, Any],
    arguments: Mapping[str, Any],
    *,
    grad: bool,
) -> dict[str, Tensor]:
    """Return the outputs by number, and the gradients of inputs that need one in the call."""
    leaves = {
        name: x.detach().clone().requires_grad_(arguments[name].requires_grad and grad)
        for name, x in inputs.items()
        if _floating(x)
    }
    with torch.set_grad_enabled(grad):
        outputs = [x for x in _flat(run({**inputs, **leaves})) if isinstance(x, Tensor)]
    found = {f"output {i + 1}": x.detach() for i, x in enumerate(outputs)}
    wanted = {name: x for name, x in leaves.items() if x.requires_grad}
    if wanted:
        generator = torch.Generator().manual_seed(1)
        differentiable = [x for x in outputs if x.requires_grad]
        pulled = torch.autograd.grad(
            differentiable,
            list(wanted.values()),
            [normal(x.detach(), generator) for x in differentiable],
            allow_unused=True,
        )
        for (name, leaf), gradient in zip(wanted.items(), pulled, strict=True):
            found[f"gradient of {name}"] = torch.zeros_like(leaf) if gradient is None else gradient
    return found


def _flat(result: Any) -> Iterator[Any]:
    """Yield the parts of nested tuples."""
    if isinstance(result, tuple):
        for part in result:
            yield from _flat(part)
    else:
        yield result
