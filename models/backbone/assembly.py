"""Build the parts of a backbone from its options: embedding, blocks, their stack, the head.

A factorised embedding has a table that is narrower than the model, as in ALBERT and ELECTRA:

    vector of id t = s e_t V + b,   E: vocabulary x e,   V: e -> width

A tied head projects the stack's output back to width e by a separate map and multiplies by E.

Source: Lan et al. 2020, arXiv:1909.11942, section 3.1.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.backbone.adaptive import AdaptiveEmbedding, TiedAdaptiveHead
from lra.models.backbone.canon import CanonPlaces
from lra.models.backbone.choices import CAUSAL_HEADS
from lra.models.backbone.config import (
    TOKEN_HEADS,
    BackboneConfig,
    Embedding,
    Head,
    Padding,
    Residual,
    Softmax,
    StreamsOut,
    TaskFacts,
)
from lra.models.backbone.depth_attention import AttentionStack, DepthBlock
from lra.models.backbone.heads import (
    AdaptiveHead,
    Classifier,
    Interaction,
    LanguageHead,
    TokenHead,
    groups_of,
)
from lra.models.backbone.layers import (
    NetworkBlock,
    NoMixer,
    OutputNormBlock,
    SandwichBlock,
    check_network_layer,
)
from lra.models.backbone.length_pooling import Cut, PooledStack, PostNormPooledStack
from lra.models.backbone.loop import LoopStack, PostNormLoopStack, loop_of
from lra.models.backbone.networks import ACTIVATIONS, GATES, FeedForward
from lra.models.backbone.norms import NORM_EPSILON, NormKind
from lra.models.backbone.replaced_tokens import DetectionHead
from lra.models.backbone.reversible import ReversibleStack
from lra.models.backbone.shared_block import SharedBlock, SharedContext, check_shared_layer
from lra.models.backbone.stack import (
    PlainBlock,
    PostNormBlock,
    PostNormStack,
    Stack,
    TransformerBlock,
    family,
)
from lra.models.idle import Need, defaults, format_value, idle
from lra.models.linear_map import projection
from lra.models.mixer import INSIDE, Idle, MixerFactory, Positions, State, Unsupported
from lra.models.positions import AxialPositions, LearnedPositions
from lra.models.state import size_bytes
from lra.models.tuning import Roles


class FactorisedEmbedding(Roles):
    """A narrow vector for each id, and a map to the model's width: Xavier weights, zero biases.

    Args:
        vocabulary: Number of ids.
        narrow: Number of columns of the table.
        width: Width of the resulting vectors.
        scale: Factor of the table's vectors, which have standard deviation 1 / scale at first.
    """

    no_matrices = ("weight",)

    def __init__(self, vocabulary: int, narrow: int, width: int, scale: float) -> None:
        """Draw the table, which is `weight` as in `nn.Embedding`, and make the map."""
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.empty(vocabulary, narrow))
        nn.init.normal_(self.weight, std=1.0 / scale)
        self.map = projection(narrow, width)

    def forward(self, ids: Int[Tensor, "b l"]) -> Float[Tensor, "b l d"]:
        """Return the vector of each id: look it up, multiply it by `scale`, project it."""
        vectors = F.embedding(ids, self.weight)
        widened: Tensor = self.map(vectors if self.scale == 1.0 else vectors * self.scale)
        return widened


BLOCKS: Mapping[Residual, type[TransformerBlock]] = {
    Residual.post_norm: PostNormBlock,
    Residual.none: PlainBlock,
    Residual.output_norm: OutputNormBlock,
    Residual.sandwich: SandwichBlock,
    Residual.attention: DepthBlock,
}
"""Class of a block for each `residual`; for all others it is TransformerBlock."""


def block_of(mixer: nn.Module, config: BackboneConfig) -> TransformerBlock:
    """Return the block around `mixer` for these options.

    The weights of its feed-forward network are drawn from the global random state.
    """
    kind = BLOCKS.get(config.residual, TransformerBlock)
    if isinstance(mixer, NoMixer):
        check_network_layer(config)
        kind = NetworkBlock
    if isinstance(mixer, SharedContext):
        check_shared_layer(config)
        kind = SharedBlock
    block = kind(
        mixer, width=config.width,
        feed_forward=config.feed_forward, feed_forward_width=config.feed_forward_width,
        feed_forward_bias=config.feed_forward_bias, feed_forward_groups=config.feed_forward_groups,
        chunks=config.feed_forward_chunks, norm=config.norm, norm_epsilon=config.norm_epsilon,
        dropout=config.dropout, activation_dropout=config.activation_dropout,
        tied_dropout=config.tied_dropout,
    )  # fmt: skip
    if {*config.canon} - {"B"}:  # drawn last, so that all other weights are equal without it
        wide = config.feed_forward_width * (1 + (config.feed_forward in GATES))
        block.add_canon(CanonPlaces(config.canon, config.width, wide))
    return block


def stack_of(
    blocks: Sequence[TransformerBlock],
    config: BackboneConfig,
    *,
    cls: bool = False,
    per_token: bool = False,
) -> Stack:
    """Return the stack of these blocks.

    Args:
        blocks: Every layer.
        config: Options of the backbone.
        cls: Whether position 0 is a CLS vector.
        per_token: Whether the output must be as long as the input.

    Raises:
        Unsupported: A mixer cannot be part of a reversible stack.
    """
    zeroed = config.padding == Padding.zeroed
    if config.residual == Residual.reversible:
        return ReversibleStack(
            blocks, width=config.width, concat=config.reversible_output == StreamsOut.concat,
            zeroed=zeroed, norm=config.norm, norm_epsilon=config.norm_epsilon,
        )  # fmt: skip
    post, pools = config.residual == Residual.post_norm, len(config.block_layers) > 1
    kind: Callable[..., Stack] = PostNormStack if post else Stack
    if pools:
        cut = Cut(config.block_layers, cls, config.pool_query_only, config.pool_mode, per_token)
        pooled_kind = PostNormPooledStack if post else PooledStack
        kind = partial(pooled_kind, cut=cut, inside=config.positions in INSIDE)
    if config.residual == Residual.attention:
        kind = partial(AttentionStack, size=config.residual_block)
    if loop := loop_of(config):
        kind = partial(PostNormLoopStack if post else LoopStack, loop=loop)
    stack = kind(
        blocks, width=config.width, checkpointing=config.activation_checkpointing,
        zeroed=zeroed, norm=config.norm, norm_epsilon=config.norm_epsilon,
    )  # fmt: skip
    if not config.stack_norm:
        stack.norm = nn.Identity()
    if any(isinstance(block, SharedBlock) for block in blocks):
        check_stream(stack)
        stack.streams_input = True
    return stack


def check_stream(stack: Stack) -> None:
    """Raise `Unsupported` if a mixer beside shared blocks passes on a stream of its own."""
    for block in stack.blocks:
        mixer = cast(TransformerBlock, block).mixer
        traits = cast(Any, mixer).traits
        if not isinstance(mixer, SharedContext) and not traits.reversible:
            raise Unsupported(
                f"{family(mixer)} passes a stream from layer to layer, and so does a shared block "
                "of attention (shared in model.layer_options): choose another family"
            )
    if type(stack) is not Stack:
        raise Unsupported(
            "a shared block of attention reads the input of the stack at every token: got a stack "
            "that pools; set model.backbone.pool_blocks=1"
        )


def check_custom_stack(config: BackboneConfig, stack: nn.Module) -> None:
    """Raise `Idle` for an option of blocks that differs from its default: a custom stack has none.

    The stack may allow options by listing their names in its attribute `reads`.
    """
    reads = getattr(stack, "reads", ())
    for name, *wanted in (
        ("residual", Residual.pre_norm),
        ("feed_forward", FeedForward.gelu),
        ("norm", NormKind.layer),
        ("norm_epsilon", NORM_EPSILON),
        ("stack_norm", True),
        ("padding", Padding.masked, Padding.attended),
        ("activation_checkpointing", False),
        ("feed_forward_chunks", 1),
        ("feed_forward_bias", True),
        ("feed_forward_groups", 1),
        ("activation_dropout", None),
        ("tied_dropout", False),
        ("layer_groups", None),
        ("pool_blocks", 1),
        ("canon", ""),
        ("loop_first", None),
    ):
        if (value := getattr(config, name)) not in wanted and name not in reads:
            raise Idle(
                f"this model arranges its layers itself, so model.backbone.{name} must be "
                f"{' or '.join(map(format_value, wanted))}: got {format_value(value)}",
                f"backbone.{name}",
            )


def positions_of(
    config: BackboneConfig, facts: TaskFacts, *, cls: bool
) -> LearnedPositions | AxialPositions | None:
    """Return the positions that are added to embedded tokens; None if there are none to learn."""
    if config.positions == Positions.learned:
        return LearnedPositions(facts.max_length + cls, config.width)
    if config.positions == Positions.axial:
        shape, widths = config.axial_shape, config.axial_widths
        return AxialPositions(facts.max_length, config.width, shape, widths)
    return None


def embedding_of(config: BackboneConfig, facts: TaskFacts, scale: float) -> nn.Module:
    """Return the module that maps ids (or real numbers) to vectors of the model's width.

    A table has standard deviation 1 / scale, or `embedding_deviation`. A factorised embedding
    multiplies its vectors by `scale` itself; for all others the model does this.
    """
    if facts.scalars:
        return nn.Linear(facts.channels, config.width)
    if config.embedding == Embedding.adaptive:
        cutoffs, shrink = config.softmax_cutoffs, config.softmax_shrink
        used_cutoffs = groups_of(config.width, facts.vocabulary, cutoffs, shrink)
        return AdaptiveEmbedding(facts.vocabulary, config.width, used_cutoffs, shrink)
    if config.embedding_width is not None:
        return FactorisedEmbedding(facts.vocabulary, config.embedding_width, config.width, scale)
    table = nn.Embedding(facts.vocabulary, config.width)
    nn.init.normal_(table.weight, std=config.embedding_deviation or 1.0 / scale)
    return table


def head_of(
    config: BackboneConfig, facts: TaskFacts, embedding: nn.Module
) -> Classifier | TokenHead:
    """Return the head for a task; a tied head uses the weights of `embedding`.

    New weights are drawn from the global random state.
    """
    if facts.head == Head.replaced_detection:
        return DetectionHead(config.width_out)
    if isinstance(embedding, AdaptiveEmbedding) and config.tied_embeddings:
        check_tied_width(config)
        return TiedAdaptiveHead(embedding, config.softmax_dropout)
    if facts.head in TOKEN_HEADS and config.softmax == Softmax.adaptive:
        return AdaptiveHead(
            config.width_out, facts.vocabulary, config.softmax_cutoffs, config.softmax_shrink,
            config.softmax_dropout,
        )  # fmt: skip
    if facts.head in TOKEN_HEADS:
        tied = cast(nn.Parameter, embedding.weight) if config.tied_embeddings else None
        if tied is not None and config.embedding_width is not None:
            inward = projection(config.width_out, config.embedding_width)
            return LanguageHead(config.embedding_width, facts.vocabulary, tied, inward)
        if tied is not None:
            check_tied_width(config)
        return LanguageHead(config.width_out, facts.vocabulary, tied)
    vectors = 1  # number of vectors that `interact` concatenates
    if facts.head == Head.pair:
        vectors = {Interaction.concat: 2, Interaction.product: 3, Interaction.nli: 4}[
            config.interaction
        ]
    return Classifier(
        vectors * config.width_out,
        config.classifier_width,
        1 if facts.head == Head.regression else facts.classes,
        config.head_hidden_layers,
        ACTIVATIONS[config.head_activation]().forward,
        dropout=config.head_dropout,
    )


def check_tied_width(config: BackboneConfig) -> None:
    """Raise ValueError if the stack's output is wider than the tied embedding."""
    if config.width_out != config.width:
        raise ValueError(
            f"reversible_output=concat gives {config.width_out} channels, but the head is tied to "
            f"an embedding with {config.width} channels: set tied_embeddings=false, or "
            "reversible_output=mean"
        )


