"""An option of a family changes something, or is refused with a sentence: tried by generation.

Every family is built with each of its choices, and beside it with each value of every other option.
"""

import inspect
import re
import types
from enum import StrEnum
from functools import cache
from typing import Union, get_args, get_origin

import pytest
import torch

from lra.composition.binding import schema
from lra.models.backbone.model import BackboneConfig, Pooling
from lra.models.contract.counting import count_operations
from lra.models.idle import defaults, fixed_in, idle_in
from lra.models.mixer import (
    AfterStep,
    Flow,
    Layout,
    Penalised,
    Positions,
    Remembers,
    Site,
    TunedModule,
    Unsupported,
)
from lra.models.state import detach
from tests.contracts.choices_of_configs import MODELS, STACKS, outcome

LENGTH, WIDTH, HEADS = 40, 16, 2
READ_CLS = {"Funnel", "Longformer", "SparseTransformer", "TemporalLatentBottleneck"}
"""Families that know whether a CLS vector stands in front."""
BUILT = {family: name in STACKS for name, family in MODELS.items()}
SITES = {
    "bidirectional": {"causal": False},
    "with CLS": {"causal": False, "cls": True},
    "causal": {"causal": True},
}
PLACES = pytest.mark.parametrize(
    ("family", "where"),
    [
        pytest.param(family, where, id=f"{family.__name__}-{where}")
        for family in BUILT
        for where in SITES
        if where != "with CLS" or family.__name__ in READ_CLS
    ],
)
SMALL = {
    "conv_kernel": 5, "features": 8, "landmarks": 4, "projected_length": [8], "window": [4],
    "block": 4, "budget": 8, "random_blocks": 1, "stride": 6, "summary": 2, "chunk": 4, "slots": 4,
    "state_tokens": 4, "redraw_every": 2, "hashes": 4, "rounds": 2, "tau": 3,
    "steps": 3,
}  # fmt: skip
"""Values at which options act within so short an input."""
SAME = {
    "AdaptiveSpan.ramp": "within a span of one token nothing fades out",
    "BigBird.plan": "short sequences have no other blocks to draw from",
    "BigBird.variant": "causal, with few blocks, all is seen in either",
    "CompressedMultiQuery.index_heads": "as many as heads is what null means",
    "CompressedMultiQuery.index_width": "a quarter of a head is what null means",
    "CompressedMultiQuery.output_groups": "one group is what null means for few heads",
    "CompressedMultiQuery.top": "so short an input has fewer entries than either number",
    "CompressiveTransformer.evaluation_compressed": "as many as in training is what null means",
    "HGRN2.lower_bounds": "the first layer has none, and here is one layer",
    "IndexedAttention.key_value_heads": "as many as heads is what null means",
    "IndexedAttention.penalty": "it weighs a loss, and changes no output",
    "Linformer.projected_length": "16 is what null means with variant=lra",
    "Linformer.sharing": "headwise is what null means, kv with variant=lra or pooling",
    "LinearAttention.variant": "padding alone tells them apart where a sum outweighs 1e-6",
    "Longformer.dilated_heads": "as many as heads is what null means",
    "Luna.dynamic_projection": "no more slots than tokens",
    "Luna.norm_residual": "what a layer hands to the next one, and here is one",
    "Luna.pack_heads": "as many as heads is what null means",
    "Mamba.step_rank": "a sixteenth of the width is what null means",
    "Nystromformer.initialisation": "with one landmark there is one norm",
    "Performer.key_max": "with the authors' stabiliser, which has no other when causal",
    "Reformer.allow_duplicates": "in chunks of one token hardly any key is met twice",
    "RetNet.chunk": "short sequences are weighed in pairs, both ways, without chunks",
    "RWKV7.value_residual": "what the first layer hands to the next one, and here is one",
    "S5.clip_eigenvalues": "what real parts start from is not clipped",
    "SDPA.variant": "padded tokens alone tell them apart",
    "SoftmaxAttention.variant": "padded tokens alone tell them apart",
    "Skyformer.sampling": "one landmark of each kind has one stretch",
    "SparseTransformer.stride": "the number that null means",
    "SparseTransformer.summary": "the number that null means",
    "SparseTransformer.variant": "causal, it is the paper's fixed pattern",
    "TemporalLatentBottleneck.padding": "a chunk of padding alone tells them apart",
    "Synthesizer.variant": "one component has no alpha in either",
    "TalkingHeads.key_heads": "as many as heads is what null means",
    "TalkingHeads.value_heads": "as many as heads is what null means",
    "Yoso.tau": "log2 of the length is what null means",
}
"""Options of which some value means, for so short an input, the same as the default."""


