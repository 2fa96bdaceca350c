"""The contract kit's checks of values: what one pass may depend on, and what must be finite."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from models.contract_case import ROWS, Case, Seen, call, seeded, traits_of, worst
from models.mixer import Layout, Positions

SINGLE_PRECISION = 1e-3
"""Largest relative difference between float32 and float64."""
MEAN_OF_ONES = 1e-5
"""How far a weighted mean of ones may lie from one: room for a small constant in a denominator."""


def check_traits(case: Case) -> Seen:
    """What the mixer says about itself is meaningful and fits the direction."""
    traits = traits_of(case.build())
    if unknown := sorted(traits.honours - set(Layout._fields)):
        return Seen(False, f"honours names {unknown}: wanted fields of Layout {Layout._fields}")
    if unknown := sorted(traits.positions - set(Positions)):
        return Seen(False, f"positions names {unknown}: wanted some of {[*Positions]}")
    if case.causal and not traits.causal:
        return Seen(False, "built at a causal site: traits.causal is False, wanted True")
    if traits.max_length is not None and traits.max_length < case.max_length:
        return Seen(False, f"ends at length {traits.max_length}: the site says {case.max_length}")
    return Seen(True, f"honours {sorted(traits.honours)}, causal={traits.causal}")


def check_lengths(case: Case) -> Seen:
    """Shape and dtype are kept, and values finite, at awkward lengths and in float32 too."""
    for dtype in {case.dtype, torch.float32}:
        mixer = case.mixer().to(dtype)
        for length in case.lengths:
            x = case.input(length).to(dtype)
            y = call(mixer, x)
            if y.shape != x.shape or y.dtype != dtype:
                return Seen(
                    False,
                    f"length {length}: got {tuple(y.shape)} {y.dtype}, "
                    f"wanted {tuple(x.shape)} {dtype}",
                )
            if not y.isfinite().all():
                return Seen(False, f"length {length}, {dtype}: output is not finite")
    return Seen(True, f"shape and dtype kept at lengths {case.lengths}")


def check_meta(case: Case) -> Seen:
    """Builds on the meta device, where nothing is allocated."""
    with torch.device("meta"):
        mixer = case.build()
    elsewhere = [name for name, p in mixer.named_parameters() if p.device.type != "meta"]
    if elsewhere:
        return Seen(False, f"parameters outside the meta device: {elsewhere}")
    return Seen(True, "builds on the meta device")


def check_repeatable(case: Case) -> Seen:
    """In eval two passes are equal to the bit, and so are two builds from one seed."""
    first, second, x = case.mixer(), case.mixer(), case.input()
    with seeded(11):
        once = call(first, x)
    with seeded(12):
        if not torch.equal(call(first, x), once):
            return Seen(False, "two passes in eval differ: nothing may be drawn inside forward")
    for name, value in first.state_dict().items():
        if not torch.equal(value, second.state_dict()[name]):
            return Seen(False, f"{name} differs between builds: draw from site.generator")
    if not torch.equal(call(second, x), once):
        return Seen(False, "two builds from one seed differ; draw from site.generator")
    return Seen(True, "two passes and two builds are equal to the bit")


def check_recomputation(case: Case) -> Seen:
    """Under activation checkpointing with dropout, gradients are those of the plain pass."""
    mixer = case.mixer(attention_dropout=0.1).train()

    def gradient(recompute: bool) -> Tensor:
        x = case.input().requires_grad_()
        with seeded(13):
            y: Tensor = (
                checkpoint(mixer, x, Layout(), use_reentrant=False) if recompute else call(mixer, x)
            )
            return torch.autograd.grad(y.square().sum(), x)[0]

    return case.agree("gradient when recomputed", gradient(True), gradient(False))


def check_random_draws(case: Case) -> Seen:
    """Draws of the site's generator decide the function exactly where that is declared."""
    declared = traits_of(case.build()).random_draws
    x = case.input()
    changed = not torch.equal(call(case.mixer(), x), call(case.mixer(draw=case.seed + 77), x))
    if changed != declared:
        return Seen(
            False,
            f"another site.generator gives {'another' if changed else 'the same'} function: "
            f"traits.random_draws is {declared}",
        )
    return Seen(True, f"draws decide the function: {changed}")


