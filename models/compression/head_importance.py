"""The importance of each attention head of a trained model, and the removal of heads.

    I_h = E_x | d L(x) / d xi_h |,        xi_h = 1 multiplies the output of head h

The absolute value is taken for each example x, before the mean. The scores of a layer are divided
by their L2 norm. xi multiplies the outputs of heads before the output projection, so that xi_h = 0
gives the same function as a layer without head h. `keep_heads` makes such a layer.

Source: Michel et al. 2019, arXiv:1905.10650, sections 2.2, 4.1 and equation 2.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.backbone.heads import asked_items
from lra.models.backbone.model import Backbone
from lra.models.backbone.placing import PLAIN
from lra.models.backbone.stack import Stack, family
from lra.models.mixer import Layout, Unsupported
from lra.models.multi_head import HeadCounts, MultiHead

PROBE = 24
"""Number of tokens of the random input on which a layer is checked after heads were removed."""
TOLERANCE = 1e-4
"""Largest difference in that check, relative to the largest output."""
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "gate_proj", "out_proj")


class Examples(NamedTuple):
    """A batch of examples from which importance is estimated."""

    tokens: Tensor
    """[b, p, l]: ids, or real numbers."""
    target: Tensor
    keep: Tensor | None = None
    weight: Tensor | None = None
    """Weights with the shape of the target: 0 for items without a loss; None: all 1."""
    layout: Layout = PLAIN
    """Masks of the batch."""


def attention_layers(model: Backbone) -> dict[int, MultiHead]:
    """Return the model's mixers with separate heads, by the number of their layer.

    A mixer that several layers share appears once, with its first layer.

    Raises:
        Unsupported: The model has no such mixer.
    """
    mixers: dict[int, MultiHead] = {}
    blocks = model.stack.blocks if isinstance(model.stack, Stack) else ()
    for layer, block in enumerate(blocks):
        mixer = cast(Any, block).mixer
        if isinstance(mixer, MultiHead) and mixer not in mixers.values():
            mixers[layer] = mixer
    if not mixers:
        names = ", ".join({family(cast(Any, block).mixer): None for block in blocks})
        raise Unsupported(
            "head pruning removes attention heads with their projections, but "
            f"{names or 'this stack'} has no such heads (it is no subclass of MultiHead): choose "
            "a family with heads, or another method"
        )
    return mixers


@contextmanager
def gate_heads(layers: Mapping[int, MultiHead], gates: Mapping[int, Tensor]) -> Iterator[None]:
    """Inside the context, multiply the output of every head by its gate.

    Args:
        layers: The result of `attention_layers`.
        gates: The gates xi of each layer: [h], or [b, h] with separate gates for each example.
    """

    def hook(layer: int) -> Any:
        def scale(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            """Multiply the input of the output projection, [b, l, h * width], by the gates."""
            gate = gates[layer]
            heads = torch.unflatten(arguments[0], -1, (gate.shape[-1], -1))
            gate = gate[:, None] if gate.ndim == 2 else gate  # [h] or [b, 1, h]
            return ((heads * gate[..., None]).flatten(-2), *arguments[1:])

        return scale

    handles = [layers[layer].out_proj.register_forward_pre_hook(hook(layer)) for layer in gates]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def head_importance(
    model: Backbone, batches: Iterable[Examples], *, normalised: bool = True
) -> dict[int, Float[Tensor, " h"]]:
    """Return the importance I_h of every head by layer, computed without dropout.

    The loss of an example is the mean over its items with a weight above 0. Every row of a batch is
    a separate example, without a state from earlier rows.

    Args:
        model: The trained model; its training mode is restored.
        batches: The examples.
        normalised: Whether the scores of a layer are divided by their L2 norm.

    Raises:
        Unsupported: The model has no heads, or gates get no gradient.
        ValueError: There are no examples.
    """
    layers = attention_layers(model)
    sums = {
        layer: torch.zeros(heads_of(mixer), dtype=torch.float64) for layer, mixer in layers.items()
    }
    count, training = 0, model.training
    model.eval()
    try:
        for batch in batches:
            for layer, gradients in _gate_gradients(model, layers, batch).items():
                sums[layer] += gradients.abs().double().sum(0).cpu()
            count += len(batch.tokens)
    finally:
        model.train(training)
    if not count:
        raise ValueError("the importance of heads is a mean over examples: got 0 examples")
    means = {layer: total / count for layer, total in sums.items()}
    if not normalised:
        return means
    return {layer: mean / mean.norm().clamp_min(1e-30) for layer, mean in means.items()}


def _gate_gradients(
    model: Backbone, layers: Mapping[int, MultiHead], batch: Examples
) -> dict[int, Float[Tensor, "b h"]]:
    """Return d L(x) / d xi_h for each example x and head h of the batch, by layer."""
    rows, parts = batch.tokens.shape[:2]
    like = next(model.parameters())  # for the dtype and device of gates
    gates = {
        layer: torch.ones(rows, heads_of(mixer), dtype=like.dtype, device=like.device)
        for layer, mixer in layers.items()
    }
    for gate in gates.values():
        gate.requires_grad_()
    # An example with a pair of sequences has two rows, which share the gates.
    by_row = {layer: gate.repeat_interleave(parts, 0) for layer, gate in gates.items()}
    with torch.enable_grad(), gate_heads(layers, by_row):
        asked = asked_items(batch.weight)
        nll = model(batch.tokens, batch.target, batch.keep, layout=batch.layout, asked=asked).nll
        weight = torch.ones_like(nll) if batch.weight is None else batch.weight.to(nll)
        losses, counts = (nll * weight).reshape(rows, -1), weight.reshape(rows, -1)
        loss = (losses.sum(1) / counts.sum(1).clamp_min(1e-30)).sum()
        gradients = torch.autograd.grad(loss, list(gates.values()), allow_unused=True)
    if lost := [
        layer for layer, gradient in zip(gates, gradients, strict=True) if gradient is None
    ]:
        raise Unsupported(
            f"no gradient reaches the heads of layer {lost[0]} ({family(layers[lost[0]])}), "
            "because with residual=reversible the backward pass computes layers again: set "
            "model.backbone.residual=pre_norm"
        )
    return dict(zip(gates, gradients, strict=True))


def heads_of(mixer: MultiHead) -> int:
    """Return the number of heads whose outputs enter the output projection."""
    return mixer.out_proj.in_features // mixer.head_width


def least_important(
    importance: Mapping[int, Float[Tensor, " h"]], count: int
) -> dict[int, list[int]]:
    """Return the `count` least important heads of all layers together, as lists by layer.

    The most important head of each layer is never chosen.

    Raises:
        ValueError: `count` is larger than the number of the other heads.
    """
    free = [
        (float(score), layer, head)
        for layer, scores in importance.items()
        for head, score in enumerate(scores)
        if head != int(scores.argmax())
    ]
    if not 0 <= count <= len(free):
        total = sum(len(scores) for scores in importance.values())
        raise ValueError(
            f"every layer needs at least one head: got {count} heads to remove, but only "
            f"{len(free)} of {total} heads in {len(importance)} layers can be removed; remove at "
            f"most {len(free)}"
        )
    chosen: dict[int, list[int]] = {layer: [] for layer in importance}
    for _, layer, head in sorted(free)[:count]:
        chosen[layer].append(head)
    return chosen


def remove_heads(model: Backbone, removed: Mapping[int, Sequence[int]]) -> None:
    """Remove heads from a model: rows of its projections, and columns of the output projection.

    Args:
        model: The model, which is changed.
        removed: Numbers of heads by layer, with layers as in `attention_layers`.

    Raises:
        Unsupported: The heads of a layer depend on each other; this layer is unchanged.
        ValueError: A head does not exist, or a layer would lose all heads.
    """
    layers = attention_layers(model)
    for layer, heads in removed.items():
        mixer = layers[layer]
        total = heads_of(mixer)
        if wrong := [head for head in heads if not 0 <= head < total]:
            raise ValueError(f"layer {layer} has heads 0 to {total - 1}: got {wrong[0]}")
        kept = [head for head in range(total) if head not in heads]
        if not kept:
            raise ValueError(
                f"layer {layer} needs at least one head: got all of its {total} to remove; keep "
                "one, or choose model=identity, which has no heads"
            )
        if len(kept) < total:
            longest = model.facts.max_length + model.has_cls  # inputs may be shorter than PROBE
            keep_heads(mixer, kept, tokens=min(PROBE, longest))


def keep_heads(mixer: MultiHead, kept: Sequence[int], *, tokens: int = PROBE) -> None:
    """Remove all heads of a mixer except those in `kept`, which get this order.

    A check on a random input of `tokens` tokens compares the result with the full layer in which
    the gates of other heads are 0. They differ if the core mixes heads or has parameters per head.

    Raises:
        Unsupported: The outputs differ; the mixer is unchanged.
    """
    projections = {
        name: layer for name in _PROJECTIONS if (layer := getattr(mixer, name, None)) is not None
    }
    total, counts = heads_of(mixer), mixer.head_counts
    if {*counts} != {total}:
        raise Unsupported(
            f"{family(mixer)} has {counts.queries} heads of queries, {counts.keys} of keys, "
            f"{counts.values} of values and {total} of outputs: heads that share keys or values "
            "cannot be removed one by one; choose another family or method"
        )
    training, generator = mixer.training, torch.Generator().manual_seed(0)
    like = mixer.out_proj.weight
    x = torch.randn(2, tokens, mixer.q_proj.in_features, generator=generator).to(like)
    gate = torch.zeros(total).to(like)
    gate[list(kept)] = 1.0
    mixer.eval()
    # Channels of a head; other projections have `mixer.head_width`.
    widths = dict.fromkeys(("q_proj", "k_proj"), mixer.key_width)
    try:
        with torch.no_grad():
            with gate_heads({0: mixer}, {0: gate}):
                wanted = mixer(x, Layout())
            for name, layer in projections.items():
                width = widths.get(name, mixer.head_width)
                index = torch.cat([torch.arange(width) + head * width for head in kept])
                part = _select_part(cast(nn.Linear, layer), index, columns=name == "out_proj")
                setattr(mixer, name, part)
            mixer.heads, mixer.head_counts = len(kept), HeadCounts(*4 * [len(kept)])
            try:
                difference = float((mixer(x, Layout()) - wanted).abs().max() / wanted.abs().max())
            except (RuntimeError, IndexError, ValueError, TypeError) as error:
                difference, why = float("inf"), f"it fails with fewer heads ({str(error)[:80]})"
            else:
                why = f"its output with fewer heads differs (relative error {difference:.1e})"
    finally:
        mixer.train(training)
    if not difference <= TOLERANCE:  # also if it is NaN
        for name, layer in projections.items():
            setattr(mixer, name, layer)
        mixer.heads, mixer.head_counts = total, counts
        raise Unsupported(
            f"heads of {family(mixer)} depend on each other, so they cannot be removed one by "
            f"one: {why}. Its parameters or positions differ between heads, or it mixes heads; "
            "choose another family or method"
        )


def _select_part(layer: nn.Linear, index: Tensor, *, columns: bool) -> nn.Linear:
    """Return a linear map with the rows `index` of `layer`, or with the columns `index`."""
    weight, bias = layer.weight.detach(), layer.bias
    index = index.to(weight.device)
    weight = weight[:, index] if columns else weight[index]
    # On "meta", the initial parameters, which are replaced, take no memory.
    part = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    part.weight = nn.Parameter(weight.clone())
    if bias is not None:
        part.bias = nn.Parameter((bias if columns else bias[index]).detach().clone())
    return part
