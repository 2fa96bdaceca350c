"""The contract kit's checks of what a mixer holds: tensors, states, caches, other instances."""

import gc
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lra.models.contract.case import (
    ROWS,
    Case,
    Result,
    call,
    fix_seed,
    run_after_step,
    traits_of,
    worst,
)
from lra.models.contract.counting import EagerDispatch
from lra.models.contract.form import TRAINED
from lra.models.contract.guards import weights_of
from lra.models.contract.learning import pass_of
from lra.models.contract.states import initial_state, stream, streaming_mixer
from lra.models.mixer import AfterStep, Layout

LONGER, FEWER = 149, 3
"""Tokens of mixers whose tables are compared: a prime, with which few calls have filled them."""
OTHERS = {"layer": 1, "depth": 3, "cls": True, "heads": 2, "width": 2, "max_length": 2}
"""Fields of other sites; the last three are factors."""
WARM = 3
"""Calls until every cache is filled."""


class TensorWatch(EagerDispatch):  # type: ignore[no-untyped-call]
    """Remembers, weakly, every tensor that operators make."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.made: list[weakref.ref[Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        """Run one operator, and remember what it returns."""
        out = func(*args, **(kwargs or {}))
        several = out if isinstance(out, tuple | list) else (out,)
        self.made += [weakref.ref(each) for each in several if isinstance(each, Tensor)]
        return out


def check_upkeep(case: Case) -> Result:
    """It holds parameters and buffers alone, and nothing of a call once its results are gone."""
    return worst(_upkeep(case))


def _upkeep(case: Case) -> Iterator[Result]:
    mixer = case.build()
    for name, tensor in loose_tensors(mixer):
        yield Result(
            False,
            f"{name} is a tensor of shape {tuple(tensor.shape)}, neither parameter nor buffer",
        ).because("`self.x = torch...`: use register_buffer, which .to(device) moves")
    yield from _instances(case)
    yield _collected(case)
    yield _trained(case)
    yield _reloaded(case)


def loose_tensors(mixer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor that a module holds besides parameters and buffers, with its name."""
    known = {id(each) for each in (*mixer.parameters(), *mixer.buffers())}

    def inside(name: str, value: object) -> Iterator[tuple[str, Tensor]]:
        if isinstance(value, Tensor) and id(value) not in known:
            yield name, value
        elif isinstance(value, dict):
            for key, each in value.items():
                yield from inside(f"{name}[{key!r}]", each)
        elif isinstance(value, list | tuple):
            for number, each in enumerate(value):
                yield from inside(f"{name}[{number}]", each)

    ours = {"_parameters", "_buffers", "_modules"}
    for path, module in mixer.named_modules():
        for name, value in vars(module).items():
            if name not in ours:
                yield from inside(f"{path}.{name}".lstrip("."), value)


