"""Copies the weights of a trained model into another model, which may have another family.

    report = transfer(weights_of(source), target)

Weights with the same name have the same meaning in all models of this backbone: embedding,
positions, norms, networks, head, and the projections of queries, keys, values and output in all
families that use `lra.models.multi_head`. They are copied, with three additions:

Positions  A learned table that is too short is extended by copies of itself, as Longformer's 4,096
           positions are eight copies of RoBERTa's 512 (arXiv:2004.05150, section 5). A table that
           is too long is cut. The row of a CLS vector stays the first and is not repeated.
Scale      Tied embeddings are multiplied by sqrt(width) at the input. If the source has another
           factor, its embedding is divided by the quotient c, and if the same matrix is the head,
           the last norm is multiplied by c. The function is the same.
Starts     Some parameters of a family start from other weights, for example Longformer's
           projections of global tokens from the ordinary projections.

The generator of a model that detects replaced tokens is copied only into such a model.

Other parameters keep their random initial values: a head of another shape, parameters that only the
new family has, and random features. For example, a Performer with the weights of softmax attention
estimates this softmax, more accurately with more features.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lra.models.backbone.model import Backbone, Residual
from lra.models.backbone.stack import Stack
from lra.models.mixer import INSIDE, Unsupported

WEIGHT_OPTIONS = (
    "depth", "layer_groups", "width", "heads", "head_width", "feed_forward_width", "feed_forward",
    "feed_forward_groups", "residual", "norm", "norm_epsilon", "positions", "pool_blocks",
    "pool_layers", "pool_repeats", "pool_query_only", "pool_mode",
)  # fmt: skip
"""Options of the backbone that decide what its weights mean."""
EMBEDDING, TABLE, NORM = "embedding.weight", "positions.table", "stack.norm."
GENERATOR = "generator."


class Parts(StrEnum):
    """The parts of the source model that are copied."""

    all = auto()
    blocks = auto()
    """Only the stack of layers; the target's embedding, positions and head stay unchanged."""


class Origin(StrEnum):
    """Where the values of a parameter of the target come from."""

    copied = auto()
    extended = auto()
    """A table of positions of another length."""
    started = auto()
    """Computed by the family from other weights that were copied."""
    drawn = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Weights under this backbone's names, and the options that they were made for."""

    name: str
    """Name of the source in messages."""
    tensors: Mapping[str, Tensor]
    options: Mapping[str, Any]
    """Values of `WEIGHT_OPTIONS`, as far as they are known."""
    input_scale: float = 1.0
    """Factor of the embedding at the input."""
    tied: bool = False
    """Whether the embedding is also the matrix of the head."""
    cls_row: bool | None = None
    """Whether the first position belongs to a CLS vector; None: rows are copied in order."""
    added_ids: int = 0
    """Number of last rows of the embedding that the source's objective added to the tokens."""
    loose: frozenset[str] = frozenset()
    """Tensors that the target need not have: buffers, and parts that this backbone lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport:
    """Where the values of every parameter and buffer of the target come from, by name."""

    origins: Mapping[str, Origin]
    lengths: tuple[int, int] | None
    """Rows of the source's and the target's table of positions, where these differ."""
    unused: tuple[str, ...]
    """Weights of the source that have no place in the target."""
    parameters: Mapping[Origin, int]
    """Number of the target's parameters, shared ones once, by where they come from."""


def weights_of(model: Backbone) -> Weights:
    """Return the weights of `model`, for another model to start from; nothing is copied yet."""
    tensors = {key: value.detach() for key, value in model.state_dict().items()}
    buffers = frozenset(tensors) - {key for key, _ in _named_parameters(model)}
    return Weights(
        name="the source",
        tensors=tensors,
        options={key: getattr(model.config, key) for key in WEIGHT_OPTIONS},
        input_scale=model.input_scale,
        tied=_is_tied(model),
        cls_row=model.has_cls,
        added_ids=model.facts.added_ids,
        # Only models with a second stream have `query`, and only detectors have a generator.
        loose=buffers | {"query"} | {key for key in tensors if key.startswith(GENERATOR)},
    )


