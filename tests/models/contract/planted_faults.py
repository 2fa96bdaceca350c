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
    spoilt_ways as ways,
)
from tests.models.contract.spoilt_mixers import declaring, with_core


class Fault(NamedTuple):
    """One spoilt mixer."""

    name: str
    """Of what no check sees, as the table of docs/own-module.md has it."""
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
    whole("half", "gives torch.float32", passes.SingleTable),
    whole("strides", "as_strided", passes.TakesContiguous),
    whole("strides", "gradient of a sum", passes.TakesContiguousGradients),
    whole("copies", "state_dict", passes.HiddenWeights),
    whole("copies", "a closure", passes.ClosureOverWeights),
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
    whole("calls", "no_grad", passes.OtherWithoutGradient),
    whole("untouched", "x has changed", passes.WritesToInput),
    whole("untouched", "with padding", passes.WritesToInputUnderAMask),
    whole("untouched", "layout.keep has changed", passes.WritesToMask),
    whole("untouched", "calls has changed after a pass in evaluation", passes.CountsCalls),
    whole("untouched", "v_proj.weight has changed", passes.NormalisesItsWeights),
    whole("untouched", "random state of torch", passes.DrawsForNothing),
    whole("ways", "in training", passes.TrainsOnBatchMean),
    core("ways", "in training", passes.TrainsAhead, causal=True),
    core("ways", "in training, keep", passes.TrainsOnPadding),
    whole("ways", "in training", passes.TrainsByLength),
    whole("ways", "extend in evaluation, keep", layouts.ExtendForgetsMask),
    whole("ways", "extend in evaluation, keep", ways.ExtendForgetsPadding),
    whole("ways", "extend in evaluation, document", ways.ExtendForgetsDocument),
    whole("ways", "extend in evaluation, prefix", ways.ExtendForgetsPrefix, causal=True),
    whole("ways", "extend in evaluation, order", ways.ExtendForgetsOrder),
    whole("ways", "extend in training, keep", ways.ExtendTrainsOnPadding),
    whole("ways", "no_grad", ways.ExtendWithoutGradientForgets),
    whole("ways", "in training, order", ways.TrainsWithoutOrder),
    whole("ways", "in training, keep and document", ways.TrainsWithoutTwoMasks, causal=True),
    whole("ways", "gradient of the input extend in training", ways.ExtendDetaches),
    core("ways", "a stream in training", ways.StreamsUnreadInTraining, causal=True),
    core("ways", "a stream in autocast", ways.StreamsUnreadUnderAutocast, causal=True),
    core("ways", "a stream in", ways.StreamsAheadInBfloat16, causal=True),
    core("ways", "a stream in float32", ways.KeepsHalfAState, causal=True),
    core("ways", "keep, in autocast", sight.CountsPaddingInBfloat16),
    core("ways", "keep, in float32", sight.CountsPaddingInFloat32),
    core("ways", "with attention_dropout", ways.DropsBehindAState, causal=True),
    whole("ways", "in training, keep, 256 tokens", corners.LongTrainingSeesPadding, options=LONG),
    core("ways", "in training, keep and is_global", corners.AddsAGlobalInTraining),
    core("ways", "a stream in training", corners.StreamsMixRowsInTraining, causal=True),
    core("ways", "in training, keep", passes.DropsWithoutMask),
    whole("ways", "extend in training, keep", ways.ExtendDropsWithoutMask),
    core("dropout", "ignores self.training", passes.DropsAlways),
    core("dropout", "traits.weight_dropout is False", passes.DropsUndeclared),
    whole("dropout", "nothing by extend in training", ways.ExtendDropsNothing),
    core("dropout", AHEAD, passes.DropsAhead, causal=True),
    whole("recomputation", "recomputed", mixers.OwnGenerator),
    whole("random_draws", "traits.random_draws is False", passes.DrawsAndSaysNothing),
    core("batch", "batch axis", mixers.BatchMaximum),
    whole("batch", "batch axis", mixers.BatchNorm),
    whole("batch", "example", layouts.MixesTwoRows),
    whole("batch", "reverse order", layouts.KnowsItsPlaceInTheBatch),
    whole("batch", "alone with its mask", layouts.MaskOfTheFirst),
    core("heads", "in another order", layouts.SwapsHeads),
    core("heads", "in another order", layouts.SwapsHeads, options={"heads": 2, "width": 18}),
    whole("heads", "reshape", layouts.FoldsByReshape),
    core("order", "declare Traits(sees_order=False)", mixers.SaysItSeesOrder),
    core("order", "but order matters", mixers.NumbersItsKeys),
    core("padding", "padded from", mixers.IgnoresPadding),
    whole("padding", "outliers", mixers.SeesPadding),
    core("padding", "padded from", mixers.ZeroedPadding),
    core("padding", "after padding", mixers.ZeroedPadding, causal=True),
    whole("padding", "after padding", layouts.CountsPadding, causal=True),
    whole("padding", "ignores the mask", layouts.GradientsReachPadding),
    core("padding", "padded from 96 tokens", sight.MissesTheEvenHundred),
    core("padding", "padded from 65 tokens", sight.CutsItsLastChunk),
    core("padding", "padded from 80 tokens", corners.LosesTheEighties),
    core("masked_rows", "not finite", mixers.MaskedToNaN),
    core("masked_rows", "in training: values are not finite", corners.TrainsToNaN),
    whole("cross", "padded source", layouts.CrossForgetsMask),
    whole("cross", "outliers in training", corners.CrossTrainsOnPadding),
    whole("start", "the start of one row", layouts.StartOfTheFirst),
    whole("start", "not keys", layouts.KeysWithoutStart),
    whole("start", "not added to the position", layouts.StartOffByOne),
    whole("start", "behind prompts", layouts.ContinuesAsTheFirst, causal=True),
    core("document", "a document for each token", layouts.IgnoresDocument),
    core("document", "document", layouts.DocumentOfTheFirst),
    core("document", "a document for each token", corners.SeesAllWhereEachIsAlone),
    core("prefix", "applied to another", layouts.PrefixOfTheFirst, causal=True),
    core("prefix", "opens too much", layouts.OpensOneMore, causal=True),
    core("prefix", "bidirectional form", layouts.WeighsPrefixTwice, causal=True),
    core("prefix", "removes tokens from attention", layouts.PrefixTakesSight),
    core("ranks", "ranks of row", layouts.OrderOfTheFirst),
    core("ranks", "against the causal form", layouts.HidesRankZero),
    whole("ranks", "queries below rank", layouts.QueriesForgetTheirRanks),
    core("ranks", "attend to both sides", layouts.OrderBesideCausality, causal=True),
    core("is_global", "is not applied", layouts.IgnoresGlobal),
    core("is_global", "does not attend to global token", layouts.GlobalSeesOnly),
    core("is_global", "does not reach", layouts.GlobalIsSeenOnly),
    core("is_global", "ignores row", layouts.GlobalOfAnyRow),
    core("is_global", "outliers from", layouts.GlobalLooksAhead, causal=True),
    core("sight", "under document", layouts.SeesNextDocument),
    core("sight", "does not attend to token", layouts.IgnoresPrefix, causal=True),
    core("sight", "under order", layouts.IgnoresOrder),
    core("sight", "under order", layouts.SeesNextRank),
    core("sight", "more than reach=2 away", sight.LooksFurther),
    core("sight", "under keep and document", sight.DocumentForgottenBesidePadding),
    core("sight", "under document", sight.DocumentModulo256),
    core("sight", "under document", sight.DocumentInFloat32),
    core("sight", "under document", sight.NegativeIsNoDocument),
    core("sight", "under order", sight.NegativeRanksAreEqual),
    core("sight", "under document and order", sight.OrderForgottenBesideDocument),
    core("sight", "under document and prefix", sight.PrefixOpensDocuments, causal=True),
    core("sight", "does not attend to token", sight.HidesMoreBesidePadding),
    core("padding", "alone with its padding", sight.CountsRealTokens),
    whole("sight", "positions=position_infused", sight.DocumentWithoutPositions),
    whole("sight", "in bfloat16", sight.SeesPaddingInBfloat16),
    whole("sight", "in float32", sight.SeesPaddingInFloat32),
    core("sight", "in autocast", sight.AheadUnderAutocast, causal=True),
    whole("sight", "changes no other", sight.LosesTheThird),
    whole("sight", "of 256 tokens", corners.DocumentsOfShortSequences, options=LONG),
    core("no_lookahead", "gradient past token", mixers.Peeking, causal=True),
    core("no_lookahead", AHEAD, mixers.GlobalMaximum, causal=True),
    whole("no_lookahead", "statistic", mixers.FutureScale, causal=True),
    Fault("glimpsing from token 102", "no_lookahead", "past", numbers.glimpsing(102), True),
    Fault("glimpsing from token 127", "no_lookahead", "past", numbers.glimpsing(127), True, LONG),
    Fault(
        "glimpsing from token 512",
        "no_lookahead",
        "past",
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
    whole("no_lookahead", "past token", numbers.GlimpsesTheEnd, causal=True),
    core("no_lookahead", "block", numbers.SeesItsBlock, causal=True),
    core("no_lookahead", "under a mask", numbers.PeeksUnderAMask, causal=True),
    whole("gradients", "received no gradient", mixers.Unused),
    whole("gradients", "received no gradient", mixers.Detached),
    whole("gradients", "it learns without a state", mixers.LearnsAnyway, causal=True),
    whole("gradients", "after a full memory either", mixers.UnusedInStreams, causal=True),
    whole("gradients", "not finite", mixers.InfiniteSlope),
    whole("gradients", "needs_input_grad", numbers.FrozenTogether),
    whole("slopes", "detached", numbers.DetachedInPart),
    core("slopes", "detached", numbers.DetachedNorm),
    core("slopes", "attention_dropout", passes.DropsOtherWeightsBackward),
    whole("slopes", "of the input", numbers.DetachedFromTheSecondChunk, options=LONG),
    *(
        Fault(f"detached {path}", "slopes", "detached", numbers.detaching(path))
        for path in ("q", "k", "v", "out_proj.bias")
    ),
    Fault("gradient x 1.01", "slopes", "not the derivative", numbers.scaled(1.01)),
    Fault("gradient x -1", "slopes", "not the derivative", numbers.scaled(-1.0)),
    Fault("gradient x 1.01 under a mask", "slopes", "mask", numbers.scaled(1.01, masked=True)),
    Fault("gradient x 1.01 in training", "slopes", "by the", numbers.scaled(1.01, training=True)),
    Fault("straight-through", "slopes", "surrogate", numbers.straight_through(declared=False)),
    whole("slopes", "under keep and document", corners.GradientsUnderDocuments),
    Fault("rounds to float16", "precisions", "rounded inside", numbers.rounding(torch.float16)),
    Fault("rounds to float32", "precisions", "rounded inside", numbers.rounding(torch.float32)),
    whole("precisions", "gradient of the input", corners.RoundsGradientsInFloat32),
    Fault(
        "rounds to float16 in float32",
        "precisions",
        "half precision inside",
        numbers.rounding(torch.float16, torch.float32),
    ),
    whole("content", "equal", numbers.StandardisesTokens),
    whole("content", "equal tokens take a separate path", numbers.SkipsEqualTokens),
    whole("content", "equal", numbers.RootsOfNothing),
    core("large_inputs", "not finite", numbers.Exploding),
    core("large_inputs", "underflow", numbers.Vanishing),
    core("weighted_mean", "mean of ones", mixers.SumsToMore),
    core("weighted_mean", "padding", mixers.ZeroedPadding, causal=True),
    whole("flow", "loses penalties", layouts.LosesPenalties),
    whole("flow", "2 times the one without a state", ways.DoublesLaterPenalties, causal=True),
    whole("flow", "added to an existing one", ways.KeepsItsPenalties),
    whole("flow", "added to an existing one", ways.DoublesOthersPenalties, causal=True),
    core("extend", "awkward thirds", mixers.Forgetful, causal=True),
    whole(
        "ways", "a stream in evaluation, positions=position_infused", mixers.Stopped, causal=True
    ),
    core("prefill", "behind a prompt of 32", mixers.Edged, causal=True),
    core("state", "changed shape", mixers.Growing, causal=True),
    core("state", "not the first axis", mixers.BatchLast, causal=True),
    core("state", "wrote into the given state", layouts.WritesToState, causal=True),
    core("state", "in memory", streams.KeepsAView, causal=True),
    core("history", "segment 2", mixers.Cutting, causal=True),
    core("history", "segment 2 by the input", numbers.DetachedSums, causal=True),
    whole("history", "segment 2 by k_proj", numbers.DetachedWeights, causal=True),
    core("history", "segment 2", streams.DetachesInTraining, causal=True),
    core("history", "segment 3", streams.DetachesFromTheThird, causal=True),
    core("history", "segment 2", streams.DoublesLaterGradients, causal=True),
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
    Fault("glimpsing from token 100", "all", "", numbers.glimpsing(100), True),
    Fault("gradient x (1 + 1e-7)", "all", "", numbers.scaled(1 + 1e-7)),
]
"""Faults that pass: what the kit cannot catch, by example."""
