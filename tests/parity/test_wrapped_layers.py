"""Layers of transformers and x-transformers as mixers: the code of the page, and what it says."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from lra.models.contract import verify
from lra.models.mixer import Layout, Site
from lra.models.wrap import wrap
from peers.peer import package

pytestmark = pytest.mark.parity

PAGE = Path(__file__).resolve().parents[2] / "docs/own-module.md"
SMALL = {"max_length": 128, "width": 16}


@pytest.fixture(scope="module")
def layers() -> dict[str, Any]:
    """Return what the page's code for Hugging Face defines."""
    package("transformers")
    code = re.search(
        r"```python\n(import lra\n.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    assert code
    names: dict[str, Any] = {"__name__": "my_package.layers"}
    exec(code[1], names)
    return names


@pytest.mark.parametrize("name", ["Bert", "Llama"])
def test_layers_of_transformers_pass(layers: dict[str, Any], name: str) -> None:
    assert [each for each in verify(layers[name], **SMALL) if not each.passed] == []


def test_a_padded_row_is_the_row_alone_in_their_own_call(layers: dict[str, Any]) -> None:
    mixer = layers["Bert"](Site(width=16, heads=2, max_length=9)).eval()
    x, keep = torch.randn(2, 9, 16), torch.arange(9) < torch.tensor([[9], [5]])
    y = mixer(x, Layout(keep=keep))
    torch.testing.assert_close(y[1:, :5], mixer.inner(x[1:, :5]), rtol=1e-5, atol=1e-6)


def test_attention_of_x_transformers_passes_with_flash_alone() -> None:
    """Not a package of the extra `parity`: `pip install x-transformers` brings it."""
    theirs = pytest.importorskip("x_transformers.x_transformers")
    make = wrap(theirs.Attention, operations="n^2", sees_order=False)
    failed = [
        each for each in verify(lambda site: make(site, flash=True), **SMALL) if not each.passed
    ]
    assert failed == []
    failed = [each.check for each in verify(make, **SMALL) if not each.passed]
    assert {"bidirectional.precisions", "causal.gradients", "causal.memory"} <= {*failed}
