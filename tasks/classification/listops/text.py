"""ListOps as tokens and as text: vocabulary, solver, and the official TSV form.

The official text of `[MAX 2 9 ]` is `( ( ( [MAX 2 ) 9 ) ] )`: pairs nested to the left. Tokens
omit the parentheses, which add no information, and include the closing brackets, which do.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
from jaxtyping import Shaped, UInt8

from lra.conf.short_values import short_repr
from lra.tasks.data.bars import tqdm
from lra.tasks.data.lines import plain_text
from lra.tasks.data.sources import open_binary
from lra.tasks.data.storage import RaggedRows, from_rows
from lra.tasks.errors import BadData

VOCABULARY_VERSION = 1
VOCABULARY = (
    "<pad>", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]",
)  # fmt: skip
"""Token of every id. Any change raises `VOCABULARY_VERSION`."""
FIRST_DIGIT, FIRST_OPERATOR, CLOSE = 1, 11, 15
MIN, MAX, MED, SM = range(FIRST_OPERATOR, CLOSE)
IDS = {word.encode(): i for i, word in enumerate(VOCABULARY) if i}
HEADER, SWAPPED = b"Source\tTarget", b"Target\tSource"
LABEL_FIRST = re.compile(rb"[0-9]\t[( ]*\[")
FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
FOLDER = "listops-1000"
"""Folder with the files in the archive of the Long Range Arena."""

Tokens = UInt8[np.ndarray, " t"]
Targets = UInt8[np.ndarray, " n"]


def holds_trees(folder: Path) -> bool:
    """Return whether `folder` has at least one of the official files."""
    return any((folder / name).is_file() for name in FILES.values())


def encode(text: str) -> Tokens:
    """Return the ids of a tree in official or plain form, e.g. `[MAX 2 9 ]`.

    Raises:
        BadData: The text has a word outside the vocabulary.
    """
    words = text.encode().translate(None, b"()").split()
    try:
        return np.frombuffer(bytes([IDS[word] for word in words]), np.uint8)
    except KeyError as error:
        word = error.args[0].decode(errors="replace")
        raise BadData(
            f"{short_repr(word)} is not a ListOps token; the tokens are {' '.join(VOCABULARY[1:])}"
        ) from None


def decode(tokens: Sequence[int] | Shaped[np.ndarray, " t"]) -> str:
    """Return the tree in plain form; padding ends it."""
    return " ".join(VOCABULARY[int(token)] for token in tokens if token)


def median(values: list[int]) -> int:
    """Return the median; for an even count, the mean of the middle two, truncated."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2


OPERATIONS: dict[int, Callable[[list[int]], int]] = {
    MIN: min,
    MAX: max,
    MED: median,
    SM: lambda values: sum(values) % 10,
}


def solve(tokens: Sequence[int] | Shaped[np.ndarray, " t"]) -> int:
    """Evaluate one encoded tree, padded or not, by a stack, and return its digit.

    Raises:
        BadData: The tokens are not exactly one tree.
    """
    open_operators: list[int] = []
    arguments: list[list[int]] = [[]]
    for token in tokens.tolist() if isinstance(tokens, np.ndarray) else tokens:
        if token == 0:
            break
        if token < FIRST_OPERATOR:
            arguments[-1].append(token - FIRST_DIGIT)
        elif token < CLOSE:
            open_operators.append(token)
            arguments.append([])
        else:
            values = arguments.pop()
            if not open_operators or not values:
                raise BadData(
                    f"a bracket ']' closes no list, or an empty one: {short_repr(decode(tokens))}"
                )
            arguments[-1].append(OPERATIONS[open_operators.pop()](values))
    if open_operators or len(arguments[0]) != 1:
        raise BadData(
            f"the tokens must be exactly one closed tree: got {short_repr(decode(tokens))}"
        )
    return arguments[0][0]


