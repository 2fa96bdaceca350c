"""The options of the backbone around the mixers, and the facts of its task."""

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from jaxtyping import Float, Int
from torch import Tensor

from lra.conf.choices import by_name
from lra.models.backbone.canon import check_canon
from lra.models.backbone.choices import (
    TOKEN_HEADS as TOKEN_HEADS,  # noqa: PLC0414  # handed on
    ClsKeep as ClsKeep,  # noqa: PLC0414  # handed on
    DecoderMixer,
    Embedding as Embedding,  # noqa: PLC0414  # handed on
    Head as Head,  # noqa: PLC0414  # handed on
    InitialMaps,
    Padding as Padding,  # noqa: PLC0414  # handed on
    Residual as Residual,  # noqa: PLC0414  # handed on
    Softmax as Softmax,  # noqa: PLC0414  # handed on
    StreamsOut as StreamsOut,  # noqa: PLC0414  # handed on
)
from lra.models.backbone.heads import ORDERLESS, Interaction, Pooling
from lra.models.backbone.length_pooling import PoolMode, check_blocks, even_blocks
from lra.models.backbone.loop import Inject, LoopStart, TrainPasses, check_loop
from lra.models.backbone.networks import ACTIVATIONS, WITHOUT_MAPS, FeedForward
from lra.models.backbone.norms import NORM_EPSILON, NormKind
from lra.models.idle import Need, defaults, format_value, idle
from lra.models.mixer import Positions, check_least, check_positive, check_share

Tokens: TypeAlias = Int[Tensor, "b p l"] | Float[Tensor, "b p l"] | Float[Tensor, "b p l channels"]
"""Ids of tokens, or real numbers, with or without channels: b examples of p sequences."""


