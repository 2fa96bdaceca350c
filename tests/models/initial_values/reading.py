"""What reads layers out of released code without running what stands around them."""

import ast
import math
import os
import sys
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))
from laws import Draw

ROOT = Path(sys.argv[1])
"""A folder of clones."""
STATES = 16
"""Of state spaces that are compared."""


def read(file: str, names: str, **scope: Any) -> types.SimpleNamespace:
    """Return classes and functions of a file, by name, without what else the file runs."""
    known = {"torch": torch, "nn": nn, "F": F, "math": math, "os": os, "Tensor": Tensor, **scope}
    exec(_code(file, names), known)
    return types.SimpleNamespace(**{name: known[name] for name in names.split()})


@cache
def _code(file: str, names: str) -> types.CodeType:
    wanted = names.split()
    tree = ast.parse((ROOT / file).read_text())
    found = [node for node in ast.walk(tree) if getattr(node, "name", "") in wanted]
    nodes = [node for node in found if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    for node in (each for top in nodes for each in ast.walk(top)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            node.decorator_list = []
    future = ast.parse("from __future__ import annotations").body
    return compile(ast.Module([*future, *nodes], type_ignores=[]), file, "exec")


def initialised(layer: nn.Module, initialise: Callable[[nn.Module], object]) -> nn.Module:
    """Return a layer after its model's initialiser, which visits every module of it."""
    return layer.apply(initialise)


def taps(convolution: nn.Conv1d, index: int = 0, part: slice = slice(None)) -> Draw:
    """Return taps, and biases where there are some, of a convolution or of some channels of it."""
    found = {f"convolutions.{index}.weight": convolution.weight[part, 0]}
    if convolution.bias is not None:
        found[f"convolutions.{index}.bias"] = convolution.bias[part]
    return found


def plain(value: Any) -> Any:
    """Stand for a decorator."""
    return value


def nn_stub(*_: Any, **__: Any) -> nn.Module:
    """Stand for a part that no parameter of ours is compared with."""
    return nn.Identity()
