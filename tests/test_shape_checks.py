"""The tests' own check of shapes, without which a wrong annotation would go unnoticed."""

import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from tests import shape_checks
from tests.shape_checks import WRAPPER, compared, has_shape

Heads = tuple[Float[Tensor, "b t"], int]


@pytest.mark.parametrize(
    ("annotation", "shaped"),
    [
        (Float[Tensor, "b t"], True),
        (Float[Tensor, "b t"] | None, True),
        (list[tuple[int, Float[Tensor, "..."]]], True),
        (Heads, True),
        ("dict[str, Float[Tensor, 'b t']]", True),
        (Tensor, False),
        ("Tensor | None", False),
        (dict[str, int], False),
        (None, False),
    ],
)
def test_shapes_are_found_in_annotations(annotation: object, shaped: bool) -> None:
    assert has_shape(annotation) == shaped


def test_functions_without_shapes_stay_what_they_are() -> None:
    def plain(x: Tensor, count: int) -> Tensor:
        return x * count

    assert compared(plain) is plain


def test_a_wrong_shape_is_an_error() -> None:
    @compared
    def pairs(x: Float[Tensor, "b t"], y: Float[Tensor, " b"]) -> Float[Tensor, "t b"]:
        return x.mT if len(y) < 5 else x

    pairs(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(Exception, match="Type-check error whilst checking the parameters"):
        pairs(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(Exception, match="Type-check error whilst checking the return value"):
        pairs(torch.zeros(5, 3), torch.zeros(5))


def test_each_test_compares_the_first_calls() -> None:
    @compared
    def pairs(x: Float[Tensor, "b t"], y: Float[Tensor, " b"]) -> None:
        del x, y

    for _ in range(shape_checks.CALLS):
        pairs(torch.zeros(2, 3), torch.zeros(2))
    pairs(torch.zeros(2, 3), torch.zeros(3))
    shape_checks.begin()
    with pytest.raises(Exception, match="Type-check error"):
        pairs(torch.zeros(2, 3), torch.zeros(3))


def test_a_function_that_is_made_anew_is_read_once() -> None:
    def made() -> Any:
        def plain(x: Float[Tensor, "b t"]) -> Float[Tensor, "t b"]:
            return x.mT

        return compared(plain)

    made()(torch.zeros(2, 3))
    before = len(shape_checks.READ)
    made()(torch.zeros(2, 3))
    assert len(shape_checks.READ) == before
    assert made().__wrapped__.__code__ in shape_checks.READ


def test_each_combination_is_compared_and_the_function_called_once() -> None:
    calls = []

    @compared
    def halves(
        x: Float[Tensor, "b t"], *, whole: bool = False, y: Float[Tensor, "b t"] | None = None
    ) -> Float[Tensor, "b half"]:
        calls.append(x)
        return x if not whole else x.flatten()

    for _ in range(3):
        halves(torch.zeros(2, 4))
        halves(torch.zeros(2, 4), y=torch.zeros(2, 4))
    assert len(calls) == 6
    for _ in range(2):  # the result differs although no shape of the parameters does
        with pytest.raises(Exception, match="checking the return value"):
            halves(torch.zeros(2, 4), whole=True)
    assert len(calls) == 8
    for wrong in (torch.zeros(2, 5), torch.zeros(2, 4, dtype=torch.long), torch.zeros(2)):
        with pytest.raises(Exception, match="checking the parameters"):
            halves(torch.zeros(2, 4), y=wrong)
    assert len(calls) == 8


def test_sizes_count_by_which_are_equal_and_by_numbers_that_are_written(monkeypatch) -> None:
    checked = []
    real = shape_checks.jaxtyped

    def noting(**options):
        def decorate(function):
            checking = real(**options)(function)
            return lambda *args: checked.append(args) or checking(*args)

        return decorate

    monkeypatch.setattr(shape_checks, "jaxtyped", noting)

    @compared
    def pairs(
        x: Float[Tensor, "b t 3"], y: Float[Tensor, "#b t"] | None = None
    ) -> Float[Tensor, "t b"]:
        return x[..., 0].mT

    @compared
    def next_one(x: Float[Tensor, "b t"], y: Float[Tensor, "b t+1"]) -> None:
        pass

    for batch, length in ((4, 5), (6, 7), (2, 50)):
        pairs(torch.zeros(batch, length, 3))
        pairs(torch.zeros(batch, length, 3), torch.zeros(batch, length))
        pairs(torch.zeros(batch, length, 3), torch.zeros(1, length))
        next_one(torch.zeros(batch, length), torch.zeros(batch, length + 1))
    assert len(checked) == 3 + 3  # each combination once; a sum at every length
    for x, y in (
        ((4, 5, 4), (4, 5)),
        ((4, 5, 3), (2, 5)),
        ((5, 5, 3), (4, 5)),
        ((4, 3, 3), (4, 4)),
    ):
        with pytest.raises(Exception, match="checking the parameters"):
            pairs(torch.zeros(x), torch.zeros(y))
    with pytest.raises(Exception, match="checking the parameters"):
        next_one(torch.zeros(4, 5), torch.zeros(4, 7))


def test_fields_of_dataclasses_are_compared() -> None:
    @compared
    @dataclass
    class Both:
        x: Float[Tensor, "b t"]
        y: Float[Tensor, " b"]

    Both(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(Exception, match="Type-check error"):
        Both(torch.zeros(2, 3), torch.zeros(3))


@pytest.mark.skipif(os.environ.get("LRA_SHAPES") == "0", reason="LRA_SHAPES=0 compares none")
def test_it_is_at_work_in_the_packages() -> None:
    import lra.tasks.classification.pathfinder.disc_distance as module

    assert hasattr(module, WRAPPER)
    disc, picture = np.full((3, 3), 255, np.uint8), np.zeros((8, 8), np.uint8)
    assert module.disc_positions(picture[None], disc).shape == (1, 2, 2)
    with pytest.raises(Exception, match="Type-check error"):
        module.disc_positions(picture, disc)


def test_bytecode_is_kept_beside_that_of_everybody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(shape_checks, "PACKAGES", ("kept_shapes.",))
    monkeypatch.syspath_prepend(tmp_path)
    shape_checks.install()
    (tmp_path / "kept_shapes.py").write_text(
        "from jaxtyping import Float\nfrom torch import Tensor\n"
        "def square(x: Float[Tensor, 'n n']): return x\n"
    )
    decorated = []
    real = shape_checks._decorate
    monkeypatch.setattr(shape_checks, "_decorate", lambda tree: decorated.append(real(tree)))
    for _ in range(2):
        monkeypatch.delitem(sys.modules, "kept_shapes", raising=False)
        square = importlib.import_module("kept_shapes").square
        square(torch.zeros(2, 2))
        with pytest.raises(Exception, match="Type-check error"):
            square(torch.zeros(2, 3))
    assert len(decorated) == 1
    (kept,) = (tmp_path / "__pycache__").iterdir()
    assert kept.name.endswith(shape_checks._ending())
