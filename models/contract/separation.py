"""The contract kit's checks of separation: examples, heads, padding, two sequences."""

from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from lra.models.contract.case import (
    ROWS,
    Case,
    Result,
    call,
    edges,
    ends,
    inapplicable,
    traits_of,
    worst,
)
from lra.models.contract.ways import ways
from lra.models.mixer import Layout, Positions, Unsupported

HEADS = 4
"""More than two: two that are swapped look alike under many tests."""
BATCH = 7


def check_batch(case: Case) -> Result:
    """An example's output depends neither on other examples of the batch nor on its place there."""
    mixer, x = case.mixer(), case.input(rows=BATCH)
    whole = call(mixer, x)
    seen = [case.agree("examples in reverse order", call(mixer, x.flip(0)).flip(0), whole)]
    for row in range(BATCH):
        alone = call(mixer, x[row : row + 1])[0]
        seen.append(case.agree(f"example {row} alone", alone, whole[row]))
    for row in (0, BATCH // 2, BATCH - 1):
        loud = case.noise(x)
        loud[row] = x[row]
        seen.append(case.agree(f"example {row} among outliers", call(mixer, loud)[row], whole[row]))
    if traits_of(mixer).hides_others:
        keep, x = case.holes(), x[:ROWS]
        whole = call(mixer, x, keep)
        for row in range(ROWS):
            alone = call(mixer, x[row : row + 1], keep[row : row + 1])[0]
            seen.append(case.agree(f"example {row} alone with its mask", alone, whole[row]))
        full = call(mixer, x, torch.ones_like(keep))
        seen.append(case.agree("keep of all True", full, call(mixer, x)))
    return worst(seen).because("a statistic or a product over the batch axis")


def check_heads(case: Case) -> Result:
    """The projections of one head change its part of the output projection, and no other.

    Or its share of a `joint_norm` before that.
    """
    mixer = _with_heads(case)
    queries = [getattr(mixer, name, None) for name in ("q_proj", "k_proj")]
    value, out = getattr(mixer, "v_proj", None), getattr(mixer, "out_proj", None)
    if not isinstance(value, nn.Linear) or not isinstance(out, nn.Linear):
        return inapplicable("it has no linear v_proj and out_proj to compare")
    heads = int(getattr(mixer, "heads", HEADS))
    counts = getattr(mixer, "head_counts", None)
    shared = counts is not None and counts.queries == 1  # one of queries and keys for all heads
    linear = [] if shared else [each for each in queries if isinstance(each, nn.Linear)]
    # Of values there may be fewer, or several to each head.
    groups = min(heads, heads * value.out_features // out.in_features)
    # Where heads share keys and values in groups, queries are looked at by themselves.
    rounds = [([value, *linear], heads)]
    if groups != heads:
        rounds = [(linear[:1], heads), ([value, *linear[1:]], groups)]
    x = case.input(case.middling, rows=1)
    found: list[Tensor] = []
    # A norm of all heads together lets each reach the others, as the output projection does.
    first = getattr(mixer, "joint_norm", None) or out
    first.register_forward_pre_hook(lambda _, given: found.append(given[0].detach()))

    def shares() -> Tensor:
        with torch.no_grad():
            call(mixer, x)
        return torch.unflatten(found.pop(), -1, (heads, -1))

    wanted = shares()
    for parts, number in rounds:
        for index in range(number):
            weights = [part.weight.detach().clone() for part in parts]
            with torch.no_grad():
                for part in parts:
                    torch.unflatten(part.weight, 0, (number, -1))[index].mul_(-0.7)
                changed = (shares() - wanted).abs().amax((0, 1, 3)) > 1e-9 * wanted.abs().max()
                for part, weight in zip(parts, weights, strict=True):
                    part.weight.copy_(weight)
            own = range(index * heads // number, (index + 1) * heads // number)
            if reached := [other for other in range(heads) if changed[other] != (other in own)]:
                return Result(
                    False,
                    f"of {number} heads, other weights for head {index} "
                    f"{'change' if changed[reached[0]] else 'do not change'} the output of head "
                    f"{reached[0]}",
                ).because("heads in another order, or folded by reshape instead of transpose")
    return Result(True, f"{heads} heads stay separate")


def _with_heads(case: Case) -> nn.Module:
    """Build the mixer with more than two heads where the case allows it."""
    if case.width % HEADS == 0:
        try:
            return replace(case, heads=HEADS).mixer()
        except (Unsupported, ValueError):
            pass  # an option fixes their number
    return case.mixer()


def check_order(case: Case) -> Result:
    """Permuted tokens give permuted outputs exactly if `traits.sees_order` is False."""
    if case.max_length < 3:  # reversal alone may look like no order
        return inapplicable("sequences are too short to be permuted")
    seen, x = [], case.input()
    generator = torch.Generator().manual_seed(case.seed)
    order = torch.randperm(case.max_length, generator=generator).to(case.device)
    for positions in (Positions.none, *case.inside(traits_of(case.build()))):
        mixer = case.mixer(positions=positions)
        with torch.no_grad():
            what = f"permuted tokens, positions={positions.value}"
            alike = case.agree(what, call(mixer, x[:, order]), call(mixer, x)[:, order])
        if not traits_of(mixer).sees_order:
            seen.append(alike.because("traits.sees_order is False, but order matters"))
        elif alike.passed:
            declare = getattr(mixer, "order_hint", "declare Traits(sees_order=False)")
            seen.append(Result(False, f"{what}: outputs are permuted alike: {declare}"))
        else:
            seen.append(Result(True, f"{what}: outputs change, as traits.sees_order declares"))
    return worst(seen)


def check_padding(case: Case) -> Result:
    """Padding has no effect, by its content or its presence, and receives no gradient."""
    mixer, x, keep = case.mixer(), case.input(), case.keep()
    if "keep" not in traits_of(mixer).supports:
        return inapplicable("traits.supports does not list keep, so padding is refused")
    padded = call(mixer, x, keep)
    loud = torch.where(keep[..., None], x, case.noise(x))
    seen = [case.agree("padding replaced by outliers", call(mixer, loud, keep)[keep], padded[keep])]
    with torch.no_grad():
        seen += _padded(case, mixer)
    holes = case.holes()
    loud = torch.where(holes[..., None], x, case.noise(x))
    whole = call(mixer, x, holes)
    there = call(mixer, loud, holes)[holes]
    seen.append(case.agree("padding in the middle replaced by outliers", there, whole[holes]))
    for row in range(ROWS):
        alone = call(mixer, x[row : row + 1], holes[row : row + 1])[0, holes[row]]
        beside = whole[row, holes[row]]
        seen.append(case.agree(f"example {row} alone with its padding", alone, beside))
    seen.append(_lone_token(case, mixer))
    full = torch.ones_like(keep)
    seen.append(case.agree("keep of all True", call(mixer, x, full), call(mixer, x)))
    found = worst(seen)
    if not found.passed:
        cause = "a mask that is not applied, or padding in a sum or a mean"
        return found.because(cause + getattr(mixer, "padding_hint", ""))
    for mask in (keep, holes):
        source = case.input().requires_grad_()
        scalar = (call(mixer, source, mask) * case.input(salt=3))[mask].sum()
        gradient = torch.autograd.grad(scalar, source)[0]
        wanted = gradient.where(mask[..., None], 0.0)
        seen.append(case.agree("gradient of real tokens at padding", gradient, wanted))
    return worst(seen).because("a backward pass that ignores the mask")


def _padded(case: Case, mixer: nn.Module) -> list[Result]:
    """Compare sequences with the same sequences padded, at every length at which a block may end.

    Causal mixers are cut at these lengths, without padding.
    """
    causal, x = traits_of(mixer).causal, case.input(rows=1)
    tried = [1, case.max_length] if causal else [*ends(case.max_length), case.max_length]
    whole = call(mixer, x.expand(len(tried), -1, -1), case.before(tried))
    return [
        case.agree(f"padded from {end} tokens", whole[row, :end], call(mixer, x[:, :end])[0])
        for row, end in enumerate(tried)
    ]


def _lone_token(case: Case, mixer: nn.Module) -> Result:
    """Compare a token that has only padding around it with the same token at other positions.

    In causal mixers, the padding comes before it. In mixers of limited length, tables may depend on
    the position. The first position is excluded, because a classifier may read it.
    """
    traits, positions = traits_of(mixer), edges(case.max_length)[::3]
    if traits.max_length is not None or len(positions) < 2:
        return Result(True, "positions come from tables")
    x = case.input(rows=1).repeat(len(positions), 1, 1)
    index = torch.tensor(positions, device=case.device)
    rows = torch.arange(len(positions), device=case.device)
    x[rows, index] = case.input(1, rows=1, salt=9)[0]
    every = torch.arange(case.max_length, device=case.device)
    keep = every >= index[:, None] if traits.causal else every == index[:, None]
    y = call(mixer, x, keep)[rows, index]
    return case.agree("a token after padding, compared with other positions", y, y[:1].expand_as(y))


def check_masked_rows(case: Case) -> Result:
    """An example of padding alone gives finite values and gradients."""
    mixer = case.mixer()
    if "keep" not in traits_of(mixer).supports:
        return inapplicable("traits.supports does not list keep")
    x, keep = case.input().requires_grad_(), case.keep()
    keep[1] = False
    learnt = [parameter for parameter in mixer.parameters() if parameter.requires_grad]
    for name, run in ways(mixer):
        y, what = run(x, {"keep": keep}), f"a row of padding alone, {name}"
        if not y.isfinite().all():
            return Result(False, f"{what}: values are not finite; wanted any finite values")
        gradients = torch.autograd.grad(y.sum(), [x, *learnt], materialize_grads=True)
        if not all(part.isfinite().all() for part in gradients):
            return Result(False, f"{what}: gradients are not finite")
    return Result(True, "a row of padding alone gives finite values and gradients")


def check_cross(case: Case) -> Result:
    """Cross attention over its input equals self-attention; padding of the source is excluded."""
    mixer = case.mixer()
    traits, attend = traits_of(mixer), getattr(mixer, "attend", None)
    if not traits.cross or traits.causal:
        return inapplicable("traits.cross is False, or it is causal")
    if not callable(attend):
        return Result(False, "traits.cross is True: it needs attend(x, layout, source, layout)")
    modes = (False,) if traits.training_noise else (False, True)
    return worst([_crossed(case, mixer.train(training)) for training in modes])


def _crossed(case: Case, mixer: nn.Module) -> Result:
    """Compare cross attention with self-attention, with outliers as padding of the source."""
    traits, attend = traits_of(mixer), cast(Any, mixer).attend
    x, source = case.input(), case.input(case.lengths[-2], salt=4)
    keep = case.keep()[:, : source.shape[1]]
    how = " in training" if mixer.training else ""
    seen = [case.agree(f"source equal to x{how}", attend(x, Layout(), x, Layout()), call(mixer, x))]
    if "keep" in traits.supports:
        loud = torch.where(keep[..., None], source, case.noise(source))
        padded = Layout(keep=keep)
        wanted = attend(x, Layout(), source, padded)
        seen.append(
            case.agree(f"padded source, outliers{how}", attend(x, Layout(), loud, padded), wanted)
        )
    lone = attend(x[:, :1], Layout(), source, Layout())
    whole = attend(torch.cat((x[:, :1], x[:, :1]), dim=1), Layout(), source, Layout())
    if lone.shape != x[:, :1].shape or not lone.isfinite().all():
        return Result(False, f"one query over {source.shape[1]} keys gives {tuple(lone.shape)}")
    if not traits.random_draws:
        seen.append(case.agree("one query alone", whole[:, :1], lone))
    return worst(seen)
