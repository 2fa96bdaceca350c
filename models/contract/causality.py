"""The contract kit's check of causality: no output may depend on a later token."""

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from lra.models.contract.case import Case, Result, call, edges, ends, inapplicable, traits_of, worst

TOKENS_AT_ONCE = 2**13
"""Cut sequences are the rows of batches with about as many tokens."""
CAUSE = (
    "a mask that is off by one, a chunk or block that attends to its last tokens too early, a "
    "statistic of the whole length"
)


def check_no_lookahead(case: Case) -> Result:
    """In a causal mixer, later tokens change neither values nor gradients, at any cut."""
    mixer = case.mixer()
    traits = traits_of(mixer)
    if not traits.causal:
        return inapplicable("traits.causal is False")
    near, every = edges(case.max_length), case.cuts()
    if not near:
        return inapplicable("a single token has no earlier token")
    masks = [None, *([case.holes()[:1]] if "keep" in traits.supports else [])]
    seen = [later_gradients(case, mixer, near, mask) for mask in masks]
    if traits.selection_leak:
        last = worst(seen)
        return Result(
            last.passed, f"{last.detail}; values not compared: selection_leak is declared"
        )
    with torch.no_grad():
        for mask in masks:
            seen += later_values(case, mixer, every if mask is None else near, mask)
        x = case.input(rows=1)
        whole = call(mixer, x)
        for cut in ends(case.max_length):
            short = call(mixer, x[:, :cut])
            seen.append(case.agree(f"first {cut} tokens alone", short, whole[:, :cut]))
    found = worst(seen)
    if found.passed:
        return Result(True, f"{found.detail}; {len(every)} cuts of {case.max_length} tokens")
    return found.because(CAUSE)


def batches(case: Case, cuts: list[int]) -> list[list[int]]:
    """Divide cuts into batches."""
    size = max(1, TOKENS_AT_ONCE // case.max_length)
    return [cuts[first : first + size] for first in range(0, len(cuts), size)]


def repeat_mask(mask: Bool[Tensor, "1 l"] | None, rows: int) -> Bool[Tensor, "b l"] | None:
    """Return the mask for as many equal rows."""
    return None if mask is None else mask.expand(rows, -1)


# Under a mask only real tokens are compared: the outputs of padding mean nothing.


def later_gradients(
    case: Case, mixer: nn.Module, cuts: list[int], mask: Bool[Tensor, "1 l"] | None
) -> Result:
    """Compare the gradient after each cut, of outputs before it, with zero: one cut per row."""
    worst_seen: list[Result] = []
    for part in batches(case, cuts):
        x = case.input(rows=1).repeat(len(part), 1, 1).requires_grad_()
        before = case.before(part)[..., None]
        y = call(mixer, x, repeat_mask(mask, len(part)))
        direction = case.input(rows=1, salt=3)
        compared = before if mask is None else before & mask[..., None]
        gradient = torch.autograd.grad((y * direction * compared).sum(), x)[0]
        past = gradient.masked_fill(before, 0.0).abs().amax((1, 2))
        row = int(past.argmax())
        what = f"gradient past token {part[row]}{' under a mask' if mask is not None else ''}"
        wanted = gradient[row].where(before[row], 0.0)
        worst_seen.append(case.agree(what, gradient[row], wanted))
    return worst(worst_seen)


def later_values(
    case: Case, mixer: nn.Module, cuts: list[int], mask: Bool[Tensor, "1 l"] | None
) -> list[Result]:
    """Compare outputs before each cut with and without outliers after it: one cut per row."""
    seen = []
    x = case.input(rows=1)
    noise = case.noise(x)
    for part in batches(case, cuts):
        before = case.before([case.max_length, *part])[..., None]
        y = call(mixer, torch.where(before, x, noise), repeat_mask(mask, 1 + len(part)))
        compared = before if mask is None else before & mask[..., None]
        wanted, y = (each.where(compared, 0.0) for each in (y[:1].expand_as(y), y))
        differs = (y - wanted).abs().amax((1, 2))
        row = int(differs.argmax())
        cut = [case.max_length, *part][row]
        what = f"outliers from token {cut} on{' under a mask' if mask is not None else ''}"
        seen.append(case.agree(what, y[row], wanted[row]))
    return seen
