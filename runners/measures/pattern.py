"""Which tokens attend to each other in a family, at a small length.

Nothing is trained and no data are read. `lra.runners.measures.attention.pattern` describes how the
pattern of one mixer is found.
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
"""Most tokens for which patterns are found."""


@by_name
@dataclass(frozen=True, kw_only=True)
class Pattern(Runner):
    """How many tokens the model reads, and in which direction."""

    outcome: ClassVar[str] = "keys_seen"
    data: ClassVar[bool] = False

    length: int = 32
    """How many tokens the model reads; a CLS vector adds one position."""
    direction: Direction = Direction.task

    def __post_init__(self) -> None:
        """Check that the length is from 1 to `LONGEST`. Raises ValueError."""
        if not 1 <= self.length <= LONGEST:
            raise ValueError(
                f"length must be from 1 to {LONGEST} tokens: got {self.length}; 32 is usual"
            )

    @property
    def facing(self) -> Direction:
        """Return the direction that the options name."""
        return self.direction

    def cells(self, name: str, length: int) -> list[tuple[str, int]]:
        """Return mode and length of the only run; its length is the option `length`."""
        del length
        return [(name, self.length)]

    def passes(self, work: Work) -> list[Passes]:
        """Return one forward pass for each query."""
        return [Passes(work.length, 1, work.length, False, measured=True)]

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield a row for each query of each distinct pattern."""
        model = work.build(max_length=work.length)
        return seen_keys(model, positions=work.length + model.has_cls, seed=work.seed)

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return the number of different patterns, and how many keys a query attends to."""
        valued = [row for row in rows if row.value is not None]
        count = len({(row.labels["layer"], row.labels["head"]) for row in valued})
        mean = sum(row.value or 0 for row in valued) / max(1, len(valued))
        return f"{count} pattern{'' if count == 1 else 's'}, {mean:.1f} keys for each query"


def seen_keys(model: Backbone, *, positions: int, seed: int) -> Iterator[Measurement]:
    """Find the different patterns of a model, and yield one row for each query of each pattern.

    Heads with equal patterns share the rows of the first of them; the label `same` lists them all.

    Args:
        model: A model, trained or untrained.
        positions: Length of the random input of each mixer.
        seed: Seed of the random input.

    Raises:
        Unsupported: The stack has no layers, or its layers read sequences of different lengths.
    """
    if not isinstance(model.stack, Stack):
        raise Unsupported(
            f"{family(model.stack)} arranges its layers itself, so lra cannot find the pattern of "
            "each layer"
        )
    if isinstance(model.stack, PooledStack):
        raise Unsupported(
            "with pooled blocks, layers read sequences of different lengths, so lra cannot compare "
            "their patterns: set model.backbone.pool_blocks=1"
        )
    model = model.double().eval()
    generator = torch.Generator().manual_seed(seed)
    shape = (1, positions, model.config.width)
    distinct: dict[bytes, tuple[Any, list[tuple[int, str]]]] = {}  # matrix, and its layers : heads
    for layer, block in enumerate(cast(Any, model.stack).blocks):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        for head, matrix in patterns(cast(Any, block).mixer, x).items():
            _, heads = distinct.setdefault(matrix.numpy().tobytes(), (matrix, []))
            heads.append((layer, head))
    for matrix, heads in distinct.values():
        (layer, head) = heads[0]
        same = ", ".join(f"{layer}:{head}" for layer, head in heads)
        labels = {"layer": str(layer), "head": head, "same": same}
        for query, row in enumerate(matrix.tolist()):
            yield Measurement(
                metric="keys_seen",
                value=float(sum(size > 0 for size in row)),
                samples=tuple(map(float, row)),
                labels=labels | {"row": str(query)},
            )
