"""The contract kit's checks of separation: examples, heads, padding, two sequences."""

from dataclasses import replace
from typing import Any, cast

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from lra.models.contract.case import (
    FEW,
    Case,
    Result,
    call,
    edges,
    ends,
    inapplicable,
    traits_of,
    worst,
)
from lra.models.contract.relations import drive
from lra.models.contract.states import stream, streaming_mixer
from lra.models.mixer import Layout, Positions, Remembers, Unsupported

LONG = 3_000
"""Tokens of a long sequence."""
HEADS = 4
"""More than two: two that are swapped look alike under many tests."""


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
    joint = getattr(mixer, "joint_norm", None)
    # One head of queries and keys for all heads, or one norm of theirs.
    shared = (counts is not None and counts.queries == 1) or joint is True
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
    first = joint if isinstance(joint, nn.Module) else out
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
    """Padding has no effect, by its content or its presence, at any length and for a lone token."""
    mixer, full = case.mixer(), torch.ones_like(case.keep())
    if "keep" not in traits_of(mixer).supports:
        return inapplicable("traits.supports does not list keep, so padding is refused")
    x = case.input()
    with torch.no_grad():
        seen = [*_padded(case, mixer), _lone_token(case, mixer)]
        seen.append(case.agree("keep of all True", call(mixer, x, full), call(mixer, x)))
    found = worst([*seen, drive(case, "padding")])
    cause = "a mask that is not applied, or padding in a sum or a mean"
    return found.because(cause + getattr(mixer, "padding_hint", ""))


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
        size = int(keep[1].sum())
        y = attend(x[1:2], Layout(), source[1:2, :size], Layout())
        seen.append(case.agree(f"padded source, cut{how}", wanted[1:2], y))
    lone = attend(x[:, :1], Layout(), source, Layout())
    whole = attend(torch.cat((x[:, :1], x[:, :1]), dim=1), Layout(), source, Layout())
    if lone.shape != x[:, :1].shape or not lone.isfinite().all():
        return Result(False, f"one query over {source.shape[1]} keys gives {tuple(lone.shape)}")
    if not traits.random_draws:
        seen.append(case.agree("one query alone", whole[:, :1], lone))
    return worst(seen)


def check_long(case: Case) -> Result:
    """Of a sequence longer than any block, the beginning alone and a stream give the same."""
    here, part = replace(case, max_length=max(case.max_length, LONG)), LONG // 3
    mixer, x, seen = here.mixer(), here.input(LONG, rows=1), list[Result]()
    traits, streaming = traits_of(mixer), streaming_mixer(here)
    with torch.no_grad():
        whole, alone = call(mixer, x), call(mixer, x[:, :part])
        if traits.causal and not traits.selection_leak:
            what = f"the first {part} of {LONG} tokens"
            seen.append(case.agree(what, whole[:, :part], alone))
        if "keep" in traits.supports:
            y = call(mixer, x, torch.arange(LONG, device=x.device)[None] < part)
            seen.append(case.agree(f"{part} tokens padded to {LONG}", y[:, :part], alone))
        if not isinstance(streaming, str):
            pieces = torch.split(x, [part, 1, LONG - part - 1], dim=1)
            state = cast(Remembers, streaming).initial_state(1, LONG)
            y, _ = stream(streaming, [*pieces], state)
            seen.append(case.agree(f"a stream of {LONG} tokens", y, whole))
    return worst(seen).because("another way from some length on")


def check_unread(case: Case) -> Result:
    """No length loses a token: each reaches another token's output where it does at some length."""
    mixer = case.mixer()
    traits = traits_of(mixer)
    if traits.causal or "keep" in traits.supports or traits.random_draws:
        return inapplicable("other checks look for it in mixers that are causal or take padding")

    def unread(length: int) -> Bool[Tensor, " l"]:
        x = case.input(length).requires_grad_()  # what one row does not choose, another may
        y = call(mixer, x) * case.input(length, salt=3)
        even = torch.arange(length, device=x.device) % 2 == 0
        of_even, of_odd = (
            torch.autograd.grad(y[:, one].sum(), x, retain_graph=True)[0].abs().amax((0, 2)) == 0
            for one in (even, ~even)
        )
        return of_even.where(~even, of_odd)

    if case.max_length > 2 and not unread(case.middling).any():
        for length in (each for each in edges(case.max_length) if each > FEW):
            if (blind := unread(length)).any():
                token = int(blind.nonzero()[0])
                return Result(
                    False, f"of {length} tokens, number {token} changes no other token's output"
                ).because("an incomplete block, or a length that fills blocks, loses a token")
    return Result(True, "no length loses a token")