def kinds_of(hint):
    if get_origin(hint) in {Union, types.UnionType}:
        return [kind for kind in get_args(hint) if kind is not type(None)]
    return [hint]


def values_of(family):
    """Return the values to try of each option, its default left out."""
    found = {}
    for name, (hint, _) in schema(family).items():
        kind, *_ = kinds_of(hint)
        usual, small = defaults(family)[name], SMALL.get(name)
        member = get_args(kind)[0] if get_origin(kind) is list else kind
        if member is bool:
            tried = [True, False]
        elif isinstance(member, type) and issubclass(member, StrEnum):
            tried = [[each] for each in member] if member is not kind else [*member]
        elif member is float:
            number = usual[0] if isinstance(usual, list) else usual
            tried = [2 * number, 0.5 * number] if number else [0.25, 2.0]
            tried = [[each] for each in tried] if member is not kind else tried
        else:
            number = small or usual or 1
            number = number[0] if isinstance(number, list) else number
            tried = [2 * number, 1]
            tried = [[each] for each in tried] if member is not kind else tried
        found[name] = [value for value in tried if value != usual]
    return found


def settled(family, site, options, chosen):
    """Return options with small values beside the chosen ones, where those act."""
    usual = defaults(family)
    small = {
        name: value
        for name, value in SMALL.items()
        if name in usual and name not in chosen and usual[name] != value
        and not (name == "block" and usual[name] is None and family.__name__ != "Sinkhorn")
        and isinstance(value, list) == isinstance(usual[name] or value, list)
    }  # fmt: skip
    idle = idle_in(family, site, {**small, **options})
    kept = {name: value for name, value in small.items() if name not in idle}
    return {**kept, **options}


class Tried:
    """A family with options at a site, and what can be seen of it."""

    def __init__(self, family, where, options):
        site = Site(
            width=WIDTH, heads=HEADS, max_length=LENGTH,
            generator=torch.Generator().manual_seed(1), **SITES[where],
        )  # fmt: skip
        frame = BackboneConfig(width=WIDTH, positions=Positions.none, pooling=Pooling.mean)
        torch.manual_seed(0)
        stack = BUILT[family]
        self.mixer = family(site, frame, **options) if stack else family(site, **options)
        self.call = (lambda x: self.mixer(Flow(x), Layout()).x) if stack else self.mix
        self.x = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(2))
        self.x.requires_grad_()

    def mix(self, x):
        return self.mixer(x, Layout())

    @cache  # noqa: B019  as long as the test
    def sight(self, number):
        """Return one of the things that an option may change."""
        return SIGHTS[number](self)

    def promised(self):
        shapes = [(name, tuple(p.shape)) for name, p in self.mixer.state_dict().items()]
        tuning = self.mixer.tuning() if isinstance(self.mixer, TunedModule) else {}
        return shapes, self.mixer.traits, tuning

    def evaluated(self):
        self.mixer.eval()
        return bits(self.call(self.x))

    def shortened(self):
        """Return what it computes for a few tokens."""
        self.mixer.eval()
        return bits(self.call(self.x[:, :3]))

    def trained(self):
        self.mixer.train()
        torch.manual_seed(3)
        y = self.call(self.x)
        given = torch.randn(y.shape, generator=torch.Generator().manual_seed(4))
        learned = [p for p in self.mixer.parameters() if p.requires_grad]
        found = torch.autograd.grad(y, [self.x, *learned], given, materialize_grads=True)
        return [bits(each) for each in (y, *found)]

    def streamed(self):
        """Return what a state makes of the same tokens."""
        if not isinstance(self.mixer, Remembers):
            return None
        try:
            state = self.mixer.eval().initial_state(2, LENGTH)
        except Unsupported:
            return None
        with torch.no_grad():
            first = self.mixer.extend(Flow(self.x[:, :30], state), Layout())
            flow = self.mixer.extend(Flow(self.x[:, 30:], first.state), Layout())
        return bits(first.x), bits(flow.x)

    def forgetting(self):
        """Return what a memory shorter than the stream makes of it, and all penalties."""
        found = {}
        if isinstance(self.mixer, Penalised):
            learned = [p for p in self.mixer.parameters() if p.requires_grad]
            for name, value in self.mixer.penalties().items():
                slopes = torch.autograd.grad(value, learned, materialize_grads=True)
                found[name] = [bits(value), *map(bits, slopes)]
        for training in (True, False) if isinstance(self.mixer, Remembers) else ():
            torch.manual_seed(3)
            try:
                state = self.mixer.train(training).initial_state(2, 8)
                for number, piece in enumerate(self.x.detach().split(8, dim=1)):
                    flow = self.mixer.extend(Flow(piece, state), Layout())
                    found[training, number] = bits(flow.x)
                    found |= {(number, *pair[:1]): bits(pair[1]) for pair in flow.penalties.items()}
                    state = detach(flow.state)
            except ValueError:  # it has no state, or a full one ends it
                break
        return found

    def cost(self):
        return count_operations(lambda: self.call(self.x).sum().backward())

    def redrawn(self):
        """Return what it computes after each of some steps of an optimiser; later sights follow."""
        found, generator = [], torch.Generator().manual_seed(5)
        parts = [part for part in self.mixer.modules() if isinstance(part, AfterStep)]
        for step in range(1, 5) if parts else ():
            for part in parts:
                with torch.no_grad():
                    part.after_step(step, generator)
            found.append(self.evaluated())
        return found


