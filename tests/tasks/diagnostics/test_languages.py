"""The formal languages, each compared with a literal evaluator, and with examples by hand."""

from collections import Counter

import numpy as np
import pytest
from literal_languages import LITERAL, value

from lra.tasks.data.batching import Draw, random_words
from lra.tasks.diagnostics.base import NOT_ASKED
from lra.tasks.diagnostics.languages.binary_numbers import uniform_numbers
from lra.tasks.diagnostics.languages.catalogue import PLACES as LANGUAGES
from lra.tasks.diagnostics.languages.context_free import SUMS_IN_BRACKETS
from lra.tasks.diagnostics.languages.expressions import expression_counts

EXAMPLES = {
    "parity": ("1 0 1 1", "1"),
    "even_pairs": ("0 1 1 0", "0"),
    "modular": ("3 - 2 × 4", "0"),
    "cycle": ("+ + - + .", "2"),
    "brackets": ("( ( 2 × ( 3 - 4 ) ) + 1 )", "4"),
    "equation": ("( x + 3 ) = 1", "3"),
    "stack": ("1 0 push1 pop pop", "1 end"),
    "reverse": ("0 0 1", "1 0 0"),
    "missing_duplicate": ("1 0 1 1 ? 1", "0"),
    "duplicate": ("0 0 1", "0 0 1 0 0 1"),
    "odds_first": ("a b c d e", "b d a c e"),
    "addition": ("1 1 + 0 1", "1 0 1 end"),
    "multiplication": ("1 1 × 0 1", "0 1 1 end"),
    "sqrt": ("1 0 0 1 1", "1 0 0"),
    "bucket_sort": ("3 1 4 1", "1 1 3 4"),
}
PINNED = {
    "even_pairs": "0 0 0 1 0 1 1 0 1 -> 1",
    "parity": "0 0 0 1 0 1 1 0 1 -> 0",
    "modular": "2 + 1 × 2 + 3 - 0 -> 2",
    "cycle": "- - . + + - . . . -> 4",
    "brackets": "( ( 1 ) × ( 1 ) ) -> 1",
    "equation": "( 1 + ( x ) ) = 4 -> 3",
    "stack": "0 0 0 1 0 pop push0 push0 push0 -> 0 0 0 1 0 0 0 end",
    "reverse": "0 0 0 1 0 1 1 0 1 -> 1 0 1 1 0 1 0 0 0",
    "missing_duplicate": "0 0 0 1 ? 0 0 1 . -> 0",
    "duplicate": "0 0 0 1 0 1 1 0 1 -> 0 0 0 1 0 1 1 0 1 0 0 0 1 0 1 1 0 1",
    "odds_first": "0 0 0 1 0 1 1 0 1 -> 0 1 1 0 0 0 0 1 1",
    "addition": "1 + 1 1 0 1 1 1 0 -> 0 0 1 1 1 1 end",
    "multiplication": "1 × 1 1 0 1 1 1 0 -> 1 1 0 1 1 1 end",
    "sqrt": "0 1 0 0 0 0 1 0 0 -> 0 1 0 1 1",
    "bucket_sort": "2 1 1 3 2 1 3 2 0 -> 0 1 1 1 2 2 2 3 3",
}


def pairs(language, length, number, stream=0):
    """Draw inputs and answers of a language as symbols."""
    per_row = language.words(length)
    words = random_words(Draw.diagnostic, stream, number * per_row).reshape(number, per_row)
    tokens, answers = language.draw(words, length)
    assert tokens.shape == (number, length)
    assert answers.shape == (number, language.places(length))
    for row, said in zip(tokens.tolist(), answers.tolist(), strict=True):
        asked = [answer for answer in said if answer != NOT_ASKED]
        assert said[len(asked) :] == [NOT_ASKED] * (len(said) - len(asked))
        yield [language.symbols[t] for t in row], [language.symbols[a] for a in asked]


