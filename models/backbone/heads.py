"""From the stack's output to answers: pooling, classifiers, the language head, evaluation."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import StrEnum, auto
from itertools import pairwise
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lra.models.mixer import Unsupported

CHUNK_ELEMENTS = 2**24
"""Logits that the language head computes at once: 64 MiB in float32."""
ADAPTIVE_ELEMENTS = 2**28
"""The same of the adaptive head's first group: 1 GiB, 13,000 tokens over 20,000 frequent words.
Up to there it takes the memory and the time of PyTorch's own module."""


class Pooling(StrEnum):
    """How a sequence becomes one vector. Those in `WITH_CLS` add a position."""

    cls = auto()
    """The output at a learned vector that is prepended to the tokens."""
    mean = auto()
    """Mean over the real tokens."""
    mean_with_cls = auto()
    """Mean over the real tokens and a learned vector that is prepended to them."""
    mean_over_padded = auto()
    """Sum over the real tokens, divided by the padded length, as some published code does."""
    mean_all = auto()
    """Mean over all positions, padding with its outputs included (the Long Range Arena's MEAN)."""
    last = auto()
    """The output at the last real token, which depends on all others if the mixers are causal."""
    first = auto()
    """The output at the first token, real or padding (as the Long Range Arena does for pairs)."""


WITH_CLS = frozenset({Pooling.cls, Pooling.mean_with_cls})
"""Poolings that prepend a vector."""
READ_FIRST = frozenset({Pooling.cls, Pooling.first})
"""Poolings that read the answer at position 0."""
ORDERLESS = (
    Pooling.cls, Pooling.mean, Pooling.mean_with_cls, Pooling.mean_over_padded, Pooling.mean_all
)  # fmt: skip
"""Poolings that ignore the order of the tokens."""


class Interaction(StrEnum):
    """Which combination of the two towers' vectors a and b the pair head reads."""

    concat = auto()
    """[a, b]."""
    product = auto()
    """[a, b, a * b]."""
    nli = auto()
    """[a, b, a * b, a - b]."""


def pool(
    x: Float[Tensor, "b l d"], keep: Bool[Tensor, "b l"] | None, pooling: Pooling
) -> Float[Tensor, "b d"]:
    """Reduce the length of `x` to one vector for each row.

    A row without real tokens becomes zeros, except under cls, first and mean_all.
    """
    if pooling in READ_FIRST:
        return x[:, 0]
    if pooling == Pooling.last:
        if keep is None:
            return x[:, -1]
        position = torch.arange(x.shape[1], device=x.device)
        last = position.mul(keep).amax(dim=1)
        picked = x.gather(1, last[:, None, None].expand(-1, 1, x.shape[2])).squeeze(1)
        return picked.masked_fill(~keep.any(dim=1, keepdim=True), 0)
    if keep is None or pooling == Pooling.mean_all:
        return x.mean(dim=1)
    total = x.masked_fill(~keep[..., None], 0).sum(dim=1)
    if pooling == Pooling.mean_over_padded:
        return total / x.shape[1]
    return total / keep.sum(dim=1, keepdim=True).clamp(min=1)


def interact(
    pairs: Float[Tensor, "b 2 d"], interaction: Interaction
) -> Float[Tensor, "b features"]:
    """Join the vectors of the two sequences of a pair, as `interaction` says."""
    first, second = pairs.unbind(dim=1)
    joined = [first, second]
    if interaction != Interaction.concat:
        joined.append(first * second)
    if interaction == Interaction.nli:
        joined.append(first - second)
    return torch.cat(joined, dim=-1)


