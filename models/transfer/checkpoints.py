"""Reads public checkpoints of GPT-2 and BERT, and converts their tensors to this backbone's names.

Checkpoints are safetensors files, which contain numbers but no code. A `config.json` in the same
folder gives the number of heads, the kind of GELU and the epsilon of norms. Without this file, kind
and epsilon are those of the original models, and the number of heads is not checked.

GPT-2   pre-norm, GELU by tanh, epsilon 1e-5, learned positions, the embedding as head. Its linear
        maps are stored [in, out], those of queries, keys and values side by side in one matrix.
BERT    post-norm, GELU, epsilon 1e-12, learned positions and a norm over the embeddings. The vector
        of the first segment is added to every position, because inputs are one sequence here. The
        pooler and the heads of pretraining are excluded.

Source: Radford et al. 2019 (openai/gpt-2); Devlin et al. 2019, arXiv:1810.04805. The names of the
tensors are those of the transformers package.
"""

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lra.conf.plain_files import NoJson, parse_json, read_bytes, typed_object
from lra.conf.short_values import short_list, short_repr
from lra.models.backbone.model import Backbone, FeedForward, Positions, Residual
from lra.models.transfer.files import read_tensors
from lra.models.transfer.weights import Parts, TransferReport, Weights, fill, transfer

ACTIVATIONS = {
    "gelu": FeedForward.gelu,
    "gelu_new": FeedForward.gelu_tanh,
    "gelu_pytorch_tanh": FeedForward.gelu_tanh,
}


class _Tensors:
    """The tensors of a file. `get` checks and removes one; `left` has those not read yet."""

    def __init__(self, path: Path, tensors: dict[str, Tensor]) -> None:
        self.path, self.left = path, tensors

    def get(self, name: str, *shape: int) -> Tensor:
        """Return the tensor `name` and remove it from `left`; -1 in `shape` allows any size.

        Raises:
            ValueError: The tensor is missing, has another shape, or is not finite.
        """
        if name not in self.left:
            raise ValueError(
                f"{self.path} has no tensor {name}: the file is truncated, or it is one of several "
                "files; pass their index file instead"
            )
        tensor = self.left.pop(name)
        if len(tensor.shape) != len(shape) or any(
            wanted not in (-1, got) for got, wanted in zip(tensor.shape, shape, strict=True)
        ):
            wanted_shape = ", ".join("any" if size == -1 else str(size) for size in shape)
            raise ValueError(
                f"{self.path}: {name} has shape {list(tensor.shape)}, but the shape must be "
                f"[{wanted_shape}]; this checkpoint belongs to another kind of model"
            )
        if odd := tensor.numel() - int(tensor.isfinite().sum()):
            raise ValueError(
                f"{self.path}: {odd:,} of {tensor.numel():,} numbers of {name} are not finite; "
                "download the file again, or save a model from before training diverged"
            )
        return tensor if tensor.dtype == torch.float64 else tensor.float()

    def linear(self, name: str, into: str, rows: int, columns: int) -> dict[str, Tensor]:
        """Return weight and bias of a map from `columns` to `rows`; `into` is its new name."""
        return {
            f"{into}.weight": self.get(f"{name}.weight", rows, columns),
            f"{into}.bias": self.get(f"{name}.bias", rows),
        }

    def norm(self, name: str, into: str, width: int) -> dict[str, Tensor]:
        """Return weight and bias of a norm; `into` is its new name."""
        return {f"{into}.{kind}": self.get(f"{name}.{kind}", width) for kind in ("weight", "bias")}

    def drop(self, pattern: str) -> frozenset[str]:
        """Remove the tensors whose names match `pattern`, and return their names."""
        dropped = frozenset(name for name in self.left if re.fullmatch(pattern, name))
        for name in dropped:
            del self.left[name]
        return dropped

    def layers(self, pattern: str) -> int:
        """Return the number of layers: 1 plus the highest number that `pattern` finds in names."""
        matches = [re.match(pattern, name) for name in self.left]
        return 1 + max((int(match[1]) for match in matches if match), default=0)