@pytest.mark.parametrize("name", LITERAL)
def test_the_examples_of_the_definitions(name):
    question, answer = EXAMPLES[name]
    assert LITERAL[name](question.split()) == answer.split()
    if name != "odds_first":
        assert set(question.split()) <= set(LANGUAGES[name].symbols)


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_literal_evaluator_finds_every_answer(name):
    language = LANGUAGES[name]
    lengths = [*range(1, 15)] if name == "sqrt" else [*range(1, 15), 40, 101]
    for length in dict.fromkeys(map(language.allowed, lengths)):
        for question, answer in pairs(language, length, 40):
            assert LITERAL[name](question) == answer


def test_long_numbers_are_computed_exactly():
    for name in ("addition", "multiplication"):
        for question, answer in pairs(LANGUAGES[name], 500, 20):
            assert LITERAL[name](question) == answer
    for question, answer in pairs(LANGUAGES["sqrt"], 499, 20):
        number, root = int("".join(question), 2), int("".join(answer), 2)
        assert root**2 <= number < (root + 1) ** 2


def test_the_same_inputs_for_ever():
    """Pinned: another generator is another version."""
    found = {}
    for name, language in LANGUAGES.items():
        question, answer = next(iter(pairs(language, language.allowed(9), 2, stream=2)))
        found[name] = f"{' '.join(question)} -> {' '.join(answer)}"
    assert found == PINNED


def test_lengths_without_inputs_become_the_next_one():
    moved = {
        name: {n: language.allowed(n) for n in range(1, 8) if language.allowed(n) != n}
        for name, language in LANGUAGES.items()
    }
    assert {name: lengths for name, lengths in moved.items() if lengths} == {
        "modular": {2: 3, 4: 5, 6: 7},
        "equation": {1: 3, 2: 3},
        "missing_duplicate": {1: 2},
        "addition": {1: 3, 2: 3},
        "multiplication": {1: 3, 2: 3},
    }


@pytest.mark.parametrize("name", LANGUAGES)
def test_there_are_as_many_inputs_as_promised(name):
    language = LANGUAGES[name]
    for length in {language.allowed(length) for length in (3, 4, 5)}:
        if language.bits(length) < 10.2:
            found = {tuple(question) for question, _ in pairs(language, length, 14_000)}
            assert len(found) >= round(2 ** language.bits(length), 6)


def test_every_number_is_equally_frequent():
    words = random_words(Draw.diagnostic, 3, 7000).reshape(-1, 1)
    counts = Counter(uniform_numbers(words, np.full(7000, 3)))
    assert sorted(counts) == [1, 2, 3, 4, 5, 6, 7]
    assert all(abs(count / 1000 - 1) < 0.15 for count in counts.values())


def test_expressions_have_every_form_and_are_counted():
    assert expression_counts(9, 2)[1:] == [5, 5, 5, 5, 50, 100, 150, 200, 1150]
    for operators, language in ((3, LANGUAGES["brackets"]), (2, SUMS_IN_BRACKETS)):
        for length in (4, 5, 6):
            found = {"".join(question) for question, _ in pairs(language, length, 6000)}
            assert len(found) == expression_counts(length, operators)[length]
    assert all("×" not in question for question, _ in pairs(SUMS_IN_BRACKETS, 40, 50))
    for question, answer in pairs(SUMS_IN_BRACKETS, 40, 50):
        assert [str(value(question))] == answer


def test_the_left_part_of_an_expression_has_every_length():
    left = Counter()
    for question, _ in pairs(LANGUAGES["brackets"], 12, 8000):
        for place in range(2, 12):
            opened = question[:place].count("(") - question[:place].count(")")
            # An operator behind a digit or a bracket; any other - is a sign.
            behind = question[place - 1] in "01234)"
            if opened == 1 and question[place] in "+-×" and behind:
                left[place - 1] += 1
    assert sorted(left) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert all(abs(count / 1000 - 1) < 0.15 for count in left.values())