def check_groups(config: BackboneConfig, mixers: Sequence[MixerFactory]) -> None:
    """Raise ValueError if layers that share weights have different mixers.

    It also raises one for a decoder if `mixers` form a single stack, which has no decoder.
    """
    if config.decoder_depth and mixers:
        raise ValueError(
            "an encoder-decoder arranges its layers itself: got decoder_depth="
            f"{config.decoder_depth} with mixers; pass stack=encoder_decoder and no mixers"
        )
    if len(mixers) <= 1:
        return
    option = "layer_groups" if config.layer_groups is not None else "pool_repeats"
    given, usual = getattr(config, option), defaults(BackboneConfig)[option]
    first = 0
    for uses in config.uses:
        for layer in range(first, first + uses):
            if mixers[layer] is not mixers[first]:
                raise ValueError(
                    f"with {option}={given}, layers {first} to {layer} share their weights, but "
                    f"model.layers names different families for them: name the same family {uses} "
                    f"times in a row, or set {option}={format_value(usual)}"
                )
        first += uses


def check_pools(config: BackboneConfig, facts: TaskFacts, mixers: Sequence[MixerFactory]) -> int:
    """Check the options of pooling; return the number of decoder layers at full length.

    Raises:
        Unsupported: The task needs a causal model, another option needs the same length in all
            layers, or the families of the decoder layers are unknown.
    """
    if len(config.block_layers) == 1:
        return 0
    if facts.head in CAUSAL_HEADS:
        raise Unsupported(
            "pooling joins a token and the next one into one position, so a causal model would "
            "read its answer: got a task that needs a causal model; choose a task that reads the "
            "whole sequence, or model.backbone.pool_blocks=1, which pools nothing"
        )
    if config.residual == Residual.reversible:
        raise Unsupported(
            "residual=reversible recomputes each layer's input from its output, which is "
            f"impossible after pooling: got pool_blocks={config.pool_blocks}; set it to 1, or "
            "model.backbone.residual=pre_norm or post_norm"
        )
    if config.layer_groups is not None:
        raise Unsupported(
            "in a model with pooling, pool_repeats decides which layers share weights: got "
            f"layer_groups={config.layer_groups} as well; set model.backbone.layer_groups=null"
        )
    layers = config.pool_decoder if facts.head in TOKEN_HEADS else 0
    if layers and len(mixers) > 1:
        raise Unsupported(
            f"model.layers names the families of depth={config.depth} layers, but this task adds "
            f"pool_decoder={layers} layers: choose one family for all layers, or set pool_decoder=0"
        )
    return layers


