"""The one model: embedding, stack, head. Families differ only in the mixers that fill it.

What is drawn at random: token embeddings N(0, 1), learned positions N(0, 0.02), linear maps
Xavier-uniform, biases zero. With tied embeddings a language model draws N(0, 1 / width) instead
and multiplies by sqrt(width) on the way in (Vaswani et al. 2017, section 3.4): the blocks see
N(0, 1) as everywhere else, and the same matrix gives logits of sensible size.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from models.heads import Classifier, Interaction, LanguageHead, Pooling, interact, judge, pool
from models.mixer import (
    Flow,
    Layout,
    MixerFactory,
    Penalised,
    Positions,
    Site,
    State,
    Traits,
    Unsupported,
)
from models.positions import LearnedPositions, position_ids, sinusoid
from models.stack import Block, FeedForward, Stack, admit

__all__ = [
    "Backbone",
    "BackboneConfig",
    "Facts",
    "FeedForward",
    "Head",
    "Interaction",
    "Outcome",
    "Pooling",
    "Positions",
]


class Head(StrEnum):
    """What the model answers."""

    classification = auto()
    pair = auto()
    language_modelling = auto()


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """What a user chooses about the frame."""

    depth: int = 2
    width: int = 64
    heads: int = 2
    feed_forward_width: int = 128
    feed_forward: FeedForward = FeedForward.gelu
    positions: Positions = Positions.learned
    pooling: Pooling = Pooling.cls
    """Ignored by language models, which answer at every position."""
    interaction: Interaction = Interaction.nli
    """Read by the pair head alone."""
    dropout: float = 0.0
    """After the mixer, inside the network and after it."""
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    """Acts in mixers that have weights to drop; see `Backbone.effective_attention_dropout`."""
    tied_embeddings: bool = True
    """Read by language models alone."""
    activation_checkpointing: bool = False
    head_hidden_width: int | None = None
    """Hidden width of the classifier; None = feed_forward_width."""

    def __post_init__(self) -> None:
        """Refuse values that no model can have."""
        for name in ("depth", "width", "heads", "feed_forward_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1: got {getattr(self, name)}")
        for name in ("dropout", "embedding_dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must lie in [0, 1): got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the task tells the model."""

    head: Head
    vocabulary: int
    classes: int
    """Ignored by language models."""
    max_length: int
    """Of the tokens, without the CLS vector."""


class Outcome(NamedTuple):
    """Every item judged: what the training loss and every metric are made of."""

    nll: Float[Tensor, "b *l"]
    """Nats, shaped like the target."""
    hit: Bool[Tensor, "b *l"]
    state: State
    penalties: Mapping[str, Tensor]
    """Of activations and of parameters, summed over layers."""