def _read_gpt2(file: _Tensors) -> tuple[dict[str, Tensor], frozenset[str]]:
    """Return GPT-2's tensors under this backbone's names, and the names of ignored tensors."""
    embedding = file.get("wte.weight", -1, -1)
    width = embedding.shape[1]
    ours = {
        "embedding.weight": embedding,
        "positions.table": file.get("wpe.weight", -1, width),
        **file.norm("ln_f", "stack.norm", width),
    }
    for layer in range(file.layers(r"h\.(\d+)\.")):
        their_layer, our_layer = f"h.{layer}", f"stack.blocks.{layer}"
        ours |= file.norm(f"{their_layer}.ln_1", f"{our_layer}.mixer_norm", width)
        ours |= file.norm(f"{their_layer}.ln_2", f"{our_layer}.network_norm", width)
        weight = file.get(f"{their_layer}.attn.c_attn.weight", width, 3 * width)
        bias = file.get(f"{their_layer}.attn.c_attn.bias", 3 * width)
        for name, matrix, vector in zip("qkv", weight.chunk(3, 1), bias.chunk(3), strict=True):
            # GPT-2 stores maps as [in, out]; those of PyTorch are [out, in].
            ours[f"{our_layer}.mixer.{name}_proj.weight"] = matrix.T.contiguous()
            ours[f"{our_layer}.mixer.{name}_proj.bias"] = vector.clone()
        # If the bias is missing, the width is 0 here, and `get` below raises the error.
        hidden = file.left.get(f"{their_layer}.mlp.c_fc.bias", embedding.new_empty(0)).shape[0]
        for name, into, rows, columns in (
            ("attn.c_proj", "mixer.out_proj", width, width),
            ("mlp.c_fc", "network.0", hidden, width),
            ("mlp.c_proj", "network.3", width, hidden),
        ):
            stored = file.get(f"{their_layer}.{name}.weight", columns, rows)
            ours[f"{our_layer}.{into}.weight"] = stored.T.contiguous()
            ours[f"{our_layer}.{into}.bias"] = file.get(f"{their_layer}.{name}.bias", rows)
    ours["head.weight"] = embedding
    if "lm_head.weight" in file.left:
        ours["head.weight"] = file.get("lm_head.weight", *embedding.shape)
    # Some versions also stored the causal masks, which are ignored.
    return ours, file.drop(r"h\.\d+\.attn\.(bias|masked_bias)")


def _read_bert(file: _Tensors) -> tuple[dict[str, Tensor], frozenset[str]]:
    """Return BERT's tensors under this backbone's names, and the names of ignored tensors."""
    embedding = file.get("embeddings.word_embeddings.weight", -1, -1)
    width = embedding.shape[1]
    positions = file.get("embeddings.position_embeddings.weight", -1, width)
    segments = file.get("embeddings.token_type_embeddings.weight", -1, width)
    ours = {
        "embedding.weight": embedding,
        "positions.table": positions + segments[0],  # inputs have one segment
        **file.norm("embeddings.LayerNorm", "stack.norm", width),
    }
    for layer in range(file.layers(r"encoder\.layer\.(\d+)\.")):
        their_layer, our_layer = f"encoder.layer.{layer}", f"stack.blocks.{layer}"
        attention, out = f"{their_layer}.attention.self", f"{their_layer}.attention.output"
        hidden = file.left.get(
            f"{their_layer}.intermediate.dense.bias", embedding.new_empty(0)
        ).shape[0]  # 0 if the bias is missing; `linear` below raises the error
        for name, into, rows, columns in (
            (f"{attention}.query", "mixer.q_proj", width, width),
            (f"{attention}.key", "mixer.k_proj", width, width),
            (f"{attention}.value", "mixer.v_proj", width, width),
            (f"{out}.dense", "mixer.out_proj", width, width),
            (f"{their_layer}.intermediate.dense", "network.0", hidden, width),
            (f"{their_layer}.output.dense", "network.3", width, hidden),
        ):
            ours |= file.linear(name, f"{our_layer}.{into}", rows, columns)
        ours |= file.norm(f"{out}.LayerNorm", f"{our_layer}.mixer_norm", width)
        ours |= file.norm(f"{their_layer}.output.LayerNorm", f"{our_layer}.network_norm", width)
    return ours, file.drop(r"embeddings\.position_ids|pooler\..*|cls\..*")


class _Format(NamedTuple):
    """How a kind of checkpoint is recognised and read."""

    key: str
    """Name of a tensor that only this kind has."""
    prefix: str
    """Optional prefix of all names."""
    read: Callable[[_Tensors], tuple[dict[str, Tensor], frozenset[str]]]
    residual: Residual
    activation: str
    epsilon: float
    config_keys: Mapping[str, str]
    """Keys of heads, activation and epsilon in config.json."""
    plain: Mapping[str, Any]
    """Other keys of config.json, each with the only value that this backbone supports."""


