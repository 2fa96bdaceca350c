"""The short convolution of `lra.models.short_convolution`, for operations and families."""

from lra.models.short_convolution import (
    short_convolution as short_convolution,  # noqa: PLC0414  # handed on
    sum_taps as sum_taps,  # noqa: PLC0414  # handed on
    tap_inputs as tap_inputs,  # noqa: PLC0414  # handed on
)
