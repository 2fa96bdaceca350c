"""How often Python's garbage collector looks for unreachable cycles.

The import of PyTorch creates a million objects, none of them garbage; the collector takes a fifth
of the time of the import. Programs that compose and plan call `seldom` to save this time. Before
memory is measured, `usual` restores Python's own setting.
"""

import gc

USUAL = gc.get_threshold()
"""Python's thresholds: new objects, and collections of younger generations, until a collection."""


def seldom() -> None:
    """Collect the youngest generation 64 times less often than Python does by default."""
    gc.set_threshold(64 * USUAL[0], *USUAL[1:])


def usual() -> None:
    """Restore Python's default frequency of collections."""
    gc.set_threshold(*USUAL)
