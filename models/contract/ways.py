"""The contract kit's check that all ways to call a mixer are one function.

A stack calls `extend` wherever it is offered, in training too, and generation calls it behind a
state: what is compared with a literal form, or with itself under other inputs, holds for `forward`
in evaluation alone until the others are compared with that.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain
from typing import cast

import torch
from torch import Tensor, nn

from lra.models.contract.case import (
    PRECISIONS,
    SHORT,
    Case,
    Result,
    call,
    fix_seed,
    traits_of,
    worst,
)
from lra.models.contract.facts import Facts, few_layouts, layout_of, layouts
from lra.models.contract.states import initial_state, mixed_cut, stream, streaming_mixer
from lra.models.contract.values import SINGLE_PRECISION
from lra.models.mixer import Extends, Flow, Positions, State

DROPPED = 0.4
"""Share of weights that are dropped in training, and in training alone."""
DROPS_NOTHING = 1e-12
"""A share so small that no weight of a check is ever dropped, while the path is that of dropout."""
MEDIAN_DIFFERENCE = 0.05
"""Largest relative difference in half precision, for the median over tokens. After rounding, single
tokens may choose otherwise (for example another bucket), but most of them must not."""


def check_ways(case: Case) -> Result:
    """`forward`, `extend` without a state and a stream are one function, in training as well.

    So they are under each mask and several at once, at every encoding of positions, with and
    without gradients, in lower precisions, and with a dropout that drops nothing.
    """
    encodings = (Positions.none, *case.inside(traits_of(case.build())))
    tried = chain.from_iterable((_passes(case, each), _streams(case, each)) for each in encodings)
    return worst(chain(chain.from_iterable(tried), _longest(case), _passes_rounded(case))).because(
        "a separate path forgets the layout or the state, detaches, rounds, or drops; noise of "
        "training must be declared by traits.training_noise"
    )


def ways(
    mixer: nn.Module, *, evaluation: bool = True, every: bool = True
) -> Iterator[tuple[str, Callable[[Tensor, Facts], Tensor]]]:
    """Yield the name and the function of each way to run one pass, in evaluation and in training.

    The mixer is set to that mode first. `evaluation=False` skips evaluation. With `every=False`,
    training uses only the way that a stack uses: `extend` if the mixer has it, else `forward`.
    """

    def forward(x: Tensor, facts: Facts) -> Tensor:
        with fix_seed(17):
            return call(mixer, x, **facts)

    def extend(x: Tensor, facts: Facts) -> Tensor:
        with fix_seed(17):
            return cast(Extends, mixer).extend(Flow(x), layout_of(facts)).x

    runs = (forward, extend) if isinstance(mixer, Extends) else (forward,)
    for training in (False, True) if evaluation else (True,):
        for run in runs if every or not training else runs[-1:]:
            mixer.train(training)
            yield f"{run.__name__} in {'training' if training else 'evaluation'}", run


def with_dropout(case: Case, share: float) -> list[nn.Module]:
    """Return a list of the mixer with dropout `share`; an empty list if it drops no weights."""
    mixer = case.mixer(attention_dropout=share)
    return [mixer] if traits_of(mixer).weight_dropout else []


def _passes(case: Case, positions: Positions) -> Iterator[Result]:
    """Compare every way with `forward` in evaluation, or in training where training is noisy.

    Without masks and with all masks together, the check also compares `forward` in training, passes
    without gradient, and training with a dropout that drops nothing. Under other masks, it compares
    values, and gradients under `few_layouts`. At an encoding that the mixer applies itself, it uses
    all masks together.
    """
    mixer = case.mixer(positions=positions)
    traits, length = traits_of(mixer), case.length(positions)
    learnt = [parameter for parameter in mixer.parameters() if parameter.requires_grad]
    named = ["the input", *(name for name, each in mixer.named_parameters() if each.requires_grad)]
    given = case.input(length, salt=3)
    kinds = layouts(case, traits, length)
    with_gradients = few_layouts(case, traits, length)
    *_, together = kinds
    silent = with_dropout(case, DROPS_NOTHING) if positions == Positions.none else []
    if positions != Positions.none:
        kinds = {together: kinds[together]}
    for what, facts in kinds.items():
        real = facts.get("keep", slice(None))
        wanted: dict[bool, tuple[Tensor, tuple[Tensor, ...]]] = {}
        outermost = positions == Positions.none and what in {"no mask", together}
        for each in (mixer, *silent) if outermost else (mixer,):
            for name, run in ways(each, evaluation=each is mixer, every=outermost):
                label = f"{what}, positions={positions.value}"
                x = case.input(length).requires_grad_()
                y = run(x, facts)
                derived = each is mixer and what in with_gradients and (each.training or not wanted)
                slopes: tuple[Tensor, ...] = ()
                if derived:
                    total = (y * given)[real].sum()
                    slopes = torch.autograd.grad(total, [x, *learnt], materialize_grads=True)
                noisy = each.training and traits.training_noise
                first, others = wanted.setdefault(noisy, (y.detach(), slopes))
                yield case.agree(f"{name}, {label}", y[real], first[real])
                for of, here, there in zip(named, slopes, others, strict=False):
                    yield case.agree(f"gradient of {of} {name}, {label}", here, there)
                if outermost and not each.training:
                    with torch.no_grad():
                        z = run(x, facts)
                    yield case.agree(f"{name}, {label}, no_grad", z[real], first[real])


def _longest(case: Case) -> Iterator[Result]:
    """Compare every way on the longest input, with all masks together."""
    mixer = case.mixer()
    traits, x = traits_of(mixer), case.input()
    *_, (what, facts) = layouts(case, traits, case.max_length).items()
    tried = []
    if case.max_length > case.middling:  # else `_passes` tries it
        tried = [(what, facts, facts.get("keep", slice(None)))]
    if traits.hides_others:
        tried += [("keep of others", {"keep": case.holes()}, slice(None))]
    for what, facts, real in tried:
        wanted = call(mixer.eval(), x, **facts)
        for name, run in ways(mixer):
            if not (mixer.training and traits.training_noise):
                label = f"{name}, {what}, {case.max_length} tokens"
                yield case.agree(label, run(x, facts)[real], wanted[real])


def _passes_rounded(case: Case) -> Iterator[Result]:
    """Compare ways in lower precisions with one pass in the kit's precision.

    Without masks, and with all masks together.
    """
    mixer, length = case.mixer(), min(SHORT, case.max_length)
    traits = traits_of(mixer)
    if traits.selection_leak:
        return
    every = [*layouts(case, traits, length).items()]
    kinds = dict((every[0], every[-1]))
    wanted = {what: call(mixer, case.input(length), **facts) for what, facts in kinds.items()}
    for precision, (dtype, auto) in PRECISIONS.items():
        if precision != "float32" and traits.random_draws:  # hashes may choose otherwise
            continue
        mixer.to(dtype)
        for name, run in ways(mixer, every=False):
            if mixer.training and traits.training_noise:
                continue
            for what, facts in kinds.items():
                real = facts.get("keep", slice(None))
                with ExitStack() as stack:
                    stack.enter_context(torch.autocast(case.device, torch.bfloat16, enabled=auto))
                    stack.enter_context(torch.set_grad_enabled(mixer.training))
                    y = run(case.input(length).to(dtype), facts)
                label = f"{name}, {what}, in {precision}"
                yield _compare_rounded(case, label, y[real], wanted[what][real], precision)


def _compare_rounded(case: Case, label: str, y: Tensor, wanted: Tensor, precision: str) -> Result:
    """Compare `y`, computed in `precision`, with the output `wanted` of another pass.

    In float32 every number must agree. In half precision (also under autocast) the median token
    must: see `MEDIAN_DIFFERENCE`. `label` names the comparison in the message.
    """
    y, wanted = (each.detach().to(case.dtype).flatten(0, -2) for each in (y, wanted))
    if precision == "float32":
        return case.agree(label, y, wanted, SINGLE_PRECISION)
    differences = (y - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp(min=1e-3)
    median = differences.median().item()
    return Result(
        median <= MEDIAN_DIFFERENCE,
        f"{label}: relative difference of the median token {median:.1e}, "
        f"wanted {MEDIAN_DIFFERENCE:.0e}",
    )


def _streams(case: Case, positions: Positions) -> Iterator[Result]:
    """Compare streams with one pass.

    Without positions, the check also compares lower precisions and training with dropout.
    """
    mixer = streaming_mixer(case, positions)
    if isinstance(mixer, str):
        return
    length, traits = case.length(positions), traits_of(mixer)
    x = case.input(length)
    wanted = call(mixer, x)

    def streamed(mixer: nn.Module, x: Tensor) -> tuple[Tensor, State]:
        with fix_seed(17):
            pieces = list(torch.split(x, mixed_cut(length), dim=1))
            return stream(mixer, pieces, initial_state(mixer, case, length))

    plain = positions == Positions.none
    loud, silent = (with_dropout(case, each) if plain else [] for each in (DROPPED, DROPS_NOTHING))
    # As streams are used: trained with gradients, evaluated without.
    for name, training, mixers in (
        ("in evaluation", False, [mixer]),
        ("in evaluation with attention_dropout", False, loud),
        ("in training", True, [mixer]),
        ("in training with a dropout that drops nothing", True, silent),
    ):
        for each in mixers if not (training and traits.training_noise) else []:
            with torch.set_grad_enabled(training):
                y, _ = streamed(each.train(training), x)
            yield case.agree(f"a stream {name}, positions={positions.value}", y, wanted)
    mixer.eval()
    for precision, (dtype, auto) in PRECISIONS.items() if plain else ():
        mixer.to(dtype)
        rounded = x.to(dtype)
        with torch.no_grad(), torch.autocast(case.device, torch.bfloat16, enabled=auto):
            y, _ = streamed(mixer, rounded)
            whole = wanted if precision == "float32" else call(mixer, rounded)
        if precision != "float32" or not traits.selection_leak:
            label = f"a stream in {precision}, positions={positions.value}"
            yield _compare_rounded(case, label, y, whole, precision)