def derive(seed: int, part: str) -> int:
    """Return the seed of one part of the model: parts draw alike whatever the others draw."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{part}".encode()).digest()[:8], "big") >> 1


@contextmanager
def drawing() -> Iterator[None]:
    """Draw parameters on the CPU (or the meta device), and leave the global random state alone."""
    meta = torch.get_default_device().type == "meta"
    with torch.random.fork_rng(devices=[]), torch.device("meta" if meta else "cpu"):
        yield


class Backbone(nn.Module):
    """Embedding -> stack -> head.

    Parameters depend on `seed` alone, not on the global random state, which stays as it was; the
    parts that two families share (embedding, networks, head) are drawn equal for the same seed.
    They are drawn on the CPU, also under another default device, so that a seed means the same
    model on every machine; under `torch.device("meta")` nothing is drawn. Move it with `to`.

    Args:
        config: The frame.
        facts: What the task says.
        mixers: One factory for all layers, or one per layer.
        seed: Decides every parameter.

    Raises:
        Unsupported: The mixers cannot serve this task or these positions.
        ValueError: The numbers do not fit together.
    """

    def __init__(
        self, config: BackboneConfig, facts: Facts, mixers: Sequence[MixerFactory], *, seed: int
    ) -> None:
        super().__init__()
        if len(mixers) not in (1, config.depth):
            raise ValueError(
                f"mixers must be 1 for all layers or depth={config.depth} of them: "
                f"got {len(mixers)}"
            )
        self.config, self.facts = config, facts
        self.causal = facts.head is Head.language_modelling
        self.has_cls = not self.causal and config.pooling is Pooling.cls
        factories = list(mixers) * (config.depth if len(mixers) == 1 else 1)
        with drawing():
            self._draw_embedding(seed)
            self._draw_stack(factories, seed)
            self._draw_head(seed)

    def _draw_embedding(self, seed: int) -> None:
        torch.default_generator.manual_seed(derive(seed, "embedding"))
        config, facts = self.config, self.facts
        tied = self.causal and config.tied_embeddings
        self.input_scale = config.width**0.5 if tied else 1.0
        self.embedding = nn.Embedding(facts.vocabulary, config.width)
        nn.init.normal_(self.embedding.weight, std=1.0 / self.input_scale)
        if self.has_cls:
            self.cls = nn.Parameter(torch.zeros(config.width))
        self.positions: LearnedPositions | None = None
        if config.positions is Positions.learned:
            self.positions = LearnedPositions(facts.max_length + self.has_cls, config.width)
        self.embedding_dropout = nn.Dropout(config.embedding_dropout)

    def _draw_stack(self, factories: Sequence[MixerFactory], seed: int) -> None:
        config, shared = self.config, dict[str, nn.Module]()
        rotary = config.positions is Positions.rotary
        length = self.facts.max_length + self.has_cls
        blocks = []
        for layer, factory in enumerate(factories):
            torch.default_generator.manual_seed(derive(seed, f"mixer {layer}"))
            site = Site(
                width=config.width,
                heads=config.heads,
                max_length=length,
                causal=self.causal,
                layer=layer,
                depth=config.depth,
                attention_dropout=config.attention_dropout,
                positions=Positions.rotary if rotary else Positions.none,
                generator=torch.Generator().manual_seed(derive(seed, f"generator {layer}")),
                shared=shared,
            )
            _ = site.head_width  # heads must divide width, whether or not the family has heads
            mixer = admit(
                factory(site), positions=config.positions, causal=self.causal, max_length=length
            )
            torch.default_generator.manual_seed(derive(seed, f"network {layer}"))
            blocks.append(
                Block(
                    mixer,
                    width=config.width,
                    feed_forward=config.feed_forward,
                    feed_forward_width=config.feed_forward_width,
                    dropout=config.dropout,
                )
            )
        self.stack = Stack(
            blocks, width=config.width, checkpointing=config.activation_checkpointing
        )

    def _draw_head(self, seed: int) -> None:
        torch.default_generator.manual_seed(derive(seed, "head"))
        config, facts = self.config, self.facts
        self.head: Classifier | LanguageHead
        if self.causal:
            tied = cast(nn.Parameter, self.embedding.weight) if config.tied_embeddings else None
            self.head = LanguageHead(config.width, facts.vocabulary, tied)
            return
        parts = 1
        if facts.head is Head.pair:
            parts = 4 if config.interaction is Interaction.nli else 2
        hidden = config.head_hidden_width or config.feed_forward_width
        self.head = Classifier(parts * config.width, hidden, facts.classes)

    @property
    def traits(self) -> list[Traits]:
        """What the mixers guarantee, by layer."""
        return [cast(Any, block).mixer.traits for block in self.stack.blocks]

    @property
    def effective_attention_dropout(self) -> tuple[float, ...]:
        """What `attention_dropout` comes to, by layer: 0 where a mixer has no weights to drop."""
        asked = self.config.attention_dropout
        return tuple(asked if traits.weight_dropout else 0.0 for traits in self.traits)

    def forward(
        self,
        tokens: Int[Tensor, "b p l"],
        target: Int[Tensor, "b *l"],
        keep: Bool[Tensor, "b p l"] | None = None,
        state: State = None,
    ) -> Outcome:
        """Judge every item.

        Language models: `target[:, i]` is the token after `tokens[:, 0, i]`; the task shifts.
        """
        flow = self.run(tokens, keep, state)
        if isinstance(self.head, LanguageHead):
            nll, hit = self.head.judge(flow.x, target)
        else:
            nll, hit = judge(self.classify(flow.x, keep, tokens.shape[1]), target)
        for part in self.modules():  # yields a shared module once
            if isinstance(part, Penalised):
                for name, value in part.penalties().items():
                    flow = flow.charge(name, value)
        return Outcome(nll, hit, flow.state, flow.penalties)

    def predict(
        self,
        tokens: Int[Tensor, "b p l"],
        keep: Bool[Tensor, "b p l"] | None = None,
        state: State = None,
    ) -> tuple[Float[Tensor, "b *l c"], State]:
        """Return logits, [b c] or [b l c], and the next state where one is given."""
        flow = self.run(tokens, keep, state)
        if isinstance(self.head, LanguageHead):
            return self.head(flow.x), flow.state
        return self.classify(flow.x, keep, tokens.shape[1]), flow.state

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return the empty state of `batch_size` streams that remember `memory` tokens.

        Raises:
            Unsupported: A mixer has none, or the model answers once per sequence.
        """
        if not self.causal:
            raise Unsupported(
                f"a state along time belongs to language models: got head={self.facts.head.value}"
            )
        count = torch.zeros(batch_size, dtype=torch.long, device=self.embedding.weight.device)
        return count, self.stack.initial_state(batch_size, memory)

    def run(
        self,
        tokens: Int[Tensor, "b p l"],
        keep: Bool[Tensor, "b p l"] | None,
        state: State,
    ) -> Flow:
        """Return the stack's output with p folded into b, and the next state where one is given.

        The model's state is (tokens seen by row, the stack's state): the count is where the next
        tokens stand.
        """
        self.check(tokens, keep, state)
        count, layers = cast(tuple[Tensor | None, State], state or (None, None))
        tokens, keep = tokens.flatten(0, 1), None if keep is None else keep.flatten(0, 1)
        x = self.embedding(tokens)
        if self.input_scale != 1.0:
            x = x * self.input_scale
        if self.has_cls:
            x = torch.cat((self.cls.to(x.dtype).expand(x.shape[0], 1, -1), x), dim=1)
            if keep is not None:
                keep = torch.cat((keep.new_ones(keep.shape[0], 1), keep), dim=1)
        flow = Flow(self.embedding_dropout(self.place(x, count)), layers)
        flow = cast(Flow, self.stack(flow, Layout(keep=keep, start=count)))
        if count is not None:
            return flow._replace(state=(count + tokens.shape[1], flow.state))
        return flow

    def place(
        self, x: Float[Tensor, "b l d"], start: Int[Tensor, " b"] | None
    ) -> Float[Tensor, "b l d"]:
        """Add the positions that belong to the input."""
        if self.positions is not None:
            # elsewhere a look at `start` would wait for the device, whose own index check is loud
            if start is not None and start.device.type == "cpu":
                end, limit = int(start.max()) + x.shape[1], self.positions.max_length
                if end > limit:
                    raise ValueError(
                        f"learned positions end at {limit} tokens: the stream would reach {end}; "
                        "start anew, or choose positions=sinusoidal, rotary or none"
                    )
            placed: Tensor = x + self.positions(position_ids(x.shape[1], start, x))
            return placed
        if self.config.positions is Positions.sinusoidal:
            ids = position_ids(x.shape[1], start, x)
            return x + sinusoid(ids, x.shape[-1]).to(x.dtype)
        return x

    def classify(
        self, x: Float[Tensor, "n placed d"], keep: Bool[Tensor, "b p l"] | None, parts: int
    ) -> Float[Tensor, "b c"]:
        """Pool each sequence, join the towers of a pair, and return logits."""
        flat = None if keep is None or self.has_cls else keep.flatten(0, 1)
        pooled = pool(x, flat, self.config.pooling)
        features = pooled.view(-1, parts, pooled.shape[-1])
        if self.facts.head is Head.pair:
            joined = interact(features, self.config.interaction)
        else:
            joined = features.squeeze(1)
        return cast(Tensor, self.head(joined))

    def check(
        self,
        tokens: Int[Tensor, "b p l"],
        keep: Bool[Tensor, "b p l"] | None,
        state: State,
    ) -> None:
        """Raise ValueError for tokens that this model was not built for."""
        parts, length = tokens.shape[1:]
        wanted = 2 if self.facts.head is Head.pair else 1
        if parts != wanted:
            raise ValueError(
                f"head={self.facts.head.value} takes {wanted} sequence(s) per example: got "
                f"{parts}; tokens are [batch, sequences, length]"
            )
        if not 1 <= length <= self.facts.max_length:
            raise ValueError(
                f"this model takes 1 to {self.facts.max_length} tokens: got {length}; truncate, "
                "or build it with a larger max_length"
            )
        if state is not None and keep is not None:
            raise ValueError(
                "a state continues full rows only: got a keep mask as well; group rows of equal "
                "length and pass keep=None"
            )
