"""The literal forms of the Reformer's attention by the rules of the fast one; draws."""

import torch
from torch import Tensor

from lra.models.ops.hashing.lsh import Rules
from tests.literal import hashing as reference

SCORING = ("scale", "unit_keys", "exclude_self")
MEETING = ("chunk", "before", "after", "causal", "joint", "across_buckets")


def of(rules: Rules, names: tuple[str, ...]) -> dict[str, object]:
    return {name: getattr(rules, name) for name in names}


def drawn_buckets(*shape: int, count: int, seed: int = 0) -> Tensor:
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(seed))


def logits(u: Tensor, rules: Rules) -> Tensor:
    return reference.shared_scores(u, **of(rules, SCORING))


def exact(u: Tensor, v: Tensor, rules: Rules, keep: Tensor | None = None) -> Tensor:
    options = of(rules, ("causal", *SCORING))
    return reference.shared_attention(u, v, **options, keep=keep)


def meetings(buckets: list[list[int]], real: list[int], rules: Rules) -> Tensor:
    return reference.meetings(buckets, real, **of(rules, MEETING))


def literal(u, v, buckets, rules: Rules, *, keep=None, slopes=None) -> Tensor:
    options = rules._asdict()
    return reference.lsh_attention(u, v, buckets, **options, keep=keep, slopes=slopes)
