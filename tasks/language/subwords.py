"""Sub-words as tokens, by the `tokenizers` library: learnt from the train split, or given.

A model learnt here is byte-level: all 256 bytes have ids, it can encode any text, and decoding
reproduces the text. It first cuts a text into pieces, and then each piece into sub-words. A line
end is a piece, so no sub-word spans two lines. The pieces are:

    a word, a number or some punctuation marks, with the blank before it | blanks | a line end

ASCII characters alone separate the pieces, and most pieces repeat. So each piece is encoded once
and then looked up, which is many times faster than the library, with the same result. A given
`tokenizer.json` has other rules; the library applies it line by line, and it may lose information.

BPE gives the same file in every run and for any number of threads. Unigram gives the same pieces,
but the last digits of its scores, and the order of bytes that do not occur, can differ. So this
module rounds its scores and sorts the pieces.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum, auto
from functools import cached_property
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer

from lra.conf.plain_files import read_bytes
from lra.conf.short_values import reason
from lra.tasks.data.lines import LineBlock
from lra.tasks.data.sources import remembered_sha256
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.language import vocabulary_cache
from lra.tasks.language.words import token_type

VERSION = 1
BYTES = 256
REMEMBERED = 1_000_000
"""Number of pieces with ids in memory at which the memory is cleared."""
AT_ONCE = 1000
"""Number of pieces that the library gets as one text."""
DIGITS = 4
"""Digits of a unigram's scores, which are natural logarithms, after rounding."""
UNSEEN = 0.03
"""Range above the lowest score in which the library puts bytes that do not occur."""
MARKS = r"!-/:-@\[-`{-~"
PIECE = (
    rf" ?[^ \t\n\r\v\f0-9{MARKS}]+| ?[0-9]+| ?[{MARKS}]+|\n"
    r"|[ \t\r\v\f]+(?![^ \t\n\r\v\f])|[ \t\r\v\f]+"
)
PIECES = re.compile(PIECE.encode())

log = logging.getLogger(__name__)


class Algorithm(StrEnum):
    """How sub-words are learnt."""

    bpe = auto()
    """Byte-pair encoding."""
    unigram = auto()
    """A unigram language model."""


class _Pieces(dict[bytes, int]):
    """Numbers of pieces, in the order of their first look-up."""

    def __missing__(self, piece: bytes) -> int:
        """Give a new piece the next number; Python calls this at its first look-up."""
        number = self[piece] = len(self)
        return number


