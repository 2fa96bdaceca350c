"""Linear maps in 8 bits: integer codes and their scales, symmetric around 0.

    s_o = 2 max_i |w_oi| / 255        q_oi = clamp(round(w_oi / s_o), -128, 127)        w ~ s q

for each row o of a matrix, whose outputs are a channel. Three forms of the product y = x w^T + b:

weight_only  y = x (s q)^T + b; activations stay as they are.
dynamic      activations are coded as the weights are, each token by its own largest value:
             y = t s (p q^T) + b, with codes p and scale t of x, and a product of integers.
static       the same with one scale of all tokens, from what calibration saw; what is larger is
             clamped.

The integer product is exact; only the rounding of codes is lost. A row of zeros has a scale above
0, the least number whose reciprocal is finite. Norms, embeddings and what a family has besides its
projections keep their precision: see `lra.models.compression.linear_maps`.

The definition is that of torchao's `Int8WeightOnlyConfig` and
`Int8DynamicActivationInt8WeightConfig`, which `library=torchao` calls in its place.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum, auto
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8
from torch import Tensor, nn

from lra.models.backbone.model import Backbone
from lra.models.compression.linear_maps import linear_maps, replace_maps
from lra.models.mixer import Unsupported

LEAST = float(torch.finfo(torch.float32).eps)
"""Of a scale."""


class Int8Form(StrEnum):
    """What is coded."""

    weight_only = auto()
    dynamic = auto()
    """Weights, and activations by their own largest value."""
    static = auto()
    """Weights, and activations by what calibration saw."""


class Int8Library(StrEnum):
    """Whose code runs."""

    own = auto()
    torchao = auto()
    """The same definition in its kernels: the extra `quantisation`."""


def coded(x: Float[Tensor, "*n d"]) -> tuple[Int8[Tensor, "*n d"], Float[Tensor, "*n 1"]]:
    """Return the codes of each row and its scale."""
    scale = (x.abs().amax(-1, keepdim=True) / 127.5).clamp_min(LEAST)
    return codes_of(x, scale), scale


def codes_of(x: Float[Tensor, "*n d"], scale: Tensor) -> Int8[Tensor, "*n d"]:
    """Return the codes of numbers at a scale."""
    return (x * (1.0 / scale)).round().clamp(-128, 127).to(torch.int8)


class Int8Linear(nn.Module):
    """A linear map in 8 bits: `codes` and `scale` are what is stored.

    Args:
        layer: The map, of single or double precision.
        form: What is coded.
        largest: Largest absolute value of what comes in, for the static form.
    """

    codes: Tensor
    scale: Tensor
    input_scale: Tensor | None

    def __init__(self, layer: nn.Linear, form: Int8Form, largest: float | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features, self.form = layer.in_features, layer.out_features, form
        codes, scale = coded(layer.weight.detach())
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale.squeeze(-1))
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone())
        if form == Int8Form.static:
            if largest is None:
                raise ValueError("the static form needs calibration: got no largest input")
            limit = torch.tensor(max(largest / 127.5, LEAST), dtype=layer.weight.dtype)
            self.register_buffer("input_scale", limit.to(layer.weight.device))
        else:
            self.input_scale = None

    @property
    def weight(self) -> Float[Tensor, "o i"]:
        """The matrix that the codes stand for."""
        return self.codes.to(self.scale.dtype) * self.scale[:, None]

    def forward(self, x: Float[Tensor, "*n i"]) -> Float[Tensor, "*n o"]:
        """Return the product."""
        if self.form == Int8Form.weight_only:
            return F.linear(x, self.weight, self.bias)
        flat = x.flatten(0, -2)
        if self.input_scale is None:
            codes, scale = coded(flat)
        else:
            codes, scale = codes_of(flat, self.input_scale), self.input_scale
        y = integer_product(codes, self.codes.T).to(x.dtype) * scale * self.scale
        y = y if self.bias is None else y + self.bias
        return y.view(*x.shape[:-1], -1)


def integer_product(a: Int8[Tensor, "n k"], b: Int8[Tensor, "k m"]) -> Tensor:
    """Return the exact product of integers, int32."""
    product: Tensor = torch._int_mm(a, b)
    return product


def check_integer_product(device: torch.device) -> None:
    """Raise `Unsupported` where this device multiplies no 8-bit integers, or wrongly."""
    codes = (torch.arange(32 * 32) % 255 - 127).to(torch.int8).view(32, 32)
    try:
        product = integer_product(codes.to(device), codes.T.to(device)).cpu()
    except (RuntimeError, NotImplementedError) as error:
        message = str(error).partition("\n")[0][:120]
        raise Unsupported(
            f"this processor ({device}) has no product of 8-bit integers ({message}): choose "
            "runner.form=weight_only, which multiplies floating-point numbers"
        ) from error
    if not torch.equal(product.long(), codes.long() @ codes.T.long()):
        raise Unsupported(
            f"this processor ({device}) multiplies 8-bit integers wrongly: choose "
            "runner.form=weight_only, which multiplies floating-point numbers"
        )


def quantise(
    model: Backbone,
    form: Int8Form,
    *,
    library: Int8Library = Int8Library.own,
    calibration: Iterable[Callable[[], object]] = (),
    device: torch.device | None = None,
) -> list[str]:
    """Put 8-bit maps in the place of a model's linear maps; return their names.

    Args:
        model: Trained, in evaluation mode; changed.
        form: What is coded.
        library: Whose code runs.
        calibration: Passes of the model, each one call, for the static form.
        device: Where it will run; None: the processor.

    Raises:
        Unsupported: This processor has no product of 8-bit integers, the library is not there or
            has no such form.
        ValueError: The static form without a pass to calibrate on.
    """
    if form != Int8Form.weight_only:
        check_integer_product(device or torch.device("cpu"))
    if library == Int8Library.torchao:
        return _by_torchao(model, form)
    largest: dict[nn.Linear, float] = {}
    if form == Int8Form.static:
        with _largest_inputs(model) as largest:
            for call in calibration:
                call()
    if form == Int8Form.static and not largest:
        raise ValueError("the static form takes its scales from calibration: got no pass")
    return replace_maps(model, lambda layer: Int8Linear(layer, form, largest.get(layer, 0.0)))


@contextmanager
def _largest_inputs(model: Backbone) -> Iterator[dict[nn.Linear, float]]:
    """Record the largest absolute value that enters each map."""
    largest: dict[nn.Linear, float] = {}

    def hook(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        linear = cast(nn.Linear, layer)
        largest[linear] = max(largest.get(linear, 0.0), float(arguments[0].detach().abs().max()))

    maps = linear_maps(model).values()
    handles = [layer.register_forward_pre_hook(hook) for layer in maps]
    try:
        yield largest
    finally:
        for handle in handles:
            handle.remove()


def _by_torchao(model: Backbone, form: Int8Form) -> list[str]:
    try:
        import torchao.quantization as library
    except ImportError as error:
        raise Unsupported(
            "library=torchao needs the package torchao, which is not installed: "
            "pip install 'lra[quantisation]', or set runner.library=own"
        ) from error
    if form == Int8Form.static:
        raise Unsupported(
            "library=torchao has no static form here: set runner.library=own, or "
            "runner.form=dynamic"
        )
    kinds: dict[Int8Form, Any] = {
        Int8Form.weight_only: library.Int8WeightOnlyConfig,
        Int8Form.dynamic: library.Int8DynamicActivationInt8WeightConfig,
    }
    names = [*linear_maps(model)]
    library.quantize_(model, kinds[form](), filter_fn=lambda _, name: name in names)
    return names
