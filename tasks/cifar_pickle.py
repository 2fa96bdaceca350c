"""The batches of CIFAR-10's Python archive, read without unpickling.

    {b"data": uint8 [10000, 3072], b"labels": [6, 9, …], b"batch_label": …, b"filenames": […]}

A pickle is a program. Here its instructions are listed by `pickletools`, and the few that write
down numbers, bytes, texts, lists, tuples and dictionaries are followed. The names of what makes an
array (`numpy.core.multiarray._reconstruct`, `numpy.ndarray`, `numpy.dtype`, `_codecs.encode`) are
recognised as marks and never called: an array is a note of its shape, its type and its bytes. All
else is refused. Protocols 2 to 4 are read.
"""

import io
import pickletools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

from tasks.errors import BadData
from tasks.labels import whole_labels

CLASSES = 10
PLANES = 3 * 32 * 32
MOST_INSTRUCTIONS = 2_000_000
"""An official batch has 60,000."""
NUMBERS = {
    name: np.dtype(name) for name in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")
}  # fmt: skip
"""Types of arrays, by the name that pickles give them."""


class _Mark:
    """What a pickle names, or where a list of operands begins."""

    def __init__(self, name: str) -> None:
        self.name = name


BEGIN = _Mark("(")
RECONSTRUCT, NDARRAY, DTYPE, ENCODE = map(_Mark, ("_reconstruct", "ndarray", "dtype", "encode"))
NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
    ("numpy", "ndarray"): NDARRAY,
    ("numpy", "dtype"): DTYPE,
    ("_codecs", "encode"): ENCODE,
}