class Subwords:
    """The tokeniser; learnt once from the train split and stored in the cache, or given.

    Args:
        size: Wanted number of ids; None: the number that `given` has.
        added: Number of ids at the end that the task uses, instead of the model.
        train: Identity of the train split's content.
        algorithm: bpe or unigram.
        given: A `tokenizer.json` to use instead of learning.

    Raises:
        ValueError: `size` has no room for a sub-word in addition to the bytes.
        NotPrepared: The given file is missing.
        BadData: The given file is no tokeniser, and `size` is None.
    """

    def __init__(
        self,
        *,
        size: int | None,
        train: object,
        algorithm: Algorithm,
        given: Path | None = None,
        added: int = 0,
    ) -> None:
        self.added, self.algorithm, self.given = added, algorithm, given
        if given is None:
            if size is None or size <= BYTES + added:
                raise ValueError(
                    f"task.subword_vocabulary must be above {BYTES + added}, because every byte "
                    f"needs an id: got {size}"
                )
            library = f"tokenizers {version('tokenizers')}"
            self.recipe: dict[str, object] = {
                "kind": str(algorithm),
                "version": VERSION,
                "size": size - added,
                "library": library,
                "train": train,
            }
        else:
            if not given.is_file():
                raise NotPrepared(
                    f"task.tokenizer={given} is missing; set this option to a tokenizer.json of "
                    "the `tokenizers` library, or remove it to learn a tokeniser from train"
                )
            content = remembered_sha256(given)
            self.recipe = {"kind": "given", "version": VERSION, "content": content}
        self.size = self._count_ids() if size is None else size
        self.name = f"{self.recipe['kind']} {size}"

    @property
    def _file(self) -> vocabulary_cache.CachedFile:
        return vocabulary_cache.cached_file(
            f"{self.algorithm}-{self.recipe['size']}", "tokenizer.json", self.recipe
        )

    def is_stored(self) -> bool:
        """Return whether the model is stored on this machine, or given."""
        return self.given is not None or vocabulary_cache.is_stored(self._file)

    def learn(self, train: Callable[[], Iterable[LineBlock]]) -> None:
        """Learn the model from train, unless it is stored or given.

        Raises:
            BadData: The model has another number of ids than `size`, or is no tokeniser.
        """
        if self.given is None:
            vocabulary_cache.stored_or_built(self._file, lambda: self._learn_content(train()))
        if (count := self._count_ids()) != self.size:
            raise BadData(
                f"{self._origin} has {count - self.added:,} ids; wanted "
                f"{self.size - self.added:,}; set task.subword_vocabulary={count}"
            )

    def _count_ids(self) -> int:
        """Return the number of ids of the model and of the task together."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise BadData(
                f"{self._origin} has no ids; set task.tokenizer to another tokenizer.json"
            )
        return 1 + max(vocabulary.values()) + self.added

    def _learn_content(self, train: Iterable[LineBlock]) -> bytes:
        """Return the content of the tokenizer.json learnt from train."""
        wanted = self.size - self.added
        log.info("lra learns %d sub-words (%s) from the train split", wanted, self.algorithm)
        content, count = learnt(train, self.algorithm, wanted)
        if count != wanted:
            raise BadData(
                f"the train split has only {count:,} sub-words by {self.algorithm}; wanted "
                f"{wanted:,}; set task.subword_vocabulary={count + self.added} or less"
            )
        return content

    @property
    def _origin(self) -> Path:
        """Path of the model's file, for messages."""
        return self._file.folder / self._file.name if self.given is None else self.given

    def _content(self) -> bytes:
        """Return the bytes of the model's file, after comparing its hash."""
        if self.given is None:
            return vocabulary_cache.read_verified(self._file)
        content = read_bytes(self.given)
        if hashlib.sha256(content).hexdigest() != self.recipe["content"]:
            raise BadData(f"{self.given} changed while lra was using it; rerun the command")
        return content

    @property
    def sha256(self) -> str:
        """Hash of the model's file, after checking it."""
        return hashlib.sha256(self._content()).hexdigest()

    @cached_property
    def _tokenizer(self) -> Any:
        """The model as an object of the `tokenizers` library."""
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_str(self._content().decode("utf-8-sig"))
        except (BadData, NotPrepared):
            raise
        except Exception as error:  # the library raises no narrower class
            raise BadData(
                f"{self._origin} is not a tokenizer.json of the `tokenizers` library "
                f"({reason(error)}); set task.tokenizer to another file, or remove this option to "
                "learn a tokeniser"
            ) from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        # Encode the name of a special token in a text as ordinary text.
        tokenizer.encode_special_tokens = True
        return tokenizer

    def encode(self, block: LineBlock) -> Integer[np.ndarray, " n"]:
        """Return the ids of whole lines, from the ids of their pieces, or by a given tokeniser."""
        if self.given is not None:
            flat, _ = self._encode_texts(_ended_lines(block.text))
            return flat
        if len(self._piece_numbers) > REMEMBERED:
            self._piece_numbers.clear()
            self._flat, self._ends = np.empty(0, np.int64), np.zeros(1, np.int64)
        before, words = len(self._piece_numbers), PIECES.findall(block.text)
        order = np.fromiter(map(self._piece_numbers.__getitem__, words), np.int64, count=len(words))
        new = [word.decode() for word in islice(self._piece_numbers, before, None)]
        if new:
            flat, lengths = self._encode_texts(new)
            self._flat = np.concatenate((self._flat, flat))
            self._ends = np.concatenate((self._ends, self._ends[-1] + np.cumsum(lengths)))
        starts = self._ends[order]
        lengths = self._ends[order + 1] - starts
        ends = np.cumsum(lengths)
        # The place of each id in `_flat`: where its piece begins there, instead of in the result.
        shifts = np.repeat(starts - (ends - lengths), lengths)
        ids = self._flat[shifts + np.arange(len(shifts))]
        return ids.astype(token_type(self.size))

    def altered_line(self, block: LineBlock) -> tuple[int, str, str] | None:
        """Return the first line that a given model does not reproduce: number, line, decoded line.

        None if it reproduces all lines, or is not given.
        """
        if self.given is None:
            return None
        lines = _ended_lines(block.text)
        encodings = self._tokenizer.encode_batch_fast(lines, add_special_tokens=False)
        decoded_lines = self._tokenizer.decode_batch(
            [encoding.ids for encoding in encodings], skip_special_tokens=False
        )
        for number, (line, decoded) in enumerate(
            zip(lines, decoded_lines, strict=True), block.line
        ):
            if line != decoded:
                return number, line, decoded
        return None

    def encode_text(self, text: str) -> Integer[np.ndarray, " n"]:
        """Return the ids of any text."""
        return self.encode(LineBlock(text.encode(), "text", 1))

    @cached_property
    def _piece_numbers(self) -> _Pieces:
        """Numbers of all pieces so far; the ids of piece n begin at `_ends[n]` in `_flat`."""
        self._flat, self._ends = np.empty(0, np.int64), np.zeros(1, np.int64)
        return _Pieces()

    def _encode_texts(
        self, texts: list[str]
    ) -> tuple[Integer[np.ndarray, " n"], Integer[np.ndarray, " texts"]]:
        """Return the ids of all texts by the library, and the number of ids of each text."""
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = [np.array(encoding.ids, token_type(self.size)) for encoding in encodings]
        return np.concatenate(ids), np.array([len(part) for part in ids])

    def decode(self, ids: Integer[np.ndarray, " n"]) -> str:
        """Return the text of some ids, with � for an incomplete character."""
        text: str = self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        return text