FORMATS = {
    "GPT-2": _Format(
        key="wte.weight",
        prefix="transformer.",
        read=_read_gpt2,
        residual=Residual.pre_norm,
        activation="gelu_new",
        epsilon=1e-5,
        config_keys={"heads": "n_head", "activation": "activation_function"}
        | {"epsilon": "layer_norm_epsilon"},
        plain={
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
    ),
    "BERT": _Format(
        key="embeddings.word_embeddings.weight",
        prefix="bert.",
        read=_read_bert,
        residual=Residual.post_norm,
        activation="gelu",
        epsilon=1e-12,
        config_keys={"heads": "num_attention_heads", "activation": "hidden_act"}
        | {"epsilon": "layer_norm_eps"},
        plain={
            "position_embedding_type": "absolute",
            "is_decoder": False,
            "add_cross_attention": False,
        },
    ),
}


def load_checkpoint(path: Path, model: Backbone, parts: Parts = Parts.all) -> TransferReport:
    """Copy the weights in the file `path` of GPT-2, BERT or the same model into `model`.

    A file in the format of neither GPT-2 nor BERT must have all tensors of `model`, by name.

    Raises:
        ValueError: For the same reasons as in `read_checkpoint`, `transfer` or `fill`.
    """
    tensors = read_tensors(path)
    if _format_of(tensors) is None and parts == Parts.all:
        return fill(model, tensors, path.name)
    return transfer(_convert(path, tensors), model, parts)


def read_checkpoint(path: Path) -> Weights:
    """Return the weights of a safetensors file of GPT-2 or BERT, or of several by their index.

    Raises:
        ValueError: The file is missing, damaged or of another kind; a tensor is missing, unknown or
            of the wrong shape; or config.json has options that this backbone does not support.
    """
    return _convert(path, read_tensors(path))


def _convert(path: Path, tensors: Mapping[str, Tensor]) -> Weights:
    """Convert a file's tensors to this backbone's names; see `read_checkpoint`."""
    kind, plain = _strip_prefix(path, tensors)
    form = FORMATS[kind]
    file = _Tensors(path, plain)
    ours, loose = form.read(file)
    if file.left:
        raise ValueError(
            f"{path} has tensors that {kind} does not have: {short_list(sorted(file.left)[:3])}. "
            "Its model computes another function, so its weights cannot be copied"
        )
    tied = "head.weight" in ours and torch.equal(ours["head.weight"], ours["embedding.weight"])
    return Weights(
        name=path.name,
        # The names of ignored tensors get empty values, so that the report lists them as unused.
        tensors=ours | {name: torch.empty(0) for name in loose},
        options=_find_options(path, form, ours),
        tied=tied,
        loose=loose,
    )


def _format_of(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the format of a file with these tensors, or None if it is unknown."""
    for kind, form in FORMATS.items():
        if form.key in tensors or form.prefix + form.key in tensors:
            return kind
    return None


def _strip_prefix(path: Path, tensors: Mapping[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    """Return the name of the format, and the tensors without the prefix of their names.

    ValueError for an unknown format.
    """
    if (kind := _format_of(tensors)) is not None:
        prefix = FORMATS[kind].prefix
        return kind, {_modernise(name.removeprefix(prefix)): v for name, v in tensors.items()}
    raise ValueError(
        f"the names of the tensors in {path} are those of neither {' nor '.join(FORMATS)}: got "
        f"{short_list(sorted(tensors)[:3]) or 'no tensors'}; convert the file to one of these "
        "formats"
    )


def _modernise(name: str) -> str:
    """Return the present name of a tensor: old files call a norm's weight gamma, its bias beta."""
    return re.sub(
        r"LayerNorm\.(gamma|beta)$",
        lambda match: f"LayerNorm.{'weight' if match[1] == 'gamma' else 'bias'}",
        name,
    )


def _find_options(path: Path, form: _Format, ours: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the options of the backbone for the weights `ours`, from shapes and config.json."""
    settings = _read_config(path.with_name("config.json"), form)
    hidden, width = ours["stack.blocks.0.network.0.weight"].shape
    layers = {name.split(".")[2] for name in ours if name.startswith("stack.blocks.")}
    activation = settings.get("activation", form.activation)
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"{path.with_name('config.json')}: got "
            f"{form.config_keys['activation']}={short_repr(activation)}; wanted one of the "
            f"activations of this backbone: {', '.join(ACTIVATIONS)}"
        )
    heads = {"heads": settings["heads"]} if "heads" in settings else {}
    return heads | {
        "depth": len(layers),
        "layer_groups": None,  # no layer shares its weights
        "width": width,
        "feed_forward_width": hidden,
        "feed_forward_groups": 1,
        "feed_forward": ACTIVATIONS[activation],
        "residual": form.residual,
        "norm_epsilon": settings.get("epsilon", form.epsilon),
        "positions": Positions.learned,
    }


def _read_config(path: Path, form: _Format) -> dict[str, Any]:
    """Return heads, activation and epsilon from config.json, if the file and the keys exist."""
    if not path.is_file():
        return {}
    try:
        node = typed_object(parse_json(read_bytes(path).removeprefix(BOM_UTF8)), {})
    except NoJson as error:
        raise ValueError(f"{path}: {error}; download it again, or remove it") from error
    for name, wanted in form.plain.items():
        if node.get(name, wanted) != wanted:
            raise ValueError(
                f"{path}: got {name}={short_repr(node[name])}; wanted {name}={wanted!r}, the "
                "only value that this backbone supports"
            )
    return {ours: node[theirs] for ours, theirs in form.config_keys.items() if theirs in node}
