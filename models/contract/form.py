"""The contract kit's checks of form: declarations, shapes, types, strides, copies, hooks."""

import copy
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from lra.models.contract.case import Case, Result, call, fix_seed, traits_of, worst
from lra.models.contract.ways import ways
from lra.models.mixer import FACTS, AfterStep, Growth, Penalised, Positions, TunedModule

EXERCISED: Mapping[str, str] = {
    "keep": "padding",
    "start": "start",
    "is_global": "is_global",
    "document": "document",
    "prefix": "prefix",
    "order": "ranks",
}
"""The check that holds a mixer to its claim to support a field of `Layout`."""
BEYOND = 3
"""Tokens past the site's longest length, for a mixer that says any length will do."""


def check_traits(case: Case) -> Result:
    """The traits of the mixer are valid and fit the direction."""
    traits = traits_of(case.build())
    unknown = sorted(traits.supports - set(EXERCISED))
    if unknown or (traits.hides_others and "keep" in traits.supports):
        wanted = f"facts of a Layout {FACTS}, and keep only without hides_others"
        return Result(False, f"supports names {unknown or ['keep']}: wanted {wanted}")
    if unknown := sorted(traits.positions - set(Positions)):
        return Result(False, f"positions names {unknown}: wanted some of {[*Positions]}")
    for name in ("operations", "memory"):
        if not isinstance(grown := getattr(traits, name), Growth):
            return Result(
                False, f"{name} is {grown!r}: wanted a Growth, such as Growth(2.0) for n²"
            )
    if case.causal and not traits.causal:
        return Result(False, "built at a causal site: traits.causal is False, wanted True")
    if traits.max_length is not None and traits.max_length < case.max_length:
        return Result(False, f"ends at length {traits.max_length}: the site says {case.max_length}")
    return Result(True, f"supports {sorted(traits.supports)}, causal={traits.causal}")


def check_lengths(case: Case) -> Result:
    """Shape and dtype stay, and values are finite, at awkward lengths and in float32 too."""
    lengths = case.lengths
    if traits_of(case.build()).max_length is None:
        lengths = [*lengths, case.max_length + BEYOND]
    for dtype in {case.dtype, torch.float32}:
        mixer = case.mixer().to(dtype)
        for length in lengths:
            x = case.input(length).to(dtype)
            try:
                y = call(mixer, x)
            except ValueError as refusal:
                if length <= case.max_length:
                    raise
                return Result(
                    False,
                    f"length {length}, where the site says {case.max_length}: {refusal}; "
                    "traits.max_length is None, which allows any length",
                )
            if y.shape != x.shape or y.dtype != dtype:
                return Result(
                    False,
                    f"length {length}: got {tuple(y.shape)} {y.dtype}, "
                    f"wanted {tuple(x.shape)} {dtype}",
                )
            if not y.isfinite().all():
                return Result(False, f"length {length}, {dtype}: output is not finite")
    return Result(True, f"shape and dtype stay the same at lengths {lengths}")


def check_empty(case: Case) -> Result:
    """A batch without rows, as the last of several ranks may get, passes in both directions."""
    mixer, length = case.mixer(), case.middling
    for name, mask in case.masks(traits_of(mixer)).items():
        x = case.input(length)[:0].requires_grad_()
        facts = {} if mask is None else {"keep": mask[:0, :length]}
        try:
            for _, run in ways(mixer):
                y = run(x, facts)
                torch.autograd.backward(y.sum())
        except Exception as error:  # noqa: BLE001 - whatever a stranger's code raises is a finding
            return Result(
                False, f"a batch of 0 rows, {name}: {type(error).__name__}: {error}"
            ).because("a shape of -1, a maximum or a mean over the batch")
        if y.shape != x.shape:
            return Result(
                False, f"a batch of 0 rows: got {tuple(y.shape)}, wanted {tuple(x.shape)}"
            )
    return Result(True, "a batch of 0 rows passes")


def check_half(case: Case) -> Result:
    """bfloat16 goes in and comes out; under autocast the output is bfloat16 or float32."""
    length = case.middling
    x = case.input(length).float()
    with torch.no_grad():
        y = call(case.mixer().bfloat16(), x.bfloat16())
        with torch.autocast(case.device, torch.bfloat16):
            z = call(case.mixer().float(), x)
    if y.dtype != torch.bfloat16:
        return Result(False, f"a bfloat16 mixer gives {y.dtype} for bfloat16").because(
            "a table or a constant that is neither parameter nor buffer, or a cast that is not "
            "undone"
        )
    if z.dtype not in (torch.bfloat16, torch.float32):
        return Result(False, f"under autocast float32 gives {z.dtype}: wanted bfloat16 or float32")
    if not (y.isfinite().all() and z.isfinite().all()):
        return Result(False, "bfloat16 gives values that are not finite")
    return Result(True, f"bfloat16 gives bfloat16, autocast gives {z.dtype}")


