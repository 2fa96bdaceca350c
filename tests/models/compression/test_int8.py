"""Eight bits: which maps are coded, and what cannot run. What torchao makes of them: parity."""

import sys

import pytest
import torch

from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.model import Backbone
from lra.models.compression import int8
from lra.models.compression.int8 import (
    Int8Form,
    check_integer_product,
    codes_of,
    pruned_codes,
    quantise,
)
from lra.models.compression.linear_maps import linear_maps
from lra.models.compression.storage import read_state, write_state
from lra.models.families.linear import LinearAttention
from lra.models.families.lstm import LSTM
from lra.models.mixer import Unsupported

FACTS = TaskFacts(head=Head.classification, vocabulary=40, classes=3, max_length=8)
CPU = torch.device("cpu")


def model_of(mixer):
    config = BackboneConfig(width=32, heads=2, depth=1, feed_forward_width=64)
    return Backbone(config, FACTS, [mixer], seed=1).eval()


def test_the_projections_the_network_and_the_head_are_coded_and_nothing_else():
    projections = {f"mixer.{name}_proj" for name in ("q", "k", "v", "out")}
    maps = {name.partition("stack.blocks.0.")[2] or name for name in linear_maps(model_of(LSTM))}
    attention = linear_maps(model_of(LinearAttention))
    more = {name.partition("stack.blocks.0.")[2] or name for name in attention}
    assert more - maps == projections
    assert {name.split(".")[0] for name in maps} == {"network", "head"}


def test_what_cannot_run_says_why(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(Unsupported, match=r"torchao.*pip install 'lra\[quantisation\]'"):
        quantise(model_of(LinearAttention), Int8Form.weight_only, CPU)

    def lacking(a, b):
        raise RuntimeError("no kernel\nat all")

    check_integer_product(CPU)
    monkeypatch.setattr(int8, "integer_product", lacking)
    with pytest.raises(Unsupported, match=r"\(no kernel\): choose runner.form=weight_only"):
        quantise(model_of(LinearAttention), Int8Form.dynamic, CPU)
    monkeypatch.setattr(int8, "integer_product", lambda a, b: (a.int() @ b.int()).clamp(max=99))
    with pytest.raises(Unsupported, match="a wrong product"):
        quantise(model_of(LinearAttention), Int8Form.dynamic, CPU)


def test_the_smallest_codes_become_zeros_and_minus_128_is_the_largest():
    codes = torch.tensor([[-128, 3, -2], [2, 0, 127]], dtype=torch.int8)
    assert pruned_codes(codes, 0.5).tolist() == [[-128, 3, 0], [0, 0, 127]]
    assert pruned_codes(codes, 0.34).tolist() == [[-128, 3, 0], [2, 0, 127]]
    assert pruned_codes(codes, 0.0).equal(codes)
    assert codes_of(codes) is codes
    with pytest.raises(ValueError, match=r"at least 0 and below 1: got 1\.0"):
        pruned_codes(codes, 1.0)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_a_file_of_codes_without_zeros_comes_back(tmp_path, share):
    codes = torch.randint(-128, 128, (64, 64), generator=torch.Generator().manual_seed(0))
    state = {
        "q": pruned_codes(codes.to(torch.int8), share),
        "scale": torch.rand(64, 1),
        "w": torch.zeros(32),
        "u": torch.ones(3),
    }
    dense = write_state(state, tmp_path / "dense")
    sparse = write_state(state, tmp_path / "sparse", sparse=True)
    zeros = int((state["q"] == 0).sum())
    saved = (zeros - 4096 / 8 if zeros > 4096 / 8 else 0) + 4 * 32 - 4
    assert dense - sparse == pytest.approx(saved, abs=220)  # names of tensors, and shapes
    for name in ("dense", "sparse"):
        restored = read_state(tmp_path / name)
        assert restored.keys() == state.keys()
        assert all(restored[key].equal(value) for key, value in state.items())
        assert restored["q"].dtype == torch.int8