def _instances(case: Case) -> Iterator[Result]:
    """Hold a mixer to its results at another length after one of another site ran at this one.

    A table that several instances share is then that of the other site at one length alone.
    """
    traits, most = traits_of(case.build()), min(LONGER, case.max_length)
    masked = "keep" in traits.supports
    if most <= FEWER or not (masked or (traits.causal and not traits.selection_leak)):
        return

    def compare(here: Case, mixer: nn.Module, length: int, what: str) -> Result:
        """Compare sequences of this length with the beginning of longer ones."""
        x, keep = here.input(most), here.before([length] * ROWS)[:, :most] if masked else None
        with torch.no_grad():
            y, wanted = call(mixer, x[:, :length]), call(mixer, x, keep)[:, :length]
        return case.agree(what, y, wanted)

    if not compare(case, case.mixer(), most // 2, "").passed:
        return  # other checks tell why
    for field, value in OTHERS.items():
        if field in ("width", "heads", "max_length"):
            other = replace(case, **{field: value * getattr(case, field)})
        else:
            other = replace(case, place=((field, value),))
        for number, (first, second) in enumerate(((other, case), (case, other))):
            length = most - 1 - number
            what = f"{length} tokens, after a mixer at a site with other {field} had as many"
            try:
                call(first.mixer(), first.input(length))
                mixer = second.mixer()
            except Exception:  # noqa: BLE001 - not every site is possible
                continue
            yield compare(second, mixer, length, what).because(
                "a table that all instances share, looked up without what it depends on"
            )


def _collected(case: Case) -> Result:
    """Count the tensors of a call that are alive when its results are gone."""
    mixer = case.mixer()
    streams = not isinstance(streaming_mixer(case), str)

    def once(salt: int) -> None:
        x = case.input(case.middling, salt=salt).requires_grad_()
        pieces = list(torch.split(x.detach(), case.middling // 2 + 1, dim=1))
        for training in (True, False):
            with fix_seed(salt), torch.set_grad_enabled(training):
                y = pass_of(mixer.train(training), x, Layout())
                if y.requires_grad:
                    torch.autograd.backward(y.sum())
                if streams:
                    stream(mixer, pieces, initial_state(mixer, case))
        mixer.zero_grad()

    for salt in range(WARM):
        once(80 + salt)
    with TensorWatch() as counter:
        for salt in range(WARM):
            once(90 + salt)
    gc.collect()
    alive = [each for each in (ref() for ref in counter.made) if each is not None]
    fixed = {id(each.grad) for each in mixer.parameters()}
    alive = [each for each in alive if id(each) not in fixed]
    if alive:
        return Result(
            False, f"{len(alive)} tensors of {WARM} calls are alive after their results are gone"
        ).because("a list or a cache of the mixer grows with every call")
    return Result(True, "nothing of a call stays alive")


def _trained(case: Case) -> Result:
    """After many steps, parameters are the same objects, and values are finite."""
    mixer = case.mixer()
    if not any(isinstance(each, AfterStep) for each in mixer.modules()):
        return Result(True, "no after_step")
    before = dict(mixer.named_parameters())
    kinds = {name: (each.shape, each.dtype) for name, each in weights_of(mixer).items()}
    for step in TRAINED:
        run_after_step(mixer, step, seed=step)
        for name, parameter in mixer.named_parameters():
            if before.get(name) is not parameter:
                return Result(False, f"{name} is another object after after_step({step})").because(
                    "assign its values in place: the optimiser still has the old one"
                )
        for name, each in weights_of(mixer).items():
            if kinds.get(name) != (kind := (each.shape, each.dtype)):
                return Result(False, f"{name} is {kind} after after_step({step}), {kinds[name]}")
        if not call(mixer, case.input(case.middling)).isfinite().all():
            return Result(False, f"values are not finite after after_step({step})")
    return Result(True, f"parameters are the same objects after {len(TRAINED)} steps")


def _reloaded(case: Case) -> Result:
    """Weights that are filled in place after calls are read anew."""
    mixer, other = case.mixer(), replace(case, seed=case.seed + 7).mixer()
    x = case.input(case.middling)
    for training in (True, False):
        with fix_seed(33):
            pass_of(mixer.train(training), x, Layout())
    with torch.no_grad():
        pass_of(mixer, x, Layout())
        there = weights_of(other)
        for name, weight in weights_of(mixer).items():
            if weight.shape != there[name].shape:
                return Result(True, "its weights depend on the draw")
            weight.copy_(there[name])
    return case.agree(
        "weights filled in place after a call, against a fresh mixer with them",
        pass_of(mixer, x, Layout()),
        pass_of(other.eval(), x, Layout()),
    ).because("a product of weights, or a table of a buffer, is cached by the first call")


def check_options(case: Case) -> Result:
    """Every encoding and option of the site that it claims changes something."""
    return worst(_options(case))


def _options(case: Case) -> Iterable[Result]:
    plain = case.mixer()
    traits, x = traits_of(plain), case.input(case.middling)
    weights = {name: tuple(each.shape) for name, each in plain.state_dict().items()}
    offered = {"qkv_bias": (True, False), "output_bias": (True, False), "own_head_width": (6,)}
    for name in ("qkv_bias", "output_bias", "head_width"):
        if name not in traits.options:
            continue
        field = "own_head_width" if name == "head_width" else name
        shapes = []
        for value in offered[field]:
            try:
                other = replace(case, place=((field, value),)).mixer()
            except ValueError:
                continue
            shapes.append({key: tuple(each.shape) for key, each in other.state_dict().items()})
        if shapes and all(each == weights for each in shapes):
            yield Result(False, f"traits.options has {name}, which changes no weight")
    for positions in case.inside(traits) if case.max_length > 1 else ():
        other = case.mixer(positions=positions)
        there = {key: tuple(each.shape) for key, each in other.state_dict().items()}
        if there != weights:
            continue  # new weights: `learning` tells whether they are used
        other.load_state_dict(plain.state_dict())
        with torch.no_grad():
            alike = case.agree("", call(other, x), call(plain, x)).passed
        yield Result(
            not alike, f"positions={positions.value} changes {'nothing' if alike else 'the output'}"
        ).because("the encoding is claimed in traits.positions, but not applied")
