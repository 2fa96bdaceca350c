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

from lra.models.linear_map import LinearMap
from lra.models.mixer import Unsupported

CHUNK_ELEMENTS = 2**24
"""Logits that the language head computes at once: 64 MiB in float32."""
ADAPTIVE_ELEMENTS = 2**28
"""Log-probabilities of frequent words that the adaptive head computes at once: 1 GiB in float32,
13,000 tokens with 20,000 frequent words. Up to this size, the head takes as much memory and time as
PyTorch's own module."""


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
    """Return one vector for each row of `x`, by the rule `pooling`.

    `keep` is True for real tokens; None means that all are real. A row without real tokens gives
    zeros, except for cls, first and mean_all.
    """
    if pooling in READ_FIRST:
        return x[:, 0]
    if pooling == Pooling.last:
        if keep is None:
            return x[:, -1]
        position = torch.arange(x.shape[1], device=x.device)
        last = position.mul(keep).amax(dim=1)
        last_vectors = x.gather(1, last[:, None, None].expand(-1, 1, x.shape[2])).squeeze(1)
        return last_vectors.masked_fill(~keep.any(dim=1, keepdim=True), 0)
    if keep is None or pooling == Pooling.mean_all:
        return x.mean(dim=1)
    total = x.masked_fill(~keep[..., None], 0).sum(dim=1)
    if pooling == Pooling.mean_over_padded:
        return total / x.shape[1]
    return total / keep.sum(dim=1, keepdim=True).clamp(min=1)


def interact(
    pairs: Float[Tensor, "b 2 d"], interaction: Interaction
) -> Float[Tensor, "b features"]:
    """Concatenate the vectors a and b of each pair and, by `interaction`, a * b and a - b."""
    first, second = pairs.unbind(dim=1)
    features = [first, second]
    if interaction != Interaction.concat:
        features.append(first * second)
    if interaction == Interaction.nli:
        features.append(first - second)
    return torch.cat(features, dim=-1)


