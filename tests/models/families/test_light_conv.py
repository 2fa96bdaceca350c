"""LightConv against fairseq, and its dropout."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from lra.models.families.light_conv import LightConv
from lra.models.mixer import Layout
from tests.attention import drawn
from tests.literal.convolutions import convolution
from tests.literal.heads import joined
from tests.literal.light_conv import values
from tests.models.families.convolution_cases import (
    LENGTH,
    as_released,
    built,
)
from tests.models.families.released import convolutions as released


@pytest.mark.parametrize("case", [case for case in released.CASES if case.startswith("light")])
def test_it_is_the_released_convolution(case):
    as_released(LightConv, case)


def test_taps_of_every_token_are_dropped_by_themselves():
    mixer, x = built(LightConv, attention_dropout=0.5).train(), drawn(1, LENGTH, 6)
    torch.manual_seed(7)
    found = mixer(x, Layout())
    torch.manual_seed(7)
    taps = mixer.weight[None].expand(1, 2, LENGTH, 5).softmax(-1)
    z = values(mixer, x, SimpleNamespace(glu=True, keep=None))
    wanted = mixer.out_proj(joined(convolution(z, F.dropout(taps, 0.5), 2)))
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