def _is_tied(model: Backbone) -> bool:
    """Return whether the matrix of the head is the table of tokens."""
    tied = model.per_token and model.config.tied_embeddings
    return tied and model.generator is None


def transfer(
    source: Weights | Backbone, target: Backbone, parts: Parts = Parts.all
) -> TransferReport:
    """Copy weights of `source` into `target`, and report the origin of each parameter.

    Raises:
        Unsupported: The models differ in an option that decides what weights mean, such as width
            or heads, or the target has no place for a weight. The target is unchanged.
    """
    weights = weights_of(source) if isinstance(source, Backbone) else source
    if not isinstance(target.stack, Stack):
        raise Unsupported(
            f"this model arranges its layers itself, so weights of {weights.name} cannot be "
            "copied into it: choose another family"
        )
    _check_options(weights, target, parts)
    target_state = target.state_dict()
    state = dict(weights.tensors if parts == Parts.all else _select_stack(weights))
    lengths = None
    if parts == Parts.all:
        _fit_vocabulary(state, target_state, weights, target)
        lengths = _fit_positions(state, target_state, weights.cls_row, target.has_cls)
        _rescale(state, weights, target)
        _drop_other_head(state, target_state)
        _share_table(state, target)
    _drop_decoder(state, target_state, target.config.depth)
    _drop_loose(state, target_state, weights.loose)
    _check_shapes(state, target_state, weights.name)
    missing = set(target.load_state_dict(state, strict=False).missing_keys)
    # A family's loading hook computed the tensors that are neither stored nor missing.
    origins = {}
    for key in target_state:
        origins[key] = Origin.copied if key in state else Origin.started
        if key in missing:
            origins[key] = Origin.drawn
        elif key == TABLE and lengths is not None:
            origins[key] = Origin.extended
    counted = dict.fromkeys(Origin, 0)
    for key, parameter in target.named_parameters():
        counted[origins[key]] += parameter.numel()
    unused = tuple(sorted(set(weights.tensors) - set(state)))
    return TransferReport(origins=origins, lengths=lengths, unused=unused, parameters=counted)


def fill(model: Backbone, tensors: Mapping[str, Tensor], name: str) -> TransferReport:
    """Copy all `tensors`, of the file `name`, into a model with the same parts.

    A tensor that the model has under two names may be stored under one of them.

    Raises:
        Unsupported: Names or shapes differ, or numbers are not finite. The model is unchanged.
    """
    # A shared tensor has one `id` under all its names.
    state, stored_names = model.state_dict(keep_vars=True), dict[int, str]()
    for key, tensor in state.items():
        if key in tensors:
            stored_names[id(tensor)] = key
    stored = {
        key: tensors[stored_names[id(t)]] for key, t in state.items() if id(t) in stored_names
    }
    missing = [key for key in state if key not in stored]
    foreign = sorted(set(tensors) - set(state))
    if missing or foreign:
        pairs = [(key, difflib.get_close_matches(key, foreign, n=1)) for key in missing[:3]]
        similar = ", ".join(f"{key} (near: {close[0]})" if close else key for key, close in pairs)
        raise Unsupported(
            f"{name} does not fit this model: {len(missing)} of its {len(state)} tensors are "
            f"missing{f', such as {similar}' if similar else ''}; {len(foreign)} of the file's "
            f"{len(tensors)} tensors have no place in the model"
            f"{f', such as {_name_some(foreign)}' if foreign else ''}. "
            "Build the model with the options it was trained with, or rename the tensors: "
            "`lra.model(...).state_dict()` has the names"
        )
    for key, tensor in stored.items():
        if tensor.shape != state[key].shape:
            raise Unsupported(
                f"{key} of {name} has shape {list(tensor.shape)}, but this model needs "
                f"{list(state[key].shape)}: build the model with the options with which these "
                "weights were trained"
            )
        if odd := tensor.numel() - int(tensor.isfinite().sum()):
            raise Unsupported(
                f"{name}: {odd:,} of {tensor.numel():,} numbers of {key} are not finite; save a "
                "model from before training diverged"
            )
    model.load_state_dict(stored)
    count = sum(parameter.numel() for parameter in model.parameters())
    return TransferReport(
        origins=dict.fromkeys(state, Origin.copied),
        lengths=None,
        unused=(),
        parameters={**dict.fromkeys(Origin, 0), Origin.copied: count},
    )


