"""A family whose state knows one document refuses several in a stream, and says what to do."""

import pytest
import torch

from lra.models.mixer import Flow, Layout
from tests.attention import drawn
from tests.models.families.test_refusals import USUAL, built


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("indexed", "begin each document with an empty state"),
        ("moba", "begin each document with an empty state"),
        ("multires_conv", "pass document=None"),
        ("nsa", "begin each document with an empty state"),
        ("softmax", "begin each document with an empty state"),
    ],
)
def test_a_stream_has_no_documents(family, message):
    mixer = built(family, {"causal": True})
    x = drawn(1, 3, USUAL.get(family, {}).get("width", 12))
    flow = Flow(x, mixer.initial_state(1, 9))
    with pytest.raises(ValueError, match=message):
        mixer.extend(flow, Layout(document=torch.zeros(1, 3, dtype=torch.int64)))
