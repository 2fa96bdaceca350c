"""The contract kit's check of rounding: lower precisions stay near float64, however long it is."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from lra.models.contract.case import Case, Result, fix_seed, to_dtype, traits_of, worst
from lra.models.contract.passes import TYPES
from lra.models.contract.states import stream, streaming_mixer
from lra.models.mixer import Layout, Positions

LENGTHS, ENCODED, LAST = (40, 750, 3_000), (40, 250, 1_000), 20
"""Tokens of sequences, where encodings are tried (bfloat16 counts to 256), and those compared."""
FLOAT32, HALF = 3e-5, 0.06
"""Largest relative difference of the median token. Of 65 families: 2e-5 and 0.015; a recurrence
that computes in bfloat16 has 0.045 at any length from 3,000 on."""
GROWTH, LATELY, LEAST = 3.5, 2.5, 2.5e-3
"""How many times the error of the shortest sequence, or LEAST if it is less, and that of the middle
one, the error of the longest may be: both at most in all of 65 families."""
OFFSET = 1.0
"""Added to every token, so that sums grow with the length instead of its root."""
PRECISIONS = ("float32", "bfloat16", "autocast")


def check_rounding(case: Case) -> Result:
    """Errors of float32 and bfloat16 are small, and after 3,000 tokens as small as after 40."""
    return worst(_errors(case))


def _errors(case: Case) -> Iterator[Result]:
    here = replace(case, max_length=max(case.max_length, LENGTHS[-1]))
    ways = ["a pass"] + ["a stream"] * (not isinstance(streaming_mixer(case), str))
    traits, exact = traits_of(here.build()), dict[tuple[Any, ...], Tensor]()
    tried = [(Positions.none, *each, LENGTHS) for each in product(PRECISIONS, ways)]
    tried += [(each, "bfloat16", "a pass", ENCODED) for each in case.inside(traits)]
    for positions, precision, way, lengths in tried:
        dtype, auto = TYPES[precision]
        low, errors = to_dtype(here.mixer(positions=positions), dtype), list[float]()
        for length in lengths:
            # Rounded alike, so that errors of computing alone remain; OFFSET is in every token.
            x = (here.input(length, rows=1) + OFFSET).to(dtype)
            key = positions, dtype, length
            with torch.no_grad():
                if key not in exact:
                    plain = here.mixer(positions=positions)
                    plain.load_state_dict(low.state_dict())
                    exact[key] = _last(plain, x.to(here.dtype), "a pass")
                with torch.autocast(here.device, torch.bfloat16, enabled=auto):
                    y = _last(low, x, way)
            size = exact[key].norm(dim=-1).clamp(min=1e-3)
            errors.append(((y - exact[key]).norm(dim=-1) / size).median().item())
        limit = FLOAT32 if precision == "float32" else HALF
        short, middle, long = errors
        # A state has the precision of the input, and rounding may change what a hash chooses.
        chooses = traits.random_draws or traits.selection_leak or way == "a stream"
        if precision != "float32" and not chooses and long > LATELY * middle:
            limit = min(limit, GROWTH * max(short, LEAST))
        for length, error in zip(lengths, errors, strict=True):
            yield Result(
                error <= limit,
                f"{way} of {length} tokens in {precision}, positions={positions.value}: relative "
                f"difference of the median token from float64 {error:.1e}, wanted {limit:.0e}",
            ).because("a sum, a state or a table in a lower precision than the input")


def _last(mixer: Any, x: Tensor, way: str) -> Tensor:
    """Return the outputs of the last tokens, of a pass or of a stream in four pieces."""
    length = x.shape[1]
    with fix_seed(17):
        if way == "a pass":
            y: Tensor = mixer(x, Layout())
        else:
            pieces = [length // 4] * 3 + [length - 3 * (length // 4)]
            y, _ = stream(mixer, [*torch.split(x, pieces, 1)], mixer.initial_state(1, length))
    return y[:, -LAST:].double()
