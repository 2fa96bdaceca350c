"""Requirements of a model, checked against a mixer's traits before anything runs."""

from typing import Any, cast

import torch
from torch import nn

from lra.models.backbone.choices import CAUSAL_HEADS
from lra.models.backbone.config import TOKEN_HEADS, BackboneConfig, TaskFacts
from lra.models.backbone.heads import ORDERLESS, READ_FIRST, Pooling
from lra.models.backbone.stack import PostNormStack, Stack, family
from lra.models.mixer import INSIDE, SITE_OPTIONS, Idle, Mixer, Positions, Site, Unsupported
from lra.models.module import checked_module

MASKED = {
    "document": "rows of several documents, whose tokens attend only within their document",
    "prefix": "a prefix, whose tokens attend to each other in both directions",
    "order": "a random order, in which each token attends only to tokens before it",
}
"""Text for messages: what a mixer must support for each of `lra.models.mixer.MASKS`."""


def checked_mixer(
    mixer: Mixer,
    *,
    positions: Positions,
    causal: bool,
    max_length: int,
    site: Site | None = None,
    padded: bool = False,
    passed: bool = False,
    per_token: bool = False,
    pooling: Pooling | None = None,
    masks: frozenset[str] = frozenset(),
) -> nn.Module:
    """Return `mixer` as a module, or raise an error if it does not fit this model.

    Args:
        mixer: The mixer, or a custom stack.
        positions: Position encoding of the model.
        causal: Whether outputs must not depend on later tokens.
        max_length: Longest input of the stack, in tokens.
        site: The site where it was built; None: it was built without one.
        padded: Whether batches have masks of padding, which the mixer must respect.
        passed: Whether these masks may also hide tokens other than padding.
        per_token: Whether the model answers at every position.
        pooling: Pooling of a model with one answer per sequence; None: it answers at each token.
        masks: Facts of the layout, among `lra.models.mixer.MASKS`, in every batch.

    Raises:
        TypeError, ValueError: see `lra.models.module.checked_module`.
        Unsupported: The mixer lacks something that the model needs: the position encoding,
            causality, the length, a mask, an output for each token, or an option of its `site`. Or
            the answer would be read at a token whose output depends on no other token.
    """
    module = checked_module(mixer)
    traits = mixer.traits
    if positions in INSIDE and positions.value not in traits.positions:
        raise Idle(
            f"{family(mixer)} does not support {positions.value} positions, which a mixer must "
            f"apply itself: got positions={positions.value}; choose positions=learned, "
            "sinusoidal, axial or none",
            "backbone.positions",
        )
    for name, fact in SITE_OPTIONS.items() if site is not None else ():
        if (value := getattr(site, fact)) is not None and name not in traits.options:
            raise Idle(
                f"{family(mixer)} has no use for {name} (traits.options lacks it): got "
                f"model.backbone.{name}={str(value).lower()}; set it to null, or choose another "
                "family",
                f"backbone.{name}",
            )
    if causal and not traits.causal:
        raise Unsupported(
            f"{family(mixer)} attends to later tokens (traits.causal=False), but this task needs a "
            "causal model: choose a causal family, or a task that reads the whole sequence"
        )
    if pooling in READ_FIRST and traits.causal:
        where = "the CLS vector at position 0" if pooling == Pooling.cls else "the first token"
        raise Idle(
            f"{family(mixer)} attends only to earlier tokens (traits.causal=True), so the answer, "
            f"which is read at {where}, would depend on no other token: got "
            f"model.backbone.pooling={pooling}; set it to last, or mean",
            "backbone.pooling",
        )
    if padded and "keep" not in traits.supports and not (passed and traits.hides_others):
        ways = "attended, zeroed or passed" if traits.hides_others else "attended or zeroed"
        raise Unsupported(
            f"{family(mixer)} cannot exclude padding (traits.supports lacks keep), but this task "
            f"pads its sequences: choose model.backbone.padding={ways}, with which padding affects "
            "the outputs, or another family"
        )
    if lacking := sorted(masks - traits.supports):
        decoder = ", or model.backbone.decoder_depth=2" if masks == {"prefix"} else ""
        raise Unsupported(
            f"{family(mixer)} does not support {' and '.join(map(MASKED.__getitem__, lacking))} "
            f"(traits.supports lacks {', '.join(lacking)}): choose a family of exact attention, "
            f"such as softmax or sdpa{decoder}, or another objective of the task"
        )
    if per_token and not traits.keeps_length:
        raise Unsupported(
            f"{family(mixer)} returns more or fewer tokens than it reads "
            "(traits.keeps_length=False), but this task needs an output for each token: choose a "
            "task with one answer per sequence"
        )
    if traits.max_length is not None and traits.max_length < max_length:
        raise Unsupported(
            f"{family(mixer)} accepts at most {traits.max_length} tokens, but this model needs "
            f"{max_length} (the longest sequence of the task, plus 1 for a CLS vector if it has "
            "one): choose a shorter length of the task, or another family"
        )
    return module


