"""From the stack's output to answers: pooling, the classifiers, the language head, the judge."""

from enum import StrEnum, auto

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

CHUNK_ELEMENTS = 2**24
"""Logits that the language head holds at once: 64 MiB in float32."""


class Pooling(StrEnum):
    """How a sequence becomes one vector."""

    cls = auto()
    """The output at a learned vector that is prepended to the tokens."""
    mean = auto()
    """Mean over the real tokens."""
    mean_over_padded = auto()
    """Sum over the real tokens, divided by the padded length, as some published code does."""


class Interaction(StrEnum):
    """What the pair head sees of the two towers' vectors a and b."""

    concat = auto()
    """[a, b]."""
    nli = auto()
    """[a, b, a * b, a - b]."""


def pool(
    x: Float[Tensor, "b l d"], keep: Bool[Tensor, "b l"] | None, pooling: Pooling
) -> Float[Tensor, "b d"]:
    """Reduce the length to one vector; a row without a real token becomes zeros under the means."""
    if pooling is Pooling.cls:
        return x[:, 0]
    if keep is None:
        return x.mean(dim=1)
    total = x.masked_fill(~keep[..., None], 0).sum(dim=1)
    if pooling is Pooling.mean_over_padded:
        return total / x.shape[1]
    return total / keep.sum(dim=1, keepdim=True).clamp(min=1)


def interact(
    pairs: Float[Tensor, "b 2 d"], interaction: Interaction
) -> Float[Tensor, "b features"]:
    """Join the vectors of the two towers."""
    first, second = pairs.unbind(dim=1)
    joined = [first, second]
    if interaction is Interaction.nli:
        joined += [first * second, first - second]
    return torch.cat(joined, dim=-1)


def judge(
    logits: Float[Tensor, "*items c"], target: Int[Tensor, "*items"]
) -> tuple[Float[Tensor, "*items"], Bool[Tensor, "*items"]]:
    """Return each item's negative log-likelihood, at least in float32, and whether it is right."""
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    flat = F.cross_entropy(logits.flatten(0, -2), target.flatten(), reduction="none")
    return flat.view_as(target), logits.argmax(dim=-1) == target


class Classifier(nn.Module):
    """Linear-ReLU-Linear; Xavier weights, zero biases."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, hidden)
        self.out = nn.Linear(hidden, classes)
        for layer in (self.hidden, self.out):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, features: Float[Tensor, "b f"]) -> Float[Tensor, "b c"]:
        """Return logits."""
        logits: Tensor = self.out(F.relu(self.hidden(features)))
        return logits


class LanguageHead(nn.Module):
    """Logits over the vocabulary: x W^T, without bias.

    W is the token embedding where `tied` is given, else an own matrix from N(0, 1 / width).
    """

    def __init__(self, width: int, vocabulary: int, tied: nn.Parameter | None) -> None:
        super().__init__()
        if tied is None:
            tied = nn.Parameter(torch.empty(vocabulary, width))
            nn.init.normal_(tied, std=width**-0.5)
        self.weight = tied

    def forward(self, x: Float[Tensor, "*items d"]) -> Float[Tensor, "*items c"]:
        """Return logits."""
        return F.linear(x, self.weight)

    def judge(
        self, x: Float[Tensor, "b l d"], target: Int[Tensor, "b l"]
    ) -> tuple[Float[Tensor, "b l"], Bool[Tensor, "b l"]]:
        """Judge every position without ever holding more than `CHUNK_ELEMENTS` logits.

        More than one chunk: each is computed again in backward, so that none is kept.
        """
        rows = max(1, CHUNK_ELEMENTS // self.weight.shape[0])
        pieces = list(
            zip(
                torch.split(x.flatten(0, 1), rows), torch.split(target.flatten(), rows), strict=True
            )
        )
        if len(pieces) == 1:
            return judge(self(x), target)
        judged = [
            checkpoint(self._judge_piece, *piece, use_reentrant=False, preserve_rng_state=False)
            for piece in pieces
        ]
        nll, hit = (torch.cat(parts).view_as(target) for parts in zip(*judged, strict=True))
        return nll, hit

    def _judge_piece(
        self, x: Float[Tensor, "n d"], target: Int[Tensor, " n"]
    ) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"]]:
        return judge(self(x), target)
