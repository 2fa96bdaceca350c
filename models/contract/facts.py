"""Drawn facts of a layout, and which tokens may then attend to each other."""

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import torch
from jaxtyping import Bool
from torch import Tensor

from lra.models.contract.case import ROWS
from lra.models.mixer import MASKS, Layout, Traits

Facts: TypeAlias = Mapping[str, Tensor]
"""Fields of a layout by name, of `ROWS` rows."""

NUMBERS = (-1, 255, 6, 5, 5 + 2**32, 2**24, 2**24 + 1)
"""Of documents: negative, equal modulo 256 and modulo 2**32, and equal in float32."""
RANKS = (-(2**24) - 1, -(2**24), -1, 0, 3, 2**32)
"""Of tokens, lowest first: below zero, equal in float32, and 0 again modulo 2**32."""


PADDING = ("front", "behind", "holes", "row")
"""Kinds of padding: before the tokens, after them, at random places, and one row of it alone."""


def masks_for(traits: Traits) -> list[str]:
    """Return the names of masks that a mixer takes, for `draw_facts`."""
    padding = [*PADDING] if "keep" in traits.supports or traits.hides_others else []
    others = [name for name in (*MASKS, "is_global") if name in traits.supports]
    several = ["+".join(("holes", *others))] if padding and len(others) > 1 else []
    pairs = [f"{kind}+{name}" for kind, name in zip(("holes", "front") * 2, others, strict=False)]
    return ["none", *padding, *others, *(pairs if padding else []), *several]


def draw_facts(mask: str, rows: int, length: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw the facts of a mask: `none`, a kind of `PADDING`, a fact, or several joined by `+`."""
    place, facts = torch.arange(length).expand(rows, -1), dict[str, Tensor]()

    def below(most: int, *shape: int) -> Tensor:
        return torch.randint(most, shape, generator=generator)

    for name in mask.split("+"):
        size = 1 + below(length, rows, 1)
        match name:
            case "front":
                facts["keep"] = place >= length - size
            case "behind":
                facts["keep"] = place < size
            case "holes":
                facts["keep"] = torch.rand(rows, length, generator=generator) < 0.6
            case "row":
                empty = below(rows, 1)
                facts["keep"] = (place < size) & (torch.arange(rows)[:, None] != empty)
            case "document":
                ends = below(length, rows, 1, 3).sort(-1).values
                mixed = below(len(NUMBERS), rows, length)
                number = (place[..., None] >= ends).sum(-1)
                kind = torch.arange(rows)[:, None] % 3
                chosen = torch.tensor(NUMBERS)[torch.where(kind == 1, mixed, number)]
                facts["document"] = torch.where(kind == 2, place, chosen)  # each token alone
            case "prefix":
                facts["prefix"] = below(length + 1, rows)
            case "order":
                mixed = torch.tensor(RANKS)[below(len(RANKS), rows, length)]
                shuffled = torch.rand(rows, length, generator=generator).argsort(-1) - length // 2
                facts["order"] = mixed.where(torch.arange(rows)[:, None] % 2 == 1, shuffled)
            case "is_global":
                facts["is_global"] = torch.rand(rows, length, generator=generator) < 2 / length
    return facts


def layout_of(facts: Facts) -> Layout:
    """Return a layout with these facts."""
    return Layout(**cast(Any, facts))


def visible(facts: Facts, length: int, *, causal: bool, rows: int = ROWS) -> Bool[Tensor, "b l l"]:
    """Return which query may attend to which key under these facts, [b query key].

    Global tokens, and tokens within a limited reach, attend to no more than this.
    """
    device = next((fact.device for fact in facts.values()), None)
    place = torch.arange(length, device=device)
    seen = torch.ones(rows, length, length, dtype=torch.bool, device=device)
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