def read_split(path: Path, *, max_length: int, check_answers: bool) -> RaggedRows:
    """Return the trees of an official file with their values; raise the errors of `read_tsv`."""
    rows, targets = [], []
    lines = read_tsv(path, max_length=max_length, check_answers=check_answers)
    for tokens, target in tqdm(lines, desc=path.name, unit="line", disable=None):
        rows.append(np.frombuffer(tokens, np.uint8))
        targets.append(target)
    return from_rows(rows, np.array(targets, np.uint8))


def read_tsv(path: Path, *, max_length: int, check_answers: bool) -> Iterator[tuple[bytes, int]]:
    """Yield (token ids of a tree, its value) for every line of an official file.

    Raises:
        NotPrepared: The file is missing.
        BadData: A line is malformed or longer than `max_length`, or, with `check_answers`, its
            value is wrong. The message names the line.
    """
    with open_binary(path) as file:
        text = plain_text(file, str(path))
        first = text.readline().rstrip(b"\r\n")
        has_header = first in (HEADER, SWAPPED)
        # The files of the paper (arXiv:1804.06028) have no header, and the value first.
        value_first = first == SWAPPED or LABEL_FIRST.match(first) is not None
        if not (has_header or value_first):
            raise BadData(
                f"{path}, line 1: got {short_repr(first)}; a ListOps file begins with the header "
                f"{HEADER!r}, and each further line is a tree, a tab and a value; without a "
                "header, each line is a value, a tab and a tree"
            )
        number = 1
        lines = text if has_header else chain([first], text)
        for number, line in enumerate(lines, 1 + has_header):
            try:
                yield _parse_line(
                    line,
                    value_first=value_first,
                    max_length=max_length,
                    check_answers=check_answers,
                )
            except BadData as error:
                raise BadData(f"{path}, line {number}: {error}") from None
        if has_header and number == 1:
            raise BadData(
                f"{path}: the file has no line after the header, so it is truncated; fetch it again"
            )


def _parse_line(
    line: bytes, *, value_first: bool, max_length: int, check_answers: bool
) -> tuple[bytes, int]:
    """Return the token ids of the tree in a line, and its value; see `read_tsv`."""
    columns = line.rstrip(b"\r\n").split(b"\t")
    if len(columns) != 2:
        raise BadData(
            f"the line {short_repr(line)} has {len(columns)} columns; wanted "
            f"{'Target<TAB>Source' if value_first else 'Source<TAB>Target'}; the line is "
            "truncated or has no tab"
        )
    source, label = reversed(columns) if value_first else columns
    if len(label) != 1 or not label.isdigit():
        raise BadData(
            f"the target {short_repr(label)} is not a digit 0-9; correct or remove this line"
        )
    words = source.translate(None, b"()").split()
    try:
        tokens = bytes([IDS[word] for word in words])
    except KeyError as error:
        raise BadData(
            f"the token {short_repr(error.args[0])} is unknown; the tokens are "
            f"{' '.join(VOCABULARY[1:])}; correct or remove this line"
        ) from None
    if len(tokens) > max_length:
        raise BadData(
            f"the tree has {len(tokens)} tokens, more than task.max_length={max_length}; set "
            f"task.max_length={len(tokens)} or more, because a truncated tree has no answer"
        )
    if check_answers:
        answer = solve(list(tokens))
        if answer != int(label):
            raise BadData(
                f"the target is {int(label)}, but the value of the tree is {answer}; correct the "
                "line, or set task.check_answers=false to use the targets of the file"
            )
    elif not _is_tree(tokens):
        raise BadData(
            f"the brackets of {short_repr(source)} do not match; the line is truncated or damaged"
        )
    return tokens, int(label)


def _is_tree(tokens: bytes) -> bool:
    """Return whether the brackets form exactly one tree, without an empty list."""
    ids = np.frombuffer(tokens, np.uint8)
    opens, closes = (ids >= FIRST_OPERATOR) & (ids < CLOSE), ids == CLOSE
    depth = np.cumsum(opens.astype(np.int64) - closes)  # number of open lists after each token
    ends_once = len(ids) > 0 and bool(depth[-1] == 0) and bool((depth[:-1] > 0).all())
    return ends_once and not bool((opens[:-1] & closes[1:]).any())
