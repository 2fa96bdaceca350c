"""Combinations of the facts of a layout, and which tokens may then attend to each other."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any, TypeAlias, cast

import torch
from jaxtyping import Bool
from torch import Tensor

from lra.models.contract.case import ROWS, Case
from lra.models.mixer import MASKS, Layout, Traits

Facts: TypeAlias = Mapping[str, Tensor]
"""Fields of a layout by name, of `ROWS` rows."""

NUMBERS = (-1, 255, 6, 5, 5 + 2**32, 2**24, 2**24 + 1)
"""Of documents: negative, equal modulo 256 and modulo 2**32, and equal in float32."""
RANKS = (-(2**24) - 1, -(2**24), -1, 0, 3, 2**32)
"""Of tokens, lowest first: below zero, equal in float32, and 0 again modulo 2**32."""


def layouts(case: Case, traits: Traits, length: int) -> dict[str, Facts]:
    """Return every combination of the facts that a mixer supports, each with its name."""
    every = _facts(case, length)
    claimed = [name for name in every if name in traits.supports]
    if not traits.causal:
        claimed = [name for name in claimed if name != "prefix"]  # all see each other anyway
    return {
        " and ".join(names) or "no mask": {name: every[name] for name in names}
        for number in range(len(claimed) + 1)
        for names in combinations(claimed, number)
    }


def few_layouts(case: Case, traits: Traits, length: int) -> dict[str, Facts]:
    """Return the layout without facts, with each fact alone, and with all facts together."""
    kinds = layouts(case, traits, length)
    *_, together = kinds
    return {name: facts for name, facts in kinds.items() if len(facts) < 2 or name == together}


def _facts(case: Case, length: int) -> dict[str, Tensor]:
    """Return an example of each fact, with different values in each row."""
    generator = torch.Generator().manual_seed(case.seed + 8)
    place = torch.arange(length)
    keep = torch.rand(ROWS, length, generator=generator) < 0.6
    keep[1] = (place >= length // 4) & (place < length - length // 4)
    keep[2] = place >= length // 3
    keep[0, length // 2] = True  # no row is empty
    numbers, ranks = torch.tensor(NUMBERS), torch.tensor(RANKS)
    document = numbers[torch.randint(len(NUMBERS), (ROWS, length), generator=generator)]
    document[1] = numbers[place * len(NUMBERS) // length]
    order = ranks[torch.randint(len(RANKS), (ROWS, length), generator=generator)]
    order[1] = torch.randperm(length, generator=generator) - length // 2
    is_global = torch.zeros(ROWS, length, dtype=torch.bool)
    is_global[0, [0, length // 2]] = is_global[1, length // 3] = True
    prefix = torch.tensor([length // 3 + 1, length, 0])
    every = {"keep": keep, "document": document, "prefix": prefix, "order": order}
    assert set(MASKS) < set(every)
    every["is_global"] = is_global
    return {name: fact.to(case.device) for name, fact in every.items()}


def layout_of(facts: Facts) -> Layout:
    """Return a layout with these facts."""
    return Layout(**cast(Any, facts))


def visible(facts: Facts, length: int, *, causal: bool) -> Bool[Tensor, "b l l"]:
    """Return which query may attend to which key under these facts, [b query key].

    Global tokens, and tokens within a limited reach, attend to no more than this.
    """
    device = next((fact.device for fact in facts.values()), None)
    place = torch.arange(length, device=device)
    seen = torch.ones(ROWS, length, length, dtype=torch.bool, device=device)
    if causal:
        seen &= place <= place[:, None]
        if "prefix" in facts:
            inside = place < facts["prefix"][:, None]
            seen |= inside[:, None] & inside[..., None]
    if "document" in facts:
        seen &= facts["document"][:, None] == facts["document"][..., None]
    if "order" in facts:
        seen &= facts["order"][:, None] <= facts["order"][..., None]
    if "keep" in facts:
        seen &= facts["keep"][:, None]
    return seen
