"""Every fault that is planted for the contract kit: the mixer, the check that must name it, how."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from models.mixer import Growth
from tests.models.contract import (
    spoilt_layouts as layouts,
    spoilt_mixers as mixers,
    spoilt_numbers as numbers,
    spoilt_passes as passes,
    spoilt_ranks as ranks,
)
from tests.models.contract.spoilt_mixers import declaring, with_core


class Fault(NamedTuple):
    """One spoilt mixer."""

    name: str
    """As the table of docs/contract.md calls it."""
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
PLANTED = [
    whole("traits", "supports names ['mask']", mixers.UnknownFact),
    whole("traits", "keep only without hides_others", layouts.SaysBothOfItsMask),
    whole("lengths", "torch.float32", mixers.Narrowing),
    whole("lengths", "length 1", mixers.NeedsTwo),
    whole("lengths", "not finite", mixers.Overflowing),
    whole("lengths", "traits.max_length is None", numbers.EndsEarly),
    whole("empty", "0 rows", numbers.NeedsRows),
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
    whole("calls", "overwrote the output", passes.ReusesItsOutput),
    whole("calls", "no_grad", passes.OtherWithoutGradient),
    whole("untouched", "x is another", passes.WritesToInput),
    whole("untouched", "with padding", passes.WritesToInputUnderAMask),
    whole("untouched", "layout.keep is another", passes.WritesToMask),
    whole("untouched", "calls is another after a pass in evaluation", passes.CountsCalls),
    whole("untouched", "v_proj.weight is another", passes.NormalisesItsWeights),
    whole("untouched", "random state of torch", passes.DrawsForNothing),
    whole("modes", "statistics of the batch", passes.TrainsOnBatchMean),
    core("modes", "sees later tokens", passes.TrainsAhead, causal=True),
    core("modes", "or padding", passes.TrainsOnPadding),
    whole("modes", "training against evaluation", passes.TrainsByLength),
    core("dropout", "does not ask self.training", passes.DropsAlways),
    core("dropout", "traits.weight_dropout is False", passes.DropsUndeclared),
    core("dropout", "forgets the mask", passes.DropsWithoutMask),
    core("dropout", AHEAD, passes.DropsAhead, causal=True),
    whole("recomputation", "recomputed", mixers.OwnGenerator),
    whole("random_draws", "traits.random_draws is False", passes.DrawsAndSaysNothing),
    core("batch", "batch axis", mixers.BatchMaximum),
    whole("batch", "batch axis", mixers.BatchNorm),
    whole("batch", "example", layouts.MixesTwoRows),
    whole("batch", "reverse order", layouts.KnowsItsPlaceInTheBatch),
    whole("batch", "with its own mask", layouts.MaskOfTheFirst),
    core("heads", "in another order", layouts.SwapsHeads),
    core("heads", "in another order", layouts.SwapsHeads, options={"heads": 2, "width": 18}),
    whole("heads", "reshape", layouts.FoldsByReshape),
    core("order", "declare Traits(sees_order=False)", mixers.SaysItSeesOrder),
    core("order", "something tells the order", mixers.NumbersItsKeys),
    core("padding", "padded from", mixers.IgnoresPadding),
    whole("padding", "outliers", mixers.SeesPadding),
    core("padding", "padded from", mixers.ZeroedPadding),
    core("padding", "behind padding", mixers.ZeroedPadding, causal=True),
    whole("padding", "behind padding", layouts.CountsPadding, causal=True),
    whole("padding", "does not know the mask", layouts.GradientsReachPadding),
    core("masked_rows", "not finite", mixers.MaskedToNaN),
    whole("cross", "padded source", layouts.CrossForgetsMask),
    whole("start", "one row's start", layouts.StartOfTheFirst),
    whole("start", "not keys", layouts.KeysWithoutStart),
    whole("start", "not added to the position", layouts.StartOffByOne),
    whole("start", "behind prompts", layouts.ContinuesAsTheFirst, causal=True),
    core("document", "document 9 alone", layouts.IgnoresDocument),
    core("document", "document", layouts.DocumentOfTheFirst),
    core("document", "outside of document", layouts.SeesNextDocument, causal=True),
    core("prefix", "is not applied", layouts.IgnoresPrefix, causal=True),
    core("prefix", "not each row's own", layouts.PrefixOfTheFirst, causal=True),
    core("prefix", "opens more than itself", layouts.OpensOneMore, causal=True),
    core("prefix", "bidirectional form", layouts.WeighsPrefixTwice, causal=True),
    core("prefix", "takes sight away", layouts.PrefixTakesSight),
    core("ranks", "outliers above rank", layouts.IgnoresOrder),
    core("ranks", "ranks of row", layouts.OrderOfTheFirst),
    core("ranks", "outliers above rank", layouts.SeesNextRank),
    core("ranks", "against the causal form", layouts.HidesRankZero),
    whole("ranks", "queries below rank", layouts.QueriesForgetTheirRanks),
    core("ranks", "looks both ways", layouts.OrderBesideCausality, causal=True),
    whole("context", "output, parts of [64, 64]", ranks.IgnoresOtherRanks),
    whole("context", "positions=position_infused", ranks.CountsFromItsOwnPart),
    whole("context", "gradient of x", ranks.KeepsItsGradients),
    whole("context", "padding", ranks.PassesNoMask, causal=True),
    core("is_global", "is not applied", layouts.IgnoresGlobal),
    core("is_global", "is not seen by", layouts.GlobalSeesOnly),
    core("is_global", "does not see", layouts.GlobalIsSeenOnly),
    core("is_global", "no row", layouts.GlobalOfAnyRow),
    core("is_global", "outliers from", layouts.GlobalLooksAhead, causal=True),
    core("no_lookahead", "gradient past token", mixers.Peeking, causal=True),
    core("no_lookahead", AHEAD, mixers.GlobalMaximum, causal=True),
    whole("no_lookahead", "statistic", mixers.FutureScale, causal=True),
    Fault("glimpsing from token 102", "no_lookahead", "past", numbers.glimpsing(102), True),
    Fault("glimpsing from token 127", "no_lookahead", "past", numbers.glimpsing(127), True),
    Fault(
        "glimpsing from token 512",
        "no_lookahead",
        "past",
        numbers.glimpsing(512),
        True,
        {"max_length": 520},
    ),
    Fault("glimpsing at token 200", "no_lookahead", AHEAD, numbers.glimpsing(200, once=True), True),
    whole("no_lookahead", "past token", numbers.GlimpsesTheEnd, causal=True),
    core("no_lookahead", "block", numbers.SeesItsBlock, causal=True),
    core("no_lookahead", "under a mask", numbers.PeeksUnderAMask, causal=True),
    whole("gradients", "received no gradient", mixers.Unused),
    whole("gradients", "received no gradient", mixers.Detached),
    whole("gradients", "it learns without a state", mixers.LearnsAnyway, causal=True),
    whole("gradients", "behind a full memory either", mixers.UnusedInStreams, causal=True),
    whole("gradients", "not finite", mixers.InfiniteSlope),
    whole("gradients", "needs_input_grad", numbers.FrozenTogether),
    whole("slopes", "detached", numbers.DetachedInPart),
    core("slopes", "detached", numbers.DetachedNorm),
    whole("slopes", "of the input", numbers.DetachedFromTheSecondChunk),
    *(
        Fault(f"detached {path}", "slopes", "detached", numbers.detaching(path))
        for path in ("q", "k", "v", "out_proj.bias")
    ),
    Fault("gradient x 1.01", "slopes", "not the derivative", numbers.scaled(1.01)),
    Fault("gradient x -1", "slopes", "not the derivative", numbers.scaled(-1.0)),
    Fault("gradient x 1.01 under a mask", "slopes", "mask", numbers.scaled(1.01, masked=True)),
    Fault("gradient x 1.01 in training", "slopes", "by the", numbers.scaled(1.01, training=True)),
    Fault("straight-through", "slopes", "surrogate", numbers.straight_through(declared=False)),
    Fault("rounds to float16", "precisions", "rounded inside", numbers.rounding(torch.float16)),
    Fault("rounds to float32", "precisions", "rounded inside", numbers.rounding(torch.float32)),
    Fault(
        "rounds to float16 in float32",
        "precisions",
        "half precision inside",
        numbers.rounding(torch.float16, torch.float32),
    ),
    core("large_inputs", "not finite", numbers.Exploding),
    core("large_inputs", "underflow", numbers.Vanishing),
    core("weighted_mean", "mean of ones", mixers.SumsToMore),
    core("weighted_mean", "padding", mixers.ZeroedPadding, causal=True),
    whole("without_state", "forgets the layout", layouts.ExtendForgetsMask),
    whole("without_state", "loses penalties", layouts.LosesPenalties),
    core("extend", "awkward thirds", mixers.Forgetful, causal=True),
    whole("extend", "positions=position_infused", mixers.Stopped, causal=True),
    core("prefill", "behind a prompt of 32", mixers.Edged, causal=True),
    core("state", "changed shape", mixers.Growing, causal=True),
    core("state", "not the first axis", mixers.BatchLast, causal=True),
    core("state", "wrote into the state", layouts.WritesToState, causal=True),
    core("history", "second segment", mixers.Cutting, causal=True),
    core("history", "second segment by the input", numbers.DetachedSums, causal=True),
    whole("history", "second segment by k_proj", numbers.DetachedWeights, causal=True),
    Fault(
        "declared n, counted n²",
        "operations",
        "grow as n² up to length 8192: declared n",
        declaring(operations=Growth(1.0)),
    ),
    whole("operations", "all pairs", numbers.DenseOnTheSide),
    whole("operations", "without gradient", numbers.DenseWithoutGradient),
    Fault(
        "a dense mask",
        "memory",
        "needs traits.simulated=True",
        declaring(mixers.DenseWindow, operations=Growth(1.0), memory=Growth(1.0)),
    ),
]
RAISED = [
    whole("context", "the first rank stops", ranks.StopsHalfway),
    whole("meta", "raised", mixers.Bytes),
    whole("lengths", "length must be even", mixers.Raises),
    core("calls", "Inference tensors", passes.KeepsAnInferenceTensor),
]
"""Planted faults that show as an exception, which the kit reports."""
UNSEEN = [
    whole("all", "", layouts.RotatesTwice, causal=True),
    Fault("glimpsing from token 300", "all", "", numbers.glimpsing(300), True, {"max_length": 256}),
    Fault("gradient x (1 + 1e-7)", "all", "", numbers.scaled(1 + 1e-7)),
]
"""Faults that pass: what the kit cannot catch, by example."""
