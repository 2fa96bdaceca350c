"""A small world: people go between rooms, and take, drop and give things."""

from enum import StrEnum, auto
from typing import NamedTuple

from lra.tasks.haystacks.byte_rows import Dice
from lra.tasks.haystacks.wordlist import PEOPLE, ROOMS, THINGS

OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
SIDES = [
    (first, side, first + step)
    for first in range(6)
    for side, step, there in (("west", 1, first % 3 < 2), ("north", 3, first < 3))
    if there
]
"""Neighbours (a, side, b) of a plan with two lines of three rooms: place a is on that side of b."""


class FactKind(StrEnum):
    """What is asked."""

    where_person = auto()
    """The room of a person: the last move of that person decides it."""
    where_thing = auto()
    """The room of a thing: who took it, and where that person went."""
    where_thing_before = auto()
    """The room in which a thing was before the room where it is now."""
    which_side = auto()
    """The room on one side of another; facts say how rooms lie, in this or the other direction."""
    who_has = auto()
    """The person who has a thing at the end."""


CORE = {
    FactKind.where_person: ("go",),
    FactKind.where_thing: ("go", "take"),
    FactKind.where_thing_before: ("go", "take", "go"),
    FactKind.which_side: (),
    FactKind.who_has: ("go", "take"),
}
"""What one person does in each story, so that the question has an answer."""


class Story(NamedTuple):
    """Facts in order, and a question about them."""

    facts: list[str]
    question: str
    answer: str
    """A person or a room."""


class World:
    """The state of the world; every action returns its sentence."""

    def __init__(self) -> None:
        self.room: dict[str, str] = {}
        self.holder: dict[str, str] = {}
        self.rooms: dict[str, list[str]] = {}
        """The rooms in which each thing was, in order."""

    def go(self, person: str, room: str) -> str:
        """Move a person and what that person holds."""
        self.room[person] = room
        for thing in self.held_by(person):
            self.rooms[thing].append(room)
        return f"{person} went to the {room}. "

    def take(self, person: str, thing: str) -> str:
        """Give a person a thing that lies in the same room, or that no fact has named yet."""
        self.holder[thing] = person
        self.rooms.setdefault(thing, [self.room[person]])
        return f"{person} took the {thing}. "

    def drop(self, person: str, thing: str) -> str:
        """Put a thing into the room of its holder."""
        del self.holder[thing]
        return f"{person} dropped the {thing}. "

    def give(self, person: str, thing: str, other: str) -> str:
        """Give a thing to a person in the same room."""
        self.holder[thing] = other
        return f"{person} gave the {thing} to {other}. "

    def held_by(self, person: str) -> list[str]:
        """Return the things of a person."""
        return [thing for thing in THINGS if self.holder.get(thing) == person]

    def free_for(self, person: str) -> list[str]:
        """Return the things that a person can take."""
        here = self.room[person]
        return [
            thing
            for thing in THINGS
            if thing not in self.holder and self.rooms.get(thing, [here])[-1] == here
        ]

    def elsewhere(self, person: str, dice: Dice) -> str:
        """Let a person go to another room."""
        others = [room for room in ROOMS if room != self.room.get(person)]
        return self.go(person, others[dice.below(len(others))])

    def anything(self, dice: Dice, *, untouched: str | None, undropped: str | None) -> str:
        """Let anybody do anything, except with `untouched`, and except dropping `undropped`.

        Takes at most six random words.
        """
        person = PEOPLE[dice.below(len(PEOPLE))]
        if person not in self.room or dice.below(2):
            return self.elsewhere(person, dice)
        here = [other for other in PEOPLE if self.room.get(other) == self.room[person]]
        here.remove(person)
        held = [thing for thing in self.held_by(person) if thing != untouched]
        free = [thing for thing in self.free_for(person) if thing != untouched]
        if held and (not free or dice.below(2)):
            thing = held[dice.below(len(held))]
            if here and (thing == undropped or dice.below(2)):
                return self.give(person, thing, here[dice.below(len(here))])
            if thing != undropped:
                return self.drop(person, thing)
        elif free:
            return self.take(person, free[dice.below(len(free))])
        return self.elsewhere(person, dice)


def neighbours(dice: Dice) -> tuple[list[str], tuple[str, str, str]]:
    """Return sentences about all neighbours in a random plan, and one (a, side, b) to be asked."""
    plan = [ROOMS[room] for room in dice.distinct(len(ROOMS), len(ROOMS))]
    sentences, asked = [], dice.below(len(SIDES))
    for number, (first, side, second) in enumerate(SIDES):
        one = plan[first], side, plan[second]
        other = plan[second], OPPOSITE[side], plan[first]
        sentences.append("The {} is {} of the {}. ".format(*(one, other)[dice.below(2)]))
        if number == asked:
            fact = (one, other)[dice.below(2)]
    return [sentences[place] for place in dice.order(len(sentences))], fact


def tell(dice: Dice, number: int, kind: FactKind) -> Story:
    """Return a story of `number` facts; takes at most six random words for each, and 40."""
    world = World()
    person = PEOPLE[dice.below(len(PEOPLE))]
    thing = THINGS[dice.below(len(THINGS))]
    sides, (first, side, second) = neighbours(dice)
    needed = iter(sides)
    if kind is not FactKind.which_side:
        needed = (
            world.elsewhere(person, dice) if action == "go" else world.take(person, thing)
            for action in CORE[kind]
        )
    slots = {*dice.distinct(needed_facts(kind), number)}
    facts = []
    for slot in range(number):
        if slot in slots:
            facts.append(next(needed))
            continue
        untouched = thing if slot < max(slots) else None
        undropped = thing if kind is FactKind.who_has else None
        facts.append(world.anything(dice, untouched=untouched, undropped=undropped))
    if kind is FactKind.which_side:
        return Story(facts, f"What is {side} of the {second}?", first)
    if kind is FactKind.where_person:
        return Story(facts, f"Where is {person}?", world.room[person])
    if kind is FactKind.who_has:
        return Story(facts, f"Who has the {thing}?", world.holder[thing])
    rooms = world.rooms[thing]
    if kind is FactKind.where_thing:
        return Story(facts, f"Where is the {thing}?", rooms[-1])
    return Story(facts, f"Where was the {thing} before the {rooms[-1]}?", rooms[-2])


def needed_facts(kind: FactKind) -> int:
    """Return the number of facts that every story of a kind has."""
    return len(SIDES) if kind is FactKind.which_side else len(CORE[kind])
