"""Every family against its literal form: outputs and gradients in float64, over pairs of options.

The literal form of a family is `literal(mixer, x, case)` of the module of its name beside this one,
which imports PyTorch alone. Its `GRIDS` say over which values of the family's and the site's
options the two are compared: rows are built in which any two values meet. `length`, `masks` (of
`Layout`, or a source) and `segment`, `memory` (of a stream) are options of the comparison; `small`
takes blocks and passes of a few elements, so that short sequences cross their borders.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from copy import copy
from functools import cache
from importlib import import_module
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from lra.composition.binding import schema
from lra.models.mixer import Layout, Positions, Site
from tests.attention import builder, compare, drawn, holes, streamed
from tests.contracts.choices_of_configs import MODELS

WITHOUT = {
    "rnnsearch": "the literal form of its name, beside the tests of its stack",
    "tlb": "the loop of its definition, beside the tests of its stack",
}
"""Families that have no literal form of a mixer, and what they are compared with."""
FORMS = {
    path.stem: import_module(f"tests.literal.{path.stem}")
    for path in sorted(Path(__file__).parent.glob("*.py"))
    if path.stem in MODELS.keys() - WITHOUT
}
SMALL: dict[str, Any] = {
    "banded.layout.PASS_ELEMENTS": {"cpu": 500},
    "gated.blockwise.FEW": 1,
    "hashing.collisions.CHUNK": 4,
    "hashing.collisions.CODE_ELEMENTS": 1,
    "hashing.collisions.PASS_ELEMENTS": {"cpu": 300},
    "hashing.collisions.TABLE_ELEMENTS": 1,
    "hashing.lsh_lists.PASS_ELEMENTS": {"cpu": 500},
    "linear.causal_product.SMALL": 0,
    "linear.features.CPU_BLOCK": 1,
    "linear.features.MINIMUM_ROWS": 16,
    "linear.feature_core.is_cheaper": lambda *_, **__: False,
    "linear.gaussian_product.KEYS": 7,
    "linear.gaussian_product.TILE_ELEMENTS": {"cpu": 1},
    "recurrent.exponential_lstm.TOKENS_AT_ONCE": 8,
    "recurrent.selective_scan.BLOCK": 7,
    "reflections.ROWS": 16,
    "sparse.block_choice.PASS_ELEMENTS": {"cpu": 1},
    "sparse.block_lists.PASS_ELEMENTS": {"cpu": 4000},
    "sparse.chosen_blocks.PASS_ELEMENTS": {"cpu": 1},
    "sparse.entry_attention.ROWS": 7,
    "sparse.key_sets.FINEST": 4,
    "sparse.key_sets.PASS_ELEMENTS": {"cpu": 200},
    "state_space.low_rank.BLOCK": 1,
    "state_space.low_rank.ROWS_BITS": 2,
    "synthetic.BLOCK_ELEMENTS": {"cpu": 2 * 4 * 18},
    "synthetic.ROWS": 4,
}
"""What says in `lra.models.ops` how much is worked on at once, and less of it."""
OF_A_CASE = {
    "length": 13, "masks": "", "small": False, "segment": None, "memory": None,
    "causal": False, "positions": "none",
}  # fmt: skip


def rows(grid: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """Choose rows in which any two values of two options meet, always the same."""
    places = {name: range(len(values)) for name, values in grid.items()}

    def meetings(row: dict[str, int]) -> set[tuple[tuple[str, int], ...]]:
        return {*combinations(((name, row[name]) for name in grid if name in row), 2)}

    missing = {
        ((one, i), (other, j))
        for one, other in combinations(grid, 2)
        for i in places[one]
        for j in places[other]
    }
    while missing:
        row = dict(min(missing))
        for name in sorted((each for each in grid if each not in row), key=lambda n: -len(grid[n])):
            row[name] = max(
                places[name], key=lambda i, n=name: len(missing & meetings(row | {n: i}))
            )
        missing -= meetings(row)
        yield {name: values[row[name]] for name, values in grid.items()}


CASES = [
    pytest.param(family, row, id=f"{family}-{'-'.join(map(str, row.values()))}")
    for family, form in FORMS.items()
    for grid in form.GRIDS
    for row in rows(grid)
]


def masks(names: str, length: int) -> dict[str, Tensor]:
    """Return the masks of two rows by name."""
    i, third = torch.arange(length), length // 3
    every = {
        "keep": holes(length, real=0.7, end=length - third),
        "document": torch.stack((4 - (i > third).long() + 7 * (i > 2 * third), i // (third + 2))),
        "prefix": torch.tensor([5, 0]),
        "start": torch.tensor([3, 11]),
        "is_global": torch.rand(2, length, generator=torch.Generator().manual_seed(8)) < 0.2,
    }
    return {name: every[name] for name in names.replace("source", "keep").split()}


@cache
def defaults(family: str) -> dict[str, Any]:
    """Return what options of the site and of the family are where nothing is said."""
    options = {**schema(Site), **schema(MODELS[family])}
    return {name: copy(default) for name, (_, default) in options.items()}


def found(mixer: Any, x: Tensor, layout: Layout, case: Any) -> Tensor:
    """Return what the mixer gives: in one pass, in segments, or of another source."""
    if case.segment is not None:
        return streamed(mixer.train(), x, case.segment, case.memory, detached=True)[0]
    if case.source is not None:
        return mixer.attend(x, Layout(), case.source, layout)
    y: Tensor = mixer(x, layout)
    return y


@pytest.mark.share(4)
@pytest.mark.parametrize(("family", "row"), CASES)
def test_it_is_its_literal_form(family: str, row: dict[str, Any]) -> None:
    form, given = FORMS[family], OF_A_CASE | row
    options = {name: value for name, value in row.items() if name not in OF_A_CASE}
    usual = {"moved": 0.3, "causal": given["causal"], "positions": Positions(given["positions"])}
    mixer = builder(MODELS[family], **usual)(**options)
    if hasattr(form, "prepare"):
        form.prepare(mixer)
    across = "source" in given["masks"]
    length = given["length"]
    layout = Layout(**masks(given["masks"], 7 if across else length))
    width = options.get("width", 12)
    source = drawn(2, 7, width, seed=1).requires_grad_() if across else None
    case = SimpleNamespace(**defaults(family) | layout._asdict() | given | options, source=source)
    x = drawn(2, length, width).requires_grad_()
    with ExitStack() as stack:
        for name, value in SMALL.items() if given["small"] else ():
            stack.enter_context(mock.patch(f"lra.models.ops.{name}", value))
        real = 1 if layout.keep is None or across else layout.keep[..., None]
        seen = found(mixer, x, layout, case)
        blank = x * real if "keep" in mixer.traits.supports else x
        wanted = form.literal(mixer, blank, case)
        leaves = [x, *([source] if across else []), *mixer.parameters()]
        assert (wanted * real).abs().max() > 1e-3
        tolerance = {"atol": 1e-10, "rtol": 1e-9, "looser": 10} | getattr(form, "TOLERANCE", {})
        compare(seen * real, wanted * real, leaves, **tolerance)


def test_every_family_has_a_literal_form_or_another_to_be_compared_with() -> None:
    assert sorted({*FORMS, *WITHOUT}) == sorted(MODELS)
    assert not FORMS.keys() & WITHOUT.keys()


def test_any_two_values_meet_in_a_row() -> None:
    grid = {"a": [1, 2, 3], "b": [4, 5], "c": [6, 7], "d": [8]}
    chosen = [*rows(grid)]
    for one, other in combinations(grid, 2):
        met = {(row[one], row[other]) for row in chosen}
        assert len(met) == len(grid[one]) * len(grid[other])
    assert len(chosen) < 12
