"""The contract kit's check of work by method: each method does that of `forward`."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import cast

import torch

from lra.models.contract.calls import STATE_ENTRIES, entries_of, plain_call
from lra.models.contract.case import Case, Result, traits_of
from lra.models.contract.counting import ElementCounter, OperationCounter
from lra.models.contract.facts import masks_for
from lra.models.contract.passes import Path
from lra.models.contract.states import stream
from lra.models.mixer import Remembers

LENGTH = 512
COUNTED = ("operations", "numbers written")
ROOM = 2.0
"""How much more than the cheapest way another may compute."""
MEMORY_ROOM = 2.5
"""The same where a state is read, whose memory may be as long again: of 65 families, 1.83."""


def check_methods(case: Case) -> Result:
    """Every method, mode and mask takes the same work, and a step wherever it stands."""
    entries = entries_of(case)
    here = replace(case, max_length=max(case.max_length, LENGTH), device="cpu")
    plain = plain_call(here)._replace(length=LENGTH, rows=1)
    calls = [
        plain._replace(entry=entry, training=training, gradient=gradient)
        for entry in entries
        if entry not in STATE_ENTRIES
        for training, gradient in product((False, True), ("recorded", "no_grad"))
    ]
    calls += [plain._replace(mask=mask) for mask in masks_for(traits_of(case.build()))]
    work = {call: _work(Path(here, call).run) for call in calls}
    # A fused kernel whose products cannot be counted is compared with none.
    calls = [call for call in calls if work[call][0]] or calls
    plainly = [call for call in calls if call.mask == "none"]
    for number, (what, several) in enumerate(zip(COUNTED, (calls, plainly), strict=True)):
        for call in several:
            # Fused kernels of one mode write less; under a mask there may be less to do.
            alike = [e for e in plainly if not number or e == call._replace(entry=e.entry)]
            least = min(alike, key=lambda each: work[each][number])
            count, fewest = work[call][number], max(work[least][number], 1)
            if count > ROOM * fewest:
                return Result(
                    False,
                    f"{count:,} {what} in {call!r}, {count / fewest:.1f} times those in {least!r}",
                )
    streams = {*STATE_ENTRIES} & {*entries}
    return _steps(here, work[plain][0]) if streams else Result(True, "methods cost alike")


def _work(run: Callable[[], object]) -> tuple[int, int]:
    """Return the operations of a pass, and the numbers that it writes."""
    with OperationCounter() as products, ElementCounter() as elements:
        run()
    return products.operations, elements.written


def _steps(case: Case, plain: int) -> Result:
    """Compare a piece of a stream with `forward`, and a single token early with one late."""
    mixer, x, counts = case.mixer(), case.input(LENGTH, rows=1), []
    with torch.no_grad():
        for place, size in ((0, LENGTH), (LENGTH // 8, 1), (LENGTH - 1, 1)):
            state = cast(Remembers, mixer).initial_state(1, LENGTH)
            if place:
                _, state = stream(mixer, [x[:, :place]], state)
            piece = x[:, place : place + size]
            counts.append(_work(partial(stream, mixer, [piece], state, first=place)))
    whole, early, late = counts
    if whole[0] > MEMORY_ROOM * max(plain, 1):
        return Result(
            False, f"{whole[0]:,} operations by extend with a state, by forward {plain:,}"
        )
    for what, before, after in zip(COUNTED, early, late, strict=True):
        if after > ROOM * max(before, 1):
            return Result(
                False, f"a step after {LENGTH - 1} tokens: {after:,} {what}, early {before:,}"
            )
    return Result(True, "a step costs the same wherever it stands")
