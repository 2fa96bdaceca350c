"""Files with GPT-2's and BERT's names: the same function as the models written out, or an error."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from lra.models.backbone.model import (
    Backbone,
    BackboneConfig,
    FeedForward,
    Head,
    Pooling,
    Residual,
    TaskFacts,
)
from lra.models.families.performer import Performer
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Unsupported
from lra.models.transfer.checkpoints import read_checkpoint
from lra.models.transfer.weights import Origin, transfer
from tests.models.transfer.gpt2_and_bert import Tensors, bert, bert_tensors, gpt2, gpt2_tensors

HEADS = 3
FRAME = {"width": 12, "heads": HEADS, "feed_forward_width": 20}
GPT2 = {**FRAME, "feed_forward": FeedForward.gelu_tanh}
BERT = {**FRAME, "residual": Residual.post_norm, "norm_epsilon": 1e-12}
TOKENS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5])


def written(folder: Path, tensors: Tensors, prefix: str = "", **config: Any) -> Path:
    path = folder / "model.safetensors"
    save_file({prefix + name: value.contiguous() for name, value in tensors.items()}, path)
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return path


def build(mixer: Any = SoftmaxAttention, head: Head = Head.language_modelling, **options: Any) -> Backbone:  # fmt: skip  # noqa: E501
    length = options.pop("length", 9)
    facts = TaskFacts(head=head, vocabulary=11, classes=3, max_length=length)
    return Backbone(BackboneConfig(**options), facts, [mixer], seed=1).double().eval()


# --------------------------------------------------------------------------------- GPT-2


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_gpt2_gives_its_own_logits(prefix: str, tied: bool, tmp_path: Path) -> None:
    tensors = gpt2_tensors()
    path = written(tmp_path, tensors, prefix)
    model = build(**GPT2, tied_embeddings=tied)
    report = transfer(read_checkpoint(path), model)
    logits, _ = model.predict(TOKENS[None, None])
    torch.testing.assert_close(logits[0], gpt2(TOKENS, tensors, HEADS))
    assert set(report.origins.values()) == {Origin.copied}


def test_gpt2_with_a_head_of_its_own_and_stored_masks(tmp_path: Path) -> None:
    tensors = gpt2_tensors()
    head = torch.randn(11, 12, dtype=torch.float64)
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, 9, 9).tril() for i in (0, 1)}
    path = written(tmp_path, {**tensors, **masks, "lm_head.weight": head})
    model = build(**GPT2, tied_embeddings=False)
    assert transfer(read_checkpoint(path), model).unused == tuple(sorted(masks))
    logits, _ = model.predict(TOKENS[None, None])
    torch.testing.assert_close(logits[0], gpt2(TOKENS, tensors, HEADS, head))
    with pytest.raises(Unsupported, match="does not compute answers from its embedding"):
        transfer(read_checkpoint(path), build(**GPT2))


def test_gpt2_at_a_greater_length_and_by_another_family(tmp_path: Path) -> None:
    tensors = gpt2_tensors()
    path = written(tmp_path, tensors)
    model = build(partial(Performer, features=20_000), **GPT2, length=25)
    report = transfer(read_checkpoint(path), model)
    assert report.lengths == (9, 25)
    logits = model.predict(TOKENS[None, None])[0].detach()
    wanted = gpt2(TOKENS, tensors, HEADS)
    assert float((logits[0] - wanted).norm() / wanted.norm()) < 0.05


def test_half_precision_becomes_single(tmp_path: Path) -> None:
    tensors = {name: value.bfloat16() for name, value in gpt2_tensors().items()}
    weights = read_checkpoint(written(tmp_path, tensors))
    assert {value.dtype for value in weights.tensors.values()} == {torch.float32}
    rounded = {name: value.double() for name, value in tensors.items()}
    model = build(**GPT2)
    transfer(weights, model)
    logits, _ = model.predict(TOKENS[None, None])
    torch.testing.assert_close(logits[0], gpt2(TOKENS, rounded, HEADS), rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------------------- BERT


@pytest.mark.parametrize("prefix", ["", "bert."])
@pytest.mark.parametrize("old", [False, True])
def test_bert_gives_its_own_last_layer(prefix: str, old: bool, tmp_path: Path) -> None:
    tensors = bert_tensors()
    stored = {**tensors, "pooler.dense.weight": torch.zeros(12, 12)}
    if old:
        stored = {
            name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): value
            for name, value in stored.items()
        }
    path = written(tmp_path, stored, prefix)
    model = build(head=Head.classification, pooling=Pooling.mean, **BERT)
    report = transfer(read_checkpoint(path), model)
    found = model.run(TOKENS[None, None], None, None).x
    torch.testing.assert_close(found[0], bert(TOKENS, tensors, HEADS))
    assert report.unused == ("pooler.dense.weight",)
    drawn = {key for key, origin in report.origins.items() if origin is Origin.drawn}
    assert drawn == {"head.hidden.weight", "head.hidden.bias", "head.out.weight", "head.out.bias"}


def test_bert_gives_its_first_position_to_the_cls_vector(tmp_path: Path) -> None:
    tensors = bert_tensors()
    model = build(head=Head.classification, length=8, **BERT)
    transfer(read_checkpoint(written(tmp_path, tensors)), model)
    with torch.no_grad():
        model.cls.copy_(tensors["embeddings.word_embeddings.weight"][TOKENS[0]])
    found = model.run(TOKENS[None, None, 1:], None, None).x
    torch.testing.assert_close(found[0], bert(TOKENS, tensors, HEADS))


def test_bert_is_no_tied_language_model(tmp_path: Path) -> None:
    weights = read_checkpoint(written(tmp_path, bert_tensors()))
    with pytest.raises(Unsupported, match=r"tied_embeddings=false"):
        transfer(weights, build(head=Head.masked_modelling, **BERT))
    model = build(head=Head.masked_modelling, tied_embeddings=False, **BERT)
    assert transfer(weights, model).origins["head.weight"] is Origin.drawn
    x = model.run(TOKENS[None, None], None, None).x
    torch.testing.assert_close(x[0], bert(TOKENS, bert_tensors(), HEADS))


# ------------------------------------------------------------------------- config.json


def test_a_config_beside_the_file_says_what_tensors_do_not(tmp_path: Path) -> None:
    told = {"n_head": 3, "activation_function": "gelu", "layer_norm_epsilon": 0.25}
    weights = read_checkpoint(written(tmp_path, gpt2_tensors(), **told))
    assert weights.options["heads"] == 3
    assert weights.options["feed_forward"] is FeedForward.gelu
    assert weights.options["norm_epsilon"] == 0.25
    with pytest.raises(Unsupported, match="heads=3, but this model has 2"):
        transfer(weights, build(**(GPT2 | {"heads": 2})))
    (tmp_path / "config.json").unlink()
    assert "heads" not in read_checkpoint(tmp_path / "model.safetensors").options


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"activation_function": "relu"}, "activation_function='relu'; wanted one of .*: gelu"),
        (
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx=True; wanted .*=False, the only",
        ),
    ],
)
def test_a_config_of_another_function_is_refused(
    told: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        read_checkpoint(written(tmp_path, gpt2_tensors(), **told))


@pytest.mark.parametrize(("text", "words"), [("{", "not JSON"), ("[1]", "wanted a JSON object")])
def test_a_config_that_is_none(text: str, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, gpt2_tensors())
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        read_checkpoint(path)


# -------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("kept", [0, 5, 100, 3000])
def test_a_truncated_file(kept: int, tmp_path: Path) -> None:
    path = written(tmp_path, gpt2_tensors())
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read as safetensors"):
        read_checkpoint(path)


def test_a_pickle_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(gpt2_tensors(), path)
    with pytest.raises(ValueError, match="or in another format"):
        read_checkpoint(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*nowhere\.safetensors"):
        read_checkpoint(tmp_path / "nowhere.safetensors")


@pytest.mark.parametrize("make", [gpt2_tensors, bert_tensors])
def test_every_missing_or_misshapen_tensor_is_named(make: Any, tmp_path: Path) -> None:
    whole = make()
    known = next(iter(whole))  # what the format is told by
    for name, value in whole.items():
        path = written(tmp_path, {**whole, name: value[..., :-1]})
        with pytest.raises(ValueError, match="has shape"):
            read_checkpoint(path)
        if name != known:
            path = written(tmp_path, {k: v for k, v in whole.items() if k != name})
            with pytest.raises(ValueError, match=r"has no tensor|has shape"):
                read_checkpoint(path)


@pytest.mark.parametrize("make", [gpt2_tensors, bert_tensors])
def test_numbers_that_are_none_are_refused_by_name(make: Any, tmp_path: Path) -> None:
    """But for tensors that are left out, as stored masks of minus infinity are."""
    for name, value in make().items():
        odd = value.clone()
        odd.view(-1)[-1] = torch.nan if odd.numel() % 2 else -torch.inf
        path = written(tmp_path, {**make(), name: odd})
        if re.fullmatch(r"pooler\..*|cls\..*", name):
            read_checkpoint(path)
            continue
        with pytest.raises(ValueError, match=rf"1 of {odd.numel():,} numbers of {re.escape(name)}"):
            read_checkpoint(path)


def test_a_checkpoint_without_layers(tmp_path: Path) -> None:
    tensors = {name: v for name, v in gpt2_tensors().items() if not name.startswith("h.")}
    with pytest.raises(ValueError, match=r"has no tensor h\.0\.ln_1\.weight"):
        read_checkpoint(written(tmp_path, tensors))


def test_an_unknown_format_and_unknown_tensors(tmp_path: Path) -> None:
    path = written(tmp_path, {"model.embed_tokens.weight": torch.zeros(3, 2)})
    with pytest.raises(ValueError, match=r"neither GPT-2 nor BERT: got model\.embed_tokens"):
        read_checkpoint(path)
    path = written(tmp_path, {**gpt2_tensors(), "h.0.crossattention.q.weight": torch.zeros(2)})
    with pytest.raises(ValueError, match=r"tensors that GPT-2 does not have: h\.0\.crossattention"):
        read_checkpoint(path)
