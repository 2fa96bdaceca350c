"""How often Python looks for unreachable cycles.

To import PyTorch makes a million objects, none of them garbage, and to look through them again and
again takes a fifth of that time. A program that composes and plans can do so more seldom; where
memory is measured, all is as usual.
"""

import gc

USUAL = gc.get_threshold()
"""New objects after which the youngest are looked through, and rounds for the older ones."""


def seldom() -> None:
    """Look through the youngest objects a 64th as often."""
    gc.set_threshold(64 * USUAL[0], *USUAL[1:])


def usual() -> None:
    """Look through objects as often as Python does by itself."""
    gc.set_threshold(*USUAL)
