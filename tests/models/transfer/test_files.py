"""Weights of the same model from elsewhere: files, prefixes, and what does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file, save_model

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.linear import LinearAttention
from lra.models.mixer import Unsupported
from lra.models.transfer.checkpoints import load_checkpoint
from lra.models.transfer.files import files_of, read_tensors
from lra.models.transfer.weights import Origin
from tests.models.transfer.gpt2_and_bert import Tensors

INDEX = "model.safetensors.index.json"


def build(seed: int = 1, head: Head = Head.language_modelling, **options: Any) -> Backbone:
    facts = TaskFacts(head=head, vocabulary=11, classes=3, max_length=9)
    config = BackboneConfig(**{"width": 8, "heads": 2, "depth": 2, **options})
    return Backbone(config, facts, [LinearAttention], seed=seed)


def tensors_of(model: Backbone) -> Tensors:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def written(folder: Path, tensors: Tensors, parts: int = 1) -> Path:
    """Write one file, or several and their index; return what is to be named."""
    if parts == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder / "model.safetensors"
    names = sorted(tensors)
    places = {}
    for part in range(parts):
        file = f"model-{part + 1:05d}-of-{parts:05d}.safetensors"
        save_file({name: tensors[name] for name in names[part::parts]}, folder / file)
        places |= dict.fromkeys(names[part::parts], file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder / INDEX


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod."])  # fmt: skip  # noqa: E501
def test_a_model_has_the_weights_of_another(prefix: str, parts: int, tmp_path: Path) -> None:
    source, target = build(1), build(2)
    stored = {prefix + name: tensor for name, tensor in tensors_of(source).items()}
    report = load_checkpoint(written(tmp_path, stored, parts), target)
    for name, tensor in source.state_dict().items():
        assert torch.equal(tensor, target.state_dict()[name]), name
    assert set(report.origins.values()) == {Origin.copied}
    assert report.parameters[Origin.copied] == sum(p.numel() for p in target.parameters())


def test_a_layer_that_was_compiled_by_itself_and_one_called_module(tmp_path: Path) -> None:
    tensors = {"blocks._orig_mod.0.weight": torch.ones(1), "module.bias": torch.zeros(1)}
    assert set(read_tensors(written(tmp_path, tensors))) == {"blocks.0.weight", "module.bias"}


def test_a_tied_matrix_may_be_stored_once(tmp_path: Path) -> None:
    source, target = build(1, tied_embeddings=True), build(2, tied_embeddings=True)
    save_model(source, str(tmp_path / "model.safetensors"))
    load_checkpoint(tmp_path / "model.safetensors", target)
    assert torch.equal(source.embedding.weight, target.head.weight)
    assert target.head.weight is target.embedding.weight


def test_names_that_differ_are_counted_with_near_ones(tmp_path: Path) -> None:
    source, target = build(1), build(2)
    before = tensors_of(target)
    stored = {name.replace("mixer.", "attention."): t for name, t in tensors_of(source).items()}
    number = sum("mixer." in name for name in before)
    words = (
        rf"{number} of its {len(before)} tensors are missing, such as "
        r"stack\.blocks\.0\.mixer\.q_proj\.weight "
        r"\(near: stack\.blocks\.0\.attention\.q_proj\.weight\).*"
        rf"; {number} of the file's {len(before)} tensors have no place in the model, such as "
        r"stack\.blocks\.0"
    )
    with pytest.raises(Unsupported, match=words):
        load_checkpoint(written(tmp_path, stored), target)
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.state_dict().items())


def test_shapes_and_numbers_that_do_not_fit_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        Unsupported, match=r"embedding\.weight of .* has shape \[11, 8\], .* \[11, 12\]"
    ):
        load_checkpoint(written(tmp_path, tensors_of(build())), build(width=12, heads=2))
    tensors = tensors_of(build())
    tensors["stack.norm.bias"][2] = torch.nan
    with pytest.raises(Unsupported, match=r"1 of 8 numbers of stack\.norm\.bias are not finite"):
        load_checkpoint(written(tmp_path, tensors), build())


def test_one_file_of_several_and_what_is_missing(tmp_path: Path) -> None:
    index = written(tmp_path, tensors_of(build()), parts=2)
    assert [file.name for file in files_of(index)] == sorted(
        file.name for file in tmp_path.glob("*.safetensors")
    )
    part = files_of(index)[1]
    with pytest.raises(
        ValueError, match=rf"is one of several files: pass their index instead, .*{INDEX}"
    ):
        load_checkpoint(part, build())
    part.unlink()
    with pytest.raises(ValueError, match=rf"names 2 files, but 1 of them are missing: {part.name}"):
        load_checkpoint(index, build())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not JSON"),
        ("[]", "wanted a JSON object"),
        ("{}", "names no files in the same folder"),
        ('{"weight_map": {"a": "../a.safetensors"}}', "names no files in the same folder"),
        ('{"weight_map": {"a": 3}}', "names no files in the same folder"),
        ('{"weight_map": {"a": [1]}}', "names no files in the same folder"),
    ],
)
def test_an_index_that_is_none(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ValueError, match=words):
        read_tensors(tmp_path / INDEX)
