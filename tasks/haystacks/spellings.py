"""Random different texts: words, numbers, names of people."""

from enum import StrEnum, auto

from lra.tasks.haystacks.byte_rows import Dice
from lra.tasks.haystacks.wordlist import ADJECTIVES, FIRST_NAMES, LAST_NAMES, NOUNS, SYNONYMS


class Spelling(StrEnum):
    """How a text is written."""

    word = auto()
    """An adjective and a noun, such as calm-river."""
    digits = auto()
    """As many digits as `digits` says."""
    hex = auto()
    """32 hexadecimal digits."""
    person = auto()
    """A first and a last name, such as Ada Marsh."""
    synonym = auto()
    """An adjective and a noun that have synonyms: calm-creek, which a question calls quiet-stream.
    There are 40 pairs of words."""


PARTS = {
    Spelling.word: (ADJECTIVES, "-", NOUNS),
    Spelling.person: (FIRST_NAMES, " ", LAST_NAMES),
    Spelling.synonym: ([*SYNONYMS["adjectives"]], "-", [*SYNONYMS["nouns"]]),
}


def synonym_of(text: bytes) -> bytes:
    """Return the text with the synonym of both words."""
    adjective, noun = text.decode().split("-")
    return f"{SYNONYMS['adjectives'][adjective]}-{SYNONYMS['nouns'][noun]}".encode()


def longest(kind: Spelling, digits: int) -> int:
    """Return the most bytes of a text of a kind."""
    if kind in PARTS:
        first, between, second = PARTS[kind]
        if kind is Spelling.synonym:
            first, second = ([*pairs, *pairs.values()] for pairs in SYNONYMS.values())
        return max(map(len, first)) + len(between) + max(map(len, second))
    return 32 if kind is Spelling.hex else digits


def different(kind: Spelling, digits: int) -> int:
    """Return the number of different texts of a kind."""
    if kind in PARTS:
        return len(PARTS[kind][0]) * len(PARTS[kind][2])
    return 1 << 128 if kind is Spelling.hex else 10**digits


def texts(kind: Spelling, dice: Dice, number: int, digits: int) -> list[bytes]:
    """Return different texts of a kind; takes one random word for each, or two for hex."""
    if kind is Spelling.hex:
        return [b"%016x%016x" % (dice.word(), dice.word()) for _ in range(number)]
    drawn = dice.distinct(number, different(kind, digits))
    if kind is Spelling.digits:
        return [b"%0*d" % (digits, one) for one in drawn]
    first, between, second = PARTS[kind]
    pairs = (divmod(one, len(second)) for one in drawn)
    return [f"{first[one]}{between}{second[other]}".encode() for one, other in pairs]
