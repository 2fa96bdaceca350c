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
    """Return a layout with only masks and condition of `layout`, checked against `facts`.

    Raises:
        Unsupported: `layout` lacks a mask of the task, so tokens would attend to hidden tokens, or
            the condition.
        ValueError: There is a mask together with a state, or a condition that the task lacks.
    """
    given = {name: value for name in MASKS if (value := getattr(layout, name)) is not None}
    if missing := sorted(facts.masks - given.keys()):
        raise Unsupported(
            f"this task needs batches with {', '.join(missing)}, which limit what each token may "
            "attend to, but this runner does not pass them: choose runner=train or "
            "runner=transfer, or another objective of the task"
        )
    if given and state is not None:
        raise ValueError(
            f"a state can continue only rows whose layout has no {', '.join(given)}: got a state "
            "and such a layout; pass one of the two"
        )
    if facts.conditions and layout.condition is None:
        raise Unsupported(
            "this model generates under a condition, an id of each row below "
            f"{facts.conditions}, but this runner or command passes none: choose runner=train, or "
            "another objective of the task"
        )
    if layout.condition is not None and not facts.conditions:
        raise ValueError(
            "this model reads no condition, because its task has none: got one for each row; pass "
            "condition=None"
        )
    return PLAIN._replace(**given, condition=layout.condition)


def check_restarts(config: BackboneConfig, facts: TaskFacts) -> None:
    """Raise `Unsupported` if the task hides documents but positions cannot restart in each."""
    if "document" in facts.masks and config.positions == Positions.position_infused:
        raise Unsupported(
            "positions=position_infused counts positions from the beginning of a row, but this "
            "task needs positions that restart in each document of the row: set "
            "model.backbone.positions=learned, sinusoidal, rotary or alibi, or "
            "task.within_documents=false"
        )


def kept_words(x: Float[Tensor, "b l d"], vocabulary: int, rate: float) -> Float[Tensor, "v 1"]:
    """Return a random factor for the vector of each id: 0 with probability `rate`.

    The factor of other ids is 1 / (1 - rate); it has the type and device of `x`.
    """
    ones = torch.ones(vocabulary, 1, dtype=x.dtype, device=x.device)
    return nn.functional.dropout(ones, rate)


def behind_cls(
    cls: Float[Tensor, " d"],
    x: Float[Tensor, "b l d"],
    keep: Bool[Tensor, "b l"] | None,
    *,
    copied: bool,
) -> tuple[Float[Tensor, "b m d"], Bool[Tensor, "b m"] | None]:
    """Prepend the vector `cls` to the tokens `x` and extend the mask `keep`; m = l + 1.

    The CLS vector counts as real; with `copied`, it is real if the first token is real.
    """
    x = torch.cat((cls.to(x.dtype).expand(x.shape[0], 1, -1), x), dim=1)
    if keep is None:
        return x, None
    if copied:
        return x, torch.cat((keep[:, :1], keep), dim=1)
    return x, nn.functional.pad(keep, (1, 0), value=True)


def parts_of(
    x: Float[Tensor, "b l d"], layout: Layout, *, restarts: bool
) -> Int[Tensor, "b l"] | None:
    """Return the part of the row, by number, in which each token is; None: the row is one part.

    Positions restart in each part. Parts are the documents of `layout`; or if `restarts` is set and
    `layout` has a prefix, they are the prefix (0) and the rest (1). `x` holds the embedded tokens.
    """
    if not restarts or layout.prefix is None:
        return layout.document
    return (torch.arange(x.shape[1], device=x.device) >= layout.prefix[:, None]).long()


def document_positions(document: Int[Tensor, "b l"]) -> Int[Tensor, "b l"]:
    """Return the position of each token in its document; documents are contiguous."""
    place = torch.arange(document.shape[1], device=document.device).expand_as(document)
    is_first = torch.ones_like(document, dtype=torch.bool)
    is_first[:, 1:] = document[:, 1:] != document[:, :-1]
    # Subtract the place of the latest first token, which is that of the token's own document.
    return place - place.where(is_first, 0).cummax(1).values


def sinusoid_like(ids: Int[Tensor, "#b l"], x: Float[Tensor, "b l d"]) -> Float[Tensor, "#b l d"]:
    """Return the sinusoids of the positions `ids`, with the width and type of `x`."""
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
        document: Document number of each token, in which positions restart; None: one document.

    Raises:
        ValueError: On a CPU, if a position is beyond the table of learned positions.
    """
    table = encode if isinstance(encode, LearnedPositions | AxialPositions) else None
    # On a GPU, reading `start` would wait for the device, which checks indices itself.
    if table is not None and start is not None and start.device.type == "cpu" and len(start):
        end, limit = int(start.max()) + x.shape[1], table.max_length
        if end > limit:
            raise ValueError(
                f"this model has learned positions for {limit} tokens, but the text would be {end} "
                "tokens long: start again with an empty state, or choose positions=sinusoidal, "
                "rotary or none"
            )
    if cls and isinstance(table, AxialPositions):
        # The grid begins after the CLS vector, which has no position.
        codes_after_cls = table(position_ids(x.shape[1] - 1, None, x))
        return x + nn.functional.pad(codes_after_cls, (0, 0, 1, 0))
    if start is None and document is None and isinstance(table, LearnedPositions):
        return x + table.first(x.shape[1])
    ids = position_ids(x.shape[1], start, x)
    if document is not None:
        ids = document_positions(document)
    codes: Tensor = encode(ids, x) if table is None else table(ids)
    return x + codes