SIGHTS = [
    Tried.promised, Tried.evaluated, Tried.redrawn, Tried.shortened, Tried.trained,
    Tried.streamed, Tried.cost, Tried.forgetting,
]  # fmt: skip
"""In this order: those that tell most options apart at least cost come first."""


def bits(x):
    return x.detach().numpy().tobytes()


def differ(one, other):
    return any(one.sight(number) != other.sight(number) for number in range(len(SIGHTS)))


def built(family, where, options, made):
    """Return the family, or why it is refused."""
    key = (where, repr(sorted(options.items())))
    if key not in made:
        made[key] = outcome(lambda: Tried(family, where, options))
    assert not isinstance(made[key], str) or len(made[key]) > 30
    return made[key]


@pytest.mark.share(6)
@PLACES
def test_every_option_acts_or_is_refused(family, where):
    site = Site(width=WIDTH, heads=HEADS, max_length=LENGTH, **SITES[where])
    values, made, silent = values_of(family), {}, set()
    switches = [{}, *({name: value} for name, tried in values.items() for value in tried
                      if not isinstance(value, float) and value != SMALL.get(name))]  # fmt: skip
    for switch in switches if where != "bidirectional" else switches[:1]:
        base = built(family, where, settled(family, site, switch, {*switch}), made)
        if isinstance(base, str):
            continue
        for name in values.keys() - switch.keys():
            # of all options but this one the same
            plain = settled(family, site, switch, {*switch, name})
            without = built(family, where, plain, made)
            for value in values[name]:
                options = {**plain, name: value}
                other = built(family, where, options, made)
                if isinstance(other, str) or isinstance(without, str):
                    continue
                if fixed_in(family, options).get(name, options) == value:
                    continue
                if not differ(other, without):
                    silent.add(f"{name}={value} beside {switch or 'nothing'}")
    named = family.__name__
    silent = {each for each in silent if f"{named}.{each.partition('=')[0]}" not in SAME}
    assert not silent


DROPPED = 0.5


def computed(mixer, stack):
    """Return the output and the gradient of one pass in training, drawn anew."""
    x = torch.randn(2, LENGTH, WIDTH, generator=torch.Generator().manual_seed(2))
    torch.manual_seed(3)
    return bits(mixer.train()(Flow(x), Layout()).x if stack else mixer(x, Layout()))


@pytest.mark.share(6)
@PLACES
def test_attention_dropout_acts_exactly_where_it_is_declared(family, where):
    """With every single choice: what is described as 0 is 0."""
    facts = dict(width=WIDTH, heads=HEADS, max_length=LENGTH, **SITES[where])
    frame = BackboneConfig(width=WIDTH, positions=Positions.none, pooling=Pooling.mean)

    def mixer(options, dropout):
        generator = torch.Generator().manual_seed(1)
        site = Site(**facts, generator=generator, attention_dropout=dropout)
        torch.manual_seed(0)
        return family(site, frame, **options) if BUILT[family] else family(site, **options)

    site = Site(**facts)
    choices = ({name: value} for name, tried in values_of(family).items() for value in tried)
    for choice in ({}, *choices):
        options = settled(family, site, choice, {*choice})
        made = outcome(lambda options=options: mixer(options, DROPPED))
        if isinstance(made, str):
            continue
        acts = computed(made.train(), BUILT[family]) != computed(
            mixer(options, 0.0).train(), BUILT[family]
        )
        assert acts == made.traits.weight_dropout, choice


def test_families_that_read_the_cls_vector_are_those_tried_with_one():
    reading = {
        family.__name__
        for family in BUILT
        if re.search(r"\bsite\.cls\b", inspect.getsource(inspect.getmodule(family)))
    }
    assert reading == READ_CLS