def judge(
    logits: Float[Tensor, "*items c"],
    target: Int[Tensor, "*items"],
    smoothing: float = 0.0,
    *,
    training: bool = False,
) -> tuple[Float[Tensor, "*items"], Bool[Tensor, "*items"] | None]:
    """Return the negative log-likelihood of each target, and whether its logit is the largest.

    Args:
        logits: Scores of c classes for each item; half precision is computed in float32.
        target: The right class of each item.
        smoothing: Share of the target's probability that is spread over all classes.
        training: Whether to return None as second result, which saves reading all logits again.
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    flat = F.cross_entropy(
        logits.flatten(0, -2), target.flatten(), reduction="none", label_smoothing=smoothing
    )
    return flat.view_as(target), None if training else logits.argmax(dim=-1) == target


def judge_number(
    answers: Float[Tensor, "b 1"],
    target: Float[Tensor, " b"] | Int[Tensor, " b"],
    smoothing: float = 0.0,
    *,
    training: bool = False,
) -> tuple[Float[Tensor, " b"], Bool[Tensor, " b"] | None]:
    """Return the squared error of each answer, and False, because no real number is just right.

    `smoothing` must be 0, and in training the second result is None.
    """
    if smoothing:
        raise Unsupported(
            "label smoothing spreads a probability over classes, which a real number lacks: got "
            f"optim.label_smoothing={smoothing}; set it to 0"
        )
    squares = (answers.squeeze(-1).float() - target.float()).square()
    return squares, None if training else torch.zeros_like(target, dtype=torch.bool)


def asked_items(weight: Tensor | None) -> Int[Tensor, " n"] | None:
    """Return the items whose weight is not 0, as numbers in the flattened target; None: all."""
    if weight is None or bool(weight.all()):
        return None
    return weight.flatten().nonzero().squeeze(1)


def spread_items(
    values: Float[Tensor, " n"] | Bool[Tensor, " n"],
    asked: Int[Tensor, " n"] | None,
    target: Int[Tensor, "*items"] | Float[Tensor, "*items"],
) -> Float[Tensor, "*items"] | Bool[Tensor, "*items"]:
    """Return `values` at the items `asked` of the flattened target, and zeros (False) elsewhere.

    None: `values` has all items.
    """
    if asked is not None:
        values = values.new_zeros(target.numel()).index_copy(0, asked, values)
    return values.view_as(target)


class Classifier(nn.Module):
    """Linear maps with an activation between them; Xavier-uniform weights, zero biases.

    Args:
        features: Number of input features, f.
        hidden: Units of the first hidden layer; a second one has half as many.
        classes: Number of logits, c.
        hidden_layers: Number of hidden layers, 0, 1 or 2.
        activation: Function after each hidden layer.
        dropout: Dropout of each hidden layer's units, before its activation.
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
        """Make the layers `hidden`, `second` and `out`, or fewer; `forward` relies on the order."""
        super().__init__()
        self.activation, self.dropout = activation, dropout
        widths = [features, *(hidden, hidden // 2)[:hidden_layers], classes]
        layers = [LinearMap(*in_and_out) for in_and_out in pairwise(widths)]
        for name, layer in zip([*("hidden", "second")[:hidden_layers], "out"], layers, strict=True):
            self.add_module(name, layer)
        for layer in layers:
            layer.draw()

    def forward(self, features: Float[Tensor, "b f"]) -> Float[Tensor, "b c"]:
        """Return the logits of c classes."""
        *hidden, out = self.children()
        for layer in hidden:
            dropped = F.dropout(layer(features), self.dropout, self.training)
            features = self.activation(dropped)
        logits: Tensor = out(features)
        return logits


class TokenHead(nn.Module, ABC):
    """A head that answers at every position, and evaluates some positions at a time.

    Subclasses define how (`judge_piece`) and how many (`piece`).
    """

    dropout = 0.0
    """Dropout of a head in training."""

    @abstractmethod
    def piece(self) -> int:
        """Return the number of positions that are evaluated at a time."""

    @abstractmethod
    def judge_piece(
        self, x: Float[Tensor, "n d"], target: Int[Tensor, " n"], smoothing: float
    ) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"] | None]:
        """Return negative log-likelihoods at n positions, and in evaluation whether each is right.

        `smoothing` is label smoothing. In training, the second result is None.
        """

    def judge(
        self,
        x: Float[Tensor, "b l d"],
        target: Int[Tensor, "b l"],
        smoothing: float = 0.0,
        asked: Int[Tensor, " n"] | None = None,
    ) -> tuple[Float[Tensor, "b l"], Bool[Tensor, "b l"] | None]:
        """Return the same as `judge_piece` at the positions `asked`, and 0 and False elsewhere.

        `asked` numbers the positions of all rows one after another; None: all positions. With
        several pieces, backward computes each piece again instead of storing its logits.
        """
        flat, targets = x.flatten(0, 1), target.flatten()
        # Dropout draws a number for each position, so that the draws do not depend on `asked`.
        drops = self.training and self.dropout > 0
        if asked is not None and not drops:
            flat, targets = flat.index_select(0, asked), targets[asked]
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
        nll = torch.cat([likelihoods for likelihoods, _ in judged])
        if asked is not None and drops:
            nll = nll.index_select(0, asked)
        hits = [correct for _, correct in judged if correct is not None]
        hit = spread_items(torch.cat(hits), asked, target) if hits else None
        return spread_items(nll, asked, target), hit


class LanguageHead(TokenHead):
    """Logits over the vocabulary: x W^T, without bias.

    W is `tied`, the token embedding, or if that is None a new matrix from N(0, 1 / width). If W is
    narrower than the stack's output, the map `inward` first projects that output to W's width.
    """

    def __init__(
        self,
        width: int,
        vocabulary: int,
        tied: nn.Parameter | None,
        inward: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.untied = tied is None
        if tied is None:
            tied = nn.Parameter(torch.empty(vocabulary, width))
            nn.init.normal_(tied, std=width**-0.5)
        self.weight, self.inward = tied, inward

    def forward(self, x: Float[Tensor, "*items d"]) -> Float[Tensor, "*items c"]:
        """Return the logits of all c tokens of the vocabulary."""
        return F.linear(x if self.inward is None else self.inward(x), self.weight)

    def piece(self) -> int:
        """Return the number of positions that are evaluated at a time."""
        return max(1, CHUNK_ELEMENTS // self.weight.shape[0])

    def judge_piece(
        self, x: Float[Tensor, "n d"], target: Int[Tensor, " n"], smoothing: float
    ) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"] | None]:
        """Return negative log-likelihoods at n positions and, in evaluation, their correctness."""
        return judge(self(x), target, smoothing, training=self.training)


def groups_of(width: int, vocabulary: int, cutoffs: list[int], shrink: float) -> list[int]:
    """Return the cut-offs below the vocabulary size, at which groups of rarer ids begin.

    Raises:
        ValueError: No cut-off is below it, they do not ascend, or the last group, whose width is
            width / shrink^groups, would be less than one channel wide.
    """
    used = [cutoff for cutoff in cutoffs if cutoff < vocabulary]
    if not used or used != sorted(set(used)) or used[0] < 1:
        raise ValueError(
            "softmax_cutoffs must ascend, and the first one must be below the vocabulary size "
            f"{vocabulary:,}: got {cutoffs}; lower them, or set softmax=full and embedding=full"
        )
    if shrink < 1 or width / shrink ** len(used) < 1:
        raise ValueError(
            f"each group of rarer ids is softmax_shrink={shrink} times narrower than the one "
            f"before, from width={width} on, and the last of {len(used)} groups needs at least "
            f"one channel: set softmax_shrink to 1 to {width ** (1 / len(used)):.3g}"
        )
    return used


def no_smoothing(smoothing: float) -> None:
    """Raise `Unsupported` if `smoothing` is not 0, for heads that score only some classes."""
    if smoothing:
        raise Unsupported(
            "label smoothing needs the scores of all classes, but softmax=adaptive computes only "
            f"some: got optim.label_smoothing={smoothing}; set it to 0, or "
            "model.backbone.softmax=full"
        )


class AdaptiveHead(TokenHead):
    """Adaptive softmax (arXiv:1609.04309), by PyTorch's module: ids sorted by frequency.

    Args:
        width: Width of the input.
        vocabulary: Number of ids.
        cutoffs: First id of each group of rarer ids, ascending; values from `vocabulary` on are
            ignored.
        shrink: Group i has width / shrink ** i hidden units, at least 1.
        dropout: Dropout of these units.

    Raises:
        ValueError: See `groups_of`.
    """

    def __init__(
        self,
        width: int,
        vocabulary: int,
        cutoffs: list[int],
        shrink: float,
        dropout: float = 0.0,
    ) -> None:
        """Make PyTorch's module; it has no dropout, so hooks drop hidden units of rarer groups."""
        super().__init__()
        used = groups_of(width, vocabulary, cutoffs, shrink)
        self.groups = nn.AdaptiveLogSoftmaxWithLoss(width, vocabulary, used, div_value=shrink)
        self.dropout = dropout
        for tail in self.groups.tail if dropout else ():
            cast(nn.Sequential, tail)[0].register_forward_hook(self._drop)

    def _drop(self, layer: nn.Module, _: object, units: Float[Tensor, "n k"]) -> Tensor:
        """Return the hidden units of a group of rarer ids after dropout."""
        return F.dropout(units, self.dropout, layer.training)

    def piece(self) -> int:
        """Return the number of positions that are evaluated at a time."""
        return max(1, ADAPTIVE_ELEMENTS // self.groups.head_size)

    def forward(self, x: Float[Tensor, "*items d"]) -> Float[Tensor, "*items c"]:
        """Return log-probabilities of all c ids; use it only for small batches, to save memory."""
        log_probabilities: Tensor = self.groups.log_prob(x.flatten(0, -2))
        return log_probabilities.view(*x.shape[:-1], -1)

    def judge(
        self,
        x: Float[Tensor, "b l d"],
        target: Int[Tensor, "b l"],
        smoothing: float = 0.0,
        asked: Int[Tensor, " n"] | None = None,
    ) -> tuple[Float[Tensor, "b l"], Bool[Tensor, "b l"] | None]:
        """Return the same as the base class.

        PyTorch's module skips groups without a target, and the optimiser skips weights without a
        gradient. A group whose targets are all outside `asked` gets zeros as gradients, as it does
        from losses of weight 0.
        """
        nll, hit = super().judge(x, target, smoothing, asked)
        if asked is not None:
            edges = pairwise(self.groups.cutoffs)
            for tail, (first, end) in zip(self.groups.tail, edges, strict=True):
                if bool(((target >= first) & (target < end)).any()):
                    nll = nll + tail(x.flatten(0, 1)[:0]).sum()
        return nll, hit

    def judge_piece(
        self, x: Float[Tensor, "n d"], target: Int[Tensor, " n"], smoothing: float
    ) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"] | None]:
        """Return the negative log-likelihood at n positions, and whether the best id is the target.

        In training, the second result is None, because it would double the time. `Unsupported` for
        `smoothing`, which needs scores of all ids.
        """
        no_smoothing(smoothing)
        nll: Tensor = -self.groups(x, target).output
        return nll, None if self.training else self.groups.predict(x) == target