def check_norm(config: BackboneConfig, facts: TaskFacts) -> None:
    """Raise `Unsupported` for a norm that does not fit the task.

    Batch norm lets outputs depend on later tokens and on padding; a conditional norm needs a task
    with conditions, and such a task needs a conditional norm.
    """
    if facts.conditions and config.norm != NormKind.conditional:
        raise Unsupported(
            f"this task gives each row one of {facts.conditions} conditions, which only "
            f"norm=conditional reads: got norm={config.norm}; set model.backbone.norm=conditional, "
            "or task.class_conditional=false"
        )
    if config.norm == NormKind.conditional and not facts.conditions:
        raise Unsupported(
            "norm=conditional reads a condition of each row, but this task or runner has none: "
            "set task=text task.objective=causal task.class_conditional=true and a runner that "
            "trains, or model.backbone.norm=layer"
        )
    if config.norm != NormKind.batch:
        return
    if facts.head in CAUSAL_HEADS:
        raise Unsupported(
            "norm=batch computes statistics over all positions, so outputs at earlier tokens would "
            "depend on later ones: got a task that needs a causal model; choose "
            "model.backbone.norm=layer, rms or scale"
        )
    if facts.padded and config.padding == Padding.masked:
        raise Unsupported(
            "norm=batch computes statistics over all positions, padding included: got a task that "
            "pads, with padding=masked, which must exclude padding; choose "
            "model.backbone.padding=attended or zeroed, or norm=layer, rms or scale"
        )