def _ended_lines(text: bytes) -> list[str]:
    """Return the lines of a text, each with its line feed."""
    lines = text.decode().split("\n")
    ended = [f"{line}\n" for line in lines[:-1]]
    return ended + lines[-1:] if lines[-1] else ended


def byte_letters() -> dict[int, str]:
    """Return the printable letter that stands for each byte in a byte-level model, as in GPT-2.

    Printable bytes stand for themselves, and the others for the letters from code point 256 on.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(BYTES) if byte not in printable]
    others = {byte: chr(BYTES + number) for number, byte in enumerate(hidden)}
    return {byte: others.get(byte, chr(byte)) for byte in range(BYTES)}


def _pieces_in_letters(train: Iterable[LineBlock]) -> Iterator[str]:
    """Yield a text's pieces in the letters of a byte-level model, with blanks between them.

    So the library need not apply its rules for pieces, which take most of its time.
    """
    # The byte 255 separates pieces, because it never occurs in UTF-8.
    letters = {**byte_letters(), 255: " "}
    for block in train:
        pieces = PIECES.findall(block.text)
        for first in range(0, len(pieces), AT_ONCE):
            joined = b"\xff".join(pieces[first : first + AT_ONCE])
            yield joined.decode("latin-1").translate(letters)


def learnt(train: Iterable[LineBlock], algorithm: Algorithm, size: int) -> tuple[bytes, int]:
    """Learn a model with `size` ids from a text.

    Returns:
        Its `tokenizer.json` and its number of ids, which is smaller if the text is too short.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    alphabet = list(byte_letters().values())
    options: dict[str, Any] = {
        "vocab_size": size,
        "initial_alphabet": alphabet,
        "show_progress": False,
    }
    bpe = algorithm is Algorithm.bpe
    tokenizer = Tokenizer(models.BPE() if bpe else models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    trainer = (trainers.BpeTrainer if bpe else trainers.UnigramTrainer)(**options)

    tokenizer.train_from_iterator(_pieces_in_letters(train), trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    content = json.loads(tokenizer.to_str())
    if not bpe:
        content["model"]["vocab"] = sorted_pieces(content["model"]["vocab"], frozenset(alphabet))
    return json.dumps(content, ensure_ascii=False, indent=1).encode(), tokenizer.get_vocab_size()


def sorted_pieces(pieces: list[list[Any]], alphabet: frozenset[str]) -> list[list[Any]]:
    """Return a unigram's (piece, score), the likeliest first, with rounded scores.

    Bytes that do not occur get the lowest score, because the library's order of them varies.
    """
    lowest = round(min(score for _, score in pieces), DIGITS)
    rounded = [
        [piece, lowest if piece in alphabet and score < lowest + UNSEEN else round(score, DIGITS)]
        for piece, score in pieces
    ]
    return sorted(rounded, key=lambda entry: (-entry[1], entry[0]))