def _named_parameters(model: Backbone) -> list[tuple[str, torch.nn.Parameter]]:
    """Return every parameter with its name; a shared parameter appears under each of its names."""
    return [*model.named_parameters(remove_duplicate=False)]


def _select_stack(weights: Weights) -> dict[str, Tensor]:
    return {key: value for key, value in weights.tensors.items() if key.startswith("stack.")}


def _check_options(weights: Weights, target: Backbone, parts: Parts) -> None:
    """Raise `Unsupported` if an option that decides what weights mean differs."""
    for key, wanted in weights.options.items():
        got = getattr(target.config, key)
        if got == wanted:
            continue
        if key == "positions" and parts == Parts.blocks and not {got, wanted} & INSIDE:
            continue  # neither has positions inside its blocks
        raise Unsupported(
            f"weights of {weights.name} were trained with {key}={wanted}, but this model has "
            f"{got}; set model.backbone.{key}={wanted}"
        )


def _fit_vocabulary(
    state: dict[str, Tensor], target_state: Mapping[str, Tensor], weights: Weights, target: Backbone
) -> None:
    """Change the embedding in `state` so that it fits the target.

    Rows of ids that an objective added get the target's initial values.
    """
    adaptive = [EMBEDDING not in tensors for tensors in (state, target_state)]
    source_facts = (weights.added_ids, weights.input_scale)
    if all(adaptive) and source_facts == (target.facts.added_ids, target.input_scale):
        return  # `_check_shapes` compares the shapes
    if any(adaptive):
        kinds = ["in groups" if in_groups else "in one table" for in_groups in adaptive]
        raise Unsupported(
            "with embedding=adaptive, the vectors of tokens can only be copied unchanged: those of "
            f"{weights.name} are {kinds[0]}, those of this model are {kinds[1]}, or their scales "
            "differ; give both models the same embedding, tied_embeddings and objective, or copy "
            "only the blocks"
        )
    old, new = state[EMBEDDING], target_state[EMBEDDING]
    source_shape, target_shape = old.shape, new.shape
    added, tokens = target.facts.added_ids, source_shape[0] - weights.added_ids
    if source_shape[1:] != target_shape[1:] or tokens != target_shape[0] - added:
        advice = "choose a task with the same vocabulary"
        if source_shape[1:] != target_shape[1:]:
            advice = f"set model.backbone.embedding_width={source_shape[1]}"
        raise Unsupported(
            f"the embedding of {weights.name} has shape {list(source_shape)}, but the embedding of "
            f"this model has shape {list(target_shape)}: {advice}, or copy only the blocks"
        )
    if weights.added_ids != added:
        factor = target.input_scale / weights.input_scale  # `_rescale` divides all rows by it
        state[EMBEDDING] = torch.cat((old[:tokens], factor * new[tokens:].to(old)))


def _fit_positions(
    state: dict[str, Tensor],
    target_state: Mapping[str, Tensor],
    source_cls: bool | None,
    target_cls: bool,
) -> tuple[int, int] | None:
    """Fit the table of positions in `state` to the target; return both lengths if they differ.

    The target's first row, if it is for a CLS vector, comes from the source or stays as it was.
    """
    if TABLE not in state or TABLE not in target_state:
        return None
    old, new = state[TABLE], target_state[TABLE]
    if source_cls is None:  # all rows are copied in order
        source_cls = target_cls = False
    rows = repeat_rows(old[int(source_cls) :], len(new) - int(target_cls))
    if target_cls:
        rows = torch.cat(((old if source_cls else new)[:1].to(rows), rows))
    state[TABLE] = rows
    return None if len(old) == len(new) and source_cls == target_cls else (len(old), len(new))