def check_meta(case: Case) -> Result:
    """It can be built on the meta device, where nothing is allocated."""
    with torch.device("meta"):
        mixer = case.build()
    elsewhere = [name for name, p in mixer.named_parameters() if p.device.type != "meta"]
    if elsewhere:
        return Result(False, f"parameters outside the meta device: {elsewhere}")
    return Result(True, "builds on the meta device")


def check_strides(case: Case) -> Result:
    """The memory layout of the input, or of the gradient that comes back, changes no value."""
    mixer, x = case.mixer(), case.input(case.middling)
    spaced = torch.stack((x, x), dim=-1)[..., 0]
    views = {
        "length first": x.transpose(0, 1).contiguous().transpose(0, 1),
        "width before length": x.mT.contiguous().mT,
        "every other channel": spaced,
    }
    wanted = call(mixer, x)
    cause = "view() or as_strided() on a tensor that may not be contiguous"
    seen = [
        case.agree(f"strides {name}", call(mixer, view), wanted).because(cause)
        for name, view in views.items()
    ]
    one = x[:1].expand(3, -1, -1)
    seen.append(
        case.agree("one row expanded", call(mixer, one), call(mixer, one.clone())).because(cause)
    )
    x.requires_grad_()
    y = call(mixer, x)
    expanded = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
    written_out = torch.autograd.grad(y, x, torch.ones_like(y))[0]
    seen.append(
        case.agree("gradient of a sum", expanded, written_out).because(
            "a backward pass that assumes a contiguous gradient"
        )
    )
    return worst(seen)


def check_copies(case: Case) -> Result:
    """`state_dict` and a deep copy contain the whole function, and share nothing with it."""
    first, x = case.mixer(), case.input(case.middling)
    wanted = call(first, x)
    other = replace(case, seed=case.seed + 7).mixer()
    other.load_state_dict(first.state_dict())
    seen = [
        case.agree("another build that loaded state_dict", call(other, x), wanted).because(
            "a tensor drawn at construction that is neither parameter nor persistent buffer"
        )
    ]
    twin = copy.deepcopy(first)
    seen.append(case.agree("a deep copy", call(twin, x), wanted))
    with torch.no_grad():
        for parameter, changed in zip(twin.parameters(), other.parameters(), strict=True):
            parameter.mul_(1.5)
            changed.mul_(1.5)
    seen.append(
        case.agree("the original of a copy that was trained", call(first, x), wanted).because(
            "a copy shares tensors with its original"
        )
    )
    seen.append(
        case.agree("a copy with other parameters", call(twin, x), call(other, x)).because(
            "a closure uses the tensors of the original, or a copy of a parameter"
        )
    )
    return worst(seen)


def tensors_of(mixer: nn.Module) -> dict[str, Tensor]:
    """Return a copy of every parameter and buffer, persistent or not, by name."""
    named = [*mixer.named_parameters(), *mixer.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


def check_hooks(case: Case) -> Result:
    """The optional hooks work: after_step, penalties, tuning."""
    mixer = case.mixer()
    for module in mixer.modules():
        kind = type(module).__name__
        if isinstance(module, AfterStep):
            twins = [copy.deepcopy(mixer) for _ in range(2)]
            for salt, twin in enumerate(twins):
                with fix_seed(20 + salt), torch.no_grad():
                    for part in twin.modules():
                        if isinstance(part, AfterStep):
                            part.after_step(1, torch.Generator().manual_seed(5))
            here, there = map(tensors_of, twins)
            differ = [name for name in here if not torch.equal(here[name], there[name])]
            if differ:
                return Result(
                    False, f"{kind}.after_step gives another {differ[0]} on another rank"
                ).because("it draws from the global random state instead of the given generator")
            if not call(twins[0], case.input(case.middling)).isfinite().all():
                return Result(False, f"values are not finite after {kind}.after_step")
        if isinstance(module, Penalised):
            for name, value in module.penalties().items():
                if value.shape != () or not value.isfinite() or not value.requires_grad:
                    return Result(
                        False,
                        f"{kind}.penalties()[{name!r}] is {value}: wanted a finite scalar "
                        "that depends on parameters",
                    )
        if isinstance(module, TunedModule):
            known = dict(module.named_parameters())
            if unknown := [name for name in module.tuning() if name not in known]:
                return Result(False, f"{kind}.tuning() names {unknown}: wanted some of {[*known]}")
    return Result(True, "after_step, penalties and tuning work where they are defined")
