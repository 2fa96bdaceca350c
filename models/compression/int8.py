"""Linear maps with 8-bit weights by torchao: integer codes q and scales s, symmetric around 0.

    s_o = 2 max_i |w_oi| / 255        q_oi = clamp(round(w_oi / s_o), -128, 127)        w ~ s q

for each row o of a matrix, which gives one output channel. y = x w^T + b has two forms:

weight_only  y = x (s q)^T + b; activations keep their precision.
dynamic      activations are also coded, with the largest value of each token as its scale:
             y = t s (p q^T) + b, with codes p and scale t of x, and a product of integers.

A code becomes 0 if it is among the smallest of its map, |q| <= |q'|: no weight is rounded again.

Norms, embeddings and other parts of a family keep their precision: see
`lra.models.compression.linear_maps`.
"""

from enum import StrEnum, auto
from typing import Any

import torch
from jaxtyping import Int8
from torch import Tensor

from lra.models.backbone.model import Backbone
from lra.models.compression.linear_maps import linear_maps
from lra.models.compression.magnitude import mask_largest
from lra.models.mixer import Unsupported


class Int8Form(StrEnum):
    """Which factors of products are coded in 8 bits."""

    weight_only = auto()
    dynamic = auto()
    """Weights and activations, these by the largest value of each token."""


def integer_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the exact matrix product of two int8 matrices, as int32."""
    product: Tensor = torch._int_mm(a, b)
    return product


def check_integer_product(device: torch.device) -> None:
    """Raise `Unsupported` if this device cannot multiply 8-bit integers exactly."""
    codes = (torch.arange(32 * 32) % 255 - 127).to(torch.int8).view(32, 32)  # -127 ... 127
    try:
        product = integer_product(codes.to(device), codes.T.to(device)).cpu()
        wrong = not torch.equal(product.long(), codes.long() @ codes.T.long())
        message = "a wrong product" if wrong else ""
    except (RuntimeError, NotImplementedError) as error:
        message = str(error).partition("\n")[0][:120]
    if message:
        raise Unsupported(
            f"this processor ({device}) cannot multiply 8-bit integers ({message}): choose "
            "runner.form=weight_only, which multiplies floating-point numbers"
        )


def quantise(model: Backbone, form: Int8Form, device: torch.device) -> list[str]:
    """Replace a model's linear maps by 8-bit maps; return their names.

    Args:
        model: A trained model in evaluation mode, which is changed.
        form: Which factors are coded.
        device: Device on which the model will run.

    Raises:
        Unsupported: The device has no product of 8-bit integers, or torchao is not installed.
    """
    if form == Int8Form.dynamic:
        check_integer_product(device)
    try:
        import torchao.quantization as library
    except ImportError as error:
        message = f"torchao cannot be imported ({error}): pip install 'lra[quantisation]'"
        raise Unsupported(message) from error
    kinds: dict[Int8Form, Any] = {
        Int8Form.weight_only: library.Int8WeightOnlyConfig,
        Int8Form.dynamic: library.Int8DynamicActivationInt8WeightConfig,
    }
    names = [*linear_maps(model)]
    library.quantize_(model, kinds[form](), filter_fn=lambda _, name: name in names)
    return names


def codes_of(weight: Tensor) -> Tensor:
    """Return the int8 codes of a weight that torchao has quantised; any other weight as it is."""
    codes: Tensor = getattr(weight, "qdata", weight)
    return codes


def pruned_codes(codes: Int8[Tensor, "*w"], sparsity: float) -> Int8[Tensor, "*w"]:
    """Return the codes with the round(sparsity * number) smallest magnitudes at 0.

    Among codes of equal magnitude, the first become 0.

    Raises:
        ValueError: `sparsity` is out of range.
    """
    # In 8 bits, the absolute value of -128 would be -128: the smallest of all.
    return codes.masked_fill(~mask_largest(codes.short(), sparsity), 0)


@torch.no_grad()
def prune_codes(model: Backbone, sparsity: float) -> float:
    """Set the fraction `sparsity` of the codes of each quantised map to 0, the smallest ones.

    Returns:
        The fraction of zeros among all codes, those included that quantisation rounded to 0.
    """
    zeros = total = 0
    for layer in linear_maps(model).values():
        codes = codes_of(layer.weight)
        codes.copy_(pruned_codes(codes, sparsity))
        zeros, total = zeros + int((codes == 0).sum()), total + codes.numel()
    return zeros / total
