"""What every part of the campaign is given, and what it has found."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much of a campaign is wanted; the same for all of its parts."""

    folder: Path
    """Of this part alone: it works in it, and leaves its results there where something is wrong."""
    say: Callable[[str], None]
    seed: int = 0
    cases: int = 400
    """Of every kind of generated fault."""
    short: bool = False
    """The form of `make test`: a few faults of each kind."""

    def draw(self, *place: object) -> random.Random:
        """Return a generator of its own for each place, the same for the same seed."""
        return random.Random(f"{self.seed} {' '.join(map(str, place))}")

    def few(self, long: int, short: int) -> int:
        """Return a number of this campaign: `long`, or `short` in the short form."""
        return short if self.short else long


class LeftOut(Exception):
    """This machine cannot do a part; the message says why."""


@dataclass(slots=True)
class Found:
    """What a part applied, counted and found wrong."""

    part: str
    faults: Counter[str] = field(default_factory=Counter)
    """Applied, by kind."""
    figures: dict[str, float | str] = field(default_factory=dict)
    checks: int = 0
    """Comparisons that were made."""
    wrong: list[str] = field(default_factory=list)
    left_out: str = ""
    """Why the part did not run."""
    seconds: float = 0.0
    settings: dict[str, Any] = field(default_factory=dict)

    def check(self, holds: object, sentence: str) -> bool:
        """Note one comparison; `sentence` says what is wrong where it does not hold."""
        self.checks += 1
        if not holds:
            self.wrong.append(sentence)
        return bool(holds)

    def as_json(self) -> dict[str, Any]:
        """Return what is kept."""
        return asdict(self) | {"faults": dict(sorted(self.faults.items()))}
