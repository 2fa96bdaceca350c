"""Big Bird as a dense mask of its own plan: what its tests compare with."""

from functools import partial

import torch

from lra.models.families.big_bird import BigBird
from lra.models.mixer import Site, Variant
from tests import attention

agree = partial(attention.compare, looser=10)

HEADS, WIDTH = 2, 4
PLAN = [[12, 4], [10, 3], [3, 1]]
"""What rows 7 to 9 of head 0 draw with seed 0."""


heads = partial(attention.heads, number=HEADS)


def built(max_length: int = 64, *, block: int = 4, random_blocks: int = 2, **facts) -> BigBird:
    options = {name: facts.pop(name) for name in ("plan", "padding", "variant") if name in facts}
    seed = facts.pop("seed", 0)
    site = Site(
        width=HEADS * WIDTH,
        heads=HEADS,
        max_length=max_length,
        generator=torch.Generator().manual_seed(seed),
        **facts,
    )
    if not (site.causal and options.get("variant") is Variant.lra):  # which has no blocks
        options |= {"block": block, "random_blocks": random_blocks}
    return BigBird(site, **options).double().eval()


def table(mixer: BigBird, blocks: int) -> list[list[list[int]]]:
    """What each row of each head sees, by block, read from the plan."""
    pattern, rows = mixer.core.pattern, torch.arange(blocks)
    lists = pattern.lists(mixer.core.draws, torch.tensor([blocks]), rows)
    return [
        [row[kept].tolist() for row, kept in zip(*pair, strict=True)]
        for pair in zip(lists.blocks[0], lists.seen[0], strict=True)
    ]
