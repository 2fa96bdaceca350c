"""MAD's tasks, solved from a row as a person would: by place, the answers that a row determines."""

from collections.abc import Iterator, Sequence
from typing import Any


def recalled(task: Any, row: Sequence[int]) -> dict[int, int]:
    """Remember each key's value; noise is neither."""
    known, found = {}, {}
    for place in range(0, len(row), 2):
        key = row[place]
        if key in known:
            found[place] = known[key]
        elif key < task.keys and place + 1 < len(row):
            known[key] = row[place + 1]
    return found


def runs(task: Any, row: Sequence[int]) -> Iterator[tuple[bool, int, tuple[int, ...]]]:
    """Yield the keys and values of a row: whether a key, its first place, its tokens."""
    place = 0
    while place < len(row):
        is_key, end = row[place] < task.keys, place
        while end < len(row) and row[end] != task.vocabulary - 1 and (
            (row[end] < task.keys) == is_key
        ):  # fmt: skip
            end += 1
        if end > place:
            yield is_key, place, tuple(row[place:end])
        place = max(end, place + 1)


def fuzzily_recalled(task: Any, row: Sequence[int]) -> dict[int, int]:
    """Remember the tokens of each key's value; the last value of a row lacks its last token."""
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    found, key = {}, ()
    for is_key, place, tokens in runs(task, row):
        assert len(set(tokens)) == len(tokens) <= 3
        if is_key:
            key, end = tokens, place + len(tokens)
            for number, token in enumerate(known.get(key, ())):
                found[end - 1 + number] = token
        else:
            assert known.setdefault(key, tokens)[: len(tokens)] == tokens
    return found


def copied_after_one_mark(task: Any, row: Sequence[int]) -> dict[int, int]:
    """Give the symbols at the places after the mark."""
    mark = row.index(task.symbols + 1)
    content = [token for token in row[:mark] if token]
    assert len(content) == task.items
    assert row[mark + 1 :] == [0] * task.items
    return dict(enumerate(content, mark + 1))


def memorised(task: Any, row: Sequence[int]) -> dict[int, int]:
    """Look each key up in the map, which rows do not show."""
    assert set(row[1::2]) == {task.vocabulary - 1}
    return {place + 1: int(task.values[row[place]]) for place in range(0, len(row), 2)}


def reconstructed(task: Any, row: Sequence[int]) -> dict[int, int]:
    """Give the row itself."""
    assert row.index(task.vocabulary - 1) == len(row) - 1
    return dict(enumerate(row))
