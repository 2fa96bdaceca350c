"""The model for all families: embedding, stack, head. Families differ only in their mixers.

Initial weights: token embeddings N(0, 1), learned positions N(0, 0.02), linear maps Xavier-uniform,
biases zero. A language model with tied embeddings draws them from N(0, 1 / width) instead, and
multiplies the input vectors by sqrt(width) (Vaswani et al. 2017, section 3.4). The blocks then also
read inputs from N(0, 1), and the same matrix gives logits of moderate size.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lra.conf.choices import rebind
from lra.conf.short_values import short_list
from lra.models.backbone import placing
from lra.models.backbone.assembly import (
    block_of,
    check_custom_stack,
    check_groups,
    check_memory,
    check_norm,
    check_pools,
    embedding_of,
    head_of,
    positions_of,
    stack_of,
)
from lra.models.backbone.canon import check_canon_mixer
from lra.models.backbone.choices import CAUSAL_HEADS
from lra.models.backbone.config import (
    TOKEN_HEADS,
    BackboneConfig,
    ClsKeep,
    Head,
    Padding,
    Residual,
    Softmax,
    StreamsOut,
    TaskFacts,
    Tokens,
)
from lra.models.backbone.heads import (
    READ_FIRST,
    WITH_CLS,
    Interaction,
    Pooling,
    TokenHead,
    interact,
    judge,
    judge_number,
    pool,
    spread_items,
)
from lra.models.backbone.layers import layer_config
from lra.models.backbone.length_pooling import check_pooled_mixer, pooled_length, poolings
from lra.models.backbone.networks import FeedForward
from lra.models.backbone.norms import NormKind
from lra.models.backbone.reconstruction import RowDecoder
from lra.models.backbone.replaced_tokens import JudgedSamples, fill, generator_of, judge_samples
from lra.models.backbone.requirements import checked_mixer, query_for
from lra.models.backbone.seeding import SeedWatch, derive, draw_on_cpu, redraw, redraw_maps
from lra.models.backbone.stack import Stack, TransformerBlock
from lra.models.made_once import MadeOnce
from lra.models.mixer import (
    INSIDE,
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

__all__ = [
    "Backbone",
    "BackboneConfig",
    "ClsKeep",
    "FeedForward",
    "Head",
    "Interaction",
    "NormKind",
    "Outcome",
    "Padding",
    "Pooling",
    "Positions",
    "Residual",
    "Softmax",
    "StackFactory",
    "StreamsOut",
    "TaskFacts",
    "layer_config",
]

StackFactory: TypeAlias = Callable[[Site, BackboneConfig], nn.Module]
"""A class or function `Stack(site, frame, *, options...)` whose options are set."""


class Outcome(NamedTuple):
    """The evaluation of each item of a batch, from which the loss and all metrics are computed."""

    nll: Float[Tensor, "b *l"]
    """Negative log-likelihood in nats, shaped like the target; 0 at items that are not asked."""
    hit: Bool[Tensor, "b *l"] | None
    """Whether the prediction is correct, False at items that are not asked; None in training
    mode."""
    state: State
    """The state after the batch; None if none was given."""
    penalties: Mapping[str, Tensor]
    """Penalties on activations and on parameters, summed over layers."""
    further: Mapping[str, tuple[Tensor, int]] = {}  # never changed
    """Sum and number of items of each further score, by name, in evaluation."""


class Backbone(nn.Module):
    """A model: an embedding, a stack of layers, and a head.

    Initial weights depend on `seed` alone, and the global random state stays unchanged. For the
    same seed, models of two families have equal weights in the parts that they share (embedding,
    feed-forward networks, head). Weights are drawn on the CPU, whatever the default device, so they
    are equal on every machine; move the model with `to`. Under `torch.device("meta")` the model has
    shapes but no values.

    Args:
        config: Options of the backbone.
        facts: Facts of the task.
        mixers: One mixer factory for all layers, or one per layer; empty if `stack` is given.
        stack: Builds a stack other than blocks of mixers: a module with `traits` that maps
            (Flow, Layout) to Flow, and may return another length.
        seed: Seed of all initial weights.

    Raises:
        Unsupported: The mixers do not support this task or these positions.
        ValueError: Some options contradict each other.
    """

    def __init__(
        self,
        config: BackboneConfig,
        facts: TaskFacts,
        mixers: Sequence[MixerFactory],
        *,
        stack: StackFactory | None = None,
        seed: int,
    ) -> None:
        """Check the options, build the parts of the model, and draw their weights from `seed`."""
        super().__init__()
        if stack is None and len(mixers) not in (1, config.depth):
            raise ValueError(
                f"wanted 1 mixer factory (for all layers) or depth={config.depth} (one per layer): "
                f"got {len(mixers)}"
            )
        self.config, self.facts = config, facts
        self.causal = facts.head in CAUSAL_HEADS
        self.per_token = facts.head in TOKEN_HEADS
        self.has_cls = not self.per_token and config.pooling in WITH_CLS
        check_groups(config, mixers)
        check_norm(config, facts)
        placing.check_restarts(config, facts)
        self.decoder = check_pools(config, facts, mixers)
        factories = [rebind(mixer) for mixer in mixers] * (config.depth if len(mixers) == 1 else 1)
        # A hybrid's layers may differ in options of the backbone.
        self.frames = [layer_config(config, mixer) for mixer in mixers] or [config]
        self.frames *= config.depth if len(self.frames) == 1 else 1
        self.seedless: dict[str, int] = {}
        """Sizes, by name, of the parameters that are equal at every `seed`: see `_build_part`."""
        with draw_on_cpu():
            self._draw_embedding(seed)
            if stack is None:
                self.stack: nn.Module = self._build_blocks(factories, seed)
            else:
                self.stack = self._build_custom_stack(stack, seed)
            self._draw_head(mixers, seed)
            if config.initial_deviation is not None:
                redraw(self, config.initial_deviation, seed)
                self.seedless = {}  # all weights now depend on the seed
            if config.initial_maps is not None:
                redraw_maps(self, config.initial_maps, seed, self.seedless)
            check_memory(config, facts, self.initial_state)
        # Listed once, because isinstance with a protocol is slow. `modules` has shared parts once.
        self.penalised = [part for part in self.modules() if isinstance(part, Penalised)]
        # The answer needs position 0 alone if all after the last block treats positions separately.
        self.reads_first = (
            not self.per_token
            and config.pooling in READ_FIRST
            and type(self.stack) is Stack
            and config.norm != NormKind.batch
            and not config.output_dropout
        )
        # If so, outputs at padding are never used, and all inputs of mixers are normed.
        self.leaves_padding = (
            self.reads_first
            and self.has_cls
            and config.cls_keep != ClsKeep.first_token
            and all(frame.residual == Residual.pre_norm for frame in self.frames)
        )

    def _draw_embedding(self, seed: int) -> None:
        """Make the embedding, the CLS vector and positions, with weights from `seed`."""
        torch.default_generator.manual_seed(derive(seed, "embedding"))
        config, facts = self.config, self.facts
        scaled = self.per_token and config.tied_embeddings and config.embedding_deviation is None
        # A tied table has deviation 1 / scale, so that its logits have moderate size.
        self.input_scale = (config.embedding_width or config.width) ** 0.5 if scaled else 1.0
        self.embedding = embedding_of(config, facts, self.input_scale)
        # A factorised embedding multiplies by the scale itself.
        self.outer_scale = 1.0 if config.embedding_width else self.input_scale
        if self.has_cls:
            self.cls = nn.Parameter(torch.zeros(config.width))
        self.positions = positions_of(config, facts, cls=self.has_cls)
        self.conditions: nn.Embedding | None = None
        if facts.conditions:
            torch.default_generator.manual_seed(derive(seed, "conditions"))
            self.conditions = nn.Embedding(facts.conditions, config.width)
        self.embedding_dropout = nn.Dropout(config.embedding_dropout)
        self.output_dropout = nn.Dropout(config.output_dropout)

    def _make_site(
        self,
        layer: int,
        seed: int,
        shared: dict[str, nn.Module],
        times: int = 0,
        frame: BackboneConfig | None = None,
    ) -> Site:
        """Return the site of number `layer` among the layers with separate weights.

        `shared` has the modules that layers share; the layer's input was pooled `times` times, and
        `frame` has the layer's options (None: those of the model).
        """
        config = frame or self.config
        longest = self.facts.max_length + self.has_cls
        site = Site(
            width=config.width,
            heads=config.heads,
            own_head_width=config.head_width,
            qkv_bias=config.qkv_bias,
            output_bias=config.output_bias,
            max_length=pooled_length(longest, times, has_cls=self.has_cls),
            causal=self.causal,
            source_length=self.facts.source_length if "prefix" in self.facts.masks else 0,
            target_length=self.facts.target_length if "prefix" in self.facts.masks else 0,
            layer=layer,
            depth=len(config.uses) + self.decoder,
            attention_dropout=config.attention_dropout,
            positions=config.positions if config.positions in INSIDE else Positions.none,
            relative_distance=config.relative_distance,
            rotary_base=config.rotary_base,
            rotary_share=config.rotary_share,
            cls=self.has_cls,
            generator=torch.Generator().manual_seed(derive(seed, f"generator {layer}")),
            canon="B" in config.canon,
            shared=shared,
        )
        _ = site.head_width  # raises an error if heads do not divide width, for every family
        return site

    def _check_mixer(self, part: Any, site: Site, frame: BackboneConfig | None = None) -> nn.Module:
        """Return `part` (a mixer or a custom stack) if it fits this model; else raise an error."""
        config = frame or self.config
        masked = self.facts.padded and config.padding in {Padding.masked, Padding.passed}
        return checked_mixer(
            part,
            site=site,
            positions=config.positions,
            causal=self.causal,
            max_length=site.max_length,
            padded=masked,
            passed=config.padding == Padding.passed,
            per_token=self.per_token,
            pooling=None if self.per_token else config.pooling,
            masks=self.facts.masks,
        )

    def _build_custom_stack(self, make: StackFactory, seed: int) -> nn.Module:
        """Return the stack that `make` builds, if it fits this model; else raise an error."""
        stack, site = self._build_part(
            lambda site: rebind(make)(site, self.config), "stack", seed, shared={}
        )
        check_custom_stack(self.config, stack)
        return self._check_mixer(stack, site)

    def _build_blocks(self, factories: Sequence[MixerFactory], seed: int) -> Stack:
        """Return a stack of blocks with mixers from `factories`, those of a decoder last."""
        config, shared = self.config, dict[str, nn.Module]()
        blocks: list[TransformerBlock] = []
        pooled = poolings(config.block_layers, query_only=config.pool_query_only)
        for group, uses in enumerate([*config.uses, *[1] * self.decoder]):
            in_decoder = len(blocks) >= config.depth
            times = 0 if in_decoder else pooled[len(blocks)]
            place = -1 if in_decoder else len(blocks)
            factory, frame = factories[place], self.frames[place]
            mixer, site = self._build_part(
                factory, f"mixer {group}", seed, group, shared=shared, times=times, frame=frame
            )
            mixer = self._check_mixer(mixer, site, frame)
            check_canon_mixer(mixer, frame.canon, ordered="order" in self.facts.masks)
            if len(config.block_layers) > 1:
                check_pooled_mixer(
                    mixer, query_only=config.pool_query_only, inside=config.positions in INSIDE
                )
            torch.default_generator.manual_seed(derive(seed, f"network {group}"))
            blocks += [block_of(mixer, frame)] * uses
        return stack_of(blocks, config, cls=self.has_cls, per_token=self.per_token)

    def _build_part(
        self,
        make: Callable[[Site], Any],
        part: str,
        seed: int,
        layer: int = 0,
        *,
        shared: dict[str, nn.Module],
        times: int = 0,
        frame: BackboneConfig | None = None,
    ) -> tuple[nn.Module, Site]:
        """Return the module that `make` builds as `part` of the model, and its site.

        If it draws with a seed other than the model's, it is built again with another `seed`; the
        weights that stay equal are noted in `seedless`.
        """
        torch.default_generator.manual_seed(derive(seed, part))
        site = self._make_site(layer, seed, shared, times, frame)
        if torch.get_default_device().type == "meta":
            return make(site), site
        with SeedWatch(site.generator) as watch:
            module = make(site)
        if watch.drawn:
            torch.default_generator.manual_seed(derive(seed + 1, part))
            equal = watch.equal_in(module, make(self._make_site(layer, seed + 1, {}, times, frame)))
            self.seedless |= {f"{part}: {name}": size for name, size in equal.items()}
        return module, site

    @property
    def seed_remark(self) -> str:
        """A warning about random weights that are equal at every seed; "" if there are none."""
        if not self.seedless:
            return ""
        count = sum(self.seedless.values())
        return (
            f"{count:,} parameters ({short_list(self.seedless)}) start equal at every seed, "
            "because a layer sets a seed itself, so confidence intervals over seeds will be too "
            "narrow: remove torch.manual_seed, or the generator with a fixed seed, from the "
            "constructor of this layer"
        )

    def _draw_head(self, mixers: Sequence[MixerFactory], seed: int) -> None:
        """Make the head and, for permutation modelling, the vector that queries start from.

        For reconstruction, make the decoder in front of the head; to detect replaced tokens, make
        the generator from `mixers`.
        """
        torch.default_generator.manual_seed(derive(seed, "head"))
        config = self.config
        self.head = head_of(config, self.facts, self.embedding)
        self.row_decoder: RowDecoder | None = None
        if self.facts.head == Head.reconstruction:
            self.row_decoder = RowDecoder(config.width_out, config.norm, config.norm_epsilon)
        needs_query = self.facts.head == Head.permutation_modelling
        self.query = query_for(self.stack, self.config.width) if needs_query else None
        self.generator = generator_of(self, mixers, seed)

    @property
    def blocks(self) -> list[nn.Module]:
        """The parts to compile separately: each block with separate weights, or a custom stack."""
        if not isinstance(self.stack, Stack):
            return [self.stack]
        of_generator = self.generator.blocks if isinstance(self.generator, Backbone) else []
        return [*dict.fromkeys(self.stack.blocks), *of_generator]

    @property
    def traits(self) -> list[Traits]:
        """The traits of the mixers, by layer; one entry for a custom stack."""
        if not isinstance(self.stack, Stack):
            return [cast(Any, self.stack).traits]
        return [cast(Any, block).mixer.traits for block in self.stack.blocks]

    @property
    def by_batch(self) -> str:
        """The option, as `name=value`, with which examples of a batch affect each other, or ""."""
        if self.config.norm == NormKind.batch:
            return f"norm={NormKind.batch}"
        return next((traits.by_batch for traits in self.traits if traits.by_batch), "")

    @property
    def effective_attention_dropout(self) -> tuple[float, ...]:
        """The attention dropout of each layer: `attention_dropout`, or 0 without such weights."""
        rate = self.config.attention_dropout
        return tuple(rate if traits.weight_dropout else 0.0 for traits in self.traits)

    def forward(
        self,
        tokens: Tokens,
        target: Int[Tensor, "b *l"] | Float[Tensor, " b"],
        keep: Bool[Tensor, "b p l"] | None = None,
        state: State = None,
        label_smoothing: float = 0.0,
        *,
        layout: Layout = placing.PLAIN,
        asked: Int[Tensor, " n"] | None = None,
    ) -> Outcome:
        """Return the negative log-likelihood and correctness of each item, state and penalties.

        `target` has the class (or number) of each example, or the answer at each position: for
        language models this is the next token, to which the task shifts the text.
        `label_smoothing` is the share of its probability that is spread over all classes. `asked`
        numbers the items that count in the
        flattened target; the others never reach the head, and have loss 0 and no hit. None: all
        items count. Other arguments are as in `predict`.
        """
        made: JudgedSamples | None = None
        if self.generator is not None:
            filled = fill(self.generator, tokens, keep, layout)
            made = judge_samples(self.generator, filled, target, asked)
            tokens, target = made.tokens, made.new
        flow = self.run(tokens, keep, state, layout, to_answer=True, filled=made is not None)
        hit: Tensor | None
        if isinstance(self.head, TokenHead):
            nll, hit = self.head.judge(flow.x, target, label_smoothing, asked)
        else:
            logits = self.classify(flow.x, keep, tokens.shape[1], asked)
            items = target if asked is None else target[asked]
            rule = judge_number if self.facts.head == Head.regression else judge
            nll, hit = rule(logits, items, label_smoothing, training=self.training)
            nll, hit = (
                spread_items(nll, asked, target),
                None if hit is None else spread_items(hit, asked, target),
            )
        for part in self.penalised:
            for name, value in part.penalties().items():
                flow = flow.add_penalty(name, value)
        if made is None:
            return Outcome(nll, hit, flow.state, flow.penalties)
        for name, value in made.penalties.items():
            flow = flow.add_penalty(name, value)
        # Scores are means of plain losses.
        nll = nll * self.config.detection_weight if self.training else nll
        return Outcome(nll, hit, flow.state, flow.penalties, made.scores)

    def predict(
        self,
        tokens: Tokens,
        keep: Bool[Tensor, "b p l"] | None = None,
        state: State = None,
        layout: Layout = placing.PLAIN,
    ) -> tuple[Float[Tensor, "b *l c"], State]:
        """Return logits, [b c] or [b l c], and the next state if one is given.

        Args:
            tokens: Ids (or real numbers) of b examples, each of p = 1 sequence, or 2 for pairs.
            keep: True for real tokens; None: there is no padding.
            state: What a causal model remembers of earlier tokens; None: nothing.
            layout: The masks of the batch (documents, prefixes, or an order) and its conditions;
                for a model that detects replaced tokens, the random numbers of samples.
        """
        flow = self.run(tokens, keep, state, layout, to_answer=True)
        if isinstance(self.head, TokenHead):
            return self.head(flow.x), flow.state
        return self.classify(flow.x, keep, tokens.shape[1]), flow.state

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return the empty state for `batch_size` rows, with room for `memory` tokens each.

        Raises:
            Unsupported: A mixer has no state, or the model is no causal language model.
        """
        if not self.causal or self.row_decoder is not None:
            raise Unsupported(
                "only causal language models have a state that continues from token to token: got "
                f"a model with head={self.facts.head.value}"
            )
        device = cast(Tensor, self.embedding.weight).device
        count = torch.zeros(batch_size, dtype=torch.long, device=device)
        return count, cast(Any, self.stack).initial_state(batch_size, memory)

    def run(
        self,
        tokens: Tokens,
        keep: Bool[Tensor, "b p l"] | None,
        state: State,
        layout: Layout = placing.PLAIN,
        *,
        to_answer: bool = False,
        filled: bool = False,
    ) -> Flow:
        """Run the embedding and the stack; return its output, and the next state if one is given.

        The p sequences of the b examples become p b rows of the output. A state is a pair: the
        number of tokens that each row has read, which is the position of the next one, and the
        state of the stack.

        `tokens`, `keep` and `state` are as in `predict`. Of `layout`, only the facts in
        `lra.models.mixer.MASKS` and the ids of `condition` are used. With `to_answer`, the caller
        needs only what the head reads, so the output may have position 0 alone. If there is a
        generator, it first fills the masked tokens, unless they are `filled` already.
        """
        self.facts.check(tokens)
        if self.generator is not None and not filled:
            tokens = fill(self.generator, tokens, keep, layout).tokens
        layout = placing.masks_of(layout, self.facts, state)
        if self.conditions is not None:
            layout = layout._replace(condition=self.conditions(layout.condition))
        if state is not None and keep is not None:
            raise ValueError(
                "a state can continue only rows without padding: got a state and a keep mask; put "
                "rows of equal length into one batch and pass keep=None"
            )
        count, layers = cast(tuple[Tensor | None, State], state or (None, None))
        task_keep = keep
        tokens, keep = tokens.flatten(0, 1), None if keep is None else keep.flatten(0, 1)
        has_channel_axis = not self.facts.scalars or self.facts.channels > 1
        x = self.embedding(tokens if has_channel_axis else tokens[..., None])
        if self.training and self.config.word_dropout:
            x = x * placing.kept_words(x, self.facts.vocabulary, self.config.word_dropout)[tokens]
        if self.outer_scale != 1.0:
            x = x * self.outer_scale
        if self.has_cls:
            copy_mask = self.config.cls_keep == ClsKeep.first_token
            x, keep = placing.behind_cls(self.cls, x, keep, copied=copy_mask)
        if self.config.padding == Padding.attended:
            keep = None
        parts = placing.parts_of(x, layout, restarts=getattr(self.stack, "restarts", False))
        x = self.embedding_dropout(self.add_positions(x, count, parts))
        flow = Flow(x, layers)
        first_only = to_answer and self.reads_first
        layout = layout._replace(
            keep=keep, start=count, derived=MadeOnce(), unread=first_only and self.leaves_padding
        )
        if first_only:
            flow = cast(Stack, self.stack)(flow, layout, first=True)
        elif self.query is None:
            flow = cast(Flow, self.stack(flow, layout))
        else:
            queries = self.add_positions(self.query.to(x.dtype).expand_as(x), count)
            flow = cast(Stack, self.stack).queried(flow, self.embedding_dropout(queries), layout)
        flow = flow.with_x(self.output_dropout(flow.x))
        if self.row_decoder is not None:
            real = self._find_real_outputs(task_keep, flow.x)
            flow = flow.with_x(self.row_decoder(flow.x, real))
        if count is not None:
            return flow._replace(state=(count + tokens.shape[1], flow.state))
        return flow

    def add_positions(
        self,
        x: Float[Tensor, "b l d"],
        start: Int[Tensor, " b"] | None,
        document: Int[Tensor, "b l"] | None = None,
    ) -> Float[Tensor, "b l d"]:
        """Return `x` plus position vectors, if the model adds such vectors; else `x` itself.

        `start` is the position of each row's first token; positions restart in each `document`.
        """
        if self.positions is None and self.config.positions != Positions.sinusoidal:
            return x
        encode = self.positions or placing.sinusoid_like
        return placing.encoded_at(x, encode, start, cls=self.has_cls, document=document)

    def classify(
        self,
        x: Float[Tensor, "n placed d"],
        keep: Bool[Tensor, "b p l"] | None,
        parts: int,
        asked: Int[Tensor, " k"] | None = None,
    ) -> Float[Tensor, "_ c"]:
        """Return the logits of each example: pool each sequence, join pairs, and apply the head.

        `x` is the output of the stack, with p = `parts` rows for each example. With `asked`, only
        these examples reach the head.
        """
        real = None
        if self.config.pooling not in READ_FIRST:
            real = self._find_real_outputs(keep, x)
        pooled = pool(x, real, self.config.pooling)
        features = pooled.view(-1, parts, pooled.shape[-1])
        if self.facts.head == Head.pair:
            joined = interact(features, self.config.interaction)
        else:
            joined = features.squeeze(1)
        return cast(Tensor, self.head(joined if asked is None else joined[asked]))

    def _find_real_outputs(
        self, keep: Bool[Tensor, "b p l"] | None, x: Float[Tensor, "n placed d"]
    ) -> Bool[Tensor, "n placed"] | None:
        """Return which positions of the stack's output `x` are real tokens; None: all."""
        if keep is None:
            return None
        if self.has_cls:
            keep = F.pad(keep, (1, 0), value=True)
        flat = keep.flatten(0, 1)
        if isinstance(self.stack, Stack):
            return self.stack.mask_out(flat)
        # A custom stack with another output length returns new tokens, all of which are real.
        return flat if flat.shape[1] == x.shape[1] else None
