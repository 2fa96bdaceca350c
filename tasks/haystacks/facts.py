"""Facts of a small world in a long background (as BABILong, arXiv:2406.10149, with another world).

    Anna went to the attic. Rain fell on the hills. Anna took the apple. … Anna went to the dairy.
    Where is the apple? d

Six people go between six rooms, and take, drop and give things. Their first letters differ, so the
answer is one letter, and its accuracy is that of one of six classes. `kind` says how many facts
must be combined. Facts fill the row, or `facts` of them, in order, are in a background of noise or
of books of PG-19. BABILong has the facts of the bAbI tasks, and tests large language models.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import ClassVar

from lra.conf.choices import by_name
from lra.tasks.haystacks.books import BookRows
from lra.tasks.haystacks.byte_rows import Dice, RowContent, depth_of
from lra.tasks.haystacks.wordlist import PEOPLE, ROOMS
from lra.tasks.haystacks.world import FactKind, needed_facts, tell
from lra.tasks.task import Baseline

LONGEST = len("The bedroom is north of the bedroom. ")
QUESTION = len("\nWhere was the envelope before the bedroom? ")
ROOM_NAMES = re.compile("|".join(ROOMS).encode())
PERSON_NAMES = re.compile("|".join(PEOPLE).encode())
VERBS = (b"took", b"dropped", b"gave")


class Background(StrEnum):
    """What is between the facts."""

    noise = auto()
    """One paragraph again and again."""
    text = auto()
    """Books of PG-19; each split has others."""


@by_name
@dataclass(kw_only=True, eq=False)
class Facts(BookRows):
    """Answer a question about facts that sentences state in order."""

    name: ClassVar[str] = "facts"

    kind: FactKind = FactKind.where_thing
    """What is asked: where_person, where_thing, where_thing_before, which_side or who_has."""
    facts: int | None = None
    """Number of facts; null: as many as fit."""
    haystack: Background = Background.noise
    """Between the facts: noise or text."""

    def __post_init__(self) -> None:
        """Check the options."""
        told = "as many as fit" if self.facts is None else str(self.facts)
        least = needed_facts(self.kind)
        number = least if self.facts is None else self.facts
        self.rows_of(
            f"{self.kind}, {told} facts, in {self.haystack}",
            ending=QUESTION + 1,
            sentences=number * LONGEST,
            because=f"{number} facts of up to {LONGEST} bytes",
        )
        if number < least:
            raise ValueError(
                f"task.facts must be at least {least} for task.kind={self.kind}: got {self.facts}"
            )

    @property
    def reads_books(self) -> bool:
        """Whether the background is text of books."""
        return self.haystack is Background.text

    def _number(self, room: int) -> int:
        """Return the number of facts of a row."""
        return room // LONGEST if self.facts is None else self.facts

    def words(self, length: int) -> int:
        """Return a bound of the number of random words for a row."""
        return 7 * self._number(self.room(length)) + 50

    def content(self, dice: Dice, room: int) -> RowContent:
        """Return the facts in order, the question, and the first letter of the answer."""
        story = tell(dice, self._number(room), self.kind)
        facts = [fact.encode() for fact in story.facts]
        return RowContent(facts, f"\n{story.question} ".encode(), [story.answer[:1].encode()])

    def different_rows(self, length: int) -> float:
        """Return a lower bound of the binary logarithm of the number of different rows.

        Each fact that is not needed says at least that one of six people went to one of five rooms.
        """
        free = self._number(self.room(length)) - needed_facts(self.kind)
        return max(free, 0) * math.log2(len(PEOPLE) * (len(ROOMS) - 1))

    def labels(self, context: bytes, answer: bytes, number: int) -> Mapping[str, int]:
        """Return the depth of the last sentence that names what is asked; none for which_side."""
        del answer, number
        facts, _, question = context.rpartition(b"\n")
        if self.kind is FactKind.which_side:
            return {}
        subject = question.split()[-1 if self.kind is not FactKind.where_thing_before else 3]
        named = subject.rstrip(b"?")
        if self.kind is FactKind.where_person:
            return {"depth": depth_of(facts.rfind(b"%s went to" % named), facts)}
        last = max(facts.rfind(b"%s the %s" % (verb, named)) for verb in VERBS)
        return {"depth": depth_of(last, facts)}

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and the last name of the facts, on `split`."""
        names = PERSON_NAMES if self.kind is FactKind.who_has else ROOM_NAMES
        return [
            *super().baselines(split),
            self.said(
                "last_named",
                split,
                lambda text: names.findall(text.rpartition(b"\n")[0])[-1:],
                "This baseline answers the room (for who_has, the person) that the facts name "
                "last. A model with this score does not look up what is asked.",
            ),
        ]
