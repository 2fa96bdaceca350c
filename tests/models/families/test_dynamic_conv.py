"""DynamicConv against its sum over taps, fairseq and LightConv."""

import pytest

from lra.models.families.dynamic_conv import DynamicConv
from tests.models.families.convolution_cases import as_released
from tests.models.families.released import convolutions as released


@pytest.mark.parametrize("case", [case for case in released.CASES if case.startswith("dynamic")])
def test_it_is_the_released_convolution(case):
    as_released(DynamicConv, case)
