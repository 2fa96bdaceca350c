"""Every fault that is planted for the contract kit: the mixer, the check that must name it, how."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from lra.models.mixer import Growth
from tests.models.contract import (
    spoilt_corners as corners,
    spoilt_layouts as layouts,
    spoilt_mixers as mixers,
    spoilt_numbers as numbers,
    spoilt_passes as passes,
    spoilt_sight as sight,
    spoilt_streams as streams,
    spoilt_upkeep as upkeep,
    spoilt_ways as ways,
)
from tests.models.contract.spoilt_mixers import declaring, with_core


class Fault(NamedTuple):
    """One spoilt mixer."""

    name: str
    """Of what no check sees, as the table of docs/contract.md has it."""
    check: str
    """Which must fail."""
    says: str
    """What its sentence must hold."""
    make: Any
    causal: bool = False
    options: Mapping[str, Any] = MappingProxyType({})
    """Of the case."""


def core(check: str, says: str, made: type, **facts: Any) -> Fault:
    """Plant a core in honest projections."""
    return Fault(made.__name__, check, says, with_core(made), **facts)


def whole(check: str, says: str, made: type, **facts: Any) -> Fault:
    """Plant a mixer."""
    return Fault(made.__name__, check, says, made, **facts)


AHEAD = "outliers from token"
LONG = {"max_length": 256}
PLANTED = [
    whole("traits", "supports names ['mask']", mixers.UnknownFact),
    whole("traits", "keep only without hides_others", layouts.SaysBothOfItsMask),
    whole("lengths", "torch.float32", mixers.Narrowing),
    whole("lengths", "length 1", mixers.NeedsTwo),
    whole("lengths", "not finite", mixers.Overflowing),
    whole("lengths", "traits.max_length is None", numbers.EndsEarly),
    whole("empty", "0 rows", numbers.NeedsRows),
    whole("empty", "0 rows", corners.ExtendNeedsRows),
    whole("form", "precision='", passes.SingleTable),
    whole("ways", "strides='length first'", passes.TakesContiguous),
    whole("gradients", "gradient of a sum", passes.TakesContiguousGradients),
    whole("copies", "state_dict", passes.HiddenWeights),
    whole("copies", "a closure", passes.ClosureOverWeights),
    core("upkeep", "are alive after", upkeep.KeepsWeights),
    whole("upkeep", "other layer", upkeep.TableOfAnyLayer, causal=True),
    whole("upkeep", "is another object after after_step(1)", upkeep.NewParameter),
    whole("options", "changes nothing", upkeep.IgnoresItsEncoding),
    core("rounding", "tokens in bfloat16", upkeep.CarriesBfloat16, causal=True),
    whole("methods", "training=True", upkeep.DenseInTraining),
    whole("hooks", "another rank", passes.RedrawsGlobally),
    whole("hooks", "depends on parameters", passes.ConstantPenalty),
    whole("hooks", "wieght", passes.TunesNobody),
    whole("repeatable", "nothing may be drawn", mixers.Noisy),
    whole("repeatable", "nothing may be drawn", passes.NoisyByNumpy),
    whole("repeatable", "nothing may be drawn", passes.NoisyByPython),
    whole("repeatable", "differs between builds", mixers.OwnClock),
    whole("calls", "another output", passes.RemembersItsInput),
    core("calls", "with a mask", passes.KeepsItsFirstMask),
    whole("calls", "a single token", streams.StaysShort),
    whole("calls", "a single token", streams.StaysShortByExtend),
    whole("calls", "autocast", streams.KeepsRoundedWeights),
    whole("calls", "a call with a state", corners.StaysInAStream, causal=True),
    whole("calls", "overwrote the output", passes.ReusesItsOutput),
    whole("ways", "no_grad", passes.OtherWithoutGradient),
    whole("untouched", "x has changed", passes.WritesToInput),
    whole("untouched", "mask='", passes.WritesToInputUnderAMask),
    whole("untouched", "layout.keep has changed", passes.WritesToMask),
    whole("untouched", "calls has changed after a call", passes.CountsCalls),
    whole("untouched", "v_proj.weight has changed", passes.NormalisesItsWeights),
    whole("untouched", "random state of torch", passes.DrawsForNothing),
    whole("ways", "training=True", passes.TrainsOnBatchMean),
    core("ways", "training=True", passes.TrainsAhead, causal=True),
    core("ways", "training=True, mask='", passes.TrainsOnPadding),
    whole("ways", "training=True", passes.TrainsByLength),
    whole("ways", "entry='extend', mask='", layouts.ExtendForgetsMask),
    whole("ways", "entry='extend', mask='", ways.ExtendForgetsPadding),
    whole("ways", "entry='extend', mask='document'", ways.ExtendForgetsDocument),
    whole("ways", "entry='extend', mask='prefix'", ways.ExtendForgetsPrefix, causal=True),
    whole("ways", "entry='extend', mask='order'", ways.ExtendForgetsOrder),
    whole("ways", "entry='extend', training=True, mask='", ways.ExtendTrainsOnPadding),
    whole("ways", "no_grad", ways.ExtendWithoutGradientForgets),
    whole("ways", "training=True, mask='order'", ways.TrainsWithoutOrder),
    whole("ways", "training=True, mask='holes+document'", ways.TrainsWithoutTwoMasks, causal=True),
    whole("learning", "k_proj.weight receives no gradient in", ways.ExtendDetaches),
    core("ways", "entry='stream', training=True", ways.StreamsUnreadInTraining, causal=True),
    core(
        "ways",
        "precision='",
        ways.StreamsUnreadUnderAutocast,
        causal=True,
    ),
    core("ways", "entry='stream', precision='", ways.StreamsAheadInBfloat16, causal=True),
    core("ways", "entry='stream', precision='float32'", ways.KeepsHalfAState, causal=True),
    core("ways", "mask='", sight.CountsPaddingInBfloat16),
    core("ways", "mask='row', precision='float32'", sight.CountsPaddingInFloat32),
    core("ways", "entry='stream', dropout='drawn'", ways.DropsBehindAState, causal=True),
    whole("ways", "training=True, mask='", corners.LongTrainingSeesPadding, options=LONG),
    core("ways", "+is_global'", corners.AddsAGlobalInTraining),
    core("ways", "entry='stream', training=True", corners.StreamsMixRowsInTraining, causal=True),
    core("ways", "training=True, dropout='silent', mask='", passes.DropsWithoutMask),
    whole(
        "ways",
        "entry='extend', training=True, dropout='silent', mask='",
        ways.ExtendDropsWithoutMask,
    ),
    core("untouched", "random state of torch", passes.DropsAlways),
    core("statistics", "traits.weight_dropout is False", passes.DropsUndeclared),
    whole("statistics", "draws the same numbers", ways.ExtendDropsNothing),
    core("sight", "dropout='", passes.DropsAhead, causal=True),
    whole("untouched", "a second time", mixers.OwnGenerator),
    whole("random_draws", "traits.random_draws is False", passes.DrawsAndSaysNothing),
    core("batch", "among outliers", mixers.BatchMaximum),
    whole("batch", "among outliers", mixers.BatchNorm),
    whole("batch", "rows=9", layouts.MixesTwoRows),
    whole("batch", "reverse order", layouts.KnowsItsPlaceInTheBatch),
    whole("batch", "mask='", layouts.MaskOfTheFirst),
    core("heads", "in another order", layouts.SwapsHeads),
    core("heads", "in another order", layouts.SwapsHeads, options={"heads": 2, "width": 18}),
    whole("heads", "reshape", layouts.FoldsByReshape),
    core("order", "declare Traits(sees_order=False)", mixers.SaysItSeesOrder),
    core("order", "but order matters", mixers.NumbersItsKeys),
    core("padding", "padded from", mixers.IgnoresPadding),
    whole("padding", "padded from", mixers.SeesPadding),
    core("padding", "padded from", mixers.ZeroedPadding),
    core("padding", "after padding", mixers.ZeroedPadding, causal=True),
    whole("padding", "after padding", layouts.CountsPadding, causal=True),
    whole("sight", "mask='", layouts.GradientsReachPadding),
    core("padding", "padded from 96 tokens", sight.MissesTheEvenHundred),
    core("padding", "padded from 65 tokens", sight.CutsItsLastChunk),
    core("padding", "padded from 80 tokens", corners.LosesTheEighties),
    core("form", "not finite", mixers.MaskedToNaN),
    core("form", "training=True, mask='", corners.TrainsToNaN),
    whole("cross", "padded source", layouts.CrossForgetsMask),
    whole("cross", "outliers in training", corners.CrossTrainsOnPadding),
    whole("start", "the start of one row", layouts.StartOfTheFirst),
    whole("start", "not keys", layouts.KeysWithoutStart),
    whole("start", "not added to the position", layouts.StartOffByOne),
    whole("start", "behind prompts", layouts.ContinuesAsTheFirst, causal=True),
    core("document", "alone", layouts.IgnoresDocument),
    core("document", "document", layouts.DocumentOfTheFirst),
    core("document", "of row 2 alone", corners.SeesAllWhereEachIsAlone),
    core("batch", "mask='prefix'", layouts.PrefixOfTheFirst, causal=True),
    core("sight", "mask='prefix'", layouts.OpensOneMore, causal=True),
    core("prefix", "bidirectional form", layouts.WeighsPrefixTwice, causal=True),
    core("unhidden", "prefix that hide", layouts.PrefixTakesSight),
    core("batch", "mask='order'", layouts.OrderOfTheFirst),
    core("ranks", "against the causal form", layouts.HidesRankZero),
    whole("ranks", "queries below rank", layouts.QueriesForgetTheirRanks),
    core("traits", "attend to both sides", layouts.OrderBesideCausality, causal=True),
    core("is_global", "is not applied", layouts.IgnoresGlobal),
    core("is_global", "does not attend to global token", layouts.GlobalSeesOnly),
    core("is_global", "does not reach", layouts.GlobalIsSeenOnly),
    core("batch", "mask='is_global'", layouts.GlobalOfAnyRow),
    core("sight", "mask='is_global'", layouts.GlobalLooksAhead, causal=True),
    core("sight", "mask='document'", layouts.SeesNextDocument),
    core("sight", "does not attend to token", layouts.IgnoresPrefix, causal=True),
    core("sight", "mask='order'", layouts.IgnoresOrder),
    core("sight", "mask='order'", layouts.SeesNextRank),
    core("sight", "outliers hidden from tokens", sight.LooksFurther),
    core("sight", "mask='holes+document'", sight.DocumentForgottenBesidePadding),
    core("sight", "mask='document'", sight.DocumentModulo256),
    core("sight", "mask='document'", sight.DocumentInFloat32),
    core("sight", "mask='document'", sight.NegativeIsNoDocument),
    core("sight", "mask='order'", sight.NegativeRanksAreEqual),
    core("sight", "mask='holes+document", sight.OrderForgottenBesideDocument),
    core("sight", "mask='holes+document", sight.PrefixOpensDocuments, causal=True),
    core("sight", "does not attend to token", sight.HidesMoreBesidePadding),
    core("sight", "mask='", sight.CountsRealTokens),
    whole("sight", "mask='document', positions='position_infused'", sight.DocumentWithoutPositions),
    whole("sight", "mask='", sight.SeesPaddingInBfloat16),
    whole("sight", "precision='float32'", sight.SeesPaddingInFloat32),
    core("sight", "precision='", sight.AheadUnderAutocast, causal=True),
    whole("unread", "changes no other", sight.LosesTheThird),
    whole("sight", "mask='document'", corners.DocumentsOfShortSequences, options=LONG),
    core("no_lookahead", AHEAD, mixers.Peeking, causal=True),
    core("no_lookahead", AHEAD, mixers.GlobalMaximum, causal=True),
    whole("no_lookahead", "statistic", mixers.FutureScale, causal=True),
    Fault(
        "glimpsing from token 500",
        "long",
        "the first 1000 of 3000 tokens",
        numbers.glimpsing(500),
        True,
    ),
    Fault("glimpsing from token 102", "no_lookahead", AHEAD, numbers.glimpsing(102), True),
    Fault("glimpsing from token 127", "no_lookahead", AHEAD, numbers.glimpsing(127), True, LONG),
    Fault(
        "glimpsing from token 512",
        "no_lookahead",
        AHEAD,
        numbers.glimpsing(512),
        True,
        {"max_length": 520},
    ),
    Fault(
        "glimpsing at token 200",
        "no_lookahead",
        AHEAD,
        numbers.glimpsing(200, once=True),
        True,
        LONG,
    ),
    whole("no_lookahead", AHEAD, numbers.GlimpsesTheEnd, causal=True),
    core("no_lookahead", "block", numbers.SeesItsBlock, causal=True),
    core("no_lookahead", "under a mask", numbers.PeeksUnderAMask, causal=True),
    whole("learning", "forgotten receives no gradient in", mixers.Unused),
    whole("gradients", "slope along a random direction of the inp", mixers.Detached),
    whole("learning", "it learns without a state", mixers.LearnsAnyway, causal=True),
    whole("learning", "after a full memory either", mixers.UnusedInStreams, causal=True),
    whole("gradients", "not finite", mixers.InfiniteSlope),
    whole("gradients", "the input needs none", numbers.FrozenTogether),
    whole("gradients", "detached", numbers.DetachedInPart),
    core("gradients", "detached", numbers.DetachedNorm),
    core("gradients", "training=True, dropout='drawn'", passes.DropsOtherWeightsBackward),
    whole("gradients", "of the input", numbers.DetachedFromTheSecondChunk, options=LONG),
    *(
        Fault(f"detached {path}", "gradients", "detached", numbers.detaching(path))
        for path in ("q", "k", "v", "out_proj.bias")
    ),
    Fault("gradient x 1.01", "gradients", "not the derivative", numbers.scaled(1.01)),
    Fault("gradient x -1", "gradients", "not the derivative", numbers.scaled(-1.0)),
    Fault("gradient x 1.01 under a mask", "gradients", "mask", numbers.scaled(1.01, masked=True)),
    Fault(
        "gradient x 1.01 in training", "gradients", "by the", numbers.scaled(1.01, training=True)
    ),
    Fault("straight-through", "gradients", "surrogate", numbers.straight_through(declared=False)),
    whole("gradients", "mask='document'", corners.GradientsUnderDocuments),
    Fault("rounds to float16", "precisions", "rounded inside", numbers.rounding(torch.float16)),
    Fault("rounds to float32", "precisions", "rounded inside", numbers.rounding(torch.float32)),
    whole("gradients", "gradient of the input", corners.RoundsGradientsInFloat32),
    Fault(
        "rounds to float16 in float32",
        "ways",
        "precision='float32'",
        numbers.rounding(torch.float16, torch.float32),
    ),
    whole("content", "equal", numbers.StandardisesTokens),
    whole("content", "equal tokens take a separate path", numbers.SkipsEqualTokens),
    whole("content", "equal", numbers.RootsOfNothing),
    core("large_inputs", "not finite", numbers.Exploding),
    core("weighted_mean", "underflow", numbers.Vanishing),
    core("weighted_mean", "mean of ones", mixers.SumsToMore),
    core("weighted_mean", "padding", mixers.ZeroedPadding, causal=True),
    whole("flow", "loses penalties", layouts.LosesPenalties),
    whole("flow", "2 times the one without a state", ways.DoublesLaterPenalties, causal=True),
    whole("flow", "added to an existing one", ways.KeepsItsPenalties),
    whole("flow", "added to an existing one", ways.DoublesOthersPenalties, causal=True),
    core("extend", "a stream in pieces of", mixers.Forgetful, causal=True),
    whole("ways", "entry='stream', positions='rotary'", mixers.Stopped, causal=True),
    core("extend", "a stream in pieces of", mixers.Edged, causal=True),
    core("state", "changed shape", mixers.Growing, causal=True),
    core("state", "not the first axis", mixers.BatchLast, causal=True),
    core("state", "wrote into the given state", layouts.WritesToState, causal=True),
    core("state", "is a view", streams.KeepsAView, causal=True),
    core("gradients", "entry='stream'", mixers.Cutting, causal=True),
    core("gradients", "entry='stream'", numbers.DetachedSums, causal=True),
    whole("gradients", "entry='stream'", numbers.DetachedWeights, causal=True),
    core("gradients", "entry='stream', training=True", streams.DetachesInTraining, causal=True),
    core("gradients", "entry='stream'", streams.DetachesFromTheThird, causal=True),
    core("gradients", "entry='stream'", streams.DoublesLaterGradients, causal=True),
    whole("forgetting", "stay visible", streams.RemembersTwice, causal=True),
    whole("forgetting", "stay visible", streams.RemembersAll, causal=True),
    whole("forgetting", "stay visible", streams.RemembersInTraining, causal=True),
    whole("forgetting", "the oldest has no effect", streams.ForgetsTheOldest, causal=True),
    whole("forgetting", "summarises is True", streams.SummarisesNothing, causal=True),
    Fault(
        "declared n, counted n²",
        "operations",
        "grow as n² up to length 4096: declared n",
        declaring(operations=Growth(1.0)),
    ),
    whole("operations", "all pairs", numbers.DenseOnTheSide),
    whole("operations", "without gradient", numbers.DenseWithoutGradient),
    whole("operations", "grow as n log n: declared n", numbers.LevelsOnTheSide),
    Fault(
        "a dense mask",
        "memory",
        "needs traits.simulated=True",
        declaring(mixers.DenseWindow, operations=Growth(1.0), memory=Growth(1.0)),
    ),
]
RAISED = [
    whole("meta", "raised", mixers.Bytes),
    whole("lengths", "length must be even", mixers.Raises),
    core("calls", "Inference tensors", passes.KeepsAnInferenceTensor),
]
"""Planted faults that show as an exception, which the kit reports."""
UNSEEN = [
    whole("all", "", layouts.RotatesTwice, causal=True),
    Fault("glimpsing from token 4000", "all", "", numbers.glimpsing(4000), True),
    Fault("gradient x (1 + 1e-7)", "all", "", numbers.scaled(1 + 1e-7)),
]
"""Faults that pass: what the kit cannot catch, by example."""
