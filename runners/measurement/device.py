"""The number formats of a forward pass."""

import torch

from lra.runners.measurement.hardware import HardwareProfile, MatmulPrecision, Precision

DTYPES = {
    Precision.float32: torch.float32,
    Precision.bfloat16: torch.bfloat16,
    Precision.float16: torch.float16,
}


def set_matmul_precision(precision: MatmulPrecision) -> None:
    """Set the precision of float32 products, including cuDNN's convolutions and LSTMs."""
    torch.set_float32_matmul_precision(precision.value)
    torch.backends.cudnn.allow_tf32 = precision is not MatmulPrecision.highest


def autocast(hardware: HardwareProfile) -> torch.autocast:
    """Return a context in which a forward pass has the precision of the profile."""
    half = hardware.precision is not Precision.float32
    dtype = DTYPES[hardware.precision] if half else torch.bfloat16  # no CPU autocast to float32
    return torch.autocast(str(hardware.device), dtype=dtype, enabled=half)
