"""Compares arrays with the shapes in annotations while tests run; LRA_SHAPES=0 does not.

jaxtyping's own hook wraps every function and binds the shapes anew at every call, which doubles the
time of the tests. This one wraps the functions whose annotations hold a shape, and asks jaxtyping
once for each combination of types and shapes that the parameters with shapes meet. Where every
dimension is a name or a number, sizes count by which are equal, to each other or to a number that
is written: at another length nothing else would be compared. Of each function a test compares the
first calls. Plain types are mypy's work.
"""

import ast
import hashlib
import re
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from functools import cache, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from inspect import Parameter, get_annotations, isclass, signature
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import numpy as np
from beartype import beartype
from jaxtyping import AbstractArray, jaxtyped
from torch import Tensor

PACKAGES = ("lra.models.", "lra.tasks.", "lra.runners.", "peers.", "tests.literal.")
WRAPPER = "_with_its_shapes_compared"
ARRAYS = (Tensor, np.ndarray)
CALLS = 40
"""So many calls of a function are compared in each test."""
SEVERAL = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_QUOTED = re.compile(r"""["']([^"']*)["']""")
_SPELT = re.compile(r"\b(Float|Int|UInt|Bool|Complex|Num|Real|Inexact|Integer|Shaped)\w*\[")


def has_shape(annotation: object) -> bool:
    """Tell whether an annotation names a shape, anywhere in it."""
    if isinstance(annotation, str):
        return _SPELT.search(annotation) is not None
    if isinstance(annotation, type) and issubclass(annotation, AbstractArray):
        return True
    if isinstance(annotation, list):  # the arguments of a Callable
        return any(map(has_shape, annotation))
    return any(map(has_shape, typing.get_args(annotation)))


def numbers_in(annotation: object) -> frozenset[int] | None:
    """Return the sizes that an annotation writes as numbers; None where it computes any.

    1 is always among them, for what is broadcast.
    """
    if isinstance(annotation, str):
        dims = _QUOTED.findall(annotation) if has_shape(annotation) else []
    elif isinstance(annotation, type) and issubclass(annotation, AbstractArray):
        dims = [annotation.dim_str]
    else:
        parts = annotation if isinstance(annotation, list) else typing.get_args(annotation)
        return _together(parts)
    words = [word.lstrip("#*") for each in dims for word in each.split()]
    if not all(word.isidentifier() or word.isdecimal() or word == "..." for word in words):
        return None
    return frozenset({1, *(int(word) for word in words if word.isdecimal())})


def _together(annotations: Iterable[object]) -> frozenset[int] | None:
    found = [numbers_in(each) for each in annotations]
    return None if None in found else frozenset({1}).union(*filter(None, found))


def compared(thing: Any) -> Any:
    """Return a function or class that compares its shapes, where it has any."""
    code = getattr(thing, "__code__", None)
    if code not in READ and not any(map(has_shape, get_annotations(thing).values())):
        return thing
    return jaxtyped(typechecker=beartype)(thing) if isclass(thing) else _remembered(thing)


class Shaped:
    """What the annotations of a function say, and what was compared with them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        annotations = {n: each for n, each in get_annotations(function).items() if has_shape(each)}
        self.names, numbers = {*annotations}, _together(annotations.values())
        self.written = None if numbers is None else {number: number for number in numbers}
        parameters = signature(function).parameters
        self.several = any(parameters[each].kind in SEVERAL for each in self.names - {"return"})
        self.places = [place for place, name in enumerate(parameters) if name in self.names]
        self.met: dict[object, set[object]] = {}
        self.calls = 0


READ: dict[CodeType, Shaped] = {}
"""Of each code: a function inside another one is made anew by each call of that."""


def begin() -> None:
    """Compare the first calls again, because a test begins."""
    for shaped in READ.values():
        shaped.calls = 0


def _remembered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is checked where it meets facts for the first time.

    What checks is made then: that of a function takes a millisecond, and most are not called.
    """
    if function.__code__ not in READ:
        READ[function.__code__] = Shaped(function)
    shaped = READ[function.__code__]
    checking = cache(jaxtyped(typechecker=beartype))

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        shaped.calls += 1
        if shaped.calls > CALLS:
            return function(*args, **kwargs)
        sizes = None if shaped.written is None else shaped.written.copy()
        if shaped.several:
            key: tuple[object, ...] = _facts(args, sizes), _facts(kwargs, sizes)
        else:
            count, names = len(args), shaped.names
            key = (
                count,
                *[_facts(args[place], sizes) for place in shaped.places if place < count],
                *[(name, _facts(value, sizes)) for name, value in kwargs.items() if name in names],
            )
        known = shaped.met.get(key)
        if known is None:
            result = checking(function)(*args, **kwargs)
            shaped.met[key] = {_facts(result, sizes)}
            return result
        result = function(*args, **kwargs)
        if "return" in shaped.names and (found := _facts(result, sizes)) not in known:
            jaxtyped(typechecker=beartype)(wraps(function)(lambda *_, **__: result))(
                *args, **kwargs
            )
            known.add(found)
        return result

    return wrapper


def _facts(value: Any, sizes: dict[int, int] | None) -> object:
    """Return what a check of a value depends on, sizes by when each was met first."""
    kind = type(value)
    if kind is Tensor or issubclass(kind, ARRAYS):
        if sizes is None:
            return kind, value.shape, value.dtype
        # Below zero, apart from numbers that are written.
        return kind, tuple([sizes.setdefault(n, -len(sizes)) for n in value.shape]), value.dtype
    if issubclass(kind, tuple | list):
        return kind, tuple([_facts(each, sizes) for each in value])
    if issubclass(kind, dict):
        return kind, tuple(value), tuple([_facts(each, sizes) for each in value.values()])
    return kind


def _decorate(tree: ast.Module) -> None:
    """Put the wrapper around every function and class: next to the first, around the second."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            place = 0 if isinstance(node, ast.ClassDef) else len(node.decorator_list)
            wrapper = ast.copy_location(ast.Name(WRAPPER, ast.Load()), node)
            node.decorator_list.insert(place, wrapper)


@cache
def _ending() -> str:
    """Return what bytecode ends with that this version of this file made."""
    return f".shapes-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]}.pyc"


def _renamed(path: str) -> str:
    return path.removesuffix(".pyc") + _ending() if path.endswith(".pyc") else path


class _Loader(SourceFileLoader):
    """Keeps its bytecode beside that of everybody else, under a name of its own."""

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:
        """Compile a source whose functions and classes are decorated."""
        tree = ast.parse(data, path)
        _decorate(tree)
        code: CodeType = compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)
        return code

    def get_data(self, path: str) -> bytes:
        """Read a source, or bytecode of ours."""
        return super().get_data(_renamed(path))

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write bytecode."""
        super().set_data(_renamed(path), data, _mode=_mode)  # type: ignore[call-arg]

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__[WRAPPER] = compared
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not f"{name}.".startswith(PACKAGES):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Compare the shapes of every module of ours that is imported from now on."""
    sys.meta_path.insert(0, _Finder())