def repeat_rows(table: Float[Tensor, "n d"], length: int) -> Float[Tensor, "m d"]:
    """Return `length` rows, repeating the table from its start as often as needed."""
    copies = -(-length // len(table))
    return table.repeat(copies, 1)[:length]


def _rescale(state: dict[str, Tensor], weights: Weights, target: Backbone) -> None:
    """Divide the embedding by the quotient of both models' input factors; outputs stay the same."""
    tied = _is_tied(target)
    if tied and not weights.tied:
        raise Unsupported(
            f"{weights.name} does not compute answers from its embedding, but this model does: "
            "set model.backbone.tied_embeddings=false"
        )
    factor = target.input_scale / weights.input_scale
    if factor == 1.0:
        return
    state[EMBEDDING] = state[EMBEDDING] / factor
    if tied:
        if target.config.residual != Residual.pre_norm or not target.config.stack_norm:
            raise Unsupported(
                f"the embedding of {weights.name} has another scale, which only a norm before the "
                "head can correct: set model.backbone.tied_embeddings=false"
            )
        state["head.weight"] = state[EMBEDDING]
        for name in (NORM + kind for kind in ("weight", "bias")):
            if name in state:  # not every norm shifts
                state[name] = state[name] * factor


def _share_table(state: dict[str, Tensor], target: Backbone) -> None:
    """Give the generator of `target`, if it has one, the table of tokens in `state`."""
    for key, parameter in _named_parameters(target):
        if key.startswith(GENERATOR) and parameter is target.embedding.weight:
            state[key] = state[EMBEDDING]


def _drop_other_head(state: dict[str, Tensor], target_state: Mapping[str, Tensor]) -> None:
    """Remove the head unless all its shapes fit, and the CLS vector if the target has none."""
    shapes = [
        {key: value.shape for key, value in tensors.items() if key.startswith("head.")}
        for tensors in (state, target_state)
    ]
    for key in shapes[0] if shapes[0] != shapes[1] else ():
        del state[key]
    if "cls" not in target_state:
        state.pop("cls", None)


def _drop_decoder(state: dict[str, Tensor], target_state: Mapping[str, Tensor], depth: int) -> None:
    """Remove layers after the first `depth` ones if the target lacks them: see `PooledStack`."""
    for key in set(state) - set(target_state):
        if key.startswith("stack.blocks.") and int(key.split(".")[2]) >= depth:
            del state[key]


def _drop_loose(
    state: dict[str, Tensor], target_state: Mapping[str, Tensor], loose: frozenset[str]
) -> None:
    """Remove the tensors in `loose` that have no place of their shape in the target."""
    for key in loose & set(state):
        if key not in target_state or target_state[key].shape != state[key].shape:
            del state[key]


def _check_shapes(
    state: Mapping[str, Tensor], target_state: Mapping[str, Tensor], name: str
) -> None:
    """Raise `Unsupported` if the target lacks a tensor of `state`, or has it in another shape."""
    surplus = sorted(set(state) - set(target_state))
    if surplus:
        raise Unsupported(
            f"this model has no place for {_name_some(surplus)} of {name}: choose a family with "
            "the same projections of queries, keys, values and outputs, and with the same biases"
        )
    for key, value in state.items():
        if value.shape != target_state[key].shape:
            raise Unsupported(
                f"{key} of {name} has shape {list(value.shape)}, but this model needs "
                f"{list(target_state[key].shape)}: build both models with the same options"
            )


def _name_some(names: list[str], at_most: int = 3) -> str:
    """Return the first names as text, with the number of the others."""
    rest = len(names) - at_most
    return ", ".join(names[:at_most]) + (f" and {rest} more" if rest > 0 else "")
