"""Positions and masks of tokens: from a batch to the layout of a stack."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lra.models.backbone.config import BackboneConfig, TaskFacts
from lra.models.mixer import MASKS, Layout, Positions, State, Unsupported
from lra.models.positions import AxialPositions, LearnedPositions, position_ids, precise, sinusoid

PLAIN = Layout()
"""A layout without masks."""


def masks_of(layout: Layout, facts: TaskFacts, state: State) -> Layout:
    """Return a layout with only the masks in `layout`, checked against the task's facts.

    Raises:
        Unsupported: A mask that the task's batches have is missing: more would be seen than may be.
        ValueError: There is one where it has no meaning.
    """
    given = {name: value for name in MASKS if (value := getattr(layout, name)) is not None}
    if missing := sorted(facts.masks - given.keys()):
        raise Unsupported(
            f"this model needs batches with {', '.join(missing)}, which define what each token "
            "may attend to, and this runner passes none: choose runner=train or runner=transfer, "
            "or another objective of the task"
        )
    if given and state is not None:
        raise ValueError(f"a state can continue only rows without {', '.join(given)}: got both")
    return PLAIN._replace(**given)


def check_restarts(config: BackboneConfig, facts: TaskFacts) -> None:
    """Raise `Unsupported` for positions that cannot restart with each document."""
    if "document" in facts.masks and config.positions == Positions.position_infused:
        raise Unsupported(
            "positions=position_infused counts from the beginning of a row, but each document "
            "of a row is read as if it were alone: set model.backbone.positions=learned, "
            "sinusoidal, rotary or alibi, or task.within_documents=false"
        )


def kept_words(x: Float[Tensor, "b l d"], vocabulary: int, rate: float) -> Float[Tensor, "v 1"]:
    """Draw which ids of the vocabulary are dropped; return a factor for each id's vector."""
    ones = torch.ones(vocabulary, 1, dtype=x.dtype, device=x.device)
    return nn.functional.dropout(ones, rate)


def behind_cls(
    cls: Float[Tensor, " d"],
    x: Float[Tensor, "b l d"],
    keep: Bool[Tensor, "b l"] | None,
    *,
    copied: bool,
) -> tuple[Float[Tensor, "b m d"], Bool[Tensor, "b m"] | None]:
    """Prepend the CLS vector to tokens and mask; with `copied`, its mask is the first token's."""
    x = torch.cat((cls.to(x.dtype).expand(x.shape[0], 1, -1), x), dim=1)
    if keep is None:
        return x, None
    if copied:
        return x, torch.cat((keep[:, :1], keep), dim=1)
    return x, nn.functional.pad(keep, (1, 0), value=True)


def parts_of(
    x: Float[Tensor, "b l d"], layout: Layout, *, restarts: bool
) -> Int[Tensor, "b l"] | None:
    """Return the number of the part that each token belongs to, or None for a single part.

    Positions restart with each part.

    Args:
        x: Embedded tokens.
        layout: With the documents, or the prefix.
        restarts: Whether they restart behind the prefix.
    """
    if not restarts or layout.prefix is None:
        return layout.document
    return (torch.arange(x.shape[1], device=x.device) >= layout.prefix[:, None]).long()


def document_positions(document: Int[Tensor, "b l"]) -> Int[Tensor, "b l"]:
    """Return the position of each token in its document; documents are contiguous."""
    place = torch.arange(document.shape[1], device=document.device).expand_as(document)
    begins = torch.ones_like(document, dtype=torch.bool)
    begins[:, 1:] = document[:, 1:] != document[:, :-1]
    return place - place.where(begins, 0).cummax(1).values


def sinusoid_like(ids: Int[Tensor, "#b l"], x: Float[Tensor, "b l d"]) -> Float[Tensor, "#b l d"]:
    """Return sinusoids of the width and type of `x`."""
    return sinusoid(ids, x.shape[-1], dtype=precise(x.dtype)).to(x.dtype)


def encoded_at(
    x: Float[Tensor, "b l d"],
    encode: nn.Module | Callable[[Tensor, Tensor], Tensor],
    start: Int[Tensor, " b"] | None,
    *,
    cls: bool,
    document: Int[Tensor, "b l"] | None,
) -> Float[Tensor, "b l d"]:
    """Return `x` with its positions added.

    Args:
        x: Embedded tokens.
        encode: A table of positions, or `sinusoid_like`.
        start: Position of each row's first token; None: 0.
        cls: Whether position 0 holds a CLS vector.
        document: Positions restart with each; None: they do not.
    """
    table = encode if isinstance(encode, LearnedPositions | AxialPositions) else None
    # elsewhere a look at `start` would wait for the device, whose own index check is loud
    if table is not None and start is not None and start.device.type == "cpu" and len(start):
        end, limit = int(start.max()) + x.shape[1], table.max_length
        if end > limit:
            raise ValueError(
                f"learned positions end at {limit} tokens, and the text would reach {end}: start "
                "again with an empty state, or choose positions=sinusoidal, rotary or none"
            )
    if cls and isinstance(table, AxialPositions):
        # the grid begins behind the CLS vector, which is a position by itself
        behind = table(position_ids(x.shape[1] - 1, None, x))
        return x + nn.functional.pad(behind, (0, 0, 1, 0))
    if start is None and document is None and isinstance(table, LearnedPositions):
        return x + table.first(x.shape[1])
    ids = position_ids(x.shape[1], start, x)
    if document is not None:
        ids = document_positions(document)
    codes: Tensor = encode(ids, x) if table is None else table(ids)
    return x + codes