OF_TASK = (
    Need(
        "pooling", "cls_keep", "head_hidden_width", "head_hidden_layers", "head_activation",
        "head_dropout",
        words="a task with one answer per sequence",
        holds=lambda facts, _: facts.head not in TOKEN_HEADS,
    ),
    Need(
        "pool_decoder", words="a task that answers at every position, such as masked modelling",
        holds=lambda facts, _: facts.head in TOKEN_HEADS,
    ),
    Need(
        "order_blind", words="a task whose answers may depend on earlier and later tokens",
        holds=lambda facts, _: facts.head not in CAUSAL_HEADS,
    ),
    Need(
        "decoder_depth", "decoder_mixer", words="a sequence-to-sequence task, such as reversal",
        holds=lambda facts, _: facts.head == Head.sequence_to_sequence,
    ),
    Need(
        "interaction", words="a task of pairs, such as retrieval",
        holds=lambda facts, _: facts.head == Head.pair,
    ),
    Need(
        "word_dropout", "embedding_width", "embedding_deviation",
        words="a task whose tokens are ids (not real numbers)",
        holds=lambda facts, _: not facts.scalars,
    ),
    Need(
        "softmax", "tied_embeddings", "embedding",
        words="a task that answers with tokens, such as language modelling",
        holds=lambda facts, _: facts.head in TOKEN_HEADS,
    ),
    Need(
        "generator_share", "detection_weight", words="task.objective=replaced",
        holds=lambda facts, _: facts.head == Head.replaced_detection,
    ),
)  # fmt: skip
"""Which options need which tasks. `padding` is missing: it is allowed for tasks without padding."""