@by_name
@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """The options of the backbone."""

    depth: int = 2
    layer_groups: int | None = None
    """Number of layers with separate weights; each is used `depth / layer_groups` times in a row
    (ALBERT, arXiv:1909.11942, uses 1). None = all are separate. The layers of a group are one
    module: norms, mixer with its draws, network."""
    pool_blocks: int = 1
    """Blocks of layers; the sequence is halved between them (Funnel-Transformer, arXiv:2006.03236).
    At most one block for each layer."""
    pool_layers: list[int] = field(default_factory=list)
    """Layers of each block, which add up to `depth`; empty: equal numbers, or more in the first
    blocks."""
    pool_repeats: list[int] = field(default_factory=list)
    """How often in a row each layer of a block is used, counted in `depth`; empty = once."""
    pool_query_only: bool = True
    """Whether keys and values of a block's first layer come from the longer sequence, which needs
    cross attention. False = from the pooled one, for all families."""
    pool_mode: PoolMode = PoolMode.mean
    """How two neighbours are pooled."""
    pool_decoder: int = 2
    """Layers at full length after the blocks, for models that answer at every position."""
    decoder_depth: int = 0
    """Layers of a decoder after an encoder of `depth` layers, for tasks of sequence to sequence; 0
    = a decoder alone, in which tokens of the source attend to each other."""
    decoder_mixer: DecoderMixer = DecoderMixer.exact
    """Mixer of the decoder's tokens; softmax attention reads the source."""
    width: int = 64
    heads: int = 2
    head_width: int | None = None
    """Width of one head's queries, keys and values; None = width / heads, which must be whole."""
    qkv_bias: bool | None = None
    """Whether the projections to queries, keys and values have biases; None = the family's option
    `bias`."""
    output_bias: bool | None = None
    """Whether the projection after attention has a bias; None = the family's option `bias`."""
    feed_forward_width: int = 128
    """Inner width of the network: the input of its last map."""
    feed_forward: FeedForward = FeedForward.gelu
    feed_forward_bias: bool = True
    """Whether the feed-forward network has biases."""
    feed_forward_groups: int = 1
    """Contiguous groups of channels with separate maps in the network; the number must divide both
    of its widths (ConvBERT, arXiv:2008.02496)."""
    feed_forward_chunks: int = 1
    """Pieces of the length that pass the network one by one, and are recomputed in backward."""
    loop_first: int | None = None
    """First layer of a loop, from 0: the layers from here to `loop_last` are applied several times
    (arXiv:2502.05171). None: no loop."""
    loop_last: int | None = None
    """Last layer of the loop; None: that of the stack."""
    loop_passes: int = 4
    """How often the loop is applied; stored weights also run with another number."""
    loop_inject: Inject = Inject.none
    """How the input of the loop enters each pass."""
    loop_start: LoopStart = LoopStart.state
    """What the first pass reads: the input of the loop, or noise (zeros in evaluation)."""
    loop_train_passes: TrainPasses = TrainPasses.fixed
    """Whether training makes `loop_passes` passes, or a random number, whose mean is one more."""
    loop_back_passes: int | None = None
    """Last passes that gradients go through; None = all."""
    canon: str = ""
    """Places of Canon layers, causal convolutions of four tokens with a residual, among A (before
    the mixer), B (on its queries, keys and values), C (before the feed-forward network) and D (on
    its wide vector), as in ABCD (arXiv:2512.17351); empty: none."""
    residual: Residual = Residual.pre_norm
    residual_block: int = 1
    """Mixers and networks in a row whose outputs are summed to one source of residual=attention."""
    norm: NormKind = NormKind.layer
    """Kind of norm in the stack."""
    norm_epsilon: float = NORM_EPSILON
    """Number that every norm of the stack adds to the variance."""
    stack_norm: bool = True
    """Whether there is a norm after the last layer (pre_norm, attention) or before the first
    (post_norm); reversible stacks always have the last one."""
    reversible_output: StreamsOut = StreamsOut.mean
    """How a reversible stack joins its streams (only residual=reversible)."""
    positions: Positions = Positions.learned
    rotary_base: float | None = None
    """Base of the angles of rotary positions; None = 10,000."""
    rotary_share: float | None = None
    """Share of each head's channels, in whole pairs, that rotary positions rotate; None = all."""
    relative_distance: int = 64
    """Largest distance that positions=shaw distinguishes."""
    order_blind: bool = False
    """Whether the model ignores the order of tokens on purpose, as a bag of tokens. A model without
    order is refused if this is False, and one with order if it is True."""
    axial_shape: list[int] = field(default_factory=list)
    """Rows and columns, for positions=axial; empty: nearly square."""
    axial_widths: list[int] = field(default_factory=list)
    """Widths of a row's and a column's vector, which add up to `width`; empty = halves."""
    memory: int | None = None
    """Tokens that a state remembers in training, for tasks with a state from batch to batch; None =
    the task's number."""
    evaluation_memory: int | None = None
    """Tokens that a state remembers in evaluation; None = as in training."""
    pooling: Pooling = Pooling.cls
    """Pooling of models with one answer for a sequence."""
    padding: Padding = Padding.masked
    cls_keep: ClsKeep = ClsKeep.always
    """Whether mixers treat the CLS vector as a real token; only for pooling=cls, padding=masked."""
    interaction: Interaction = Interaction.nli
    """How the vectors a and b of two texts are joined; only for tasks of pairs."""
    dropout: float = 0.0
    """Dropout after the mixer (before a gated residual), inside the network and after it."""
    tied_dropout: bool = False
    """Whether `dropout` removes a channel at all positions of a sequence (as in S4)."""
    activation_dropout: float | None = None
    """Dropout inside the network, after its activation; None = `dropout`."""
    embedding_dropout: float = 0.0
    word_dropout: float = 0.0
    """Fraction of the ids whose vectors become zeros in a training pass, at all positions; the
    others are scaled by 1 / (1 - fraction), and a tied head is unchanged (arXiv:1512.05287)."""
    output_dropout: float = 0.0
    """Dropout between the stack and the head."""
    attention_dropout: float = 0.0
    """Dropout of attention weights, for mixers that have some; elsewhere it counts as 0: see
    `Backbone.effective_attention_dropout`."""
    embedding: Embedding = Embedding.full
    embedding_width: int | None = None
    """Width of the table of ids, which a linear map projects to `width`; a tied head projects its
    input to this width first (ALBERT, arXiv:1909.11942). None = `width`, without a map."""
    tied_embeddings: bool = True
    """Whether the head uses the embedding for its answers. This option and those of the softmax are
    only for models that answer with tokens."""
    softmax: Softmax = Softmax.full
    softmax_cutoffs: list[int] = field(default_factory=lambda: [20_000, 40_000, 200_000])
    """First ids of the groups of rarer ids, for softmax=adaptive and embedding=adaptive. Ids must
    be sorted by frequency."""
    softmax_shrink: float = 4.0
    """Factor by which each group of rarer ids is narrower than the one before; 1: equal widths."""
    softmax_dropout: float = 0.0
    """Dropout after the projection to each group of rarer ids, for softmax=adaptive."""
    embedding_deviation: float | None = None
    """The table of ids is drawn from N(0, this), and its vectors enter the stack unscaled. None =
    with a tied head N(0, 1 / width) and vectors times sqrt(width), else N(0, 1)."""
    initial_deviation: float | None = None
    """Every matrix and table is drawn from N(0, this); None = as each part defines it."""
    initial_maps: InitialMaps | None = None
    """Linear maps that would be drawn Xavier-uniform, and the matrix of an untied head, are drawn
    by PyTorch's default, U(-1, 1) / sqrt(inputs); None = Xavier-uniform with biases of zeros, and
    N(0, 1 / width) for that matrix. Grouped maps, and those with a rule of their family, stay."""
    generator_share: float = 0.25
    """Width of the generator of task.objective=replaced, as a share of `width`; its heads and the
    width of its networks have this share, too (arXiv:2003.10555)."""
    detection_weight: float = 50.0
    """Weight of the loss of detecting replaced tokens; the loss of the generator has weight 1."""
    activation_checkpointing: bool = False
    head_hidden_width: int | None = None
    """Hidden width of the classifier; None: feed_forward_width."""
    head_hidden_layers: int = 1
    """Hidden layers of the classifier: 0 = one linear map; 2 = a second layer of half that
    width."""
    head_activation: FeedForward = FeedForward.relu
    """Activation after each hidden layer of the classifier."""
    head_dropout: float = 0.0
    """Dropout in each hidden layer of the classifier, before its activation."""

    def __post_init__(self) -> None:
        """Raise ValueError for values out of range, contradictions, and options without effect."""
        for name in ("depth", "layer_groups", "width", "heads", "head_width", "feed_forward_width",
                     "feed_forward_chunks", "feed_forward_groups", "head_hidden_width", "memory",
                     "pool_blocks", "evaluation_memory", "relative_distance",
                     "embedding_width", "residual_block", "loop_passes",
                     "loop_back_passes"):  # fmt: skip
            check_least(1, **{name: getattr(self, name)})
        check_least(0, decoder_depth=self.decoder_depth)
        if self.head_hidden_layers not in (0, 1, 2):
            raise ValueError(
                "head_hidden_layers, the number of hidden layers of the classifier, must be 0, 1 "
                f"or 2: got {self.head_hidden_layers}"
            )
        if self.head_activation not in ACTIVATIONS:
            raise ValueError(
                f"head_activation must be one of {', '.join(ACTIVATIONS)}: got "
                f"{self.head_activation}; for a head without an activation, set "
                "head_hidden_layers=0, which is one linear map"
            )
        self._refuse_numbers()
        for name in ("axial_shape", "axial_widths"):
            value = getattr(self, name)
            if value and (len(value) != 2 or min(value) < 1):
                raise ValueError(
                    f"{name} is a list of two positive numbers (for rows and for columns), or "
                    f"empty: got {value}"
                )
        for sentence in idle(NEEDS, vars(self), defaults(BackboneConfig)).values():
            raise ValueError(sentence)
        self._refuse_pairs()
        check_blocks(self)
        check_canon(self)
        check_loop(self)
        if self.norm == NormKind.batch:
            self._check_batch_norm()
        if self.norm == NormKind.conditional and self.residual == Residual.reversible:
            raise ValueError(
                "norm=conditional learns a vector of each condition, to which "
                "residual=reversible passes no gradient: set residual=pre_norm, or norm=layer"
            )

    def _refuse_numbers(self) -> None:
        """Raise ValueError for numbers outside their ranges."""
        cutoffs = self.softmax_cutoffs
        if min(cutoffs, default=1) < 1 or cutoffs != sorted(set(cutoffs)):
            raise ValueError(f"softmax_cutoffs must be positive and ascending: got {cutoffs}")
        if not self.softmax_shrink >= 1:
            raise ValueError(
                "softmax_shrink, by which each group of rarer ids is narrower, must be at least 1: "
                f"got {self.softmax_shrink}"
            )
        check_share(**{name: getattr(self, name) for name in SHARES})
        for name in ("embedding_deviation", "initial_deviation"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(
                    f"{name}, a standard deviation, must be positive, or null: got {value}"
                )
        check_positive(detection_weight=self.detection_weight)
        if not 0 < self.generator_share <= 1:
            raise ValueError(
                "generator_share, the generator's share of the width, must lie in (0, 1]: got "
                f"{self.generator_share}"
            )
        if self.rotary_base is not None and not self.rotary_base > 1:
            raise ValueError(
                "rotary_base, the base of the angles, must be above 1, or null: got "
                f"{self.rotary_base}"
            )
        if self.rotary_share is not None and not 0 < self.rotary_share <= 1:
            raise ValueError(
                "rotary_share, a share of channels, must be above 0 and at most 1, or null: got "
                f"{self.rotary_share}"
            )
        if not self.norm_epsilon > 0:
            raise ValueError(
                "norm_epsilon, which norms add to the variance, must be positive: got "
                f"{self.norm_epsilon}"
            )

    def _refuse_pairs(self) -> None:
        """Raise ValueError for values that contradict each other."""
        widths, groups = (self.width, self.feed_forward_width), self.feed_forward_groups
        if any(width % groups for width in widths):
            raise ValueError(
                "feed_forward_groups must divide width and feed_forward_width: got "
                f"feed_forward_groups={groups}, width={widths[0]}, feed_forward_width={widths[1]}"
            )
        if self.layer_groups is not None and self.depth % self.layer_groups:
            raise ValueError(
                "layer_groups, the number of layers with separate weights, must divide depth: got "
                f"layer_groups={self.layer_groups}, depth={self.depth}"
            )
        if self.head_hidden_layers == 2 and self.classifier_width < 2:
            raise ValueError(
                "with head_hidden_layers=2, the second hidden layer has half the width of the "
                f"first: got a first layer of width {self.classifier_width}; set "
                "head_hidden_width to 2 or more"
            )
        grouped = (self.softmax == Softmax.adaptive, self.embedding == Embedding.adaptive)
        if self.tied_embeddings and grouped == (True, False):
            raise ValueError(
                "softmax=adaptive needs a matrix for each group of tokens, but embedding=full has "
                "a single table, so they cannot be tied: set tied_embeddings=false, or "
                "embedding=adaptive, which has the same groups"
            )
        if self.tied_embeddings and grouped == (False, True):
            raise ValueError(
                "embedding=adaptive has a table for each group of tokens, but softmax=full needs "
                "a single one, so they cannot be tied: set softmax=adaptive, or "
                "tied_embeddings=false"
            )
        if self.residual == Residual.reversible and self.activation_checkpointing:
            raise ValueError(
                "residual=reversible stores no activations, so activation_checkpointing has "
                "nothing to save: set activation_checkpointing=false"
            )
        conflicts = {
            "activation_checkpointing": False, "pool_blocks": 1, "decoder_depth": 0
        }  # fmt: skip
        for name, wanted in conflicts.items() if self.residual == Residual.attention else ():
            if (value := getattr(self, name)) != wanted:
                raise ValueError(
                    "residual=attention reads the outputs of all earlier layers of one stack at "
                    f"full length: got {name}={format_value(value)}; set it to "
                    f"{format_value(wanted)}, or residual=pre_norm"
                )
        if self.residual == Residual.reversible and self.feed_forward == FeedForward.none:
            raise ValueError(
                "residual=reversible needs a feed-forward network, because the mixer updates only "
                "one half of the activations: got feed_forward=none; set feed_forward=gelu"
            )

    def _check_batch_norm(self) -> None:
        """Raise ValueError if an option would make batch norm compute its statistics twice.

        That is recomputation in backward, cutting the length into pieces, or sharing layers.
        """
        usual = defaults(BackboneConfig)
        conflicting = [
            "activation_checkpointing", "feed_forward_chunks", "layer_groups", "pool_repeats",
            "loop_first",
        ]  # fmt: skip
        if self.residual == Residual.reversible:
            conflicting.append("residual")
        for name in conflicting:
            if (value := getattr(self, name)) != usual[name]:
                raise ValueError(
                    "norm=batch must compute the statistics of each layer once per pass, over all "
                    f"positions, which {name} prevents: got {name}={format_value(value)}; leave "
                    f"it at {format_value(usual[name])}, or set norm=layer, rms or scale"
                )

    @property
    def block_layers(self) -> list[int]:
        """Number of layers of each block; the sequence is pooled between blocks."""
        return self.pool_layers or even_blocks(self.depth, self.pool_blocks)

    @property
    def uses(self) -> list[int]:
        """For each layer with separate weights, how many times in a row it is applied."""
        if self.layer_groups is not None:
            return [self.depth // self.layer_groups] * self.layer_groups
        repeats = self.pool_repeats or [1] * len(self.block_layers)
        return [
            times
            for layers, times in zip(self.block_layers, repeats, strict=True)
            for _ in range(layers // times)
        ]

    def at_full_length(self) -> "BackboneConfig":
        """Return these options, but without pooling and decoder layers, to compare models."""
        usual = defaults(BackboneConfig)
        names = [name for name in usual if name.startswith(("pool_", "decoder_"))]
        return replace(self, **{name: usual[name] for name in names})

    @property
    def classifier_width(self) -> int:
        """Width of the classifier's first hidden layer."""
        return self.head_hidden_width or self.feed_forward_width

    @property
    def width_out(self) -> int:
        """Width of the stack's output: twice `width` if two streams are concatenated."""
        concatenated = (
            self.residual == Residual.reversible and self.reversible_output == StreamsOut.concat
        )
        return 2 * self.width if concatenated else self.width


SHARES = (
    "dropout", "activation_dropout", "embedding_dropout", "word_dropout", "output_dropout",
    "attention_dropout", "softmax_dropout", "head_dropout",
)  # fmt: skip
NEEDS = (
    Need(
        "feed_forward_bias", "feed_forward_chunks", "feed_forward_groups", "activation_dropout",
        feed_forward=tuple(each for each in FeedForward if each not in WITHOUT_MAPS),
    ),
    Need("reversible_output", residual=Residual.reversible),
    Need("residual_block", residual=Residual.attention),
    Need(
        "loop_last", "loop_passes", "loop_inject", "loop_start", "loop_train_passes",
        "loop_back_passes",
        words="loop_first", holds=lambda _, chosen: chosen.loop_first is not None,
    ),
    Need("stack_norm", residual=tuple(each for each in Residual if each != Residual.reversible)),
    Need(
        "norm", "norm_epsilon", words="residual=pre_norm or stack_norm=true",
        holds=lambda _, chosen: chosen.stack_norm or chosen.residual != Residual.none,
    ),
    Need(
        "decoder_mixer", words="decoder_depth=1 or more",
        holds=lambda _, chosen: chosen.decoder_depth > 0,
    ),
    Need("axial_shape", "axial_widths", positions=Positions.axial),
    Need("relative_distance", positions=Positions.shaw),
    Need("rotary_base", "rotary_share", positions=Positions.rotary),
    Need(
        "pool_layers", "pool_repeats", "pool_query_only", "pool_mode", "pool_decoder",
        words="pool_blocks=2 or more", holds=lambda _, chosen: chosen.pool_blocks > 1,
    ),
    Need(
        "softmax_cutoffs", "softmax_shrink", words="softmax=adaptive or embedding=adaptive",
        holds=lambda _, chosen: "adaptive" in (chosen.softmax, chosen.embedding),
    ),
    Need("embedding_width", "embedding_deviation", embedding=Embedding.full),
    Need("embedding_deviation", embedding_width=None),
    Need("initial_maps", initial_deviation=None),
    Need(
        "tied_dropout", words="dropout above 0", holds=lambda _, chosen: chosen.dropout > 0
    ),
    Need("tied_dropout", feed_forward_chunks=1),
    Need("tied_dropout", decoder_depth=0),
    Need("softmax_dropout", softmax=Softmax.adaptive),
    Need("order_blind", positions=Positions.none),
    Need("order_blind", pooling=ORDERLESS),
    Need("cls_keep", pooling=Pooling.cls),
    Need("cls_keep", padding=(Padding.masked, Padding.passed)),
    Need("head_hidden_width", "head_activation", "head_dropout", head_hidden_layers=(1, 2)),
)  # fmt: skip
"""Which options have an effect only with which others; `assembly.OF_TASK` has those of tasks."""


@by_name
@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """The facts of the task for which a model is built."""

    head: Head
    vocabulary: int
    classes: int
    """Classes; heads that answer with a token or a number ignore it."""
    max_length: int
    """Longest input in tokens, without the CLS vector."""
    padded: bool = False
    """Whether batches have padding, which every mixer must then support."""
    scalars: bool = False
    """Whether tokens are real numbers, which a linear map turns into vectors."""
    channels: int = 1
    """Real numbers of a token; from 2 on, tokens have a last axis of this size."""
    memory: int = 0
    """Tokens that a state remembers from batch to batch; 0: the task has no state."""
    added_ids: int = 0
    """Last ids of the vocabulary that other tasks over the same tokens lack."""
    source_length: int = 0
    """Tokens of the longest source, for head=sequence_to_sequence."""
    target_length: int = 0
    """Tokens of the longest answer to it."""
    sources_vary: bool = False
    """Whether some sources are shorter."""
    masks: frozenset[str] = frozenset()
    """Masks among `lra.models.mixer.MASKS` in every batch, which every mixer must support."""
    conditions: int = 0
    """Conditions under which a language model generates, one for each row; 0: none."""

    def __post_init__(self) -> None:
        """Raise ValueError for facts that contradict each other."""
        if self.scalars and self.head in TOKEN_HEADS:
            raise ValueError(
                f"head={self.head} predicts token ids: got scalars=True, which means that tokens "
                "are real numbers; set scalars=False"
            )
        if self.channels < 1 or (self.channels > 1 and not self.scalars):
            raise ValueError(
                "only tokens that are real numbers have channels, at least 1: got "
                f"channels={self.channels}, scalars={self.scalars}; set scalars=True or channels=1"
            )
        if self.masks and self.head not in TOKEN_HEADS:
            raise ValueError(
                "only a model that answers at every position can have masks in its batches: got "
                f"head={self.head}, masks={sorted(self.masks)}"
            )
        if self.head == Head.permutation_modelling and "order" not in self.masks:
            raise ValueError(
                f"head={self.head} predicts tokens in a random order, so every batch must contain "
                f"this order: got masks={sorted(self.masks)}; add order to them"
            )

    def check(self, tokens: Tokens) -> None:
        """Raise ValueError if the type or shape of `tokens` does not fit these facts."""
        sequences, length = tokens.shape[1:3]
        channels = tokens.shape[3] if tokens.ndim == 4 else 1
        if tokens.is_floating_point() != self.scalars:
            wanted_kind = "real numbers" if self.scalars else "token ids"
            raise ValueError(
                f"the tokens of this model are {wanted_kind}: got {tokens.dtype}; build it with "
                f"scalars={not self.scalars}"
            )
        if channels != self.channels:
            raise ValueError(
                f"this model reads {self.channels} numbers of each token: got tokens of shape "
                f"{[*tokens.shape]}, with {channels}; build it with channels={channels}"
            )
        expected = 2 if self.head == Head.pair else 1
        if sequences != expected:
            raise ValueError(
                f"head={self.head.value} takes {expected} sequence(s) per example: got "
                f"{sequences}; pass tokens of shape [batch, sequences, length]"
            )
        if not 1 <= length <= self.max_length:
            raise ValueError(
                f"this model reads sequences of 1 to {self.max_length} tokens: got {length} "
                "tokens; truncate, or build it with a larger max_length"
            )
