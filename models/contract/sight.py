"""The contract kit's check of masks: who attends to whom, under each and under several at once."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lra.models.contract.case import (
    AGREEMENT,
    FEW,
    PRECISIONS,
    ROWS,
    SHORT,
    Case,
    Result,
    call,
    edges,
    fix_seed,
    traits_of,
    worst,
)
from lra.models.contract.facts import Facts, few_layouts, layout_of, layouts, visible
from lra.models.mixer import MASKS, Extends, Flow, Positions

Run = Callable[[Tensor, Facts], Tensor]

QUERIES = 3
"""Tokens of each row from which all is hidden that they may not see."""
ROUNDED = 0.05
"""What hidden outliers may change in half precision, of the largest value: another maximum that is
subtracted, or another order of sums, rounds otherwise."""


class HiddenTokens(NamedTuple):
    """Copies of rows, each for one chosen token, with the tokens hidden from it."""

    facts: Facts
    """Of each copy."""
    row: Int[Tensor, " n"]
    query: Int[Tensor, " n"]
    seen: Bool[Tensor, "n l"]
    """What that token may see."""
    compared: Bool[Tensor, "n l"]
    """Tokens that may see no more."""

    def copies(self, x: Tensor) -> Tensor:
        """Return the row of `x` that each copy repeats."""
        return x[self.row]


def hide(facts: Facts, length: int, *, causal: bool, queries: int = QUERIES) -> HiddenTokens:
    """Choose real tokens of each row, including the first and the last, and find what is hidden."""
    may = visible(facts, length, causal=causal)
    real = facts.get("keep", torch.ones_like(may[:, 0]))
    chosen = []
    for own in range(ROWS):
        tokens = real[own].nonzero()[:, 0].tolist()
        places = {round(each * (len(tokens) - 1) / (queries - 1)) for each in range(queries)}
        chosen += [(own, tokens[place]) for place in sorted(places)]
    row, query = torch.tensor(chosen, device=may.device).T
    seen = may[row, query]
    more = (may[row] & ~seen[:, None]).any(-1)
    copied = {name: fact[row] for name, fact in facts.items()}
    return HiddenTokens(copied, row, query, seen, ~more & real[row])


def check_sight(case: Case) -> Result:
    """No token depends on tokens that masks hide from it, and neither does its gradient.

    Under masks, tokens see all that is left where they see all without. Padding alone may change
    what a mixer chooses to see.
    """
    return worst(_seen(case))


def _seen(case: Case) -> Iterator[Result]:
    """Yield the result of each comparison."""
    traits = traits_of(case.build())
    for positions in (Positions.none, *case.inside(traits)):
        mixer = case.mixer(positions=positions)
        length = case.length(positions)
        noisy = traits_of(mixer).training_noise
        for training in (False, True) if noisy else (False,):
            how = f"positions={positions.value}{', in training' if training else ''}"
            kinds = (layouts if positions == Positions.none else few_layouts)(case, traits, length)
            yield from _in_full(case, mixer.train(training), length, kinds, how)
    if case.max_length > case.middling:
        yield _longest(case)
    yield from _in_precisions(case)
    if not (traits.causal or "keep" in traits.supports or traits.random_draws):
        yield _left_out(case)


def _in_full(
    case: Case, mixer: nn.Module, length: int, kinds: Mapping[str, Facts], how: str
) -> Iterator[Result]:
    """Compare values and gradients in the kit's dtype, for each combination of facts in `kinds`."""
    traits, x = traits_of(mixer), case.input(length)
    sees_all = False

    def run(x: Tensor, facts: Facts) -> Tensor:
        with fix_seed(41):
            return call(mixer, x, **facts)

    for name, facts in kinds.items():
        hidden, what = hide(facts, length, causal=traits.causal), f"under {name}, {how}"
        if not traits.selection_leak:
            with torch.no_grad():
                found = compare_values(case, run, x, hidden, what, drawn=mixer.training)
            yield found
        if length < case.middling:
            continue
        gradient = _gradient(case, run, x, hidden)
        unseen = gradient.masked_fill(hidden.seen[..., None], 0.0)
        yield _at_worst(case, gradient - unseen, gradient, hidden, f"gradients {what}")
        if traits.reach is not None:
            tokens = torch.arange(length, device=gradient.device)
            far = (tokens - hidden.query[:, None]).abs() > traits.reach
            near = gradient.masked_fill(far[..., None], 0.0)
            yield case.agree(
                f"gradients of tokens more than reach={traits.reach} away, {what}", gradient, near
            ).because("traits.reach is smaller than the distance that it attends to")
        blind = (hidden.seen & (gradient.abs().amax(-1) == 0)).nonzero()
        if not facts:
            sees_all = not len(blind)
        elif sees_all and len(blind) and {*MASKS} & facts.keys():
            copy, token = blind[0].tolist()
            query = int(hidden.query[copy])
            found = Result(
                False, f"{what}: token {query} does not attend to token {token}, although it may"
            )
            yield found.because("two masks together hide what each alone leaves visible")