def idle_for_task(config: BackboneConfig, facts: TaskFacts) -> dict[str, str]:
    """Return the options that have no effect on this task but are set, each with a message."""
    return idle(OF_TASK, vars(config), defaults(BackboneConfig), facts)


def check_memory(
    config: BackboneConfig, facts: TaskFacts, initial_state: Callable[[int, int], State]
) -> None:
    """Raise `Idle` if `memory` or `evaluation_memory` is set but has no effect.

    Args:
        config: Options of the backbone.
        facts: Facts of the task.
        initial_state: Returns the model's empty state, given a number of rows and of tokens.

    Raises:
        Idle: The task carries no state, or the state has one size for every number of tokens.
    """
    lengths = {"memory": config.memory, "evaluation_memory": config.evaluation_memory}
    chosen = {name: length for name, length in lengths.items() if length}
    if not chosen:
        return
    option = f"backbone.{next(iter(chosen))}"
    given = ", ".join(
        f"model.backbone.{name}={format_value(length)}" for name, length in lengths.items()
    )
    if not facts.memory:
        raise Idle(
            f"memory lengths are for tasks that carry a state from batch to batch, but in this "
            f"task every batch begins with an empty state: got {given}; set both to null, or "
            "task.regime=memory",
            option,
        )
    # Compare with a memory of one token; at least 2, because memory=1 must not count as idle.
    if size_bytes(initial_state(1, max(2, *chosen.values()))) == size_bytes(initial_state(1, 1)):
        raise Idle(
            "memory lengths have no effect on this model, because its state has the same size for "
            f"every number of tokens: got {given}; set both to null",
            option,
        )