def judge(
    logits: Float[Tensor, "*items c"],
    target: Int[Tensor, "*items"],
    smoothing: float = 0.0,
    *,
    training: bool = False,
) -> tuple[Float[Tensor, "*items"], Bool[Tensor, "*items"] | None]:
    """Return each item's negative log-likelihood, at least in float32, and whether it is correct.

    With `smoothing`, the target has this share spread over all classes. In training, the second
    result is None, because computing it would read all logits once more.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    flat = F.cross_entropy(
        logits.flatten(0, -2), target.flatten(), reduction="none", label_smoothing=smoothing
    )
    return flat.view_as(target), None if training else logits.argmax(dim=-1) == target


class Classifier(nn.Module):
    """Linear maps with an activation between them; Xavier weights, zero biases.

    Args:
        features: Of what comes in.
        hidden: Units of the first hidden layer; the second, where there is one, has half of them.
        classes: Number of logits.
        hidden_layers: 0, 1 or 2.
        activation: Behind each hidden layer.
        dropout: Share of each hidden layer's units that is dropped before its activation.
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        classes: int,
        hidden_layers: int = 1,
        activation: Callable[[Tensor], Tensor] = F.relu,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation, self.dropout = activation, dropout
        widths = [features, *(hidden, hidden // 2)[:hidden_layers], classes]
        layers = [nn.Linear(*ends) for ends in pairwise(widths)]
        for name, layer in zip([*("hidden", "second")[:hidden_layers], "out"], layers, strict=True):
            self.add_module(name, layer)
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, features: Float[Tensor, "b f"]) -> Float[Tensor, "b c"]:
        """Return logits."""
        *hidden, out = self.children()
        for layer in hidden:
            dropped = F.dropout(layer(features), self.dropout, self.training)
            features = self.activation(dropped)
        logits: Tensor = out(features)
        return logits


class TokenHead(nn.Module, ABC):
    """Evaluates every position piece by piece; a head adds its formula."""

    dropout = 0.0
    """Dropout of a head in training."""

    @abstractmethod
    def piece(self) -> int:
        """Return how many positions are evaluated at once."""

    @abstractmethod
    def judge_piece(
        self, x: Float[Tensor, "n d"], target: Int[Tensor, " n"], smoothing: float
    ) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"] | None]:
        """Return the negative log-likelihoods of n positions, and their correctness or None."""

    def judge(
        self, x: Float[Tensor, "b l d"], target: Int[Tensor, "b l"], smoothing: float = 0.0
    ) -> tuple[Float[Tensor, "b l"], Bool[Tensor, "b l"] | None]:
        """Evaluate every position, piece by piece.

        With more than one piece, backward computes each piece again, so that its logits are not
        stored.
        """
        flat, targets = x.flatten(0, 1), target.flatten()
        if len(targets) <= self.piece():
            judged = [self.judge_piece(flat, targets, smoothing)]
        else:
            judged = [
                checkpoint(
                    self.judge_piece,
                    *piece,
                    smoothing,
                    use_reentrant=False,
                    preserve_rng_state=self.dropout > 0,
                )
                for piece in zip(
                    torch.split(flat, self.piece()), torch.split(targets, self.piece()), strict=True
                )
            ]
        nll = torch.cat([piece[0] for piece in judged]).view_as(target)
        hits = [piece[1] for piece in judged if piece[1] is not None]
        return nll, torch.cat(hits).view_as(target) if hits else None


class LanguageHead(TokenHead):
    """Logits over the vocabulary: x W^T, without bias.

    W is the token embedding where `tied` is given, else an own matrix from N(0, 1 / width). Where
    W is narrower than the stack's output, `inward` maps that to its width first.
    """

    def __init__(
        self,
        width: int,
        vocabulary: int,
        tied: nn.Parameter | None,
        inward: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        if tied is None:
            tied = nn.Parameter(torch.empty(vocabulary, width))
            nn.init.normal_(tied, std=width**-0.5)
        self.weight, self.inward = tied, inward

    def forward(self, x: Float[Tensor, "*items d"]) -> Float[Tensor, "*items c"]:
        """Return logits."""
        return F.linear(x if self.inward is None else self.inward(x), self.weight)

    def piece(self) -> int:
        """Return how many positions are evaluated at once."""
        return max(1, CHUNK_ELEMENTS // self.weight.shape[0])

    def judge_piece(
        self, x: Float[Tensor, "n d"], target: Int[Tensor, " n"], smoothing: float
    ) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"] | None]:
        """Evaluate n positions."""
        return judge(self(x), target, smoothing, training=self.training)


def groups_of(width: int, vocabulary: int, cutoffs: list[int], shrink: float) -> list[int]:
    """Return the cut-offs below the vocabulary size, at which groups of rarer ids begin.

    Raises:
        ValueError: None is left, they do not ascend, or a group would have no width.
    """
    inside = [cutoff for cutoff in cutoffs if cutoff < vocabulary]
    if not inside or inside != sorted(set(inside)) or inside[0] < 1:
        raise ValueError(
            f"softmax_cutoffs must ascend and begin below the vocabulary of {vocabulary:,}: "
            f"got {cutoffs}; lower them, or set softmax=full and embedding=full"
        )
    if shrink < 1 or width / shrink ** len(inside) < 1:
        raise ValueError(
            f"softmax_shrink={shrink} divides width {width} so often that the last of "
            f"{len(inside)} groups has no channel: wanted 1 to {width ** (1 / len(inside)):.3g}"
        )
    return inside


def no_smoothing(smoothing: float) -> None:
    """Raise `Unsupported` for label smoothing where not all classes have scores."""
    if smoothing:
        raise Unsupported(
            "softmax=adaptive does not compute the scores of all classes, which label "
            f"smoothing needs: got optim.label_smoothing={smoothing}; set it to 0, or "
            "model.backbone.softmax=full"
        )


class AdaptiveHead(TokenHead):
    """Adaptive softmax (arXiv:1609.04309), by PyTorch's module: ids sorted by frequency.

    Args:
        width: Of what comes in.
        vocabulary: Number of ids.
        cutoffs: Where the groups of rarer ids begin, ascending; those at or above `vocabulary` are
            left out.
        shrink: Group i has width / shrink ** i hidden units, at least 1.
        dropout: Of these units.

    Raises:
        ValueError: No group is left, or the cut-offs do not ascend.
    """

    def __init__(
        self,
        width: int,
        vocabulary: int,
        cutoffs: list[int],
        shrink: float,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        inside = groups_of(width, vocabulary, cutoffs, shrink)
        self.groups = nn.AdaptiveLogSoftmaxWithLoss(width, vocabulary, inside, div_value=shrink)
        self.dropout = dropout
        for tail in self.groups.tail if dropout else ():
            cast(nn.Sequential, tail)[0].register_forward_hook(self._drop)

    def _drop(self, layer: nn.Module, _: object, units: Float[Tensor, "n k"]) -> Tensor:
        return F.dropout(units, self.dropout, layer.training)

    def piece(self) -> int:
        """Return how many positions are evaluated at once."""
        return max(1, ADAPTIVE_ELEMENTS // self.groups.head_size)

    def forward(self, x: Float[Tensor, "*items d"]) -> Float[Tensor, "*items c"]:
        """Return log-probabilities of all ids; only for small batches."""
        log_probabilities: Tensor = self.groups.log_prob(x.flatten(0, -2))
        return log_probabilities.view(*x.shape[:-1], -1)

    def judge_piece(
        self, x: Float[Tensor, "n d"], target: Int[Tensor, " n"], smoothing: float
    ) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"] | None]:
        """Evaluate some positions; in training without hits, which would take as long again.

        Raises:
            Unsupported: Labels are to be smoothed, over classes whose scores are not computed.
        """
        no_smoothing(smoothing)
        nll: Tensor = -self.groups(x, target).output
        return nll, None if self.training else self.groups.predict(x) == target