def check_batch(case: Case) -> Seen:
    """An example's output does not depend on its neighbours in the batch."""
    mixer, x = case.mixer(), case.input()
    whole = call(mixer, x)
    seen = [
        case.agree(f"example {row} alone", call(mixer, x[row : row + 1])[0], whole[row])
        for row in range(ROWS)
    ]
    loud = torch.cat((x[:1], case.noise(x[1:])))
    seen.append(case.agree("beside outliers", call(mixer, loud)[0], whole[0]))
    return worst(seen)


def check_padding(case: Case) -> Seen:
    """Padding changes nothing: not its content, and not its presence."""
    mixer, x, keep = case.mixer(), case.input(), case.keep()
    if "keep" not in traits_of(mixer).honours:
        return Seen(True, "not applicable: traits.honours leaves out keep, so padding is refused")
    padded = call(mixer, x, keep)
    loud = torch.where(keep[..., None], x, case.noise(x))
    seen = [case.agree("padding replaced by outliers", call(mixer, loud, keep)[keep], padded[keep])]
    for row, length in enumerate(keep.sum(1).tolist()):
        short = call(mixer, x[row : row + 1, :length])[0]
        seen.append(case.agree(f"padded from {length} tokens", padded[row, :length], short))
    holes = case.holes()
    loud = torch.where(holes[..., None], x, case.noise(x))
    here, there = call(mixer, x, holes)[holes], call(mixer, loud, holes)[holes]
    seen.append(case.agree("padding in the middle replaced by outliers", there, here))
    full = torch.ones_like(keep)
    seen.append(case.agree("keep of all True", call(mixer, x, full), call(mixer, x)))
    return worst(seen)


def check_cross(case: Case) -> Seen:
    """Cross attention over its own input is self-attention; the source's padding is left out."""
    mixer = case.mixer()
    traits, attend = traits_of(mixer), getattr(mixer, "attend", None)
    if not traits.cross or traits.causal:
        return Seen(True, "not applicable: traits.cross is False, or it is causal")
    if not callable(attend):
        return Seen(False, "traits.cross is True: it needs attend(x, layout, source, layout)")
    x, source = case.input(), case.input(case.lengths[-2], salt=4)
    keep = case.keep()[:, : source.shape[1]]
    seen = [case.agree("source equal to x", attend(x, Layout(), x, Layout()), call(mixer, x))]
    if "keep" in traits.honours:
        loud = torch.where(keep[..., None], source, case.noise(source))
        told = Layout(keep=keep)
        wanted = attend(x, Layout(), source, told)
        seen.append(case.agree("padded source, outliers", attend(x, Layout(), loud, told), wanted))
    lone = attend(x[:, :1], Layout(), source, Layout())
    whole = attend(torch.cat((x[:, :1], x[:, :1]), dim=1), Layout(), source, Layout())
    if lone.shape != x[:, :1].shape or not lone.isfinite().all():
        return Seen(False, f"one query over {source.shape[1]} keys gives {tuple(lone.shape)}")
    if not traits.random_draws:
        seen.append(case.agree("one query beside its twin", whole[:, :1], lone))
    return worst(seen)


