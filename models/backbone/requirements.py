"""Requirements of a model, checked against a mixer's traits before anything runs."""

from typing import Any, cast

import torch
from torch import nn

from lra.models.backbone.choices import CAUSAL_HEADS
from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.heads import ORDERLESS, READ_FIRST, Pooling
from lra.models.backbone.stack import PostNormStack, Stack, family
from lra.models.mixer import INSIDE, SITE_OPTIONS, Idle, Mixer, Positions, Site, Unsupported
from lra.models.module import checked_module

MASKED = {
    "document": "documents that are hidden from each other",
    "prefix": "a prefix whose tokens attend to each other",
    "order": "an order in which tokens attend to each other",
}
"""What each of `lra.models.mixer.MASKS` requires of a mixer, for messages."""


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
    """Return `mixer` as a module, or raise if it does not fit into this model.

    Args:
        mixer: What a factory made.
        positions: Of the model.
        causal: Whether no later token may be seen.
        max_length: Of the stack's input.
        site: Where it was built; None: by hand.
        padded: Whether masks of padding come.
        passed: Whether they may hide other tokens than padding.
        per_token: Whether the model answers at every position.
        pooling: Of a model that answers once.
        masks: Facts of the layout, of `lra.models.mixer.MASKS`, that come with every batch.

    Raises:
        TypeError, ValueError: see `lra.models.module.checked_module`.
        Unsupported: It lacks positions, causality, length, a mask, an output for each token or an
            option of its `site` that the model needs; or the answer is read where it sees nothing.
    """
    module = checked_module(mixer)
    traits = mixer.traits
    if positions in INSIDE and positions.value not in traits.positions:
        raise Idle(
            f"{family(mixer)} does not apply {positions.value} positions itself: got "
            f"positions={positions.value}; choose positions=learned, sinusoidal, axial or none",
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
            f"{family(mixer)} attends to later tokens (traits.causal=False): got a task that "
            "needs a causal model; choose a causal family or a task that reads the whole sequence"
        )
    if pooling in READ_FIRST and traits.causal:
        where = "a CLS vector at position 0" if pooling == Pooling.cls else "the first token"
        raise Idle(
            f"{family(mixer)} attends to earlier tokens only (traits.causal=True), so {where} "
            f"would depend on no other token: got model.backbone.pooling={pooling}; set it to "
            "last, or mean",
            "backbone.pooling",
        )
    if padded and "keep" not in traits.supports and not (passed and traits.hides_others):
        ways = "attended, zeroed or passed" if traits.hides_others else "attended or zeroed"
        raise Unsupported(
            f"{family(mixer)} cannot exclude padding (traits.supports lacks keep): got a task "
            f"that pads; choose model.backbone.padding={ways}, which change the function, or "
            "another family"
        )
    if lacking := sorted(masks - traits.supports):
        ways = ", or model.backbone.decoder_depth=2" if masks == {"prefix"} else ""
        raise Unsupported(
            f"{family(mixer)} does not support {' and '.join(map(MASKED.__getitem__, lacking))} "
            f"(traits.supports lacks {', '.join(lacking)}): choose a family of exact attention, "
            f"such as softmax or sdpa{ways}, or another objective of the task"
        )
    if per_token and not traits.keeps_length:
        raise Unsupported(
            f"{family(mixer)} returns another number of tokens than it reads "
            "(traits.keeps_length=False): choose a task with one answer for a sequence"
        )
    if traits.max_length is not None and traits.max_length < max_length:
        raise Unsupported(
            f"{family(mixer)} accepts at most {traits.max_length} tokens, but this model needs "
            f"{max_length} (the length of the task, and one more if a CLS vector is added in "
            "front): shorten the task"
        )
    return module


def query_for(stack: nn.Module, width: int) -> nn.Parameter:
    """Return the initial vector of the second stream, drawn from N(0, 0.02) as in XLNet.

    Raises:
        Unsupported: The stack has no room for it.
    """
    mixers = [cast(Any, block).mixer for block in getattr(stack, "blocks", ())]
    for mixer in mixers:
        if not getattr(mixer, "attends_in_order", False):
            raise Unsupported(
                f"{family(mixer)} cannot apply one order to queries and another to keys, "
                "which objective=permutation needs: choose softmax, sdpa or "
                "talking_heads, or another objective of the task"
            )
    if type(stack) not in {Stack, PostNormStack}:
        raise Unsupported(
            f"{family(stack)} cannot compute separate queries that hide the token to be "
            "predicted, which objective=permutation needs: set model.backbone.residual=pre_norm, "
            "pool_blocks=1, or choose another objective of the task"
        )
    return nn.Parameter(0.02 * torch.randn(width))


def check_order(stack: nn.Module, config: BackboneConfig, facts: TaskFacts) -> None:
    """Raise for a model that ignores the order of tokens, unless `order_blind` is chosen.

    Raise also for `order_blind` with a model that depends on the order.

    Args:
        stack: With the mixers, whose traits say what they see.
        config: Options of the backbone.
        facts: What the task says.

    Raises:
        Unsupported: `config.order_blind` does not say what the model is.
    """
    mixers: list[Any] = [stack]
    if isinstance(stack, Stack):
        mixers = [cast(Any, block).mixer for block in stack.blocks]
    sees = [family(mixer) for mixer in mixers if mixer.traits.sees_order]
    once = facts.head in {Head.classification, Head.pair}
    blind = (
        not sees
        and config.positions == Positions.none
        and (config.pooling in ORDERLESS if once else facts.head not in CAUSAL_HEADS)
    )
    if blind and not config.order_blind:
        names = ", ".join(dict.fromkeys(map(family, mixers)))
        pooling = f", pooling={config.pooling}" if once else ""
        raise Idle(
            f"the order of tokens has no effect on {names} (traits.sees_order=False), and nothing "
            f"else in this model adds their order: got model.backbone.positions=none{pooling}; "
            "choose positions=learned, sinusoidal or axial, a family that depends on order, or "
            "model.backbone.order_blind=true if the order shall be ignored",
            "backbone.positions",
        )
    if config.order_blind and not blind:
        raise Unsupported(
            "order_blind=true is for models that ignore the order of tokens, and "
            f"{', '.join(sees)} depends on it (traits.sees_order=True): got "
            "model.backbone.order_blind=true; leave it at false"
        )
