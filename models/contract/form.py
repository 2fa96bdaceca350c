"""The contract kit's checks of form: declarations, shapes, types, strides, copies, hooks."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

import torch

from lra.models.contract.calls import STATE_ENTRIES, entries_of, plain_call
from lra.models.contract.case import Case, Result, call, fix_seed, run_after_step, traits_of, worst
from lra.models.contract.guards import weights_of
from lra.models.contract.passes import Path
from lra.models.mixer import FACTS, AfterStep, Growth, Penalised, Positions, Traits, TunedModule

EXERCISED: Mapping[str, str] = {
    "keep": "padding",
    "start": "start",
    "is_global": "is_global",
    "document": "document",
    "prefix": "prefix",
    "order": "ranks",
}
"""The check that holds a mixer to its claim to support a field of `Layout`."""
TRAINED = (1, 2, 10, 100, 1_000, 10_000)
"""Steps after which `after_step` is called."""
BEYOND = 3
"""Tokens past the site's longest length, for a mixer that says any length will do."""


def check_traits(case: Case) -> Result:
    """The traits of the mixer are valid and fit the direction."""
    traits = traits_of(case.build())
    return worst([*_claims(case, traits), Result(True, f"supports {sorted(traits.supports)}")])


def _claims(case: Case, traits: Traits) -> Iterator[Result]:
    """Yield each claim that means nothing, or does not fit."""
    unknown = sorted(traits.supports - set(EXERCISED))
    if unknown or (traits.hides_others and "keep" in traits.supports):
        wanted = f"facts of a Layout {FACTS}, and keep only without hides_others"
        yield Result(False, f"supports names {unknown or ['keep']}: wanted {wanted}")
    if traits.causal and "order" in traits.supports:
        yield Result(False, "order is supported by a causal mixer").because(
            "ranks are for mixers that attend to both sides: remove order from a causal one"
        )
    if unknown := sorted(traits.positions - set(Positions)):
        yield Result(False, f"positions names {unknown}: wanted some of {[*Positions]}")
    for name in ("operations", "memory"):
        if not isinstance(grown := getattr(traits, name), Growth):
            yield Result(False, f"{name} is {grown!r}: wanted a Growth, such as Growth(2.0) for n²")
    if case.causal and not traits.causal:
        yield Result(False, "built at a causal site: traits.causal is False, wanted True")
    if traits.max_length is not None and traits.max_length < case.max_length:
        yield Result(False, f"ends at length {traits.max_length}: the site says {case.max_length}")


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
    masks = ["none", "holes"] if "keep" in traits_of(case.build()).supports else ["none"]
    entries = [each for each in entries_of(case) if each not in ("attend", "attention_core")]
    for entry, mask, training in product(entries, masks, (False, True)):
        if entry in STATE_ENTRIES and mask != "none":
            continue
        call = plain_call(case)._replace(entry=entry, training=training, mask=mask, rows=0)
        path = Path(case, call)
        try:
            x = path.x.requires_grad_()
            y = path.run(x)
            torch.autograd.backward(y.sum())
        except Exception as error:  # noqa: BLE001 - whatever a stranger's code raises is a finding
            return Result(
                False, f"a batch of 0 rows, {call!r}: {type(error).__name__}: {error}"
            ).because("a shape of -1, a maximum or a mean over the batch")
        if y.shape != x.shape:
            return Result(
                False, f"a batch of 0 rows: got {tuple(y.shape)}, wanted {tuple(x.shape)}"
            )
    return Result(True, "a batch of 0 rows passes")


def check_meta(case: Case) -> Result:
    """It can be built on the meta device, where nothing is allocated."""
    with torch.device("meta"):
        mixer = case.build()
    elsewhere = [name for name, p in mixer.named_parameters() if p.device.type != "meta"]
    if elsewhere:
        return Result(False, f"parameters outside the meta device: {elsewhere}")
    return Result(True, "builds on the meta device")


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


def check_hooks(case: Case) -> Result:
    """The optional hooks work: after_step, penalties, tuning."""
    mixer = case.mixer()
    for module in mixer.modules():
        kind = type(module).__name__
        if isinstance(module, AfterStep):
            twins = [copy.deepcopy(mixer) for _ in range(2)]
            for salt, twin in enumerate(twins):
                with fix_seed(20 + salt):
                    for step in TRAINED:
                        run_after_step(twin, step, seed=5)
            here, there = map(weights_of, twins)
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
