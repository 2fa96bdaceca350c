"""Which tokens attend to each other in a family, at a small length.

Nothing is trained and no data are read. `lra.runners.measures.attention.pattern` says how.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch

from lra.conf.choices import by_name
from lra.models.backbone.length_pooling import PooledStack
from lra.models.backbone.model import Backbone
from lra.models.backbone.stack import Stack, family
from lra.models.mixer import Unsupported
from lra.runners.measures.attention.pattern import patterns
from lra.runners.records import Measurement
from lra.runners.runner import Direction, Passes, Runner, Work

LONGEST = 512


@by_name
@dataclass(frozen=True, kw_only=True)
class Pattern(Runner):
    """The number of tokens, and the direction of attention."""

    outcome: ClassVar[str] = "keys_seen"
    data: ClassVar[bool] = False

    length: int = 32
    """Tokens; a CLS vector adds one position."""
    direction: Direction = Direction.task

    def __post_init__(self) -> None:
        """Refuse a length without positions, or of too many."""
        if not 1 <= self.length <= LONGEST:
            raise ValueError(f"length must be from 1 to {LONGEST}: got {self.length}; try 32")

    @property
    def facing(self) -> Direction:
        """The direction in the options."""
        return self.direction

    def cells(self, name: str, length: int) -> list[tuple[str, int]]:
        """Return one run, with the length of the runner."""
        del length
        return [(name, self.length)]

    def passes(self, work: Work) -> list[Passes]:
        """Return a pass for each query."""
        return [Passes(work.length, 1, work.length, False, measured=True)]

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield a row for each query of each distinct pattern."""
        model = work.build(max_length=work.length)
        return seen_keys(model, positions=work.length + model.has_cls, seed=work.seed)

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return how many patterns there are, and the mean number of keys."""
        valued = [row for row in rows if row.value is not None]
        kinds = {(row.labels["layer"], row.labels["head"]) for row in valued}
        mean = sum(row.value or 0 for row in valued) / max(1, len(valued))
        return f"{len(kinds)} pattern{'' if len(kinds) == 1 else 's'}, {mean:.1f} keys a query"


def seen_keys(model: Backbone, *, positions: int, seed: int) -> Iterator[Measurement]:
    """Find the patterns of a model, and yield rows.

    Args:
        model: Of any weights.
        positions: Of the input of its mixers.
        seed: Of the input.

    Raises:
        Unsupported: The stack has no layers of mixers at one length.
    """
    if not isinstance(model.stack, Stack):
        raise Unsupported(
            f"{family(model.stack)} arranges its layers itself, so the pattern of each layer "
            "cannot be found"
        )
    if isinstance(model.stack, PooledStack):
        raise Unsupported(
            "with pooling, layers read sequences of different lengths, so their patterns cannot "
            "be compared: set model.backbone.pool_blocks=1"
        )
    model = model.double().eval()
    generator = torch.Generator().manual_seed(seed)
    shape = (1, positions, model.config.width)
    distinct: dict[bytes, tuple[Any, list[tuple[int, str]]]] = {}
    for layer, block in enumerate(cast(Any, model.stack).blocks):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        for head, matrix in patterns(cast(Any, block).mixer, x).items():
            _, places = distinct.setdefault(matrix.numpy().tobytes(), (matrix, []))
            places.append((layer, head))
    for matrix, places in distinct.values():
        (layer, head) = places[0]
        same = ", ".join(f"{layer}:{head}" for layer, head in places)
        labels = {"layer": str(layer), "head": head, "same": same}
        for query, row in enumerate(matrix.tolist()):
            yield Measurement(
                metric="keys_seen",
                value=float(sum(size > 0 for size in row)),
                samples=tuple(map(float, row)),
                labels=labels | {"row": str(query)},
            )
