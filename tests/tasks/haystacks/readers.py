"""Solvers that read the text of a row, each written from the definition of its task."""

import re
from collections import Counter

from lra.tasks.haystacks.common_words import CommonWords
from lra.tasks.haystacks.facts import Facts
from lra.tasks.haystacks.frequent_words import FrequentWords
from lra.tasks.haystacks.key_value import KeyValue
from lra.tasks.haystacks.needle import Needle, Passkey
from lra.tasks.haystacks.variable_tracking import VariableTracking
from lra.tasks.haystacks.wordlist import SYNONYMS

ADJECTIVES, NOUNS = SYNONYMS.values()
SAME = {
    f"{adjective}-{noun}": f"{ADJECTIVES[adjective]}-{NOUNS[noun]}"
    for adjective in ADJECTIVES
    for noun in NOUNS
}


def look_up(task, text):
    context, question = re.split(r"\nWhat (?:is the value of|belongs to) ", text)
    stated = re.findall(r"The value of (.+?) is (.+?)\. ", context)
    if not task.overlap:
        assert not {*re.findall(r"\w+", question)} & {*re.findall(r"\w+", context)}
        stated = [(SAME[key], value) for key, value in stated]
    return [
        value
        for asked in question.removesuffix("? ").split(", ")
        for key, value in dict.fromkeys(stated)
        if key == asked
    ]


def pair(task, text):
    del task
    context, asked = text.rsplit("\n? ", 1)
    found = re.findall(re.escape(asked) + r"(\w+)\. ", context)
    return [*dict.fromkeys(found)]


def follow(task, text):
    del task
    context, question = text.rsplit("\nWhich names are ", 1)
    number, names = question.removesuffix("? "), {}
    for name, source in re.findall(r"([A-Z]{5}) = (\w{5})\. ", context):
        names[name] = names.get(source, source)
    return [name for name, value in names.items() if value == number]


def most_frequent(task, text):
    del task
    words = Counter(text.rpartition("\n")[0].split())
    del words["......"]
    return [word for word, _ in words.most_common(3)]


def repeated(task, text):
    items = re.findall(r"(\d+)\. ([a-z]{6}) ", text.rpartition("\n")[0])
    assert [int(number) for number, _ in items] == [*range(1, len(items) + 1)]
    words = Counter(word for _, word in items)
    assert set(words.values()) == {task.often, task.seldom}
    return [word for word, number in words.items() if number == task.often]


ROOMS = "attic|bedroom|cellar|dairy|entry|forge"
FACTS = {
    "go": rf"(\w+) went to the ({ROOMS})\. ",
    "take": r"(\w+) took the (\w+)\. ",
    "drop": r"(\w+) dropped the (\w+)\. ",
    "give": r"(\w+) gave the (\w+) to (\w+)\. ",
    "side": rf"The ({ROOMS}) is (\w+) of the ({ROOMS})\. ",
}
TURNED = {"north": "south", "south": "north", "east": "west", "west": "east"}


def simulate(task, text):
    """Act the facts out, with a check that each is possible, and answer."""
    del task
    context, question = text.rsplit("\n", 1)
    events = sorted(
        (found.start(), kind, found.groups())
        for kind, pattern in FACTS.items()
        for found in re.finditer(pattern, context)
    )
    room, holder, lies, was, sides = {}, {}, {}, {}, {}
    for _, kind, words in events:
        if kind == "go":
            person, there = words
            assert room.get(person) != there
            room[person] = there
            for thing in [thing for thing, one in holder.items() if one == person]:
                was[thing].append(there)
        elif kind == "take":
            person, thing = words
            assert thing not in holder
            assert lies.get(thing, room[person]) == room[person]
            holder[thing] = person
            was.setdefault(thing, [room[person]])
        elif kind == "drop":
            person, thing = words
            assert holder.pop(thing) == person
            lies[thing] = room[person]
        elif kind == "give":
            person, thing, other = words
            assert holder[thing] == person
            assert room[person] == room[other]
            holder[thing] = other
        else:
            one, side, two = words
            sides[side, two], sides[TURNED[side], one] = one, two
    if found := re.fullmatch(r"What is (\w+) of the (\w+)\? ", question):
        answer = sides[found.groups()]
    elif found := re.fullmatch(r"Who has the (\w+)\? ", question):
        answer = holder[found[1]]
    elif found := re.fullmatch(r"Where was the (\w+) before the (\w+)\? ", question):
        assert was[found[1]][-1] == found[2]
        answer = was[found[1]][-2]
    elif found := re.fullmatch(r"Where is the (\w+)\? ", question):
        answer = was[found[1]][-1]
    else:
        answer = room[re.fullmatch(r"Where is (\w+)\? ", question)[1]]
    return [answer[0]]


READERS = {
    Needle: look_up,
    Passkey: look_up,
    KeyValue: pair,
    VariableTracking: follow,
    FrequentWords: most_frequent,
    CommonWords: repeated,
    Facts: simulate,
}
