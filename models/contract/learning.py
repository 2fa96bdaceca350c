"""The contract kit's checks of training: what learns, and how draws are distributed."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from lra.models.contract.case import (
    Case,
    Result,
    call,
    fix_seed,
    inapplicable,
    run_after_step,
    traits_of,
    worst,
)
from lra.models.contract.facts import draw_facts, layout_of, masks_for
from lra.models.contract.gradients import learns_in_stream
from lra.models.contract.guards import weights_of
from lra.models.contract.passes import second_site
from lra.models.contract.states import mixed_cut, stream, streaming_mixer
from lra.models.mixer import Extends, Flow, GatesResidual, Layout, Positions

STEPS, RATE = 3, 0.1
"""Steps of SGD, and its learning rate."""
WIDE = 272
"""Width of a site with two heads, each wider than blocks of 64 or 128 channels."""
LITTLE = 1e-5
"""A gradient that moves numbers, even in float32."""
RATES = (0.1, 0.3)
"""Two rates of dropout whose variances differ by p / (1 - p): 0.11 and 0.43."""
PASSES, COPIES = 24, 8
"""Passes in training, and equal rows in each."""
SCALE = 0.085
"""How far the mean of training may lie from evaluation: a missing 1 / (1 - p) is 0.1 off, what a
norm behind the weights makes of their spread 0.07."""
SPREAD = (2.2, 7.0)
"""Bounds of the ratio of variances at the two rates: 3.86 where outputs are linear in weights."""


def pass_of(mixer: nn.Module, x: Tensor, layout: Layout) -> Tensor:
    """Return the outputs of `flow_of`."""
    return flow_of(mixer, x, layout).x


def flow_of(mixer: nn.Module, x: Tensor, layout: Layout) -> Flow:
    """Run one pass as a stack does: by `gated_extend` or `extend` if offered, else by `forward`."""
    if isinstance(mixer, GatesResidual):
        return mixer.gated_extend(Flow(x), layout, x, nn.Identity())
    if isinstance(mixer, Extends):
        return mixer.extend(Flow(x), layout)
    return Flow(cast(Tensor, mixer(x, layout)))


def check_learning(case: Case) -> Result:
    """Three steps of SGD move every parameter that learns, also under autocast."""
    seen = [_learns(other, Positions.none, auto=False) for other in _sites(case)]
    for positions in (Positions.none, *case.inside(traits_of(case.build()))):
        for auto in (False, True) if positions == Positions.none else (False,):
            seen.append(_learns(case, positions, auto))
    return worst([*seen, *_in_streams(case), _frozen(case)])


def _sites(case: Case) -> Iterator[Case]:
    """Yield sites with heads of an odd width, and of a wide one, without biases."""
    other = second_site(case, even=False)
    # A later layer may need what an earlier one hands on, a CLS vector may replace global tokens.
    biases = tuple((name, False) for name, _ in other.place if name.endswith("_bias"))
    odd = replace(other, place=biases)
    for site in (odd, replace(odd, heads=2, width=WIDE), replace(case, heads=1, place=biases)):
        try:
            call(site.mixer(), site.input(2))
        except Exception:  # noqa: BLE001 - not every site is possible
            continue
        yield site


def _in_streams(case: Case) -> Iterator[Result]:
    """Parameters of `traits.in_streams` learn in streams beyond a memory, and nowhere else."""
    mixer = case.mixer().train()
    known = dict(mixer.named_parameters())
    if known:
        torch.autograd.backward(pass_of(mixer, case.input(), Layout()).sum())
    for name in sorted(traits_of(mixer).in_streams):
        if name not in known or known[name].grad is not None:
            kind = "it learns without a state" if name in known else "there is no such parameter"
            yield Result(False, f"traits.in_streams has {name}: {kind}")
        elif not learns_in_stream(case, mixer, known[name]):
            yield Result(False, f"{name} received no gradient after a full memory either")


def _learns(case: Case, positions: Positions, auto: bool) -> Result:
    """Train for a few steps, a mask in each, and look for parameters or rows that stay."""
    mixer = case.build(positions=positions).to(case.device).train()
    traits = traits_of(mixer)
    learnt = {
        name: parameter
        for name, parameter in mixer.named_parameters()
        if parameter.requires_grad and name not in traits.in_streams
    }
    if not learnt:
        return Result(True, "it has no parameters that learn")
    before = {name: parameter.detach().clone() for name, parameter in learnt.items()}
    reached = {name: torch.zeros_like(parameter) for name, parameter in learnt.items()}
    # Of tables, those of positions alone: others have rows for other distances.
    maps = {
        f"{name}.weight"
        for name, each in mixer.named_modules()
        if isinstance(each, nn.Linear | nn.Conv1d)
    } | {
        name
        for name, each in learnt.items()
        if each.dim() > 1 and len(each) in (case.heads, case.max_length)
    }
    optimiser = torch.optim.SGD(learnt.values(), lr=RATE)
    generator = torch.Generator().manual_seed(case.seed)
    how = f"positions={positions.value}{', under autocast' if auto else ''}"
    how += f", width={case.width}, heads={case.heads}"
    masks = masks_for(traits)
    for step in range(max(STEPS, len(masks))):
        x = case.input(salt=50 + step).float()
        facts = draw_facts(masks[step % len(masks)], len(x), x.shape[1], generator)
        layout = layout_of({name: fact.to(case.device) for name, fact in facts.items()})
        half = torch.autocast(case.device, torch.bfloat16) if auto else nullcontext()
        with half, fix_seed(60 + step):
            flow = flow_of(mixer, x, layout)
        target = case.input(salt=70 + step).float()
        kept = facts.get("keep", torch.ones(x.shape[:2], dtype=torch.bool)).to(case.device)
        optimiser.zero_grad()
        loss = (flow.x.float() - target)[kept].square().mean()
        torch.autograd.backward(loss + sum(value.float() for value in flow.penalties.values()))
        for name, parameter in learnt.items():
            if parameter.grad is not None:
                reached[name] += parameter.grad.abs()
                parameter.grad /= parameter.grad.abs().max().clamp(min=1.0)  # or it may diverge
        optimiser.step()
        run_after_step(mixer, step + 1, seed=5)
    for name, parameter in learnt.items():
        if not parameter.isfinite().all():
            return Result(False, f"{name} is not finite after {STEPS} steps of SGD, {how}")
        if not reached[name].any():
            return Result(
                False, f"{name} receives no gradient in {STEPS} steps of SGD, {how}"
            ).because("it is unused, cut off by detach(), or its gradient is zero")
        if torch.equal(parameter, before[name]) and reached[name].max() > LITTLE:
            return Result(False, f"{name} is unchanged after {STEPS} steps of SGD, {how}").because(
                "after_step, or forward, sets it back"
            )
        if name in maps:
            rows = reached[name].flatten(1).amax(1)
            if bool((rows == 0).any()):
                row = int((rows == 0).nonzero()[0])
                return Result(
                    False, f"row {row} of {name} receives no gradient in {STEPS} steps, {how}"
                )
    return Result(True, f"every parameter moves in {STEPS} steps of SGD")


def _frozen(case: Case) -> Result:
    """Name weights that do not learn; drawn ones have to be declared."""
    first, other = case.mixer(), replace(case, seed=case.seed + 91).mixer()
    frozen = {name: each for name, each in weights_of(first).items() if not each.requires_grad}
    there = weights_of(other)
    drawn = [
        name
        for name, weight in frozen.items()
        if weight.is_floating_point()
        and (weight < 0).any()
        and (weight > 0).any()
        and not torch.equal(weight, there[name])
    ]
    if drawn and not traits_of(first).random_draws and _decide(case, first, drawn, there):
        return Result(
            False,
            f"{drawn[0]} is drawn when the mixer is built and never learns: let it learn, or "
            "declare Traits(random_draws=True)",
        )
    return Result(True, f"weights that do not learn: {', '.join(frozen) or 'none'}")


def _decide(case: Case, mixer: nn.Module, names: list[str], others: Mapping[str, Tensor]) -> bool:
    """Tell whether other values of these weights change the output."""
    x, weights = case.input(case.middling), weights_of(mixer)
    with torch.no_grad():
        before = call(mixer, x)
        for name in names:
            weights[name].copy_(others[name])
        return not torch.equal(call(mixer, x), before)


def check_statistics(case: Case) -> Result:
    """Passes in training differ, their mean is evaluation, their spread that of the rate."""
    if not traits_of(case.build()).weight_dropout:
        return _undeclared(case)
    ways: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
        "a pass": lambda mixer, x: pass_of(mixer, x, Layout())
    }
    if not isinstance(streaming_mixer(case), str):
        ways["a stream"] = lambda mixer, x: stream(
            mixer,
            list(torch.split(x, mixed_cut(x.shape[1]), dim=1)),
            cast(object, mixer).initial_state(len(x), x.shape[1]),  # type: ignore[attr-defined]
        )[0]
    return worst(each for name, run in ways.items() for each in _statistics(case, name, run))


def _undeclared(case: Case) -> Result:
    """Compare with a mixer without attention dropout, in training and evaluation."""
    plain, other, x = case.mixer(), case.mixer(attention_dropout=RATES[-1]), case.input()
    for training in (False, True):
        with fix_seed(23):
            wanted = pass_of(plain.train(training), x, Layout())
        with fix_seed(23):
            y = pass_of(other.train(training), x, Layout())
        if not case.agree("", y, wanted).passed:
            mode = "training" if training else "evaluation"
            return Result(
                False,
                f"attention_dropout={RATES[-1]} changes values in {mode}: traits.weight_dropout "
                "is False",
            )
    return inapplicable("traits.weight_dropout is False, and it has no effect")


def _statistics(
    case: Case, name: str, run: Callable[[nn.Module, Tensor], Tensor]
) -> Iterator[Result]:
    """Compare many passes in training at two rates with evaluation."""
    length, late = case.max_length, slice(case.max_length // 2, None)
    x = case.input(length, rows=1).expand(COPIES, -1, -1).float()
    spread = []
    for rate in RATES:
        mixer = case.mixer(attention_dropout=rate).float().train()
        total = squares = torch.zeros((), dtype=torch.float64, device=case.device)
        first: Tensor | None = None
        with torch.no_grad():
            for number in range(PASSES):
                with fix_seed(300 + number):
                    y = run(mixer, x)[:, late].double()
                alike = "each time" if first is not None and torch.equal(y, first) else ""
                if alike := alike or ("in each row" if bool((y == y[:1]).all()) else ""):
                    yield Result(False, f"{name} in training draws the same numbers {alike}")
                    return
                first = y if first is None else first
                total, squares = total + y.sum(0), squares + y.square().sum(0)
            wanted = run(mixer.eval(), x)[0, late].double()
        count = PASSES * COPIES
        mean = total / count
        variance = (squares / count - mean.square()).clamp(min=0).sum()
        spread.append(float(variance))
        if rate == RATES[0]:
            slope = float((mean * wanted).sum() / wanted.square().sum())
            yield Result(
                abs(slope - 1) <= SCALE,
                f"the mean of {count} draws of {name} with attention_dropout={rate} is {slope:.3f} "
                "times evaluation, wanted 1.0",
            ).because("weights that are left are not divided by 1 - p, or divided twice")
    ratio, (low, high) = spread[1] / max(spread[0], 1e-30), SPREAD
    yield Result(
        low <= ratio <= high,
        f"{name}: attention_dropout={RATES[1]} spreads {ratio:.2f} times as far as {RATES[0]}, "
        f"wanted {low} to {high}",
    ).because("the rate of dropout is not the one that the site asks for")
