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
    """In a causal mixer, later tokens change nothing, at any cut; `sight` compares gradients."""
    mixer = case.mixer()
    traits = traits_of(mixer)
    if not traits.causal or traits.selection_leak:
        return inapplicable("traits.causal is False, or traits.selection_leak is True")
    near, every, x = edges(case.max_length), case.cuts(), case.input(rows=1)
    if not near:
        return inapplicable("a single token has no earlier token")
    with torch.no_grad():
        seen = later_values(case, mixer, every, None)
        if "keep" in traits.supports:
            seen += later_values(case, mixer, near, case.holes()[:1])
        whole = call(mixer, x)
        for cut in ends(case.max_length):
            short = call(mixer, x[:, :cut])
            seen.append(case.agree(f"first {cut} tokens alone", short, whole[:, :cut]))
    found = worst(seen)
    if found.passed:
        return Result(True, f"{found.detail}; {len(every)} cuts of {case.max_length} tokens")
    return found.because(CAUSE)


def later_values(
    case: Case, mixer: nn.Module, cuts: list[int], mask: Bool[Tensor, "1 l"] | None
) -> list[Result]:
    """Compare outputs before each cut with and without outliers after it: one cut per row.

    Under a mask only real tokens are compared: the outputs of padding mean nothing.
    """
    seen, x, size = [], case.input(rows=1), max(1, TOKENS_AT_ONCE // case.max_length)
    noise = case.noise(x)
    for part in (cuts[first : first + size] for first in range(0, len(cuts), size)):
        before = case.before([case.max_length, *part])[..., None]
        keep = None if mask is None else mask.expand(1 + len(part), -1)
        y = call(mixer, torch.where(before, x, noise), keep)
        compared = before if mask is None else before & mask[..., None]
        wanted, y = (each.where(compared, 0.0) for each in (y[:1].expand_as(y), y))
        row = int((y - wanted).abs().amax((1, 2)).argmax())
        cut = [case.max_length, *part][row]
        what = f"outliers from token {cut} on{' under a mask' if mask is not None else ''}"
        seen.append(case.agree(what, y[row], wanted[row]))
    return seen