def check_masked_rows(case: Case) -> Seen:
    """An example of nothing but padding gives finite values and gradients."""
    mixer = case.mixer()
    if "keep" not in traits_of(mixer).honours:
        return Seen(True, "not applicable: traits.honours leaves out keep")
    x, keep = case.input().requires_grad_(), case.keep()
    keep[1] = False
    y = call(mixer, x, keep)
    if not y.isfinite().all():
        return Seen(False, "a row of padding alone gives values that are not finite; wanted any")
    learnt = [parameter for parameter in mixer.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(y.sum(), [x, *learnt], allow_unused=True)
    if not all(part.isfinite().all() for part in gradients if part is not None):
        return Seen(False, "a row of padding alone gives gradients that are not finite")
    return Seen(True, "a row of padding alone gives finite values and gradients")


def check_no_lookahead(case: Case) -> Seen:
    """When causal, later tokens reach neither values nor gradients."""
    mixer = case.mixer()
    traits = traits_of(mixer)
    if not traits.causal:
        return Seen(True, "not applicable: traits.causal is False")
    x = case.input().requires_grad_()
    y = call(mixer, x)
    direction = case.input(salt=3)
    seen = []
    for cut in case.cuts:
        scalar = (y[:, :cut] * direction[:, :cut]).sum()
        gradient = torch.autograd.grad(scalar, x, retain_graph=True)[0]
        wanted = torch.cat((gradient[:, :cut], torch.zeros_like(gradient[:, cut:])), dim=1)
        seen.append(case.agree(f"gradient past token {cut}", gradient, wanted))
    if traits.selection_leak:
        last = worst(seen)
        return Seen(last.passed, f"{last.detail}; values not compared: selection_leak is declared")
    with torch.no_grad():
        noise = case.noise(x)
        for cut in case.cuts:
            loud = call(mixer, torch.cat((x[:, :cut], noise[:, cut:]), dim=1))
            seen.append(case.agree(f"outliers from token {cut} on", loud[:, :cut], y[:, :cut]))
            short = call(mixer, x[:, :cut])
            seen.append(case.agree(f"first {cut} tokens alone", short, y[:, :cut]))
    return worst(seen)


def check_gradients(case: Case) -> Seen:
    """Every parameter receives a finite gradient."""
    mixer, x = case.mixer().train(), case.input().requires_grad_()
    torch.autograd.backward((call(mixer, x) * case.input(salt=3)).sum())
    for name, parameter in [("the input", x), *mixer.named_parameters()]:
        if parameter.requires_grad and parameter.grad is None:
            return Seen(False, f"{name} received no gradient: it is unused or cut off")
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            return Seen(False, f"{name} received a gradient that is not finite")
    return Seen(True, "every parameter received a finite gradient")


def check_precisions(case: Case) -> Seen:
    """float32 is near float64, and bfloat16 under autocast is finite, gradients included."""
    exact, single = case.mixer(), case.mixer().float()
    x = case.input()
    if case.dtype is torch.float64 and not traits_of(exact).selection_leak:
        near = case.agree(
            "float32 against float64",
            call(single, x.float()).double(),
            call(exact, x),
            SINGLE_PRECISION,
        )
        if not near.passed:
            return near
    half = x.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = call(single, half)
    torch.autograd.backward(y.float().square().sum())
    parts = [y, half.grad, *(parameter.grad for parameter in single.parameters())]
    if not all(part.isfinite().all() for part in parts if part is not None):
        return Seen(False, "bfloat16 under autocast gives values or gradients that are not finite")
    return Seen(True, "float32 is near float64; bfloat16 under autocast is finite")


def check_weighted_mean(case: Case) -> Seen:
    """A core that declares weighted means gives ones for values of ones."""
    mixer = case.mixer()
    traits = traits_of(mixer)
    if not traits.row_stochastic:
        return Seen(True, "not applicable: traits.row_stochastic is False")
    core, project = getattr(mixer, "core", None), getattr(mixer, "project", None)
    if not callable(core) or not callable(project):
        return Seen(True, "skipped: it has no core and projections to give values of ones to")
    layouts = [Layout()]
    if "keep" in traits.honours:
        layouts.append(Layout(keep=case.keep()))
    seen = []
    for layout in layouts:
        q, k, v = project(case.input(), layout)
        o = core(q, k, torch.ones_like(v), layout)
        if layout.keep is not None:
            o = o.transpose(1, 2)[layout.keep]
        seen.append(case.agree("mean of ones", o, torch.ones_like(o), MEAN_OF_ONES))
    return worst(seen)