def _longest(case: Case) -> Result:
    """Compare values of the longest input, with all facts together."""
    mixer, length = case.mixer(), case.max_length
    traits = traits_of(mixer)
    *_, (name, facts) = layouts(case, traits, length).items()
    if traits.selection_leak:
        return Result(True, "values not compared: selection_leak is declared")
    hidden = hide(facts, length, causal=traits.causal, queries=2)

    def run(x: Tensor, facts: Facts) -> Tensor:
        return call(mixer, x, **facts)

    with torch.no_grad():
        what = f"under {name}, of {length} tokens"
        return compare_values(case, run, case.input(), hidden, what)


def compare_values(
    case: Case,
    run: Run,
    x: Float[Tensor, "b l d"],
    hidden: HiddenTokens,
    what: str,
    *,
    drawn: bool = False,
    tolerance: float | None = None,
) -> Result:
    """Compare a pass with one in which all hidden tokens are outliers.

    Both are rows of one batch, which `batch` keeps from each other, but where a pass draws numbers:
    then each has the same.
    """
    if hidden.seen.all():
        return Result(True, f"{what}: nothing is hidden")
    copies, noise = (hidden.copies(each) for each in (x, case.noise(x).to(x)))
    inputs = (copies, torch.where(hidden.seen[..., None], copies, noise))
    if drawn:
        here, there = (run(each, hidden.facts) for each in inputs)
    else:
        twice = {name: torch.cat((fact, fact)) for name, fact in hidden.facts.items()}
        here, there = run(torch.cat(inputs), twice).chunk(2)
    others = ~hidden.compared[..., None]
    here, there = here.masked_fill(others, 0.0), there.masked_fill(others, 0.0)
    return _at_worst(case, there, here, hidden, f"outliers {what}", tolerance=tolerance)


def _gradient(
    case: Case, run: Run, x: Float[Tensor, "b l d"], hidden: HiddenTokens
) -> Float[Tensor, "n l d"]:
    """Return the gradient of each copy's chosen token with respect to all of its tokens."""
    copies = hidden.copies(x).requires_grad_()
    y = run(copies, hidden.facts)
    own = y[torch.arange(len(y), device=y.device), hidden.query] * case.input(1, salt=3)[0]
    return torch.autograd.grad(own.sum(), copies)[0]


def _at_worst(
    case: Case,
    seen: Tensor,
    wanted: Tensor,
    hidden: HiddenTokens,
    what: str,
    *,
    tolerance: float | None = None,
) -> Result:
    """Compare all copies, and name the copy with the largest difference."""
    copy = int((seen - wanted).detach().abs().amax((1, 2)).argmax())
    where = f"hidden from token {int(hidden.query[copy])} of row {int(hidden.row[copy])}"
    return case.agree(f"{what}, {where}", seen, wanted, tolerance).because(
        "a mask is not applied together with another, at these positions, or to these values"
    )


def _in_precisions(case: Case) -> Iterator[Result]:
    """Compare values in lower precisions, as a stack runs in training and in evaluation."""
    mixer = case.mixer()
    traits = traits_of(mixer)
    if traits.selection_leak:
        return
    length = min(SHORT, case.max_length)
    kinds = {
        what: hide(facts, length, causal=traits.causal)
        for what, facts in few_layouts(case, traits, length).items()
    }
    for name, (dtype, auto) in PRECISIONS.items():
        mixer.to(dtype)
        x = case.input(length).to(dtype)
        tolerance = AGREEMENT[dtype] if name == "float32" else ROUNDED
        for training in (False, True):
            run = partial(_rounded, mixer.train(training), auto)
            drawn = training and (traits.training_noise or traits.random_draws)
            for what, hidden in [*kinds.items()][0 if training else -1 :]:
                label = f"under {what}, in {name}{', in training' if training else ''}"
                with nullcontext() if training else torch.no_grad():
                    found = compare_values(
                        case, run, x, hidden, label, drawn=drawn, tolerance=tolerance
                    )
                yield found


def _rounded(mixer: nn.Module, auto: bool, x: Tensor, facts: Facts) -> Tensor:
    """Run one pass as a stack does: with `extend` if the mixer has it, else with `forward`."""
    with fix_seed(41), torch.autocast(x.device.type, torch.bfloat16, enabled=auto):
        if mixer.training and isinstance(mixer, Extends):
            return mixer.extend(Flow(x), layout_of(facts)).x.float()
        return call(mixer, x, **facts).float()


def _left_out(case: Case) -> Result:
    """Return a failure that names a token that reaches no other token's output, or None."""
    mixer = case.mixer()

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
