"""Mixers of a stranger, each with one fault: in its constructor, at work, or from outside.

What happens from outside (a signal, a storage that refuses) is said by the environment and leaves
no trace in the configuration, so that the same command may be given again without it:

    LRA_TEST_SIGNAL    "NUMBER CALL FILE": at this call, in the first process to make the file
    LRA_TEST_REFUSAL   "ERRNO NAME WORKS": from so many renames to that name on, in every child
"""

import ctypes
import multiprocessing
import os
import sys
import time
from pathlib import Path

import numpy as np

from lra.conf import system_errors
from lra.models.families.identity import Identity
from lra.models.mixer import Unsupported


def _segfault():
    ctypes.string_at(0)


def _raise(error):
    raise error


CONSTRUCTORS = {
    "raises": lambda: _raise(KeyError("no such option")),
    "refuses": lambda: _raise(Unsupported("cannot do this")),
    "surrogate": lambda: _raise(ValueError("half \udc80 a pair")),
    "exits": lambda: sys.exit(3),
    "leaves": lambda: os._exit(0),
    "segfaults": _segfault,
    "hangs": lambda: time.sleep(600),
    "huge": lambda: np.ones(1 << 40, dtype=np.uint8),
    "no file": lambda: Path("/no/such/file").read_text(),
}
AT_WORK = {
    "raises": lambda: _raise(KeyError("in the forward pass")),
    "no memory": lambda: np.ones(1 << 40, dtype=np.uint8),
    "hangs": lambda: time.sleep(12),  # longer than the limit, and the signal at its end
    "wrapped": lambda: _raise_wrapped(),
    "said": lambda: _raise(
        RuntimeError("unable to write to file </torch_1>: No space left on device")
    ),
    "temporary": lambda: _raise(OSError(28, os.strerror(28), "/tmp/of-a-stranger")),
}


def _raise_wrapped():
    try:
        raise OSError(122, os.strerror(122), "/home/of-a-stranger/cache")
    except OSError as error:
        raise RuntimeError("the cache is unusable") from error


class Faulty(Identity):
    """An identity that fails: in its constructor, or at the n-th call of the forward pass."""

    def __init__(
        self, site, *, bias: bool = True, constructor: str = "", work: str = "", call: int = 1
    ):
        super().__init__(site, bias=bias)
        if constructor == "reads weights":
            self.total = float(self.v_proj.weight.sum())  # which the meta device does not have
        elif constructor:
            CONSTRUCTORS[constructor]()
        self.work, self.call, self.calls = work, call, 0

    def forward(self, x, layout):
        self.calls += 1
        if self.work and self.calls == self.call:
            AT_WORK[self.work]()
        _signal(self.calls)
        return super().forward(x, layout)


def _signal(calls):
    said = os.environ.get("LRA_TEST_SIGNAL")
    if said is None:
        return
    number, call, file = said.split(maxsplit=2)
    if calls == int(call):
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), int(number))


def _refuse_renames():
    number, name, works = os.environ["LRA_TEST_REFUSAL"].split()
    system_errors.WAITS_S = ()
    real, left = Path.replace, int(works)

    def refuse(self, target):
        nonlocal left
        left -= Path(target).name == name
        if left < 0:
            raise OSError(int(number), os.strerror(int(number)), str(target))
        return real(self, target)

    Path.replace = refuse


if "LRA_TEST_REFUSAL" in os.environ and multiprocessing.parent_process() is not None:
    _refuse_renames()