class _Type:
    """The type of an array's numbers."""

    def __init__(self, name: str) -> None:
        self.kept = NUMBERS[name]

    def build(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            raise ValueError("a type of numbers without an order of bytes")
        self.kept = self.kept.newbyteorder(state[1])


class _Array:
    """A note of an array."""

    content: np.ndarray | None = None

    def build(self, state: Any) -> None:
        _, shape, kind, by_columns, content = state
        if not isinstance(kind, _Type) or type(content) is not bytes:
            raise ValueError("an array of something else than whole numbers")
        if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError("an array without a shape")
        flat = np.frombuffer(content, kind.kept)
        self.content = flat.reshape(shape, order="F" if by_columns else "C")


class _Machine:
    """Follows the instructions; see the module's text."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        """Return what the pickle says. Raises ValueError and its kin where it says too much."""
        for number, (code, argument, _) in enumerate(pickletools.genops(io.BytesIO(content))):
            if number > MOST_INSTRUCTIONS:
                raise ValueError(f"more than {MOST_INSTRUCTIONS:,} instructions")
            name = code.name
            if name == "STOP":
                return self.stack.pop()
            if name in PUSHED:
                self.stack.append(PUSHED[name](argument))
            elif name in FOLLOWED:
                FOLLOWED[name](self, argument)
            elif name not in ("PROTO", "FRAME"):
                raise ValueError(f"the instruction {name}, which no array needs")
        raise ValueError("no end")

    def operands(self) -> list[Any]:
        """Take what stands behind the last mark."""
        found = []
        while (value := self.stack.pop()) is not BEGIN:
            found.append(value)
        return found[::-1]

    def tuple_of(self, number: int) -> None:
        taken = [self.stack.pop() for _ in range(number)]
        self.stack.append(tuple(taken[::-1]))

    def extend(self, values: list[Any]) -> None:
        into = self.stack[-1]
        if type(into) is not list:
            raise ValueError("values for a list that is none")
        into += values

    def fill(self, values: list[Any]) -> None:
        into = self.stack[-1]
        if type(into) is not dict or len(values) % 2:
            raise ValueError("values for a dictionary that is none")
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) not in (bytes, str):
                raise ValueError(f"a key of the type {type(key).__name__}")
            into[key] = value

    def name(self, module: Any, name: Any) -> None:
        if type(module) is not str or type(name) is not str:
            raise ValueError("a name that is no text")
        if (module, name) not in NAMES:
            raise ValueError(
                f"it asks for {module[:60]}.{name[:60]}, which no array needs: refused"
            )
        self.stack.append(NAMES[module, name])

    def reduce(self) -> None:
        """Note what a call would make; nothing is called."""
        given, mark = self.stack.pop(), self.stack.pop()
        if type(given) is not tuple:
            raise ValueError("operands that are none")
        if mark is RECONSTRUCT and given and given[0] is NDARRAY:
            self.stack.append(_Array())
        elif mark is DTYPE and given and type(given[0]) in (bytes, str):
            said = given[0] if type(given[0]) is str else given[0].decode("ascii")
            if said not in NUMBERS:
                raise ValueError(f"an array of {said[:20]!r}, wanted whole numbers")
            self.stack.append(_Type(said))
        elif mark is ENCODE and len(given) == 2 and type(given[0]) is str and given[1] == "latin1":
            self.stack.append(given[0].encode("latin-1"))
        else:
            raise ValueError("a call that makes no array")

    def build(self) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if not isinstance(made, _Array | _Type):
            raise ValueError("a state for what has none")
        made.build(tuple(_text(part) for part in state) if isinstance(made, _Type) else state)


def _text(part: Any) -> Any:
    return part.decode("ascii") if type(part) is bytes else part


def _latin(text: str) -> bytes:
    return text.encode("latin-1")  # as `pickletools` has decoded the bytes of Python 2


def _same(value: Any) -> Any:
    return value


PUSHED: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(
        ("BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES",
         "SHORT_BINBYTES", "BINBYTES8"), _same),
    **dict.fromkeys(("BINSTRING", "SHORT_BINSTRING"), _latin),
    "NONE": lambda _: None, "NEWFALSE": lambda _: False, "NEWTRUE": lambda _: True,
    "EMPTY_LIST": lambda _: [], "EMPTY_TUPLE": lambda _: (), "EMPTY_DICT": lambda _: {},
    "MARK": lambda _: BEGIN,
}  # fmt: skip
FOLLOWED: dict[str, Callable[[_Machine, Any], object]] = {
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), lambda m, at: m.memo.update({at: m.stack[-1]})),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda m, at: m.stack.append(m.memo[at])),
    "MEMOIZE": lambda m, _: m.memo.update({len(m.memo): m.stack[-1]}),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.operands())),
    "TUPLE1": lambda m, _: m.tuple_of(1),
    "TUPLE2": lambda m, _: m.tuple_of(2),
    "TUPLE3": lambda m, _: m.tuple_of(3),
    "APPEND": lambda m, _: m.extend([m.stack.pop()]),
    "APPENDS": lambda m, _: m.extend(m.operands()),
    "SETITEM": lambda m, _: m.fill([m.stack.pop(), m.stack.pop()][::-1]),
    "SETITEMS": lambda m, _: m.fill(m.operands()),
    "GLOBAL": lambda m, said: m.name(*said.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.name(*[m.stack.pop(), m.stack.pop()][::-1]),
    "REDUCE": lambda m, _: m.reduce(),
    "BUILD": lambda m, _: m.build(),
}  # fmt: skip


class Rows(NamedTuple):
    """A batch."""

    planes: UInt8[np.ndarray, "n 3072"]
    """Red, green and blue of 32 x 32 pixels each."""
    labels: UInt8[np.ndarray, " n"]


def read(content: bytes, where: str) -> Rows:
    """Return the rows of a batch.

    Args:
        content: The pickle.
        where: It comes from; opens the messages.

    Raises:
        BadData: It is damaged, or holds something else than a batch.
    """
    try:
        loaded = _Machine().run(content)
    except (ValueError, TypeError, LookupError, OverflowError, AttributeError) as error:
        said = " ".join(str(error).split())[:200]
        raise BadData(f"{where} cannot be read as a batch of CIFAR-10: {said}; fetch it again") \
            from error  # fmt: skip
    data = loaded.get(b"data") if type(loaded) is dict else None
    planes = data.content if isinstance(data, _Array) else None
    if planes is None or planes.dtype != np.uint8 or planes.ndim != 2 or planes.shape[1] != PLANES:
        found = "none" if planes is None else f"{planes.dtype} {planes.shape}"
        raise BadData(f"{where}: data are {found}, wanted an array uint8 [n, {PLANES}]")
    labels = loaded.get(b"labels")
    if isinstance(labels, _Array):
        labels = labels.content
    if not isinstance(labels, list | np.ndarray) or len(labels) != len(planes):
        raise BadData(f"{where}: wanted as many labels as the {len(planes)} rows of data")
    return Rows(np.ascontiguousarray(planes), whole_labels(labels, CLASSES, where))
