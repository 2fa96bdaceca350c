"""PyTorch's shape functions, asked without importing its compiler.

Some of them are marked as nothing to compile, which PyTorch does at their first call: it imports
the compiler for it, and that takes as long as to import all else.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import chain
from types import FunctionType
from typing import Any

import torch
import torch._refs.nn.functional
from torch._decomp import global_decomposition_table

COMPILER = "torch._dynamo"
MARK = "__dynamo_disable"
"""Where PyTorch keeps what it calls in place of a marked function."""


@contextmanager
def compiler_left_out() -> Iterator[None]:
    """Call PyTorch's shape functions directly, unless the compiler is imported already."""
    functions = () if COMPILER in sys.modules else _marked()
    for function in functions:
        setattr(function, MARK, function)
    try:
        yield
    finally:
        for function in functions:
            vars(function).pop(MARK, None)


@cache
def _marked() -> tuple[FunctionType, ...]:
    """Return the functions that PyTorch would mark, found in the closures of other functions."""
    whole: Any = torch
    tables: list[Mapping[Any, Any]] = [
        *(global_decomposition_table[kind] for kind in ("meta", "post_autograd")),
        *(vars(module) for module in (whole._refs, whole._refs.nn.functional)),
    ]
    marker = whole._disable_dynamo(lambda: None).__code__
    waiting = [*chain.from_iterable(table.values() for table in tables)]
    seen, found = set[FunctionType](), list[FunctionType]()
    while waiting:
        function = waiting.pop()
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        inside = [cell.cell_contents for cell in function.__closure__ or ()]
        waiting += inside
        if function.__code__ is marker:
            found += [each for each in inside if isinstance(each, FunctionType)]
    return tuple(each for each in dict.fromkeys(found) if not hasattr(each, MARK))