def query_for(stack: nn.Module, width: int) -> nn.Parameter:
    """Return the vector from which all queries of permutation modelling start (see `queried`).

    It is drawn from N(0, 0.02), as in XLNet.

    Raises:
        Unsupported: The stack or one of its mixers cannot compute such queries.
    """
    mixers = [cast(Any, block).mixer for block in getattr(stack, "blocks", ())]
    for mixer in mixers:
        if not getattr(mixer, "attends_in_order", False):
            raise Unsupported(
                "objective=permutation needs attention that takes one order for queries and "
                f"another for keys, which {family(mixer)} does not support: choose softmax, sdpa "
                "or talking_heads, or another objective of the task"
            )
    if type(stack) not in {Stack, PostNormStack}:
        raise Unsupported(
            "objective=permutation needs separate queries, which do not depend on the token to be "
            f"predicted, and {family(stack)} cannot compute them: set "
            "model.backbone.residual=pre_norm, pool_blocks=1 and loop_first=null, or choose "
            "another objective of the task"
        )
    return nn.Parameter(0.02 * torch.randn(width))


def check_order(stack: nn.Module, config: BackboneConfig, facts: TaskFacts) -> None:
    """Raise an error unless `config.order_blind` is true exactly if the model ignores order.

    Args:
        stack: The stack, whose mixers' traits tell whether they depend on order.
        config: Options of the backbone.
        facts: Facts of the task.

    Raises:
        Unsupported: The model ignores the order of tokens and `order_blind` is false, or it
            depends on the order and `order_blind` is true.
    """
    mixers: list[Any] = [stack]
    if isinstance(stack, Stack):
        mixers = [cast(Any, block).mixer for block in stack.blocks]
    order_dependent = [family(mixer) for mixer in mixers if mixer.traits.sees_order]
    pools = facts.head not in TOKEN_HEADS
    blind = (
        not order_dependent
        and not config.canon
        and config.positions == Positions.none
        and (config.pooling in ORDERLESS if pools else facts.head not in CAUSAL_HEADS)
    )
    if blind and not config.order_blind:
        names = ", ".join(dict.fromkeys(map(family, mixers)))
        pooling = f", pooling={config.pooling}" if pools else ""
        raise Idle(
            f"the order of tokens has no effect on {names} (traits.sees_order=False), and no other "
            f"part of this model depends on it: got model.backbone.positions=none{pooling}; choose "
            "positions=learned, sinusoidal or axial, a family that depends on order, or "
            "model.backbone.order_blind=true if the model is to ignore the order",
            "backbone.positions",
        )
    if config.order_blind and not blind:
        raise Unsupported(
            "order_blind=true is for models that ignore the order of tokens, but "
            f"{', '.join(order_dependent) or 'a Canon layer'} depends on it "
            "(traits.sees_order=True): got "
            "model.backbone.order_blind=true; leave it at false"
        )
