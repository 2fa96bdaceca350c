"""Replaced-token detection: a small generator fills masked tokens, the model finds what is new.

    s_i ~ softmax(G(x)_i) at masked tokens,  y_i = s_i there and t_i elsewhere,  r_i = [y_i != t_i]
    L = mean over masked tokens of -log softmax(G(x)_i)[t_i]  +  w mean over real tokens of
        -r_i log sigmoid(D(y)_i) - (1 - r_i) log sigmoid(-D(y)_i)

x is the masked row, t the original one. D, the discriminator, is the model with a head of two
layers. G, the generator, is a narrower model of the same depth and family that shares the table of
token embeddings with D, through a linear map. Learned positions are separate. No gradient passes
through the samples s, which the task's random numbers decide: s_i is the first id at which the sum
of probabilities exceeds the number. A sample that equals t_i counts as original.

A part of a batch divides by the mean number of masked tokens in the rows of the whole batch.

Source: Clark et al. 2020, arXiv:2003.10555, sections 2 and 3.2, appendix A.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.backbone.choices import Embedding, Head, Softmax
from lra.models.backbone.config import BackboneConfig, TaskFacts
from lra.models.backbone.heads import CHUNK_ELEMENTS, Classifier, TokenHead
from lra.models.backbone.seeding import derive
from lra.models.mixer import Flow, Layout, MixerFactory, Unsupported


class DetectionHead(TokenHead):
    """A logit for each position: positive if the token was probably replaced.

    Args:
        width: Width of the input and of the hidden layer, which has a GELU.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.map = width, Classifier(width, width, 1, activation=F.gelu)

    def forward(self, x: Float[Tensor, "*items d"]) -> Float[Tensor, "*items 1"]:
        """Return the logits."""
        logits: Tensor = self.map(x.flatten(0, -2))
        return logits.view(*x.shape[:-1], 1)

    def piece(self) -> int:
        """Return the number of positions that are evaluated at a time."""
        return max(1, CHUNK_ELEMENTS // self.width)

    def judge_piece(
        self, x: Float[Tensor, "n d"], target: Int[Tensor, " n"], smoothing: float
    ) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"] | None]:
        """Return cross-entropies and, in evaluation, correctness; `target` is 1 where replaced."""
        if smoothing:
            raise Unsupported(
                "objective=replaced trains a generator and a detector with different classes, so "
                f"it has no label smoothing: got optim.label_smoothing={smoothing}; set it to 0"
            )
        logits = self(x).squeeze(-1)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        nll = F.binary_cross_entropy_with_logits(logits, target.to(logits), reduction="none")
        return nll, None if self.training else (logits > 0) == (target > 0)


class FilledRows(NamedTuple):
    """Rows whose masked tokens are samples of a generator."""

    tokens: Int[Tensor, "b 1 l"]
    masked: Int[Tensor, " n"]
    """Which tokens were masked, as numbers in the flattened rows."""
    flow: Flow
    """Output of the generator's stack."""
    number: Tensor | int
    """Masked tokens by which a sum of losses is divided."""


def generator_config(config: BackboneConfig) -> BackboneConfig:
    """Return the options of the generator: `generator_share` of the heads and of all widths.

    Its table of tokens has the width of the discriminator's, and a map follows.
    """
    share = config.generator_share
    heads = max(1, int(config.heads * share))
    return replace(
        config,
        heads=heads,
        width=heads * max(1, round(config.width * share / heads)),
        feed_forward_width=max(1, round(config.feed_forward_width * share)),
        embedding_width=config.embedding_width or config.width,
        axial_widths=[],
    )


def generator_of(model: nn.Module, mixers: Sequence[MixerFactory], seed: int) -> nn.Module | None:
    """Return the generator for a `Backbone`, with its table of tokens; None for other heads.

    Args:
        model: The discriminator, which has an embedding.
        mixers: As for the discriminator; empty if its stack is a custom one.
        seed: Seed of the model; the generator draws other numbers.

    Raises:
        Unsupported: The family or its options have no narrower model that predicts tokens.
    """
    config, facts = cast(BackboneConfig, model.config), cast(TaskFacts, model.facts)
    if facts.head != Head.replaced_detection:
        return None
    if not mixers:
        raise Unsupported(
            "objective=replaced builds a generator of narrower layers, but this model arranges "
            "its layers itself: choose another family, or task.objective=masked"
        )
    if all(traits.causal for traits in cast(Any, model).traits):
        raise Unsupported(
            "objective=replaced judges each token by those before and after it, but this family "
            "reads only earlier ones (traits.causal=True): choose another family, or "
            "task.objective=causal"
        )
    if config.embedding == Embedding.adaptive or config.softmax == Softmax.adaptive:
        raise Unsupported(
            "objective=replaced samples from the probabilities of all tokens, with one table of "
            f"embeddings: got embedding={config.embedding}, softmax={config.softmax}; set both to "
            "full"
        )
    try:
        generator: Any = type(model)(
            generator_config(config),
            replace(facts, head=Head.masked_modelling),
            mixers,
            seed=derive(seed, "generator"),
        )
    except ValueError as error:
        raise Unsupported(
            f"the generator of objective=replaced has a share of {config.generator_share} of the "
            f"model's width, which this model does not support: {error}; otherwise set "
            "model.backbone.generator_share=1 or 0.5"
        ) from error
    generator.embedding.weight = cast(Any, model).embedding.weight
    if config.tied_embeddings:
        generator.head.weight = generator.embedding.weight
    return cast(nn.Module, generator)


def fill(
    generator: Any, tokens: Int[Tensor, "b 1 l"], keep: Bool[Tensor, "b 1 l"] | None, layout: Layout
) -> FilledRows:
    """Replace masked tokens by samples of `generator`, a `Backbone`.

    Raises:
        Unsupported: The batch lacks the random numbers (`layout.uniform`).
    """
    if layout.uniform is None:
        raise Unsupported(
            "with objective=replaced, a model reads samples of its generator, so batches must "
            "contain random numbers for them, which this runner does not pass: choose "
            "runner=train or runner=transfer, or another objective of the task"
        )
    uniform = layout.uniform.flatten()
    if uniform.is_meta:  # the shape of a count without contents: at most all tokens are masked
        masked = torch.arange(len(uniform), device="meta")
    else:
        masked = uniform.nonzero().squeeze(1)
    flow = generator.run(tokens, keep, None)
    with torch.no_grad():
        x, rate = flow.x.flatten(0, 1).index_select(0, masked), generator.head.piece()
        pieces = zip(torch.split(x, rate), torch.split(uniform[masked], rate), strict=True)
        samples = torch.cat([draw_ids(generator.head(part), number) for part, number in pieces])
    filled = tokens.flatten().index_copy(0, masked, samples).view_as(tokens)
    number: Tensor | int = max(1, len(masked))
    if layout.masked_per_row is not None:
        number = layout.masked_per_row.sum().clamp(min=1)
    return FilledRows(filled, masked, flow, number)


def draw_ids(logits: Float[Tensor, "n c"], uniform: Float[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return an id for each row of logits: the first at which the summed probability exceeds u.

    `uniform` has the numbers u in (0, 1). Sums are in float64, so they never round up to the total.
    """
    sums = logits.double().softmax(-1).cumsum(-1)
    reached = uniform.double()[:, None] * sums[:, -1:]
    ids: Tensor = torch.searchsorted(sums, reached, right=True).squeeze(1)
    return ids.clamp(max=logits.shape[1] - 1)


class JudgedSamples(NamedTuple):
    """What the discriminator reads, and how the generator is judged."""

    tokens: Int[Tensor, "b 1 l"]
    new: Int[Tensor, "b l"]
    """1 at tokens that differ from the original ones, else 0."""
    penalties: Mapping[str, Tensor]
    """The loss of the generator, under its name, and penalties of its layers."""
    scores: Mapping[str, tuple[Tensor, int]]
    """In evaluation, sum and number of items of each further score."""


def judge_samples(
    generator: Any, filled: FilledRows, target: Int[Tensor, "b l"], asked: Int[Tensor, " n"] | None
) -> JudgedSamples:
    """Compare the samples, which `fill` returned, and the generator with the original tokens.

    `target` are these, and `asked` numbers the real tokens in the flattened rows; None: all.
    """
    nll, hit = generator.head.judge(filled.flow.x, target, 0.0, filled.masked)
    new, count = (filled.tokens.squeeze(1) != target).long(), len(filled.masked)
    flow = filled.flow.add_penalty("generator", nll.sum() / filled.number)
    scores = {}
    if hit is not None:
        real = new.flatten() if asked is None else new.flatten()[asked]
        scores = {
            "original_share": (len(real) - real.sum(), len(real)),
            "generator_accuracy": (hit.sum(), count),
            "generator_loss": (nll.detach().sum(), count),
        }
    return JudgedSamples(filled.tokens, new, flow.penalties, scores)
