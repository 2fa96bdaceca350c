"""Eight bits against loops over numbers: codes, scales, integer products, codebooks, files."""

import copy
import sys

import pytest
import torch
from torch import nn

from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.model import Backbone
from lra.models.compression import int8
from lra.models.compression.codebook import CodebookLinear, code_weights, codebook
from lra.models.compression.int8 import Int8Form, Int8Library, Int8Linear, coded, quantise
from lra.models.compression.linear_maps import linear_maps
from lra.models.compression.storage import read_state, write_state
from lra.models.contract.counting import count_operations
from lra.models.families.linear import LinearAttention
from lra.models.families.lstm import LSTM
from lra.models.mixer import Unsupported

FACTS = TaskFacts(head=Head.classification, vocabulary=40, classes=3, max_length=8)


def model_of(mixer=LinearAttention, width=32):
    config = BackboneConfig(width=width, heads=2, depth=1, feed_forward_width=64)
    return Backbone(config, FACTS, [mixer], seed=1).eval()


def literal(row):
    """One row's codes and scale, number by number."""
    scale = max(abs(float(w)) for w in row) / 127.5
    return [max(-128, min(127, round(float(w) * (1 / scale)))) for w in row], scale


def test_codes_are_those_of_the_definition():
    w = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    codes, scale = coded(w)
    for row, own, of_row in zip(w, codes.tolist(), scale[:, 0].tolist(), strict=True):
        wanted, wanted_scale = literal(row)
        assert own == wanted
        assert of_row == pytest.approx(wanted_scale, rel=1e-12)
    zero, least = coded(torch.zeros(1, 3))
    assert zero.tolist() == [[0, 0, 0]]
    assert float(least) > 0


@pytest.mark.parametrize("form", list(Int8Form))
def test_a_map_is_the_sum_over_integers(form):
    torch.manual_seed(0)
    layer, x = nn.Linear(6, 4).double(), torch.randn(3, 2, 6).double()
    own = Int8Linear(layer, form, largest=float(x.abs().max()) / 2)
    found = own(x).detach()
    for row in range(3):
        for at in range(2):
            token = x[row, at]
            if form is Int8Form.dynamic:
                codes, scale = literal(token)
            elif form is Int8Form.static:
                scale = float(x.abs().max()) / 2 / 127.5
                codes = [max(-128, min(127, round(float(v) * (1 / scale)))) for v in token]
            else:
                codes, scale = token.tolist(), 1.0
            for out in range(4):
                q, s = literal(layer.weight.detach()[out])
                total = sum(p * each for p, each in zip(codes, q, strict=True))
                wanted = scale * s * total + float(layer.bias.detach()[out])
                assert float(found[row, at, out]) == pytest.approx(wanted, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("form", list(Int8Form))
def test_a_model_in_eight_bits_answers_nearly_alike_from_a_quarter_of_its_maps(tmp_path, form):
    model, tokens = model_of(), torch.arange(128).view(16, 1, 8) % 40
    whole = copy.deepcopy(model)
    maps = sum(layer.weight.numel() for layer in linear_maps(whole).values())
    names = quantise(model, form, calibration=[lambda: model.predict(tokens)])
    assert set(names) == set(linear_maps(whole))
    with torch.inference_mode():
        before, after = whole.predict(tokens)[0], model.predict(tokens)[0]
    assert 1e-7 < float((after - before).abs().max() / before.abs().max()) < 0.05
    sizes = [write_state(m.state_dict(), tmp_path / "m") for m in (whole, model)]
    assert sizes[0] - sizes[1] == pytest.approx(3 * maps, rel=0.2)  # scales, and names of tensors
    other = model_of()
    quantise(other, form, calibration=[lambda: other.predict(tokens)])
    other.load_state_dict(read_state(tmp_path / "m"))
    with torch.inference_mode():
        assert torch.equal(other.predict(tokens)[0], after)
        operations = [count_operations(lambda m=m: m.predict(tokens)) for m in (whole, model)]
    assert operations[0] == operations[1]
    kinds = {type(part) for part in model.modules()}
    assert Int8Linear in kinds
    assert nn.LayerNorm in kinds
    assert model.embedding.weight.dtype == torch.float32


def test_what_a_family_has_besides_stays_as_it_was():
    model = model_of(LSTM)
    names = quantise(model, Int8Form.weight_only)
    assert all("network" in name or name.startswith("head.") for name in names)
    assert all(v.dtype == torch.float32 for k, v in model.state_dict().items() if ".mixer." in k)


def test_what_cannot_run_says_why(monkeypatch):
    with pytest.raises(ValueError, match="no pass"):
        quantise(model_of(), Int8Form.static)
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(Unsupported, match=r"lra\[quantisation\].*runner.library=own"):
        quantise(model_of(), Int8Form.weight_only, library=Int8Library.torchao)

    def lacking(a, b):
        raise RuntimeError("no kernel\nat all")

    monkeypatch.setattr(int8, "integer_product", lacking)
    with pytest.raises(Unsupported, match=r"no product of 8-bit.*runner.form=weight_only"):
        quantise(model_of(), Int8Form.dynamic)
    quantise(model_of(), Int8Form.weight_only)
    monkeypatch.setattr(int8, "integer_product", lambda a, b: (a.int() @ b.int()).clamp(max=99))
    with pytest.raises(Unsupported, match="wrongly"):
        quantise(model_of(), Int8Form.dynamic)


def test_a_codebook_of_256_numbers_loses_nothing():
    draw = torch.Generator().manual_seed(0)
    few = torch.randn(256, generator=draw)[torch.randint(0, 256, (40, 30), generator=draw)]
    codes, centres = codebook(few)
    assert torch.equal(centres[codes.int()], few)
    many = torch.randn(4000, generator=draw).double()
    codes, centres = codebook(many, centres=16, rounds=1000)
    assert codes.dtype == torch.uint8
    # nearest centres, each the mean of its own: no step of k-means is left
    nearest = (many[:, None] - centres).abs().argmin(1)
    assert torch.equal(nearest, codes.long())
    for number, centre in enumerate(centres):
        own = many[codes == number]
        assert float(centre) == pytest.approx(float(own.mean()), abs=1e-12)
    step = (many.max() - many.min()) / 15
    levels = ((many - many.min()) / step).round() * step + many.min()
    assert float((centres[codes.int()] - many).norm()) < float((levels - many).norm())
    with pytest.raises(ValueError, match="1 to 256: got 257"):
        codebook(few, centres=257)


def test_a_model_with_codebooks_is_a_file_of_codes(tmp_path):
    model, tokens = model_of(width=64), torch.arange(32).view(4, 1, 8)
    dense = write_state(model.state_dict(), tmp_path / "m")
    before = model.predict(tokens)[0].detach()
    maps = sum(layer.weight.numel() for layer in linear_maps(model).values())
    names = code_weights(model)
    assert isinstance(model.get_submodule(names[0]), CodebookLinear)
    size = write_state(model.state_dict(), tmp_path / "m")
    books = 4 * 256 * len(names)
    assert dense - size == pytest.approx(3 * maps - books, rel=0.2)
    assert float((model.predict(tokens)[0].detach() - before).abs().max()) < 0.05 * float(
        before.abs().max()
    )
